"""Epochs of minibatches that visit every valid transition exactly once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from sparring.ops.keys import permutation, several
from sparring.types import Key


class Epoch(NamedTuple):
    """Which transitions form the minibatches of one epoch, and which of them count.

    `index` is None when one minibatch is the whole rollout in its own order; `valid` is None when all count.
    """

    index: Int[Array, "n b"] | None  # type: ignore[assignment]
    valid: Bool[Array, "n b"] | None

    def gather(self, data: Any) -> Any:
        """The data of all minibatches, [n, b, …], gathered at once."""
        if self.index is None:
            return jax.tree.map(lambda x: x[None], data)
        index = self.index
        return jax.tree.map(lambda x: x[index], data)


def epochs(
    key: Key, n_epochs: int, transitions: int, batch_size: int, mask: Bool[Array, " N"] | None = None
) -> Epoch:
    """All epochs, each in a new order with the valid transitions first: leaves [n_epochs, n, b].

    When the sizes do not divide, the last minibatch of an epoch is smaller; a minibatch without a valid
    transition is left for the caller to skip.
    """
    size = min(batch_size, transitions)
    count = -(-transitions // size)
    if count == 1:  # order does not matter inside one minibatch
        valid = None if mask is None else jnp.broadcast_to(mask, (n_epochs, 1, transitions))
        return Epoch(None, valid)

    def one(key: Key) -> Epoch:
        order = permutation(key, transitions) if mask is None else _valid_first(key, mask)
        padding = count * size - transitions
        valid = None if mask is None else mask[order]
        if padding:
            valid = jnp.ones(transitions, bool) if valid is None else valid
            valid = jnp.concatenate([valid, jnp.zeros(padding, bool)])
            order = jnp.concatenate([order, jnp.zeros(padding, order.dtype)])
        shape = (count, size)
        return Epoch(order.reshape(shape), None if valid is None else valid.reshape(shape))

    return jax.vmap(one)(several(key, n_epochs))


def _valid_first(key: Key, mask: Bool[Array, " N"]) -> Int[Array, " N"]:
    """A random order in which every valid entry comes before every other."""
    words = jax.random.bits(key, mask.shape) >> 1
    return jnp.argsort(jnp.where(mask, words, words | jnp.uint32(1 << 31))).astype(jnp.int32)


def sequences(x: Array, length: int) -> Array:
    """A rollout [T, B, …] cut into sequences in time, [T / length · B, length, …], in their order of time."""
    parts = x.reshape((x.shape[0] // length, length, *x.shape[1:]))
    return jnp.swapaxes(parts, 1, 2).reshape((-1, length, *x.shape[2:]))


ALONE = 1 << 22
"""Multiplications in a product up to which XLA leaves it to one core of a CPU."""


def shared_rows(rows: int, weights: int) -> int:
    """As many rows, or a few more where those let a CPU's cores share a product with so many weights."""
    enough = ALONE // max(weights, 1) + 1
    return enough if rows < enough <= rows + rows // 8 else rows


MOST_ROWS = 256
"""Rows whose activations in a small network still fit the second-level cache of a CPU."""


def mean_in_parts(function: Callable[..., Any], data: tuple[Any, ...], whole: bool = False) -> Any:
    """`function(*data)` for a function that is a mean over rows, computed a few hundred rows at a time.

    On a CPU 512 rows at once take 1.4 times as long as twice 256. `whole` asks for one call.
    """
    rows = jax.tree.leaves(data)[0].shape[0]
    size = next(n for n in range(min(rows, MOST_ROWS), 0, -1) if rows % n == 0)
    if whole or jax.default_backend() != "cpu" or size == rows or 2 * size < MOST_ROWS:
        return function(*data)
    parts = jax.tree.map(lambda x: x.reshape((rows // size, size, *x.shape[1:])), data)

    def add(total: Any, part: tuple[Any, ...]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, function(*part)), None

    shapes = jax.eval_shape(function, *jax.tree.map(lambda x: x[0], parts))
    start = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    total, _ = jax.lax.scan(add, start, parts)
    return jax.tree.map(lambda x: x * (size / rows), total)
