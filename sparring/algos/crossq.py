"""CrossQ: SAC without target networks, through batch renormalisation (Bhatt et al. 2024, arXiv 1902.05605).

(s, a) and (s', a') pass the critics together, so that the batch statistics are those of the mixture:
[Q(s, a); Q(s', a')] = critic([s, s'], [a, a']),  y = r + γ (min_i Q_i(s', a') - α log π(a'|s')), no gradient.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from sparring.bandit.settings import ControlConfig, Controlled
from sparring.config import Schedulable, algorithm, configuration, resolve
from sparring.errors import ConfigError
from sparring.nets import checkup, critics, noise, policy, sight
from sparring.nets.heads import Head, bounds_to_unit, codec, unit_to_bounds
from sparring.nets.layers import Dense
from sparring.nets.noise import NoiseConfig
from sparring.nets.policy import Actor, ActorConfig, Weights
from sparring.nets.renorm import NormedMLP, keep_statistics
from sparring.nets.sight import Carry, RewardStats, Stored, Trunk
from sparring.ops import optim
from sparring.ops.distributions import Distribution
from sparring.ops.keys import several, uniform
from sparring.ops.statistics import Moments
from sparring.replay import offpolicy
from sparring.replay.offpolicy import Lesson, OffPolicyConfig
from sparring.spaces import EnvSpec
from sparring.types import Action, Batch, Behaviour, Key, Plan, Replay, Report, Transition, View


@configuration
class CrossQConfig(NoiseConfig, OffPolicyConfig, ActorConfig, ControlConfig):
    """sb3-contrib's names and defaults."""

    learning_rate: Schedulable = 1e-3
    """step size of Adam"""
    pi: tuple[int, ...] = (256, 256)
    """hidden sizes of the policy network"""
    qf: tuple[int, ...] = (1024, 1024)
    """hidden sizes of the critics"""
    n_critics: int = 2
    """critics, of which the least counts"""
    share_features: bool = False
    """one image or custom torso for actor and critics, trained by the critics; a core is always shared"""
    log_std_init: float = -3.0
    """initial log standard deviation of gSDE's noise"""
    policy_delay: int = 3
    """updates of the critics between updates of the policy"""
    ent_coef: Schedulable | None = None
    """weight of the entropy; none learns it"""
    ent_coef_init: float = 1.0
    """where a learned weight of the entropy begins"""
    target_entropy: Schedulable | None = None
    """entropy that a learned weight aims at; none takes -actions"""
    adam_b1: float = 0.5
    """decay of Adam's mean"""
    renorm_momentum: Schedulable = 0.99
    """decay of the running statistics"""
    renorm_warm_up: Schedulable = 100_000.0
    """updates of plain batch normalisation before it is renormalised"""


class NormedQ(eqx.Module):
    """One critic on features and action."""

    body: NormedMLP
    output: Dense


class NormedCritics(eqx.Module):
    """Some independent critics on one trunk."""

    trunk: Trunk
    each: tuple[NormedQ, ...]

    def __call__(self, features: Array, action: Array) -> Float[Array, "C ..."]:
        """Q in evaluation mode."""
        x = jnp.concatenate([features, action], axis=-1)
        return jnp.stack([q.output(q.body(x))[..., 0] for q in self.each])

    def train(
        self, features: Array, action: Array, mask: Array | None, c: CrossQConfig
    ) -> tuple[Float[Array, "C ..."], NormedCritics]:
        """Q in training mode, and the critics with new running statistics."""
        x = jnp.concatenate([features, action], axis=-1)
        outputs, bodies = [], []
        for q in self.each:
            latent, body = q.body.train(x, mask, c.renorm_momentum, c.renorm_warm_up)
            outputs.append(q.output(latent)[..., 0])
            bodies.append(body)
        return jnp.stack(outputs), eqx.tree_at(lambda s: [q.body for q in s.each], self, bodies)


class NormedPilot(eqx.Module):
    """What the actor has beside the trunk: its own, or None when it looks through the critics'."""

    trunk: Trunk | None
    body: NormedMLP
    output: Head


class TrainState(NamedTuple):
    """All that training changes."""

    actor: NormedPilot
    critic: NormedCritics
    log_ent_coef: Float[Array, ""]
    actor_optimiser: Any
    critic_optimiser: Any
    ent_optimiser: Any
    moments: Moments | None
    rewards: RewardStats | None
    actor_metrics: Float[Array, "3"]
    """the last loss of the actor, entropy and loss of its weight, to report between its updates"""
    iteration: Int[Array, ""]
    updates: Int[Array, ""]


class CrossQWeights(NamedTuple):
    """All that acting needs."""

    policy: Weights
    random: Bool[Array, ""]
    """whether actions are still random"""
    std: Float[Array, "*A"] | None = None
    """deviation of the noise on actions; None without noise"""
    sway: Float[Array, " 2"] | None = None
    """θ and dt of noise that drifts, where schedules move them"""


@algorithm
class CrossQ(Controlled):
    """SAC with batch renormalisation instead of target networks."""

    spec: EnvSpec
    config: CrossQConfig
    horizon: Any = 1.0

    Config: ClassVar = CrossQConfig
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
        critics.bounded(self.spec, "CrossQ")
        noise.check(self.config, self.spec)
        if self.config.n_critics < 1 or self.config.policy_delay < 1:
            raise ConfigError("n_critics and policy_delay must be at least 1.")
        return [*offpolicy.unwise(self.config), *self.unread()]

    def _rule(self) -> optim.Adam:
        return optim.Adam(self.config.adam_eps, b1=self.config.adam_b1)

    def _ent_rule(self) -> optim.Adam:
        """sb3-contrib leaves the entropy's weight to Adam as it is."""
        return optim.Adam(self.config.adam_eps)

    def init(self, key: Key) -> TrainState:
        c, space = self.config, critics.bounded(self.spec, "CrossQ")
        critic_key, trunk_key, body_key, head_key, *keys = several(key, 4 + 2 * c.n_critics)
        trunk = sight.trunk(self.spec, c, critic_key, None)
        bodies = [NormedMLP(k, trunk.outputs + space.size, c.qf, c.activation) for k in keys[: c.n_critics]]
        each = [
            NormedQ(b, Dense(k, b.outputs, 1, None)) for b, k in zip(bodies, keys[c.n_critics :], strict=True)
        ]
        critic = NormedCritics(trunk, tuple(each))
        own = critics.own_trunk(self.spec, c, trunk_key, c.share_features)
        body = NormedMLP(body_key, trunk.outputs, c.pi, c.activation)
        std = c.log_std_init if c.use_sde else 0.0
        translate = codec(self.spec.action, squash=True)
        actor = NormedPilot(own, body, Head(head_key, body.outputs, translate, None, std, "state", c.use_sde))
        log_ent_coef = jnp.log(jnp.float32(c.ent_coef_init))
        rule = self._rule()
        return TrainState(
            actor,
            critic,
            log_ent_coef,
            rule.init(actor),
            rule.init(critic),
            self._ent_rule().init(log_ent_coef),
            sight.start_moments(self.spec, c),
            sight.start_rewards(self.spec, c),
            jnp.zeros(3),
            jnp.zeros((), jnp.int32),
            jnp.zeros((), jnp.int32),
        )

    def _now(self, state: TrainState) -> CrossQConfig:
        return resolve(self.config, state.iteration / self.horizon)

    def policy(self, state: TrainState) -> CrossQWeights:
        pilot = state.actor
        actor = Actor(pilot.trunk or state.critic.trunk, pilot.body, pilot.output)
        c = self._now(state)
        clip = sight.clip(c, state.moments)
        random = offpolicy.warming_up(c, state.iteration, self.spec.rows)
        std = None if c.noise == "none" else noise.deviation(c)
        return CrossQWeights(Weights(actor, state.moments, clip), random, std, noise.sway(self.config, c))

    def carry(self, rows: int) -> Carry:
        carry = policy.start_carry(self.spec, self.config, rows)
        return (
            carry if self.config.use_sde else carry._replace(noise=noise.start(self.config, self.spec, rows))
        )

    def act(
        self, weights: CrossQWeights, carry: Carry, view: View, behaviour: Behaviour, key: Key
    ) -> tuple[Action, Stored, Carry]:
        act_key, random_key = several(key, 2)
        action, choice, after = policy.act(
            self.config, weights.policy, carry, view, behaviour, act_key, self.plan.rollout
        )
        assert choice.sample is not None
        if weights.std is not None:
            space, noise_key = critics.bounded(self.spec, "CrossQ"), several(key, 3)[2]
            action, drift = noise.added(
                self.config,
                space,
                weights.std,
                weights.sway,
                carry.noise,
                view,
                behaviour.greedy,
                noise_key,
                action,
            )
            after = after._replace(noise=drift)
        unit = 2.0 * uniform(random_key, choice.sample.shape) - 1.0
        drawn = unit_to_bounds(critics.bounded(self.spec, "CrossQ"), unit)
        random = jnp.broadcast_to(weights.random, action.shape[:1])
        random = random if behaviour.greedy is None else random & ~behaviour.greedy
        action = jnp.where(random.reshape((-1,) + (1,) * (action.ndim - 1)), drawn, action)
        return action, Stored(None, choice.frames, carry.core), after

    def value(self, state: TrainState, obs: Any) -> Float[Array, "*N"]:
        """The least Q of raw observations at the policy's mode, each as the first of an episode."""
        shown = sight.normalised(self._now(state).clip_obs, state.moments, self.spec.observation, obs)
        features = sight.alone(state.critic.trunk, shown)
        own = features if state.actor.trunk is None else sight.alone(state.actor.trunk, shown)
        mode = state.actor.output(state.actor.body(own)).mode()
        return jnp.min(state.critic(features, jnp.tanh(mode)), axis=0)

    def update(self, state: TrainState, batch: Batch, key: Key) -> tuple[TrainState, Report]:
        c = self._now(state)
        lesson = offpolicy.lesson(c, state.moments, state.rewards, self.spec.observation, batch.data)
        weight = offpolicy.weight(c, batch)
        next_key, now_key = several(key, 2)
        learned = c.ent_coef is None
        ent_coef = jnp.exp(state.log_ent_coef) if learned else jnp.asarray(c.ent_coef)
        done = bounds_to_unit(critics.bounded(self.spec, "CrossQ"), lesson.steps.action)
        mask = None if lesson.mask is None else jnp.concatenate([lesson.mask, lesson.mask])

        def critic_loss(critic: NormedCritics) -> tuple[Array, Any]:
            now, follows = lesson.features(critic.trunk)
            chosen = distribution(state.actor, lesson, follows, following=True)
            sample = chosen.sample(next_key)
            where = jnp.concatenate([now, follows])
            q, normed = critic.train(where, jnp.concatenate([done, jnp.tanh(sample)]), mask, c)
            q, q_next = jnp.split(q, 2, axis=1)
            y = lesson.target(jnp.min(q_next, axis=0) - ent_coef * chosen.log_prob(sample))
            error = q - jax.lax.stop_gradient(y)
            total = lesson.mean(0.5 * jnp.sum(jnp.square(error), axis=0), weight)
            metrics = {"train/critic_loss": total, "train/q_mean": lesson.mean(jnp.mean(q, axis=0))}
            metrics |= offpolicy.described(lesson, q, y)
            return total, (normed, now, jnp.mean(jnp.abs(error), axis=0), metrics)

        slope, (normed, seen, error, metrics) = jax.grad(critic_loss, has_aux=True)(state.critic)
        step = optim.apply(self._rule(), state.critic, state.critic_optimiser, slope, c.learning_rate, None)
        critic = keep_statistics(step.params, normed)
        seen = jax.lax.stop_gradient(seen if c.core != "none" else lesson.features(critic.trunk)[0])

        def actor_loss(actor: NormedPilot) -> tuple[Array, Any]:
            features = seen if actor.trunk is None else lesson.features(actor.trunk)[0]
            latent, body = actor.body.train(features, lesson.mask, c.renorm_momentum, c.renorm_warm_up)
            chosen = actor.output(latent)
            sample = chosen.sample(now_key)
            log_prob = chosen.log_prob(sample)
            q = jnp.min(critic(seen, jnp.tanh(sample)), axis=0)
            total = lesson.mean(ent_coef * log_prob - q)
            return total, (eqx.tree_at(lambda a: a.body, actor, body), -lesson.mean(log_prob))

        def improve() -> tuple[Any, ...]:
            (total, (normed, entropy)), slope = jax.value_and_grad(actor_loss, has_aux=True)(state.actor)
            step = optim.apply(self._rule(), state.actor, state.actor_optimiser, slope, c.learning_rate, None)
            log_ent_coef, ent_optimiser, ent_loss = state.log_ent_coef, state.ent_optimiser, jnp.zeros(())
            if learned:
                goal = -float(done.shape[-1]) if c.target_entropy is None else c.target_entropy
                lack = goal - entropy
                ent = optim.apply(self._ent_rule(), log_ent_coef, ent_optimiser, -lack, c.learning_rate, None)
                ent_loss = -log_ent_coef * lack
                log_ent_coef, ent_optimiser = ent.params, ent.state
            actor = keep_statistics(step.params, normed)
            return actor, step.state, log_ent_coef, ent_optimiser, jnp.stack([total, entropy, ent_loss])

        def wait() -> tuple[Any, ...]:
            kept = (state.actor, state.actor_optimiser, state.log_ent_coef, state.ent_optimiser)
            return (*kept, state.actor_metrics)

        due = (state.updates + 1) % c.policy_delay == 0
        actor, actor_optimiser, log_ent_coef, ent_optimiser, last = (
            improve() if c.policy_delay == 1 else jax.lax.cond(due, improve, wait)
        )

        def moved() -> Any:
            improved = optim.Step(actor, actor_optimiser, step.norm)
            by_actor = optim.moved(self._rule(), improved, c.learning_rate)
            by_actor = jax.tree.map(lambda x: jnp.where(due, x, 0.0), by_actor)
            return by_actor, optim.moved(self._rule(), step, c.learning_rate)

        metrics |= {
            "train/actor_loss": last[0],
            "train/entropy": last[1],
            "train/ent_coef": ent_coef,
            "train/ent_coef_loss": last[2],
            "train/learning_rate": jnp.asarray(c.learning_rate),
            "train/n_updates": state.updates + 1,
            **offpolicy.effective_share(batch),
        }
        metrics |= offpolicy.norms(state, self.horizon, critic=slope)
        metrics |= checkup.look(
            offpolicy.due(state, self.plan.updates, self.horizon),
            (actor, critic),
            moved,
            lambda nets: critics.hidden(nets[0], nets[1], lesson.few()),
            c.activation,
        )
        state = state._replace(
            actor=actor,
            critic=critic,
            log_ent_coef=log_ent_coef,
            actor_optimiser=actor_optimiser,
            critic_optimiser=step.state,
            ent_optimiser=ent_optimiser,
            actor_metrics=last,
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


def distribution(pilot: NormedPilot, lesson: Lesson, shared: Array, following: bool) -> Distribution:
    """π in evaluation mode, at each step or at what followed it."""
    features = jax.lax.stop_gradient(shared)
    if pilot.trunk is not None:
        features = lesson.features(pilot.trunk)[int(following)]
    return pilot.output(pilot.body(features))
