"""Returns and advantages equal their definitions, written as double loops."""

from __future__ import annotations

from typing import Any

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.ops.returns import (
    explained_variance,
    gae,
    masked_mean,
    masked_var,
    monte_carlo,
    q_lambda,
    rescale,
    standardise,
    unscale,
)

SHAPE = (9, 2)
NUMBERS = hnp.arrays(np.float32, SHAPE, elements=st.floats(-10, 10, width=32))
FLAGS = hnp.arrays(bool, SHAPE)
STEPS = hnp.arrays(np.int32, SHAPE, elements=st.integers(1, 5))
DISCOUNT = st.floats(0, 1, width=32)

fast_gae = jax.jit(gae)
fast_monte_carlo = jax.jit(monte_carlo)
fast_q_lambda = jax.jit(q_lambda)


def slow_gae(
    reward: Any,
    value: Any,
    next_value: Any,
    terminated: Any,
    truncated: Any,
    gamma: float,
    lam: float,
    mask: Any,
    elapsed: Any,
) -> np.ndarray:
    out = np.zeros(reward.shape)
    for t, b in np.ndindex(reward.shape):
        weight = 1.0
        for k in range(t, reward.shape[0]):
            if not mask[k, b]:
                break
            discount = gamma ** float(elapsed[k, b])
            future = 0.0 if terminated[k, b] else discount * float(next_value[k, b])
            out[t, b] += weight * (float(reward[k, b]) + future - float(value[k, b]))
            if terminated[k, b] or truncated[k, b]:
                break
            weight *= discount * lam
    return out


def slow_monte_carlo(reward: Any, ended: Any, gamma: float, mask: Any, elapsed: Any) -> np.ndarray:
    out = np.zeros(reward.shape)
    for t, b in np.ndindex(reward.shape):
        weight = 1.0
        for k in range(t, reward.shape[0]):
            if not mask[k, b]:
                break
            out[t, b] += weight * float(reward[k, b])
            if ended[k, b]:
                break
            weight *= gamma ** float(elapsed[k, b])
    return out


def slow_q_lambda(
    reward: Any,
    next_value: Any,
    terminated: Any,
    truncated: Any,
    gamma: float,
    trace: float,
    mask: Any,
    elapsed: Any,
) -> np.ndarray:
    """(1 - λ) Σ_n λ^(n-1) G^(n), and all that is left of the weights on the longest n-step return."""
    out = np.zeros(reward.shape)
    for t, b in np.ndindex(reward.shape):
        total, discount, share = 0.0, 1.0, 1.0
        for k in range(t, reward.shape[0]):
            total += discount * float(reward[k, b])
            discount *= gamma ** float(elapsed[k, b])
            value = 0.0 if terminated[k, b] else discount * float(next_value[k, b])
            goes_on = k + 1 < reward.shape[0] and mask[k + 1, b]
            if terminated[k, b] or truncated[k, b] or not goes_on:
                out[t, b] += share * (total + value)
                break
            out[t, b] += share * (1.0 - trace) * (total + value)
            share *= trace
    return out


def garbage(x: np.ndarray, mask: np.ndarray) -> jax.Array:
    return jnp.asarray(np.where(mask, x, np.nan))


@given(NUMBERS, NUMBERS, NUMBERS, FLAGS, FLAGS, FLAGS, STEPS, DISCOUNT, DISCOUNT)
def test_gae_is_its_definition_and_padding_does_not_leak(
    reward, value, next_value, terminated, truncated, mask, elapsed, gamma, lam
):
    wanted = slow_gae(reward, value, next_value, terminated, truncated, gamma, lam, mask, elapsed)
    filled = [garbage(x, mask) for x in (reward, value, next_value)]
    got = fast_gae(
        *filled, jnp.asarray(terminated), jnp.asarray(truncated), gamma, lam, jnp.asarray(mask), elapsed
    )
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-3)


@given(NUMBERS, FLAGS, FLAGS, STEPS, DISCOUNT)
def test_monte_carlo_is_its_definition_and_padding_does_not_leak(reward, ended, mask, elapsed, gamma):
    wanted = slow_monte_carlo(reward, ended, gamma, mask, elapsed)
    got = fast_monte_carlo(garbage(reward, mask), jnp.asarray(ended), gamma, jnp.asarray(mask), elapsed)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-3)


@given(NUMBERS, NUMBERS, FLAGS, FLAGS, FLAGS, STEPS, DISCOUNT, DISCOUNT)
def test_q_lambda_is_the_mixture_of_all_n_step_returns(
    reward, next_value, terminated, truncated, mask, elapsed, gamma, trace
):
    wanted = slow_q_lambda(reward, next_value, terminated, truncated, gamma, trace, mask, elapsed)
    ends = jnp.asarray(terminated), jnp.asarray(truncated)
    filled = [jnp.asarray(np.where(mask, x, 1e6)) for x in (reward, next_value)]
    got = fast_q_lambda(*filled, *ends, gamma, trace, jnp.asarray(mask), elapsed)
    np.testing.assert_allclose(np.asarray(got)[mask], wanted[mask], rtol=1e-4, atol=1e-3)


def test_q_lambda_of_a_rollout_without_padding():
    reward = np.arange(18.0, dtype=np.float32).reshape(SHAPE)
    none, ones = np.zeros(SHAPE, bool), np.ones(SHAPE, np.int32)
    wanted = slow_q_lambda(reward, -reward, none, none, 0.9, 0.65, ~none, ones)
    got = fast_q_lambda(*map(jnp.asarray, (reward, -reward, none, none)), 0.9, 0.65)
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


@given(hnp.arrays(np.float32, 20, elements=st.floats(-1e4, 1e4, width=32)))
def test_the_compressed_scale_is_its_definition_and_has_an_inverse(x):
    y = rescale(jnp.asarray(x))
    np.testing.assert_allclose(
        y, np.sign(x) * (np.sqrt(np.abs(x) + 1.0) - 1.0) + 1e-3 * x, rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(unscale(y), x, rtol=2e-3, atol=2e-2)


def test_the_compressed_scale_by_numbers_in_64_bits():
    with jax.enable_x64(True):
        seen = rescale(jnp.asarray([300.0, -1.0]))
        assert np.asarray(seen) == pytest.approx([16.6494, -0.4152], abs=5e-5)
        x = jnp.linspace(-1000.0, 1000.0, 4001)
        back = np.asarray(unscale(rescale(x)))
        assert back.dtype == np.float64
        assert np.abs(back - np.asarray(x)).max() < 1e-11


@given(NUMBERS, NUMBERS, NUMBERS, FLAGS, FLAGS)
def test_without_mask_and_elapsed_all_entries_count_one_step(
    reward, value, next_value, terminated, truncated
):
    arrays = [jnp.asarray(x) for x in (reward, value, next_value, terminated, truncated)]
    everything, ones = np.ones(SHAPE, bool), np.ones(SHAPE, np.int32)
    wanted = slow_gae(reward, value, next_value, terminated, truncated, 0.9, 0.8, everything, ones)
    np.testing.assert_allclose(fast_gae(*arrays, 0.9, 0.8), wanted, rtol=1e-4, atol=1e-3)
    ended = terminated | truncated
    wanted = slow_monte_carlo(reward, ended, 0.9, everything, ones)
    np.testing.assert_allclose(
        fast_monte_carlo(arrays[0], jnp.asarray(ended), 0.9), wanted, rtol=1e-4, atol=1e-3
    )


def one_step(terminated: bool, truncated: bool, next_value: float) -> float:
    flags = (jnp.full((1, 1), terminated), jnp.full((1, 1), truncated))
    return float(
        gae(jnp.ones((1, 1)), jnp.full((1, 1), 0.5), jnp.full((1, 1), next_value), *flags, 0.9, 0.95)[0, 0]
    )


def test_truncation_bootstraps_from_the_next_value():
    assert one_step(False, True, 4.0) == pytest.approx(1.0 + 0.9 * 4.0 - 0.5)


@pytest.mark.parametrize("next_value", [4.0, np.nan, np.inf])
def test_termination_never_reads_the_next_value(next_value):
    assert one_step(True, False, next_value) == pytest.approx(0.5)


def test_no_advantage_crosses_a_truncation():
    reward = jnp.array([[0.0], [0.0], [100.0]])
    zero, none = jnp.zeros((3, 1)), jnp.zeros((3, 1), bool)
    advantage = gae(reward, zero, zero, none, none.at[1].set(True), 0.9, 1.0)
    np.testing.assert_allclose(advantage[:, 0], [0.0, 0.0, 100.0])


@given(NUMBERS, NUMBERS, FLAGS)
def test_explained_variance_is_its_definition_over_valid_entries(prediction, target, mask):
    kept_target, kept_error = target[mask].astype(np.float64), (target - prediction)[mask].astype(np.float64)
    got = explained_variance(garbage(prediction, mask), garbage(target, mask), jnp.asarray(mask))
    assert np.isfinite(got)
    if mask.any() and np.var(kept_target) > 1e-2:
        assert float(got) == pytest.approx(1.0 - np.var(kept_error) / np.var(kept_target), rel=1e-3, abs=1e-3)


def test_explained_variance_of_perfect_constant_and_degenerate_targets():
    target = jnp.array([1.0, 2.0, 4.0])
    assert float(explained_variance(target, target)) == 1.0
    assert float(explained_variance(jnp.zeros(3), target)) == pytest.approx(0.0, abs=1e-6)
    assert float(explained_variance(target, jnp.ones(3))) == 0.0


@given(NUMBERS, FLAGS)
def test_masked_moments_and_standardise_are_numpys(x, mask):
    got_mean, got_var = (
        masked_mean(garbage(x, mask), jnp.asarray(mask)),
        masked_var(garbage(x, mask), jnp.asarray(mask)),
    )
    kept = x[mask].astype(np.float64)
    assert float(got_mean) == pytest.approx(kept.mean() if kept.size else 0.0, rel=1e-4, abs=1e-4)
    assert float(got_var) == pytest.approx(kept.var() if kept.size else 0.0, rel=1e-3, abs=1e-3)
    if kept.size and kept.std() > 0.1:
        scaled = np.asarray(standardise(garbage(x, mask), jnp.asarray(mask)))[mask]
        np.testing.assert_allclose(scaled, (kept - kept.mean()) / kept.std(), rtol=1e-3, atol=1e-3)


def test_standardise_of_equal_entries_is_zero_and_not_nan():
    np.testing.assert_array_equal(standardise(jnp.full(5, 3.0), None), np.zeros(5))
