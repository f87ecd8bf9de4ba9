"""Each epoch visits every valid transition exactly once, in a new order."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sparring.ops.minibatch import Epoch, epochs

EPOCHS = 3
epochs = jax.jit(epochs, static_argnums=(1, 2, 3))


def visits(plan: Epoch, epoch: int, transitions: int) -> np.ndarray:
    """How often each transition counts in an epoch."""
    index = np.arange(transitions)[None] if plan.index is None else np.asarray(plan.index[epoch])
    valid = np.ones(index.shape, bool) if plan.valid is None else np.asarray(plan.valid[epoch])
    return np.bincount(index[valid], minlength=transitions)


@settings(max_examples=12)
@given(st.integers(1, 17), st.integers(1, 20), st.integers(0, 2**31 - 1), st.data())
def test_each_epoch_visits_every_valid_transition_exactly_once(transitions, batch_size, seed, data):
    mask = data.draw(st.none() | st.lists(st.booleans(), min_size=transitions, max_size=transitions))
    flags = None if mask is None else jnp.array(mask)
    plan = epochs(jax.random.key(seed), EPOCHS, transitions, batch_size, flags)
    wanted = np.ones(transitions) if mask is None else np.array(mask)
    for epoch in range(EPOCHS):
        np.testing.assert_array_equal(visits(plan, epoch, transitions), wanted)


@pytest.mark.parametrize(
    ("transitions", "batch_size", "count"), [(10, 4, 3), (12, 4, 3), (5, 64, 1), (7, 1, 7)]
)
def test_sizes_that_do_not_divide_leave_a_smaller_last_minibatch(transitions, batch_size, count):
    plan = epochs(jax.random.key(0), 1, transitions, batch_size)
    if count == 1:
        assert plan.index is None
        return
    assert plan.index.shape == (1, count, min(batch_size, transitions))
    sizes = np.full(count, batch_size) if plan.valid is None else np.asarray(plan.valid[0]).sum(axis=1)
    assert sizes.sum() == transitions
    assert (sizes[:-1] == batch_size).all()


def test_only_the_last_minibatches_lack_valid_transitions():
    mask = jnp.arange(40) % 4 == 0
    plan = epochs(jax.random.key(1), 2, 40, 4, mask)
    per_minibatch = np.asarray(plan.valid).sum(axis=2)
    np.testing.assert_array_equal(per_minibatch, [[4, 4, 2, 0, 0, 0, 0, 0, 0, 0]] * 2)


@pytest.mark.parametrize("masked", [False, True])
def test_epochs_and_keys_give_different_orders_and_the_same_key_the_same(masked):
    mask = jnp.ones(64, bool) if masked else None
    plan, again, other = (epochs(jax.random.key(s), 2, 64, 16, mask) for s in (0, 0, 1))
    assert not np.array_equal(plan.index[0], plan.index[1])
    assert not np.array_equal(plan.index, other.index)
    np.testing.assert_array_equal(plan.index, again.index)


@pytest.mark.parametrize("masked", [False, True])
def test_all_orders_of_three_are_equally_likely(masked):
    draws = 6000
    mask = jnp.ones(3, bool) if masked else None
    index = np.asarray(epochs(jax.random.key(3), draws, 3, 1, mask).index)[:, :, 0]
    _, counts = np.unique(index @ np.array([9, 3, 1]), return_counts=True)
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > 1e-3


def test_gather_takes_every_leaf_in_the_same_order():
    plan = jax.tree.map(lambda x: x[0], epochs(jax.random.key(0), 1, 6, 2))
    one, two = plan.gather((jnp.arange(6), 10 * jnp.arange(6)[:, None]))
    np.testing.assert_array_equal(one, plan.index)
    np.testing.assert_array_equal(two[..., 0], 10 * np.asarray(plan.index))
