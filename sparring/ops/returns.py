"""Returns and advantages over time-major rollouts; termination stops the value, truncation only the trace."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from sparring.ops.recurrence import backwards
from sparring.types import Metrics


def gae(
    reward: Float[Array, "T B"],
    value: Float[Array, "T B"],
    next_value: Float[Array, "T B"],
    terminated: Bool[Array, "T B"],
    truncated: Bool[Array, "T B"],
    gamma: Any,
    gae_lambda: Any,
    mask: Bool[Array, "T B"] | None = None,
    elapsed: Any = None,
) -> Float[Array, "T B"]:
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16).

    A_t = Σ_k (γλ)^k δ_{t+k},  δ_t = r_t + γ (1 - terminated_t) V(next_obs_t) - V(obs_t);
    the sum ends at a termination, a truncation or a masked entry. `elapsed` raises γ to the number of
    environment steps that a decision lasted.
    """
    discount = gamma if elapsed is None else gamma**elapsed
    delta = reward + jnp.where(terminated, 0.0, discount * next_value) - value
    trace = jnp.where(terminated | truncated, 0.0, discount * gae_lambda * jnp.ones_like(value))
    if mask is not None:  # `where`, never a product: 0 · NaN would leak from the padding
        delta = jnp.where(mask, delta, 0.0)
        trace = jnp.where(mask, trace, 0.0)
    return backwards(trace, delta)


def q_lambda(
    reward: Float[Array, "T B"],
    next_value: Float[Array, "T B"],
    terminated: Bool[Array, "T B"],
    truncated: Bool[Array, "T B"],
    gamma: Any,
    trace: Any,
    mask: Bool[Array, "T B"] | None = None,
    elapsed: Any = None,
) -> Float[Array, "T B"]:
    """Peng's Q(λ) (Peng & Williams 1996): G_t = r_t + γ [(1 - λ) max_a Q(s_{t+1}, a) + λ G_{t+1}].

    `next_value` is max_a Q of what followed. Where an episode ends, is cut, or the rollout is over, λ is 0;
    a termination has no value after it.
    """
    discount = gamma if elapsed is None else gamma**elapsed
    follows = jnp.concatenate([jnp.ones_like(terminated[1:]), jnp.zeros_like(terminated[:1])])
    if mask is not None:
        follows = follows & jnp.concatenate([mask[1:], mask[:1]])
    goes_on = follows & ~terminated & ~truncated
    kept = jnp.where(goes_on, trace, jnp.zeros_like(reward))
    one_step = reward + jnp.where(terminated, 0.0, discount * (1.0 - kept) * next_value)
    if mask is not None:
        one_step = jnp.where(mask, one_step, 0.0)
    return backwards(discount * kept, one_step)


def monte_carlo(
    reward: Float[Array, "T B"],
    ended: Bool[Array, "T B"],
    gamma: Any,
    mask: Bool[Array, "T B"] | None = None,
    elapsed: Any = None,
) -> Float[Array, "T B"]:
    """Discounted return of the rewards to the end of each episode; nothing is bootstrapped."""
    discount = (gamma if elapsed is None else gamma**elapsed) * jnp.ones_like(reward)
    discount = jnp.where(ended, 0.0, discount)
    if mask is not None:
        reward = jnp.where(mask, reward, 0.0)
        discount = jnp.where(mask, discount, 0.0)
    return backwards(discount, reward)


class NStep(NamedTuple):
    """What n steps earned, and how to go on from them."""

    reward: Float[Array, " N"]
    """Σ γ^k r_k over the steps of the first episode in the window"""
    discount: Float[Array, " N"]
    """factor on the value of the last step's `next_obs`: 0 after a termination"""
    last: Int[Array, " N"]
    """the step whose `next_obs` follows"""


def n_step(
    reward: Float[Array, "N n"],
    terminated: Bool[Array, "N n"],
    truncated: Bool[Array, "N n"],
    gamma: Any,
    elapsed: Any = None,
) -> NStep:
    """The return of a window of n steps, cut where an episode ends in it.

    R = Σ_{k<m} γ^k r_k and γ^m V(next_obs_{m-1}), m being n or the steps to the first end; a truncation
    bootstraps after its own step, a termination does not. `elapsed` counts environment steps per decision.
    """
    steps = reward.shape[1]
    over = terminated | truncated
    last = jnp.where(over.any(axis=1), jnp.argmax(over, axis=1), steps - 1).astype(jnp.int32)
    inside = jnp.arange(steps) <= last[:, None]
    lasted = jnp.ones_like(reward) if elapsed is None else elapsed.astype(reward.dtype)
    after = jnp.cumsum(jnp.where(inside, lasted, 0.0), axis=1)
    weight = gamma ** (after - lasted)
    total = jnp.sum(jnp.where(inside, weight * reward, 0.0), axis=1)
    ended = jnp.take_along_axis(terminated, last[:, None], axis=1)[:, 0]
    return NStep(total, jnp.where(ended, 0.0, gamma ** after[:, -1]), last)


def rescale(x: Array, epsilon: float = 1e-3) -> Array:
    """Values in a compressed scale: h(x) = sgn(x) (√(|x| + 1) - 1) + εx (Pohlen et al. 2018)."""
    return jnp.sign(x) * (jnp.sqrt(jnp.abs(x) + 1.0) - 1.0) + epsilon * x


def unscale(y: Array, epsilon: float = 1e-3) -> Array:
    """The inverse of `rescale`."""
    root = (jnp.sqrt(1.0 + 4.0 * epsilon * (jnp.abs(y) + 1.0 + epsilon)) - 1.0) / (2.0 * epsilon)
    return jnp.sign(y) * (jnp.square(root) - 1.0)


def explained_variance(
    prediction: Array, target: Array, mask: Bool[Array, "..."] | None = None
) -> Float[Array, ""]:
    """1 - Var(target - prediction) / Var(target): 1 is perfect, 0 no better than a constant; 0 if flat."""
    spread = masked_var(target, mask)
    return jnp.where(
        spread > 0, 1.0 - masked_var(target - prediction, mask) / jnp.where(spread > 0, spread, 1.0), 0.0
    )


def described(returns: Array, advantage: Array | None, mask: Array | None) -> Metrics:
    """Size of the value targets and, before they are standardised, of the advantages and of their mean."""

    def largest(x: Array) -> Array:
        return jnp.max(jnp.abs(x if mask is None else jnp.where(mask, x, 0.0)))

    found = {"stats/value_target_max": largest(returns)}
    if advantage is not None:
        deviation = jnp.sqrt(masked_var(advantage, mask))
        found["stats/advantage_max"] = largest(advantage)
        found["stats/advantage_bias"] = jnp.abs(masked_mean(advantage, mask)) / jnp.maximum(deviation, 1e-8)
    return found


def masked_mean(x: Array, mask: Array | None) -> Array:
    """Mean over the valid entries; 0 when there are none."""
    if mask is None:
        return jnp.mean(x)
    return jnp.sum(jnp.where(mask, x, 0.0)) / jnp.maximum(jnp.sum(mask), 1)


def masked_var(x: Array, mask: Array | None) -> Array:
    """Population variance over the valid entries."""
    return masked_mean(jnp.square(x - masked_mean(x, mask)), mask)


def standardise(x: Array, mask: Array | None, epsilon: float = 1e-8) -> Array:
    """Zero mean and unit deviation over the valid entries."""
    return (x - masked_mean(x, mask)) / (jnp.sqrt(masked_var(x, mask)) + epsilon)
