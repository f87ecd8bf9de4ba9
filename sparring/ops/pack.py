"""Many arrays as few: between a device and the host every array is a message of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


def pack(arrays: Sequence[Array]) -> list[Array]:
    """One flat array for each type, in the order in which the types appear."""
    kinds: dict[Any, list[Array]] = {}
    for array in arrays:
        kinds.setdefault(array.dtype, []).append(jnp.ravel(array))
    return [jnp.concatenate(kind) for kind in kinds.values()]


class Unpack:
    """Takes apart on the host what `pack` made of arrays with the shapes and types of a tree's leaves."""

    def __init__(self, tree: Any) -> None:
        ends: dict[Any, int] = {}
        self._places: list[tuple[int, Any, tuple[int, ...]]] = []
        for leaf in jax.tree.leaves(tree):
            start = ends.setdefault(leaf.dtype, 0)
            ends[leaf.dtype] = end = start + math.prod(leaf.shape)
            where = slice(start, end) if leaf.shape else start
            self._places.append((list(ends).index(leaf.dtype), where, leaf.shape))
        self.size = sum(ends.values())

    def __call__(self, packed: Sequence[Any]) -> list[Any]:
        """The leaves, as views and numpy's scalars; of stacked arrays [K, …], stacked leaves."""
        flat = [np.asarray(array) for array in packed]

        def leaf(kind: int, where: Any, shape: tuple[int, ...]) -> Any:
            part = flat[kind].T[where].T
            return part.reshape((*flat[kind].shape[:-1], *shape)) if shape else part

        return [leaf(*place) for place in self._places]
