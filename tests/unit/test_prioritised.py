"""The prioritised ring: the ring's windows, drawn in proportion to their last errors."""

from __future__ import annotations

from typing import Any

import cpprb
import flashbax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import quick
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sparring.ops import sum_tree
from sparring.ops.keys import several
from sparring.ops.priorities import importance, of_sequence, over_heads, start_spread
from sparring.replay.prioritised import Prioritised
from sparring.replay.ring import Ring
from sparring.types import Batch, Memory, Replay, Report, Transition

T, B = 4, 3
ADD, SAMPLE, READY, FEEDBACK = (
    quick(getattr(Prioritised, f), static_argnums=0) for f in ("add", "sample", "ready", "feedback")
)
RING_ADD, RING_TAKE = quick(Ring.add, static_argnums=0), quick(Ring.take, static_argnums=0)
IMPORTANCE, OVER_HEADS = quick(importance), quick(over_heads)
SETTINGS = [(1, 1, False, "max"), (1, 60, True, "mean"), (3, 1, True, "max"), (3, 60, False, "mean")]
"""n_step, capacity, masked, initial"""


def rollout(start: int, random: np.random.Generator, masked: bool = False) -> Transition:
    """T steps of B rows whose reward names the decision: 1000 · row + number of the entry."""
    number = start + np.arange(T)[:, None] + np.zeros((1, B), int)
    name = (1000 * np.arange(B) + number).astype(np.float32)
    over = random.random((T, B)) < 0.2
    mask = random.random((T, B)) < 0.6 if masked else None
    terminated = over & (random.random((T, B)) < 0.5) & (True if mask is None else mask)
    return Transition(
        obs=name[..., None],
        action=number.astype(np.int32),
        reward=name,
        terminated=terminated,
        truncated=over & ~terminated,
        next_obs=name[..., None] + 0.5,
        extras=(),
        first=np.zeros((T, B), bool),
        mask=mask,
    )


def start(replay: Any, part: Transition) -> Memory:
    return replay.init(part)


def filled(replay: Prioritised, parts: list[Transition]) -> Memory:
    memory = start(replay, parts[0])
    for part in parts:
        memory = ADD(replay, memory, part)
    return memory


def report(priority: Any) -> Report:
    return Report({}, jnp.asarray(priority, jnp.float32))


def masses(memory: Memory) -> dict[float, float]:
    """The mass of every leaf that has one, by the name of its decision."""
    leaves = np.asarray(memory.live.tree.leaves)
    names = np.asarray(memory.data.data.reward).reshape(-1)
    assert not leaves[len(names) :].any()
    return {float(names[i]): float(leaves[i]) for i in np.flatnonzero(leaves)}


@given(seed=st.integers(0, 10**6), count=st.integers(1, 9), setting=st.sampled_from(SETTINGS))
@settings(max_examples=25)
def test_mass_is_where_the_ring_has_windows_and_is_what_the_last_update_said(seed, count, setting):
    """A plain model: a dict from the decision's name to its p^α, updated by the definition."""
    n, capacity, masked, initial = setting
    random = np.random.default_rng(seed)
    replay = Prioritised(capacity, 8, n, alpha=0.7, initial=initial, epsilon=0.1)
    parts = [rollout(T * i, random, masked) for i in range(count)]
    memory, ring = start(replay, parts[0]), start(replay.ring, parts[0])
    known: dict[float, float] = {}
    largest, rows = 1.0, [[] for _ in range(B)]
    size = replay.ring.steps(T, B)
    for i, part in enumerate(parts):
        value = largest if initial == "max" or not known else sum(known.values()) / len(known)
        there = np.ones((T, B), bool) if part.mask is None else part.mask
        for t, b in np.argwhere(there):
            rows[b].append(float(part.reward[t, b]))
        windows = {name for row in rows for name in row[-size:][: max(len(row[-size:]) - n + 1, 0)]}
        known = {name: known.get(name, value) for name in windows}
        memory = ADD(replay, memory, part)
        ring = RING_ADD(replay.ring, ring, part)
        assert masses(memory) == pytest.approx(known, rel=1e-5)
        assert bool(READY(replay, memory)) == bool(known)
        if not known:
            continue
        batch = SAMPLE(replay, memory, jax.random.key(seed + i))
        names = np.asarray(batch.data.reward)[:, 0]
        total = sum(known.values())
        scaled = [len(known) * known[float(name)] / total for name in names]
        np.testing.assert_allclose(batch.weight, scaled, rtol=1e-4)
        error = random.normal(size=8) * 5
        given_now: dict[float, float] = {}
        for name, e in zip(names.tolist(), error, strict=True):
            given_now[name] = max(given_now.get(name, 0.0), (abs(e) + 0.1) ** 0.7)
        known |= given_now
        largest = max(largest, *given_now.values())
        memory = memory._replace(live=FEEDBACK(replay, memory, batch, report(error)))
    for a, b in zip(jax.tree.leaves(memory.data), jax.tree.leaves(ring.data), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_batch_holds_the_rings_windows():
    random = np.random.default_rng(0)
    parts = [rollout(T * i, random) for i in range(7)]
    replay = Prioritised(48, 64, 3)
    memory = filled(replay, parts)
    batch = SAMPLE(replay, memory, jax.random.key(0))
    place, row = np.asarray(batch.index) // B, np.asarray(batch.index) % B
    oldest = np.maximum(np.asarray(memory.data.written)[row] - 16, 0)
    same = RING_TAKE(replay.ring, memory.data, jnp.asarray(row), jnp.asarray((place - oldest) % 16))
    for a, b in zip(jax.tree.leaves(batch.data), jax.tree.leaves(same.data), strict=True):
        np.testing.assert_array_equal(a, b)
    assert isinstance(replay, Replay)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_frequencies_match_the_priorities(alpha):
    random = np.random.default_rng(1)
    replay = Prioritised(1000, 64, 2, alpha=alpha)
    memory = filled(replay, [rollout(T * i, random, masked=True) for i in range(12)])
    leaves = np.flatnonzero(np.asarray(memory.live.tree.leaves))
    error = random.exponential(size=len(leaves)) * 10
    every = Batch(None, jnp.asarray(leaves), jnp.ones(len(leaves)))
    memory = memory._replace(live=FEEDBACK(replay, memory, every, report(error)))
    keys = several(jax.random.key(2), 400)
    drawn = np.asarray(jax.jit(jax.vmap(lambda k: replay.sample(memory, k).index))(keys)).reshape(-1)
    p = (error + 1e-6) ** alpha
    counts = np.bincount(drawn, minlength=leaves[-1] + 1)[leaves]
    assert counts.sum() == len(drawn)
    assert stats.chisquare(counts, p / p.sum() * len(drawn)).pvalue > 1e-3


def test_what_cannot_be_drawn_gets_no_mass_and_nonsense_counts_as_the_largest():
    replay = Prioritised(1000, 4, 3, alpha=1.0, epsilon=0.0)
    memory = filled(replay, [rollout(0, np.random.default_rng(0))])
    unwhole = [(T - 1) * B, 300 * B]
    batch = Batch(None, jnp.asarray([0, 1, *unwhole]), jnp.ones(4))
    memory = memory._replace(live=FEEDBACK(replay, memory, batch, report([5.0, np.nan, 7.0, 7.0])))
    leaves = np.asarray(memory.live.tree.leaves)
    assert not leaves[unwhole].any()
    np.testing.assert_array_equal(leaves[:2], [5.0, 1.0])
    assert np.isfinite(float(sum_tree.total(memory.live.tree)))
    same = FEEDBACK(replay, memory, batch, Report({}))
    np.testing.assert_array_equal(same.tree.leaves, leaves)


@given(seed=st.integers(0, 10**6), beta=st.floats(0.0, 1.0))
@settings(max_examples=10)
def test_importance_is_its_definition(seed, beta):
    p = np.random.default_rng(seed).exponential(size=16) + 1e-3
    scaled = 16 * p / p.sum()
    wanted = scaled**-beta / (scaled**-beta).max()
    np.testing.assert_allclose(IMPORTANCE(jnp.asarray(scaled, jnp.float32), beta), wanted, rtol=1e-4)


def one_row(count: int) -> Transition:
    part = rollout(0, np.random.default_rng(0))
    whole = jax.tree.map(lambda x: np.repeat(x[:1, :1], count, 0), part._replace(mask=None))
    return whole._replace(reward=np.arange(count, dtype=np.float32)[:, None])


def test_cpprb_gives_the_same_probabilities_and_weights():
    random = np.random.default_rng(3)
    error = random.exponential(size=64)
    theirs = cpprb.PrioritizedReplayBuffer(64, {"x": {}}, alpha=0.6, eps=1e-3)
    theirs.add(x=np.arange(64.0))
    theirs.update_priorities(np.arange(64), error)
    sample = theirs.sample(20_000, beta=0.4)
    replay = Prioritised(64, 512, alpha=0.6, epsilon=1e-3)
    memory = filled(replay, [one_row(64)])
    every = Batch(None, jnp.arange(64), jnp.ones(64))
    memory = memory._replace(live=FEEDBACK(replay, memory, every, report(error)))
    probability = masses(memory)
    p = np.array([probability[float(i)] for i in range(64)])
    counts = np.bincount(sample["indexes"].astype(int), minlength=64)
    assert stats.chisquare(counts, p / p.sum() * 20_000).pvalue > 1e-4
    # cpprb divides by the largest weight in the buffer, which is the batch's when all are in it.
    mine = IMPORTANCE(jnp.asarray(64 * p / p.sum(), jnp.float32), 0.4)
    np.testing.assert_allclose(np.asarray(mine)[sample["indexes"].astype(int)], sample["weights"], rtol=1e-4)


def test_flashbax_gives_the_same_probabilities():
    random = np.random.default_rng(4)
    error = random.exponential(size=32).astype(np.float32)
    theirs = flashbax.make_prioritised_item_buffer(32, 1, 32, priority_exponent=0.6, device="cpu")

    def draw(error: Any, key: Any) -> Any:
        state = theirs.init({"x": jnp.zeros(())})
        state = jax.lax.fori_loop(0, 32, lambda i, s: theirs.add(s, {"x": i.astype(jnp.float32)}), state)
        state = theirs.set_priorities(state, jnp.arange(32), error)
        return theirs.sample(state, key)

    drawn = quick(draw)(error, jax.random.key(0))
    replay = Prioritised(32, 64, alpha=0.6, epsilon=0.0)
    memory = filled(replay, [one_row(32)])
    every = Batch(None, jnp.arange(32), jnp.ones(32))
    memory = memory._replace(live=FEEDBACK(replay, memory, every, report(error)))
    known = masses(memory)
    total = sum(known.values())
    for i, probability in zip(np.asarray(drawn.indices), np.asarray(drawn.probabilities), strict=True):
        assert known[float(i)] / total == pytest.approx(float(probability), rel=1e-4)


def test_heads_are_added_on_one_scale():
    random = np.random.default_rng(5)
    spread = start_spread(3)
    weight = mean = square = np.zeros(3)
    for _ in range(4):
        error = random.normal(size=(50, 3)) * [100.0, 1.0, 1e-4] + [3.0, 0.0, 0.0]
        got, spread = OVER_HEADS(spread, jnp.asarray(error, jnp.float32))
        weight = 0.99 * weight + 0.01
        mean, square = 0.99 * mean + 0.01 * error.mean(0), 0.99 * square + 0.01 * (error**2).mean(0)
        running = np.sqrt(square / weight - (mean / weight) ** 2)
        sigma = np.maximum(np.maximum(running, error.std(0)), 0.01)
        np.testing.assert_allclose(got, (np.abs(error) / sigma).sum(1), rtol=1e-3)


def test_an_update_may_report_several_heads():
    random = np.random.default_rng(6)
    replay = Prioritised(1000, 8, alpha=1.0, epsilon=0.0, heads=2)
    memory = filled(replay, [rollout(0, random)])
    batch = SAMPLE(replay, memory, jax.random.key(0))._replace(index=jnp.arange(8))
    error = random.normal(size=(8, 2)) * [10.0, 1.0]
    live = FEEDBACK(replay, memory, batch, report(error))
    np.testing.assert_allclose(live.tree.leaves[:8], (np.abs(error) / error.std(0)).sum(1), rtol=1e-3)


def test_the_priority_of_a_sequence_mixes_largest_and_mean_of_its_valid_steps():
    error = jnp.asarray([[1.0, -3.0, 99.0], [2.0, 99.0, 99.0], [99.0, 99.0, 99.0]])
    mask = jnp.asarray([[True, True, False], [True, False, False], [False, False, False]])
    np.testing.assert_allclose(of_sequence(error, mask, 0.9), [0.9 * 3 + 0.1 * 2, 2.0, 0.0], rtol=1e-6)
