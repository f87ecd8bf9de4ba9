"""A ring of past transitions on the device, sampled uniformly: what off-policy algorithms learn from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from sparring.ops.keys import below
from sparring.ops.seam import block
from sparring.types import Batch, Key, Memory, Report, Transition


class Store(NamedTuple):
    """Steps of every row, each row with its own write position, so that no place holds padding."""

    data: Transition
    """[S, B, …], without `mask`; `truncated` is also set before a loss, where an episode breaks off"""
    written: Int[Array, " B"]
    """decisions that each row has written since the start"""


@dataclass(frozen=True)
class Ring:
    """Keeps the last `capacity` decisions of all rows and hands out windows of `n_step` consecutive ones.

    A window never crosses the newest decision of its row; where an episode ends inside it, what follows
    belongs to another episode and the algorithm stops there (`ops.returns.n_step`).
    """

    capacity: int
    batch_size: int
    n_step: int = 1
    minimum: int = 0
    """decisions of all rows before the first batch counts"""

    def steps(self, rollout: int, rows: int) -> int:
        """Places per row: a multiple of the rollout, so that one rollout is one contiguous write."""
        return max(self.capacity // (rollout * rows), -(-self.n_step // rollout) + 1) * rollout

    def init(self, example: Transition) -> Memory:
        return Memory(blank(example, self.steps(*example.reward.shape)))

    def add(self, memory: Memory, rollout: Transition) -> Memory:
        return Memory(write(memory.data, rollout))

    def ready(self, memory: Memory) -> Array:
        """Whether a batch can be drawn that deserves to be learned from."""
        held = self.windows(memory.data)
        return holds(memory.data, self.minimum) & (jnp.sum(held) > 0)

    def sample(self, memory: Memory, key: Key) -> Batch:
        """`batch_size` windows, uniformly over all decisions that start one: leaves [N, n, …]."""
        return self.take(memory.data, *self.draw(self.windows(memory.data), key))

    def draw(self, windows: Int[Array, " B"], key: Key) -> tuple[Int[Array, " N"], Int[Array, " N"]]:
        """Row and age of `batch_size` windows, uniformly over as many as each row has."""
        total = jnp.cumsum(windows)
        drawn = below(key, self.batch_size, jnp.maximum(total[-1], 1))
        row = jnp.searchsorted(total, drawn, side="right").astype(jnp.int32)
        return row, drawn - jnp.where(row > 0, total[row - 1], 0)

    def take(self, state: Store, row: Int[Array, " N"], age: Int[Array, " N"]) -> Batch:
        """The windows that start at these decisions of these rows; the oldest kept is number 0."""
        size = state.data.reward.shape[0]
        oldest = jnp.maximum(state.written[row] - size, 0)
        start = (oldest + age) % size
        return Batch(read(state, start, row, self.n_step), jnp.stack([start, row], axis=1))

    def feedback(self, memory: Memory, batch: Batch, report: Report) -> tuple[()]:
        return ()

    def settle(self, memory: Memory) -> Memory:
        return memory

    def windows(self, state: Store) -> Int[Array, " B"]:
        """Decisions of each row that start a window of full length."""
        held = jnp.minimum(state.written, state.data.reward.shape[0])
        return jnp.maximum(held - (self.n_step - 1), 0)


def holds(state: Store, decisions: int) -> Bool[Array, ""]:
    """Whether all rows together have made so many decisions; the sum itself may outgrow 32 bits."""
    return jnp.sum(jnp.minimum(state.written, decisions).astype(jnp.float32)) >= decisions


def filled(state: Store) -> Float[Array, ""]:
    """Share of the places that hold a decision."""
    size = state.data.reward.shape[0]
    return jnp.mean(jnp.minimum(state.written, size) / size)


def even(memory: Memory, rollout: int) -> bool:
    """Whether rollouts without a mask can follow: all rows have written as many of that length.

    They are one write at one place of all rows; what is no ring of steps takes any.
    """
    store = getattr(memory.data, "store", memory.data)
    if not isinstance(store, Store):
        return True
    written = np.asarray(store.written)
    return bool((written == written[0]).all() and written[0] % rollout == 0)


def blank(example: Transition, size: int) -> Store:
    """Nothing written yet: `size` places in every row of the example's [T, B, …]."""
    kept = example._replace(mask=None, first=None, core=None)
    data = jax.tree.map(lambda x: jnp.zeros((size, *x.shape[1:]), x.dtype), kept)
    return Store(data, jnp.zeros(example.reward.shape[1], jnp.int32))


def write(state: Store, rollout: Transition) -> Store:
    """The store with the decisions of a rollout behind those it holds."""
    new = rollout._replace(mask=None, first=None, core=None)
    late: Array | int = 0
    if rollout.first is not None:
        state, late = _broken_off(state, rollout.first[0])
    if rollout.mask is not None:
        return _add_masked(state, new, rollout.mask, rollout.truncated)
    at = state.written[0] % state.data.reward.shape[0] + late

    def one(old: Array, x: Array) -> Array:
        return jax.lax.dynamic_update_slice_in_dim(old, x, at, 0)

    return Store(jax.tree.map(one, state.data, new), state.written + jnp.int32(rollout.reward.shape[0]))


def read(state: Store, start: Int[Array, " N"], row: Int[Array, " N"], steps: int) -> Transition:
    """So many steps from these places of these rows on: leaves [N, steps, …]."""
    place = (start[:, None] + jnp.arange(steps)) % state.data.reward.shape[0]
    return jax.tree.map(lambda x: x[place, row[:, None]], state.data)


def _broken_off(state: Store, first: Bool[Array, " B"]) -> tuple[Store, Int[Array, ""]]:
    """The store with the last episode of these rows ended where it is: the world outside started anew.

    Also a zero that is known only after `terminated` was read. A write whose place it is added to waits for
    the read; else XLA would keep a copy of all of `terminated` for it.
    """
    size, rows = state.data.reward.shape
    last = (state.written - 1) % size
    ended = block(lambda flags, place: flags[place, jnp.arange(rows)])(state.data.terminated, last)
    broken = first & (state.written > 0) & ~ended
    place = jnp.where(broken, last, size)
    truncated = state.data.truncated.at[place, jnp.arange(rows)].set(True, mode="drop")
    zero = jnp.maximum(jnp.sum(ended, dtype=jnp.int32) - rows, 0)
    return state._replace(data=state.data._replace(truncated=truncated)), zero


def _add_masked(state: Store, new: Transition, mask: Array, truncated: Array) -> Store:
    """Writes the decisions alone, each row behind its own last one; a loss ends the episode before it."""
    size = state.data.reward.shape[0]
    rows = jnp.arange(mask.shape[1])
    rank = jnp.cumsum(mask, axis=0, dtype=jnp.int32)
    lost = ~mask & truncated
    # A decision is cut when its row's next entry that is a decision or a loss is a loss.
    follows = jnp.concatenate([_next_is_lost(mask, lost)[1:], jnp.zeros_like(lost[:1])])
    data = new._replace(truncated=(new.truncated & mask) | (follows & ~new.terminated))
    place = jnp.where(mask, (state.written + rank - 1) % size, size)

    def write(old: Array, x: Array) -> Array:
        return old.at[place, rows].set(x, mode="drop")

    stored = jax.tree.map(write, state.data, data)
    # The loss may come before any decision of this rollout: then it cuts the last one stored before.
    before = (_next_is_lost(mask, lost)[0]) & (state.written > 0)
    last = jnp.where(before, (state.written - 1) % size, size)
    ended = stored.truncated.at[last, rows].set(~stored.terminated[last % size, rows], mode="drop")
    return Store(stored._replace(truncated=ended), state.written + rank[-1])


def _next_is_lost(mask: Array, lost: Array) -> Array:
    """For each time, whether a loss comes at it or later before any decision."""

    def back(later: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        mask_t, lost_t = now
        found = jnp.where(mask_t, False, lost_t | later)
        return found, found

    return jax.lax.scan(back, jnp.zeros_like(lost[0]), (mask, lost), reverse=True)[1]


def predicted_bytes(example: Any, capacity: int) -> int:
    """Bytes that a ring of that capacity takes for transitions like the example's [T, B, …]."""
    rows = example.reward.shape[0] * example.reward.shape[1]
    kept = example._replace(mask=None, first=None, core=None)
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(kept)) // rows * capacity
