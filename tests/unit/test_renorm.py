"""Batch renormalisation equals Ioffe's (2017) algorithm 1 in numpy."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import made_up, quick

from sparring.nets.renorm import BatchRenorm, NormedMLP, keep_statistics

N, FEATURES, EPSILON = 10, 3, 1e-3
MOMENTUM, WARM_UP = 0.9, 3.0


def layer(updates: float) -> BatchRenorm:
    """A layer whose running statistics are far from the batch's in some features and near in others."""
    made = BatchRenorm(FEATURES)
    return eqx.tree_at(
        lambda n: (n.scale, n.shift, n.mean, n.variance, n.updates),
        made,
        (
            jnp.array([1.5, 0.5, -1.0]),
            jnp.array([0.1, -0.2, 0.3]),
            jnp.array([0.2, -40.0, 0.1]),
            jnp.array([1.2, 0.9, 400.0]),
            jnp.float32(updates),
        ),
    )


def rows(seed: int = 0, shape: tuple[int, ...] = (N,)) -> np.ndarray:
    x = np.random.default_rng(seed).normal(0.3, 1.1, (*shape, FEATURES))
    x[..., 2] *= 0.05
    return x.astype(np.float32)


def slow(n: BatchRenorm, x: np.ndarray, mask: np.ndarray, warm_up: float) -> tuple[np.ndarray, ...]:
    """Outputs of the valid rows, and the running mean and variance after the batch."""
    kept = x[mask].astype(np.float64)
    mean, variance = kept.mean(0), kept.var(0)
    running = np.sqrt(np.asarray(n.variance, np.float64) + EPSILON)
    r = np.clip(np.sqrt(variance + EPSILON) / running, 1 / 3, 3.0)
    d = np.clip((mean - np.asarray(n.mean)) / running, -5.0, 5.0)
    if float(n.updates) < warm_up:
        r, d = np.ones(FEATURES), np.zeros(FEATURES)
    y = ((kept - mean) / np.sqrt(variance + EPSILON) * r + d) * np.asarray(n.scale) + np.asarray(n.shift)
    new = (MOMENTUM * np.asarray(old) + 0.1 * now for old, now in ((n.mean, mean), (n.variance, variance)))
    return (y, *new)


train = quick(lambda n, x, mask: n.train(x, mask, MOMENTUM, WARM_UP))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("updates", [0.0, 2.0, 3.0])
def test_training_is_the_papers_before_and_after_the_warm_up(updates, masked):
    n, x = layer(updates), rows()
    mask = np.arange(N) % 3 != 0 if masked else np.ones(N, bool)
    junk = np.where(mask[:, None], x, np.nan)
    y, after = train(n, jnp.asarray(junk), jnp.asarray(mask) if masked else None)
    wanted, mean, variance = slow(n, x, mask, WARM_UP)
    np.testing.assert_allclose(np.asarray(y)[mask], wanted, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(after.mean, mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(after.variance, variance, rtol=1e-4, atol=1e-5)
    assert float(after.updates) == updates + 1.0
    for name in ("scale", "shift"):
        np.testing.assert_array_equal(getattr(after, name), getattr(n, name))


def test_the_case_reaches_both_bounds_and_neither():
    n, x = layer(9.0), rows()
    running = np.sqrt(np.asarray(n.variance) + EPSILON)
    r, d = np.sqrt(x.var(0) + EPSILON) / running, (x.mean(0) - np.asarray(n.mean)) / running
    assert d[1] > 5.0
    assert r[2] < 1 / 3
    assert (abs(d[0]), r[0]) < (5.0, 3.0)


def test_evaluation_normalises_by_the_running_statistics_each_row_by_itself():
    n, x = layer(9.0), rows()
    y = n(jnp.asarray(x))
    wanted = (x - n.mean) / np.sqrt(np.asarray(n.variance) + EPSILON) * n.scale + n.shift
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(n(jnp.asarray(x[:1]))[0], n(jnp.asarray(np.r_[x[:1], 1e6 * x[1:]]))[0])


def test_only_scale_and_shift_and_the_batch_get_a_gradient():
    def total(n: BatchRenorm, x: Any) -> Any:
        y, after = n.train(x, None, MOMENTUM, WARM_UP)
        return jnp.sum(y**3) + jnp.sum(after.mean) + jnp.sum(after.variance) + jnp.sum(n(x) ** 2)

    slope, inputs = quick(jax.grad(total, argnums=(0, 1)))(layer(9.0), jnp.asarray(rows()))
    for name in ("mean", "variance", "updates"):
        np.testing.assert_array_equal(getattr(slope, name), 0.0)
    for name in ("scale", "shift"):
        assert np.abs(getattr(slope, name)).min() > 0.0
    assert np.abs(inputs).max() > 0.0


def test_the_gradient_holds_r_and_d_fixed():
    """By numbers: with r and d of the unmoved batch, as the paper's stop_gradient means."""
    n, x, step = layer(9.0), rows(), 1e-3
    running = np.sqrt(np.asarray(n.variance) + EPSILON)
    r = np.clip(np.sqrt(x.var(0) + EPSILON) / running, 1 / 3, 3.0)
    d = np.clip((x.mean(0) - np.asarray(n.mean)) / running, -5.0, 5.0)

    def fixed(x: np.ndarray) -> float:
        y = ((x - x.mean(0)) / np.sqrt(x.var(0) + EPSILON) * r + d) * np.asarray(n.scale) + n.shift
        return float((np.asarray(y, np.float64) ** 3).sum())

    slope = quick(jax.grad(lambda x: jnp.sum(n.train(x, None, MOMENTUM, WARM_UP)[0] ** 3)))(jnp.asarray(x))
    for place in ((0, 0), (4, 1), (7, 2)):
        moved = np.zeros_like(x, dtype=np.float64)
        moved[place] = step
        wanted = (fixed(x + moved) - fixed(x - moved)) / (2 * step)
        assert float(slope[place]) == pytest.approx(wanted, rel=2e-2, abs=2e-2)


def test_vmap_and_scan_carry_statistics_of_their_own():
    x = jnp.asarray(rows(1, (4, N)))
    several = jax.vmap(lambda x: layer(0.0).train(x, None, MOMENTUM, WARM_UP))
    y, after = quick(several)(x)
    for i in range(4):
        alone, single = train(layer(0.0), x[i], None)
        np.testing.assert_allclose(y[i], alone, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(after.mean[i], single.mean, rtol=1e-5, atol=1e-6)

    def step(n: BatchRenorm, x: Any) -> tuple[BatchRenorm, Any]:
        y, n = n.train(x, None, MOMENTUM, WARM_UP)
        return n, y

    end, ys = quick(lambda n, x: jax.lax.scan(step, n, x))(layer(0.0), x)
    n = layer(0.0)
    for i in range(4):
        y, n = train(n, x[i], None)
        np.testing.assert_allclose(ys[i], y, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(end.variance, n.variance, rtol=1e-5)
    assert float(end.updates) == 4.0


def test_leading_axes_are_rows_like_any_other():
    x, mask = rows(2, (5, 4)), np.random.default_rng(3).random((5, 4)) < 0.7
    y, after = train(layer(9.0), jnp.asarray(x), jnp.asarray(mask))
    flat, same = train(layer(9.0), jnp.asarray(x.reshape(20, -1)), jnp.asarray(mask.reshape(20)))
    np.testing.assert_allclose(y.reshape(20, -1), flat, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after.mean, same.mean, rtol=1e-5, atol=1e-6)


def net() -> NormedMLP:
    return made_up(jax.eval_shape(lambda: NormedMLP(jax.random.key(0), FEATURES, (4, 5), "relu")))


def test_a_network_normalises_its_input_and_every_activation():
    n, x = net(), jnp.asarray(rows())
    first, second, third = n.norms
    want, f = first.train(x, None, 0.9, 0.0)
    want, s = second.train(jax.nn.relu(n.layers[0](want)), None, 0.9, 0.0)
    want, t = third.train(jax.nn.relu(n.layers[1](want)), None, 0.9, 0.0)
    got, after = n.train(x, None, 0.9, 0.0)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(after.norms, (f, s, t), strict=True):
        np.testing.assert_allclose(mine.mean, theirs.mean, rtol=1e-6)
    inner = jax.nn.relu(n.layers[0](first(x)))
    np.testing.assert_allclose(n(x), third(jax.nn.relu(n.layers[1](second(inner)))), rtol=1e-5, atol=1e-6)
    assert n.outputs == 5


def test_keeping_statistics_takes_those_and_nothing_else():
    new, old = net(), made_up(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), net()), 7)
    kept = keep_statistics(new, old)
    for mine, n, o in zip(kept.norms, new.norms, old.norms, strict=True):
        for name, source in (("mean", o), ("variance", o), ("updates", o), ("scale", n), ("shift", n)):
            np.testing.assert_array_equal(getattr(mine, name), getattr(source, name))
    np.testing.assert_array_equal(kept.layers[0].weight, new.layers[0].weight)
