"""PPO: proximal policy optimisation with a clipped surrogate (Schulman et al. 2017, arXiv 1707.06347).

L = E[min(r A, clip(r, 1-ε, 1+ε) A)] - c_v (V - R)² + c_e H,  r = π(a|s) / π_old(a|s),
with generalised advantages A and returns R = A + V_old, over several epochs of minibatches.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from sparring.config import Schedulable, algorithm, configuration, resolve
from sparring.errors import ConfigError
from sparring.nets import policy
from sparring.nets.policy import Carry, Choice, Nets, PolicyConfig, RewardStats, Weights
from sparring.ops import optim
from sparring.ops.minibatch import Epoch, epochs, mean_in_parts
from sparring.ops.returns import explained_variance, gae, masked_mean, standardise
from sparring.ops.statistics import Moments
from sparring.replay.latest import Latest
from sparring.spaces import EnvSpec
from sparring.types import Action, Batch, Behaviour, Key, Plan, Report, Transition, View


@configuration
class PPOConfig(PolicyConfig):
    """SB3's names and defaults."""

    learning_rate: Schedulable = 3e-4
    """step size of Adam"""
    n_steps: int = 2048
    """steps of every environment between updates"""
    batch_size: int = 64
    """transitions in a minibatch"""
    n_epochs: int = 10
    """passes over the rollout"""
    gamma: Schedulable = 0.99
    """discount"""
    gae_lambda: Schedulable = 0.95
    """decay of the advantage's trace"""
    clip_range: Schedulable = 0.2
    """ε of the clipped ratio"""
    clip_range_vf: Schedulable | None = None
    """how far a value may move from the one that acted; none leaves it free"""
    normalize_advantage: Literal["minibatch", "batch", "false"] = "minibatch"
    """standardise advantages within a minibatch, within the rollout, or not"""
    ent_coef: Schedulable = 0.0
    """weight of the entropy bonus"""
    vf_coef: Schedulable = 0.5
    """weight of the value loss"""
    max_grad_norm: Schedulable | None = 0.5
    """bound of the gradient's norm; none leaves it free"""
    target_kl: Schedulable | None = None
    """stop the update when the approximate KL exceeds 1.5 times this"""
    adam_eps: float = 1e-5
    """ε of Adam"""


class TrainState(NamedTuple):
    """All that training changes."""

    nets: Nets
    optimiser: Any
    moments: Moments | None
    rewards: RewardStats | None
    iteration: Int[Array, ""]


class Progress(NamedTuple):
    """Where an update is: flat parameters, optimiser state, and whether target_kl stopped it."""

    flat: Float[Array, " P"]
    optimiser: Any
    stopped: Array


class Sample(NamedTuple):
    """What the loss needs of one transition."""

    obs: Any
    legal: Any
    action: Array
    log_prob: Array
    advantage: Array
    value: Array


@algorithm
class PPO:
    """Proximal policy optimisation."""

    spec: EnvSpec
    config: PPOConfig
    horizon: Any = 1.0

    Config: ClassVar = PPOConfig

    @property
    def plan(self) -> Plan:
        return Plan(rollout=self.config.n_steps)

    @property
    def replay(self) -> Latest:
        return Latest()

    def check(self) -> list[str]:
        """Refuses impossible settings; returns warnings about unwise ones."""
        c, transitions = self.config, self.config.n_steps * self.spec.rows
        if c.n_steps < 1 or c.batch_size < 1 or c.n_epochs < 1:
            raise ConfigError("n_steps, batch_size and n_epochs must be at least 1.")
        if transitions < 2 and c.normalize_advantage != "false":
            raise ConfigError(
                "n_steps × n_envs = 1: an advantage cannot be standardised alone. Use n_steps=2 or more, "
                "or normalize_advantage=false."
            )
        size = min(c.batch_size, transitions)
        if transitions % size == 0:
            return []
        fits = next(n for n in range(size, 0, -1) if transitions % n == 0)
        return [
            f"n_steps × n_envs = {transitions} is not a multiple of batch_size = {size}: the last minibatch "
            f"of each epoch has {transitions % size} transitions. batch_size={fits} would fit."
        ]

    def init(self, key: Key) -> TrainState:
        nets = policy.build(self.spec, self.config, key)
        flat, _ = ravel_pytree(nets)
        return TrainState(
            nets,
            optim.transform("adam", self.config.adam_eps).init(flat),
            policy.start_moments(self.spec, self.config),
            policy.start_rewards(self.spec, self.config),
            jnp.zeros((), jnp.int32),
        )

    def _now(self, state: TrainState) -> PPOConfig:
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
        c = self._now(state)
        samples, returns, mask = self._targets(c, state, policy.clean(batch.data))
        flat, unravel = ravel_pytree(state.nets)
        rule = optim.transform("adam", c.adam_eps)

        def epoch(carry: Progress, chosen: Epoch) -> tuple[Progress, tuple[Any, Array]]:
            parts = chosen.gather((samples, returns))
            if parts[1].shape[0] > 1:
                return jax.lax.scan(minibatch, carry, (parts, chosen.valid))
            return minibatch(
                carry, jax.tree.map(lambda x: x[0], (parts, chosen.valid))
            )  # a loop of one costs copies

        def minibatch(carry: Progress, now: tuple[Any, Array | None]) -> tuple[Progress, tuple[Any, Array]]:
            (samples, returns), valid = now

            def run() -> tuple[Progress, tuple[Any, Array]]:
                slope, metrics = gradient(unravel(carry.flat), c, state.moments, samples, returns, valid)
                flat, optimiser, metrics["train/grad_norm"] = optim.apply(
                    rule,
                    carry.flat,
                    carry.optimiser,
                    ravel_pytree(slope)[0],
                    c.learning_rate,
                    c.max_grad_norm,
                )
                new = Progress(flat, optimiser, carry.stopped)
                if c.target_kl is not None:
                    far = metrics["train/approx_kl"] > 1.5 * c.target_kl
                    stopped = carry._replace(stopped=jnp.bool_(True))
                    new = jax.tree.map(lambda a, b: jnp.where(far, a, b), stopped, new)
                return new, (metrics, jnp.bool_(True))

            if c.target_kl is None and valid is None:
                return run()
            skip = carry.stopped if valid is None else carry.stopped | ~jnp.any(valid)
            nothing = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(run)[1])
            return jax.lax.cond(skip, lambda: (carry, nothing), run)

        start = Progress(flat, state.optimiser, jnp.bool_(False))
        plan = epochs(key, c.n_epochs, returns.shape[0], c.batch_size, mask)
        end, (traces, ran) = jax.lax.scan(epoch, start, plan, length=c.n_epochs)
        metrics = {name: masked_mean(trace, ran) for name, trace in traces.items()}
        metrics |= self._describe(c, samples, returns, mask)
        metrics["train/n_updates"] = (state.iteration + 1) * c.n_epochs  # as SB3 counts: epochs, not steps
        nets = unravel(end.flat)
        if nets.actor.head.log_std is not None and not hasattr(nets.actor.head.log_std, "weight"):
            metrics["train/std"] = jnp.mean(jnp.exp(nets.actor.head.log_std))
        return state._replace(nets=nets, optimiser=end.optimiser), Report(metrics)

    def absorb(self, state: TrainState, rollout: Transition) -> TrainState:
        c = self._now(state)
        return state._replace(
            moments=policy.absorb_obs(state.moments, self.spec, rollout),
            rewards=policy.absorb_rewards(state.rewards, c, c.gamma, rollout),
            iteration=state.iteration + 1,
        )

    def _targets(
        self, c: PPOConfig, state: TrainState, rollout: Transition
    ) -> tuple[Sample, Float[Array, " N"], Array | None]:
        """Flat samples and returns, with the values of the network that acted."""
        stats = policy.absorb_rewards(state.rewards, c, c.gamma, rollout)
        reward = policy.scaled_reward(stats, c, rollout.reward)
        values = policy.value(c, state.nets, state.moments, policy.seen(rollout))
        nexts = policy.next_values(c, state.nets, state.moments, rollout, values)
        advantage = gae(
            reward,
            values,
            nexts,
            rollout.terminated,
            rollout.truncated,
            c.gamma,
            c.gae_lambda,
            rollout.mask,
            rollout.elapsed,
        )
        samples = Sample(
            policy.seen(rollout),
            rollout.legal,
            policy.drawn(rollout),
            rollout.extras.log_prob,
            advantage if c.normalize_advantage != "batch" else standardise(advantage, rollout.mask),
            values,
        )
        flat = jax.tree.map(
            lambda x: x.reshape((-1, *x.shape[2:])), (samples, advantage + values, rollout.mask)
        )
        return flat

    def _describe(self, c: PPOConfig, samples: Sample, returns: Array, mask: Array | None) -> dict[str, Any]:
        return {
            "train/explained_variance": explained_variance(samples.value, returns, mask),
            "train/learning_rate": jnp.asarray(c.learning_rate),
            "train/clip_range": jnp.asarray(c.clip_range),
        }


def gradient(
    nets: Nets,
    c: PPOConfig,
    moments: Moments | None,
    samples: Sample,
    returns: Float[Array, " N"],
    valid: Array | None,
) -> tuple[Nets, dict[str, Array]]:
    """The loss's gradient and metrics for one minibatch."""
    if c.normalize_advantage == "minibatch":
        samples = samples._replace(advantage=standardise(samples.advantage, valid))

    def part(samples: Sample, returns: Array) -> tuple[Nets, dict[str, Array]]:
        return jax.grad(loss, has_aux=True)(nets, c, moments, samples, returns, valid)

    return mean_in_parts(part, (samples, returns), whole=valid is not None)


def loss(
    nets: Nets,
    c: PPOConfig,
    moments: Moments | None,
    samples: Sample,
    returns: Float[Array, " N"],
    valid: Array | None,
) -> tuple[Float[Array, ""], dict[str, Array]]:
    """The clipped surrogate, the value loss and the entropy bonus of one minibatch."""
    chosen, value = policy.evaluate(c, nets, moments, samples.obs, samples.legal)
    assert value is not None
    advantage = samples.advantage
    log_ratio = chosen.log_prob(samples.action) - samples.log_prob
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1.0 - c.clip_range, 1.0 + c.clip_range)
    policy_loss = -masked_mean(jnp.minimum(ratio * advantage, clipped * advantage), valid)
    if c.clip_range_vf is not None:
        value = samples.value + jnp.clip(value - samples.value, -c.clip_range_vf, c.clip_range_vf)
    value_loss = masked_mean(jnp.square(returns - value), valid)
    entropy_loss = -masked_mean(chosen.entropy(), valid)
    total = policy_loss + c.vf_coef * value_loss + c.ent_coef * entropy_loss
    return total, {
        "train/loss": total,
        "train/policy_gradient_loss": policy_loss,
        "train/value_loss": value_loss,
        "train/entropy_loss": entropy_loss,
        "train/approx_kl": masked_mean((ratio - 1.0) - log_ratio, valid),  # Schulman's k3 estimator
        "train/clip_fraction": masked_mean((jnp.abs(ratio - 1.0) > c.clip_range).astype(jnp.float32), valid),
    }
