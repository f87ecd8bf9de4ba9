"""Gymnasium vector environments in every auto-reset mode, as one host environment."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from sparring.envs.api import episode_seed
from sparring.envs.gym_spaces import (
    action_batcher,
    action_space,
    by_hand,
    converter,
    observation_space,
    stacker,
)
from sparring.errors import ConfigError, EnvironmentFailure
from sparring.spaces import EnvSpec
from sparring.types import TimeStep

FINAL_NAMES = ("final_obs", "final_observation")
"""Where vector environments put the last observation of an episode; the second is Gymnasium's before 1.0."""

MODES = tuple(mode.name for mode in gymnasium.vector.AutoresetMode)


class VectorRows:
    """A gymnasium.vector.VectorEnv behind the host protocol.

    SAME_STEP resets within the step and keeps the final observation in the infos. NEXT_STEP spends the
    following step on the reset: that step of the row is `lost`, so it never becomes a transition. DISABLED
    leaves the reset to us. Such an environment owns its seeds after the first reset, so it cannot be resumed
    exactly and `snapshot` is None.
    """

    backend_reason = "a vector environment was given"

    def __init__(self, env: Any, *, autoreset_mode: str | None = None, label: str | None = None) -> None:
        self.env = env
        registered = _registered(env)
        self._label = label or getattr(registered, "id", None) or type(env).__name__
        self.autoreset_mode = _mode(env, autoreset_mode, self._label)
        self._spec = EnvSpec(
            id=self._label,
            observation=observation_space(env.single_observation_space),
            action=action_space(env.single_action_space),
            rows=int(env.num_envs),
            time_limit=_time_limit(registered),
            reward_threshold=_threshold(registered),
        )
        self.by_hand = by_hand(env.single_observation_space, env.single_action_space)
        self._batch_action = action_batcher(env.single_action_space)
        self._convert = converter(env.single_observation_space)
        self._stack = stacker(env.single_observation_space)
        self._resetting = np.zeros(self._spec.rows, bool)
        self._open = False
        self.may_lose = self.autoreset_mode == "NEXT_STEP" or str(self.autoreset_mode).endswith("NEXT_STEP")
        self.last_infos: Any = {}

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    def reset(self, seed: int) -> TimeStep:
        # An int is the one kind of seed that every vector environment takes; 31 bits fit all of them.
        return self._first(*self.env.reset(seed=episode_seed(seed, 0, 0) >> 1))

    def _first(self, raw: Any, infos: Any) -> TimeStep:
        rows = self._spec.rows
        self.last_infos = infos
        self._resetting = np.zeros(rows, bool)
        self._open = True
        obs = self._convert(raw)
        self._check_finite(obs, np.zeros(rows, np.float32))
        none = np.zeros(rows, bool)
        return TimeStep(obs, np.zeros(rows, np.float32), none, none, obs)

    def step(self, action: np.ndarray) -> TimeStep:
        if not self._open:
            raise EnvironmentFailure(f"{self._label!r} was stepped before it was reset; call `reset` first.")
        try:
            raw, reward, terminated, truncated, infos = self.env.step(self._batch_action(action))
        except Exception as error:
            raise EnvironmentFailure(
                f"The vector environment {self._label!r} raised {type(error).__name__}: {error}"
            ) from error
        self.last_infos = infos
        obs = self._convert(raw)
        reward = np.array(reward, np.float32).reshape(-1)
        terminated = np.array(terminated, bool).reshape(-1)
        truncated = np.array(truncated, bool).reshape(-1) & ~terminated
        self._check_finite(obs, reward)
        match self.autoreset_mode:
            case "SAME_STEP":
                return self._same_step(obs, reward, terminated, truncated, infos)
            case "DISABLED":
                return self._disabled(obs, reward, terminated, truncated)
        return self._next_step(obs, reward, terminated, truncated)

    def _next_step(
        self, obs: Any, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
    ) -> TimeStep:
        lost = self._resetting
        reward, terminated, truncated = np.where(lost, 0, reward), terminated & ~lost, truncated & ~lost
        self._resetting = terminated | truncated
        return TimeStep(obs, reward, terminated, truncated, obs, lost=lost if lost.any() else None)

    def _disabled(
        self, obs: Any, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
    ) -> TimeStep:
        ended = terminated | truncated
        if not ended.any():
            return TimeStep(obs, reward, terminated, truncated, obs)
        raw, _ = self.env.reset(options={"reset_mask": ended})
        fresh = _chosen(ended, self._convert(raw), obs)
        return TimeStep(fresh, reward, terminated, truncated, obs)

    def _same_step(
        self, obs: Any, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, infos: Any
    ) -> TimeStep:
        ended = terminated | truncated
        if not ended.any():
            return TimeStep(obs, reward, terminated, truncated, obs)
        last = _chosen(ended, self._final(infos, ended), obs)
        return TimeStep(obs, reward, terminated, truncated, last)

    def _final(self, infos: Any, ended: np.ndarray) -> Any:
        """A batch that holds the last observation of the ended rows, and anything in the others."""
        name = next((name for name in FINAL_NAMES if name in infos), None)
        if name is None:
            raise EnvironmentFailure(
                f"The vector environment {self._label!r} resets in the same step but its infos hold no "
                f"'final_obs'; without it truncation cannot bootstrap. Found: {sorted(map(str, infos))}."
            )
        final = infos[name]
        mask = np.asarray(infos.get(f"_{name}", ended), bool)
        if not mask[ended].all():
            raise EnvironmentFailure(
                f"The vector environment {self._label!r} ended rows {np.flatnonzero(ended & ~mask).tolist()} "
                "without their 'final_obs'."
            )
        if not (isinstance(final, np.ndarray) and final.dtype == object):
            return self._convert(final)  # a batch like any other: an array, or a dict of arrays
        example = final[int(np.flatnonzero(ended)[0])]
        return self._stack([final[row] if ended[row] else example for row in range(len(ended))])

    def _check_finite(self, obs: Any, reward: np.ndarray) -> None:
        parts = obs.items() if isinstance(obs, dict) else [("observation", obs)]
        for name, part in (("reward", reward), *parts):
            if part.dtype == np.float32 and not np.isfinite(part).all():
                row = int(np.argwhere(~np.isfinite(part))[0][0])
                raise EnvironmentFailure(
                    f"{self._label!r}, row {row}, returned a {name} that is not finite. Mend the "
                    "environment, or clip what it returns in a wrapper."
                )

    def snapshot(self) -> None:
        return None

    def restore(self, snapshot: dict[str, np.ndarray], seed: int) -> TimeStep:
        raise EnvironmentFailure(
            f"The vector environment {self._label!r} cannot be restored; call `reset` to start new episodes."
        )

    def render(self) -> np.ndarray | None:
        if getattr(self.env, "render_mode", None) is None:
            return None
        frames = self.env.render()
        return np.asarray(frames[0]) if frames is not None and len(frames) else None

    def events(self) -> list[str]:
        return []

    def close(self) -> None:
        env, self.env = self.env, None
        self._open = False
        if env is not None:
            env.close()


def _mode(env: Any, asked: str | None, label: str) -> str:
    """The auto-reset mode as Gymnasium's enum spells it."""
    mode = asked or getattr(env, "metadata", {}).get("autoreset_mode")
    spelled = str(getattr(mode, "name", mode)).rpartition(".")[2].upper().replace("-", "").replace("_", "")
    name: str | None = {known.replace("_", ""): known for known in MODES}.get(spelled)
    if name is None:
        raise ConfigError(
            f"The vector environment {label!r} does not say how it resets (metadata['autoreset_mode'] is "
            f"{mode!r}). Pass autoreset_mode='SAME_STEP', 'NEXT_STEP' or 'DISABLED'."
        )
    return name


def _registered(env: Any) -> Any:
    """Gymnasium's specification of the vector environment, or of the environments in it."""
    if getattr(env, "spec", None) is not None or not hasattr(env, "get_attr"):
        return getattr(env, "spec", None)
    try:
        return env.get_attr("spec")[0]
    except (AttributeError, IndexError, TypeError):
        return None


def _time_limit(registered: Any) -> int | None:
    given = getattr(registered, "kwargs", {}).get("max_episode_steps")
    limit = given or getattr(registered, "max_episode_steps", None)
    return None if limit is None else int(limit)


def _threshold(registered: Any) -> float | None:
    value = getattr(registered, "reward_threshold", None)
    return None if value is None else float(value)


def _chosen(rows: np.ndarray, yes: Any, no: Any) -> Any:
    """`yes` in the given rows and `no` in the others, for an array or a dict of arrays."""
    if isinstance(no, dict):
        return {name: _chosen(rows, yes[name], part) for name, part in no.items()}
    return np.where(rows.reshape(rows.shape + (1,) * (no.ndim - 1)), yes, no)
