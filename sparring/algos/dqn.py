"""DQN: Q-learning from replay (Mnih et al. 2015), with the parts of Rainbow that pay (Hessel et al. 2018).

y = r + γ max_a Q_target(s', a);  L = Huber(Q(s, a) - y). Double: the online network picks the action that the
target network values (van Hasselt et al. 2016). Dueling and branching: `nets.values`. With a core it learns
from sequences with burn-in and stored state (R2D2, Kapturowski et al. 2019).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from sparring.bandit.settings import ControlConfig, Controlled
from sparring.config import Linear, Schedulable, algorithm, configuration, resolve
from sparring.errors import ConfigError
from sparring.limits import EXPLORATION
from sparring.nets import checkup, sight, values
from sparring.nets.layers import draw_noise
from sparring.nets.sight import BinsConfig, Carry, RewardStats, Stored
from sparring.nets.values import QNet, QWeights
from sparring.ops import optim
from sparring.ops.keys import several
from sparring.ops.returns import rescale, unscale
from sparring.ops.statistics import Moments
from sparring.replay import offpolicy
from sparring.replay.offpolicy import Lesson, OffPolicyConfig
from sparring.spaces import EnvSpec
from sparring.types import Action, Batch, Behaviour, Key, Plan, Replay, Report, Transition, View


@configuration
class DQNConfig(OffPolicyConfig, BinsConfig, ControlConfig):
    """SB3's names and defaults; what SB3 does not have is off."""

    net_arch: tuple[int, ...] = (64, 64)
    """hidden sizes of the network"""
    learning_rate: Schedulable = 1e-4
    """step size of Adam"""
    batch_size: int = 32
    """transitions (with a core: sequences) in an update"""
    tau: Schedulable = 1.0
    """how far the target network moves towards the online one when it is updated; 1 copies it"""
    train_freq: int = 4
    """steps of every environment between blocks of updates"""
    target_update_interval: int = 10_000
    """transitions between updates of the target network"""
    exploration_fraction: float = 0.1
    """share of training over which the exploration rate falls"""
    exploration_initial_eps: Schedulable = 1.0
    """first exploration rate"""
    exploration_final_eps: Schedulable = 0.05
    """last exploration rate; both may be schedules of their own, between which the rate falls"""
    exploration: Literal["epsilon", "noisy"] = "epsilon"
    """random choices at the exploration rate, or noisy layers and none"""
    max_grad_norm: Schedulable | None = 10.0
    """bound of the gradient's norm; none leaves it free"""
    loss: Literal["huber", "mse"] = "huber"
    """Huber's loss with δ = 1, or half the square"""
    double: bool = False
    """let the online network choose the action that the target network values"""
    dueling: bool = False
    """one value and an advantage per action instead of a value per action"""
    value_rescale: bool = False
    """learn values in R2D2's compressed scale"""


class TrainState(NamedTuple):
    """All that training changes."""

    nets: QNet
    target: QNet
    optimiser: Any
    moments: Moments | None
    rewards: RewardStats | None
    iteration: Int[Array, ""]
    updates: Int[Array, ""]


@algorithm
class DQN(Controlled):
    """Deep Q-learning."""

    spec: EnvSpec
    config: DQNConfig
    horizon: Any = 1.0

    Config: ClassVar = DQNConfig
    coordinates: ClassVar = ("epsilon:0.01:0.6:6:log", "n_step=1|3|5")
    replaced: ClassVar = {"epsilon": EXPLORATION}

    def _default(self, known: dict[str, str]) -> Iterable[str]:
        """The number of steps is a choice where the replay keeps more than one together, each with what
        followed it."""
        most = 1 if offpolicy.on_host(self.config, self.spec) else self.config.n_steps
        steps = sorted({1, (most + 1) // 2, most})
        return [known["epsilon"], *(["n_step=" + "|".join(map(str, steps))] if most > 1 else [])]

    @property
    def plan(self) -> Plan:
        return offpolicy.plan(self.config, self.spec.rows)

    @property
    def replay(self) -> Replay:
        return offpolicy.replay(self.config)

    def check(self) -> list[str]:
        """Refuses impossible settings; returns warnings about unwise ones."""
        values.choice_codec(self.spec, self.config, "DQN")
        offpolicy.check(self.config)
        if self.config.target_update_interval < 1:
            raise ConfigError("target_update_interval must be at least 1.")
        if self.controller is not None:
            for place, each in enumerate(self.space.coordinates):
                fixed = self.config.controller_index[place : place + 1]
                if each.name == "n_step" and (
                    self.config.core != "none"
                    or max(fixed or each.values) > self.config.n_steps
                    or offpolicy.on_host(self.config, self.spec)
                ):
                    raise ConfigError(
                        f"A bandit can choose an n_step of at most n_steps = {self.config.n_steps}, and none "
                        "with a core or a replay in the host's memory, which keeps only what followed the "
                        "last step. Raise n_steps, set buffer=device, or leave n_step out of "
                        "controller_space."
                    )
        return [*offpolicy.unwise(self.config), *self.unread()]

    def _rule(self) -> optim.Adam:
        return optim.Adam(self.config.adam_eps)

    def init(self, key: Key) -> TrainState:
        c = self.config
        codec = values.choice_codec(self.spec, c, "DQN")
        nets = values.build(
            self.spec, c, key, c.net_arch, codec, dueling=c.dueling, noisy=c.exploration == "noisy"
        )
        return TrainState(
            nets,
            jax.tree.map(jnp.copy, nets),
            self._rule().init(nets),
            sight.start_moments(self.spec, c),
            sight.start_rewards(self.spec, c),
            jnp.zeros((), jnp.int32),
            jnp.zeros((), jnp.int32),
        )

    def _now(self, state: TrainState) -> DQNConfig:
        return resolve(self.config, state.iteration / self.horizon)

    def _epsilon(self, iteration: Int[Array, ""]) -> Float[Array, ""]:
        c = resolve(self.config, iteration / self.horizon)
        rate = jnp.zeros(())
        if c.exploration == "epsilon":
            fall = Linear(c.exploration_initial_eps, c.exploration_final_eps, c.exploration_fraction)
            rate = jnp.asarray(fall.at(iteration / self.horizon), jnp.float32)
        return jnp.where(offpolicy.warming_up(c, iteration, self.spec.rows), 1.0, rate)

    def policy(self, state: TrainState) -> QWeights:
        clip = sight.clip(self._now(state), state.moments)
        random = None
        if self.config.controller != "none":
            random = offpolicy.warming_up(self.config, state.iteration, self.spec.rows)
        return QWeights(state.nets, state.moments, clip, self._epsilon(state.iteration), random)

    def carry(self, rows: int) -> Carry:
        return values.start_carry(self.spec, self.config, rows)

    def act(
        self, weights: QWeights, carry: Carry, view: View, behaviour: Behaviour, key: Key
    ) -> tuple[Action, Stored, Carry]:
        act = partial(values.act, keep_core=self.config.core != "none")
        if self.config.exploration != "noisy":
            return act(weights, carry, view, behaviour, key)
        noise_key, key = several(key, 2)
        drawn = weights._replace(nets=draw_noise(weights.nets, noise_key))
        noisy = act(drawn, carry, view, behaviour._replace(greedy=None), key)
        if behaviour.greedy is None:
            return noisy
        mean = act(weights, carry, view, behaviour, key)
        return jax.tree.map(partial(values.where_row, behaviour.greedy), mean, noisy)

    def value(self, state: TrainState, obs: Any) -> Float[Array, "*N"]:
        """max Q of raw observations (stacked ones where there is a stack), the mean over branches."""
        shown = sight.normalised(self._now(state).clip_obs, state.moments, self.spec.observation, obs)
        return values.best(state.nets(sight.alone(state.nets.trunk, shown)))

    def update(self, state: TrainState, batch: Batch, key: Key) -> tuple[TrainState, Report]:
        c = self._now(state)
        online_key, target_key = several(key, 2)
        noisy = c.exploration == "noisy"
        target = draw_noise(state.target, target_key) if noisy else state.target
        steps = self.along("n_step", batch.data.point)
        data = batch.data if steps is None else offpolicy.shortened(batch.data, steps)
        lesson = offpolicy.lesson(c, state.moments, state.rewards, self.spec.observation, data)
        weight = offpolicy.weight(c, batch)

        def objective(nets: QNet) -> tuple[Float[Array, ""], tuple[Array, dict[str, Array]]]:
            drawn = draw_noise(nets, online_key) if noisy else nets
            return loss(drawn, target, c, lesson, weight)

        gradient, (error, metrics) = jax.grad(objective, has_aux=True)(state.nets)
        new = optim.apply(
            self._rule(), state.nets, state.optimiser, gradient, c.learning_rate, c.max_grad_norm
        )
        metrics |= {
            "train/grad_norm": new.norm,
            "train/learning_rate": jnp.asarray(c.learning_rate),
            "train/n_updates": state.updates + 1,
            **offpolicy.effective_share(batch),
        }
        if "epsilon" not in self.chosen:
            metrics["rollout/exploration_rate"] = self._epsilon(state.iteration)
        metrics |= checkup.look(
            offpolicy.due(state, self.plan.updates, self.horizon),
            new.params,
            lambda: optim.moved(self._rule(), new, c.learning_rate),
            lambda nets: [nets.body.hidden(sight.alone(nets.trunk, lesson.few()))],
            c.activation,
        )
        state = state._replace(nets=new.params, optimiser=new.state, updates=state.updates + 1)
        return state, Report(metrics, lesson.priority(error))

    def absorb(self, state: TrainState, rollout: Transition) -> TrainState:
        """Statistics, and the target network as it is after the steps of the next rollout.

        SB3 updates the target while it collects; between updates nothing else reads it, so doing it before is
        the same.
        """
        c = self._now(state)
        every = max(c.target_update_interval // self.spec.rows, 1)
        steps = (state.iteration + 1) * self.plan.rollout
        times = (steps + self.plan.rollout) // every - steps // every
        keep = (1.0 - c.tau) ** times.astype(jnp.float32)
        target = jax.tree.map(
            lambda old, new: jnp.where(times > 0, keep * old + (1.0 - keep) * new, old),
            state.target,
            state.nets,
        )
        return state._replace(
            target=target,
            moments=sight.absorb_obs(state.moments, self.spec, rollout),
            rewards=sight.absorb_rewards(state.rewards, c, c.gamma, rollout),
            iteration=state.iteration + 1,
        )


def loss(
    nets: QNet, target: QNet, c: DQNConfig, lesson: Lesson, weight: Array | None
) -> tuple[Float[Array, ""], tuple[Array, dict[str, Array]]]:
    """Distance of Q from its target over all branches; also the size of the error and metrics."""
    now, follows = lesson.features(nets.trunk)
    table = nets(now)
    after = values.masked(target, target(lesson.features(target.trunk)[1]), lesson.next_legal)
    if c.double:
        best = jnp.argmax(values.masked(nets, nets(follows), lesson.next_legal), axis=-1)
        after = values.taken(after, best)
    else:
        after = jnp.max(after, axis=-1)
    value = jnp.mean(after, axis=-1)
    y = lesson.target(unscale(value) if c.value_rescale else value)
    y = jax.lax.stop_gradient(rescale(y) if c.value_rescale else y)
    q = values.taken(table, values.chosen(nets.codec, lesson.steps))
    error = q - y[..., None]
    each = optax.losses.huber_loss(error) if c.loss == "huber" else 0.5 * jnp.square(error)
    total = lesson.mean(jnp.mean(each, axis=-1), weight)
    size = jnp.mean(jnp.abs(error), axis=-1)
    metrics = {
        "train/loss": total,
        "train/td_error": lesson.mean(size),
        "train/q_mean": lesson.mean(jnp.mean(q, axis=-1)),
        **offpolicy.described(lesson, jnp.mean(q, axis=-1)[None], y),
    }
    return total, (size, metrics)
