"""Optimisers on one flat vector, built in one place so that a clip by norm is a clip by norm."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

Name = Literal["adam", "rmsprop"]


class Step(NamedTuple):
    """New parameters, new optimiser state, and the gradient's norm before clipping."""

    params: Float[Array, " P"]
    state: Any
    norm: Float[Array, ""]


def transform(name: Name, eps: float, decay: float = 0.99) -> optax.GradientTransformation:
    """The direction of a step for a flat vector: Adam, or RMSProp as torch (and so SB3) defines it."""
    if name == "adam":
        return optax.scale_by_adam(eps=eps)
    return optax.scale_by_rms(decay=decay, eps=eps, eps_in_sqrt=False, bias_correction=False)


def apply(
    rule: optax.GradientTransformation,
    params: Float[Array, " P"],
    state: Any,
    gradient: Float[Array, " P"],
    learning_rate: Any,
    max_grad_norm: Any,
) -> Step:
    """One step with the gradient scaled down to at most `max_grad_norm` (no clipping when None)."""
    norm = jnp.sqrt(jnp.sum(jnp.square(gradient)))
    if max_grad_norm is not None:
        gradient = gradient * jnp.minimum(1.0, max_grad_norm / (norm + 1e-6))
    direction, state = rule.update(gradient, state)
    return Step(params - learning_rate * jax.numpy.asarray(direction), state, norm)
