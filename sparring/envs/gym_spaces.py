"""Gymnasium's spaces in our words: spaces, actions on the way in, observations on the way out.

Imports no jax: environment workers use it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import gymnasium.spaces as gs
import numpy as np

from sparring.errors import SpaceMismatch
from sparring.spaces import Bound, Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, event_shape

ActionSplitter: TypeAlias = Callable[[np.ndarray], list[Any]]
"""A batch of our actions as a list with one Gymnasium action per row."""
ActionBatcher: TypeAlias = Callable[[np.ndarray], np.ndarray]
"""A batch of our actions as the batch a vector environment takes."""
Stacker: TypeAlias = Callable[[Sequence[Any]], Any]
"""Observations of several environments as one batch of ours; its arrays are new."""
Converter: TypeAlias = Callable[[Any], Any]
"""A vector environment's batch of observations as ours; its arrays are new."""

MAX_TABLE = 4096
"""Discrete spaces up to this size translate their actions by a table."""


def observation_space(space: Any) -> Space:
    """Our space for a Gymnasium observation space; Dict and Tuple become one flat Dict."""
    if isinstance(space, gs.Dict | gs.Tuple):
        return Dict(tuple((name, _leaf(part, "observation")) for name, part, _ in _parts(space)))
    return _leaf(space, "observation")


def action_space(space: Any) -> Space:
    """Our space for a Gymnasium action space."""
    if isinstance(space, gs.Dict | gs.Tuple):
        raise SpaceMismatch(
            f"The action space {space} has several parts. Actions must be one Discrete, MultiDiscrete, "
            "MultiBinary or Box space; merge the parts in a gymnasium.ActionWrapper."
        )
    return _leaf(space, "action")


def _leaf(space: Any, role: str) -> Space:
    match space:
        case gs.Discrete():
            return Discrete(int(space.n))
        case gs.MultiDiscrete():
            return MultiDiscrete(tuple(int(n) for n in np.asarray(space.nvec).reshape(-1)))
        case gs.MultiBinary():
            return MultiBinary(int(np.prod(space.shape)))
        case gs.Box():
            dtype = "uint8" if space.dtype == np.uint8 else "float32"
            return Box(tuple(int(n) for n in space.shape), _bound(space.low), _bound(space.high), dtype)
    raise SpaceMismatch(
        f"The {role} space {space!r} ({type(space).__name__}) is not supported. Use Discrete, MultiDiscrete, "
        "MultiBinary, Box or, for observations, a Dict or Tuple of those; translate it in a wrapper."
    )


def _bound(values: np.ndarray) -> Bound:
    """One number when all entries agree, else one per entry."""
    flat = np.asarray(values, np.float64).reshape(-1)
    if flat.size == 0 or bool((flat == flat[0]).all()):
        return float(flat[0]) if flat.size else 0.0
    return tuple(float(v) for v in flat)


def _parts(
    space: Any, prefix: str = "", path: tuple[Any, ...] = ()
) -> list[tuple[str, Any, tuple[Any, ...]]]:
    """The leaves of a Dict or Tuple: name, space, and the keys that lead to the value."""
    children = space.spaces.items() if isinstance(space, gs.Dict) else enumerate(space.spaces)
    parts = []
    for key, child in children:
        name = f"{prefix}{key}"
        if isinstance(child, gs.Dict | gs.Tuple):
            parts += _parts(child, f"{name}/", (*path, key))
        else:
            parts.append((name, child, (*path, key)))
    return parts


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def _start(space: Any) -> np.ndarray | None:
    """The offset of a discrete space that does not begin at zero."""
    start = None if isinstance(space, gs.Box) else getattr(space, "start", None)
    if start is None or not np.any(start):
        return None
    return np.asarray(start, np.int64).reshape(-1)


def by_hand(observation: Any, action: Any) -> list[str]:
    """What agents see and choose otherwise than these spaces have it: training translates, and whoever steps
    the environment with `predict` must."""
    notes = []
    start = _start(action)
    if start is not None:
        notes.append(f"its actions begin at {start.tolist()}, predict's at 0: add it")
    if not isinstance(action, gs.Box) and len(action.shape or ()) > 1:
        notes.append(f"its actions have the shape {tuple(action.shape)}, predict's are flat: reshape them")
    nested = isinstance(observation, gs.Dict | gs.Tuple)
    parts = _parts(observation) if nested else [("", observation, ())]
    if nested and any(not isinstance(key, str) or len(path) > 1 for _, _, path in parts for key in path):
        names = ", ".join(name for name, _, _ in parts)
        notes.append(f"predict takes its observations as one flat dict: {names}")
    for name, part, _ in parts:
        start = _start(part)
        place = f" {name}" if name else ""
        if start is not None:
            notes.append(f"its observation{place} begins at {start.tolist()}, predict's at 0: subtract it")
        if not isinstance(part, gs.Box) and len(part.shape or ()) > 1:
            notes.append(f"predict takes its observation{place} flat, not as {tuple(part.shape)}")
    return notes


def action_splitter(space: Any) -> ActionSplitter:
    """The function that makes Gymnasium actions out of a batch of ours."""
    if isinstance(space, gs.Discrete) and space.n <= MAX_TABLE:
        # Gymnasium's own check of an action is a third faster for a numpy integer than for an int.
        scalar = np.dtype(space.dtype).type
        table = {i: scalar(space.start + i) for i in range(int(space.n))}
        return lambda action: list(map(table.__getitem__, action.tolist()))
    batch = action_batcher(space)
    return lambda action: list(batch(action))


def action_batcher(space: Any) -> ActionBatcher:
    """The function that makes a vector environment's batch of actions out of ours; always a copy."""
    start = _start(space)
    dtype = np.dtype(space.dtype)
    shape = tuple(space.shape)
    if isinstance(space, gs.Box):
        if np.issubdtype(dtype, np.integer):
            return lambda action: np.rint(action).astype(dtype).reshape((-1, *shape))
        return lambda action: action.astype(dtype).reshape((-1, *shape))
    if start is None:
        return lambda action: action.astype(dtype).reshape((-1, *shape))
    if isinstance(space, gs.Discrete):
        return lambda action: action.astype(dtype) + dtype.type(start[0])
    return lambda action: (action.astype(dtype) + start.astype(dtype)).reshape((-1, *shape))


def stacker(space: Any) -> Stacker:
    """The function that stacks observations of several environments into one batch of ours."""
    if not isinstance(space, gs.Dict | gs.Tuple):
        return _leaf_stacker(space)
    parts = [
        (name, path, _leaf_stacker(part)) for name, part, path in sorted(_parts(space), key=lambda p: p[0])
    ]
    return lambda rows: {name: stack([_at(row, path) for row in rows]) for name, path, stack in parts}


def _leaf_stacker(space: Any) -> Stacker:
    convert = _leaf_converter(space)
    shape = tuple(space.shape)
    dtype = np.uint8 if space.dtype == np.uint8 else np.float32
    if not isinstance(space, gs.Box):
        return lambda rows: convert(np.array(rows))

    def stack(rows: Sequence[Any]) -> np.ndarray:
        batch = np.array(rows, dtype)
        if batch.shape[1:] != shape:
            raise ValueError(f"observations of shape {batch.shape[1:]} in a space of shape {shape}")
        return batch

    return stack


def converter(space: Any) -> Converter:
    """The function that makes our batch out of a vector environment's, given the single space."""
    if not isinstance(space, gs.Dict | gs.Tuple):
        return _leaf_converter(space)
    parts = [
        (name, path, _leaf_converter(part)) for name, part, path in sorted(_parts(space), key=lambda p: p[0])
    ]
    return lambda batch: {name: convert(_at(batch, path)) for name, path, convert in parts}


def _leaf_converter(space: Any) -> Converter:
    ours = _leaf(space, "observation")
    shape = event_shape(ours)
    if isinstance(space, gs.Box):
        dtype = np.uint8 if space.dtype == np.uint8 else np.float32
        return lambda batch: np.array(batch, dtype).reshape((-1, *shape))
    start = _start(space)
    offset = np.int64(0) if start is None else start if shape else start[0]
    return lambda batch: (np.asarray(batch).reshape((-1, *shape)) - offset).astype(np.int32)
