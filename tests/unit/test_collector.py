"""The collector: every step comes out once, and every finished episode is credited to its own index."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparring.bandit.api import Choice
from sparring.bandit.control import Control
from sparring.drivers.acting import decode, encode
from sparring.drivers.collector import Chunk, Collector, credits
from sparring.envs.api import MOST_NUMBERS
from sparring.envs.infos import InfoTally
from sparring.types import TimeStep

ALL_ROWS, FIRST, ROWS, T, CHUNKS = 7, 2, 3, 5, 12


def turn(control: Control, reward: Any, ended: Any, lost: Any, key: Any) -> Control:
    """A bandit whose indices count up, so that each episode of a row has another."""
    cell = np.where(ended[:, None], control.choice.cell + 1, control.choice.cell)
    told = [
        (row, float(control.total[row]), int(control.choice.cell[row, 0]))
        for row in np.flatnonzero(ended & ~lost)
    ]
    total = np.where(ended, 0, control.total)
    return Control([*control.state, *told], Choice(cell, cell.astype(np.float32) / 8), total)


def test_what_random_actions_earn_is_stored_and_told_to_no_bandit() -> None:
    cell: Any = np.zeros((ROWS, 1), np.int32)
    start = Control([], Choice(cell, cell.astype(np.float32)), np.zeros(ROWS, np.float32))
    collector = Collector(4, 0, ROWS, start, turn)
    obs, still, ones = np.zeros((ROWS, 1), np.float32), np.zeros(ROWS, bool), np.ones(ROWS, np.float32)
    state = collector.begin(TimeStep(obs, 0 * ones, still, still, obs), ())
    for t in range(4):
        step = TimeStep(obs, ones, ~still if t in (1, 3) else still, still, obs)
        key = np.zeros(2, np.uint32)
        state, chunk = collector.step(state, np.zeros(ROWS), None, (), step, t, key, random=t == 0)
    assert chunk is not None
    np.testing.assert_array_equal(chunk.rollout.reward, np.ones((4, ROWS)))
    np.testing.assert_array_equal(chunk.total[:, 0], [np.nan, np.nan, 1.0, 2.0])


def played(seed: int) -> tuple[list[Any], list[TimeStep], Collector]:
    """Chunks of a made-up world: ends, cuts and losses at random, rewards that name their step."""
    random = np.random.default_rng(seed)
    cell: Any = np.zeros((ALL_ROWS, 1), np.int32)
    start = Control([], Choice(cell, cell.astype(np.float32)), np.zeros(ALL_ROWS, np.float32))
    collector = Collector(T, FIRST, ROWS, start, turn)
    obs = np.zeros((ROWS, 1), np.float32)
    still = np.zeros(ROWS, bool)
    state = collector.begin(TimeStep(obs, np.zeros(ROWS, np.float32), still, still, obs), ())
    chunks, steps = [], []
    for t in range(T * CHUNKS):
        end = random.random(ROWS) < 0.2
        cut = ~end & (random.random(ROWS) < 0.1)
        lost = ~end & ~cut & (random.random(ROWS) < 0.1) if t % 2 else None
        reward = (1000 * np.arange(ROWS) + t).astype(np.float32)
        seen = np.full((ROWS, 1), t + 1, np.float32)
        step = TimeStep(seen, reward, end, cut, seen + 0.5, lost=lost)
        steps.append(step)
        action = np.full(ROWS, t)
        state, chunk = collector.step(state, action, None, (), step, version=t, key=np.zeros(2, np.uint32))
        if chunk is not None:
            chunks.append(chunk)
    return chunks, steps, collector


@pytest.mark.parametrize("seed", range(5))
def test_every_step_comes_out_once(seed: int) -> None:
    chunks, steps, _ = played(seed)
    assert len(chunks) == CHUNKS
    none = np.zeros(ROWS, bool)
    lost = np.stack([none if s.lost is None else s.lost for s in steps])

    def joined(name: str) -> np.ndarray:
        return np.concatenate([getattr(chunk.rollout, name) for chunk in chunks])

    assert np.array_equal(joined("action")[:, 0], np.arange(T * CHUNKS))
    assert np.array_equal(joined("reward"), np.stack([s.reward for s in steps]))
    assert np.array_equal(joined("mask"), ~lost)
    assert np.array_equal(joined("obs")[:, 0, 0], np.arange(T * CHUNKS))
    assert np.array_equal(joined("next_obs")[:, 0, 0], np.arange(T * CHUNKS) + 1.5)
    ends = np.stack([s.terminated | s.truncated for s in steps]) | lost
    assert np.array_equal(joined("terminated") | joined("truncated"), ends)
    assert np.array_equal(joined("first"), np.concatenate([np.ones((1, ROWS), bool), ends[:-1]]))
    assert [int(chunk.version) for chunk in chunks] == list(range(0, T * CHUNKS, T))


@pytest.mark.parametrize("seed", range(5))
def test_finished_episodes_are_credited_once_to_the_index_they_had(seed: int) -> None:
    chunks, steps, collector = played(seed)
    expected, total, index = [], np.zeros(ROWS, np.float32), np.zeros(ROWS, int)
    for step in steps:
        lost = np.zeros(ROWS, bool) if step.lost is None else step.lost
        total += np.where(lost, 0, step.reward)
        for row in range(ROWS):
            if step.terminated[row] or step.truncated[row]:
                expected.append((FIRST + row, float(total[row]), int(index[row])))
            if step.terminated[row] or step.truncated[row] or lost[row]:
                total[row], index[row] = 0, index[row] + 1

    learner = [
        (row, float(credit.returns[row]), int(credit.choice.cell[row, 0]))
        for chunk in chunks
        for credit in credits(chunk, FIRST, ALL_ROWS)
        for row in np.flatnonzero(credit.mask)
    ]
    assert sorted(learner) == sorted(expected)
    assert collector.control is not None
    assert collector.control.state == expected  # the actor's own copy of the bandit hears the same
    for chunk in chunks:
        assert np.array_equal(chunk.rollout.point[..., 0], chunk.cell[..., 0] / np.float32(8))


def test_the_others_rows_keep_their_indices() -> None:
    _, _, collector = played(0)
    assert collector.control is not None
    cell = np.asarray(collector.control.choice.cell)[:, 0]
    assert np.all(cell[:FIRST] == 0)
    assert np.all(cell[FIRST + ROWS :] == 0)
    assert np.all(cell[FIRST : FIRST + ROWS] > 0)


def test_numbers_of_infos_travel_with_a_chunk_and_are_merged() -> None:
    none, names = np.zeros(2, bool), ["a/b%2F é", *(f"n{i}" for i in range(MOST_NUMBERS + 5))]
    step = TimeStep(None, np.zeros(2), none, none, None)
    actor, learner = InfoTally(2, MOST_NUMBERS + 1), InfoTally(4)
    actor.add([dict.fromkeys(names, 1.0), {names[0]: 10.0}], step)
    assert actor.ended() == {}
    actor.add([dict.fromkeys(names, 3.0), {}], step._replace(terminated=~none))
    zero = np.zeros(1)
    chunk = Chunk(None, zero, None, zero, zero, {})  # type: ignore[arg-type]
    ended = decode(chunk, encode(chunk._replace(infos=actor.ended())), "a chunk").infos
    assert ended[names[0]].tolist() == [[4.0, 2.0, 3.0], [10.0, 10.0, 10.0]]
    assert actor.ended() == {}
    learner.merge(ended)
    found = learner.metrics()
    assert found[f"env/{names[0]}_sum"] == 7.0
    assert found["env/n0_mean"] == 2.0
    assert len(found) == 3 * MOST_NUMBERS
    assert f"more than {MOST_NUMBERS} numbers" in learner.events()[0]
