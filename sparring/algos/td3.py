"""TD3: twin delayed deterministic policy gradient (Fujimoto et al. 2018, arXiv 1802.09477).

y = r + γ min_i Q_i'(s', clip(μ'(s') + clip(ε, -c, c))),  L_Q = Σ_i (Q_i - y)²;  every `policy_delay` updates
L_μ = -E[Q_1(s, μ(s))] and the targets follow. Exploration adds Gaussian or Ornstein-Uhlenbeck noise.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from sparring.bandit.settings import ControlConfig, Controlled
from sparring.config import Schedulable, algorithm, configuration, resolve
from sparring.errors import ConfigError
from sparring.nets import checkup, critics, noise, sight
from sparring.nets.critics import Critics, Pilot
from sparring.nets.heads import bounds_to_unit, unit_to_bounds
from sparring.nets.layers import MLP, Dense
from sparring.nets.noise import NoiseConfig
from sparring.nets.sight import Carry, RewardStats, Stored, Trunk
from sparring.ops import optim
from sparring.ops.keys import normal, several, uniform
from sparring.ops.statistics import Moments
from sparring.replay import offpolicy
from sparring.replay.offpolicy import Lesson, OffPolicyConfig
from sparring.spaces import EnvSpec
from sparring.types import Action, Batch, Behaviour, Key, Plan, Replay, Report, Transition, View


@configuration
class TD3Config(NoiseConfig, OffPolicyConfig, ControlConfig):
    """SB3's names and defaults; its action_noise objects become the fields that begin with noise."""

    learning_rate: Schedulable = 1e-3
    """step size of Adam"""
    pi: tuple[int, ...] = (400, 300)
    """hidden sizes of the policy network"""
    qf: tuple[int, ...] = (400, 300)
    """hidden sizes of the critics"""
    tau: Schedulable = 0.005
    """how far target networks move towards the online ones when they are updated; 1 copies them"""
    n_critics: int = 2
    """critics, of which the least counts"""
    share_features: bool = False
    """one image or custom torso for actor and critics, trained by the critics; a core is always shared"""
    policy_delay: int = 2
    """updates of the critics between updates of the policy and the targets"""
    target_policy_noise: Schedulable = 0.2
    """deviation of the noise on the target policy's action"""
    target_noise_clip: Schedulable = 0.5
    """bound of that noise"""
    noise: Literal["none", "normal", "ou"] = "normal"
    """exploration: none, Gaussian, or Ornstein-Uhlenbeck noise that drifts within an episode"""


class TrainState(NamedTuple):
    """All that training changes."""

    actor: Pilot
    critic: Critics
    actor_target: Pilot
    critic_target: Critics
    actor_optimiser: Any
    critic_optimiser: Any
    moments: Moments | None
    rewards: RewardStats | None
    actor_loss: Float[Array, ""]
    """the last one, to report between updates of the policy"""
    iteration: Int[Array, ""]
    updates: Int[Array, ""]


class TD3Weights(NamedTuple):
    """All that acting needs."""

    trunk: Trunk
    body: MLP
    output: Dense
    moments: Moments | None
    clip: Any
    std: Float[Array, "*A"]
    """deviation of the noise"""
    random: Bool[Array, ""]
    """whether actions are still random"""
    sway: Float[Array, " 2"] | None = None
    """θ and dt of noise that drifts, where schedules move them"""


@algorithm
class TD3(Controlled):
    """Twin delayed deterministic policy gradient."""

    spec: EnvSpec
    config: TD3Config
    horizon: Any = 1.0

    Config: ClassVar = TD3Config
    coordinates: ClassVar = ("noise:0:3:6",)

    @property
    def plan(self) -> Plan:
        return offpolicy.plan(self.config, self.spec.rows)

    @property
    def replay(self) -> Replay:
        return offpolicy.replay(self.config)

    def check(self) -> list[str]:
        """Refuses impossible settings; returns warnings about unwise ones."""
        offpolicy.check(self.config)
        critics.bounded(self.spec, "TD3")
        noise.check(self.config, self.spec)
        if self.config.n_critics < 1 or self.config.policy_delay < 1:
            raise ConfigError("n_critics and policy_delay must be at least 1.")
        found = [*offpolicy.unwise(self.config), *self.unread()]
        if "noise" in self.chosen and self.config.noise == "none":
            found.append("The controller chooses a factor on noise, and there is none: set noise='normal'.")
        return found

    def _rule(self) -> optim.Adam:
        return optim.Adam(self.config.adam_eps)

    def init(self, key: Key) -> TrainState:
        c = self.config
        actions = critics.bounded(self.spec, "TD3").size
        critic_key, trunk_key, body_key, output_key = several(key, 4)
        critic = critics.critics(self.spec, c, critic_key, c.qf, c.n_critics, actions)
        own = critics.own_trunk(self.spec, c, trunk_key, c.share_features)
        body = MLP(body_key, critic.trunk.outputs, c.pi, c.activation, None)
        actor = Pilot(own, body, Dense(output_key, body.outputs, actions, None))
        rule = self._rule()
        return TrainState(
            actor,
            critic,
            jax.tree.map(jnp.copy, actor),
            jax.tree.map(jnp.copy, critic),
            rule.init(actor),
            rule.init(critic),
            sight.start_moments(self.spec, c),
            sight.start_rewards(self.spec, c),
            jnp.zeros(()),
            jnp.zeros((), jnp.int32),
            jnp.zeros((), jnp.int32),
        )

    def _now(self, state: TrainState) -> TD3Config:
        return resolve(self.config, state.iteration / self.horizon)

    def policy(self, state: TrainState) -> TD3Weights:
        c, actor = self._now(state), state.actor
        return TD3Weights(
            actor.trunk or state.critic.trunk,
            actor.body,
            actor.output,
            state.moments,
            sight.clip(c, state.moments),
            noise.deviation(c),
            offpolicy.warming_up(c, state.iteration, self.spec.rows),
            noise.sway(self.config, c),
        )

    def carry(self, rows: int) -> Carry:
        c = self.config
        drift = noise.start(c, self.spec, rows)
        return Carry(
            sight.start_frames(self.spec, c, rows), drift, None, sight.start_core(self.spec, c, rows)
        )

    def act(
        self, weights: TD3Weights, carry: Carry, view: View, behaviour: Behaviour, key: Key
    ) -> tuple[Action, Stored, Carry]:
        c, space = self.config, critics.bounded(self.spec, "TD3")
        frames, features, core = sight.look(weights.trunk, weights.clip, weights.moments, carry, view)
        mean = jnp.tanh(weights.output(weights.body(features)))
        noise_key, random_key = several(key, 2)
        drift, unit = carry.noise, mean
        if c.noise != "none":
            std = weights.std if behaviour.noise is None else weights.std * behaviour.noise[:, None]
            shift, drift = noise.draw(c, std, weights.sway, drift, view.first, noise_key, mean.shape)
            unit = jnp.clip(mean + shift, -1.0, 1.0)
        anything = 2.0 * uniform(random_key, mean.shape) - 1.0
        unit = jnp.where(weights.random, anything, unit)
        if behaviour.greedy is not None:
            unit = jnp.where(behaviour.greedy[:, None], mean, unit)
        return (
            unit_to_bounds(space, unit),
            Stored(None, frames, carry.core),
            Carry(frames, drift, None, core),
        )

    def value(self, state: TrainState, obs: Any) -> Float[Array, "*N"]:
        """The least Q of raw observations under the policy, each as the first of an episode."""
        shown = sight.normalised(self._now(state).clip_obs, state.moments, self.spec.observation, obs)
        features = sight.alone(state.critic.trunk, shown)
        own = features if state.actor.trunk is None else sight.alone(state.actor.trunk, shown)
        action = jnp.tanh(state.actor.output(state.actor.body(own)))
        return jnp.min(state.critic(features, action), axis=0)

    def update(self, state: TrainState, batch: Batch, key: Key) -> tuple[TrainState, Report]:
        c = self._now(state)
        lesson = offpolicy.lesson(c, state.moments, state.rewards, self.spec.observation, batch.data)
        weight = offpolicy.weight(c, batch)
        space = critics.bounded(self.spec, "TD3")
        done = bounds_to_unit(space, lesson.steps.action)

        follows = lesson.features(state.critic_target.trunk)[1]
        ahead = action(state.actor_target, lesson, follows, following=True)
        smear = c.target_policy_noise * normal(key, ahead.shape)
        smear = jnp.clip(smear, -c.target_noise_clip, c.target_noise_clip)
        q_next = state.critic_target(follows, jnp.clip(ahead + smear, -1.0, 1.0))
        y = lesson.target(jnp.min(q_next, axis=0))

        def critic_loss(critic: Critics) -> tuple[Array, tuple[Array, Array, dict[str, Array]]]:
            now = lesson.features(critic.trunk)[0]
            q = critic(now, done)
            total = lesson.mean(jnp.sum(jnp.square(q - y), axis=0), weight)
            metrics = {"train/critic_loss": total, "train/q_mean": lesson.mean(jnp.mean(q, axis=0))}
            metrics |= offpolicy.described(lesson, q, y)
            return total, (now, jnp.mean(jnp.abs(q - y), axis=0), metrics)

        slope, (seen, error, metrics) = jax.grad(critic_loss, has_aux=True)(state.critic)
        critic = optim.apply(self._rule(), state.critic, state.critic_optimiser, slope, c.learning_rate, None)
        seen = jax.lax.stop_gradient(seen if c.core != "none" else lesson.features(critic.params.trunk)[0])

        def actor_loss(actor: Pilot) -> Array:
            return -lesson.mean(critic.params(seen, action(actor, lesson, seen, following=False))[0])

        def improve() -> tuple[Any, ...]:
            total, slope = jax.value_and_grad(actor_loss)(state.actor)
            step = optim.apply(self._rule(), state.actor, state.actor_optimiser, slope, c.learning_rate, None)
            online = (step.params, critic.params)
            return step, *offpolicy.moved((state.actor_target, state.critic_target), online, c.tau), total

        def wait() -> tuple[Any, ...]:
            still = optim.Step(state.actor, state.actor_optimiser, jnp.zeros(()))
            return still, state.actor_target, state.critic_target, state.actor_loss

        due = (state.updates + 1) % c.policy_delay == 0
        actor, actor_target, critic_target, total = (
            improve() if c.policy_delay == 1 else jax.lax.cond(due, improve, wait)
        )

        def moved() -> Any:
            by_actor = optim.moved(self._rule(), actor, c.learning_rate)
            by_actor = jax.tree.map(lambda x: jnp.where(due, x, 0.0), by_actor)
            return by_actor, optim.moved(self._rule(), critic, c.learning_rate)

        metrics |= {
            "train/actor_loss": total,
            "train/learning_rate": jnp.asarray(c.learning_rate),
            "train/n_updates": state.updates + 1,
            **offpolicy.effective_share(batch),
        }
        metrics |= offpolicy.norms(state, self.horizon, critic=slope)
        metrics |= checkup.look(
            offpolicy.due(state, self.plan.updates, self.horizon),
            (actor.params, critic.params),
            moved,
            lambda nets: critics.hidden(nets[0], nets[1], lesson.few()),
            c.activation,
        )
        state = state._replace(
            actor=actor.params,
            critic=critic.params,
            actor_target=actor_target,
            critic_target=critic_target,
            actor_optimiser=actor.state,
            critic_optimiser=critic.state,
            actor_loss=total,
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


def action(pilot: Pilot, lesson: Lesson, shared: Array, following: bool) -> Float[Array, "*N A"]:
    """What the policy does, in [-1, 1], at each step or at what followed it."""
    features = jax.lax.stop_gradient(shared)
    if pilot.trunk is not None:
        features = lesson.features(pilot.trunk)[int(following)]
    return jnp.tanh(pilot.output(pilot.body(features)))
