"""Whole episodes are handed over once; unfinished ones are carried on, never thrown away."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.replay.episodes import Episodes
from sparring.types import Report, Transition

CAPACITY, STEPS, ROWS = 6, 4, 2
REPLAY = Episodes(CAPACITY)
KEY = jax.random.key(0)


def record(serial: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, mask: np.ndarray) -> Transition:
    """A rollout whose reward is a serial number."""
    reward = jnp.asarray(serial, jnp.float32)
    flags = (jnp.asarray(terminated), jnp.asarray(truncated))
    return Transition(reward[..., None], reward, reward, *flags, reward, (), mask=jnp.asarray(mask))


@jax.jit
def cycle(state, rollout):
    state = REPLAY.add(state, rollout)
    batch = REPLAY.sample(state, KEY)
    state = state._replace(live=REPLAY.feedback(state, batch, Report({})))
    return REPLAY.settle(state), batch


def walk(ends: np.ndarray, lost: np.ndarray) -> list[list[list[int]]]:
    """Per row, the episodes handed over in each iteration, as lists of serial numbers."""
    total = len(ends)
    serial = np.arange(total)[:, None] * 10 + np.arange(ROWS)
    example = jax.eval_shape(lambda: record(serial[:STEPS], ends[:STEPS], lost[:STEPS], ~lost[:STEPS]))
    state, handed = REPLAY.init(example), [[] for _ in range(ROWS)]
    for start in range(0, total, STEPS):
        part = slice(start, start + STEPS)
        state, batch = cycle(state, record(serial[part], ends[part] & ~lost[part], lost[part], ~lost[part]))
        mask, reward = np.asarray(batch.data.mask), np.asarray(batch.data.reward)
        over = np.asarray(batch.data.terminated | batch.data.truncated)
        for b in range(ROWS):
            episode: list[int] = []
            for t in range(len(mask)):
                if mask[t, b]:
                    episode.append(int(reward[t, b]) // 10)
                    if over[t, b]:
                        handed[b].append(episode)
                        episode = []
            assert episode == [], "a part of an episode was handed over"
    return handed


def wanted(ends: np.ndarray, lost: np.ndarray, b: int) -> tuple[list[list[int]], list[list[int]]]:
    """All finished episodes of a row that were not lost: those that fit, and the longer ones."""
    fit, long, episode = [], [], []
    for t in range(len(ends)):
        if lost[t, b]:
            episode = []
            continue
        episode.append(t)
        if ends[t, b]:
            (fit if len(episode) <= CAPACITY else long).append(episode)
            episode = []
    return fit, long


FLAGS = st.lists(
    st.lists(st.sampled_from([0, 0, 0, 1]), min_size=ROWS, max_size=ROWS), min_size=24, max_size=24
)
RARE = st.lists(
    st.lists(st.sampled_from([0] * 9 + [1]), min_size=ROWS, max_size=ROWS), min_size=24, max_size=24
)


@settings(max_examples=60)
@given(FLAGS, RARE)
def test_every_episode_that_fits_is_handed_over_whole_and_once(ends, lost):
    ends, lost = np.array(ends, bool), np.array(lost, bool)
    handed = walk(ends, lost)
    for b in range(ROWS):
        fit, long = wanted(ends, lost, b)
        assert [e for e in handed[b] if len(e) <= CAPACITY] == fit
        assert all(e in long for e in handed[b] if len(e) > CAPACITY), "an episode without its beginning"


@pytest.mark.parametrize("offset", range(STEPS))
def test_an_episode_longer_than_the_capacity_is_dropped_wherever_it_starts(offset):
    ends, none = np.zeros((16, ROWS), bool), np.zeros((16, ROWS), bool)
    if offset:
        ends[offset - 1] = True
    ends[offset + CAPACITY] = True
    handed = walk(ends, none)
    assert all(len(e) <= CAPACITY for row in handed for e in row)


def test_an_episode_across_a_rollouts_end_arrives_with_its_beginning():
    ends = np.zeros((8, ROWS), bool)
    ends[5] = True
    assert walk(ends, np.zeros_like(ends)) == [[[0, 1, 2, 3, 4, 5]]] * ROWS


def test_a_lost_episode_is_never_handed_over():
    ends, lost = np.zeros((8, ROWS), bool), np.zeros((8, ROWS), bool)
    lost[2, 0], ends[6] = True, True
    assert walk(ends, lost)[0] == [[3, 4, 5, 6]]


def test_settling_restores_the_structure_of_a_fresh_state():
    serial, none = np.zeros((STEPS, ROWS)), np.zeros((STEPS, ROWS), bool)
    rollout = record(serial, none, none, ~none)
    fresh = REPLAY.init(jax.eval_shape(lambda: rollout))
    settled = REPLAY.settle(REPLAY.add(fresh, rollout))
    shapes = [jax.tree.map(lambda x: (x.shape, x.dtype), s) for s in (fresh, settled)]
    assert shapes[0] == shapes[1]
