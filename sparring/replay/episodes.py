"""Whole episodes: finished ones are handed over, unfinished ones are carried to the next iteration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from sparring.types import Batch, Key, Memory, Report, Transition


class Shelf(NamedTuple):
    """Steps of every row, newest last, and how many of them belong to the episode in progress.

    After `add` the arrays hold capacity + T steps, between iterations the last `capacity` of them.
    """

    data: Transition
    open: Int[Array, " B"]
    """Length of the episode in progress; more than the capacity when its beginning is gone."""
    valid: Bool[Array, "C B"]
    """Steps of finished episodes that no update has seen."""


@dataclass(frozen=True)
class Episodes:
    """Hands over each finished episode once, as rows of [capacity + T, B] with a mask.

    An episode may be as long as `capacity`; a longer one is dropped whole when it ends, wherever it began. So
    is an episode that was lost (a masked entry with `truncated` set).
    """

    capacity: int

    def init(self, example: Transition) -> Memory:
        rows = example.reward.shape[1]
        kept = example._replace(core=None)
        blank = jax.tree.map(lambda x: jnp.zeros((self.capacity, *x.shape[1:]), x.dtype), kept)
        return Memory(Shelf(blank, jnp.zeros(rows, jnp.int32), jnp.zeros((self.capacity, rows), bool)))

    def add(self, memory: Memory, rollout: Transition) -> Memory:
        state: Shelf = memory.data
        steps = rollout.reward.shape[0]
        data = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), state.data, rollout._replace(core=None))
        present = jnp.ones_like(data.terminated) if data.mask is None else data.mask
        over = data.terminated | data.truncated
        place = jnp.arange(self.capacity + steps)[:, None]
        held = place >= self.capacity - state.open  # what came before was handed over earlier
        # Steps of an episode up to each place: from the last end before it, or from where the open one began.
        ends = jnp.where(over & held, place, self.capacity - state.open - 1)
        latest = jax.lax.cummax(ends, axis=0)
        before = jnp.concatenate([ends[:1] * 0 + self.capacity - state.open - 1, latest[:-1]])
        whole = _ends_whole(over, present & (place - before <= self.capacity))
        return Memory(Shelf(data, self.capacity + steps - 1 - latest[-1], held & present & whole))

    def ready(self, memory: Memory) -> bool:
        return True

    def sample(self, memory: Memory, key: Key) -> Batch:
        return Batch(memory.data.data._replace(mask=memory.data.valid))

    def feedback(self, memory: Memory, batch: Batch, report: Report) -> tuple[()]:
        return ()

    def settle(self, memory: Memory) -> Memory:
        state: Shelf = memory.data
        kept = jax.tree.map(lambda x: x[x.shape[0] - self.capacity :], state.data)
        return Memory(Shelf(kept, state.open, jnp.zeros_like(state.valid[: self.capacity])))


def _ends_whole(over: Bool[Array, "C B"], usable: Bool[Array, "C B"]) -> Bool[Array, "C B"]:
    """Steps whose episode ends in these arrays, at an end that is usable: not lost, and not too long."""

    def back(later: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        over_t, usable_t = now
        whole = jnp.where(over_t, usable_t, later)
        return whole, whole

    return jax.lax.scan(back, jnp.zeros_like(over[0]), (over, usable), reverse=True)[1]
