"""A ring of past transitions on the device, sampled in proportion to their last error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from sparring.ops import sum_tree
from sparring.ops.priorities import Spread, over_heads, start_spread
from sparring.ops.sum_tree import SumTree
from sparring.replay.ring import Ring, Store, read
from sparring.types import Batch, Key, Memory, Report, Transition


class Priorities(NamedTuple):
    """What feedback changes."""

    tree: SumTree
    """p^α of every decision that starts a window, 0 elsewhere; leaf place · rows + row"""
    largest: Float[Array, ""]
    """the largest p^α ever given; 1 before the first"""
    spread: Spread | None
    """deviation of each head's errors, where there are several heads"""


@dataclass(frozen=True)
class Prioritised:
    """Proportional prioritised replay (Schaul et al. 2016) over the steps and windows of a `Ring`.

    A decision is drawn with probability P(i) = p_i^α / Σ p^α, p being |error| + ε at its last update. A
    batch's `weight` is N·P(i), N the number of decisions that can be drawn: `ops.priorities.importance` makes
    weights of it with the β of the moment. An update reports an error per window, [N], or [N, heads].
    """

    capacity: int
    batch_size: int
    n_step: int = 1
    minimum: int = 0
    """decisions of all rows before the first batch counts"""
    alpha: float = 0.6
    """exponent of the priority; 0 draws uniformly"""
    initial: Literal["max", "mean"] = "max"
    """priority of a decision that was never drawn: the largest ever given, or the mean of the present ones"""
    epsilon: float = 1e-6
    """added to an error, so that every decision may be drawn again"""
    heads: int = 0
    """heads whose errors an update reports apart; 0 when it reports one error"""

    @property
    def ring(self) -> Ring:
        """Where the steps are."""
        return Ring(self.capacity, self.batch_size, self.n_step, self.minimum)

    def steps(self, rollout: int, rows: int) -> int:
        """Places per row."""
        return self.ring.steps(rollout, rows)

    def init(self, example: Transition) -> Memory:
        data = self.ring.init(example).data
        return Memory(data, start(data.data.reward.size, self.heads))

    def add(self, memory: Memory, rollout: Transition) -> Memory:
        """Writes the steps; those whose window is whole can be drawn, the newest n - 1 of a row not yet."""
        old, live = memory.data, memory.live
        data: Store = self.ring.add(memory, rollout).data
        size, rows = data.data.reward.shape
        steps = rollout.reward.shape[0] + self.n_step - 1
        number = old.written - (self.n_step - 1) + jnp.arange(steps)[:, None]
        whole = number + self.n_step <= data.written
        there = (number >= 0) & (number < data.written)
        leaf = jnp.where(there, (number % size) * rows + jnp.arange(rows), -1)
        value = jnp.where(whole, fresh(live, self.initial, jnp.sum(self.ring.windows(old))), 0.0)
        return Memory(data, live._replace(tree=sum_tree.put(live.tree, leaf.reshape(-1), value.reshape(-1))))

    def ready(self, memory: Memory) -> Bool[Array, ""]:
        """Whether a batch can be drawn that deserves to be learned from."""
        return self.ring.ready(memory)

    def sample(self, memory: Memory, key: Key) -> Batch:
        """`batch_size` windows, one from each of as many equal parts of the mass: leaves [N, n, …]."""
        leaf = sum_tree.draw(memory.live.tree, key, self.batch_size)
        weight = scaled_probability(memory.live, leaf, self.drawable(memory))
        return Batch(self.take(memory.data, leaf), leaf, weight)

    def drawable(self, memory: Memory) -> Int[Array, ""]:
        """How many windows can be drawn."""
        return jnp.sum(self.ring.windows(memory.data))

    def take(self, store: Store, leaf: Int[Array, " N"]) -> Transition:
        """The windows that start at these leaves, place · rows + row."""
        rows = store.data.reward.shape[1]
        return read(store, leaf // rows, leaf % rows, self.n_step)

    def feedback(self, memory: Memory, batch: Batch, report: Report) -> Priorities:
        """The priorities after an update, (|error| + ε)^α; unchanged when it reports none."""
        live: Priorities = memory.live
        if report.priority is None:
            return live
        error, live = combined(live, report.priority)
        return renewed(live, batch, (jnp.abs(error) + self.epsilon) ** self.alpha)

    def settle(self, memory: Memory) -> Memory:
        return memory


def start(leaves: int, heads: int) -> Priorities:
    """Nothing can be drawn."""
    return Priorities(sum_tree.zeros(leaves), jnp.ones(()), start_spread(heads) if heads else None)


def fresh(live: Priorities, initial: Literal["max", "mean"], count: Int[Array, ""]) -> Float[Array, ""]:
    """The mass of what was never drawn; `count` leaves have mass now."""
    if initial == "max":
        return live.largest
    return jnp.where(count > 0, sum_tree.total(live.tree) / jnp.maximum(count, 1), live.largest)


def scaled_probability(live: Priorities, leaf: Int[Array, " N"], count: Int[Array, ""]) -> Float[Array, " N"]:
    """N·P of these leaves; 1 while nothing can be drawn."""
    total = sum_tree.total(live.tree)
    scale = count / jnp.where(total > 0, total, 1.0)
    return jnp.where(total > 0, sum_tree.at(live.tree, leaf) * scale, 1.0)


def combined(
    live: Priorities, error: Float[Array, "..."], mask: Any = None
) -> tuple[Float[Array, "..."], Priorities]:
    """Errors without an axis of heads: summed over it, each head on its own scale."""
    if live.spread is None:
        return error, live
    total, spread = over_heads(live.spread, error, mask)
    return total, live._replace(spread=spread)


def renewed(live: Priorities, batch: Batch, mass: Float[Array, " N"]) -> Priorities:
    """The priorities with a new mass for what was drawn; one that is not a number counts as the largest.

    A leaf that has lost its mass since it was drawn stays without. That the index depends on the weight makes
    the write wait for the read of the draw; else XLA would copy the whole tree.
    """
    mass = jnp.where(jnp.isfinite(mass), mass, live.largest)
    valid = (batch.weight > 0) & (sum_tree.at(live.tree, batch.index) > 0)
    tree = sum_tree.put(live.tree, jnp.where(valid, batch.index, -1), mass)
    return live._replace(tree=tree, largest=jnp.maximum(live.largest, jnp.max(mass)))
