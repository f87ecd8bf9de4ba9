"""The last returns of all arms: ranks against them, and their mean and spread."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class Pool(NamedTuple):
    """A ring of returns."""

    returns: Float[Array, " P"]
    place: Int[Array, ""]
    """Where the next return goes."""
    held: Int[Array, ""]
    """How many there are."""


def empty(size: int) -> Pool:
    return Pool(jnp.zeros(size), jnp.int32(0), jnp.int32(0))


def order(mask: Bool[Array, " B"], *columns: Array) -> Int[Array, " B"]:
    """An order of rows that depends on their content alone: those that count first, spread evenly by value.

    Sorted by the columns, the first before the next, then taken in golden steps, so that a ring which drops
    the older part of a batch keeps its distribution.
    """
    sorted_rows = jnp.lexsort((*columns[::-1], ~mask))
    step = jnp.arange(mask.shape[0]) * 0.6180339887
    spread = jnp.where(mask[sorted_rows], step - jnp.floor(step), 2.0)
    return sorted_rows[jnp.argsort(spread, stable=True)]


def places(place: Int[Array, ""], counted: Int[Array, ""], rows: int, size: int) -> Int[Array, " B"]:
    """Where the rows of an order go in a ring; `size` (to be dropped) for those that do not."""
    row = jnp.arange(rows)
    stays = (row < counted) & (row >= counted - size)
    return jnp.where(stays, (place + row) % size, size)


def insert(
    pool: Pool, returns: Float[Array, " B"], mask: Bool[Array, " B"], rows_in: Int[Array, " B"] | None = None
) -> Pool:
    """The pool after the masked-in returns, which replace the oldest; `rows_in` is their `order`."""
    size, rows = pool.returns.shape[0], returns.shape[0]
    counted = mask.sum(dtype=jnp.int32)
    where = places(pool.place, counted, rows, size)
    held = pool.returns.at[where].set(
        returns[order(mask, returns) if rows_in is None else rows_in], mode="drop"
    )
    return Pool(held, (pool.place + counted) % size, jnp.minimum(pool.held + counted, size))


def doubled_ranks(pool: Pool, returns: Float[Array, " B"]) -> Int[Array, " B"]:
    """Twice the mid-rank of each return in the pool: 0 below all of it, 2·held above; whole numbers."""
    valid = jnp.arange(pool.returns.shape[0]) < pool.held
    below = ((pool.returns < returns[:, None]) & valid).sum(axis=1, dtype=jnp.int32)
    equal = ((pool.returns == returns[:, None]) & valid).sum(axis=1, dtype=jnp.int32)
    return 2 * below + equal


def scores(doubled: Array, episodes: Array, pool: Pool, least: int) -> Array:
    """Sums of scores √12 (rank − ½) from sums of doubled ranks; 0 while the pool holds fewer than `least`.

    A full pool always counts, be it smaller than that. A score is at most √3 in size and has unit variance
    where ranks are uniform.
    """
    rank = doubled / (2.0 * jnp.maximum(pool.held, 1))
    enough = min(least, pool.returns.shape[0])
    return jnp.where(pool.held >= enough, math.sqrt(12.0) * (rank - 0.5 * episodes), 0.0)


def moments(pool: Pool) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Mean and standard deviation of the returns held; 0 and 0 of none."""
    valid = jnp.arange(pool.returns.shape[0]) < pool.held
    count = jnp.maximum(pool.held, 1)
    mean = jnp.where(valid, pool.returns, 0.0).sum() / count
    spread = jnp.where(valid, pool.returns - mean, 0.0)
    return mean, jnp.sqrt((spread * spread).sum() / count)
