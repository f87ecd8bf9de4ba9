"""The vector environment as SB3's scripts know it: one object, one step for all rows, reset by itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from sparring.errors import ConfigError

Indices: TypeAlias = int | Iterable[int] | None
Answer: TypeAlias = tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]
"""Observations, rewards, dones and one dict per row."""


class VecEnv:
    """Rows that step together; `done` rows have been reset already.

    At an episode's end the row's info holds `terminal_observation`, `TimeLimit.truncated` and `episode`
    (`r` return, `l` length, `t` seconds since the start).
    """

    render_mode: str | None = None
    metadata: dict[str, Any] = {}  # noqa: RUF012 - SB3's name and kind

    def __init__(self, num_envs: int, observation_space: Any, action_space: Any) -> None:
        self.num_envs = num_envs
        self.observation_space = observation_space
        self.action_space = action_space
        self.reset_infos: list[dict[str, Any]] = [{} for _ in range(num_envs)]

    def reset(self) -> Any:
        """Starts all rows and returns their observations."""
        raise NotImplementedError(f"{type(self).__name__} needs a method reset().")

    def step_async(self, actions: np.ndarray) -> None:
        """Takes the actions of the next step."""
        raise NotImplementedError(f"{type(self).__name__} needs a method step_async(actions).")

    def step_wait(self) -> Answer:
        """Makes the step and returns what came of it."""
        raise NotImplementedError(f"{type(self).__name__} needs a method step_wait().")

    def step(self, actions: Any) -> Answer:
        """Steps all rows."""
        self.step_async(actions)
        return self.step_wait()

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Fixes the random numbers from the next reset on."""
        return [None if seed is None else seed + row for row in range(self.num_envs)]

    def set_options(self, options: Any = None) -> None:
        """Options for the next reset; only none can be given."""
        if options:
            raise ConfigError(
                "Reset options are not passed on by vector environments here; give them to the environment's "
                "constructor (env_kwargs) or in a gymnasium wrapper."
            )

    def close(self) -> None:
        """Releases the environments."""

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        raise _unreachable(self)

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        raise _unreachable(self)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        raise _unreachable(self)

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Indices = None) -> list[bool]:
        """Whether each row is wrapped in that class; False where the environments cannot be reached."""
        return [False] * len(self.chosen(indices))

    def chosen(self, indices: Indices) -> list[int]:
        """The rows that SB3's `indices` means."""
        if indices is None:
            return list(range(self.num_envs))
        return [indices] if isinstance(indices, int) else list(indices)

    def get_images(self) -> Sequence[np.ndarray | None]:
        """One RGB frame per row, None where nothing can be drawn."""
        return [None] * self.num_envs

    def render(self, mode: str | None = None) -> np.ndarray | None:
        """All rows in one picture; mode `human` shows it in a window."""
        from sparring.common.vec_env.picture import show, tiled

        frames = [frame for frame in self.get_images() if frame is not None]
        if self.render_mode == "human":  # the environments draw in windows of their own
            return None
        picture = tiled(frames) if frames else None
        if mode == "human":
            show(picture)
            return None
        return picture

    @property
    def unwrapped(self) -> VecEnv:
        return self

    def __enter__(self) -> VecEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class VecEnvWrapper(VecEnv):
    """A vector environment around another; override `reset` and `step_wait`."""

    def __init__(self, venv: VecEnv, observation_space: Any = None, action_space: Any = None) -> None:
        self.venv = venv
        super().__init__(
            venv.num_envs, observation_space or venv.observation_space, action_space or venv.action_space
        )
        self.render_mode = venv.render_mode
        self.metadata = venv.metadata

    def reset(self) -> Any:
        return self.venv.reset()

    def step_async(self, actions: np.ndarray) -> None:
        self.venv.step_async(actions)

    def step_wait(self) -> Answer:
        return self.venv.step_wait()

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        return self.venv.seed(seed)

    def set_options(self, options: Any = None) -> None:
        self.venv.set_options(options)

    def close(self) -> None:
        self.venv.close()

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        return self.venv.get_attr(attr_name, indices)

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        self.venv.set_attr(attr_name, value, indices)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        return self.venv.env_method(method_name, *method_args, indices=indices, **method_kwargs)

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Indices = None) -> list[bool]:
        return self.venv.env_is_wrapped(wrapper_class, indices)

    def get_images(self) -> Sequence[np.ndarray | None]:
        return self.venv.get_images()

    def render(self, mode: str | None = None) -> np.ndarray | None:
        return self.venv.render(mode)

    @property
    def unwrapped(self) -> VecEnv:
        return self.venv.unwrapped

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "venv" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.venv, name)


def layers(env: VecEnv) -> list[VecEnv]:
    """The environment and all it wraps, from the outside in."""
    found = [env]
    while isinstance(found[-1], VecEnvWrapper):
        found.append(found[-1].venv)
    return found


def unwrap_vec_wrapper(env: VecEnv, vec_wrapper_class: type[Any]) -> Any:
    """The outermost layer of that class, or None."""
    return next((layer for layer in layers(env) if isinstance(layer, vec_wrapper_class)), None)


def is_vecenv_wrapped(env: VecEnv, vec_wrapper_class: type[Any]) -> bool:
    """Whether a layer of that class is around the environment."""
    return unwrap_vec_wrapper(env, vec_wrapper_class) is not None


def _unreachable(env: VecEnv) -> ConfigError:
    return ConfigError(
        f"The environments inside this {type(env).__name__} cannot be reached: they are not Python objects "
        "of this process. Build them with vec_env_cls=DummyVecEnv, or as DummyVecEnv([make_env, …])."
    )
