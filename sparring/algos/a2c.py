"""A2C: synchronous advantage actor-critic (Mnih et al. 2016, arXiv 1602.01783), as SB3 runs it.

L = -E[log π(a|s) A] + c_v (R - V)² - c_e H over one pass of a short rollout, with RMSProp.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from sparring.config import Schedulable, algorithm, configuration, resolve
from sparring.errors import ConfigError
from sparring.limits import check_ranges, unread
from sparring.nets import checkup, policy, sight
from sparring.nets.policy import Choice, Nets, PolicyConfig, Weights
from sparring.nets.sight import Carry, RewardStats
from sparring.ops import optim
from sparring.ops.returns import described, explained_variance, gae, masked_mean, standardise
from sparring.ops.statistics import Moments
from sparring.replay.latest import Latest
from sparring.spaces import EnvSpec
from sparring.types import Action, Batch, Behaviour, Key, Plan, Report, Transition, View


@configuration
class A2CConfig(PolicyConfig):
    """SB3's names and defaults."""

    learning_rate: Schedulable = 7e-4
    """step size"""
    n_steps: int = 5
    """steps of every environment between updates"""
    gamma: Schedulable = 0.99
    """discount"""
    gae_lambda: Schedulable = 1.0
    """decay of the advantage's trace; 1 is the classic n-step advantage"""
    ent_coef: Schedulable = 0.0
    """weight of the entropy bonus"""
    vf_coef: Schedulable = 0.5
    """weight of the value loss"""
    max_grad_norm: Schedulable | None = 0.5
    """bound of the gradient's norm; none leaves it free"""
    rms_prop_eps: float = 1e-5
    """ε of RMSProp, and of Adam when use_rms_prop is off"""
    use_rms_prop: bool = True
    """RMSProp, or Adam"""
    normalize_advantage: bool = False
    """standardise advantages within the rollout"""


class TrainState(NamedTuple):
    """All that training changes."""

    nets: Nets
    optimiser: Any
    moments: Moments | None
    rewards: RewardStats | None
    iteration: Int[Array, ""]


@algorithm
class A2C:
    """Synchronous advantage actor-critic."""

    spec: EnvSpec
    config: A2CConfig
    horizon: Any = 1.0

    Config: ClassVar = A2CConfig

    @property
    def plan(self) -> Plan:
        return Plan(rollout=self.config.n_steps)

    @property
    def replay(self) -> Latest:
        return Latest()

    def check(self) -> list[str]:
        """Refuses impossible settings; returns warnings about unwise ones."""
        check_ranges(self.config)
        if self.config.n_steps < 1:
            raise ConfigError("n_steps must be at least 1.")
        if self.config.normalize_advantage and self.config.n_steps * self.spec.rows < 2:
            raise ConfigError(
                "n_steps × n_envs = 1: an advantage cannot be standardised alone. Use n_steps=2."
            )
        return unread(self.config)

    def _rule(self) -> Any:
        return optim.transform("rmsprop" if self.config.use_rms_prop else "adam", self.config.rms_prop_eps)

    def init(self, key: Key) -> TrainState:
        nets = policy.build(self.spec, self.config, key)
        return TrainState(
            nets,
            self._rule().init(ravel_pytree(nets)[0]),
            sight.start_moments(self.spec, self.config),
            sight.start_rewards(self.spec, self.config),
            jnp.zeros((), jnp.int32),
        )

    def _now(self, state: TrainState) -> A2CConfig:
        return resolve(self.config, state.iteration / self.horizon)

    def policy(self, state: TrainState) -> Weights:
        return policy.weights(self._now(state), state.nets, state.moments)

    def carry(self, rows: int) -> Carry:
        return policy.start_carry(self.spec, self.config, rows)

    def act(
        self, weights: Weights, carry: Carry, view: View, behaviour: Behaviour, key: Key
    ) -> tuple[Action, Choice, Carry]:
        return policy.act(self.config, weights, carry, view, behaviour, key, self.plan.rollout)

    def value(self, state: TrainState, obs: Any) -> Float[Array, "*N"]:
        """V of raw observations (stacked ones where there is a stack)."""
        return policy.value(self._now(state), state.nets, state.moments, obs)

    def update(self, state: TrainState, batch: Batch, key: Key) -> tuple[TrainState, Report]:
        c, rollout = self._now(state), sight.clean(batch.data)
        stats = sight.absorb_rewards(state.rewards, c, c.gamma, rollout)
        reward = sight.scaled_reward(stats, c, rollout.reward)
        values, nexts, _ = policy.valued(c, state.nets, state.moments, rollout)
        ends = (rollout.terminated, rollout.truncated)
        advantage = gae(reward, values, nexts, *ends, c.gamma, c.gae_lambda, rollout.mask, rollout.elapsed)
        flat, unravel = ravel_pytree(state.nets)
        gradient, metrics = jax.grad(loss, has_aux=True)(
            state.nets, c, state.moments, rollout, advantage, advantage + values
        )
        new = optim.apply(
            self._rule(), flat, state.optimiser, ravel_pytree(gradient)[0], c.learning_rate, c.max_grad_norm
        )
        if rollout.mask is not None:  # a rollout without a decision changes nothing
            some = jnp.any(rollout.mask)
            new = jax.tree.map(
                lambda a, b: jnp.where(some, a, b), new, optim.Step(flat, state.optimiser, new.norm)
            )
        metrics |= {
            "train/grad_norm": new.norm,
            "train/explained_variance": explained_variance(values, advantage + values, rollout.mask),
            "train/learning_rate": jnp.asarray(c.learning_rate),
            "train/n_updates": state.iteration + 1,
            **described(advantage + values, advantage, rollout.mask),
        }
        nets = unravel(new.params)
        metrics |= checkup.look(
            checkup.due(state.iteration, self.horizon),
            nets,
            lambda: checkup.difference(state.nets, nets),
            lambda nets: policy.hidden(c, nets, state.moments, rollout),
            c.activation,
            lambda: (
                checkup.targets(advantage + values, advantage, rollout.mask)
                | policy.logit_spread(c, state.nets, state.moments, rollout)
            ),
        )
        return state._replace(nets=nets, optimiser=new.state), Report(metrics)

    def absorb(self, state: TrainState, rollout: Transition) -> TrainState:
        c = self._now(state)
        return state._replace(
            moments=sight.absorb_obs(state.moments, self.spec, rollout),
            rewards=sight.absorb_rewards(state.rewards, c, c.gamma, rollout),
            iteration=state.iteration + 1,
        )


def loss(
    nets: Nets,
    c: A2CConfig,
    moments: Moments | None,
    rollout: Transition,
    advantage: Float[Array, "T B"],
    returns: Float[Array, "T B"],
) -> tuple[Float[Array, ""], dict[str, Array]]:
    """Policy gradient, value loss and entropy bonus of one rollout."""
    chosen, value = policy.evaluate(
        c, nets, moments, sight.seen(rollout), rollout.legal, rollout.first, rollout.core
    )
    assert value is not None
    if c.normalize_advantage:
        advantage = standardise(advantage, rollout.mask)
    policy_loss = -masked_mean(advantage * chosen.log_prob(policy.drawn(rollout)), rollout.mask)
    value_loss = masked_mean(jnp.square(returns - value), rollout.mask)
    entropy_loss = -masked_mean(chosen.entropy(), rollout.mask)
    total = policy_loss + c.vf_coef * value_loss + c.ent_coef * entropy_loss
    return total, {
        "train/loss": total,
        "train/policy_loss": policy_loss,
        "train/value_loss": value_loss,
        "train/entropy_loss": entropy_loss,
    }
