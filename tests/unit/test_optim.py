"""Optimisers equal their published recursions, and a clip by norm is a clip by norm."""

from __future__ import annotations

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.ops import optim

GRADIENT = hnp.arrays(np.float32, (6,), elements=st.floats(-1000, 1000, width=32))
PASS = optax.identity()
step = jax.jit(optim.apply, static_argnums=0)


@given(GRADIENT, st.floats(2**-7, 10, width=32))
def test_the_clipped_gradients_norm_is_bounded_and_its_direction_kept(gradient, bound):
    new = step(PASS, jnp.zeros(6), PASS.init(jnp.zeros(6)), jnp.asarray(gradient), 1.0, bound)
    moved, norm = -np.asarray(new.params, np.float64), np.linalg.norm(gradient.astype(np.float64))
    assert np.linalg.norm(moved) <= bound * (1 + 1e-5)
    assert float(new.norm) == pytest.approx(norm, rel=1e-4, abs=1e-20)
    if norm < bound * 0.99:
        np.testing.assert_allclose(moved, gradient, rtol=1e-6)
    else:
        np.testing.assert_allclose(moved * norm, gradient * np.linalg.norm(moved), rtol=1e-2, atol=1e-2)


def test_no_bound_leaves_the_gradient_alone():
    gradient = jnp.array([300.0, -400.0])
    new = optim.apply(PASS, jnp.zeros(2), PASS.init(jnp.zeros(2)), gradient, 1.0, None)
    np.testing.assert_array_equal(new.params, -gradient)
    assert float(new.norm) == 500.0


def run(name: optim.Name, eps: float, gradients: np.ndarray, rate: float) -> np.ndarray:
    rule = optim.transform(name, eps)
    params, state = jnp.zeros(gradients.shape[1]), rule.init(jnp.zeros(gradients.shape[1]))
    for gradient in gradients:
        params, state, _ = step(rule, params, state, jnp.asarray(gradient, jnp.float32), rate, None)
    return np.asarray(params)


GRADIENTS = np.random.default_rng(0).normal(size=(25, 4))


def test_rmsprop_is_torchs():
    """v ← α v + (1-α) g²; θ ← θ - lr g / (√v + ε), with v = 0 at first."""
    params, v = np.zeros(4), np.zeros(4)
    for g in GRADIENTS:
        v = 0.99 * v + 0.01 * g * g
        params -= 7e-4 * g / (np.sqrt(v) + 1e-5)
    np.testing.assert_allclose(run("rmsprop", 1e-5, GRADIENTS, 7e-4), params, rtol=1e-4, atol=1e-7)


def test_adam_is_the_papers():
    """Kingma and Ba (2015), algorithm 1."""
    params, m, v = np.zeros(4), np.zeros(4), np.zeros(4)
    for t, g in enumerate(GRADIENTS, start=1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        params -= 3e-4 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-5)
    np.testing.assert_allclose(run("adam", 1e-5, GRADIENTS, 3e-4), params, rtol=1e-4, atol=1e-7)


@given(hnp.arrays(np.float32, (5, 6), elements=st.floats(-100, 100, width=32)), st.sampled_from([0.5, 0.9]))
def test_adam_takes_optaxs_steps(gradients, b1):
    ours, theirs = optim.Adam(1e-6, b1=b1), optax.scale_by_adam(b1=b1, eps=1e-6)
    state, other = ours.init(jnp.zeros(6)), theirs.init(jnp.zeros(6))
    assert jax.tree.structure(state) == jax.tree.structure(other)
    for gradient in gradients:
        direction, state = ours.update(jnp.asarray(gradient), state)
        expected, other = theirs.update(jnp.asarray(gradient), other)
        np.testing.assert_allclose(direction, expected, rtol=2e-4, atol=1e-6)
        np.testing.assert_array_equal(direction, ours.direction(state))


@pytest.mark.parametrize("decay", [None, 0.1])
def test_what_a_step_moved_is_found_from_what_it_left_behind(decay):
    rule, params = optim.Adam(), {"a": jnp.arange(4.0), "b": jnp.ones((2, 3))}
    state = rule.init(params)
    for size in (1.0, -3.0, 0.2):
        gradient = jax.tree.map(lambda p, size=size: size * (p + 0.1), params)
        new = optim.apply(rule, params, state, gradient, 0.01, None, decay)
        moved = optim.moved(rule, new, 0.01, decay or 0.0)
        for was, now, by in zip(*map(jax.tree.leaves, (params, new.params, moved)), strict=True):
            np.testing.assert_allclose(by, np.float64(now) - np.float64(was), rtol=1e-4, atol=1e-6)
        params, state = new.params, new.state


@pytest.mark.parametrize(("b1", "b2"), [(0.0, 0.999), (0.9, 0.0), (0.0, 0.0)])
def test_adam_may_forget_at_once(b1, b2):
    mine, theirs = optim.Adam(1e-8, b1, b2), optax.scale_by_adam(b1, b2)
    state, other = mine.init(jnp.zeros(4)), theirs.init(jnp.zeros(4))
    for gradient in GRADIENTS.astype(np.float32):
        direction, state = mine.update(jnp.asarray(gradient), state)
        expected, other = theirs.update(jnp.asarray(gradient), other)
        np.testing.assert_allclose(direction, expected, rtol=1e-5)
