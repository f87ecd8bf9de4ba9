"""REINFORCE: Monte-Carlo policy gradient (Williams 1992), with or without a learned baseline.

∇J = E[∇ log π(a_t|s_t) (G_t - b(s_t))],  G_t = Σ_k γ^k r_{t+k} to the end of the episode: true returns of
rewards, never of a value model. The baseline b = V only lowers the variance; it is fitted to G.
Only whole episodes are learned from; one that crosses a rollout's end is finished first.
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
from sparring.ops.returns import described, explained_variance, masked_mean, monte_carlo, standardise
from sparring.ops.statistics import Moments
from sparring.replay.episodes import Episodes
from sparring.spaces import EnvSpec
from sparring.types import Action, Batch, Behaviour, Key, Plan, Report, Transition, View


@configuration
class ReinforceConfig(PolicyConfig):
    """Settings in SB3's words where it has them."""

    learning_rate: Schedulable = 1e-3
    """step size of Adam"""
    n_steps: int = 128
    """steps of every environment between updates"""
    gamma: Schedulable = 0.99
    """discount"""
    baseline: bool = True
    """subtract a learned value from the return"""
    normalize_advantage: bool = True
    """standardise what multiplies the log-probability within the update"""
    ent_coef: Schedulable = 0.0
    """weight of the entropy bonus"""
    vf_coef: Schedulable = 0.5
    """weight of the baseline's loss"""
    max_grad_norm: Schedulable | None = 0.5
    """bound of the gradient's norm; none leaves it free"""
    adam_eps: float = 1e-5
    """ε of Adam"""
    max_episode_steps: int = 0
    """longest episode that is kept whole; 0 takes the environment's time limit"""


class TrainState(NamedTuple):
    """All that training changes."""

    nets: Nets
    optimiser: Any
    moments: Moments | None
    rewards: RewardStats | None
    iteration: Int[Array, ""]


@algorithm
class REINFORCE:
    """Monte-Carlo policy gradient."""

    spec: EnvSpec
    config: ReinforceConfig
    horizon: Any = 1.0

    Config: ClassVar = ReinforceConfig

    @property
    def plan(self) -> Plan:
        return Plan(rollout=self.config.n_steps)

    @property
    def replay(self) -> Episodes:
        return Episodes(self.config.max_episode_steps or self.spec.time_limit or 0)

    def check(self) -> list[str]:
        """Refuses impossible settings; returns warnings about unwise ones."""
        c = self.config
        check_ranges(c)
        if c.n_steps < 1:
            raise ConfigError("n_steps must be at least 1.")
        if self.replay.capacity < 1:
            raise ConfigError(
                f"REINFORCE learns from whole episodes, and {self.spec.id} has no time limit. "
                "Set max_episode_steps to the longest episode to keep, for example 1000."
            )
        if self.spec.time_limit is not None and 0 < c.max_episode_steps < self.spec.time_limit:
            return [
                f"Episodes longer than max_episode_steps = {c.max_episode_steps} are dropped; "
                f"the environment allows {self.spec.time_limit}.",
                *unread(c),
            ]
        return unread(c)

    def _rule(self) -> Any:
        return optim.transform("adam", self.config.adam_eps)

    def init(self, key: Key) -> TrainState:
        nets = policy.build(self.spec, self.config, key, critic=self.config.baseline)
        return TrainState(
            nets,
            self._rule().init(ravel_pytree(nets)[0]),
            sight.start_moments(self.spec, self.config),
            sight.start_rewards(self.spec, self.config),
            jnp.zeros((), jnp.int32),
        )

    def _now(self, state: TrainState) -> ReinforceConfig:
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
        """The baseline of raw observations (stacked ones where there is a stack)."""
        return policy.value(self._now(state), state.nets, state.moments, obs)

    def update(self, state: TrainState, batch: Batch, key: Key) -> tuple[TrainState, Report]:
        c, episodes = self._now(state), sight.clean(batch.data)
        reward = sight.scaled_reward(state.rewards, c, episodes.reward)
        over = episodes.terminated | episodes.truncated
        returns = monte_carlo(reward, over, c.gamma, episodes.mask, episodes.elapsed)
        flat, unravel = ravel_pytree(state.nets)

        def learn() -> tuple[optim.Step, dict[str, Array]]:
            gradient, metrics = jax.grad(loss, has_aux=True)(state.nets, c, state.moments, episodes, returns)
            new = optim.apply(
                self._rule(),
                flat,
                state.optimiser,
                ravel_pytree(gradient)[0],
                c.learning_rate,
                c.max_grad_norm,
            )
            return new, metrics

        def wait() -> tuple[optim.Step, dict[str, Array]]:
            metrics = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(learn)[1])
            return optim.Step(flat, state.optimiser, jnp.zeros(())), metrics

        finished = jnp.any(episodes.mask)
        new, metrics = jax.lax.cond(finished, learn, wait)
        metrics |= {
            "train/grad_norm": new.norm,
            "train/learning_rate": jnp.asarray(c.learning_rate),
            "train/transitions": jnp.sum(episodes.mask),
            "train/n_updates": new.state.count,
            **described(returns, None, episodes.mask),
        }
        nets = unravel(new.params)
        metrics |= checkup.look(
            checkup.due(state.iteration, self.horizon),
            nets,
            lambda: checkup.difference(state.nets, nets),
            lambda nets: policy.hidden(c, nets, state.moments, episodes),
            c.activation,
            lambda: (
                checkup.targets(returns, None, episodes.mask)
                | policy.logit_spread(c, state.nets, state.moments, episodes)
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
    c: ReinforceConfig,
    moments: Moments | None,
    episodes: Transition,
    returns: Float[Array, "C B"],
) -> tuple[Float[Array, ""], dict[str, Array]]:
    """Policy gradient of whole episodes, the baseline's loss and the entropy bonus."""
    mask = episodes.mask
    memory = nets.actor.trunk.start(mask.shape[1])  # whole episodes: each begins with a reset
    chosen, value = policy.evaluate(
        c, nets, moments, sight.seen(episodes), episodes.legal, episodes.first, memory
    )
    weight = returns if value is None else returns - jax.lax.stop_gradient(value)
    if c.normalize_advantage:
        weight = standardise(weight, mask)
    policy_loss = -masked_mean(weight * chosen.log_prob(policy.drawn(episodes)), mask)
    entropy_loss = -masked_mean(chosen.entropy(), mask)
    total = policy_loss + c.ent_coef * entropy_loss
    metrics = {"train/policy_loss": policy_loss, "train/entropy_loss": entropy_loss}
    if value is not None:
        value_loss = masked_mean(jnp.square(returns - value), mask)
        total = total + c.vf_coef * value_loss
        metrics |= {
            "train/value_loss": value_loss,
            "train/explained_variance": explained_variance(value, returns, mask),
        }
    return total, {"train/loss": total, **metrics}
