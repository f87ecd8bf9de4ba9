"""Many arrays as few: between a device and the host every array is a message of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


def pack(arrays: Sequence[Array]) -> list[Array]:
    """One flat array for each type, in the order in which the types appear."""
    return [jnp.concatenate([jnp.ravel(x) for x in kind]) for kind in _kinds(arrays).values()]


def unpack(packed: Sequence[Any], shapes: Sequence[Any]) -> list[np.ndarray]:
    """The arrays again, as views on the host; `shapes` has shape and type of each."""
    flat = {kind: np.asarray(array) for kind, array in zip(_kinds(shapes), packed, strict=True)}
    begun = dict.fromkeys(flat, 0)
    arrays = []
    for like in shapes:
        start = begun[like.dtype]
        begun[like.dtype] = end = start + int(np.prod(like.shape))
        arrays.append(flat[like.dtype][start:end].reshape(like.shape))
    return arrays


def _kinds(arrays: Sequence[Any]) -> dict[Any, list[Any]]:
    kinds: dict[Any, list[Any]] = {}
    for array in arrays:
        kinds.setdefault(array.dtype, []).append(array)
    return kinds


def shapes_of(tree: Any) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Shape and type of every leaf."""
    return tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in jax.tree.leaves(tree))
