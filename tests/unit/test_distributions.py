"""Distributions agree with scipy, sample what they promise, and respect masks."""

from __future__ import annotations

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from sparring.ops.distributions import (
    ILLEGAL,
    Bernoulli,
    Categorical,
    Gaussian,
    MultiCategorical,
    TanhGaussian,
    mask_logits,
)

DRAWS = 20_000
LOGITS = hnp.arrays(np.float32, (4,), elements=st.floats(-20, 20, width=32))
KEY = 7


def key(n: int = 0) -> jax.Array:
    return jax.random.fold_in(jax.random.key(KEY), n)


def frequencies(samples: np.ndarray, n: int) -> np.ndarray:
    return np.bincount(samples, minlength=n)


@given(LOGITS, st.integers(0, 3))
def test_categorical_is_a_softmax(logits, action):
    d = Categorical(jnp.asarray(logits))
    p = special.softmax(logits.astype(np.float64))
    assert float(d.log_prob(jnp.int32(action))) == pytest.approx(np.log(p[action]), rel=1e-4, abs=1e-5)
    assert float(d.entropy()) == pytest.approx(stats.entropy(p), rel=1e-3, abs=1e-5)
    assert logits[int(d.mode())] == logits.max()


@given(
    hnp.arrays(np.float32, (2, 3), elements=st.floats(-20, 20, width=32)),
    st.integers(0, 2),
    st.integers(0, 2),
)
def test_multicategorical_is_the_product_of_its_branches(logits, first, second):
    d = MultiCategorical(jnp.asarray(logits))
    p = special.softmax(logits.astype(np.float64), axis=-1)
    wanted = np.log(p[0, first]) + np.log(p[1, second])
    assert float(d.log_prob(jnp.array([first, second]))) == pytest.approx(wanted, rel=1e-4, abs=1e-5)
    assert float(d.entropy()) == pytest.approx(stats.entropy(p, axis=-1).sum(), rel=1e-3, abs=1e-5)


@given(LOGITS, hnp.arrays(np.int32, (4,), elements=st.integers(0, 1)))
def test_bernoulli_is_scipys(logits, bits):
    d, p = Bernoulli(jnp.asarray(logits)), special.expit(logits.astype(np.float64))
    wanted = np.where(
        bits == 1, special.log_expit(logits.astype(np.float64)), special.log_expit(-logits.astype(np.float64))
    )
    assert float(d.log_prob(jnp.asarray(bits))) == pytest.approx(wanted.sum(), rel=1e-4, abs=1e-5)
    assert float(d.entropy()) == pytest.approx(stats.bernoulli(p).entropy().sum(), rel=1e-3, abs=1e-4)
    np.testing.assert_array_equal(d.mode(), logits > 0)


NUMBER = st.floats(-5, 5, width=32)


@given(
    hnp.arrays(np.float32, (3,), elements=NUMBER),
    hnp.arrays(np.float32, (3,), elements=st.floats(-3, 2, width=32)),
    hnp.arrays(np.float32, (3,), elements=NUMBER),
)
def test_gaussian_is_scipys(mean, log_std, x):
    d = Gaussian(jnp.asarray(mean), jnp.asarray(log_std))
    oracle = stats.norm(mean.astype(np.float64), np.exp(log_std.astype(np.float64)))
    assert float(d.log_prob(jnp.asarray(x))) == pytest.approx(oracle.logpdf(x).sum(), rel=1e-3, abs=1e-3)
    assert float(d.entropy()) == pytest.approx(oracle.entropy().sum(), rel=1e-4, abs=1e-4)
    np.testing.assert_array_equal(d.mode(), mean)


@given(st.floats(-2, 2, width=32), st.floats(-2, 1, width=32), st.floats(-20, 20, width=32))
def test_tanh_gaussian_is_the_change_of_variables(mean, log_std, u):
    """log(1 - tanh² u) = 2 (log 2 - |u| - log(1 + e^(-2|u|))), which holds where tanh rounds to one."""
    d = TanhGaussian(Gaussian(jnp.array([mean]), jnp.array([log_std])))
    slope = 2.0 * (np.log(2.0) - abs(u) - np.log1p(np.exp(-2.0 * abs(u))))
    wanted = stats.norm(mean, np.exp(log_std)).logpdf(u) - slope
    assert float(d.log_prob(jnp.array([u], jnp.float32))) == pytest.approx(wanted, rel=1e-3, abs=1e-2)


@pytest.mark.parametrize("u", [-100.0, -30.0, 0.0, 30.0, 100.0])
def test_tanh_gaussian_stays_finite_at_the_bounds(u):
    def log_prob(mean: jax.Array) -> jax.Array:
        return TanhGaussian(Gaussian(mean, jnp.zeros(1))).log_prob(jnp.array([u]))

    value, slope = jax.value_and_grad(log_prob)(jnp.zeros(1))
    assert np.isfinite(value)
    assert np.isfinite(slope).all()


def test_tanh_gaussian_density_integrates_to_one():
    u = jnp.linspace(-12.0, 12.0, 20_001)[:, None]
    d = TanhGaussian(Gaussian(jnp.full_like(u, 0.3), jnp.full_like(u, -0.5)))
    y = np.tanh(np.asarray(u[:, 0], np.float64))
    assert np.trapezoid(np.exp(np.asarray(d.log_prob(u), np.float64)), y) == pytest.approx(1.0, abs=1e-3)


def test_tanh_gaussian_entropy_is_the_base_plus_the_slope_at_the_mean():
    d = TanhGaussian(Gaussian(jnp.array([0.7, -1.2]), jnp.array([-0.3, 0.1])))
    slope = np.log(1.0 - np.tanh(np.array([0.7, -1.2])) ** 2).sum()
    assert float(d.entropy()) == pytest.approx(float(d.base.entropy()) + slope, rel=1e-5)


def test_categorical_samples_have_its_frequencies():
    logits = jnp.array([1.0, 0.0, -1.0, 2.0])
    samples = np.asarray(Categorical(jnp.broadcast_to(logits, (DRAWS, 4))).sample(key()))
    assert (
        stats.chisquare(
            frequencies(samples, 4), DRAWS * special.softmax(np.asarray(logits, np.float64))
        ).pvalue
        > 1e-3
    )


def test_multicategorical_branches_are_independent_and_have_their_frequencies():
    logits = jnp.array([[0.0, 1.0, ILLEGAL], [1.0, 0.0, -1.0]])
    samples = np.asarray(MultiCategorical(jnp.broadcast_to(logits, (DRAWS, 2, 3))).sample(key(1)))
    p = special.softmax(np.asarray(logits, np.float64), axis=-1)
    joint = frequencies(samples[:, 0] * 3 + samples[:, 1], 9)
    assert joint[6:].sum() == 0
    assert stats.chisquare(joint[:6], DRAWS * np.outer(p[0], p[1]).reshape(-1)[:6]).pvalue > 1e-3


def test_bernoulli_samples_have_its_frequencies():
    logits = jnp.array([0.0, 1.5, -2.0])
    ones = np.asarray(Bernoulli(jnp.broadcast_to(logits, (DRAWS, 3))).sample(key(2))).sum(0)
    for count, p in zip(ones, special.expit(np.asarray(logits)), strict=True):
        assert stats.binomtest(int(count), DRAWS, float(p)).pvalue > 1e-3


def test_gaussian_samples_are_normal():
    d = Gaussian(jnp.full((DRAWS, 1), 0.5), jnp.full((DRAWS, 1), -0.7))
    samples = np.asarray(d.sample(key(3)))[:, 0]
    assert stats.kstest(samples, stats.norm(0.5, np.exp(-0.7)).cdf).pvalue > 1e-3


LEGAL = jnp.array([True, False, True, False])


@given(LOGITS)
def test_an_illegal_choice_has_probability_zero_and_leaves_the_others_a_softmax(logits):
    d = Categorical(mask_logits(jnp.asarray(logits), LEGAL))
    p = np.exp([float(d.log_prob(jnp.int32(a))) for a in range(4)])
    assert p[1] == p[3] == 0.0
    kept = special.softmax(logits[[0, 2]].astype(np.float64))
    np.testing.assert_allclose(p[[0, 2]], kept, rtol=1e-3, atol=1e-6)
    assert float(d.entropy()) == pytest.approx(stats.entropy(kept), rel=1e-3, abs=1e-5)


def test_illegal_choices_and_bits_are_never_sampled():
    logits = jnp.broadcast_to(jnp.array([0.0, 30.0, 0.0, 30.0]), (DRAWS, 4))
    assert set(np.unique(Categorical(mask_logits(logits, LEGAL)).sample(key(4)))) == {0, 2}
    bits = np.asarray(Bernoulli(mask_logits(logits, LEGAL)).sample(key(5)))
    assert bits[:, [1, 3]].sum() == 0
    assert 0 < bits[:, 0].mean() < 1


def test_an_illegal_dimension_stays_at_zero_and_does_not_count():
    legal = jnp.array([True, False])
    masked = Gaussian(jnp.array([0.4, 9.0]), jnp.array([0.1, 3.0]), legal)
    alone = Gaussian(jnp.array([0.4]), jnp.array([0.1]))
    sample = masked.sample(key(6))
    assert float(sample[1]) == 0.0
    assert float(masked.mode()[1]) == 0.0
    assert float(masked.log_prob(sample)) == pytest.approx(float(alone.log_prob(sample[:1])), rel=1e-6)
    assert float(masked.entropy()) == pytest.approx(float(alone.entropy()), rel=1e-6)
    squashed = TanhGaussian(masked).log_prob(sample)
    assert float(squashed) == pytest.approx(float(TanhGaussian(alone).log_prob(sample[:1])), rel=1e-6)


@pytest.mark.parametrize("legal", [[True, False, True, False], [False, False, False, False]])
@pytest.mark.parametrize("kind", ["categorical", "multicategorical", "bernoulli", "gaussian", "tanh"])
def test_gradients_are_finite_under_masks(kind, legal):
    mask = jnp.array(legal)

    def score(x: jax.Array) -> jax.Array:
        match kind:
            case "categorical":
                d, action = Categorical(mask_logits(x, mask)), jnp.int32(0)
            case "multicategorical":
                d, action = MultiCategorical(mask_logits(x, mask).reshape(2, 2)), jnp.array([0, 0])
            case "bernoulli":
                d, action = Bernoulli(mask_logits(x, mask)), jnp.zeros(4, jnp.int32)
            case "gaussian":
                d, action = Gaussian(x, 0.1 * x, mask), jnp.ones(4)
            case _:
                d, action = TanhGaussian(Gaussian(x, 0.1 * x, mask)), jnp.ones(4)
        return d.log_prob(action) + d.entropy()

    value, gradient = jax.value_and_grad(score)(jnp.array([0.3, -0.2, 5.0, 40.0]))
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(np.asarray(gradient)[~np.asarray(mask)], 0.0)


def test_temperature_divides_logits_and_scales_deviations():
    logits, t = jnp.array([[1.0, 0.0, -1.0]]), jnp.array([2.0])
    p = special.softmax(np.array([0.5, 0.0, -0.5]))
    log_prob = Categorical(logits).tempered(t).log_prob(jnp.array([0]))
    assert float(log_prob[0]) == pytest.approx(np.log(p[0]), rel=1e-5)
    np.testing.assert_allclose(MultiCategorical(logits[:, None]).tempered(t).logits, logits[:, None] / 2.0)
    np.testing.assert_allclose(Bernoulli(logits).tempered(t).logits, logits / 2.0)
    for d in (Gaussian(logits, jnp.zeros((1, 3))), TanhGaussian(Gaussian(logits, jnp.zeros((1, 3))))):
        cooled = d.tempered(t)
        base = cooled.base if isinstance(cooled, TanhGaussian) else cooled
        np.testing.assert_allclose(np.exp(base.log_std), 2.0 * np.ones((1, 3)), rtol=1e-6)
        np.testing.assert_array_equal(base.mean, logits)


@pytest.mark.parametrize("temperature", [0.01, 1.0, 1000.0])
def test_temperature_never_makes_an_illegal_choice_possible(temperature):
    d = Categorical(mask_logits(jnp.zeros((1, 4)), LEGAL)).tempered(jnp.array([temperature]))
    assert float(jnp.exp(d.log_prob(jnp.array([1])))[0]) == 0.0
    assert np.isfinite(d.entropy()).all()
