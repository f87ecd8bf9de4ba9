"""EnvPool's C++ environments behind the host protocol (extra `envpool`)."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

from sparring.envs.api import episode_seed
from sparring.envs.vector import VectorRows
from sparring.errors import ConfigError, UnknownName, missing_extra, nearest
from sparring.spaces import EnvSpec
from sparring.types import TimeStep


class EnvPoolRows(VectorRows):
    """A pool of one id, stepped together.

    EnvPool takes its seed when it is built and spends the step after an end on the reset, whose row is
    `lost`. It keeps no state that could be saved, so `snapshot` is None.
    """

    backend_reason = "EnvPool steps its rows in its own threads"

    def __init__(self, env_id: str, rows: int, *, time_limit: int | None = None, **kwargs: Any) -> None:
        if rows < 1:
            raise ConfigError(f"An environment needs at least one row, not {rows}; set n_envs >= 1.")
        self._id = env_id
        self._kwargs = dict(kwargs, num_envs=rows)
        if time_limit is not None:
            self._kwargs["max_episode_steps"] = time_limit
        self._seed = 0
        super().__init__(self._pool(0), autoreset_mode="NEXT_STEP", label=env_id)
        config = self.env.config
        threshold = config.get("reward_threshold")
        self._spec = EnvSpec(
            id=env_id,
            observation=self._spec.observation,
            action=self._spec.action,
            rows=rows,
            time_limit=config.get("max_episode_steps"),
            reward_threshold=None if threshold is None else float(threshold),
        )

    def reset(self, seed: int) -> TimeStep:
        # 31 bits: EnvPool's seed is a C int. It is read once, when the pool is built.
        self._seed = episode_seed(seed, 0, 0) >> 1
        if self.env is not None:
            self.env.close()
        self.env = self._pool(self._seed)
        return self._first(*self.env.reset())

    def _pool(self, seed: int) -> Any:
        try:
            import envpool
        except ImportError as error:
            raise missing_extra("envpool", "envpool") from error
        known = envpool.list_all_envs()
        if self._id not in known:
            hint = " EnvPool's Atari ids have no 'ALE/' prefix." if self._id.startswith("ALE/") else ""
            raise UnknownName(f"EnvPool knows no environment {self._id!r}.{nearest(self._id, known)}{hint}")
        try:
            with _quiet_bounds():
                pool = envpool.make(self._id, env_type="gymnasium", seed=seed, **self._kwargs)
                _ = pool.observation_space, pool.action_space  # built on first use, with the warning
                return pool
        except (TypeError, ValueError, AssertionError, AttributeError) as error:
            raise ConfigError(
                f"EnvPool could not build {self._id!r} with {self._kwargs!r}: {error}"
            ) from error


@contextlib.contextmanager
def _quiet_bounds() -> Iterator[None]:
    """EnvPool describes float32 boxes with float64 bounds, about which Gymnasium warns."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*precision lowered by casting.*")
        yield
