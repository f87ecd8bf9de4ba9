"""Sequences: blocks of one episode, nothing lost, twice or overwritten, and the right state of the core."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import quick
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sparring.ops.keys import several
from sparring.replay.sequence import Sequence
from sparring.types import Batch, Memory, Replay, Report, Transition

ADD, SAMPLE, READY, FEEDBACK, TAKE = (
    quick(getattr(Sequence, f), static_argnums=0) for f in ("add", "sample", "ready", "feedback", "take")
)


class Extras(NamedTuple):
    """What an algorithm with a core leaves with every step."""

    log_prob: Any
    core: Any = None


@dataclass
class Step:
    """One decision as the model keeps it."""

    name: float
    terminated: bool
    truncated: bool


@dataclass
class Row:
    """The decisions of a row, and its episodes as lists of their numbers; the last may be open."""

    steps: list[Step] = field(default_factory=list)
    episodes: list[list[int]] = field(default_factory=list)
    open: bool = False

    def decide(self, step: Step, first: bool) -> None:
        if self.open and first:
            self.lose()
        if not self.open:
            self.episodes.append([])
        self.episodes[-1].append(len(self.steps))
        self.steps.append(step)
        self.open = not (step.terminated or step.truncated)

    def lose(self) -> None:
        if self.open:
            self.steps[-1].truncated = True
        self.open = False

    def blocks(self, replay: Sequence, size: int) -> Iterator[tuple[list[int], list[int]]]:
        """Burn-in and loss steps, by number, of every block that can be drawn."""
        for i, episode in enumerate(self.episodes):
            over = i < len(self.episodes) - 1 or not self.open
            for s in range(0, len(episode), replay.every):
                whole = over or s + replay.length <= len(episode)
                if whole and episode[s] >= len(self.steps) - size + replay.burn_in:
                    yield episode[max(s - replay.burn_in, 0) : s], episode[s : s + replay.length]


class Stream:
    """Random episodes of several rows as rollouts, and the model that has seen the same."""

    def __init__(self, seed: int, steps: int, rows: int, masked: bool, ends: float, first: str) -> None:
        self.random = np.random.default_rng(seed)
        self.shape, self.masked, self.ends, self.kind = (steps, rows), masked, ends, first
        self.rows = [Row() for _ in range(rows)]
        self.entry = 0
        self.fresh = np.ones(rows, bool)

    def next(self) -> Transition:
        steps, rows = self.shape
        random = self.random
        number = self.entry + np.arange(steps)[:, None]
        name = (1 + number + 10_000 * np.arange(rows)).astype(np.float32)
        self.entry += steps
        over = random.random(self.shape) < self.ends
        terminated = over & (random.random(self.shape) < 0.5)
        mask = random.random(self.shape) < 0.7 if self.masked else np.ones(self.shape, bool)
        first = np.zeros(self.shape, bool)
        for t in range(steps):
            for b, row in enumerate(self.rows):
                cut = self.kind == "cuts" and random.random() < 0.05
                first[t, b] = self.fresh[b] or cut
                ended = bool(over[t, b])
                if mask[t, b]:
                    step = Step(float(name[t, b]), bool(terminated[t, b]), ended and not terminated[t, b])
                    row.decide(step, bool(first[t, b]) and self.kind != "none")
                    self.fresh[b] = ended
                elif ended and not terminated[t, b]:
                    row.lose()
                    self.fresh[b] = True
        return Transition(
            obs={"name": name[..., None]},
            action=number.astype(np.int32) + np.zeros(self.shape, np.int32),
            reward=name,
            terminated=terminated,
            truncated=over & ~terminated,
            next_obs={"name": name[..., None] + 0.5},
            extras=Extras(-name, (name[..., None] * np.float32([1, -1]), name.astype(np.int32))),
            first=None if self.kind == "none" else first,
            mask=mask if self.masked else None,
        )


def start(replay: Sequence, part: Transition) -> Memory:
    return replay.init(part)


def drawable(memory: Memory) -> np.ndarray:
    return np.flatnonzero(np.asarray(memory.live.tree.leaves))


def check(replay: Sequence, memory: Memory, rows: list[Row]) -> int:
    """Every block of the model is there once, with its steps and its state; returns how many there are."""
    size = memory.data.step.shape[0]
    wanted = {}
    for row in rows:
        for burn, loss in row.blocks(replay, size):
            wanted[row.steps[loss[0]].name] = row, burn, loss
    leaves = drawable(memory)
    assert int(memory.data.blocks) == len(leaves) == len(wanted)
    assert bool(READY(replay, memory)) == bool(wanted)
    padded = np.resize(leaves, max(64, -(-len(leaves) // 64) * 64)) if len(leaves) else np.zeros(64, int)
    data = jax.tree.map(np.asarray, TAKE(replay, memory.data, jnp.asarray(padded, jnp.int32)))
    assert data.extras.core is None
    for i in range(len(leaves)):
        row, burn, loss = wanted.pop(float(data.reward[i, replay.burn_in]))
        numbers = burn + loss
        front = replay.burn_in - len(burn)
        mask = np.zeros(replay.burn_in + replay.length, bool)
        mask[front : front + len(numbers)] = True
        np.testing.assert_array_equal(data.mask[i], mask)
        steps = [row.steps[n] for n in numbers]
        names = np.array([s.name for s in steps])
        np.testing.assert_array_equal(data.reward[i][mask], names)
        np.testing.assert_array_equal(data.obs["name"][i][mask][:, 0], names)
        np.testing.assert_array_equal(data.next_obs["name"][i][mask][:, 0], names + 0.5)
        np.testing.assert_array_equal(data.extras.log_prob[i][mask], -names)
        np.testing.assert_array_equal(data.terminated[i][mask], [s.terminated for s in steps])
        np.testing.assert_array_equal(data.truncated[i][mask], [s.truncated for s in steps])
        episode = next(e for e in row.episodes if numbers[0] in e)
        fresh = numbers[0] == episode[0]
        first = np.zeros_like(mask)
        first[front] = fresh
        np.testing.assert_array_equal(data.first[i], first)
        state = 0.0 if fresh else names[0]
        np.testing.assert_array_equal(data.core[0][i], [state, -state])
        assert data.core[1][i] == int(state)
    assert not wanted
    return len(leaves)


# T, rows, capacity, length, burn-in, stride, masked, chance of an end, kind of `first`
CASES = [
    (1, 2, 60, 4, 3, 0, True, 0.15, "given"),
    (1, 1, 40, 5, 0, 0, False, 0.08, "given"),
    (4, 3, 120, 5, 4, 0, True, 0.1, "cuts"),
    (4, 2, 80, 6, 5, 6, False, 0.5, "cuts"),
    (4, 2, 1, 3, 2, 0, True, 0.3, "none"),
    (8, 2, 100, 4, 6, 2, False, 0.06, "given"),
    (8, 3, 200, 6, 7, 3, True, 0.06, "none"),
    (8, 2, 64, 1, 2, 0, False, 0.3, "given"),
]


@given(seed=st.integers(0, 10**6), case=st.sampled_from(CASES), share=st.floats(0.1, 1.0))
@settings(max_examples=30)
def test_the_blocks_are_those_of_a_plain_model(seed, case, share):
    steps, rows, capacity, length, burn_in, stride, masked, ends, first = case
    replay = Sequence(capacity, 8, length, burn_in, stride)
    stream = Stream(seed, steps, rows, masked, ends, first)
    count = max(int(share * 3 * replay.steps(steps, rows) / steps), 1)
    memory, told = None, {}
    for i in range(count):
        part = stream.next()
        memory = start(replay, part) if memory is None else memory
        memory = ADD(replay, memory, part)
        if (i + 1) % max(count // 4, 1) == 0:
            check(replay, memory, stream.rows)
            memory, told = prioritise(replay, memory, told, stream.random)


def prioritise(
    replay: Sequence, memory: Memory, told: dict[float, float], random: np.random.Generator
) -> tuple[Memory, dict[float, float]]:
    """Checks that blocks kept the mass they were told, or got the largest; tells all a new one, below 1."""
    leaves, mass = drawable(memory), np.asarray(memory.live.tree.leaves)
    names = np.asarray(memory.data.store.data.reward).reshape(-1)
    for i in leaves:
        assert mass[i] == pytest.approx(told.get(float(names[i]), 1.0), rel=1e-5)
    size = memory.data.step.size
    error = np.zeros((size, replay.length), np.float32)
    error[leaves] = random.random((len(leaves), 1))
    valid = np.zeros((size, replay.burn_in + replay.length), bool)
    valid[leaves] = True
    index = np.full(size, -1, np.int32)
    index[leaves] = leaves
    batch = Batch(Transition(*(None,) * 7, mask=jnp.asarray(valid)), jnp.asarray(index), jnp.ones(size))
    live = FEEDBACK(replay, memory, batch, Report({}, jnp.asarray(error)))
    told = {float(names[i]): float((error[i, 0] + replay.epsilon) ** replay.alpha) for i in leaves}
    return memory._replace(live=live), told


def test_with_stride_length_every_step_is_a_loss_step_of_exactly_one_sequence():
    replay = Sequence(10_000, 8, 5, 3)
    stream = Stream(0, 8, 3, True, 0.1, "given")
    memory = None
    for _ in range(20):
        part = stream.next()
        memory = start(replay, part) if memory is None else memory
        memory = ADD(replay, memory, part)
    data = TAKE(replay, memory.data, jnp.asarray(drawable(memory), jnp.int32))
    seen = np.asarray(data.reward)[:, 3:][np.asarray(data.mask)[:, 3:]]
    names = [s.name for row in stream.rows for s in row.steps]
    open_tail = [len(r.episodes[-1]) % 5 if r.open else 0 for r in stream.rows]
    assert len(seen) == len(set(seen.tolist())) == len(names) - sum(open_tail)
    assert set(seen.tolist()) <= set(names)


def episode(length: int, rows: int = 1) -> Transition:
    """One rollout that is one episode of every row."""
    name = 1 + np.arange(length, dtype=np.float32)[:, None] + 100 * np.arange(rows, dtype=np.float32)
    over = np.zeros((length, rows), bool)
    over[-1] = True
    return Transition(
        name, name, name, over, ~over & False, name, (), first=np.arange(length)[:, None] == 0 * name
    )


def test_an_episode_shorter_than_a_block_is_one_block():
    replay = Sequence(1000, 4, 40, 40)
    memory = ADD(replay, start(replay, episode(20)), episode(20))
    assert int(memory.data.blocks) == 1
    batch = SAMPLE(replay, memory, jax.random.key(0))
    np.testing.assert_array_equal(
        batch.data.mask, np.tile((np.arange(80) >= 40) & (np.arange(80) < 60), (4, 1))
    )
    np.testing.assert_array_equal(batch.data.first, np.tile(np.arange(80) == 40, (4, 1)))
    assert batch.data.core is None
    assert isinstance(replay, Replay)


def test_it_is_ready_from_the_minimum_on():
    replay = Sequence(1000, 4, 4, minimum=13)
    memory = ADD(replay, start(replay, episode(12)), episode(12))
    assert not bool(READY(replay, memory))
    assert bool(READY(replay, ADD(replay, memory, episode(12))))


@pytest.mark.parametrize("alpha", [0.0, 0.9])
def test_frequencies_and_weights_match_the_priorities(alpha):
    random = np.random.default_rng(0)
    replay = Sequence(10_000, 32, 4, 2, alpha=alpha, eta=0.7, epsilon=1e-3)
    part = episode(42, rows=3)
    memory = ADD(replay, start(replay, part), part)
    leaves = drawable(memory)
    assert len(leaves) == 33
    data = TAKE(replay, memory.data, jnp.asarray(leaves, jnp.int32))
    error = random.normal(size=(33, 4)) * random.exponential(size=(33, 1))
    every = Batch(data, jnp.asarray(leaves, jnp.int32), jnp.ones(33))
    live = FEEDBACK(replay, memory, every, Report({}, jnp.asarray(error, jnp.float32)))
    memory = memory._replace(live=live)
    mask = np.asarray(data.mask)[:, 2:]
    size = np.where(mask, np.abs(error), 0.0)
    p = (0.7 * size.max(1) + 0.3 * size.sum(1) / mask.sum(1) + 1e-3) ** alpha
    np.testing.assert_allclose(np.asarray(live.tree.leaves)[leaves], p, rtol=1e-4)
    np.testing.assert_allclose(live.largest, max(1.0, p.max()), rtol=1e-4)
    keys = several(jax.random.key(1), 400)
    drawn = quick(jax.vmap(lambda k: replay.sample(memory, k)._replace(data=())))(keys)
    index = np.asarray(drawn.index).reshape(-1)
    counts = np.bincount(index, minlength=leaves[-1] + 1)[leaves]
    assert counts.sum() == len(index)
    assert stats.chisquare(counts, p / p.sum() * len(index)).pvalue > 1e-3
    scaled = dict(zip(leaves.tolist(), 33 * p / p.sum(), strict=True))
    np.testing.assert_allclose(np.asarray(drawn.weight).reshape(-1), [scaled[i] for i in index], rtol=1e-4)


@pytest.mark.parametrize("initial", ["max", "mean"])
def test_a_new_block_gets_the_largest_or_the_mean_priority(initial):
    replay = Sequence(10_000, 4, 4, alpha=1.0, epsilon=0.0, initial=initial)
    part = episode(8)
    memory = ADD(replay, start(replay, part), part)
    leaves = drawable(memory)
    data = TAKE(replay, memory.data, jnp.asarray(leaves, jnp.int32))
    batch = Batch(data, jnp.asarray(leaves, jnp.int32), jnp.ones(2))
    error = jnp.asarray([[3.0] * 4, [5.0] * 4])
    memory = memory._replace(live=FEEDBACK(replay, memory, batch, Report({}, error)))
    after = ADD(replay, memory, part)
    new = sorted(set(drawable(after).tolist()) - set(leaves.tolist()))
    np.testing.assert_allclose(np.asarray(after.live.tree.leaves)[new], 5.0 if initial == "max" else 4.0)


def test_errors_of_several_heads_are_added_on_one_scale_over_valid_steps():
    random = np.random.default_rng(2)
    replay = Sequence(10_000, 4, 4, alpha=1.0, eta=1.0, epsilon=0.0, heads=2)
    part = episode(6)
    memory = ADD(replay, start(replay, part), part)
    leaves = drawable(memory)
    data = TAKE(replay, memory.data, jnp.asarray(leaves, jnp.int32))
    error = (random.normal(size=(2, 4, 2)) * [10.0, 0.1]).astype(np.float32)
    batch = Batch(data, jnp.asarray(leaves, jnp.int32), jnp.ones(2))
    live = FEEDBACK(replay, memory, batch, Report({}, jnp.asarray(error)))
    mask = np.asarray(data.mask)
    sigma = error[mask].std(0)
    size = np.where(mask, (np.abs(error) / sigma).sum(-1), 0.0)
    np.testing.assert_allclose(np.asarray(live.tree.leaves)[leaves], size.max(1), rtol=1e-3)
