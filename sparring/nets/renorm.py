"""Batch renormalisation (Ioffe 2017, arXiv 1702.03275), as CrossQ uses it.

In training y = (x - μ_B)/σ_B · r + d with r = clip(σ_B/σ, 1/r_max, r_max) and d = clip((μ_B - μ)/σ, ±d_max),
both without gradient, μ and σ the running statistics; the first `warm_up` updates are plain batch
normalisation (r = 1, d = 0). In evaluation y = (x - μ)/σ. Running statistics are leaves without a gradient:
a call returns the layer with new ones.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from sparring.nets.layers import Dense, activation
from sparring.ops.keys import several

R_MAX, D_MAX, EPSILON = 3.0, 5.0, 1e-3


class BatchRenorm(eqx.Module):
    """Normalises the last axis over all others; padding does not count."""

    scale: Float[Array, " O"]
    shift: Float[Array, " O"]
    mean: Float[Array, " O"]
    variance: Float[Array, " O"]
    updates: Float[Array, ""]

    def __init__(self, size: int):
        self.scale, self.shift = jnp.ones(size), jnp.zeros(size)
        self.mean, self.variance = jnp.zeros(size), jnp.ones(size)
        self.updates = jnp.zeros(())

    def __call__(self, x: Float[Array, "*N O"]) -> Float[Array, "*N O"]:
        """Evaluation: by the running statistics."""
        mean, variance = (jax.lax.stop_gradient(s) for s in (self.mean, self.variance))
        return (x - mean) * jax.lax.rsqrt(variance + EPSILON) * self.scale + self.shift

    def train(
        self, x: Float[Array, "*N O"], mask: Bool[Array, "*N"] | None, momentum: Any, warm_up: Any
    ) -> tuple[Float[Array, "*N O"], BatchRenorm]:
        """Training: by the batch's statistics, and the layer with new running ones."""
        axes = tuple(range(x.ndim - 1))
        if mask is None:
            mean = jnp.mean(x, axes)
            variance = jnp.mean(jnp.square(x - mean), axes)
        else:
            valid = mask[..., None]
            count = jnp.maximum(jnp.sum(mask), 1)
            mean = jnp.sum(jnp.where(valid, x, 0.0), axes) / count
            variance = jnp.sum(jnp.where(valid, jnp.square(x - mean), 0.0), axes) / count
        old_mean, old_variance, seen, fresh, spread = jax.lax.stop_gradient(
            (self.mean, self.variance, self.updates, mean, variance)
        )
        running = jnp.sqrt(old_variance + EPSILON)
        r = jnp.clip(jnp.sqrt(spread + EPSILON) / running, 1.0 / R_MAX, R_MAX)
        d = jnp.clip((fresh - old_mean) / running, -D_MAX, D_MAX)
        warm = seen >= warm_up
        r, d = jnp.where(warm, r, 1.0), jnp.where(warm, d, 0.0)
        y = ((x - mean) * jax.lax.rsqrt(variance + EPSILON) * r + d) * self.scale + self.shift
        new = (
            momentum * old_mean + (1.0 - momentum) * fresh,
            momentum * old_variance + (1.0 - momentum) * spread,
            seen + 1.0,
        )
        return y, eqx.tree_at(lambda layer: (layer.mean, layer.variance, layer.updates), self, new)


class NormedMLP(eqx.Module):
    """A renormalised input, then layers of dense, activation and renormalisation."""

    layers: tuple[Dense, ...]
    norms: tuple[BatchRenorm, ...]
    activation: str = eqx.field(static=True)
    outputs: int = eqx.field(static=True)

    def __init__(self, key: Any, inputs: int, sizes: tuple[int, ...], name: str):
        each = several(key, max(len(sizes), 1))
        widths = (inputs, *sizes)
        shapes = zip(each, widths[:-1], widths[1:], strict=len(sizes) > 0)
        self.layers = tuple(Dense(k, a, b, None) for k, a, b in shapes)
        self.norms = tuple(BatchRenorm(size) for size in widths)
        activation(name)
        self.activation = name
        self.outputs = widths[-1]

    def __call__(self, x: Float[Array, "*N I"]) -> Float[Array, "*N O"]:
        """Evaluation: nothing of a row depends on the others."""
        function = activation(self.activation)
        x = self.norms[0](x)
        for layer, norm in zip(self.layers, self.norms[1:], strict=True):
            x = norm(function(layer(x)))
        return x

    def hidden(self, x: Float[Array, "*N I"]) -> list[Array]:
        """What every layer puts out in evaluation, before its normalisation."""
        function, outputs = activation(self.activation), []
        x = self.norms[0](x)
        for layer, norm in zip(self.layers, self.norms[1:], strict=True):
            outputs.append(function(layer(x)))
            x = norm(outputs[-1])
        return outputs

    def train(
        self, x: Float[Array, "*N I"], mask: Bool[Array, "*N"] | None, momentum: Any, warm_up: Any
    ) -> tuple[Float[Array, "*N O"], NormedMLP]:
        """Training: outputs, and the network with new running statistics."""
        function = activation(self.activation)
        x, norm = self.norms[0].train(x, mask, momentum, warm_up)
        norms = [norm]
        for layer, old in zip(self.layers, self.norms[1:], strict=True):
            x, norm = old.train(function(layer(x)), mask, momentum, warm_up)
            norms.append(norm)
        return x, eqx.tree_at(lambda net: net.norms, self, tuple(norms))


def keep_statistics(new: Any, old: Any) -> Any:
    """The parameters of `new` with the running statistics of `old`: what an optimiser must not touch."""

    def one(a: Any, b: Any) -> Any:
        if not isinstance(a, BatchRenorm):
            return a
        return eqx.tree_at(lambda n: (n.mean, n.variance, n.updates), a, (b.mean, b.variance, b.updates))

    return jax.tree.map(one, new, old, is_leaf=lambda x: isinstance(x, BatchRenorm))
