"""PPO: proximal policy optimisation with a clipped surrogate (Schulman et al. 2017, arXiv 1707.06347).

L = E[min(r A, clip(r, 1-ε, 1+ε) A)] - c_v (V - R)² + c_e H,  r = π(a|s) / π_old(a|s),
with generalised advantages A and returns R = A + V_old, over several epochs of minibatches.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from sparring.bandit.settings import ControlConfig, Controlled
from sparring.config import Schedulable, algorithm, configuration, resolve
from sparring.errors import ConfigError
from sparring.limits import READERS, SEQUENCES, check_ranges, unread
from sparring.nets import checkup, policy, sight
from sparring.nets.policy import Choice, Nets, PolicyConfig, Weights
from sparring.nets.sight import Carry, RewardStats
from sparring.ops import optim
from sparring.ops.minibatch import Epoch, epochs, mean_in_parts, sequences
from sparring.ops.returns import described, explained_variance, gae, masked_mean, standardise
from sparring.ops.statistics import Moments
from sparring.replay.latest import Latest
from sparring.spaces import EnvSpec
from sparring.types import Action, Batch, Behaviour, Key, Plan, Report, Transition, View


@configuration
class PPOConfig(PolicyConfig, ControlConfig):
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
    sequence_length: int = 0
    """steps through which a core is trained at once; 0 takes the whole rollout"""


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
    """What the loss needs of one transition or, with a core, of one sequence [L, …]."""

    obs: Any
    legal: Any
    action: Array
    log_prob: Array
    advantage: Array
    value: Array
    first: Array | None = None
    memory: Any = None
    """the core's state before a sequence"""
    mask: Array | None = None
    """steps of a sequence that count"""
    ent_coef: Array | None = None
    """weight of the entropy where a bandit chose it"""


@algorithm
class PPO(Controlled):
    """Proximal policy optimisation."""

    spec: EnvSpec
    config: PPOConfig
    horizon: Any = 1.0

    Config: ClassVar = PPOConfig
    coordinates: ClassVar = ("temperature:0.5:2:5:log", "ent_coef:0.0001:0.03:5:log")
    replaced: ClassVar = {"ent_coef": ("ent_coef",)}

    @property
    def plan(self) -> Plan:
        return Plan(rollout=self.config.n_steps)

    @property
    def replay(self) -> Latest:
        return Latest()

    def check(self) -> list[str]:
        """Refuses impossible settings; returns warnings about unwise ones."""
        check_ranges(self.config)
        c, transitions = self.config, self.config.n_steps * self.spec.rows
        if c.n_steps < 1 or c.batch_size < 1 or c.n_epochs < 1:
            raise ConfigError("n_steps, batch_size and n_epochs must be at least 1.")
        if transitions < 2 and c.normalize_advantage != "false":
            raise ConfigError(
                "n_steps × n_envs = 1: an advantage cannot be standardised alone. Use n_steps=2 or more, "
                "or normalize_advantage=false."
            )
        return [*self._check_batches(), *unread(c, (*READERS, SEQUENCES)), *self.unread()]

    def _check_batches(self) -> list[str]:
        c, transitions = self.config, self.config.n_steps * self.spec.rows
        if c.core != "none":
            return self._check_sequences()
        size = min(c.batch_size, transitions)
        if transitions % size == 0:
            return []
        fits = next(n for n in range(size, 0, -1) if transitions % n == 0)
        return [
            f"n_steps × n_envs = {transitions} is not a multiple of batch_size = {size}: the last minibatch "
            f"of each epoch has {transitions % size} transitions. batch_size={fits} would fit."
        ]

    def _check_sequences(self) -> list[str]:
        c, length = self.config, self._length
        if c.n_steps % length:
            raise ConfigError(
                f"n_steps = {c.n_steps} is not a multiple of sequence_length = {length}: the rollout cannot "
                "be cut into sequences. Choose a divisor, or 0 for the whole rollout."
            )
        if c.batch_size >= length:
            return []
        return [
            f"batch_size = {c.batch_size} is less than one sequence of {length} steps: a minibatch has one "
            f"sequence. Set sequence_length={c.batch_size} or batch_size={length}."
        ]

    @property
    def _length(self) -> int:
        """Steps of a training sequence."""
        return self.config.sequence_length or self.config.n_steps

    def init(self, key: Key) -> TrainState:
        nets = policy.build(self.spec, self.config, key)
        flat, _ = ravel_pytree(nets)
        return TrainState(
            nets,
            optim.transform("adam", self.config.adam_eps).init(flat),
            sight.start_moments(self.spec, self.config),
            sight.start_rewards(self.spec, self.config),
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
        rollout = sight.clean(batch.data)
        samples, returns, mask = self._targets(c, state, rollout)
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
        size = c.batch_size if c.core == "none" else max(c.batch_size // self._length, 1)
        plan = epochs(key, c.n_epochs, returns.shape[0], size, mask)
        end, (traces, ran) = jax.lax.scan(epoch, start, plan, length=c.n_epochs)
        metrics = {name: masked_mean(trace, ran) for name, trace in traces.items()}
        counts = mask if samples.mask is None else samples.mask
        metrics |= self._describe(c, samples, returns, counts)
        metrics["train/n_updates"] = (state.iteration + 1) * c.n_epochs  # as SB3 counts: epochs, not steps
        nets = unravel(end.flat)
        metrics |= checkup.look(
            checkup.due(state.iteration, self.horizon),
            nets,
            lambda: checkup.difference(state.nets, nets),
            lambda nets: policy.hidden(c, nets, state.moments, rollout),
            c.activation,
            lambda: (
                checkup.targets(returns, returns - samples.value, counts)
                | policy.logit_spread(c, state.nets, state.moments, rollout)
            ),
        )
        if nets.actor.head.log_std is not None and not hasattr(nets.actor.head.log_std, "weight"):
            metrics["train/std"] = jnp.mean(jnp.exp(nets.actor.head.log_std))
        return state._replace(nets=nets, optimiser=end.optimiser), Report(metrics)

    def absorb(self, state: TrainState, rollout: Transition) -> TrainState:
        c = self._now(state)
        return state._replace(
            moments=sight.absorb_obs(state.moments, self.spec, rollout),
            rewards=sight.absorb_rewards(state.rewards, c, c.gamma, rollout),
            iteration=state.iteration + 1,
        )

    def _targets(
        self, c: PPOConfig, state: TrainState, rollout: Transition
    ) -> tuple[Sample, Float[Array, "N ..."], Array | None]:
        """Samples and returns, with the values of the network that acted, and which of them count."""
        stats = sight.absorb_rewards(state.rewards, c, c.gamma, rollout)
        reward = sight.scaled_reward(stats, c, rollout.reward)
        values, nexts, memory = policy.valued(c, state.nets, state.moments, rollout, self._length)
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
            sight.seen(rollout),
            rollout.legal,
            policy.drawn(rollout),
            rollout.extras.log_prob,
            advantage if c.normalize_advantage != "batch" else standardise(advantage, rollout.mask),
            values,
            ent_coef=self.along("ent_coef", rollout.point),
        )
        if c.core == "none":
            flat: tuple[Sample, Array, Array | None] = jax.tree.map(
                lambda x: x.reshape((-1, *x.shape[2:])), (samples, advantage + values, rollout.mask)
            )
            return flat
        samples = samples._replace(first=rollout.first, mask=rollout.mask)
        cut = jax.tree.map(partial(sequences, length=self._length), (samples, advantage + values))
        memory = jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), memory)
        some = None if cut[0].mask is None else jnp.any(cut[0].mask, axis=1)
        return cut[0]._replace(memory=memory), cut[1], some

    def _describe(
        self, c: PPOConfig, samples: Sample, returns: Array, counts: Array | None
    ) -> dict[str, Any]:
        return {
            "train/explained_variance": explained_variance(samples.value, returns, counts),
            "train/learning_rate": jnp.asarray(c.learning_rate),
            "train/clip_range": jnp.asarray(c.clip_range),
            **described(returns, returns - samples.value, counts),
        }


def gradient(
    nets: Nets,
    c: PPOConfig,
    moments: Moments | None,
    samples: Sample,
    returns: Float[Array, "N ..."],
    valid: Array | None,
) -> tuple[Nets, dict[str, Array]]:
    """The loss's gradient and metrics for one minibatch; `valid` says which samples count."""
    recurrent = c.core != "none"
    if recurrent:
        samples, returns = time_major((samples._replace(memory=None), returns), samples.memory)
        if valid is not None:
            count = jnp.broadcast_to(valid, returns.shape)
            valid = count if samples.mask is None else count & samples.mask
    if c.normalize_advantage == "minibatch":
        samples = samples._replace(advantage=standardise(samples.advantage, valid))

    def part(samples: Sample, returns: Array) -> tuple[Nets, dict[str, Array]]:
        return jax.grad(loss, has_aux=True)(nets, c, moments, samples, returns, valid)

    return mean_in_parts(part, (samples, returns), whole=recurrent or valid is not None)


def time_major(batch: tuple[Sample, Array], memory: Any) -> tuple[Sample, Array]:
    """Sequences [N, L, …] as the core wants them, [L, N, …]."""
    samples, returns = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), batch)
    return samples._replace(memory=memory), returns


def loss(
    nets: Nets,
    c: PPOConfig,
    moments: Moments | None,
    samples: Sample,
    returns: Float[Array, "*N"],
    valid: Array | None,
) -> tuple[Float[Array, ""], dict[str, Array]]:
    """The clipped surrogate, the value loss and the entropy bonus of one minibatch."""
    chosen, value = policy.evaluate(
        c, nets, moments, samples.obs, samples.legal, samples.first, samples.memory
    )
    assert value is not None
    advantage = samples.advantage
    log_ratio = chosen.log_prob(samples.action) - samples.log_prob
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1.0 - c.clip_range, 1.0 + c.clip_range)
    policy_loss = -masked_mean(jnp.minimum(ratio * advantage, clipped * advantage), valid)
    if c.clip_range_vf is not None:
        value = samples.value + jnp.clip(value - samples.value, -c.clip_range_vf, c.clip_range_vf)
    value_loss = masked_mean(jnp.square(returns - value), valid)
    entropy = chosen.entropy()
    entropy_loss = -masked_mean(entropy, valid)
    bonus = c.ent_coef * entropy_loss
    if samples.ent_coef is not None:
        bonus = -masked_mean(samples.ent_coef * entropy, valid)
    total = policy_loss + c.vf_coef * value_loss + bonus
    return total, {
        "train/loss": total,
        "train/policy_gradient_loss": policy_loss,
        "train/value_loss": value_loss,
        "train/entropy_loss": entropy_loss,
        "train/approx_kl": masked_mean((ratio - 1.0) - log_ratio, valid),  # Schulman's k3 estimator
        "train/clip_fraction": masked_mean((jnp.abs(ratio - 1.0) > c.clip_range).astype(jnp.float32), valid),
    }
