"""The sum tree: a function of its leaves, bit for bit; every draw has mass, in the right proportion."""

from __future__ import annotations

from typing import Any

import flashbax.buffers.sum_tree as flashbax_tree
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import differences, quick
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sparring.ops import sum_tree
from sparring.ops.keys import several

PUT, FIND, AT, TOTAL, BUILD, EXCHANGE = (
    jax.jit(getattr(sum_tree, f)) for f in ("put", "find", "at", "total", "build", "exchange")
)
DRAW = jax.jit(sum_tree.draw, static_argnums=2)


def tree_of(leaves: Any) -> sum_tree.SumTree:
    return BUILD(jnp.asarray(leaves, jnp.float32))


@given(seed=st.integers(0, 10**6), capacity=st.sampled_from([1, 8, 9, 700]), count=st.sampled_from([1, 40]))
@settings(max_examples=20)
def test_a_tree_is_a_function_of_its_leaves_bit_for_bit(seed, capacity, count):
    random = np.random.default_rng(seed)
    tree, leaves = sum_tree.zeros(capacity), np.zeros(capacity, np.float32)
    for _ in range(6):
        index = random.integers(-3, capacity + 8, count).astype(np.int32)
        value = (10.0 ** random.uniform(-6, 6, count) * (random.random(count) < 0.8)).astype(np.float32)
        inside = (index >= 0) & (index < tree.leaves.shape[0])
        padding = inside & (index >= capacity)
        index = np.where(padding, -1, index).astype(np.int32)
        tree = PUT(tree, index, value)
        for i in set(index[inside & ~padding].tolist()):
            leaves[i] = value[index == i].max()
    np.testing.assert_array_equal(np.asarray(tree.leaves)[:capacity], leaves)
    assert not differences(tree, tree_of(leaves))
    assert float(TOTAL(tree)) == pytest.approx(leaves.astype(np.float64).sum(), rel=1e-5)


@given(seed=st.integers(0, 10**6), capacity=st.sampled_from([5, 64, 600]), kind=st.sampled_from("uewz"))
@settings(max_examples=25)
def test_a_point_is_found_in_the_leaf_that_covers_it(seed, capacity, kind):
    """Against the definition in float64; a point within rounding of a border may fall on either side."""
    random = np.random.default_rng(seed)
    leaves = {
        "u": np.ones(capacity),
        "e": random.random(capacity),
        "w": 10.0 ** random.uniform(-6, 6, capacity),
        "z": random.random(capacity) * (random.random(capacity) < 0.3),
    }[kind].astype(np.float32)
    leaves[random.integers(capacity)] = 1.0
    tree = tree_of(leaves)
    total = np.asarray(TOTAL(tree))
    mass = np.concatenate([[0.0, total, 2 * total], random.random(61) * total]).astype(np.float32)
    index = np.asarray(FIND(tree, mass))
    exact = leaves.astype(np.float64)
    upto = np.cumsum(exact)
    assert (leaves[index] > 0).all()
    slack = 1e-5 * upto[-1]
    assert (upto[index] >= np.minimum(mass, upto[-1]) - slack).all()
    assert (upto[index] - exact[index] <= mass + slack).all()
    assert index[0] == np.flatnonzero(leaves)[0]
    assert index[2] == np.flatnonzero(leaves)[-1]


def test_a_leaf_of_little_mass_among_much_is_found():
    leaves = np.zeros(1000, np.float32)
    leaves[[3, 500, 501, 999]] = [1e6, 1e-6, 1e6, 1e-6]
    tree = tree_of(leaves)
    points = np.array([0.0, 999_999.0, 1e6, 1.5e6, 2e6, 3e6, np.inf], np.float32)
    index = np.asarray(FIND(tree, points))
    np.testing.assert_array_equal(index[[0, 1, 3, 4, 5, 6]], [3, 3, 501, 999, 999, 999])
    assert index[2] in (500, 501)
    low = PUT(tree, jnp.asarray([3, 501]), jnp.zeros(2))
    assert float(TOTAL(low)) == np.float32(1e-6) + np.float32(1e-6)  # the large ones left no trace
    np.testing.assert_array_equal(FIND(low, jnp.asarray([0.0, 1.5e-6])), [500, 999])


def test_an_empty_tree_has_no_mass_and_any_draw_is_inside():
    tree = sum_tree.zeros(100)
    assert float(TOTAL(tree)) == 0.0
    index = np.asarray(DRAW(tree, jax.random.key(0), 16))
    assert ((index >= 0) & (index < 104)).all()


def test_of_several_values_for_a_leaf_the_largest_counts_and_strangers_are_ignored():
    tree = PUT(
        tree_of(np.ones(10)), jnp.asarray([4, 4, -1, 4, 10**6, 2]), jnp.asarray([2.0, 7, 99, 5, 99, 0])
    )
    wanted = np.ones(10)
    wanted[[4, 2]] = 7, 0
    np.testing.assert_array_equal(tree.leaves[:10], wanted)
    np.testing.assert_array_equal(AT(tree, jnp.asarray([4, -1, 10**6])), [7.0, 0.0, 0.0])


def test_exchange_gives_the_old_values_and_the_new_tree():
    tree, index, value = tree_of(np.arange(20.0)), jnp.asarray([3, -1, 19]), jnp.asarray([1.0, 2.0, 3.0])
    old, new = EXCHANGE(tree, index, value)
    np.testing.assert_array_equal(old, [3.0, 0.0, 19.0])
    assert not differences(new, PUT(tree, index, value))


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_draws_are_in_proportion_to_the_mass(spread):
    random = np.random.default_rng(0)
    leaves = (10.0 ** random.normal(0, spread, 300) * (random.random(300) < 0.7)).astype(np.float32)
    tree = tree_of(leaves)
    keys = several(jax.random.key(1), 2000)
    drawn = np.asarray(jax.jit(jax.vmap(lambda k: sum_tree.draw(tree, k, 32)))(keys)).reshape(-1)
    counts = np.bincount(drawn, minlength=len(tree.leaves))[:300]
    assert not counts[leaves == 0].any()
    expected = leaves.astype(np.float64) / leaves.sum(dtype=np.float64) * len(drawn)
    held = expected > 5
    pooled = [*counts[held], counts[~held].sum()], [*expected[held], expected[~held].sum()]
    some = np.asarray(pooled[1]) > 0
    assert stats.chisquare(np.asarray(pooled[0])[some], np.asarray(pooled[1])[some]).pvalue > 1e-3


def test_draws_are_stratified():
    """Each of 64 equal parts of the mass gives exactly one draw."""
    tree = tree_of(np.ones(640))
    drawn = np.asarray(DRAW(tree, jax.random.key(3), 64))
    np.testing.assert_array_equal(drawn // 10, np.arange(64))


def test_millions_of_leaves_are_equally_likely():
    """Points on a float32 grid of 2^24 places would give some of ten million leaves twice what others get."""
    leaves, count = 10_000_000, 256
    tree = jax.jit(lambda: sum_tree.build(jnp.ones(leaves)))()
    keys = several(jax.random.key(5), 2048)
    drawn = np.asarray(jax.jit(lambda: jax.lax.map(lambda k: sum_tree.draw(tree, k, count), keys))())
    counts = np.bincount(drawn.reshape(-1), minlength=leaves)
    expected = drawn.size / leaves
    statistic = np.sum((counts - expected) ** 2) / expected
    assert abs(statistic - leaves) < 4 * np.sqrt(2.0 * leaves)


@quick
def THEIRS(leaves: Any, share: Any) -> Any:
    """The leaves that flashbax finds at these shares of the mass, and the mass."""
    empty = flashbax_tree.init(leaves.shape[0])
    state = flashbax_tree.set_batch_scan(empty, jnp.arange(leaves.shape[0]), leaves)
    found = jax.vmap(lambda s: flashbax_tree.sample(state, query_value=s))(share)
    return found, state.nodes[0]


@given(seed=st.integers(0, 10**6))
@settings(max_examples=10)
def test_flashbax_finds_the_same_leaves(seed):
    """Whole numbers add up exactly in any order, so both trees must agree on every point."""
    random = np.random.default_rng(seed)
    leaves = random.integers(0, 20, 64).astype(np.float32)
    total = leaves.sum()
    points = random.integers(0, int(total), 16).astype(np.float32) + 0.5
    theirs, whole = THEIRS(leaves, points / total)
    np.testing.assert_array_equal(FIND(tree_of(leaves), points), theirs)
    assert float(TOTAL(tree_of(leaves))) == float(whole)
