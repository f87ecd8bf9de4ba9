"""Off-policy returns over time-major sequences: V-trace for values, Retrace for action values.

Time is the first axis; any axes may follow. `goes_on` says that the next entry continues the episode: False
at a termination, a truncation, before padding and at the last entry, where only the value takes over.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from sparring.ops.recurrence import backwards


class VTrace(NamedTuple):
    """Targets of the values, and advantages for the policy's gradient."""

    target: Float[Array, "T ..."]
    advantage: Float[Array, "T ..."]


def vtrace(
    reward: Float[Array, "T ..."],
    discount: Float[Array, "T ..."],
    value: Float[Array, "T ..."],
    next_value: Float[Array, "T ..."],
    goes_on: Bool[Array, "T ..."],
    ratio: Float[Array, "T ..."],
    rho_bar: Any,
    c_bar: Any,
    trace: Any = 1.0,
    baseline: Float[Array, "T ..."] | None = None,
) -> VTrace:
    """Espeholt et al. (2018, eq. 1), as a backward recursion.

    v_t = V_t + ρ_t (r_t + γ_t V'_t - b_t) + γ_t c_t (v_{t+1} - V_{t+1}), ρ = min(ρ̄, π/μ), c = λ min(c̄, π/μ);
    the advantage is r_t + γ_t v_{t+1} - V_t. γ_t is 0 after a termination; V'_t is the value of what truly
    followed the step. The baseline b is V; given Q of the actions taken instead, the trace is doubly robust
    (Xiao et al. 2021): where Q is right, clipped ratios do not move v away from E_π Q.
    """
    subtracted = value if baseline is None else baseline
    delta = jnp.minimum(rho_bar, ratio) * (reward + discount * next_value - subtracted)
    decay = jnp.where(goes_on, discount * trace * jnp.minimum(c_bar, ratio), 0.0)
    gain = backwards(decay, delta)
    ahead = jnp.concatenate([gain[1:], jnp.zeros_like(gain[:1])])
    follows = next_value + jnp.where(goes_on, ahead, 0.0)
    return VTrace(value + gain, reward + discount * follows - value)


def retrace(
    reward: Float[Array, "T ..."],
    discount: Float[Array, "T ..."],
    q: Float[Array, "T ..."],
    next_value: Float[Array, "T ..."],
    goes_on: Bool[Array, "T ..."],
    ratio: Float[Array, "T ..."],
    c_bar: Any,
    trace: Any,
) -> Float[Array, "T ..."]:
    """Munos et al. (2016, eq. 3), as a backward recursion.

    q_t = r_t + γ_t [V'_t + c_{t+1} (q_{t+1} - Q_{t+1})], c = λ min(c̄, π/μ), `q` being Q of the actions taken.
    `next_value` must be E_π Q of what followed.
    """
    clipped = trace * jnp.minimum(c_bar, ratio)
    later = jnp.concatenate([clipped[1:], jnp.zeros_like(clipped[:1])])
    gain = backwards(jnp.where(goes_on, discount * later, 0.0), reward + discount * next_value - q)
    return q + gain
