"""Several policies on one trunk: each head has a value and advantages, and its policy is their softmax.

The dueling structure of CASA (Xiao et al. 2021): Q_i = A_i - E_{π_i} A_i + V_i, with the policy and the value
held constant, so that E_{π_i} Q_i = V_i, the Q-loss never moves V_i, and Q-regression moves the advantages in
the direction of the policy's gradient. A choice space is D branches of up to W options, as in `nets.values`;
the advantage of a joint choice is the sum over branches.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from sparring.nets import sight
from sparring.nets.heads import Codec, branches
from sparring.nets.layers import MLP, Dense
from sparring.nets.sight import AgentConfig, Trunk
from sparring.nets.values import branch_sizes
from sparring.ops.distributions import ILLEGAL, drawn
from sparring.ops.keys import several
from sparring.ops.statistics import Moments
from sparring.spaces import EnvSpec
from sparring.types import Key


class Judged(NamedTuple):
    """What the heads say of observations."""

    value: Float[Array, "*N H"]
    advantage: Float[Array, "*N H D W"]
    """`ILLEGAL` for options that do not exist or may not be taken"""


class Policies(eqx.Module):
    """V_i and A_i of every head."""

    trunk: Trunk
    body: MLP
    value: Dense
    advantage: Dense
    codec: Codec = eqx.field(static=True)
    heads: int = eqx.field(static=True)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Options of every branch."""
        return branch_sizes(self.codec)

    def __call__(self, features: Float[Array, "*N F"], legal: Array | None = None) -> Judged:
        latent = self.body(features)
        shape = (*latent.shape[:-1], self.heads, len(self.sizes), max(self.sizes))
        may = branches(self.sizes, legal)
        may = may if may.ndim == 2 else may[..., None, :, :]
        return Judged(self.value(latent), jnp.where(may, self.advantage(latent).reshape(shape), ILLEGAL))


class PolicyWeights(NamedTuple):
    """All that acting needs."""

    nets: Policies
    moments: Moments | None
    clip: Any
    """bound of normalised observations now"""
    sharpness: Float[Array, ""]
    """1 / temperature of the target policies now"""
    reward_scale: Float[Array, ""]
    """factor on rewards now"""


def build(
    spec: EnvSpec,
    config: AgentConfig,
    key: Key,
    sizes: tuple[int, ...],
    codec: Codec,
    heads: int,
    norm: bool,
) -> Policies:
    """Freshly initialised networks; all policies start close to uniform."""
    trunk_key, body_key, value_key, advantage_key = several(key, 4)
    trunk = sight.trunk(spec, config, trunk_key, None)
    body = MLP(body_key, trunk.outputs, sizes, config.activation, None, False, norm)
    options = branch_sizes(codec)
    outputs = heads * len(options) * max(options)
    return Policies(
        trunk,
        body,
        Dense(value_key, body.outputs, heads, None),
        Dense(advantage_key, body.outputs, outputs, 0.01),
        codec,
        heads,
    )


def log_policy(
    advantage: Float[Array, "*N H D W"], sharpness: Float[Array, "*N H"] | Any
) -> Float[Array, "*N H D W"]:
    """log softmax(A · sharpness) per branch; sharpness is 1 / temperature, and 0 is uniform over options."""
    may = advantage > 0.5 * ILLEGAL
    scale = jnp.asarray(sharpness)[..., None, None]
    return jax.nn.log_softmax(jnp.where(may, advantage * scale, ILLEGAL), axis=-1)


def taken(table: Float[Array, "*N H D W"], choice: Int[Array, "*N D"]) -> Float[Array, "*N H"]:
    """The sum over branches of the entries that were chosen; a product, whose gradient is no scatter."""
    hot = jax.nn.one_hot(choice, table.shape[-1], dtype=table.dtype)[..., None, :, :]
    return jnp.sum(jnp.where(hot > 0, table, 0.0), axis=(-2, -1))


def q_of(
    judged: Judged, log_pi: Float[Array, "*N H D W"], choice: Int[Array, "*N D"]
) -> Float[Array, "*N H"]:
    """Q_i of what was chosen: A_i - E_{π_i} A_i + V_i, gradients through A_i alone."""
    weight = jax.lax.stop_gradient(jnp.exp(log_pi))
    mean = jnp.sum(jnp.where(weight > 0, weight * judged.advantage, 0.0), axis=(-2, -1))
    return taken(judged.advantage, choice) - mean + jax.lax.stop_gradient(judged.value)


def log_mixture(
    log_parts: Float[Array, "*N P D W"], weight: Float[Array, "*N P"], choice: Int[Array, "*N D"]
) -> Float[Array, "*N"]:
    """log μ of a joint choice: μ is a mixture of policies, each a product over branches."""
    return jax.nn.logsumexp(taken(log_parts, choice), b=weight, axis=-1)


def mixed(log_parts: Float[Array, "*N P D W"], weight: Float[Array, "*N P"]) -> Float[Array, "*N D W"]:
    """μ of every option, branch by branch."""
    return jnp.sum(jnp.exp(log_parts) * weight[..., None, None], axis=-3)


def draw(key: Key, log_parts: Float[Array, "B P D W"], weight: Float[Array, "B P"]) -> Int[Array, "B D"]:
    """A choice from the mixture: one policy for all branches, then an option of every branch."""
    part_key, option_key = several(key, 2)
    part = drawn(part_key, jnp.log(weight))
    rows = jnp.arange(part.shape[0])
    return drawn(option_key, log_parts[rows, part])
