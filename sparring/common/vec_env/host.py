"""Our environments behind SB3's interface: in this process, in workers, or compiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np

from sparring.common.gym_space import gym_space
from sparring.common.vec_env.base import Answer, Indices, VecEnv
from sparring.common.vec_env.tally import Tally, row_infos
from sparring.envs import registry
from sparring.envs.api import episode_seed
from sparring.errors import ConfigError
from sparring.spaces import dtype_of, event_shape


class HostVecEnv(VecEnv):
    """Rows of one of our host environments."""

    made_from: str | None = None
    """the id that makes the same environment again, if one does"""

    def __init__(self, rows: Any) -> None:
        self.rows = rows
        spec = rows.spec
        super().__init__(spec.rows, gym_space(spec.observation), gym_space(spec.action))
        self.clock = 0
        """steps and resets that were asked for here, and not by a driver"""
        self.legal: np.ndarray | None = None
        """what may be done now, where the environment says it"""
        self._tally = Tally(spec.rows)
        self._seed: int | None = None
        self._resets = 0
        self._actions: Any = None
        first = self.envs[0] if self.envs else None
        compiled = hasattr(rows, "advance")  # a JAX environment draws its state
        self.render_mode = "rgb_array" if compiled else getattr(first, "render_mode", None)
        self.metadata = dict(getattr(first, "metadata", None) or {})

    @property
    def world(self) -> Any:
        """What a driver should step: the JAX environment itself, or the rows."""
        return self.rows.env if hasattr(self.rows, "advance") else self.rows

    @property
    def envs(self) -> list[Any]:
        """The Gymnasium environments, where they are in this process."""
        return list(getattr(self.rows, "envs", ()))

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        self._seed, self._resets = seed, 0
        return super().seed(seed)

    def next_seed(self) -> int:
        """The seed of the next reset: the one given, then others that follow from it."""
        if self._seed is None:
            self._seed = int(np.random.SeedSequence().generate_state(1)[0])
        count, self._resets = self._resets, self._resets + 1
        return self._seed if count == 0 else episode_seed(self._seed, 0, count)

    def reset(self) -> Any:
        self.clock += 1
        self._tally.start()
        timestep = self.rows.reset(self.next_seed())
        self.legal = timestep.legal
        return timestep.obs

    def step_async(self, actions: Any) -> None:
        space = self.rows.spec.action
        self._actions = (
            np.asarray(actions).astype(dtype_of(space)).reshape((self.num_envs, *event_shape(space)))
        )

    def step_wait(self) -> Answer:
        self.clock += 1
        timestep = self.rows.step(self._actions)
        self.legal = timestep.legal
        infos = row_infos(getattr(self.rows, "last_infos", None), timestep, self._tally)
        over = timestep.terminated | timestep.truncated
        for text in self.rows.events():
            warnings.warn(text, stacklevel=3)
        return timestep.obs, timestep.reward, over if timestep.lost is None else over | timestep.lost, infos

    def get_images(self) -> Sequence[np.ndarray | None]:
        if self.envs:
            return [_frame(env) for env in self.envs]
        return [self.rows.render(), *([None] * (self.num_envs - 1))]

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        return [_reach(env, attr_name) for env in self._reachable(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        for env in self._reachable(indices):
            if hasattr(env, "set_wrapper_attr"):
                env.set_wrapper_attr(attr_name, value)
            else:
                setattr(env, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        return [_reach(env, method_name)(*method_args, **method_kwargs) for env in self._reachable(indices)]

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Indices = None) -> list[bool]:
        if not self.envs:
            return super().env_is_wrapped(wrapper_class, indices)
        return [_is_wrapped(env, wrapper_class) for env in self._reachable(indices)]

    def close(self) -> None:
        self.rows.close()

    def _reachable(self, indices: Indices) -> list[Any]:
        if not self.envs:
            super().get_attr("", indices)
        return [self.envs[row] for row in self.chosen(indices)]


class DummyVecEnv(HostVecEnv):
    """Environments stepped one after the other in this process."""

    def __init__(self, env_fns: Sequence[Callable[[], Any]]) -> None:
        super().__init__(_inline(env_fns))
        if len({id(getattr(env, "unwrapped", env)) for env in self.envs}) < len(self.envs):
            raise ConfigError(
                "Several functions returned the same environment object. Each must build its own: write "
                "[lambda: gym.make(id) for _ in range(n)], not [lambda: env] * n."
            )


class SubprocVecEnv(HostVecEnv):
    """Environments in supervised worker processes, one each; a dead one is replaced.

    Processes are spawned, so a function must be importable. Where one is not (a lambda or a closure), the
    environments run in this process and a warning says so.
    """

    def __init__(self, env_fns: Sequence[Callable[[], Any]], start_method: str | None = None) -> None:
        if start_method not in (None, "spawn", "forkserver"):
            raise ConfigError(
                f"start_method={start_method!r} is not possible: a process forked after JAX has started can "
                "deadlock. Leave it out; workers are spawned."
            )
        stuck = next((function for function in env_fns if not _travels(function)), None)
        if stuck is None:
            from sparring.envs.workers import WorkerRows

            super().__init__(WorkerRows([_source(f) for f in env_fns], n_workers=len(env_fns)))
            return
        name = getattr(stuck, "__qualname__", type(stuck).__name__)
        warnings.warn(
            f"SubprocVecEnv: {name} cannot travel to another process, because it is not importable by name; "
            "the environments run in this process. Use make_vec_env(…, vec_env_cls=SubprocVecEnv), or a "
            "function at the top level of a module (functools.partial gives it arguments).",
            stacklevel=2,
        )
        super().__init__(_inline(env_fns))


def as_vec_env(env: Any, rows: int = 1) -> VecEnv:
    """Any environment that `sparring.make` takes, as a vector environment."""
    if isinstance(env, VecEnv):
        return env
    return HostVecEnv(registry.host(registry.make(env, n_envs=rows), rows))


def _inline(env_fns: Sequence[Callable[[], Any]]) -> Any:
    from sparring.envs.gymnasium import GymRows

    if not env_fns or not all(callable(function) for function in env_fns):
        raise ConfigError(
            "A vector environment takes functions that build environments: [lambda: make(), …]."
        )
    return GymRows([_source(function) for function in env_fns])


def _source(function: Callable[[], Any]) -> Callable[[], Any]:
    """The function as our workers take it."""
    from sparring.envs.source import Factory

    factory = Factory(function)
    return factory if factory.importable and not hasattr(function, "label") else function


def _travels(function: Callable[[], Any]) -> bool:
    """Whether another process can be given the function."""
    try:
        ForkingPickler.dumps(function)
    except Exception:  # noqa: BLE001 - pickling may raise anything
        return False
    return True


def _frame(env: Any) -> np.ndarray | None:
    frame = env.render() if getattr(env, "render_mode", None) else None
    frame = frame[-1] if isinstance(frame, list) and frame else frame
    return frame if isinstance(frame, np.ndarray) else None


def _reach(env: Any, name: str) -> Any:
    """An attribute of the environment or of one it wraps."""
    return env.get_wrapper_attr(name) if hasattr(env, "get_wrapper_attr") else getattr(env, name)


def _is_wrapped(env: Any, wrapper: type[Any]) -> bool:
    while env is not None:
        if isinstance(env, wrapper):
            return True
        env = env.__dict__.get("env")
    return False
