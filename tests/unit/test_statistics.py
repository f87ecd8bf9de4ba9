"""Running moments equal numpy's over everything that was seen."""

from __future__ import annotations

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sparring.ops.statistics import absorb, normalise, start, variance

absorb_jit = jax.jit(absorb)
BATCH = hnp.arrays(np.float32, (4, 2, 3), elements=st.floats(-100, 100, width=32))
MASK = hnp.arrays(bool, (4, 2))


@given(st.lists(st.tuples(BATCH, MASK), min_size=1, max_size=4))
def test_moments_are_numpys_on_all_valid_entries(batches):
    moments = start(jnp.zeros(3))
    for data, mask in batches:
        moments = absorb_jit(moments, jnp.where(mask[..., None], data, jnp.nan), jnp.asarray(mask))
    seen = np.concatenate([data[mask] for data, mask in batches]).astype(np.float64)
    assert float(moments.count) == len(seen)
    np.testing.assert_allclose(moments.mean, seen.mean(0) if len(seen) else np.zeros(3), rtol=1e-4, atol=1e-3)
    wanted = seen.var(0) if len(seen) > 1 else np.ones(3)
    np.testing.assert_allclose(variance(moments), wanted, rtol=1e-3, atol=1e-2)


@given(st.lists(BATCH, min_size=1, max_size=3))
def test_without_a_mask_everything_counts(batches):
    moments = start(jnp.zeros(3))
    for data in batches:
        moments = absorb_jit(moments, jnp.asarray(data))
    seen = np.concatenate(batches).reshape(-1, 3).astype(np.float64)
    np.testing.assert_allclose(moments.mean, seen.mean(0), rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(variance(moments), seen.var(0), rtol=1e-3, atol=1e-2)


def test_a_large_offset_does_not_drown_the_variance():
    data = 1000.0 + np.random.default_rng(0).normal(size=(50, 4, 1)).astype(np.float32)
    moments = start(jnp.zeros(1))
    for part in np.split(data, 10):
        moments = absorb(moments, jnp.asarray(part))
    np.testing.assert_allclose(variance(moments), data.reshape(-1, 1).astype(np.float64).var(0), rtol=1e-2)


def test_dict_observations_have_moments_per_leaf():
    tree = {"a": jnp.zeros(()), "b": jnp.zeros((2,))}
    data = {"a": jnp.arange(6.0).reshape(3, 2), "b": jnp.arange(12.0).reshape(3, 2, 2)}
    moments = absorb(start(tree), data)
    np.testing.assert_allclose(moments.mean["a"], 2.5)
    np.testing.assert_allclose(moments.mean["b"], [5.0, 6.0])
    np.testing.assert_allclose(variance(moments)["b"], np.arange(12.0).reshape(6, 2).var(0), rtol=1e-5)


def test_normalise_centres_scales_and_clips():
    moments = absorb(start(jnp.zeros(2)), jnp.array([[0.0, 10.0], [2.0, 30.0]]))
    got = normalise(moments, jnp.array([[2.0, 20.0], [1e6, -1e6]]), 5.0)
    np.testing.assert_allclose(got, [[1.0, 0.0], [5.0, -5.0]], atol=1e-5)


def test_normalise_is_the_identity_before_any_data_up_to_the_clip():
    np.testing.assert_allclose(
        normalise(start(jnp.zeros(2)), jnp.array([3.0, -20.0]), 10.0), [3.0, -10.0], rtol=1e-6
    )
