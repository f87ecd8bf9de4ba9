"""Running mean and variance of a stream, merged batch by batch."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree


class Moments(NamedTuple):
    """Count, mean and sum of squared deviations, per entry of a tree of arrays."""

    count: Float[Array, ""]  # type: ignore[assignment]
    mean: PyTree
    m2: PyTree


def start(example: PyTree) -> Moments:
    """No data yet: mean 0 and variance 1 for arrays of the example's shape."""
    zero = jax.tree.map(lambda x: jnp.zeros(jnp.shape(x), jnp.float32), example)
    return Moments(jnp.zeros(()), zero, jax.tree.map(jnp.copy, zero))


def absorb(moments: Moments, data: PyTree, mask: Array | None = None) -> Moments:
    """Moments of everything seen and `data`, whose leading axes are those of `mask` (or all extra ones).

    Chan et al. (1979): M2 = M2_a + M2_b + δ² n_a n_b / n.
    """
    first = jax.tree.leaves(moments.mean)[0]
    lead = jax.tree.leaves(data)[0].ndim - first.ndim
    axes = tuple(range(lead))
    shape = jax.tree.leaves(data)[0].shape[:lead]
    n_new = jnp.float32(1) * (jnp.prod(jnp.asarray(shape)) if mask is None else jnp.sum(mask))
    safe = jnp.maximum(n_new, 1.0)
    total = moments.count + n_new

    def valid(x: Array) -> Array:
        return x if mask is None else jnp.where(mask.reshape(mask.shape + (1,) * (x.ndim - lead)), x, 0.0)

    def merge(mean: Array, m2: Array, x: Array) -> tuple[Array, Array]:
        x = x.astype(jnp.float32)
        new_mean = jnp.sum(valid(x), axes) / safe
        new_m2 = jnp.sum(valid(jnp.square(x - new_mean)), axes)
        delta = new_mean - mean
        weight = n_new / jnp.maximum(total, 1.0)
        return mean + delta * weight, m2 + new_m2 + jnp.square(delta) * moments.count * weight

    means, spreads = jax.tree.leaves(moments.mean), jax.tree.leaves(moments.m2)
    merged = [merge(a, b, x) for a, b, x in zip(means, spreads, jax.tree.leaves(data), strict=True)]
    tree: Any = jax.tree.structure(moments.mean)
    return Moments(total, tree.unflatten([m for m, _ in merged]), tree.unflatten([s for _, s in merged]))


def variance(moments: Moments) -> PyTree:
    """Population variance; 1 until two values were seen."""
    count = moments.count
    return jax.tree.map(lambda s: jnp.where(count > 1, s / jnp.maximum(count, 1.0), 1.0), moments.m2)


def normalise(moments: Moments, x: PyTree, clip: Any, epsilon: float = 1e-8) -> PyTree:
    """(x - mean) / √(var + ε), clipped; what VecNormalize does to observations."""

    def one(mean: Array, var: Array, leaf: Array) -> Array:
        return jnp.clip((leaf - mean) * jax.lax.rsqrt(var + epsilon), -clip, clip)

    return jax.tree.map(one, moments.mean, variance(moments), x)
