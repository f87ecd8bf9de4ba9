"""The behaviour table: cells, points in them, and what cannot be a table."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.bandit import Coordinate, Space
from sparring.bandit.families import ngu_betas, ngu_gammas
from sparring.errors import ConfigError

LOTS = st.one_of(st.floats(2.0**-25, 1.0, width=32), st.sampled_from([2.0**-25, 1.0]))


@given(
    low=st.floats(-1e3, 1e3, width=16),
    width=st.floats(0.0625, 1e3, width=16),
    cells=st.sampled_from([1, 3, 10]),
    part=st.floats(0, 1, exclude_max=True),
    lot=LOTS,
)
def test_a_point_lies_in_its_own_cell(low, width, cells, part, lot):
    axis = Coordinate.interval("x", low, low + width, cells)
    space, cell = Space((axis,)), int(part * cells)
    point = space.points(jnp.array([[cell]]), jnp.array([[lot]], jnp.float32))
    assert space.cell_of(point) == cell
    assert axis.edges[cell] - 1e-4 <= float(point[0, 0]) <= axis.edges[cell + 1] + 1e-4


def test_points_are_spread_evenly_in_the_cell_or_in_its_logarithm():
    space = Space((Coordinate.interval("a", 0, 4, 2), Coordinate.interval("b", 1, 10_000, 2, log=True)))
    lots = jnp.linspace(0.01, 1.0, 100)[:, None] * jnp.ones(2)
    point = np.asarray(space.points(jnp.ones((100, 2), jnp.int32), lots))
    np.testing.assert_allclose(point[:, 0], 2 + 2 * np.linspace(0.01, 1, 100), rtol=1e-5)
    np.testing.assert_allclose(np.log10(point[:, 1]), 2 + 2 * np.linspace(0.01, 1, 100), rtol=1e-4)


def test_values_have_a_cell_each_and_what_lies_between_goes_to_the_nearest():
    space = Space((Coordinate.discrete("n", [5, 1, 3]), Coordinate.interval("x", 0, 1, 4)))
    cell = jnp.array([[0, 3], [1, 0], [2, 1]])
    point = space.points(cell, jnp.full((3, 2), 0.5))
    np.testing.assert_allclose(point, [[5, 0.875], [1, 0.125], [3, 0.375]])
    assert (space.cell_of(point) == cell).all()
    assert space.cell_of(jnp.array([[4.4, 7.0], [-9.0, -7.0]])).tolist() == [[0, 3], [1, 0]]
    assert (space.names, space.cells, space.size) == (("n", "x"), (3, 4), 12)


@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_combinations_are_numbered_as_numpy_does(sizes, seed):
    space = Space(tuple(Coordinate.interval(str(i), 0, 1, n) for i, n in enumerate(sizes)))
    number = np.random.default_rng(seed).integers(0, space.size, 5)
    cell = np.stack(np.unravel_index(number, sizes), axis=1)
    assert (np.asarray(space.unflat(jnp.asarray(number))) == cell).all()
    assert (np.asarray(space.flat(jnp.asarray(cell))) == number).all()


def test_uniform_cells_are_as_likely_and_never_outside():
    space = Space((Coordinate.discrete("n", range(3)), Coordinate.interval("x", 0, 1, 7)))
    lots = jnp.arange(1, 2101)[:, None] / 2100 * jnp.ones(2)
    cell = np.asarray(space.anywhere(lots))
    for c, count in enumerate(space.cells):
        assert np.bincount(cell[:, c], minlength=count) == pytest.approx(2100 / count, abs=2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Coordinate("x"),
        lambda: Coordinate("x", edges=(0, 1), values=(1,)),
        lambda: Coordinate("x", edges=(0,)),
        lambda: Coordinate("x", edges=(0, 1, 1)),
        lambda: Coordinate("x", edges=(1.0, 1.0 + 1e-9)),
        lambda: Coordinate("x", values=(float("nan"),)),
        lambda: Coordinate("x", edges=(0, 1), log=True),
        lambda: Coordinate.interval("x", 0, 1, 3, log=True),
        lambda: Coordinate.interval("x", 1, 0, 3),
        lambda: Coordinate.interval("x", 0, 1, 0),
        lambda: Space(()),
        lambda: Space((Coordinate.discrete("x", [1]), Coordinate.discrete("x", [2]))),
    ],
)
def test_what_is_no_table_is_refused(make):
    with pytest.raises(ConfigError):
        make()


def test_ngus_family_by_numbers():
    """The weights of the intrinsic reward and the discounts of its 32 members."""
    beta, gamma = ngu_betas(), ngu_gammas()
    assert (len(beta), len(gamma)) == (32, 32)
    assert (beta[0], beta[31]) == (0.0, 0.3)
    assert beta[15] == pytest.approx(0.15, abs=1e-12)
    assert beta[30] == pytest.approx(0.3, abs=5e-5)
    assert np.diff(beta).min() > 0
    assert [gamma[0], gamma[31]] == pytest.approx([0.997, 0.99], abs=1e-12)
    assert gamma[15] == pytest.approx(0.99463, abs=5e-6)
    assert np.diff(np.log1p(-np.asarray(gamma))) == pytest.approx(np.log(10 / 3) / 31)


def test_a_family_is_a_coordinate():
    space = Space((Coordinate.discrete("beta", ngu_betas(5)), Coordinate.discrete("gamma", ngu_gammas(5))))
    cell = jnp.arange(5)[:, None] * jnp.ones(2, jnp.int32)
    point = space.points(cell, jnp.ones((5, 2)))
    np.testing.assert_allclose(point, np.stack([ngu_betas(5), ngu_gammas(5)], axis=1), rtol=1e-6)
    assert np.array_equal(space.cell_of(point), cell)


def test_impossible_families():
    with pytest.raises(ConfigError, match="at least 3"):
        ngu_betas(2)
    with pytest.raises(ConfigError, match="smallest < largest"):
        ngu_gammas(32, 0.9, 0.99)
