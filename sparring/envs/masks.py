"""Action masks: where an environment tells them, what is wrong with one, and random actions that keep to it.

Imports no jax: environment workers use it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparring.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space, event_shape, legal_size

METHOD = "action_masks"
"""The method that says what is legal now, by the name that sb3-contrib uses."""
INFO = "action_mask"
"""Where some environments put the same into `info`."""


def mask_method(env: Any) -> Any:
    """`action_masks` of the environment or of one it wraps; None where there is none."""
    return method_of(env, METHOD)


def method_of(env: Any, name: str) -> Any:
    """What the environment or one it wraps has by that name; None where there is none."""
    if hasattr(env, "get_wrapper_attr"):
        try:
            return env.get_wrapper_attr(name)
        except AttributeError:
            return None
    return getattr(env, name, None)


def fault(space: Space, mask: Any) -> str | None:
    """What is wrong with the mask of one state; None when an action can be chosen by it."""
    found = np.asarray(mask)
    if found.dtype == object or not (np.issubdtype(found.dtype, np.number) or found.dtype == bool):
        return f"it is {_short(mask)}, not an array of bools"
    if found.size != legal_size(space):
        hint = "; a bit has one entry, not two" if isinstance(space, MultiBinary) else ""
        return f"its shape is {found.shape}, {space} needs ({legal_size(space)},){hint}"
    if found.dtype != bool and not np.isin(found, (0, 1)).all():
        return f"it has entries like {found[~np.isin(found, (0, 1))].flat[0]}, not only 0 and 1"
    legal = found.reshape(-1).astype(bool)
    for branch, part in enumerate(options(space, legal)):
        if not part.any():
            return "no action is legal" + (f" in branch {branch}" if isinstance(space, MultiDiscrete) else "")
    return None


def options(space: Space, legal: np.ndarray) -> list[np.ndarray]:
    """The parts of masks [..., A] of which one option each must be legal; none for bits and numbers."""
    match space:
        case Discrete():
            return [legal]
        case MultiDiscrete(sizes):
            return np.split(legal, np.cumsum(sizes)[:-1], axis=-1)
        case _:
            return []


def choose(
    space: Space, generator: np.random.Generator, batch: tuple[int, ...] = (), legal: np.ndarray | None = None
) -> np.ndarray:
    """Random actions of the space, [*batch, …], legal where masks [*batch, A] are given."""
    if isinstance(space, Discrete | MultiDiscrete):
        everything = np.ones((*batch, legal_size(space)), bool) if legal is None else legal
        parts = options(space, everything)
        picks = [np.argmax(np.where(part, generator.random(part.shape), -1.0), axis=-1) for part in parts]
        return np.asarray(picks[0] if isinstance(space, Discrete) else np.stack(picks, axis=-1), np.int32)
    shape = (*batch, *event_shape(space))
    if isinstance(space, Box):
        low, high = space.bounds()
        drawn = generator.uniform(np.maximum(low, -1e3), np.minimum(high, 1e3), shape).astype(np.float32)
    else:
        drawn = np.asarray(generator.integers(0, 2, shape), np.int32)
    return drawn if legal is None else np.where(legal.reshape(shape), drawn, 0).astype(drawn.dtype)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else text[:57] + "..."
