"""Action values of choices: trunk → body → advantages per branch and, when dueling, one shared value.

A choice space is D branches of up to W options: Discrete is one branch, MultiDiscrete as many as it has
parts (branching as in Tavakoli et al. 2018, arXiv 1711.08946: one advantage per branch, one value for all).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from sparring.errors import SpaceMismatch
from sparring.nets import checkup, sight
from sparring.nets.heads import Codec, branches
from sparring.nets.layers import MLP, Dense, Noisy
from sparring.nets.sight import AgentConfig, BinsConfig, Carry, Stored, Trunk
from sparring.ops.distributions import ILLEGAL, drawn
from sparring.ops.keys import several, uniform
from sparring.ops.statistics import Moments
from sparring.spaces import Discrete, EnvSpec, MultiBinary, MultiDiscrete, describe
from sparring.types import Behaviour, Key, Obs, Transition, View


class QNet(eqx.Module):
    """Q(s, ·) of every branch."""

    trunk: Trunk
    body: MLP
    advantage: Any
    value: Any | None
    codec: Codec = eqx.field(static=True)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Options of every branch."""
        return branch_sizes(self.codec)

    def __call__(self, features: Float[Array, "*N F"]) -> Float[Array, "*N D W"]:
        """Q of every option; options that do not exist are out of reach."""
        rows, latent = features.shape[0], self.body(self.body.filled(features))
        table = self.advantage(latent).reshape((*latent.shape[:-1], len(self.sizes), max(self.sizes)))
        exists = branches(self.sizes, None)
        if self.value is not None:  # Wang et al. 2016, arXiv 1511.06581, eq. 9
            counts = jnp.asarray(self.sizes, jnp.float32)[:, None]
            mean = jnp.sum(jnp.where(exists, table, 0.0), axis=-1, keepdims=True) / counts
            table = self.value(latent)[..., None] + table - mean
        return jnp.where(exists, table, ILLEGAL)[:rows]


class QWeights(NamedTuple):
    """All that acting on values needs."""

    nets: QNet
    moments: Moments | None
    clip: Any
    """bound of normalised observations now"""
    epsilon: Float[Array, ""]
    """share of random choices now"""
    random: Bool[Array, ""] | None = None
    """whether choices are still random, whatever ε a controller chooses; None without one"""


def branch_sizes(codec: Codec) -> tuple[int, ...]:
    """Options of every branch of a choice space."""
    match codec.inner:
        case Discrete(n):
            return (n,)
        case MultiDiscrete(sizes):
            return tuple(sizes)
        case _:
            raise AssertionError(codec.inner)


def choice_codec(spec: EnvSpec, config: BinsConfig, name: str) -> Codec:
    """How choices become actions; a space without choices is refused."""
    codec = sight.action_codec(spec, config)
    if not isinstance(codec.inner, (Discrete, MultiDiscrete)):
        instead = "Set action_bins=5 (or another number) to discretise a Box, or use SAC or TD3."
        if isinstance(codec.inner, MultiBinary):
            instead = "Use PPO or A2C."
        raise SpaceMismatch(
            f"{name} chooses among options, and {spec.id} has actions {describe(spec.action)}. {instead}"
        )
    return codec


def build(
    spec: EnvSpec,
    config: AgentConfig,
    key: Key,
    sizes: tuple[int, ...],
    codec: Codec,
    dueling: bool = False,
    noisy: bool = False,
    norm: bool = False,
) -> QNet:
    """A freshly initialised network, with torch's default initialisation as SB3's; several branches always
    share one value, beside which each has advantages."""
    trunk_key, body_key, advantage_key, value_key = several(key, 4)
    trunk = sight.trunk(spec, config, trunk_key, None)
    body = MLP(body_key, trunk.outputs, sizes, config.activation, None, noisy, norm)

    def output(key: Key, size: int) -> Any:
        return Noisy(key, body.outputs, size) if noisy else Dense(key, body.outputs, size, None)

    options = branch_sizes(codec)
    advantage = output(advantage_key, len(options) * max(options))
    shared = dueling or len(options) > 1
    return QNet(trunk, body, advantage, output(value_key, 1) if shared else None, codec)


def hidden(config: AgentConfig, nets: Any, moments: Moments | None, rollout: Transition) -> list[list[Array]]:
    """What the hidden layers make of a few observations of a rollout [T, B, …] or of sequences, each by
    itself."""
    obs = checkup.sampled(sight.seen(rollout), rollout.reward.ndim)
    shown = sight.normalised(config.clip_obs, moments, nets.trunk.space, obs)
    return [nets.body.hidden(sight.alone(nets.trunk, shown))]


def start_carry(spec: EnvSpec, config: AgentConfig, rows: int) -> Carry:
    """The carry before the first step."""
    return Carry(sight.start_frames(spec, config, rows), None, None, sight.start_core(spec, config, rows))


class Sight(NamedTuple):
    """What values say of a view before a choice is made."""

    frames: Obs | None
    table: Float[Array, "B D W"]
    core: Any


def see(weights: QWeights, carry: Carry, view: View) -> Sight:
    """Q of every option that is legal, and what it was made from."""
    nets = weights.nets
    frames, features, core = sight.look(nets.trunk, weights.clip, weights.moments, carry, view)
    return Sight(frames, masked(nets, nets(features), view.legal), core)


def act(
    weights: QWeights, carry: Carry, view: View, behaviour: Behaviour, key: Key, keep_core: bool = False
) -> tuple[Array, Stored, Carry]:
    """ε-greedy choices; a temperature in the behaviour draws from softmax(Q / temperature) instead."""
    nets = weights.nets
    frames, table, core = see(weights, carry, view)
    best = jnp.argmax(table, axis=-1).astype(jnp.int32)
    coin_key, option_key = several(key, 2)
    epsilon = weights.epsilon if behaviour.epsilon is None else behaviour.epsilon
    if behaviour.epsilon is not None and weights.random is not None:
        epsilon = jnp.where(weights.random, 1.0, epsilon)
    if behaviour.temperature is not None:
        chosen = drawn(option_key, table / behaviour.temperature[:, None, None])
    else:
        lots = uniform(option_key, table.shape)
        random = jnp.argmax(jnp.where(table > 0.5 * ILLEGAL, lots, -1.0), axis=-1).astype(jnp.int32)
        explores = uniform(coin_key, best.shape[:1]) <= epsilon
        chosen = jnp.where(explores[:, None], random, best)
    if behaviour.greedy is not None:
        chosen = jnp.where(behaviour.greedy[:, None], best, chosen)
    sample = chosen[:, 0] if isinstance(nets.codec.inner, Discrete) else chosen
    extras = Stored(None if nets.codec.identity else sample, frames, carry.core if keep_core else None)
    return nets.codec.decode(sample), extras, Carry(frames, None, None, core)


def where_row(rows: Bool[Array, " B"], yes: Array, no: Array) -> Array:
    """What is [B, …], by rows one or the other."""
    return jnp.where(rows.reshape(rows.shape + (1,) * (yes.ndim - 1)), yes, no)


def masked(nets: QNet, table: Float[Array, "*N D W"], legal: Array | None) -> Float[Array, "*N D W"]:
    """Values with illegal options out of reach."""
    return table if legal is None else jnp.where(branches(nets.sizes, legal), table, ILLEGAL)


def taken(table: Float[Array, "*N D W"], sample: Int[Array, "*N D"]) -> Float[Array, "*N D"]:
    """Q of the options that were chosen; a product, whose gradient is no scatter."""
    hot = jax.nn.one_hot(sample, table.shape[-1], dtype=table.dtype)
    return jnp.sum(jnp.where(hot > 0, table, 0.0), axis=-1)


def best(table: Float[Array, "*N D W"]) -> Float[Array, "*N"]:
    """The value of the best options: their mean over branches."""
    return jnp.mean(jnp.max(table, axis=-1), axis=-1)


def chosen(codec: Codec, data: Transition) -> Int[Array, "*N D"]:
    """What was chosen, per branch."""
    sample = data.action if data.extras.sample is None else data.extras.sample
    return sample[..., None] if isinstance(codec.inner, Discrete) else sample


def of(
    nets: QNet,
    clip: Any,
    moments: Moments | None,
    obs: Obs,
    first: Bool[Array, "T B"] | None = None,
    memory: Any = None,
) -> Float[Array, "*N D W"]:
    """Q of stored observations; with a core, of sequences that start from `memory`."""
    shown = sight.normalised(clip, moments, nets.trunk.space, obs)
    return nets(nets.trunk.unroll(memory, shown, first)[0])
