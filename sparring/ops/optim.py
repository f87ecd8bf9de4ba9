"""Optimisers, built in one place so that a clip by norm is a clip by norm."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

Name = Literal["adam", "radam", "rmsprop"]


class Rule(Protocol):
    """What makes directions of gradients, as optax has them."""

    @property
    def init(self) -> Any: ...
    @property
    def update(self) -> Any: ...


class Step(NamedTuple):
    """New parameters, new optimiser state, and the gradient's norm before clipping."""

    params: Any
    state: Any
    norm: Float[Array, ""]


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba 2015, the faster form of section 2), on optax's state.

    Both corrections of the bias are one factor: √(1 - β2^t) / (1 - β1^t) · m / (√v + ε √(1 - β2^t)) has one
    division and one root per parameter, which is most of what a step of a small network costs on a CPU.
    """

    eps: float = 1e-8
    b1: float = 0.9
    b2: float = 0.999

    def init(self, params: Any) -> optax.ScaleByAdamState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return optax.ScaleByAdamState(jnp.zeros((), jnp.int32), zeros, jax.tree.map(jnp.copy, zeros))

    def update(self, gradient: Any, state: optax.ScaleByAdamState) -> tuple[Any, optax.ScaleByAdamState]:
        """The direction of a step down, and the state after it."""
        mu = jax.tree.map(lambda m, g: self.b1 * m + (1.0 - self.b1) * g, state.mu, gradient)
        nu = jax.tree.map(lambda v, g: self.b2 * v + (1.0 - self.b2) * jnp.square(g), state.nu, gradient)
        state = optax.ScaleByAdamState(optax.safe_increment(state.count), mu, nu)
        return self.direction(state), state

    def direction(self, state: optax.ScaleByAdamState) -> Any:
        """The direction that led to this state."""
        count = state.count.astype(jnp.float32)
        root = jnp.sqrt(_seen(self.b2, count))
        scale, eps = root / _seen(self.b1, count), self.eps * root
        return jax.tree.map(lambda m, v: scale * (m / (jnp.sqrt(v) + eps)), state.mu, state.nu)


def _seen(decay: float, count: Array) -> Array | float:
    """1 - β^t: how much of a mean with that decay is data and not the zero it began with."""
    return -jnp.expm1(count * math.log(decay)) if decay else 1.0


def transform(name: Name, eps: float, decay: float = 0.99) -> Rule:
    """The direction of a step: Adam, rectified Adam, or RMSProp as torch (and so SB3) defines it."""
    if name == "adam":
        return Adam(eps)
    if name == "radam":
        return optax.scale_by_radam(eps=eps)
    return optax.scale_by_rms(decay=decay, eps=eps, eps_in_sqrt=False, bias_correction=False)


def apply(
    rule: Rule,
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
    norm = norm_of(gradient)
    if max_grad_norm is not None:
        scale = jnp.minimum(1.0, max_grad_norm / (norm + 1e-6))
        gradient = jax.tree.map(lambda g: g * scale, gradient)
    direction, state = rule.update(gradient, state)
    if weight_decay is not None:
        direction = jax.tree.map(lambda d, p: d + weight_decay * p, direction, params)
    new = jax.tree.map(lambda p, d: p - learning_rate * jnp.asarray(d), params, direction)
    return Step(new, state, norm)


def norm_of(tree: Any) -> Float[Array, ""]:
    """The Euclidean norm of all numbers of a tree."""
    return jnp.sqrt(sum((jnp.sum(jnp.square(x)) for x in jax.tree.leaves(tree)), jnp.zeros(())))


def moved(rule: Adam, step: Step, learning_rate: Any, weight_decay: Any = 0.0) -> Any:
    """What a step added to the parameters, from what it left behind.

    Whoever keeps the parameters as they were keeps XLA from writing the new ones in their place.
    """

    def one(new: Array, direction: Array) -> Array:
        before = (new + learning_rate * direction) / (1.0 - learning_rate * weight_decay)
        return -learning_rate * (direction + weight_decay * before)

    return jax.tree.map(one, step.params, rule.direction(step.state))
