"""The ring: nothing unwritten, nothing across an end, nothing lost, nothing twice."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sparring.algos.dqn import DQNConfig
from sparring.ops.returns import n_step
from sparring.replay.offpolicy import warming_up
from sparring.replay.prioritised import Prioritised
from sparring.replay.ring import Ring, predicted_bytes
from sparring.replay.ring import filled as share
from sparring.types import Memory, Replay, Transition

T, B = 4, 3


def rollout(start: int, random: np.random.Generator, masked: bool = False, ends: float = 0.2) -> Transition:
    """T steps of B rows whose observation names the decision: 1000 · row + number of the entry."""
    number = start + np.arange(T)[:, None] + np.zeros((1, B), int)
    name = (1000 * np.arange(B) + number).astype(np.float32)
    over = random.random((T, B)) < ends
    terminated = over & (random.random((T, B)) < 0.5)
    mask = random.random((T, B)) < 0.6 if masked else None
    if mask is not None:
        terminated &= mask
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


class Model:
    """What the ring should hold, as lists of (name, terminated, truncated) per row."""

    def __init__(self) -> None:
        self.rows: list[list[list[Any]]] = [[] for _ in range(B)]

    def add(self, part: Transition) -> None:
        mask = np.ones((T, B), bool) if part.mask is None else part.mask
        for t in range(T):
            for b, row in enumerate(self.rows):
                if mask[t, b]:
                    row.append(
                        [float(part.reward[t, b]), bool(part.terminated[t, b]), bool(part.truncated[t, b])]
                    )
                elif part.truncated[t, b] and row:
                    row[-1][2] = not row[-1][1]


ADD, SAMPLE, READY = (jax.jit(f, static_argnums=0) for f in (Ring.add, Ring.sample, Ring.ready))
N_STEP = jax.jit(n_step)


def filled(ring: Ring, parts: list[Transition]) -> Any:
    state = ring.init(jax.tree.map(jnp.asarray, parts[0]))
    for part in parts:
        state = ADD(ring, state, jax.tree.map(jnp.asarray, part))
    return state


@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 9),
    n=st.sampled_from([1, 3]),
    capacity=st.sampled_from([1, 60]),
    masked=st.booleans(),
)
def test_windows_are_the_newest_decisions_of_one_row_in_order(seed, count, n, capacity, masked):
    random = np.random.default_rng(seed)
    parts = [rollout(T * i, random, masked) for i in range(count)]
    ring = Ring(capacity, 64, n)
    state, model = filled(ring, parts), Model()
    for part in parts:
        model.add(part)
    size = ring.steps(T, B)
    held = [row[-size:] for row in model.rows]
    windows = [max(len(row) - n + 1, 0) for row in held]
    assert bool(READY(ring, state)) == (sum(windows) > 0)
    if not sum(windows):
        return
    batch = SAMPLE(ring, state, jax.random.key(seed))
    names = np.asarray(batch.data.reward)
    known = {}
    for row in held:
        for i in range(max(len(row) - n + 1, 0)):
            known[row[i][0]] = row[i : i + n]
    for i in range(len(names)):
        wanted = known[float(names[i, 0])]
        got = [
            [*step]
            for step in zip(
                names[i],
                *(np.asarray(x)[i] for x in (batch.data.terminated, batch.data.truncated)),
                strict=True,
            )
        ]
        assert got == wanted
        np.testing.assert_array_equal(batch.data.next_obs[i, :, 0], names[i] + 0.5)


def test_every_decision_is_equally_likely_also_when_rows_hold_different_numbers():
    random = np.random.default_rng(0)
    parts = [rollout(T * i, random, masked=True) for i in range(5)]
    ring = Ring(1000, 4000)
    state = filled(ring, parts)
    drawn = np.asarray(SAMPLE(ring, state, jax.random.key(1)).data.reward).reshape(-1)
    names, counts = np.unique(drawn, return_counts=True)
    assert len(names) == int(state.data.written.sum())
    assert len(set(np.asarray(state.data.written).tolist())) > 1
    assert stats.chisquare(counts).pvalue > 1e-4


def test_it_is_ready_from_the_minimum_on():
    random = np.random.default_rng(0)
    ring = Ring(100, 4, minimum=T * B + 1)
    one = rollout(0, random)
    assert not bool(READY(ring, filled(ring, [one])))
    assert bool(READY(ring, filled(ring, [one, rollout(T, random)])))
    assert isinstance(ring, Replay)


def test_it_stays_ready_when_steps_outgrow_32_bits():
    ring = Ring(100, 4, minimum=1000)
    store = filled(ring, [rollout(0, np.random.default_rng(0))]).data
    many = store._replace(written=jnp.full(B, 2**31 - 1, jnp.int32))
    assert bool(READY(ring, Memory(many)))
    config = DQNConfig(learning_starts=1000, train_freq=4)
    for iteration, random in ((0, True), (1, True), (2, False), (2**31 - 1, False)):
        assert bool(warming_up(config, jnp.int32(iteration), 128)) is random


@pytest.mark.parametrize("masked", [False, True])
def test_the_share_that_is_filled_counts_decisions(masked):
    ring, model, random = Ring(5 * T * B, 4), Model(), np.random.default_rng(1)
    parts = [rollout(i * T, random, masked) for i in range(7)]
    for count in range(1, 8):
        model.add(parts[count - 1])
        held = sum(min(len(row), 5 * T) for row in model.rows)
        assert float(share(filled(ring, parts[:count]).data)) == pytest.approx(held / (5 * T * B))


def test_the_predicted_bytes_are_the_bytes():
    part = rollout(0, np.random.default_rng(0))
    ring = Ring(12 * T * B, 4)
    state = filled(ring, [part])
    assert sum(x.nbytes for x in jax.tree.leaves(state.data.data)) == predicted_bytes(part, 12 * T * B)


def by_definition(reward, terminated, truncated, gamma, lasted):
    total, discount = 0.0, 1.0
    for k in range(len(reward)):
        total += discount * reward[k]
        discount *= gamma ** lasted[k]
        if terminated[k]:
            return total, 0.0, k
        if truncated[k]:
            return total, discount, k
    return total, discount, len(reward) - 1


@given(
    seed=st.integers(0, 10**6), n=st.sampled_from([1, 2, 5]), gamma=st.floats(0.0, 1.0), timed=st.booleans()
)
def test_n_step_is_its_definition(seed, n, gamma, timed):
    random = np.random.default_rng(seed)
    reward = random.normal(size=(8, n)).astype(np.float32)
    over = random.random((8, n)) < 0.3
    terminated = over & (random.random((8, n)) < 0.5)
    elapsed = random.integers(1, 4, (8, n)) if timed else None
    got = N_STEP(
        jnp.asarray(reward),
        jnp.asarray(terminated),
        jnp.asarray(over & ~terminated),
        jnp.float32(gamma),
        None if elapsed is None else jnp.asarray(elapsed),
    )
    lasted = np.ones((8, n)) if elapsed is None else elapsed
    for i in range(8):
        total, discount, last = by_definition(
            reward[i], terminated[i], (over & ~terminated)[i], gamma, lasted[i]
        )
        assert int(got.last[i]) == last
        assert float(got.reward[i]) == pytest.approx(total, rel=1e-4, abs=1e-5)
        assert float(got.discount[i]) == pytest.approx(discount, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("kind", [Ring, Prioritised])
def test_adding_copies_nothing_large(kind, rows):
    places = 50_000
    replay = kind(places * rows, 4, n_step=2)
    numbers = np.zeros((2, rows), np.float32)
    example = Transition(
        obs=numbers,
        action=numbers,
        reward=numbers,
        terminated=numbers > 0,
        truncated=numbers > 0,
        next_obs=numbers,
        extras=(),
        first=numbers > 0,
    )
    memory = jax.eval_shape(replay.init, example)
    program = jax.jit(replay.add, donate_argnums=0).lower(memory, example).compile().as_text()
    large = [line for line in program.splitlines() if " copy(" in line and str(places)[:4] in line]
    assert "dynamic-update-slice" in program
    assert large == []
