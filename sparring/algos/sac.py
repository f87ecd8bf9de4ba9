"""SAC: soft actor-critic (Haarnoja et al. 2018, arXiv 1812.05905), for numbers and for choices.

y = r + γ (min_i Q_i'(s', a') - α log π(a'|s')),  a' ~ π;  L_Q = Σ_i ½ (Q_i - y)²;
L_π = E[α log π(a|s) - min_i Q_i(s, a)] by the reparametrised action; α follows a target entropy.
Choices take the expectation over actions instead of a sample (Christodoulou 2019, arXiv 1910.07207), each
branch of a MultiDiscrete by itself.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from sparring.bandit.settings import ControlConfig, Controlled
from sparring.config import Schedulable, algorithm, configuration, resolve
from sparring.errors import ConfigError
from sparring.nets import checkup, critics, noise, policy, sight
from sparring.nets.critics import Critics, Pilot
from sparring.nets.heads import Codec, Head, bounds_to_unit, branches, unit_to_bounds
from sparring.nets.layers import MLP
from sparring.nets.noise import NoiseConfig
from sparring.nets.policy import Actor, ActorConfig, Weights
from sparring.nets.sight import BinsConfig, Carry, RewardStats, Stored
from sparring.nets.values import branch_sizes, taken
from sparring.ops import optim
from sparring.ops.distributions import ILLEGAL, Categorical, Distribution, MultiCategorical, drawn
from sparring.ops.keys import several, uniform
from sparring.ops.statistics import Moments
from sparring.replay import offpolicy
from sparring.replay.offpolicy import Lesson, OffPolicyConfig
from sparring.spaces import Box, Discrete, EnvSpec, MultiBinary
from sparring.types import Action, Batch, Behaviour, Key, Plan, Replay, Report, Transition, View


@configuration
class SACConfig(NoiseConfig, OffPolicyConfig, ActorConfig, BinsConfig, ControlConfig):
    """SB3's names and defaults."""

    pi: tuple[int, ...] = (256, 256)
    """hidden sizes of the policy network"""
    qf: tuple[int, ...] = (256, 256)
    """hidden sizes of the critics"""
    tau: Schedulable = 0.005
    """how far target networks move towards the online ones when they are updated; 1 copies them"""
    n_critics: int = 2
    """critics, of which the least counts"""
    share_features: bool = False
    """one image or custom torso for actor and critics, trained by the critics; a core is always shared"""
    log_std_init: float = -3.0
    """initial log standard deviation of gSDE's noise"""
    ent_coef: Schedulable | None = None
    """weight of the entropy; none learns it"""
    ent_coef_init: float = 1.0
    """where a learned weight of the entropy begins"""
    target_entropy: Schedulable | None = None
    """entropy that a learned weight aims at; none takes -actions, or 0.89 log options for choices"""
    target_update_interval: int = 1
    """updates between updates of the target critics"""


class TrainState(NamedTuple):
    """All that training changes."""

    actor: Pilot
    critic: Critics
    target: Critics
    log_ent_coef: Float[Array, ""]
    actor_optimiser: Any
    critic_optimiser: Any
    ent_optimiser: Any
    moments: Moments | None
    rewards: RewardStats | None
    iteration: Int[Array, ""]
    updates: Int[Array, ""]


class SACWeights(NamedTuple):
    """All that acting needs."""

    policy: Weights
    random: Bool[Array, ""]
    """whether actions are still random"""
    std: Float[Array, "*A"] | None = None
    """deviation of the noise on actions; None without noise"""
    sway: Float[Array, " 2"] | None = None
    """θ and dt of noise that drifts, where schedules move them"""


@algorithm
class SAC(Controlled):
    """Soft actor-critic."""

    spec: EnvSpec
    config: SACConfig
    horizon: Any = 1.0

    Config: ClassVar = SACConfig
    coordinates: ClassVar = ("temperature:0.25:4:6:log",)

    @property
    def plan(self) -> Plan:
        return offpolicy.plan(self.config, self.spec.rows)

    @property
    def replay(self) -> Replay:
        return offpolicy.replay(self.config)

    def check(self) -> list[str]:
        """Refuses impossible settings; returns warnings about unwise ones."""
        offpolicy.check(self.config)
        if self.config.n_critics < 1 or self.config.target_update_interval < 1:
            raise ConfigError("n_critics and target_update_interval must be at least 1.")
        self._codec()
        noise.check(self.config, self.spec)
        return [*offpolicy.unwise(self.config), *self.unread()]

    def _codec(self) -> Codec:
        if not self._chooses:
            critics.bounded(self.spec, "SAC")
        codec = sight.action_codec(self.spec, self.config, squash=not self._chooses)
        if isinstance(codec.inner, MultiBinary):
            raise ConfigError(f"SAC cannot act with bits, which {self.spec.id} wants. Use PPO or A2C.")
        return codec

    @property
    def _chooses(self) -> bool:
        return not isinstance(self.spec.action, Box) or bool(self.config.action_bins)

    @property
    def _entropy_goal(self) -> float:
        inner = self._codec().inner
        if isinstance(inner, Box):
            return -float(inner.size)
        return (
            0.89
            * float(sum(math.log(n) for n in branch_sizes(self._codec())))
            / len(branch_sizes(self._codec()))
        )

    def _goal(self, lesson: Lesson) -> Any:
        """The entropy to keep; of options that are masked, a share of what the legal ones allow."""
        legal = lesson.steps.legal
        if legal is None or not self._chooses:
            return self._entropy_goal
        free = jnp.sum(branches(branch_sizes(self._codec()), legal), axis=-1)
        return 0.89 * lesson.mean(jnp.mean(jnp.log(jnp.maximum(free, 1).astype(jnp.float32)), axis=-1))

    def _rule(self) -> optim.Adam:
        return optim.Adam(self.config.adam_eps)

    def init(self, key: Key) -> TrainState:
        c, codec = self.config, self._codec()
        critic_key, trunk_key, body_key, head_key = several(key, 4)
        inner = codec.inner
        if isinstance(inner, Box):
            inputs, outputs = inner.size, 1
        else:
            sizes = branch_sizes(codec)
            inputs, outputs = 0, len(sizes) * max(sizes)
        critic = critics.critics(self.spec, c, critic_key, c.qf, c.n_critics, inputs, outputs)
        own = critics.own_trunk(self.spec, c, trunk_key, c.share_features)
        body = MLP(body_key, critic.trunk.outputs, c.pi, c.activation, None)
        std = c.log_std_init if c.use_sde else 0.0
        head = Head(head_key, body.outputs, codec, None, std, "state", c.use_sde)
        actor = Pilot(own, body, head)
        log_ent_coef = jnp.log(jnp.float32(c.ent_coef_init))
        rule = self._rule()
        return TrainState(
            actor,
            critic,
            jax.tree.map(jnp.copy, critic),
            log_ent_coef,
            rule.init(actor),
            rule.init(critic),
            rule.init(log_ent_coef),
            sight.start_moments(self.spec, c),
            sight.start_rewards(self.spec, c),
            jnp.zeros((), jnp.int32),
            jnp.zeros((), jnp.int32),
        )

    def _now(self, state: TrainState) -> SACConfig:
        return resolve(self.config, state.iteration / self.horizon)

    def policy(self, state: TrainState) -> SACWeights:
        pilot = state.actor
        actor = Actor(pilot.trunk or state.critic.trunk, pilot.body, pilot.output)
        c = self._now(state)
        clip = sight.clip(c, state.moments)
        random = offpolicy.warming_up(c, state.iteration, self.spec.rows)
        std = None if c.noise == "none" else noise.deviation(c)
        return SACWeights(Weights(actor, state.moments, clip), random, std, noise.sway(self.config, c))

    def carry(self, rows: int) -> Carry:
        carry = policy.start_carry(self.spec, self.config, rows)
        return (
            carry if self.config.use_sde else carry._replace(noise=noise.start(self.config, self.spec, rows))
        )

    def act(
        self, weights: SACWeights, carry: Carry, view: View, behaviour: Behaviour, key: Key
    ) -> tuple[Action, Stored, Carry]:
        c, codec = self.config, self._codec()
        act_key, random_key = several(key, 2)
        action, choice, after = policy.act(
            c, weights.policy, carry, view, behaviour, act_key, self.plan.rollout
        )
        sample = action if choice.sample is None else choice.sample
        if weights.std is not None:
            space, noise_key = critics.bounded(self.spec, "SAC"), several(key, 3)[2]
            action, drift = noise.added(
                c, space, weights.std, weights.sway, carry.noise, view, behaviour.greedy, noise_key, action
            )
            after = after._replace(noise=drift)
        if isinstance(codec.inner, Box):
            unit = 2.0 * uniform(random_key, sample.shape) - 1.0
            anything = unit_to_bounds(critics.bounded(self.spec, "SAC"), unit)
        else:
            possible = jnp.where(branches(branch_sizes(codec), view.legal), 0.0, ILLEGAL)
            options = jnp.broadcast_to(possible, (sample.shape[0], *possible.shape[-2:]))
            choices = drawn(random_key, options)
            choices = choices[:, 0] if isinstance(codec.inner, Discrete) else choices
            sample = _where(weights.random, behaviour.greedy, choices, sample)
            anything = codec.decode(choices)
        action = _where(weights.random, behaviour.greedy, anything, action)
        kept = sample if not isinstance(codec.inner, Box) and not codec.identity else None
        return action, Stored(kept, choice.frames, carry.core), after

    def value(self, state: TrainState, obs: Any) -> Float[Array, "*N"]:
        """The least Q of raw observations under the policy (at its mode), each as the first of an episode."""
        shown = sight.normalised(self._now(state).clip_obs, state.moments, self.spec.observation, obs)
        features = sight.alone(state.critic.trunk, shown)
        own = features if state.actor.trunk is None else sight.alone(state.actor.trunk, shown)
        chosen = state.actor.output(state.actor.body(own), None)
        if not self._chooses:
            return jnp.min(state.critic(features, jnp.tanh(chosen.mode())), axis=0)
        return soft_value(chosen, choice_table(state.critic, features, branch_sizes(self._codec())), 0.0)[0]

    def update(self, state: TrainState, batch: Batch, key: Key) -> tuple[TrainState, Report]:
        c = self._now(state)
        lesson = offpolicy.lesson(c, state.moments, state.rewards, self.spec.observation, batch.data)
        weight = offpolicy.weight(c, batch)
        next_key, now_key = several(key, 2)
        learned = c.ent_coef is None
        ent_coef = jnp.exp(state.log_ent_coef) if learned else jnp.asarray(c.ent_coef)
        lossy = choice_losses if self._chooses else number_losses
        critic_loss, actor_loss = lossy(c, lesson, weight, state, ent_coef, self.spec)

        rise, (seen, error, metrics) = jax.grad(critic_loss, has_aux=True)(state.critic, next_key)
        critic = optim.apply(self._rule(), state.critic, state.critic_optimiser, rise, c.learning_rate, None)
        if c.core == "none":
            seen = jax.lax.stop_gradient(lesson.features(critic.params.trunk)[0])
        slope, (entropy, more) = jax.grad(actor_loss, has_aux=True)(state.actor, critic.params, seen, now_key)
        actor = optim.apply(self._rule(), state.actor, state.actor_optimiser, slope, c.learning_rate, None)
        metrics |= more | {
            "train/ent_coef": ent_coef,
            "train/entropy": entropy,
            "train/learning_rate": jnp.asarray(c.learning_rate),
            "train/n_updates": state.updates + 1,
            **offpolicy.effective_share(batch),
        }
        metrics |= offpolicy.norms(state, self.horizon, critic=rise, actor=slope)
        metrics |= checkup.look(
            offpolicy.due(state, self.plan.updates, self.horizon),
            (actor.params, critic.params),
            lambda: [optim.moved(self._rule(), step, c.learning_rate) for step in (actor, critic)],
            lambda nets: critics.hidden(nets[0], nets[1], lesson.few()),
            c.activation,
        )
        log_ent_coef, ent_optimiser = state.log_ent_coef, state.ent_optimiser
        if learned:
            goal = self._goal(lesson) if c.target_entropy is None else c.target_entropy
            lack = goal - entropy  # d/dlogα of -logα (log π + goal)
            step = optim.apply(self._rule(), log_ent_coef, ent_optimiser, -lack, c.learning_rate, None)
            metrics["train/ent_coef_loss"] = -log_ent_coef * lack
            log_ent_coef, ent_optimiser = step.params, step.state
        target = offpolicy.moved(state.target, critic.params, c.tau)
        if c.target_update_interval > 1:
            due = (state.updates + 1) % c.target_update_interval == 0
            target = jax.tree.map(lambda a, b: jnp.where(due, a, b), target, state.target)
        state = state._replace(
            actor=actor.params,
            critic=critic.params,
            target=target,
            log_ent_coef=log_ent_coef,
            actor_optimiser=actor.state,
            critic_optimiser=critic.state,
            ent_optimiser=ent_optimiser,
            updates=state.updates + 1,
        )
        return state, Report(metrics, lesson.priority(error))

    def absorb(self, state: TrainState, rollout: Transition) -> TrainState:
        c = self._now(state)
        return state._replace(
            moments=sight.absorb_obs(state.moments, self.spec, rollout),
            rewards=sight.absorb_rewards(state.rewards, c, c.gamma, rollout),
            iteration=state.iteration + 1,
        )


def _where(random: Array, greedy: Array | None, anything: Array, action: Array) -> Array:
    """The random action where it is random and the row is not to be greedy."""
    rows = jnp.broadcast_to(random, action.shape[:1])
    rows = rows if greedy is None else rows & ~greedy
    return jnp.where(rows.reshape((-1,) + (1,) * (action.ndim - 1)), anything, action)


def distribution(pilot: Pilot, lesson: Lesson, shared: Array, legal: Any, following: bool) -> Distribution:
    """π at each step or at what followed it."""
    features = jax.lax.stop_gradient(shared)
    if pilot.trunk is not None:
        features = lesson.features(pilot.trunk)[int(following)]
    made: Distribution = pilot.output(pilot.body(features), legal)
    return made


def number_losses(
    c: SACConfig, lesson: Lesson, weight: Any, state: TrainState, ent_coef: Array, spec: EnvSpec
) -> tuple[Any, Any]:
    """Losses of critics and actor where actions are numbers."""
    space = critics.bounded(spec, "SAC")
    done = bounds_to_unit(space, lesson.steps.action)

    def critic_loss(critic: Critics, key: Key) -> tuple[Array, tuple[Array, Array, dict[str, Array]]]:
        now, follows = lesson.features(critic.trunk)
        chosen = distribution(state.actor, lesson, follows, None, following=True)
        sample = chosen.sample(key)
        q_next = state.target(lesson.features(state.target.trunk)[1], jnp.tanh(sample))
        y = lesson.target(jnp.min(q_next, axis=0) - ent_coef * chosen.log_prob(sample))
        q = critic(now, done)
        return critic_summary(q, jax.lax.stop_gradient(y), now, lesson, weight)

    def actor_loss(
        actor: Pilot, critic: Critics, seen: Array, key: Key
    ) -> tuple[Array, tuple[Array, dict[str, Array]]]:
        chosen = distribution(actor, lesson, seen, None, following=False)
        sample = chosen.sample(key)
        log_prob = chosen.log_prob(sample)
        q = jnp.min(critic(seen, jnp.tanh(sample)), axis=0)
        total = lesson.mean(ent_coef * log_prob - q)
        return total, (-lesson.mean(log_prob), {"train/actor_loss": total})

    return critic_loss, actor_loss


def critic_summary(
    q: Float[Array, "C ..."], y: Float[Array, "*N"], now: Array, lesson: Lesson, weight: Any
) -> tuple[Array, tuple[Array, Array, dict[str, Array]]]:
    """Half the squared errors, summed over critics; then features, the size of the error, metrics."""
    error = q - y
    total = lesson.mean(0.5 * jnp.sum(jnp.square(error), axis=0), weight)
    metrics = {"train/critic_loss": total, "train/q_mean": lesson.mean(jnp.mean(q, axis=0))}
    metrics |= offpolicy.described(lesson, q, y)
    return total, (jax.lax.stop_gradient(now), jnp.mean(jnp.abs(error), axis=0), metrics)


def choice_losses(
    c: SACConfig, lesson: Lesson, weight: Any, state: TrainState, ent_coef: Array, spec: EnvSpec
) -> tuple[Any, Any]:
    """Losses of critics and actor where actions are choices: expectations over all of them."""
    codec = state.actor.output.codec
    sizes = branch_sizes(codec)
    steps = lesson.steps
    sample = steps.action if steps.extras.sample is None else steps.extras.sample
    sample = sample[..., None] if isinstance(codec.inner, Discrete) else sample

    def critic_loss(critic: Critics, key: Key) -> tuple[Array, tuple[Array, Array, dict[str, Array]]]:
        now, follows = lesson.features(critic.trunk)
        chosen = distribution(state.actor, lesson, follows, lesson.next_legal, following=True)
        q_next = choice_table(state.target, lesson.features(state.target.trunk)[1], sizes)
        y = lesson.target(soft_value(chosen, q_next, ent_coef)[0])
        q = taken(
            choice_table(critic, now, sizes), jnp.broadcast_to(sample, (len(critic.each), *sample.shape))
        )
        spread = jax.lax.stop_gradient(y)
        total, (seen, _, metrics) = critic_summary(jnp.mean(q, axis=-1), spread, now, lesson, weight)
        error = q - spread[..., None]
        total = lesson.mean(0.5 * jnp.sum(jnp.mean(jnp.square(error), axis=-1), axis=0), weight)
        return total, (seen, jnp.mean(jnp.abs(error), axis=(0, -1)), metrics | {"train/critic_loss": total})

    def actor_loss(
        actor: Pilot, critic: Critics, seen: Array, key: Key
    ) -> tuple[Array, tuple[Array, dict[str, Array]]]:
        chosen = distribution(actor, lesson, seen, steps.legal, following=False)
        q = jax.lax.stop_gradient(choice_table(critic, seen, sizes))
        value, entropy = soft_value(chosen, q, ent_coef)
        total = -lesson.mean(value)
        return total, (lesson.mean(entropy), {"train/actor_loss": total})

    return critic_loss, actor_loss


def choice_table(critic: Critics, features: Array, sizes: tuple[int, ...]) -> Float[Array, "C ... D W"]:
    """Q of every option of every branch, by every critic."""
    rows = [q(features).reshape((*features.shape[:-1], len(sizes), max(sizes))) for q in critic.each]
    return jnp.stack(rows)


def soft_value(chosen: Distribution, q: Float[Array, "C ... D W"], ent_coef: Any) -> tuple[Array, Array]:
    """E[min Q - α log π] and the entropy, each the mean over branches."""
    assert isinstance(chosen, (Categorical, MultiCategorical))
    logits = chosen.logits if isinstance(chosen, MultiCategorical) else chosen.logits[..., None, :]
    log_p = jax.nn.log_softmax(logits)
    p = jnp.exp(log_p)
    log_p = jnp.where(p > 0.0, log_p, 0.0)  # an illegal option has no share in anything
    least = jnp.where(p > 0.0, jnp.min(q, axis=0), 0.0)
    value = jnp.sum(p * (least - ent_coef * log_p), axis=-1)
    return jnp.mean(value, axis=-1), jnp.mean(-jnp.sum(p * log_p, axis=-1), axis=-1)
