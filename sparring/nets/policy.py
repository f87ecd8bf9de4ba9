"""How an agent sees and acts: frames → normaliser → torso → body → head → codec, all saved with the agent."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from sparring.config import Schedulable, configuration
from sparring.errors import ConfigError, nearest
from sparring.nets.custom import custom_torso
from sparring.nets.heads import Codec, Head, codec
from sparring.nets.layers import MLP, Dense
from sparring.nets.torso import Torso
from sparring.ops import statistics
from sparring.ops.distributions import Distribution
from sparring.ops.keys import several
from sparring.ops.statistics import Moments
from sparring.reference import is_reference
from sparring.spaces import Box, EnvSpec, Space, describe, parts, zeros
from sparring.types import Behaviour, Key, Obs, Transition, View


@configuration
class PolicyConfig:
    """Settings of everything between an observation and an action."""

    network: str = "auto"
    """auto (NatureCNN for images, MLP otherwise), mlp, cnn, or file.py:Name for a torso of your own"""
    pi: tuple[int, ...] = (64, 64)
    """hidden sizes of the policy network"""
    vf: tuple[int, ...] = (64, 64)
    """hidden sizes of the value network"""
    activation: str = "tanh"
    """tanh, relu, elu, gelu, silu, leaky_relu, sigmoid or identity"""
    ortho_init: bool = True
    """orthogonal initialisation, or torch's uniform one"""
    share_features: bool = True
    """one image or custom torso for policy and value, or one each"""
    log_std_init: float = 0.0
    """initial log standard deviation of a Gaussian policy"""
    log_std: Literal["free", "state"] = "free"
    """standard deviation as a free parameter, or as an output of the network"""
    squash: bool = False
    """squash Gaussian actions with tanh to the bounds, instead of clipping"""
    use_sde: bool = False
    """generalised state-dependent exploration"""
    sde_sample_freq: int = -1
    """steps between draws of gSDE's noise; -1 draws once per rollout"""
    action_bins: tuple[int, ...] = ()
    """bins per dimension that turn a Box action space into choices; empty leaves it continuous"""
    action_grid: Literal["per_dimension", "joint"] = "per_dimension"
    """one choice per dimension, or one choice on the joint grid"""
    frame_stack: int = 1
    """observations shown together, newest last; an episode starts with its first one repeated"""
    normalize_obs: bool = False
    """running normalisation of observations (images excepted)"""
    normalize_reward: bool = False
    """running scaling of rewards by the deviation of the discounted return"""
    clip_obs: Schedulable = 10.0
    """bound of normalised observations"""
    clip_reward: Schedulable = 10.0
    """bound of normalised rewards"""
    reward_scale: Schedulable = 1.0
    """factor on rewards before anything else"""


class Actor(eqx.Module):
    """Torso, body and head of the policy."""

    torso: Any
    body: MLP
    head: Head

    def latent(self, features: Array) -> Array:
        return self.body(features)

    def __call__(self, features: Array, legal: Array | None) -> Distribution:
        return self.head(self.body(features), legal)


class Critic(eqx.Module):
    """Body and value output, with a torso of its own unless it shares the actor's."""

    torso: Any | None
    body: MLP
    value: Dense

    def __call__(self, features: Array) -> Float[Array, "*N"]:
        return self.value(self.body(features))[..., 0]


class Nets(eqx.Module):
    """Policy and value network of an actor-critic."""

    actor: Actor
    critic: Critic | None

    def features(self, obs: Obs) -> tuple[Array, Array]:
        """Features for policy and value."""
        shown = self.actor.torso(obs)
        own = None if self.critic is None else self.critic.torso
        return shown, shown if own is None else own(obs)

    def value(self, obs: Obs) -> Float[Array, "*N"]:
        assert self.critic is not None
        return self.critic((self.critic.torso or self.actor.torso)(obs))

    def __call__(self, obs: Obs, legal: Array | None) -> tuple[Distribution, Float[Array, "*N"] | None]:
        shown, own = self.features(obs)
        return self.actor(shown, legal), None if self.critic is None else self.critic(own)


class Weights(NamedTuple):
    """All that acting needs: the actor and the observation statistics."""

    actor: Actor
    moments: Moments | None
    clip: Any = None
    """bound of normalised observations now"""


class Carry(NamedTuple):
    """What acting remembers between steps."""

    frames: Obs | None = None
    noise: Float[Array, "B I A"] | None = None
    age: Array | None = None


class Choice(NamedTuple):
    """What acting stores with a transition; a field is None when it would repeat another."""

    log_prob: Float[Array, "*T"]
    sample: Array | None = None
    """what the head drew, when the action is a translation of it"""
    frames: Obs | None = None
    """the stacked observation, when there is a stack"""


def weights(config: PolicyConfig, nets: Nets, moments: Moments | None) -> Weights:
    """What acting needs of networks and statistics; `config` is resolved."""
    return Weights(
        nets.actor, moments, None if moments is None else jnp.asarray(config.clip_obs, jnp.float32)
    )


def clean(rollout: Transition) -> Transition:
    """The rollout with zeros where there is no decision, so that no garbage reaches a gradient."""
    mask = rollout.mask
    if mask is None:
        return rollout

    def zero(x: Array) -> Array:
        return jnp.where(mask.reshape(mask.shape + (1,) * (x.ndim - 2)), x, jnp.zeros((), x.dtype))

    kept = jax.tree.map(zero, rollout._replace(mask=None, terminated=None, truncated=None, first=None))
    return kept._replace(
        mask=mask, terminated=rollout.terminated, truncated=rollout.truncated, first=rollout.first
    )


def action_codec(spec: EnvSpec, config: PolicyConfig) -> Codec:
    """The codec that the settings ask for."""
    if spec.masks_actions and config.action_bins:
        raise ConfigError(
            f"{spec.id} says which dimensions of a Box are legal; with action_bins that has no meaning. "
            "Leave action_bins empty, or mask choices in the environment."
        )
    return codec(spec.action, config.action_bins, config.action_grid, config.squash)


def build(spec: EnvSpec, config: PolicyConfig, key: Key, critic: bool = True) -> Nets:
    """Freshly initialised networks."""
    torso_key, own_key, pi_key, vf_key, head_key, value_key = several(key, 6)
    gain = math.sqrt(2.0) if config.ortho_init else None

    images = [p for _, p in parts(spec.observation) if isinstance(p, Box) and p.is_image]
    if config.network == "cnn" and not images:
        raise ConfigError(
            f"network='cnn' needs images (bytes of at least 36×36); {spec.id} observes "
            f"{describe(spec.observation)}. Use network='mlp'."
        )

    def torso(k: Key) -> Any:
        if config.network not in ("auto", "mlp", "cnn") and not is_reference(config.network):
            raise ConfigError(
                f"There is no network {config.network!r}.{nearest(config.network, ('auto', 'mlp', 'cnn'))} "
                "Known: auto, mlp, cnn, or file.py:Name for one of your own."
            )
        if is_reference(config.network):
            return custom_torso(config.network)(k, spec.observation, config.frame_stack)
        return Torso(k, spec.observation, config.frame_stack, gain, images=config.network != "mlp")

    def gained(value: float) -> float | None:
        return value if config.ortho_init else None

    shared = torso(torso_key)
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
    own = None if config.share_features else torso(own_key)
    value_body = MLP(vf_key, shared.outputs, config.vf, config.activation, gain)
    return Nets(actor, Critic(own, value_body, Dense(value_key, value_body.outputs, 1, gained(1.0))))


def start_carry(spec: EnvSpec, config: PolicyConfig, rows: int) -> Carry:
    """The carry before the first step."""
    frames = noise = age = None
    if config.frame_stack > 1:
        frames = jax.tree.map(jnp.asarray, zeros(spec.observation, (rows, config.frame_stack)))
    if config.use_sde:
        inner = action_codec(spec, config).inner
        if not isinstance(inner, Box):
            raise ConfigError("use_sde needs a Box action space without action_bins.")
        latent = config.pi[-1] if config.pi else _features(spec, config)
        noise = jnp.zeros((rows, latent, inner.size))
        age = jnp.zeros((), jnp.int32)
    return Carry(frames, noise, age)


def _features(spec: EnvSpec, config: PolicyConfig) -> int:
    """Length of the feature vector that the torso hands on."""
    nets = jax.eval_shape(lambda: build(spec, config, jax.random.key(0), critic=False))
    return int(nets.actor.torso.outputs)


def stack(frames: Obs, obs: Obs, first: Bool[Array, " B"] | None) -> Obs:
    """The stack after one more observation; a first one fills it."""

    def one(old: Array, new: Array) -> Array:
        pushed = jnp.concatenate([old[:, 1:], new[:, None]], axis=1)
        if first is None:
            return pushed
        fresh = first.reshape((-1,) + (1,) * (old.ndim - 1))
        return jnp.where(fresh, jnp.broadcast_to(new[:, None], old.shape), pushed)

    return jax.tree.map(one, frames, obs)


def act(
    config: PolicyConfig,
    weights: Weights,
    carry: Carry,
    view: View,
    behaviour: Behaviour,
    key: Key,
    rollout: int,
) -> tuple[Array, Choice, Carry]:
    """One decision per row: the environment's action, what to store, and the next carry."""
    actor = weights.actor
    translate = actor.head.codec
    frames = None if carry.frames is None else stack(carry.frames, view.obs, view.first)
    obs = view.obs if frames is None else frames
    latent = actor.latent(actor.torso(sight(weights.clip, weights.moments, actor.torso.space, obs)))
    chosen = actor.head(latent, view.legal)
    if behaviour.temperature is not None:
        chosen = chosen.tempered(behaviour.temperature)
    noise, age = carry.noise, carry.age
    if config.use_sde:
        assert noise is not None
        assert age is not None
        period = config.sde_sample_freq if config.sde_sample_freq > 0 else rollout
        noise = jax.lax.cond(
            age % period == 0, lambda: actor.head.noise_matrix(key, noise.shape[0]), lambda: noise
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
    return translate.decode(sample), choice, Carry(frames, noise, age)


def evaluate(
    config: PolicyConfig, nets: Nets, moments: Moments | None, obs: Obs, legal: Array | None
) -> tuple[Distribution, Float[Array, "*N"] | None]:
    """Distribution and value of stored observations."""
    return nets(sight(config.clip_obs, moments, nets.actor.torso.space, obs), legal)


def value(config: PolicyConfig, nets: Nets, moments: Moments | None, obs: Obs) -> Float[Array, "*N"]:
    """Value of stored observations."""
    return nets.value(sight(config.clip_obs, moments, nets.actor.torso.space, obs))


def next_values(
    config: PolicyConfig,
    nets: Nets,
    moments: Moments | None,
    rollout: Transition,
    values: Float[Array, "T B"],
) -> Float[Array, "T B"]:
    """V(next_obs) of every step of a rollout.

    Inside an episode it is the value of the following observation, already computed; the network runs
    only on the last step and, if the rollout cuts an episode anywhere, on all of them.
    """
    last = jax.tree.map(lambda x: x[-1:], seen_next(rollout))
    shifted = jnp.concatenate([values[1:], value(config, nets, moments, last)])
    cut = rollout.truncated
    if (
        rollout.mask is not None
    ):  # what follows the last decision of a row is padding, not its next observation
        cut = cut | jnp.concatenate([~rollout.mask[1:], jnp.zeros_like(rollout.mask[:1])])
    return jax.lax.cond(
        jnp.any(cut),
        lambda: jnp.where(cut, value(config, nets, moments, seen_next(rollout)), shifted),
        lambda: shifted,
    )


def seen(rollout: Transition) -> Obs:
    """What the policy saw: the stacked observation where there is a stack."""
    return rollout.obs if rollout.extras.frames is None else rollout.extras.frames


def seen_next(rollout: Transition) -> Obs:
    """What the policy would have seen next, before any reset."""
    if rollout.extras.frames is None:
        return rollout.next_obs

    def push(old: Array, new: Array) -> Array:  # [T, B, k, …] and [T, B, …]
        return jnp.concatenate([old[:, :, 1:], new[:, :, None]], axis=2)

    return jax.tree.map(push, rollout.extras.frames, rollout.next_obs)


def drawn(rollout: Transition) -> Array:
    """What the head drew."""
    return rollout.action if rollout.extras.sample is None else rollout.extras.sample


# -- normalisation ---------------------------------------------------------------------------------------


def normalisable(space: Space) -> tuple[str, ...]:
    """The leaves of an observation that are real numbers; pixels and choices are left alone."""
    return tuple(name for name, part in parts(space) if isinstance(part, Box) and part.dtype != "uint8")


def start_moments(spec: EnvSpec, config: PolicyConfig) -> Moments | None:
    """Observation statistics before the first observation; None when they are off."""
    names = normalisable(spec.observation)
    if not config.normalize_obs or not names:
        return None
    example = zeros(spec.observation)
    return statistics.start({n: example[n] if n else example for n in names})


def sight(clip: Any, moments: Moments | None, space: Space, obs: Obs) -> Obs:
    """The observation as the torso gets it."""
    if moments is None:
        return obs
    names = normalisable(space)
    scaled = statistics.normalise(moments, {n: obs[n] if n else obs for n in names}, clip)
    return {**obs, **scaled} if isinstance(obs, dict) else scaled[""]


def absorb_obs(moments: Moments | None, spec: EnvSpec, rollout: Transition) -> Moments | None:
    """Statistics after the observations of a rollout."""
    if moments is None:
        return None
    names = normalisable(spec.observation)
    data = {n: rollout.obs[n] if n else rollout.obs for n in names}
    return statistics.absorb(moments, data, rollout.mask)


class RewardStats(NamedTuple):
    """Deviation of the discounted return, and the running return of every row."""

    moments: Moments
    running: Float[Array, " B"]


def start_rewards(spec: EnvSpec, config: PolicyConfig) -> RewardStats | None:
    """Reward statistics before the first reward; None when they are off."""
    if not config.normalize_reward:
        return None
    return RewardStats(statistics.start(jnp.zeros(())), jnp.zeros(spec.rows))


def absorb_rewards(
    stats: RewardStats | None, config: PolicyConfig, gamma: Any, rollout: Transition
) -> RewardStats | None:
    """Statistics after the rewards of a rollout: R ← γR + r per row, zero after an episode's end."""
    if stats is None:
        return None
    ended = rollout.terminated | rollout.truncated
    reward = rollout.reward * config.reward_scale
    mask = jnp.ones_like(ended) if rollout.mask is None else rollout.mask

    def step(running: Array, now: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        reward_t, ended_t, mask_t = now
        total = jnp.where(mask_t, running * gamma + reward_t, running)
        return jnp.where(ended_t, 0.0, total), total

    running, totals = jax.lax.scan(step, stats.running, (reward, ended, mask))
    return RewardStats(statistics.absorb(stats.moments, totals, rollout.mask), running)


def scaled_reward(stats: RewardStats | None, config: PolicyConfig, reward: Array) -> Array:
    """Rewards as the losses see them."""
    reward = reward * config.reward_scale
    if stats is None:
        return reward
    deviation = jax.lax.rsqrt(statistics.variance(stats.moments) + 1e-8)
    return jnp.clip(reward * deviation, -config.clip_reward, config.clip_reward)
