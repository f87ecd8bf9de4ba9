"""One index per row and episode, credited with the whole return."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import differences, quick
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring import actor
from sparring.bandit import Controller, Coordinate, Space, make
from sparring.errors import ConfigError

SPACE = Space((Coordinate.interval("tau", 0.0, 50.0, 5), Coordinate.discrete("n", [1, 3, 5])))
ROWS, STEPS = 4, 24


@cache
def controller(scope: Any = "shared") -> tuple[Controller, Any, Any]:
    tasks = (0, 1, 0, 1) if scope == "task" else ()
    made = Controller(make("thompson", SPACE, warm_up=4), scope, tasks)
    return made, quick(made.start, static_argnums=1), quick(made.turn)


def none() -> jax.Array:
    return jnp.zeros(ROWS, bool)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=10)
def test_an_index_lasts_a_whole_episode_and_earns_its_whole_return(seed):
    _, start, turn = controller()
    random = np.random.default_rng(seed)
    control = start(jax.random.key(seed), ROWS)
    total, episodes = np.zeros(ROWS), []
    for t in range(STEPS):
        reward = random.integers(-4, 5, ROWS).astype(np.float32)
        ended, lost = random.random((2, ROWS)) < [[0.2], [0.1]]
        before, control = control, turn(control, reward, ended, lost, jax.random.key(t))
        total += np.where(lost, 0, reward)
        over = ended | lost
        episodes += [total[i] for i in np.flatnonzero(ended & ~lost)]
        total[over] = 0
        np.testing.assert_array_equal(control.total, total)
        kept = ~over
        assert (
            differences(
                jax.tree.map(lambda x, kept=kept: x[kept], control.choice),
                jax.tree.map(lambda x, kept=kept: x[kept], before.choice),
            )
            == []
        )
        assert (np.asarray(control.choice.point != before.choice.point)[over, 0]).all()
        if not (ended & ~lost).any():
            assert differences(control.state, before.state) == []
    pool = control.state.pool
    assert sorted(np.asarray(pool.returns)[: int(pool.held)].tolist()) == sorted(episodes)


def test_the_old_index_is_credited_not_the_new_one():
    _, start, turn = controller()
    control = start(jax.random.key(0), ROWS)
    acted = np.asarray(control.choice.cell)
    control = turn(control, jnp.ones(ROWS), ~none(), none(), jax.random.key(1))
    for c in range(2):
        wanted = np.bincount(acted[:, c], minlength=5)[:5]
        np.testing.assert_allclose(control.state.pulls[c], wanted, rtol=1e-5)


def test_the_table_of_returns_is_the_mean_of_what_was_played_in_a_cell():
    made, start, turn = controller()
    control, random = start(jax.random.key(0), ROWS), np.random.default_rng(0)
    assert not any(x.any() for n, x in made.report(control).items() if n.startswith("bandit/return/"))
    played: list[tuple[np.ndarray, float]] = []
    weights: list[float] = []
    for t in range(STEPS):
        reward = random.normal(size=ROWS).astype(np.float32)
        reward[0] = np.inf if t == 3 else reward[0]
        ended, lost = random.random((2, ROWS)) < [[0.6], [0.2]]
        returns = np.asarray(control.total) + reward
        counted = ended & ~lost & np.isfinite(returns)
        weights = [w * math.exp(-counted.sum() / 500) for w in weights] + [1.0] * int(counted.sum())
        played += [(np.asarray(control.choice.cell[i]), returns[i]) for i in np.flatnonzero(counted)]
        control = turn(control, reward, ended, lost, jax.random.key(t))
    told = made.report(control)
    overall = np.average([r for _, r in played], weights=weights)
    for c, (name, cells) in enumerate(zip(SPACE.names, SPACE.cells, strict=True)):
        for cell in range(cells):
            mine = [(w, r) for w, (where, r) in zip(weights, played, strict=True) if where[c] == cell]
            mean = sum(w * r for w, r in mine) / sum(w for w, _ in mine) if mine else overall
            assert float(told[f"bandit/return/{name}"][cell]) == pytest.approx(mean, rel=1e-4)


def test_without_lost_rows_none_may_be_given():
    _, start, turn = controller()
    control = start(jax.random.key(0), ROWS)
    ended = jnp.array([True, False, True, False])
    a, b = (turn(control, jnp.ones(ROWS), ended, lost, jax.random.key(1)) for lost in (None, none()))
    assert differences(a, b) == []


@pytest.mark.parametrize("scope", ["row", "task"])
def test_a_row_or_task_learns_from_its_own_episodes_alone(scope):
    made, start, turn = controller(scope)
    own = np.arange(ROWS) if scope == "row" else np.asarray(made.tasks)
    control = start(jax.random.key(0), ROWS)
    bandits = own.max() + 1
    assert control.choice.cell.shape == (ROWS, 2)
    for t, row in enumerate([2, 2, 3, 2]):
        before, control = (
            control,
            turn(control, jnp.ones(ROWS), none().at[row].set(True), None, jax.random.key(t)),
        )
        for bandit in range(bandits):
            old, new = (jax.tree.map(lambda x, bandit=bandit: x[bandit], c.state) for c in (before, control))
            changed = differences(old, new)
            assert bool(changed) == (bandit == own[row])
    held = np.zeros(bandits)
    np.add.at(held, own[[2, 2, 3, 2]], 1)
    assert np.asarray(control.state.pool.held).tolist() == held.tolist()
    told = quick(made.report)(control)
    assert float(told["bandit/effective_pulls"]) == pytest.approx(4 / bandits, rel=1e-2)
    assert told["bandit/mean/tau"].shape == (5,)


def test_rows_with_their_own_bandits_start_apart():
    _, start, _ = controller("row")
    points = np.asarray(start(jax.random.key(5), ROWS).choice.point)
    assert len(np.unique(points[:, 0])) == ROWS


def test_it_runs_inside_a_scan_of_several_seeds():
    made, _, _ = controller()

    def run(key: jax.Array) -> Any:
        def step(control: Any, key: jax.Array) -> tuple[Any, jax.Array]:
            ended = control.total >= 3.0
            return made.turn(control, jnp.ones(ROWS), ended, None, key), control.choice.point

        return jax.lax.scan(step, made.start(key, ROWS), jax.random.split(key, 8))

    control, points = quick(jax.vmap(run))(jax.random.split(jax.random.key(0), 2))
    changes = (np.diff(np.asarray(points), axis=1) != 0).any(axis=-1)  # [seeds, 7, rows]
    assert changes[:, 3].all()
    assert changes.sum() == changes[:, 3].sum()
    assert np.asarray(control.state.pool.held).tolist() == [8, 8]


@pytest.mark.parametrize(
    ("name", "scope", "tasks", "says"),
    [
        ("uniform", "rows", (), "'shared', 'row' or 'task'"),
        ("uniform", "task", (), "task of every row"),
        ("uniform", "shared", (0, 1), "no other scope"),
        ("uniform", "task", (0, -1), "numbers from 0"),
        ("ladder", "row", (), "its own place already"),
    ],
)
def test_what_cannot_control_says_why(name, scope, tasks, says):
    with pytest.raises(ConfigError, match=says):
        Controller(make(name, SPACE), scope, tasks)


def test_tasks_must_be_given_for_every_row():
    with pytest.raises(ConfigError, match="4 rows, but tasks were given for 2"):
        Controller(make("uniform", SPACE), "task", (0, 1)).start(jax.random.key(0), 4)


def test_the_signal_beside_the_evenness_is_of_the_same_coordinate():
    told = {"tau": (0.02, 0.3), "eps": (0.9, 8.0)}
    metrics = {
        f"bandit/{kind}/{n}": jnp.float32(by * e)
        for n, (e, _) in told.items()
        for kind, by in (("entropy", 0.5), ("undecided", 1.0))
    }
    metrics |= {f"bandit/signal/{n}": jnp.float32(s) for n, (_, s) in told.items()}
    found = actor._narrowest(metrics)
    numbers = [float(found[f"bandit/{name}"]) for name in ("entropy", "undecided", "snr")]
    assert numbers == pytest.approx([0.01, 0.02, 0.3])
    assert actor._narrowest({}) == {}


def test_a_loop_of_ones_own_finds_the_opponent_whose_games_are_close():
    """As docs/bandits.md shows it: of three opponents two win or lose clearly, one plays even."""
    space = Space((Coordinate.discrete("opponent", [0, 1, 2]),))
    controller = Controller(make("thompson", space, memory=300, pool=64))
    control = quick(controller.start, static_argnums=1)(jax.random.key(0), 8)
    turn, random, chosen = quick(controller.turn), np.random.default_rng(0), []
    for step in range(600):
        opponent = np.asarray(control.choice.point[:, 0]).astype(int)
        score = np.array([0.9, 0.0, -0.9])[opponent] + random.normal(0.0, 0.2, 8)
        ended = random.random(8) < 0.3
        close = np.where(ended, 1.0 - np.abs(score), 0.0).astype(np.float32)
        control = turn(control, close, ended, None, jax.random.key(step))
        chosen.append(opponent[ended])
    late = np.concatenate(chosen[300:])
    assert np.mean(late == 1) > 0.8
    assert set(late) == {0, 1, 2}  # the floor keeps looking
