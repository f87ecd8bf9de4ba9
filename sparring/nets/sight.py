"""What an agent sees: frames → normaliser → torso → core, and rewards as its losses see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from sparring.config import Schedulable, configuration
from sparring.errors import ConfigError, nearest
from sparring.nets import cores
from sparring.nets.custom import custom_torso
from sparring.nets.heads import Codec, codec
from sparring.nets.torso import Torso
from sparring.ops import statistics
from sparring.ops.keys import several
from sparring.ops.statistics import Moments
from sparring.reference import is_reference
from sparring.spaces import Box, EnvSpec, Space, describe, parts, shows_images, zeros
from sparring.types import Key, Obs, Transition, View


@configuration
class AgentConfig:
    """Settings of what lies between the world and an agent's networks."""

    network: str = "auto"
    """auto (NatureCNN for images, MLP otherwise), mlp, cnn, or file.py:Name for a torso of your own"""
    activation: str = "tanh"
    """tanh, relu, elu, gelu, silu, leaky_relu, sigmoid or identity"""
    core: Literal["none", "gru", "lstm", "transformer", "s5"] = "none"
    """memory between torso and body"""
    core_size: int = 64
    """width of the core"""
    core_layers: int = 1
    """layers of the core"""
    core_heads: int = 4
    """attention heads of a transformer"""
    core_window: int = 32
    """inputs that a transformer looks back on, the newest included"""
    frame_stack: int = 1
    """observations shown together, newest last; an episode starts with its first one repeated"""
    frame_differences: bool = False
    """numbers of the older frames of a stack as how far the next is from them, eightfold, at most 10: shows
    what moves; with normalize_obs"""
    fourier: int = 0
    """sines and cosines of every number of the newest frame, at frequencies 1, 2, 4, … that many: for worlds
    where small differences decide; with normalize_obs"""
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


@configuration
class BinsConfig:
    """Settings of algorithms that can turn numbers into choices."""

    action_bins: tuple[int, ...] = ()
    """bins per dimension that turn a Box action space into choices; empty leaves it continuous"""
    action_grid: Literal["per_dimension", "joint"] = "per_dimension"
    """one choice per dimension, or one choice on the joint grid"""


class Trunk(eqx.Module):
    """Torso and, where there is one, core: an observation and a memory become features."""

    torso: Any
    core: Any | None

    @property
    def space(self) -> Space:
        return self.torso.space

    @property
    def outputs(self) -> int:
        """Length of the feature vector."""
        return int(self.torso.outputs if self.core is None else self.core.outputs)

    def start(self, rows: int) -> Any:
        """The memory at the start of an episode; None without a core."""
        return None if self.core is None else self.core.start(rows)

    def step(self, memory: Any, obs: Obs, first: Bool[Array, " B"] | None) -> tuple[Array, Any]:
        """Features of one observation per row, and the memory after it."""
        features = self.torso(obs)
        if self.core is None:
            return features, None
        fresh = jnp.zeros(features.shape[0], bool) if first is None else first
        return self.core.step(memory, features, fresh)

    def unroll(self, memory: Any, obs: Obs, first: Bool[Array, "T B"] | None) -> tuple[Array, Any]:
        """Features of observations in time, [T, B, …], and the memory after them."""
        features = self.torso(obs)
        return (features, None) if self.core is None else self.core.unroll(memory, features, first)


def alone(trunk: Trunk, shown: Obs) -> Array:
    """Features of normalised observations by themselves; with a core, each as the first of an episode."""
    if trunk.core is None:
        made: Array = trunk.torso(shown)
        return made
    return trunk.step(trunk.start(jax.tree.leaves(shown)[0].shape[0]), shown, None)[0]


def trunk(spec: EnvSpec, config: AgentConfig, key: Key, gain: float | None) -> Trunk:
    """A freshly initialised torso and core."""
    torso_key, core_key = several(key, 2)
    if config.network == "cnn" and not shows_images(spec.observation):
        raise ConfigError(
            f"network='cnn' needs images (bytes of at least 36×36); {spec.id} observes "
            f"{describe(spec.observation)}. Use network='mlp'."
        )
    if config.network not in ("auto", "mlp", "cnn") and not is_reference(config.network):
        raise ConfigError(
            f"There is no network {config.network!r}.{nearest(config.network, ('auto', 'mlp', 'cnn'))} "
            "Known: auto, mlp, cnn, or file.py:Name for one of your own."
        )
    if config.frame_stack < 1:
        raise ConfigError(f"frame_stack must be at least 1, got {config.frame_stack}.")
    if config.frame_differences and config.frame_stack == 1:
        raise ConfigError("frame_differences needs frames to differ: set frame_stack to 2 or more.")
    if config.fourier < 0:
        raise ConfigError(f"fourier must be 0 or a number of frequencies, got {config.fourier}.")
    torso: Any
    if is_reference(config.network):
        if config.frame_differences or config.fourier:
            raise ConfigError(
                f"network={config.network!r} gets the frames as they are: leave fourier at 0 and "
                "frame_differences off, or do in it what they do."
            )
        torso = custom_torso(config.network)(torso_key, spec.observation, config.frame_stack)
    else:
        torso = Torso(
            torso_key,
            spec.observation,
            config.frame_stack,
            gain,
            images=config.network != "mlp",
            motion=config.frame_differences,
            waves=config.fourier,
        )
    if config.core == "none":
        return Trunk(torso, None)
    shape = (config.core_size, config.core_layers, config.core_heads, config.core_window)
    return Trunk(torso, cores.core(config.core, core_key, torso.outputs, *shape))


def action_codec(spec: EnvSpec, config: BinsConfig, squash: bool = False) -> Codec:
    """How the agent's choices become the environment's actions."""
    if spec.masks_actions and config.action_bins:
        raise ConfigError(
            f"{spec.id} says which dimensions of a Box are legal; with action_bins that has no meaning. "
            "Leave action_bins empty, or mask choices in the environment."
        )
    return codec(spec.action, config.action_bins, config.action_grid, squash)


# -- memory ----------------------------------------------------------------------------------------------


class Carry(NamedTuple):
    """What acting remembers between steps."""

    frames: Obs | None = None
    noise: Array | None = None
    age: Array | None = None
    core: Any = None


class Stored(NamedTuple):
    """What acting stores for a replay; a field is None when it would repeat another."""

    sample: Array | None = None
    """what was chosen, when the action is a translation of it"""
    frames: Obs | None = None
    """the stacked observation, when there is a stack"""
    core: Any = None
    """the core's state before the step"""


def start_frames(spec: EnvSpec, config: AgentConfig, rows: int) -> Obs | None:
    """An empty stack of frames; None when observations are shown one by one."""
    if config.frame_stack == 1:
        return None
    return jax.tree.map(jnp.asarray, zeros(spec.observation, (rows, config.frame_stack)))


def start_core(spec: EnvSpec, config: AgentConfig, rows: int) -> Any:
    """A core's state at the start of an episode; None without a core."""
    if config.core == "none":
        return None
    shapes = jax.eval_shape(lambda: trunk(spec, config, jax.random.key(0), None))
    return shapes.start(rows)


def unroll_in_parts(
    core: Any, memory: Any, x: Float[Array, "T B F"], first: Bool[Array, "T B"], length: int
) -> tuple[Float[Array, "T B O"], Any, Any]:
    """A core's outputs, its states before every `length` steps (0: the whole), [C, B, …], and the last."""
    steps = length or x.shape[0]
    if x.shape[0] == steps:
        outputs, end = core.unroll(memory, x, first)
        return outputs, jax.tree.map(lambda s: s[None], memory), end
    parts = jax.tree.map(lambda a: a.reshape((-1, steps, *a.shape[1:])), (x, first))

    def one(state: Any, now: tuple[Array, Array]) -> tuple[Any, tuple[Array, Any]]:
        outputs, after = core.unroll(state, *now)
        return after, (outputs, state)

    end, (outputs, starts) = jax.lax.scan(one, memory, parts)
    return outputs.reshape((x.shape[0], *outputs.shape[2:])), starts, end


def look(
    trunk: Trunk, clip: Any, moments: Moments | None, carry: Carry, view: View
) -> tuple[Obs | None, Array, Any]:
    """What an actor makes of a view: its stack of frames, the features, and the core's memory after it."""
    frames = None if carry.frames is None else stack(carry.frames, view.obs, view.first)
    shown = normalised(clip, moments, trunk.space, view.obs if frames is None else frames)
    return frames, *trunk.step(carry.core, shown, view.first)


def stack(frames: Obs, obs: Obs, first: Bool[Array, " B"] | None) -> Obs:
    """The stack after one more observation; a first one fills it."""

    def one(old: Array, new: Array) -> Array:
        pushed = jnp.concatenate([old[:, 1:], new[:, None]], axis=1)
        if first is None:
            return pushed
        fresh = first.reshape((-1,) + (1,) * (old.ndim - 1))
        return jnp.where(fresh, jnp.broadcast_to(new[:, None], old.shape), pushed)

    return jax.tree.map(one, frames, obs)


def seen(rollout: Transition) -> Obs:
    """What the agent saw: the stacked observation where there is a stack."""
    return rollout.obs if rollout.extras.frames is None else rollout.extras.frames


def seen_next(rollout: Transition) -> Obs:
    """What the agent would have seen next, before any reset."""
    if rollout.extras.frames is None:
        return rollout.next_obs

    def push(old: Array, new: Array) -> Array:  # [T, B, k, …] and [T, B, …]
        return jnp.concatenate([old[:, :, 1:], new[:, :, None]], axis=2)

    return jax.tree.map(push, rollout.extras.frames, rollout.next_obs)


def clean(rollout: Transition) -> Transition:
    """The rollout with zeros where there is no decision, so that no garbage reaches a gradient."""
    mask = rollout.mask
    if mask is None:
        return rollout

    def zero(x: Array) -> Array:
        return jnp.where(mask.reshape(mask.shape + (1,) * (x.ndim - 2)), x, jnp.zeros((), x.dtype))

    apart = {"mask": None, "terminated": None, "truncated": None, "first": None, "core": None}
    kept = jax.tree.map(zero, rollout._replace(**apart))
    return kept._replace(
        mask=mask,
        terminated=rollout.terminated,
        truncated=rollout.truncated,
        first=rollout.first,
        core=rollout.core,
    )


class Valued(NamedTuple):
    """Values of a rollout by the network that acted."""

    value: Float[Array, "T B"]
    next_value: Float[Array, "T B"]
    """of what followed each step before any reset"""
    memory: Any = None
    """the core's state at the start of every sequence, [C, B, …]"""


def valued(
    config: AgentConfig,
    trunk: Trunk,
    head: Callable[[Array, Any], Array],
    moments: Moments | None,
    rollout: Transition,
    length: int = 0,
) -> Valued:
    """What `head` makes of the features (and legal options) of every observation and of what followed it.

    Inside an episode what followed is the next observation, already computed; the network runs only on the
    last step and, if the rollout cuts an episode anywhere, on all of them. With a core the rollout is cut
    into sequences of `length` steps (0: one), whose starting states are returned.
    """

    def looked(obs: Obs) -> Array:
        made: Array = trunk.torso(normalised(config.clip_obs, moments, trunk.space, obs))
        return made

    features = looked(seen(rollout))
    last, last_legal = jax.tree.map(lambda x: x[-1:], (seen_next(rollout), rollout.next_legal))
    ahead = looked(last)
    memory = None
    if trunk.core is None:
        outputs = features
    else:
        outputs, memory, end = unroll_in_parts(trunk.core, rollout.core, features, rollout.first, length)
        ahead = trunk.core.step(end, ahead[0], jnp.zeros_like(rollout.first[0]))[0][None]
    values = head(outputs, rollout.legal)

    def of_all() -> Array:
        follows = looked(seen_next(rollout))
        if trunk.core is not None:
            follows = cores.follow(trunk.core, rollout.core, features, rollout.first, follows)
        return head(follows, rollout.next_legal)

    shifted = jnp.concatenate([values[1:], head(ahead, last_legal)])
    cut = rollout.truncated
    if rollout.mask is not None:
        # What follows the last decision of a row is padding, not its next observation.
        cut = cut | jnp.concatenate([~rollout.mask[1:], jnp.zeros_like(rollout.mask[:1])])
    nexts = jax.lax.cond(jnp.any(cut), lambda: jnp.where(cut, of_all(), shifted), lambda: shifted)
    return Valued(values, nexts, memory)


# -- normalisation ---------------------------------------------------------------------------------------


def normalisable(space: Space) -> tuple[str, ...]:
    """The leaves of an observation that are numbers; images and choices are left alone."""
    return tuple(name for name, part in parts(space) if isinstance(part, Box) and not part.is_image)


def start_moments(spec: EnvSpec, config: AgentConfig) -> Moments | None:
    """Observation statistics before the first observation; None when they are off."""
    names = normalisable(spec.observation)
    if not config.normalize_obs or not names:
        return None
    example = zeros(spec.observation)
    return statistics.start({n: example[n] if n else example for n in names})


def normalised(bound: Any, moments: Moments | None, space: Space, obs: Obs) -> Obs:
    """The observation as the torso gets it."""
    if moments is None:
        return obs
    names = normalisable(space)
    scaled = statistics.normalise(moments, {n: obs[n] if n else obs for n in names}, bound)
    return {**obs, **scaled} if isinstance(obs, dict) else scaled[""]


def clip(config: AgentConfig, moments: Moments | None) -> Float[Array, ""] | None:
    """The bound of normalised observations as acting carries it; None when they are not normalised."""
    return None if moments is None else jnp.asarray(config.clip_obs, jnp.float32)


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


def start_rewards(spec: EnvSpec, config: AgentConfig) -> RewardStats | None:
    """Reward statistics before the first reward; None when they are off."""
    if not config.normalize_reward:
        return None
    return RewardStats(statistics.start(jnp.zeros(())), jnp.zeros(spec.rows))


def absorb_rewards(
    stats: RewardStats | None, config: AgentConfig, gamma: Any, rollout: Transition
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


def scaled_reward(stats: RewardStats | None, config: AgentConfig, reward: Array) -> Array:
    """Rewards as the losses see them."""
    reward = reward * config.reward_scale
    if stats is None:
        return reward
    deviation = jax.lax.rsqrt(statistics.variance(stats.moments) + 1e-8)
    return jnp.clip(reward * deviation, -config.clip_reward, config.clip_reward)
