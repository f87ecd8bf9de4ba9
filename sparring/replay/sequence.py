"""Sequences of past episodes on the device: what recurrent off-policy algorithms learn from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from sparring.ops import sum_tree
from sparring.ops.priorities import of_sequence
from sparring.replay.prioritised import Priorities, combined, fresh, renewed, scaled_probability, start
from sparring.replay.ring import Store, blank, holds, read, write
from sparring.types import Batch, Key, Memory, Report, Transition


class Tape(NamedTuple):
    """Steps of every row in the order in which they were made, and what sequences need besides."""

    store: Store
    step: Int[Array, "S B"]
    """place of each step in its episode, from 0"""
    open: Int[Array, " B"]
    """steps of the episode in progress"""
    blocks: Int[Array, ""]
    """how many can be drawn"""
    core: Any
    """[slots, B, …]: the state of the core before the first step of a window that starts inside an episode"""


@dataclass(frozen=True)
class Sequence:
    """Hands out blocks of `length` steps of one episode, each after up to `burn_in` steps that lead up to it.

    R2D2 (Kapturowski et al. 2019), for episodes of any length. An episode is cut into blocks from its first
    step on, one every `stride` steps; its last block may be short, so no step is lost, and with
    stride = length every step is in exactly one block. A block can be drawn once it is whole or its episode
    is over, and as long as its start is among the newest S - burn_in of a row's S places.

    A batch has leaves [N, burn_in + length, …]: the block starts at place burn_in, `mask` says which steps
    are there, `first` is set where the episode starts, and `core` is the state that the first step of the
    window met, zeros at an episode's start. Only those states are kept, of all that `extras.core` brings:
    [T, B, …], the state before each step of a rollout.
    """

    capacity: int
    batch_size: int
    length: int
    burn_in: int = 0
    stride: int = 0
    """steps between the starts of blocks; 0 means `length`, less makes them overlap"""
    minimum: int = 0
    """decisions of all rows before the first batch counts"""
    alpha: float = 0.9
    """exponent of the priority; 0 draws uniformly over blocks"""
    eta: float = 0.9
    """weight of the largest error of a block against the mean"""
    initial: Literal["max", "mean"] = "max"
    """priority of a block that was never drawn: the largest ever given, or the mean of the present ones"""
    epsilon: float = 1e-6
    """added to a block's error, so that it may be drawn again"""
    heads: int = 0
    """heads whose errors an update reports apart; 0 when it reports one error per step"""

    @property
    def every(self) -> int:
        """Steps between the starts of blocks."""
        return self.stride or self.length

    def steps(self, rollout: int, rows: int) -> int:
        """Places per row: a multiple of the rollout, with room for a window and a rollout."""
        least = -(-(self.burn_in + self.length) // rollout) + 1
        return max(self.capacity // (rollout * rows), least) * rollout

    def init(self, example: Transition) -> Memory:
        size, rows = self.steps(*example.reward.shape), example.reward.shape[1]
        slots = size // self.every + 2
        core = jax.tree.map(lambda x: jnp.zeros((slots, *x.shape[1:]), x.dtype), _core(example))
        zeros = jnp.zeros((size, rows), jnp.int32), jnp.zeros(rows, jnp.int32), jnp.zeros((), jnp.int32)
        tape = Tape(blank(_without_core(example), size), *zeros, core)
        return Memory(tape, start(size * rows, self.heads))

    def add(self, memory: Memory, rollout: Transition) -> Memory:
        """Writes the steps and the states at starts of windows; blocks that became whole can be drawn."""
        old: Tape = memory.data
        mask = jnp.ones(rollout.reward.shape, bool) if rollout.mask is None else rollout.mask
        made = _episode_steps(old.open, rollout, mask)
        number = old.store.written + jnp.cumsum(mask, axis=0, dtype=jnp.int32) - 1
        store = _cut(write(old.store, _without_core(rollout)), made.cut, number - 1)
        size, rows = old.step.shape
        place = jnp.where(mask, number % size, size)
        tape = Tape(
            store,
            old.step.at[place, jnp.arange(rows)].set(made.step, mode="drop"),
            made.open,
            old.blocks,
            self._keep_states(old.core, _core(rollout), number, mask, made.step),
        )
        return self._reweigh(memory.live, old, tape, number, mask, made.step)

    def _keep_states(self, kept: Any, core: Any, number: Array, mask: Array, step: Array) -> Any:
        """The states with those at starts of windows in this rollout.

        The state of a window belongs to the slot of the block that will follow its burn-in: the number of
        its first step in the row, // stride. Blocks that need a state start at least `stride` steps apart,
        so no two share one; a window whose episode ends before its block leaves its slot to the next.
        """
        if not jax.tree.leaves(kept):
            return kept
        slots, rows = jax.tree.leaves(kept)[0].shape[:2]
        starts = mask & (step > 0) & ((step + self.burn_in) % self.every == 0)
        slot = (number + self.burn_in) // self.every
        never = jnp.iinfo(jnp.int32).max
        later = jax.lax.cummin(jnp.where(starts, slot, never), axis=0, reverse=True)
        later = jnp.concatenate([later[1:], jnp.full_like(later[:1], never)])
        place = jnp.where(starts & (slot != later), slot % slots, slots)
        return jax.tree.map(lambda k, x: k.at[place, jnp.arange(rows)].set(x, mode="drop"), kept, core)

    def _reweigh(
        self, live: Priorities, old: Tape, tape: Tape, number: Array, mask: Array, step: Array
    ) -> Memory:
        """The memory with mass for blocks that became whole, and none for those about to be overwritten."""
        size, rows = tape.step.shape
        before, written = old.store.written, tape.store.written

        def whole(start: Array) -> Array:
            return (start < written - tape.open) | (start + self.length <= written)

        def leaf(start: Array, valid: Array) -> Array:
            return jnp.where(valid, (start % size) * rows + jnp.arange(rows), -1).reshape(-1)

        new = (step % self.every == 0) & whole(number)
        # Unfinished blocks of the episode that was in progress: the last starts in it.
        back = jnp.arange(-(-(self.length - 1) // self.every))[:, None]
        late_step = ((old.open - 1) // self.every - back) * self.every
        late = before - old.open + late_step
        finished = (late_step >= 0) & (late + self.length > before) & whole(late)
        gone = before - size + self.burn_in + jnp.arange(mask.shape[0])[:, None]
        leaving = (gone < written - size + self.burn_in) & (gone >= jnp.maximum(written - size, 0))

        given = fresh(live, self.initial, old.blocks)
        index = jnp.concatenate([leaf(number, mask), leaf(late, finished), leaf(gone, leaving)])
        value = jnp.concatenate(
            [
                jnp.where(new, given, 0.0).reshape(-1),
                jnp.broadcast_to(given, (late.size,)),
                jnp.zeros(gone.size),
            ]
        )
        past, tree = sum_tree.exchange(live.tree, index, value)
        change = jnp.sum((index >= 0) & (value > 0), dtype=jnp.int32) - jnp.sum(past > 0, dtype=jnp.int32)
        return Memory(tape._replace(blocks=old.blocks + change), live._replace(tree=tree))

    def ready(self, memory: Memory) -> Bool[Array, ""]:
        """Whether a batch can be drawn that deserves to be learned from."""
        tape: Tape = memory.data
        return holds(tape.store, self.minimum) & (tape.blocks > 0)

    def sample(self, memory: Memory, key: Key) -> Batch:
        """`batch_size` sequences, one from each of as many equal parts of the mass."""
        leaf = sum_tree.draw(memory.live.tree, key, self.batch_size)
        weight = scaled_probability(memory.live, leaf, self.drawable(memory))
        return Batch(self.take(memory.data, leaf), leaf, weight)

    def drawable(self, memory: Memory) -> Int[Array, ""]:
        """How many sequences can be drawn."""
        tape: Tape = memory.data
        return tape.blocks

    def take(self, tape: Tape, leaf: Int[Array, " N"]) -> Transition:
        """The sequences whose blocks start at these leaves, place · rows + row."""
        size, rows = tape.step.shape
        start, row = leaf // rows, leaf % rows
        data = read(tape.store, start - self.burn_in, row, self.burn_in + self.length)
        step = tape.step[start, row][:, None]
        offset = jnp.arange(-self.burn_in, self.length)
        written = tape.store.written[row]
        oldest = jnp.maximum(written - size, 0)
        number = oldest + (start - oldest) % size
        over = (data.terminated | data.truncated) & (offset >= 0)
        same_episode = jnp.cumsum(over, axis=1) - over == 0
        mask = (offset >= -step) & same_episode & (number[:, None] + offset < written[:, None])

        def state(kept: Array) -> Array:
            inside = (step > self.burn_in).reshape((-1, *(1,) * (kept.ndim - 2)))
            return jnp.where(
                inside, kept[number // self.every % kept.shape[0], row], jnp.zeros_like(kept[0, 0])
            )

        return data._replace(first=offset == -step, mask=mask, core=jax.tree.map(state, tape.core))

    def feedback(self, memory: Memory, batch: Batch, report: Report) -> Priorities:
        """The priorities after an update, which reports errors of the block's steps: [N, length(, heads)]."""
        live: Priorities = memory.live
        if report.priority is None:
            return live
        mask = batch.data.mask[:, self.burn_in :]
        error, live = combined(live, report.priority, mask)
        return renewed(live, batch, (of_sequence(error, mask, self.eta) + self.epsilon) ** self.alpha)

    def settle(self, memory: Memory) -> Memory:
        return memory


def _core(rollout: Transition) -> Any:
    """The core's states before each step; None when the algorithm keeps none."""
    return getattr(rollout.extras, "core", None)


def _without_core(rollout: Transition) -> Transition:
    return rollout if _core(rollout) is None else rollout._replace(extras=rollout.extras._replace(core=None))


class _Made(NamedTuple):
    """Where the steps of a rollout are in their episodes."""

    step: Int[Array, "T B"]
    cut: Bool[Array, "T B"]
    """a step that starts an episode although the one before it was not seen to end"""
    open: Int[Array, " B"]
    """steps of the episode in progress after the rollout"""


def _episode_steps(open_before: Int[Array, " B"], rollout: Transition, mask: Bool[Array, "T B"]) -> _Made:
    """Counts the steps of each row's episodes; a loss (a masked end) ends one too."""
    first = jnp.zeros_like(mask) if rollout.first is None else rollout.first & mask

    def count(open_now: Array, now: tuple[Array, ...]) -> tuple[Array, tuple[Array, Array]]:
        first_t, mask_t, over_t = now
        step = jnp.where(first_t, 0, open_now)
        after = jnp.where(over_t, 0, step + mask_t.astype(jnp.int32))
        return after, (step, first_t & (open_now > 0))

    over = rollout.truncated | (rollout.terminated & mask)
    open_after, (step, cut) = jax.lax.scan(count, open_before, (first, mask, over))
    return _Made(step, cut, open_after)


def _cut(store: Store, cut: Bool[Array, "T B"], number: Int[Array, "T B"]) -> Store:
    """The store with the episode broken off after these steps, by their numbers in the row."""
    size, rows = store.data.reward.shape
    place = jnp.where(cut, number % size, size)
    truncated = store.data.truncated.at[place, jnp.arange(rows)].set(True, mode="drop")
    return store._replace(data=store.data._replace(truncated=truncated))
