"""What holds for every selector, and the definitions of each."""

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
from sparring.bandit import SELECTORS, Choice, Coordinate, Selector, Space, make
from sparring.bandit.pool import Pool
from sparring.bandit.regions import Regions
from sparring.bandit.thompson import Thompson, ThompsonState, posterior
from sparring.bandit.tiles import Tiles, tile_scores
from sparring.bandit.ucb import SlidingWindowUCB
from sparring.errors import ConfigError
from sparring.runs import tensors, tree

SPACE = Space(
    (
        Coordinate.interval("tau", 0.1, 50.0, 5, log=True),
        Coordinate.interval("eps", 0.0, 1.0, 4),
        Coordinate.discrete("n", [1, 3, 5]),
    )
)
ROWS = 8
KEY = jax.random.key(0)
OPTIONS: dict[str, dict[str, Any]] = {
    "thompson": {"pool": 50, "warm_up": 10},
    "sw_ucb": {"window": 50, "arms": 12},
    "gdi_tiles": {"pool": 50, "warm_up": 10},
    "gdi_tiles_faithful": {},
    "lbc_regions": {"pool": 50, "warm_up": 10, "lifetime": 70},
    "fixed": {"point": (1.0, 0.5, 3.0)},
}
LEARNERS = ("thompson", "sw_ucb", "gdi_tiles", "gdi_tiles_faithful", "lbc_regions")


@cache
def built(name: str) -> tuple[Selector, Any, Any, Any]:
    selector = make(name, SPACE, **OPTIONS.get(name, {}))
    select, update, init = (
        quick(selector.select, static_argnums=2),
        quick(selector.update),
        quick(selector.init),
    )
    return selector, select, update, init


@cache
def trained(name: str) -> Any:
    """A state after 30 steps in a world where a low cell of every coordinate is good."""
    _, select, update, init = built(name)
    state, random = init(jax.random.key(0)), np.random.default_rng(0)
    for t in range(30):
        choice = select(state, jax.random.key(t), ROWS)
        returns = -choice.cell.sum(axis=1) + jnp.asarray(random.normal(size=ROWS), jnp.float32)
        state = update(state, choice, returns, jnp.asarray(random.random(ROWS) < 0.7))
    return state


def batch(seed: int) -> tuple[Choice, jax.Array, jax.Array]:
    random = np.random.default_rng(seed)
    cell = jnp.asarray(random.integers(0, SPACE.cells, (ROWS, 3)), jnp.int32)
    returns = jnp.asarray(random.integers(-3, 3, ROWS), jnp.float32)  # with ties
    choice = Choice(cell, SPACE.points(cell, jnp.full((ROWS, 3), 0.5)))
    return choice, returns, jnp.asarray(random.random(ROWS) < 0.6)


def known(name: str, seed: int) -> tuple[Choice, jax.Array, jax.Array]:
    """A batch whose cells are arms where only arms count."""
    choice, returns, mask = batch(seed)
    state = trained(name)
    if name == "sw_ucb":
        choice = choice._replace(cell=state.arms[jnp.asarray(choice.cell[:, 0] * 2 + choice.cell[:, 2] % 2)])
    return choice, returns, mask


@pytest.mark.parametrize("name", SELECTORS)
def test_choices_are_cells_of_the_table_and_points_in_them(name):
    selector, select, _, init = built(name)
    assert isinstance(selector, Selector)
    for state in (init(jax.random.key(1)), trained(name)):
        choice = select(state, jax.random.key(2), ROWS)
        assert choice.cell.shape == choice.point.shape == (ROWS, 3)
        assert (choice.cell >= 0).all()
        assert (choice.cell < jnp.asarray(SPACE.cells)).all()
        assert (SPACE.cell_of(choice.point) == choice.cell).all()


@pytest.mark.parametrize("name", SELECTORS)
def test_with_no_row_to_count_nothing_changes(name):
    _, _, update, _ = built(name)
    state = trained(name)
    choice, returns, mask = known(name, 3)
    assert differences(update(state, choice, returns, jnp.zeros(ROWS, bool)), state) == []
    assert differences(update(state, choice, returns * jnp.nan, mask), state) == []
    assert differences(update(state, choice, returns, jnp.ones(ROWS, bool)), state) != []


@pytest.mark.parametrize("name", SELECTORS)
def test_rows_that_do_not_count_change_nothing(name):
    _, _, update, _ = built(name)
    state = trained(name)
    choice, returns, mask = known(name, 4)
    junk, others, _ = known(name, 5)
    mixed = jax.tree.map(lambda a, b: jnp.where(mask[:, None], a, b), choice, junk)
    after = update(state, choice, returns, mask)
    assert differences(update(state, mixed, jnp.where(mask, returns, others * 100), mask), after) == []
    assert differences(update(state, mixed, jnp.where(mask, returns, jnp.inf), mask | True), after) == []


@pytest.mark.parametrize("name", SELECTORS)
def test_the_order_of_rows_does_not_matter(name):
    _, _, update, _ = built(name)
    one = two = trained(name)
    for seed in range(6, 16):  # enough to overwrite a part of a batch in the pool
        choice, returns, mask = known(name, seed)
        order = np.random.default_rng(seed).permutation(ROWS)
        shuffled = jax.tree.map(lambda x, order=order: x[order], (choice, returns, mask))
        one, two = update(one, choice, returns, mask), update(two, *shuffled)
        assert differences(one, two) == []


@pytest.mark.parametrize("name", SELECTORS)
def test_saved_and_loaded_it_selects_the_same(name):
    selector, select, update, _ = built(name)
    state = trained(name)
    stored = b"".join(bytes(piece) for piece in tensors.encode(tree.flatten(state)))
    template = jax.eval_shape(selector.init, jax.random.key(0))
    loaded = tree.unflatten(template, tensors.decode(stored, "bandit"))
    assert differences(loaded, state) == []
    for seed in range(3):
        key = jax.random.key(seed)
        assert differences(select(loaded, key, ROWS), select(state, key, ROWS)) == []
        loaded, state = (update(s, *known(name, seed)) for s in (loaded, state))


@pytest.mark.parametrize("name", SELECTORS)
def test_it_works_inside_a_scan_of_several_seeds(name):
    selector, _, _, _ = built(name)

    def run(key: jax.Array) -> Any:
        def step(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
            choice = selector.select(state, key, 4)
            returns = choice.point.sum(axis=1)
            return selector.update(state, choice, returns, returns > 1.0), choice.cell

        return jax.lax.scan(step, selector.init(key), jax.random.split(key, 3))

    states, cells = quick(jax.vmap(run))(jax.random.split(jax.random.key(0), 2))
    assert cells.shape == (2, 3, 4, 3)
    assert jax.tree.structure(states) == jax.tree.structure(selector.init(jax.random.key(0)))


@pytest.mark.parametrize("name", [*LEARNERS, "uniform"])
def test_the_reported_probabilities_are_those_of_the_choices(name):
    selector, select, _, _ = built(name)
    state = trained(name)
    told = quick(selector.report)(state)
    assert all(np.isfinite(value).all() for value in told.values())
    if name == "sw_ucb":  # it tells what a single row would do
        seeds = jax.random.split(jax.random.key(9), 20_000)
        draws = np.asarray(quick(jax.vmap(lambda key: selector.select(state, key, 1).cell[0]))(seeds))
    else:
        draws = np.asarray(select(state, jax.random.key(9), 20_000).cell)
    for c, (axis, cells) in enumerate(zip(SPACE.names, SPACE.cells, strict=True)):
        chance = np.asarray(told[f"bandit/probability/{axis}"])
        seen = np.bincount(draws[:, c], minlength=cells) / len(draws)
        assert chance.sum() == pytest.approx(1, abs=1e-4)
        np.testing.assert_allclose(chance, seen, atol=5 * 0.5 / math.sqrt(len(draws)))
        entropy = -(chance * np.log(np.maximum(chance, 1e-30))).sum() / np.log(cells)
        assert float(told[f"bandit/entropy/{axis}"]) == pytest.approx(entropy, abs=1e-4)
        if name in LEARNERS:
            for part in ("mean", "sd", "pulls"):
                assert told[f"bandit/{part}/{axis}"].shape == (cells,)
            assert float(told[f"bandit/pulls/{axis}"].sum()) == pytest.approx(
                float(told["bandit/effective_pulls"]), rel=1e-4
            )


@pytest.mark.parametrize("name", LEARNERS)
def test_rows_draw_for_themselves(name):
    _, select, _, init = built(name)
    state = init(jax.random.key(0))
    cells = np.concatenate([select(state, jax.random.key(i), ROWS).cell for i in range(4)])
    assert len(np.unique(cells, axis=0)) > 8


# Thompson


def oracle(returns: np.ndarray, pool: list[float], warm_up: int) -> np.ndarray:
    """Scores by the definition: √12 (mid-rank in the pool − ½)."""
    if len(pool) < warm_up:
        return np.zeros(len(returns))
    held = np.asarray(pool)
    rank = [((held < g).sum() + 0.5 * (held == g).sum()) / len(held) for g in returns]
    return math.sqrt(12) * (np.asarray(rank) - 0.5)


def test_thompson_sums_what_its_definition_sums():
    _, _, update, init = built("thompson")
    state, pool = init(jax.random.key(0)), []
    score, pulls = np.zeros((2, 3, 5))
    for seed in range(20):
        choice, returns, mask = batch(seed)
        counted = np.flatnonzero(mask)
        y = oracle(np.asarray(returns)[counted], pool[-50:] if len(pool) <= 50 else held(state), 10)
        score, pulls = (x * math.exp(-len(counted) / 1500) for x in (score, pulls))
        for row, value in zip(counted, y, strict=True):
            for c in range(3):
                score[c, choice.cell[row, c]] += value
                pulls[c, choice.cell[row, c]] += 1
        pool += np.asarray(returns)[counted].tolist()
        state = update(state, choice, returns, mask)
        assert sorted(held(state)) == sorted(pool) or len(pool) > 50
    assert len(held(state)) == 50
    np.testing.assert_allclose(state.score, score, atol=1e-4)
    np.testing.assert_allclose(state.pulls, pulls, atol=1e-4)
    mean, sd = posterior(state)
    np.testing.assert_allclose(mean, score / (pulls + 1), atol=1e-4)
    np.testing.assert_allclose(sd, 1 / np.sqrt(pulls + 1), atol=1e-5)


def held(state: Any) -> list[float]:
    pool: Pool = state.pool
    return np.asarray(pool.returns)[: int(pool.held)].tolist()


def test_thompson_draws_from_the_posterior_and_floors_each_coordinate_by_itself():
    space = Space(tuple(Coordinate.interval(name, 0, 1, 2) for name in "ab"))
    blank = Thompson(space).init(jax.random.key(0))
    # The second cell is 1 apart at posterior variances of 1 / 10: it wins with Φ(√5 / spread).
    state = blank._replace(score=jnp.array([[-5.0, 5.0], [-5.0, 5.0]]), pulls=jnp.full((2, 2), 9.0))
    for floor, spread, chance in ((0.0, 4.0, 0.71194), (0.1, 1e-6, 0.95), (0.1, 4.0, 0.9 * 0.71194 + 0.05)):
        selector = Thompson(space, floor=floor, spread=spread)
        cell = np.asarray(quick(selector.select, static_argnums=2)(state, jax.random.key(1), 40_000).cell)
        assert cell.mean(axis=0) == pytest.approx(chance, abs=0.01)
        assert (cell[:, 0] & cell[:, 1]).mean() == pytest.approx(chance**2, abs=0.01)


@pytest.mark.parametrize(("cells", "decided"), [(3, False), (10, True), (60, False)])
def test_thompson_says_how_often_a_cell_is_chosen(cells, decided):
    """Against draws, for posteriors as a bandit has them early and late, and cells that nobody pulled."""
    space = Space((Coordinate.interval("a", 0, 1, cells), Coordinate.interval("b", 0, 1, 2)))
    selector, random = Thompson(space, floor=0.0), np.random.default_rng(cells)
    blank = selector.init(jax.random.key(0))
    pulls = random.exponential(300.0 if decided else 3.0, blank.pulls.shape) * (
        random.random(blank.pulls.shape) < 0.7
    )
    score = pulls * random.normal(0.0, 0.5, pulls.shape)
    state = blank._replace(score=jnp.float32(score), pulls=jnp.float32(pulls))
    cell = np.asarray(quick(selector.select, static_argnums=2)(state, jax.random.key(1), 40_000).cell)
    told = np.asarray(quick(selector.probability)(state))
    for c, count in enumerate(space.cells):
        np.testing.assert_allclose(
            told[c, :count], np.bincount(cell[:, c], minlength=count) / 40_000, atol=0.012
        )
        assert told[c].sum() == pytest.approx(1.0, abs=1e-5)


@given(seed=st.integers(0, 1000), shift=st.integers(-500, 500), power=st.integers(-6, 6))
@settings(max_examples=15)
def test_thompson_does_not_see_shift_or_scale_of_returns(seed, shift, power):
    _, select, update, init = built("thompson")
    one = two = init(jax.random.key(0))
    for t in range(8):
        a, b = (select(s, jax.random.key(t), ROWS) for s in (one, two))
        assert differences(a, b) == []
        returns = jnp.asarray(np.random.default_rng([seed, t]).integers(-9, 9, ROWS), jnp.float32)
        everyone = jnp.ones(ROWS, bool)
        one = update(one, a, returns, everyone)
        two = update(two, b, (returns + shift) * 2.0**power, everyone)
    assert (one.score != 0).any()


def test_thompson_scores_nothing_before_the_warm_up_and_never_more_than_the_square_root_of_three():
    selector, _, update, init = built("thompson")
    state = init(jax.random.key(0))
    choice, _, _ = batch(0)
    everyone = jnp.ones(ROWS, bool)
    for t in range(2):
        state = update(state, choice, jnp.full(ROWS, float(t)), everyone)
        assert (state.score == 0).all()  # 8 returns are fewer than 10
    after = update(state, choice, jnp.full(ROWS, 99.0), everyone)
    pulled = np.asarray(after.pulls - state.pulls * math.exp(-ROWS / 1500))
    np.testing.assert_allclose(after.score, math.sqrt(3) * pulled, atol=1e-4)
    assert float(quick(selector.report)(after)["bandit/pool_mean"]) == pytest.approx(100 / 3, rel=1e-5)


@pytest.mark.parametrize("name", ["thompson", "gdi_tiles", "lbc_regions"])
def test_a_full_pool_counts_be_it_smaller_than_the_warm_up(name):
    selector = make(name, SPACE, pool=16, warm_up=64)
    state = selector.init(KEY)
    choice = selector.select(state, KEY, ROWS)
    update, everyone = jax.jit(selector.update), jnp.ones(ROWS, bool)
    for filling in range(2):
        state = update(state, choice, jnp.arange(ROWS) + float(filling), everyone)
    low, high = (update(state, choice, jnp.full(ROWS, x), everyone) for x in (-9.0, 9.0))
    assert differences(low._replace(pool=state.pool), high._replace(pool=state.pool))


def test_more_rows_than_the_pool_holds_leave_it_full_and_as_spread():
    selector = Thompson(SPACE, pool=16)
    cell = jnp.zeros((40, 3), jnp.int32)
    state: ThompsonState = quick(selector.update)(
        selector.init(jax.random.key(0)),
        Choice(cell, cell.astype(jnp.float32)),
        jnp.arange(40.0),
        jnp.ones(40, bool),
    )
    assert int(state.pool.held) == 16
    assert len(set(held(state))) == 16
    assert np.mean(held(state)) == pytest.approx(19.5, abs=3)


# Sliding window


@pytest.mark.parametrize("normalise", [True, False])
def test_a_window_holds_exactly_the_last_pulls_and_forgets_the_others(normalise):
    selector = SlidingWindowUCB(SPACE, window=20, arms=6, normalise=normalise)
    update, statistics = quick(selector.update), quick(selector.statistics)
    state, random = selector.init(jax.random.key(0)), np.random.default_rng(0)
    history: list[tuple[int, float]] = []
    for _ in range(25):
        arm, value = random.integers(0, 6, 1), random.normal(size=1).astype(np.float32)
        cell = state.arms[jnp.asarray(arm)]
        state = update(state, Choice(cell, cell.astype(jnp.float32)), jnp.asarray(value), jnp.ones(1, bool))
        history.append((int(arm[0]), float(value[0])))
        window = np.asarray(history[-20:])
        mean, pulls = statistics(state)
        assert pulls.sum() == min(len(history), 20)
        for a in range(6):
            own = window[window[:, 0] == a, 1]
            assert pulls[a] == len(own)
            if len(own):
                spread = window[:, 1].std() or 1.0
                wanted = (own.mean() - window[:, 1].mean()) / spread if normalise else own.mean()
                assert float(mean[a]) == pytest.approx(wanted, abs=1e-4)


def test_arms_absent_from_the_window_come_first():
    selector = SlidingWindowUCB(SPACE, window=20, arms=4, epsilon=0.0)
    state = quick(selector.init)(jax.random.key(0))
    cell = jnp.repeat(state.arms[:3], 2, axis=0)
    state = quick(selector.update)(state, Choice(cell, cell * 1.0), jnp.arange(6.0) * 1e6, jnp.ones(6, bool))
    np.testing.assert_allclose(selector.probability(state, 1), [0, 0, 0, 1], atol=1e-6)
    np.testing.assert_allclose(selector.probability(state, 4), [0, 0, 0.75, 0.25], atol=1e-6)


def test_arms_are_distinct_and_all_of_them_where_there_are_few():
    few = Space((Coordinate.interval("x", 0, 1, 3), Coordinate.interval("y", 0, 1, 2)))
    assert len(np.unique(quick(SlidingWindowUCB(few).init)(jax.random.key(0)).arms, axis=0)) == few.size
    init = quick(SlidingWindowUCB(SPACE, arms=59).init)
    for seed in range(5):
        arms = init(jax.random.key(seed)).arms
        assert len(np.unique(arms, axis=0)) == 59


# Tiles


def test_tile_scores_of_the_reference():
    value, pulls = jnp.array([0.0, 1.0, 3.0]), jnp.array([0.0, 2.0, 5.0])
    score = tile_scores(value, pulls, jnp.ones(3, bool), 1.0)
    np.testing.assert_allclose(score, [0.3730, 0.5653, 1.9250], atol=1e-4)
    safe = tile_scores(value, pulls, pulls > 0, 0.0)
    np.testing.assert_allclose(safe, [0, -1, 1], atol=1e-6)


def test_every_member_moves_the_tile_of_an_episode_towards_its_return():
    selector = Tiles(SPACE, mode="faithful")
    update, state = quick(selector.update), quick(selector.init)(jax.random.key(3))
    cell = jnp.array([[4, 1, 2]])
    mask = jnp.ones(1, bool)
    for n, value in enumerate((-8.0, 4.0), start=1):
        before, state = state, update(state, Choice(cell, cell * 1.0), jnp.array([value]), mask)
        for m in range(selector.members):
            changed = np.flatnonzero(np.asarray(state.pulls[m]))
            assert len(changed) == 1
            assert state.pulls[m].sum() == n
            old = before.value[m, changed[0]]
            new = old + selector.rate[m] * (value - old)
            assert float(state.value[m, changed[0]]) == pytest.approx(float(new), rel=1e-5)


def test_tiles_cover_every_cell_once_whatever_their_offset():
    cell = jnp.stack(jnp.meshgrid(*map(jnp.arange, SPACE.cells), indexing="ij"), axis=-1).reshape(-1, 3)
    selector = Tiles(SPACE, mode="safe", candidates=200)
    select, scores = quick(selector.select, static_argnums=2), quick(selector.scores)
    for seed in range(3):
        state = quick(selector.init)(jax.random.key(seed))
        exists = np.isfinite(np.asarray(scores(state)))
        tile = np.asarray(selector._tile_of(state, cell))
        for m in range(selector.members):
            assert set(tile[m]) == set(np.flatnonzero(exists[m]))
            widest = np.bincount(tile[m]).max()
            assert widest <= selector.width[m] ** 3
        chosen = select(state, jax.random.key(9), 4000).cell
        assert len(np.unique(chosen, axis=0)) == SPACE.size


def test_tiles_have_every_width_and_rate_and_both_modes():
    selector = Tiles(SPACE)
    assert set(selector.width) == {2, 3, 4}
    assert {round(float(r), 2) for r in selector.rate} == {0.05, 0.1, 0.2}
    assert 0 < selector.greedy.sum() < selector.members


# Regions


def test_members_of_regions_are_renewed_in_turn():
    selector = Regions(SPACE, members=3, lifetime=30, warm_up=1)
    update = quick(selector.update)
    state = selector.init(jax.random.key(0))
    cell = jnp.zeros((1, 3), jnp.int32)
    ages = []
    for t in range(60):
        state = update(state, Choice(cell, cell * 1.0), jnp.array([float(t)]), jnp.ones(1, bool))
        ages.append(np.asarray(state.pulls.sum(axis=1)).tolist())
    assert ages[9] == [10, 0, 10] or ages[9] == [10, 10, 0] or ages[9] == [0, 10, 10]
    assert max(max(age) for age in ages) < 30
    assert sorted(ages[-1]) == [0, 10, 20]
    assert {1, 2, 3, 4} >= set(np.asarray(state.parts).ravel().tolist())


# Controls, and names


def test_a_ladder_has_ape_x_epsilons_and_each_row_keeps_its_place():
    space = Space((Coordinate.interval("epsilon", 0.4**9, 0.4, 8, log=True),))
    ladder = make("ladder", space)
    state = ladder.init(jax.random.key(0))
    points = ladder.select(state, jax.random.key(1), 5).point[:, 0]
    np.testing.assert_allclose(points, [0.4 ** (1 + 8 * i / 4) for i in range(5)], rtol=1e-4)
    assert (ladder.select(state, jax.random.key(2), 5).point[:, 0] == points).all()
    wide = make("ladder", SPACE).select(state, jax.random.key(0), 60).cell
    for c, cells in enumerate(SPACE.cells):
        assert np.bincount(np.asarray(wide)[:, c], minlength=cells).min() >= 60 / cells * 0.6


def test_fixed_is_its_point():
    fixed = make("fixed", SPACE, point=(2.0, 0.3, 5.0))
    choice = fixed.select(fixed.init(jax.random.key(0)), jax.random.key(1), 2)
    np.testing.assert_allclose(choice.point, [[2.0, 0.3, 5.0]] * 2)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("tompson", {}, "Did you mean 'thompson'"),
        ("thompson", {"flor": 0.1}, "Did you mean 'floor'"),
        ("uniform", {"floor": 0.1}, "no options"),
        ("gdi_tiles_faithful", {"mode": "safe"}, "no option 'mode'"),
        ("gdi_tiles", {"mode": "brave"}, "'faithful' or 'safe'"),
        ("fixed", {}, "needs a point"),
        ("fixed", {"point": (1.0, math.nan, 3.0)}, "a finite number for each"),
        ("thompson", {"floor": 2.0}, "floor of Thompson must be between 0 and 1, got 2.0"),
        ("thompson", {"memory": -5}, "memory of Thompson must be above 0, got -5"),
        ("thompson", {"memory": math.nan}, "memory of Thompson must be above 0, got nan"),
        ("thompson", {"spread": -1}, "spread of Thompson must be above 0, got -1"),
        ("thompson", {"spread": 0}, "spread of Thompson must be above 0, got 0"),
        ("thompson", {"pool": 0}, "pool of Thompson must be whole and at least 1, got 0"),
        ("thompson", {"warm_up": 0}, "warm_up of Thompson must be whole and at least 1, got 0"),
        ("sw_ucb", {"arms": 0}, "arms of SlidingWindowUCB must be whole and at least 1, got 0"),
        ("sw_ucb", {"window": 0}, "window of SlidingWindowUCB must be"),
        ("sw_ucb", {"epsilon": 1.5}, "epsilon of SlidingWindowUCB must be between 0 and 1, got 1.5"),
        ("sw_ucb", {"beta": -1.0}, "beta of SlidingWindowUCB must be at least 0, got -1.0"),
        ("sw_ucb", {"normalise": 2}, "normalise of SlidingWindowUCB must be"),
        ("gdi_tiles", {"pool": 0}, "pool of Tiles must be whole and at least 1, got 0"),
        (
            "gdi_tiles",
            {"widths": (2, 0)},
            r"widths of Tiles must hold numbers, each .* at least 1, got \(2, 0\)",
        ),
        ("gdi_tiles", {"widths": ()}, "widths of Tiles must hold numbers"),
        ("gdi_tiles", {"rates": (0.1, 3.0)}, "rates of Tiles .* above 0 and at most 1"),
        ("gdi_tiles_faithful", {"rates": (0.0,)}, "rates of Tiles .* above 0 and at most 1"),
        ("gdi_tiles", {"bonus": -1.0}, "bonus of Tiles must be at least 0, got -1.0"),
        ("lbc_regions", {"temperature": 0.0}, "temperature of Regions must be above 0, got 0.0"),
        ("lbc_regions", {"lifetime": 0}, "lifetime of Regions must be whole and at least 1, got 0"),
        ("lbc_regions", {"pool": -3}, "pool of Regions must be"),
        ("lbc_regions", {"parts": (0,)}, "parts of Regions must hold"),
        ("lbc_regions", {"bonuses": (-0.5,)}, "bonuses of Regions must hold"),
    ],
)
def test_what_cannot_be_made_says_why(name, options, says):
    with pytest.raises(ConfigError, match=says):
        make(name, SPACE, **options)


def test_options_at_the_ends_of_their_ranges_work():
    """A memory without end forgets nothing; a floor of 0 and of 1 are probabilities."""
    choice, returns, everyone = batch(0)[0], jnp.arange(float(ROWS)), jnp.ones(ROWS, bool)
    for floor in (0, 1):
        selector = make("thompson", SPACE, memory=math.inf, floor=floor, pool=1, warm_up=1)
        state = selector.init(KEY)
        for _ in range(3):
            state = selector.update(state, choice, returns, everyone)
        np.testing.assert_allclose(state.pulls.sum(axis=1), 3.0 * ROWS)
        chance = np.asarray(selector.probability(state))
        assert (chance >= 0).all()
        assert chance.sum(axis=1) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "reckless"),
    [
        ("thompson", {"spread": 0.05}),
        ("sw_ucb", {"beta": 0.0, "arms": 2, "epsilon": 0.02}),
        ("gdi_tiles", {"bonus": 0.0, "candidates": 1, "members": 1, "widths": (1,), "rates": (0.01,)}),
        ("lbc_regions", {"bonuses": (0.0,), "temperature": 0.001}),
    ],
)
def test_a_selector_that_settled_on_noise_is_told_from_one_that_did_not(name, reckless):
    """Whatever it spreads in any case: returns that no choice has a part in."""

    def played(seed: int, **options: Any) -> dict[str, float]:
        axes = [Coordinate.interval(axis, 0.0, 1.0, 10) for axis in ("a", "b")]
        selector = make(name, Space(tuple(axes)), **options)
        state, random = selector.init(jax.random.key(seed)), np.random.default_rng(seed)
        select, update = jax.jit(selector.select, static_argnums=2), jax.jit(selector.update)
        for t in range(60):
            choice = select(state, jax.random.key(t), ROWS)
            returns = jnp.asarray(random.normal(size=ROWS), jnp.float32)
            state = update(state, choice, returns, jnp.ones(ROWS, bool))
        told = {key: value for key, value in selector.report(state, ROWS).items() if value.ndim == 0}
        return jax.tree.map(float, actor._narrowest(told))

    settled = [played(seed, **reckless)["bandit/undecided"] for seed in range(5)]
    free = [played(seed)["bandit/undecided"] for seed in range(5)]
    assert np.median(settled) < 0.1
    assert np.median(free) > 0.3
