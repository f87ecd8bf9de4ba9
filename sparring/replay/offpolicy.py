"""What learners from replay have in common: their settings, their replay, and what one update learns from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from sparring.config import Schedulable, configuration
from sparring.errors import ConfigError
from sparring.limits import EXPLORATION, READERS, SEQUENCES, Reader, check_ranges, unread
from sparring.nets import checkup, sequences, sight
from sparring.nets.sight import AgentConfig, RewardStats, Trunk
from sparring.ops.optim import norm_of
from sparring.ops.priorities import importance
from sparring.ops.returns import masked_mean, masked_var, n_step
from sparring.ops.statistics import Moments
from sparring.ranges import NOT_NEGATIVE
from sparring.replay.prioritised import Prioritised
from sparring.replay.ring import Ring
from sparring.replay.sequence import Sequence
from sparring.spaces import EnvSpec, shows_images
from sparring.types import Batch, Metrics, Obs, Plan, Replay, Transition


@configuration
class OffPolicyConfig(AgentConfig):
    """Settings of learning from replay, with SB3's names."""

    activation: str = "relu"
    """tanh, relu, elu, gelu, silu, leaky_relu, sigmoid or identity"""
    learning_rate: Schedulable = 3e-4
    """step size of Adam"""
    buffer_size: int = 1_000_000
    """transitions that the replay holds"""
    learning_starts: int = 100
    """transitions collected by random actions before learning begins"""
    batch_size: int = 256
    """transitions (with a core: sequences) in an update"""
    gamma: Schedulable = 0.99
    """discount"""
    train_freq: int = 1
    """steps of every environment between blocks of updates"""
    gradient_steps: int = 1
    """updates in a block, whatever the number of environments; -1 makes one per transition collected"""
    n_steps: int = 1
    """steps of reward before the value takes over"""
    adam_eps: float = 1e-8
    """ε of Adam"""
    prioritized: bool = False
    """sample transitions (sequences) in proportion to their last error"""
    priority_alpha: Schedulable = 0.6
    """exponent of the priority"""
    priority_beta: Schedulable = 0.4
    """exponent of the importance weights; linear(0.4, 1) anneals it"""
    priority_initial: Literal["max", "mean"] = "max"
    """priority of what was never sampled: the largest so far, or the mean"""
    priority_eta: Schedulable = 0.9
    """weight of the largest error of a sequence against the mean"""
    buffer: Literal["auto", "device", "host", "reference"] = "auto"
    """where the replay is: beside the networks, or (auto: images) in the host's memory, every frame once, or
    there as references to windows of data that the environment has (auto: where it offers them)"""
    buffer_folder: str = ""
    """folder for a host replay that is larger than memory; its frames are memory-mapped files there"""
    sequence_length: int = 20
    """steps that a core is trained on at once"""
    sequence_stride: int = 0
    """steps between the starts of sequences; 0 means their length, less makes them overlap"""
    burn_in: int = 10
    """steps before them that only warm the core up"""


def on_host(config: Any, spec: EnvSpec) -> bool:
    """Whether a driver that steps a world outside JAX keeps the replay in the host's memory."""
    chosen = getattr(config, "buffer", "device")
    large = shows_images(spec.observation) or bool(getattr(config, "buffer_folder", "")) or spec.refers
    return chosen in ("host", "reference") or (chosen == "auto" and large and _uniform(config))


def by_reference(config: Any, spec: EnvSpec) -> bool:
    """Whether the replay keeps the numbers of observations instead of observations."""
    return spec.refers and getattr(config, "buffer", "device") != "host" and on_host(config, spec)


def _uniform(c: OffPolicyConfig) -> bool:
    return c.core == "none" and not c.prioritized


def plan(c: OffPolicyConfig, rows: int) -> Plan:
    """Steps and updates of one iteration."""
    return Plan(c.train_freq, c.gradient_steps if c.gradient_steps >= 0 else c.train_freq * rows)


def replay(c: OffPolicyConfig) -> Replay:
    """The replay that the settings ask for."""
    least = c.learning_starts + 1  # SB3 learns when it has more than learning_starts
    if c.core != "none":
        return Sequence(
            c.buffer_size,
            c.batch_size,
            c.sequence_length,
            c.burn_in,
            c.sequence_stride,
            minimum=least,
            alpha=c.priority_alpha if c.prioritized else 0.0,
            eta=c.priority_eta,
            initial=c.priority_initial,
        )
    if c.prioritized:
        return Prioritised(
            c.buffer_size,
            c.batch_size,
            c.n_steps,
            least,
            alpha=c.priority_alpha,
            initial=c.priority_initial,
        )
    return Ring(c.buffer_size, c.batch_size, c.n_steps, least)


OWN_READERS = (
    Reader(
        ("priority_alpha", "priority_beta", "priority_initial"), lambda c: c.prioritized, "prioritized=True"
    ),
    Reader(("priority_eta",), lambda c: c.prioritized and c.core != "none", "prioritized=True and a core"),
    SEQUENCES,
    Reader(("sequence_stride", "burn_in"), lambda c: c.core != "none", "a core"),
    Reader(("log_std_init",), lambda c: c.use_sde, "use_sde=True"),
    Reader(("target_entropy", "ent_coef_init"), lambda c: c.ent_coef is None, "ent_coef='auto'"),
    Reader(EXPLORATION, lambda c: c.exploration == "epsilon", "exploration='epsilon'"),
)


def check_stride(stride: int, length: int) -> None:
    """Refuses sequences with gaps between them, whose steps nobody would learn from."""
    if not 0 <= stride <= length:
        raise ConfigError(f"sequence_stride must be between 0 and sequence_length = {length}, got {stride}.")


def check(c: OffPolicyConfig) -> None:
    """Refuses impossible settings."""
    for name in ("buffer_size", "batch_size", "train_freq", "n_steps", "sequence_length"):
        if getattr(c, name) < 1:
            raise ConfigError(f"{name} must be at least 1, got {getattr(c, name)}.")
    if c.gradient_steps == 0 or c.gradient_steps < -1:
        raise ConfigError(f"gradient_steps must be at least 1, or -1, got {c.gradient_steps}.")
    check_ranges(c, ent_coef=NOT_NEGATIVE)
    if c.buffer in ("host", "reference") and not _uniform(c):
        raise ConfigError(
            f"buffer={c.buffer!r} samples uniformly: leave prioritized and core out, or use 'device'."
        )
    if c.buffer_folder and (c.buffer == "device" or not _uniform(c)):
        raise ConfigError(
            "buffer_folder needs buffer='host', which samples uniformly: leave one of them out."
        )
    check_stride(c.sequence_stride, c.sequence_length)
    if c.learning_starts < 0 or c.burn_in < 0:
        raise ConfigError("learning_starts and burn_in cannot be negative.")


def unwise(c: OffPolicyConfig) -> list[str]:
    """Warnings about settings that are possible and hardly meant."""
    found = unread(c, (*READERS, *OWN_READERS))
    if c.core == "none" and c.batch_size > c.buffer_size:
        found.append(
            f"batch_size={c.batch_size} is above buffer_size={c.buffer_size}: batches repeat transitions."
        )
    if c.core != "none" and c.n_steps > c.sequence_length:
        found.append(
            f"n_steps={c.n_steps} is above sequence_length={c.sequence_length}: rewards are summed to "
            f"the end of a sequence at most. Lengthen the sequence, or lower n_steps."
        )
    if c.learning_starts > c.buffer_size:
        found.append(
            f"learning_starts={c.learning_starts} is above buffer_size={c.buffer_size}: the first of them "
            "are forgotten before anything is learned from them."
        )
    return found


def too_short(c: Any, total: int) -> list[str]:
    """A warning when so many steps end before anything is learned."""
    starts = getattr(c, "learning_starts", 0)
    if starts < total:
        return []
    idle = "" if hasattr(c, "sample_reuse") else "all actions are random and "  # GDI acts by its networks
    return [
        f"learning_starts={starts} is not below the {total} steps of this run: {idle}nothing is learned. "
        "Train longer, or lower learning_starts."
    ]


def warming_up(c: OffPolicyConfig, iteration: Array, rows: int) -> Bool[Array, ""]:
    """Whether actions are still random: by whole iterations, since steps outgrow 32 bits."""
    return iteration < -(-c.learning_starts // (c.train_freq * rows))


@dataclass(frozen=True)
class Lesson:
    """What one update learns from: transitions [N, …] or, with a core, steps of sequences [L, N, …]."""

    steps: Transition
    """action, legal and extras of each step"""
    next_legal: Any
    mask: Bool[Array, "L N"] | None
    obs: Obs
    next_obs: Obs | None
    first: Any
    memory: Any
    burn_in: int
    reward: Array
    """as the loss sees it"""
    target: Callable[[Array], Array]
    """the n-step target, given the value of what followed each step"""

    def features(self, trunk: Trunk) -> tuple[Array, Array]:
        """What the trunk makes of each step, and of what followed it."""
        if trunk.core is None:
            return trunk.torso(self.obs), trunk.torso(self.next_obs)
        both = sequences.unrolled(trunk, self.memory, self.obs, self.first, self.burn_in)
        return both[:-1], both[1:]

    def mean(self, x: Array, weight: Array | None = None) -> Array:
        """Mean over the steps that count, each with the weight of its transition or sequence."""
        return masked_mean(x if weight is None else x * weight, self.mask)

    def few(self) -> Obs:
        """A few of the observations, as the torso gets them; zeros where a step does not count."""
        mask = self.mask
        if mask is None:
            return checkup.sampled(self.obs, 1)

        def counted(x: Array) -> Array:
            steps = x[self.burn_in : self.burn_in + mask.shape[0]]
            return jnp.where(mask.reshape(mask.shape + (1,) * (x.ndim - 2)), steps, jnp.zeros((), x.dtype))

        return checkup.sampled(jax.tree.map(counted, self.obs), 2)

    def priority(self, error: Array) -> Array:
        """Errors as the replay wants them: of transitions [N], or of sequences [N, L]."""
        return error if self.mask is None else jnp.swapaxes(error, 0, 1)


def lesson(
    c: OffPolicyConfig, moments: Moments | None, rewards: RewardStats | None, space: Any, data: Transition
) -> Lesson:
    """What an update learns from a sampled batch; `c` is resolved."""

    def shown(obs: Obs) -> Obs:
        return sight.normalised(c.clip_obs, moments, space, obs)

    if c.core != "none":
        parts = sequences.prepared(data, sight.seen(data), sight.seen_next(data))
        steps = jax.tree.map(lambda x: x[c.burn_in :], parts.data)
        reward = sight.scaled_reward(rewards, c, steps.reward)
        return Lesson(
            steps,
            steps.next_legal,
            steps.mask,
            shown(parts.obs),
            None,
            parts.first,
            data.core,
            c.burn_in,
            reward,
            lambda value: sequences.bootstrapped(reward, value, steps, c.gamma, c.n_steps),
        )
    reward = sight.scaled_reward(rewards, c, data.reward)
    total, discount, last = n_step(reward, data.terminated, data.truncated, c.gamma, data.elapsed)
    start = jax.tree.map(lambda x: x[:, 0], data)
    if c.n_steps == 1:
        follows, legal = jax.tree.map(lambda x: x[:, 0], (sight.seen_next(data), data.next_legal))
    else:
        rows = jnp.arange(last.shape[0])
        follows, legal = jax.tree.map(lambda x: x[rows, last], (sight.seen_next(data), data.next_legal))
    return Lesson(
        start,
        legal,
        None,
        shown(sight.seen(start)),
        shown(follows),
        None,
        None,
        0,
        reward,
        lambda value: total + discount * value,
    )


def shortened(data: Transition, steps: Float[Array, "N n"]) -> Transition:
    """Windows [N, n, …] that end after as many steps as the first one's behaviour asked for."""
    last = jnp.arange(steps.shape[1]) == jnp.round(steps[:, :1]).astype(jnp.int32) - 1
    return data._replace(truncated=data.truncated | last)


def weight(c: OffPolicyConfig, batch: Batch) -> Array | None:
    """Importance weights of a prioritised batch, [N]; None when sampling was uniform."""
    return importance(batch.weight, c.priority_beta) if c.prioritized else None


def described(lesson: Lesson, q: Float[Array, "C ..."], y: Float[Array, "*N"]) -> Metrics:
    """What a batch and its values look like; `q` is by every critic, one at least."""

    def largest(x: Array) -> Array:
        return jnp.max(jnp.abs(x if lesson.mask is None else jnp.where(lesson.mask, x, 0.0)))

    steps = lesson.steps
    found = {
        "stats/value_target_max": largest(y),
        "stats/q_abs_max": jnp.max(jnp.stack([largest(each) for each in q])),
        "stats/replay_reward_max": largest(lesson.reward),
        "stats/replay_reward_nonzero": lesson.mean((steps.reward != 0.0).astype(jnp.float32)),
        "stats/replay_terminated": lesson.mean(steps.terminated.astype(jnp.float32)),
    }
    if q.shape[0] > 1:
        mean = jnp.mean(q, axis=0)
        spread = jnp.sqrt(masked_var(mean, lesson.mask))
        found["stats/q_disagreement"] = lesson.mean(jnp.abs(q[0] - q[1])) / jnp.maximum(spread, 1e-8)
    return found


def effective_share(batch: Batch) -> Metrics:
    """(Σp)² / (N Σp²), estimated from what was drawn: E[N·P] over draws by P is N Σ P²."""
    if batch.weight is None:
        return {}
    return {"stats/priority_ess": 1.0 / jnp.maximum(jnp.mean(batch.weight), 1e-8)}


def norms(state: Any, horizon: Any, **gradients: Any) -> Metrics:
    """Norms of gradients that nobody clips by, in iterations whose metrics are kept; else NaN."""
    return checkup.looked(
        checkup.kept(state.iteration, horizon),
        lambda: {f"train/{name}_grad_norm": norm_of(each) for name, each in gradients.items()},
    )


def due(state: Any, updates: int, horizon: Any) -> Bool[Array, ""]:
    """Whether to look inside now: after the last update of an iteration that is one to look at."""
    return ((state.updates + 1) % updates == 0) & checkup.due(state.iteration, horizon)


def moved(target: Any, online: Any, tau: Any) -> Any:
    """Target networks a step of Polyak averaging further."""
    return jax.tree.map(lambda old, new: old + tau * (new - old), target, online)
