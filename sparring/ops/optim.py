"""Optimisers, built in one place so that a clip by norm is a clip by norm."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

Name = Literal["adam", "radam", "rmsprop"]


class Step(NamedTuple):
    """New parameters, new optimiser state, and the gradient's norm before clipping."""

    params: Any
    state: Any
    norm: Float[Array, ""]


def transform(
    name: Name, eps: float, decay: float = 0.99, b1: float = 0.9, b2: float = 0.999
) -> optax.GradientTransformation:
    """The direction of a step: Adam, rectified Adam, or RMSProp as torch (and so SB3) defines it."""
    if name == "adam":
        return optax.scale_by_adam(b1=b1, b2=b2, eps=eps)
    if name == "radam":
        return optax.scale_by_radam(b1=b1, eps=eps)
    return optax.scale_by_rms(decay=decay, eps=eps, eps_in_sqrt=False, bias_correction=False)


def apply(
    rule: optax.GradientTransformation,
    params: Any,
    state: Any,
    gradient: Any,
    learning_rate: Any,
    max_grad_norm: Any,
    weight_decay: Any = None,
) -> Step:
    """One step with the gradient scaled down to at most `max_grad_norm` (no clipping when None).

    `weight_decay` shrinks the parameters apart from the gradient (AdamW, Loshchilov & Hutter 2019).
    Parameters are a tree of arrays; many small steps on a small network are quicker on one flat vector.
    """
    norm = jnp.sqrt(sum((jnp.sum(jnp.square(g)) for g in jax.tree.leaves(gradient)), jnp.zeros(())))
    if max_grad_norm is not None:
        scale = jnp.minimum(1.0, max_grad_norm / (norm + 1e-6))
        gradient = jax.tree.map(lambda g: g * scale, gradient)
    direction, state = rule.update(gradient, state)
    if weight_decay is not None:
        direction = jax.tree.map(lambda d, p: d + weight_decay * p, direction, params)
    new = jax.tree.map(lambda p, d: p - learning_rate * jnp.asarray(d), params, direction)
    return Step(new, state, norm)
