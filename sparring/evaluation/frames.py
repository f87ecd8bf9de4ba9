"""Environments that can be drawn, their pictures, and pictures side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sparring.envs import registry
from sparring.errors import ConfigError, EnvironmentFailure
from sparring.evaluation import graphics
from sparring.reference import is_reference

CLASSIC = frozenset(
    {"CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1", "Pendulum-v1"}
)
WIDEST = 1920
"""Pixels that a film is wide, at most."""
LEGIBLE = 300
"""Pixels of height that a picture with words on it should have."""
DIM = 0.4


def renderer(env_id: str) -> Callable[[Any], np.ndarray] | None:
    """A function from one row's state to an RGB frame, or None when nothing can draw the environment."""
    if env_id not in CLASSIC:
        return None
    from sparring.envs.classic.drawing import Drawing

    return Drawing(env_id).frame


def drawable(env: str, kwargs: Mapping[str, Any], time_limit: int | None) -> Any:
    """One row of an environment that can be asked for pictures."""
    graphics.prepare(env)

    def made(name: str, **more: Any) -> Any:
        found = registry.make(
            name, n_envs=1, kwargs={**kwargs, **more}, time_limit=time_limit, backend="inline"
        )
        return registry.host(found, 1)

    if registry.is_jax(env):
        return made(env)
    if is_reference(env):
        try:
            return made(env, render_mode="rgb_array")
        except ConfigError:  # the user's function takes no render_mode
            return made(env)
    # EnvPool draws nothing; Gymnasium knows the classic and MuJoCo ids too.
    name = "gym:" + env.removeprefix("envpool:") if env.startswith("envpool:") else env
    return made(name, render_mode="rgb_array")


def picture(env: Any) -> np.ndarray:
    """A frame of row 0, in colour."""
    frame: np.ndarray | None = env.render()
    if frame is None:
        raise EnvironmentFailure(
            f"{env.spec.id} draws nothing. A JAX environment needs `draw(state)`, a Gymnasium one "
            "render_mode='rgb_array' and a `render` that returns pixels."
        )
    return np.repeat(frame[:, :, None], 3, axis=2) if frame.ndim == 2 else frame


def fps(env: Any) -> float:
    """Frames per second that an environment asks for; the classic ones are Gymnasium's."""
    inner = env.envs[0] if getattr(env, "envs", None) else env
    asked = (getattr(inner, "metadata", None) or {}).get("render_fps")
    if asked:
        return float(asked)
    classic = {"CartPole": 50.0, "Acrobot": 15.0}
    return next((rate for start, rate in classic.items() if env.spec.id.startswith(start)), 30.0)


def action_names(env: Any) -> list[str]:
    """What an environment calls its choices; empty where it has no names for them."""
    inner = env.envs[0] if getattr(env, "envs", None) else env
    names = getattr(getattr(inner, "unwrapped", inner), "get_action_meanings", None)
    return [str(name) for name in names()] if callable(names) else []


def fitted(frame: np.ndarray, columns: int, legible: bool) -> np.ndarray:
    """A frame shrunk so that `columns` of them fit into a film, or enlarged so that words fit onto it."""
    height, width = frame.shape[:2]
    shrink = math.ceil(columns * width / WIDEST)
    if shrink > 1:
        whole = frame[: height // shrink * shrink, : width // shrink * shrink].astype(np.float32)
        cells = whole.reshape(height // shrink, shrink, width // shrink, shrink, 3)
        return cells.mean(axis=(1, 3)).astype(np.uint8)
    enlarge = min(math.ceil(LEGIBLE / height), WIDEST // (columns * width)) if legible else 1
    return frame.repeat(enlarge, axis=0).repeat(enlarge, axis=1) if enlarge > 1 else frame


def columns_of(count: int) -> int:
    """Columns of a grid of so many pictures: as many as rows, or one more."""
    return math.ceil(math.sqrt(count))


def tiled(frames: Sequence[np.ndarray], places: int | None = None) -> np.ndarray:
    """Pictures of one size side by side; `places` that stay empty are black."""
    places = max(places or 0, len(frames))
    columns = columns_of(places)
    rows = math.ceil(places / columns)
    height, width = frames[0].shape[:2]
    grid = np.zeros((rows * height, columns * width, 3), np.uint8)
    for place, frame in enumerate(frames):
        top, left = place // columns * height, place % columns * width
        if frame.shape[:2] != (height, width):
            raise EnvironmentFailure(
                f"One environment draws {frame.shape[1]} × {frame.shape[0]} pixels, another {width} × "
                f"{height}; side by side they must draw in one size."
            )
        grid[top : top + height, left : left + width] = frame
    return grid


def dimmed(frame: np.ndarray) -> np.ndarray:
    """A darker copy."""
    return (frame * DIM).astype(np.uint8)
