"""Learning from stored sequences [N, burn-in + L, …], each of one episode."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from sparring.nets.sight import Trunk
from sparring.ops.returns import n_step
from sparring.types import Obs, Transition


class Prepared(NamedTuple):
    """Sequences in time, [S, N, …], with what came after the last step appended to the observations."""

    data: Transition
    obs: Obs
    """[S + 1, N, …]: the observation of every step, then the one that followed the last valid step"""
    first: Bool[Array, "S1 N"]


def prepared(data: Transition, seen: Obs, seen_next: Obs) -> Prepared:
    """Sequences turned time-major; a place after the last valid step holds what followed that step."""
    whole = data._replace(core=None, extras=data.extras._replace(frames=None, core=None))
    turned, seen, seen_next = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (whole, seen, seen_next))
    valid = turned.mask

    def extended(obs: Array, follows: Array) -> Array:
        here = valid[1:].reshape((valid.shape[0] - 1, valid.shape[1], *(1,) * (obs.ndim - 2)))
        return jnp.concatenate([obs[:1], jnp.where(here, obs[1:], follows[:-1]), follows[-1:]])

    first = jnp.concatenate([turned.first & valid, jnp.zeros_like(valid[:1])])
    return Prepared(turned, jax.tree.map(extended, seen, seen_next), first)


def unrolled(
    trunk: Trunk, memory: Any, obs: Obs, first: Bool[Array, "S N"], burn_in: int
) -> Float[Array, "L N F"]:
    """Features after the burn-in, which warms the core up without a gradient."""
    if burn_in == 0:
        return trunk.unroll(memory, obs, first)[0]
    before = jax.tree.map(lambda x: x[:burn_in], (obs, first))
    warm = jax.lax.stop_gradient(trunk.unroll(memory, *before)[1])
    return trunk.unroll(warm, *jax.tree.map(lambda x: x[burn_in:], (obs, first)))[0]


def bootstrapped(
    reward: Float[Array, "L N"],
    next_value: Float[Array, "L N"],
    steps: Transition,
    gamma: Any,
    n: int,
) -> Float[Array, "L N"]:
    """n-step targets of every step: as many steps as the episode and the sequence have, then the value."""
    length = reward.shape[0]
    window = jnp.minimum(jnp.arange(length)[:, None] + jnp.arange(n), length - 1)
    ends = jnp.concatenate([~steps.mask[1:], jnp.ones_like(steps.mask[:1])])  # what follows is no step

    def windows(x: Array) -> Array:  # [L, N] as [L · N, n]
        return jnp.swapaxes(x[window], 1, 2).reshape(-1, n)

    lasted = None if steps.elapsed is None else windows(steps.elapsed)
    total, discount, last = n_step(
        windows(reward), windows(steps.terminated), windows(steps.truncated | ends), gamma, lasted
    )
    place = jnp.minimum(jnp.arange(length)[:, None] + last.reshape(reward.shape), length - 1)
    value = jnp.take_along_axis(next_value, place, axis=0)
    return total.reshape(reward.shape) + discount.reshape(reward.shape) * value
