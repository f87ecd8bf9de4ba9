"""Noisy layers: the mean without a draw, factorised Gaussian noise with one; layer norm is its definition."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import made_up, quick

from sparring.nets.layers import MLP, LayerNorm, Noisy, draw_noise

INPUTS, OUTPUTS = 5, 4


def test_a_fresh_layer_has_fortunatos_deviations_and_torchs_means():
    layer = Noisy(jax.random.key(0), 100, 20)
    np.testing.assert_allclose(layer.weight_noise, 0.5 / np.sqrt(100))
    np.testing.assert_allclose(layer.bias_noise, 0.5 / np.sqrt(100))
    assert float(jnp.abs(layer.weight).max()) <= 1.0 / np.sqrt(100)


def test_without_a_draw_it_is_its_mean():
    layer = made_up(jax.eval_shape(lambda: Noisy(jax.random.key(0), INPUTS, OUTPUTS)))
    x = jnp.arange(10.0).reshape(2, INPUTS)
    np.testing.assert_allclose(layer(x), x @ layer.weight + layer.bias, rtol=1e-6)


def test_the_noise_of_a_draw_is_an_outer_product_and_its_columns_are_the_biases():
    layer = Noisy(jax.random.key(0), INPUTS, OUTPUTS)
    drawn = quick(Noisy.drawn)(layer, jax.random.key(1))
    noise = (drawn.weight - layer.weight) / layer.weight_noise
    assert np.linalg.matrix_rank(np.asarray(noise), tol=1e-4) == 1
    column = (drawn.bias - layer.bias) / layer.bias_noise
    np.testing.assert_allclose(noise[0] / noise[0, 0], column / column[0], rtol=1e-3)
    np.testing.assert_array_equal(drawn.weight_noise, layer.weight_noise)


def test_each_factor_is_the_signed_root_of_a_normal_number():
    """E f² = E|ε| = √(2/π) and E f⁴ = E ε² = 1, with either sign equally likely."""
    layer = Noisy(jax.random.key(0), 1, 20_000)
    factor = np.asarray((quick(Noisy.drawn)(layer, jax.random.key(2)).bias - layer.bias) / layer.bias_noise)
    assert (factor**2).mean() == pytest.approx(np.sqrt(2 / np.pi), abs=0.02)
    assert (factor**4).mean() == pytest.approx(1.0, abs=0.05)
    assert (factor > 0).mean() == pytest.approx(0.5, abs=0.02)


def test_a_network_draws_every_noisy_layer_anew_and_nothing_else():
    net = MLP(jax.random.key(0), INPUTS, (6, 6), "relu", None, noisy=True, norm=True)
    one, other = (quick(draw_noise)(net, jax.random.key(i)) for i in (1, 2))
    for i in range(2):
        assert not np.array_equal(one.layers[i].weight, net.layers[i].weight)
        assert not np.array_equal(one.layers[i].weight, other.layers[i].weight)
    signs = [np.sign(one.layers[i].bias - net.layers[i].bias) for i in range(2)]
    assert not np.array_equal(*signs)
    np.testing.assert_array_equal(one.norms[0].scale, net.norms[0].scale)


def test_the_deviations_learn():
    layer, x = Noisy(jax.random.key(0), INPUTS, OUTPUTS), jnp.ones((3, INPUTS))
    slope = quick(jax.grad(lambda layer: jnp.sum(layer.drawn(jax.random.key(3))(x) ** 2)))(layer)
    for name in ("weight", "bias", "weight_noise", "bias_noise"):
        assert np.abs(getattr(slope, name)).max() > 0.0


def test_layer_norm_is_its_definition_and_comes_before_the_activation():
    norm = made_up(jax.eval_shape(lambda: LayerNorm(6)))
    x = np.random.default_rng(0).normal(3.0, 2.0, (4, 6)).astype(np.float32)
    wanted = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(norm(jnp.asarray(x)), wanted * norm.scale + norm.shift, rtol=1e-4, atol=1e-5)
    net = made_up(jax.eval_shape(lambda: MLP(jax.random.key(0), 3, (6,), "relu", None, norm=True)))
    y = jnp.asarray(x[:, :3])
    np.testing.assert_allclose(net(y), jax.nn.relu(net.norms[0](net.layers[0](y))), rtol=1e-6)
