"""Policy and value of an actor-critic: trunk → body → head → codec, all saved with the agent."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from sparring.config import configuration
from sparring.errors import ConfigError
from sparring.nets import checkup, sight
from sparring.nets.heads import Codec, Head
from sparring.nets.layers import MLP, Dense
from sparring.nets.sight import AgentConfig, BinsConfig, Carry, Trunk, Valued
from sparring.ops.distributions import Distribution
from sparring.ops.keys import several
from sparring.ops.statistics import Moments
from sparring.spaces import Box, EnvSpec
from sparring.types import Behaviour, Key, Metrics, Obs, Transition, View


@configuration
class ActorConfig(AgentConfig):
    """Settings of a policy network."""

    pi: tuple[int, ...] = (64, 64)
    """hidden sizes of the policy network"""
    log_std_init: float = 0.0
    """initial log standard deviation of a Gaussian policy"""
    use_sde: bool = False
    """generalised state-dependent exploration"""
    sde_sample_freq: int = -1
    """steps between draws of gSDE's noise; -1 draws once per rollout"""


@configuration
class PolicyConfig(ActorConfig, BinsConfig):
    """Settings of policy and value network."""

    vf: tuple[int, ...] = (64, 64)
    """hidden sizes of the value network"""
    ortho_init: bool = True
    """orthogonal initialisation, or torch's uniform one"""
    share_features: bool = True
    """one image or custom torso for policy and value, or one each; a core is always shared"""
    log_std: Literal["free", "state"] = "free"
    """standard deviation as a free parameter, or as an output of the network"""
    squash: bool = False
    """squash Gaussian actions with tanh to the bounds, instead of clipping"""


class Actor(eqx.Module):
    """Trunk, body and head of the policy."""

    trunk: Trunk
    body: MLP
    head: Head

    def latent(self, features: Array) -> Array:
        return self.body(features)

    def __call__(self, features: Array, legal: Array | None) -> Distribution:
        return self.head(self.body(features), legal)


class Critic(eqx.Module):
    """Body and value output, with a trunk of its own unless it shares the actor's."""

    trunk: Trunk | None
    body: MLP
    value: Dense

    def __call__(self, features: Array) -> Float[Array, "*N"]:
        return self.value(self.body(features))[..., 0]


class Nets(eqx.Module):
    """Policy and value network of an actor-critic."""

    actor: Actor
    critic: Critic | None

    def __call__(
        self, obs: Obs, legal: Array | None, first: Array | None = None, memory: Any = None
    ) -> tuple[Distribution, Float[Array, "*N"] | None]:
        """Distribution and value of normalised observations; with a core, of sequences [T, B, …]."""
        shown, _ = self.actor.trunk.unroll(memory, obs, first)
        chosen = self.actor(shown, legal)
        if self.critic is None:
            return chosen, None
        own = shown if self.critic.trunk is None else self.critic.trunk.torso(obs)
        return chosen, self.critic(own)


class Weights(NamedTuple):
    """All that acting needs: the actor and the observation statistics."""

    actor: Actor
    moments: Moments | None
    clip: Any = None
    """bound of normalised observations now"""


class Choice(NamedTuple):
    """What acting stores with a transition; a field is None when it would repeat another."""

    log_prob: Float[Array, "*T"]
    sample: Array | None = None
    """what the head drew, when the action is a translation of it"""
    frames: Obs | None = None
    """the stacked observation, when there is a stack"""


def weights(config: PolicyConfig, nets: Nets, moments: Moments | None) -> Weights:
    """What acting needs of networks and statistics; `config` is resolved."""
    return Weights(nets.actor, moments, sight.clip(config, moments))


def action_codec(spec: EnvSpec, config: PolicyConfig) -> Codec:
    """The codec that the settings ask for."""
    return sight.action_codec(spec, config, config.squash)


def build(spec: EnvSpec, config: PolicyConfig, key: Key, critic: bool = True) -> Nets:
    """Freshly initialised networks."""
    trunk_key, own_key, pi_key, vf_key, head_key, value_key = several(key, 6)
    gain = math.sqrt(2.0) if config.ortho_init else None

    def gained(value: float) -> float | None:
        return value if config.ortho_init else None

    shared = sight.trunk(spec, config, trunk_key, gain)
    body = MLP(pi_key, shared.outputs, config.pi, config.activation, gain)
    head = Head(
        head_key,
        body.outputs,
        action_codec(spec, config),
        gained(0.01),
        config.log_std_init,
        config.log_std,
        config.use_sde,
    )
    actor = Actor(shared, body, head)
    if not critic:
        return Nets(actor, None)
    if config.core != "none" and not config.share_features:
        raise ConfigError("A core is shared by policy and value: leave share_features on, or core out.")
    own = None if config.share_features else sight.trunk(spec, config, own_key, gain)
    value_body = MLP(vf_key, shared.outputs, config.vf, config.activation, gain)
    return Nets(actor, Critic(own, value_body, Dense(value_key, value_body.outputs, 1, gained(1.0))))


def start_carry(spec: EnvSpec, config: ActorConfig, rows: int) -> Carry:
    """The carry before the first step."""
    noise = age = None
    if config.use_sde:
        if not isinstance(spec.action, Box):
            raise ConfigError("use_sde needs a Box action space without action_bins.")
        latent = config.pi[-1] if config.pi else _features(spec, config)
        noise = jnp.zeros((rows, latent, spec.action.size))
        age = jnp.zeros((), jnp.int32)
    frames = sight.start_frames(spec, config, rows)
    return Carry(frames, noise, age, sight.start_core(spec, config, rows))


def _features(spec: EnvSpec, config: ActorConfig) -> int:
    """Length of the feature vector that the trunk hands on."""
    shapes = jax.eval_shape(lambda: sight.trunk(spec, config, jax.random.key(0), None))
    return int(shapes.outputs)


class Sight(NamedTuple):
    """What the actor makes of a view before it decides."""

    frames: Obs | None
    latent: Array
    chosen: Distribution
    core: Any


def see(weights: Weights, carry: Carry, view: View) -> Sight:
    """The distribution of the next action, and what it was made from."""
    actor = weights.actor
    frames, features, core = sight.look(actor.trunk, weights.clip, weights.moments, carry, view)
    latent = actor.latent(features)
    return Sight(frames, latent, actor.head(latent, view.legal), core)


def act(
    config: ActorConfig,
    weights: Weights,
    carry: Carry,
    view: View,
    behaviour: Behaviour,
    key: Key,
    rollout: int,
) -> tuple[Array, Choice, Carry]:
    """One decision per row: the environment's action, what to store, and the next carry."""
    translate = weights.actor.head.codec
    frames, latent, chosen, core = see(weights, carry, view)
    if behaviour.temperature is not None:
        chosen = chosen.tempered(behaviour.temperature)
    noise, age = carry.noise, carry.age
    if config.use_sde:
        assert noise is not None
        assert age is not None
        period = config.sde_sample_freq if config.sde_sample_freq > 0 else rollout
        noise = jax.lax.cond(
            age % period == 0, lambda: weights.actor.head.noise_matrix(key, noise.shape[0]), lambda: noise
        )
        age = age + 1
        scale = 1.0 if behaviour.temperature is None else behaviour.temperature[:, None]
        shift = jnp.einsum("bi,bia->ba", latent, noise) * scale
        sample = chosen.mode() + (shift if view.legal is None else jnp.where(view.legal, shift, 0.0))
    else:
        sample = chosen.sample(key)
    if behaviour.greedy is not None:
        greedy = behaviour.greedy.reshape((-1,) + (1,) * (sample.ndim - 1))
        sample = jnp.where(greedy, chosen.mode(), sample)
    stored = None if translate.identity else sample
    choice = Choice(chosen.log_prob(sample), stored, frames)
    return translate.decode(sample), choice, Carry(frames, noise, age, core)


def evaluate(
    config: PolicyConfig,
    nets: Nets,
    moments: Moments | None,
    obs: Obs,
    legal: Array | None,
    first: Bool[Array, "T B"] | None = None,
    memory: Any = None,
) -> tuple[Distribution, Float[Array, "*N"] | None]:
    """Distribution and value of stored observations; with a core, of sequences that start from `memory`."""
    shown = sight.normalised(config.clip_obs, moments, nets.actor.trunk.space, obs)
    return nets(shown, legal, first, memory)


def value(config: PolicyConfig, nets: Nets, moments: Moments | None, obs: Obs) -> Float[Array, "*N"]:
    """Value of stored observations by themselves; with a core, as the first of an episode."""
    shown = sight.normalised(config.clip_obs, moments, nets.actor.trunk.space, obs)
    assert nets.critic is not None
    return nets.critic(sight.alone(nets.critic.trunk or nets.actor.trunk, shown))


def valued(
    config: PolicyConfig, nets: Nets, moments: Moments | None, rollout: Transition, length: int = 0
) -> Valued:
    """V of every observation of a rollout and of what followed it, by the network that acted."""
    critic = nets.critic
    assert critic is not None
    trunk = critic.trunk or nets.actor.trunk
    return sight.valued(config, trunk, lambda features, legal: critic(features), moments, rollout, length)


def hidden(
    config: PolicyConfig, nets: Nets, moments: Moments | None, rollout: Transition
) -> list[list[Array]]:
    """What the hidden layers of policy and value make of a few observations [T, B, …], each by itself."""
    trunk, critic = nets.actor.trunk, nets.critic
    shown = _few(config, trunk, moments, rollout)
    features = sight.alone(trunk, shown)
    found = [nets.actor.body.hidden(features)]
    if critic is not None:
        own = features if critic.trunk is None else sight.alone(critic.trunk, shown)
        found.append(critic.body.hidden(own))
    return found


def logit_spread(config: PolicyConfig, nets: Nets, moments: Moments | None, rollout: Transition) -> Metrics:
    """How the logits of choices are spread around their mean, on those observations; nothing of numbers."""
    actor = nets.actor
    if isinstance(actor.head.codec.inner, Box):
        return {}
    latent = actor.body(sight.alone(actor.trunk, _few(config, actor.trunk, moments, rollout)))
    table, exists = actor.head.logits(latent)
    centred = table - jnp.mean(table, axis=-1, keepdims=True, where=exists)
    return checkup.spread("stats/logits", centred, jnp.broadcast_to(exists, table.shape))


def _few(config: PolicyConfig, trunk: Trunk, moments: Moments | None, rollout: Transition) -> Obs:
    """Some of a rollout's observations, as the torso gets them."""
    some = checkup.sampled(sight.seen(rollout), rollout.reward.ndim)
    return sight.normalised(config.clip_obs, moments, trunk.space, some)


def drawn(rollout: Transition) -> Array:
    """What the head drew."""
    return rollout.action if rollout.extras.sample is None else rollout.extras.sample
