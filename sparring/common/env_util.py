"""Vector environments from an id, as SB3 makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparring.common.monitor import Monitor
from sparring.common.vec_env import DummyVecEnv, HostVecEnv, VecEnv
from sparring.envs import registry
from sparring.envs.source import GymId
from sparring.errors import ConfigError

DRAW = {"render_mode": "rgb_array"}


@dataclass(frozen=True)
class Drawable(GymId):
    """A Gymnasium id that can draw itself, where it knows how to."""

    def __call__(self) -> Any:
        try:
            return GymId(self.id, {**DRAW, **self.kwargs})()
        except ConfigError:  # it does not take render_mode
            return GymId(self.id, self.kwargs)()


@dataclass(frozen=True)
class Recipe:
    """One environment with Monitor and wrapper around it, as data that can travel to a worker."""

    env: str | Callable[..., Any]
    kwargs: dict[str, Any] = field(default_factory=dict)
    wrapper: Callable[..., Any] | None = None
    wrapper_kwargs: dict[str, Any] = field(default_factory=dict)
    log: str | None = None
    monitor_kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return self.env if isinstance(self.env, str) else getattr(self.env, "__name__", "environment")

    def __call__(self) -> Any:
        env = Monitor(self._build(), self.log, **self.monitor_kwargs)
        return env if self.wrapper is None else self.wrapper(env, **self.wrapper_kwargs)

    def _build(self) -> Any:
        import gymnasium

        if not isinstance(self.env, str):
            return self.env(**self.kwargs)
        GymId(self.env).registered()  # an unknown id is explained here, and Atari's are registered
        try:
            return gymnasium.make(self.env, **{**DRAW, **self.kwargs})
        except TypeError:
            return gymnasium.make(self.env, **self.kwargs)


def make_vec_env(
    env_id: str | Callable[..., Any],
    n_envs: int = 1,
    seed: int | None = None,
    start_index: int = 0,
    monitor_dir: str | None = None,
    wrapper_class: Callable[..., Any] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    vec_env_cls: type[Any] | None = None,
    vec_env_kwargs: Mapping[str, Any] | None = None,
    monitor_kwargs: Mapping[str, Any] | None = None,
    wrapper_kwargs: Mapping[str, Any] | None = None,
) -> VecEnv:
    """Several copies of an environment.

    An id that exists JAX-native runs compiled, unless something is asked for that only Gymnasium's has: a
    wrapper, a monitor file, arguments, or a `vec_env_cls`. `gym:ID` always takes Gymnasium's.
    """
    kwargs = dict(env_kwargs or {})
    bare = wrapper_class is None and monitor_dir is None and not monitor_kwargs and vec_env_cls is None
    venv: VecEnv
    if bare and isinstance(env_id, str):
        venv = _bare(env_id, n_envs, kwargs)
    else:
        name = env_id.removeprefix("gym:") if isinstance(env_id, str) else env_id
        recipes = [
            Recipe(
                name,
                kwargs,
                wrapper_class,
                dict(wrapper_kwargs or {}),
                _log(monitor_dir, start_index + rank),
                dict(monitor_kwargs or {}),
            )
            for rank in range(n_envs)
        ]
        venv = (vec_env_cls or DummyVecEnv)(recipes, **(vec_env_kwargs or {}))
    venv.seed(seed)
    return venv


def make_atari_env(
    env_id: str | Callable[..., Any],
    n_envs: int = 1,
    seed: int | None = None,
    start_index: int = 0,
    monitor_dir: str | None = None,
    wrapper_kwargs: Mapping[str, Any] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    vec_env_cls: type[Any] | None = None,
    vec_env_kwargs: Mapping[str, Any] | None = None,
    monitor_kwargs: Mapping[str, Any] | None = None,
) -> VecEnv:
    """Copies of an Atari game with the usual preprocessing."""
    from sparring.common.atari_wrappers import AtariWrapper

    return make_vec_env(
        env_id,
        n_envs,
        seed,
        start_index,
        monitor_dir,
        AtariWrapper,
        {"frameskip": 1, **(env_kwargs or {})},
        vec_env_cls,
        vec_env_kwargs,
        monitor_kwargs,
        wrapper_kwargs,
    )


def _bare(env_id: str, n_envs: int, kwargs: dict[str, Any]) -> HostVecEnv:
    """An id with nothing around it: the registry's own way, with frames to draw where it can."""
    from sparring.envs.gymnasium import GymRows

    name = env_id.removeprefix("gym:")
    if (registry.is_jax(env_id) and kwargs in ({}, DRAW)) or name.startswith("envpool:") or ".py:" in name:
        kwargs = {} if registry.is_jax(env_id) else kwargs
        venv = HostVecEnv(registry.host(registry.make(env_id, n_envs=n_envs, kwargs=kwargs), n_envs))
    else:
        source = Drawable(name, kwargs)
        source.registered()
        venv = HostVecEnv(GymRows([source] * n_envs, label=name))
    venv.made_from = None if kwargs else env_id
    return venv


def _log(folder: str | None, rank: int) -> str | None:
    if folder is None:
        return None
    Path(folder).mkdir(parents=True, exist_ok=True)
    return str(Path(folder) / str(rank))


def is_wrapped(env: Any, wrapper_class: type[Any]) -> bool:
    """Whether an environment is wrapped in that class."""
    return unwrap_wrapper(env, wrapper_class) is not None


def unwrap_wrapper(env: Any, wrapper_class: type[Any]) -> Any:
    """The outermost wrapper of that class, or None."""
    while env is not None:
        if isinstance(env, wrapper_class):
            return env
        env = vars(env).get("env")
    return None
