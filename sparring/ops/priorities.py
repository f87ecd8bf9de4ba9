"""How much replayed experience matters: importance weights, and the errors that become priorities."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

LEAST_DEVIATION = 0.01
"""Errors are not divided by less (Kapturowski et al. 2023)."""
KEPT = 0.99
"""Share of the running moments that outlives one batch."""


def importance(scaled_probability: Float[Array, " N"], beta: Any) -> Float[Array, " N"]:
    """Weights that undo prioritised sampling: w = (N·P)^-β, divided by the largest in the batch.

    Schaul et al. (2016, section 3.4). `scaled_probability` is N·P(i), 1 everywhere under uniform sampling.
    """
    return (jnp.min(scaled_probability) / scaled_probability) ** beta


def of_sequence(error: Float[Array, "N L"], mask: Bool[Array, "N L"], eta: Any) -> Float[Array, " N"]:
    """η · max |δ| + (1 - η) · mean |δ| over the valid steps (Kapturowski et al. 2019, section 2.3)."""
    size = jnp.where(mask, jnp.abs(error), 0.0)
    mean = jnp.sum(size, axis=1) / jnp.maximum(jnp.sum(mask, axis=1), 1)
    return eta * jnp.max(size, axis=1) + (1.0 - eta) * mean


class Spread(NamedTuple):
    """Exponentially forgetting sums of 1, δ and δ² per head."""

    weight: Float[Array, " H"]
    mean: Float[Array, " H"]
    square: Float[Array, " H"]


def start_spread(heads: int) -> Spread:
    """No error has been seen."""
    return Spread(*(jnp.zeros(heads) for _ in Spread._fields))


def over_heads(
    spread: Spread, error: Float[Array, "*N H"], mask: Bool[Array, "*N"] | None = None
) -> tuple[Float[Array, "*N"], Spread]:
    """Σ_i |δ_i| / σ_i: the errors of several heads on one scale, and the moments after this batch.

    σ_i = max(running deviation, the batch's deviation, 0.01) (MEME, Kapturowski et al. 2023, section 3.1), so
    that no head decides alone what is replayed.
    """
    axes = tuple(range(error.ndim - 1))
    valid = jnp.ones(error.shape[:-1], bool) if mask is None else mask
    count = jnp.maximum(jnp.sum(valid), 1)

    def mean(x: Float[Array, "*N H"]) -> Float[Array, " H"]:
        return jnp.sum(jnp.where(valid[..., None], x, 0.0), axes) / count

    batch = Spread(jnp.ones(error.shape[-1]), mean(error), mean(jnp.square(error)))
    new = Spread(*(KEPT * old + (1.0 - KEPT) * now for old, now in zip(spread, batch, strict=True)))
    sigma = jnp.maximum(jnp.maximum(_deviation(new), _deviation(batch)), LEAST_DEVIATION)
    return jnp.sum(jnp.abs(error) / sigma, axis=-1), new


def _deviation(spread: Spread) -> Float[Array, " H"]:
    mean = spread.mean / spread.weight
    return jnp.sqrt(jnp.maximum(spread.square / spread.weight - jnp.square(mean), 0.0))
