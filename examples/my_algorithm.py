"""An algorithm of one's own: the policy gradient with a value baseline, on the library's networks.

    sparring check-algo examples/my_algorithm.py:Mine
    sparring train examples/my_algorithm.py:Mine CartPole-v1 --total-timesteps 200_000 --set n_envs=8

L = -E[log π(a|s) (G - V(s))] + (G - V(s))², where G is the rollout's discounted return.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from sparring.config import Schedulable, algorithm, configuration, resolve
from sparring.nets import policy, sight
from sparring.nets.policy import Choice, Nets, PolicyConfig, Weights
from sparring.nets.sight import Carry
from sparring.ops import optim
from sparring.ops.returns import gae, masked_mean, standardise
from sparring.replay.latest import Latest
from sparring.spaces import EnvSpec
from sparring.types import Action, Batch, Behaviour, Plan, Report, Transition, View

ADAM = optim.transform("adam", eps=1e-5)


@configuration
class MineConfig(PolicyConfig):
    """Numbers annotated Schedulable may change without a new compilation; the rest is static."""

    learning_rate: Schedulable = 1e-3
    """step size of Adam"""
    n_steps: int = 64
    """steps of every environment between updates"""
    gamma: Schedulable = 0.98
    """discount"""


class TrainState(NamedTuple):
    """All that training changes; a checkpoint holds exactly this."""

    nets: Nets
    optimiser: Any
    moments: Any
    rewards: Any
    iteration: jax.Array


@algorithm
class Mine:
    """Pure functions over a TrainState: no loop, no environment, no file."""

    spec: EnvSpec
    config: MineConfig
    horizon: Any = 1.0
    Config: ClassVar = MineConfig

    @property
    def plan(self) -> Plan:
        return Plan(rollout=self.config.n_steps)

    @property
    def replay(self) -> Latest:
        return Latest()

    def init(self, key: Any) -> TrainState:
        nets = policy.build(self.spec, self.config, key)
        moments = sight.start_moments(self.spec, self.config)
        rewards = sight.start_rewards(self.spec, self.config)
        return TrainState(nets, ADAM.init(ravel_pytree(nets)[0]), moments, rewards, jnp.int32(0))

    def policy(self, state: TrainState) -> Weights:
        return Weights(state.nets.actor, state.moments)

    def carry(self, rows: int) -> Carry:
        return policy.start_carry(self.spec, self.config, rows)

    def act(
        self, weights: Weights, carry: Carry, view: View, behaviour: Behaviour, key: Any
    ) -> tuple[Action, Choice, Carry]:
        return policy.act(self.config, weights, carry, view, behaviour, key, self.plan.rollout)

    def value(self, state: TrainState, obs: Any) -> jax.Array:
        return policy.value(self.config, state.nets, state.moments, obs)

    def update(self, state: TrainState, batch: Batch, key: Any) -> tuple[TrainState, Report]:
        c, rollout = resolve(self.config, state.iteration / self.horizon), batch.data
        stats = sight.absorb_rewards(state.rewards, c, c.gamma, rollout)
        reward = sight.scaled_reward(stats, c, rollout.reward)
        values, nexts, _ = policy.valued(c, state.nets, state.moments, rollout)
        ends = (rollout.terminated, rollout.truncated)
        advantage = gae(reward, values, nexts, *ends, c.gamma, 1.0, rollout.mask)
        target, weight = advantage + values, standardise(advantage, rollout.mask)

        def loss(nets: Nets) -> jax.Array:
            seen = sight.seen(rollout)
            chosen, value = policy.evaluate(
                c, nets, state.moments, seen, rollout.legal, rollout.first, rollout.core
            )
            gain = weight * chosen.log_prob(policy.drawn(rollout))
            return masked_mean(jnp.square(target - value) - gain, rollout.mask)

        total, gradient = jax.value_and_grad(loss)(state.nets)
        flat, unravel = ravel_pytree(state.nets)
        new = optim.apply(ADAM, flat, state.optimiser, ravel_pytree(gradient)[0], c.learning_rate, 0.5)
        metrics = {"train/loss": total, "train/grad_norm": new.norm}
        return state._replace(nets=unravel(new.params), optimiser=new.state), Report(metrics)

    def absorb(self, state: TrainState, rollout: Transition) -> TrainState:
        c = resolve(self.config, state.iteration / self.horizon)
        return state._replace(
            moments=sight.absorb_obs(state.moments, self.spec, rollout),
            rewards=sight.absorb_rewards(state.rewards, c, c.gamma, rollout),
            iteration=state.iteration + 1,
        )
