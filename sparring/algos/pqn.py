"""PQN: parallelised Q-network (Gallici et al. 2024, arXiv 2407.04811): no replay, no target network.

Layer-normalised Q-learning on fresh rollouts of many environments: Q(λ) targets by the network that acted,
several epochs of minibatches, L = ½ (Q(s, a) - G)². MultiDiscrete by branches (`nets.values`).
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from sparring.bandit.settings import ControlConfig, Controlled
from sparring.config import Linear, Schedulable, algorithm, configuration, resolve
from sparring.errors import ConfigError
from sparring.limits import EXPLORATION, READERS, SEQUENCES, check_ranges, unread
from sparring.nets import checkup, sight, values
from sparring.nets.sight import AgentConfig, BinsConfig, Carry, RewardStats, Stored
from sparring.nets.values import QNet, QWeights
from sparring.ops import optim
from sparring.ops.minibatch import Epoch, epochs, sequences
from sparring.ops.returns import described, explained_variance, masked_mean, q_lambda
from sparring.ops.statistics import Moments
from sparring.replay.latest import Latest
from sparring.spaces import EnvSpec
from sparring.types import Action, Batch, Behaviour, Key, Plan, Report, Transition, View


@configuration
class PQNConfig(AgentConfig, BinsConfig, ControlConfig):
    """Settings in SB3's words where it has them; values of the paper's small experiments."""

    activation: str = "relu"
    """tanh, relu, elu, gelu, silu, leaky_relu, sigmoid or identity"""
    net_arch: tuple[int, ...] = (128, 128)
    """hidden sizes of the network"""
    layer_norm: bool = True
    """normalise every hidden layer: what keeps it stable without a target network"""
    learning_rate: Schedulable = 2.5e-4
    """step size of rectified Adam"""
    n_steps: int = 32
    """steps of every environment between updates"""
    batch_size: int = 128
    """transitions in a minibatch"""
    n_epochs: int = 2
    """passes over the rollout"""
    gamma: Schedulable = 0.99
    """discount"""
    q_lambda: Schedulable = 0.65
    """decay of the return's trace"""
    exploration_fraction: float = 0.1
    """share of training over which the exploration rate falls"""
    exploration_initial_eps: Schedulable = 1.0
    """first exploration rate"""
    exploration_final_eps: Schedulable = 0.05
    """last exploration rate; both may be schedules of their own, between which the rate falls"""
    max_grad_norm: Schedulable | None = 10.0
    """bound of the gradient's norm; none leaves it free"""
    adam_eps: float = 1e-8
    """ε of rectified Adam"""
    sequence_length: int = 0
    """steps through which a core is trained at once; 0 takes the whole rollout"""


class TrainState(NamedTuple):
    """All that training changes."""

    nets: QNet
    optimiser: Any
    moments: Moments | None
    rewards: RewardStats | None
    iteration: Int[Array, ""]


class Sample(NamedTuple):
    """What the loss needs of one transition or, with a core, of one sequence [L, …]."""

    obs: Any
    chosen: Array
    first: Array | None = None
    mask: Array | None = None
    """steps of a sequence that count"""


@algorithm
class PQN(Controlled):
    """Q-learning from fresh rollouts."""

    spec: EnvSpec
    config: PQNConfig
    horizon: Any = 1.0

    Config: ClassVar = PQNConfig
    coordinates: ClassVar = ("epsilon:0.01:0.6:6:log", "q_lambda:0.1:0.9:4")
    replaced: ClassVar = {"epsilon": EXPLORATION, "q_lambda": ("q_lambda",)}

    @property
    def plan(self) -> Plan:
        return Plan(rollout=self.config.n_steps)

    @property
    def replay(self) -> Latest:
        return Latest()

    def check(self) -> list[str]:
        """Refuses impossible settings; returns warnings about unwise ones."""
        c = self.config
        values.choice_codec(self.spec, c, "PQN")
        check_ranges(c)
        if c.n_steps < 1 or c.batch_size < 1 or c.n_epochs < 1:
            raise ConfigError("n_steps, batch_size and n_epochs must be at least 1.")
        if c.sequence_length < 0:
            raise ConfigError(f"sequence_length cannot be negative, got {c.sequence_length}.")
        if c.core != "none" and c.n_steps % self._length:
            raise ConfigError(
                f"n_steps = {c.n_steps} is not a multiple of sequence_length = {self._length}: the rollout "
                "cannot be cut into sequences. Choose a divisor, or 0 for the whole rollout."
            )
        return [*unread(c, (*READERS, SEQUENCES)), *self.unread()]

    @property
    def _length(self) -> int:
        """Steps of a training sequence."""
        return self.config.sequence_length or self.config.n_steps

    def _rule(self) -> optim.Rule:
        return optim.transform("radam", self.config.adam_eps)

    def init(self, key: Key) -> TrainState:
        c = self.config
        codec = values.choice_codec(self.spec, c, "PQN")
        nets = values.build(self.spec, c, key, c.net_arch, codec, norm=c.layer_norm)
        return TrainState(
            nets,
            self._rule().init(ravel_pytree(nets)[0]),
            sight.start_moments(self.spec, c),
            sight.start_rewards(self.spec, c),
            jnp.zeros((), jnp.int32),
        )

    def _now(self, state: TrainState) -> PQNConfig:
        return resolve(self.config, state.iteration / self.horizon)

    def _epsilon(self, iteration: Int[Array, ""]) -> Float[Array, ""]:
        c = resolve(self.config, iteration / self.horizon)
        fall = Linear(c.exploration_initial_eps, c.exploration_final_eps, c.exploration_fraction)
        return jnp.asarray(fall.at(iteration / self.horizon), jnp.float32)

    def policy(self, state: TrainState) -> QWeights:
        clip = sight.clip(self._now(state), state.moments)
        return QWeights(state.nets, state.moments, clip, self._epsilon(state.iteration))

    def carry(self, rows: int) -> Carry:
        return values.start_carry(self.spec, self.config, rows)

    def act(
        self, weights: QWeights, carry: Carry, view: View, behaviour: Behaviour, key: Key
    ) -> tuple[Action, Stored, Carry]:
        return values.act(weights, carry, view, behaviour, key)

    def value(self, state: TrainState, obs: Any) -> Float[Array, "*N"]:
        """max Q of raw observations (stacked ones where there is a stack), the mean over branches."""
        shown = sight.normalised(self._now(state).clip_obs, state.moments, self.spec.observation, obs)
        return values.best(state.nets(sight.alone(state.nets.trunk, shown)))

    def update(self, state: TrainState, batch: Batch, key: Key) -> tuple[TrainState, Report]:
        c = self._now(state)
        samples, returns, memory, mask = self._targets(c, state, sight.clean(batch.data))
        flat, unravel = ravel_pytree(state.nets)
        recurrent = c.core != "none"

        def minibatch(carry: tuple[Array, Any], now: tuple[Any, Array | None]) -> tuple[Any, Any]:
            (samples, returns, memory), valid = now

            def run() -> tuple[Any, Any]:
                def objective(nets: QNet) -> tuple[Array, dict[str, Array]]:
                    return loss(nets, c, state.moments, samples, returns, memory, valid)

                slope, metrics = jax.grad(objective, has_aux=True)(unravel(carry[0]))
                step = optim.apply(
                    self._rule(), *carry, ravel_pytree(slope)[0], c.learning_rate, c.max_grad_norm
                )
                return (step.params, step.state), metrics | {"train/grad_norm": step.norm}

            if valid is None:
                return run()
            none = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(run)[1])
            return jax.lax.cond(jnp.any(valid), run, lambda: (carry, none))

        def epoch(carry: tuple[Array, Any], chosen: Epoch) -> tuple[Any, Any]:
            parts = chosen.gather((samples, returns, memory))
            return jax.lax.scan(minibatch, carry, (parts, chosen.valid))

        size = max(c.batch_size // self._length, 1) if recurrent else c.batch_size
        plan = epochs(key, c.n_epochs, returns.shape[0], size, mask)
        (flat, optimiser), traces = jax.lax.scan(epoch, (flat, state.optimiser), plan, length=c.n_epochs)
        metrics = {name: jnp.mean(trace) for name, trace in traces.items()}
        counts = mask if samples.mask is None else samples.mask
        metrics |= {
            "train/learning_rate": jnp.asarray(c.learning_rate),
            "train/n_updates": (state.iteration + 1) * c.n_epochs,
            **described(returns, None, counts),
        }
        if "epsilon" not in self.chosen:
            metrics["rollout/exploration_rate"] = self._epsilon(state.iteration)
        nets = unravel(flat)
        metrics |= checkup.look(
            checkup.due(state.iteration, self.horizon),
            nets,
            lambda: checkup.difference(state.nets, nets),
            lambda nets: values.hidden(c, nets, state.moments, sight.clean(batch.data)),
            c.activation,
            lambda: checkup.targets(returns, None, counts),
        )
        return state._replace(nets=nets, optimiser=optimiser), Report(metrics)

    def absorb(self, state: TrainState, rollout: Transition) -> TrainState:
        c = self._now(state)
        return state._replace(
            moments=sight.absorb_obs(state.moments, self.spec, rollout),
            rewards=sight.absorb_rewards(state.rewards, c, c.gamma, rollout),
            iteration=state.iteration + 1,
        )

    def _targets(
        self, c: PQNConfig, state: TrainState, rollout: Transition
    ) -> tuple[Sample, Float[Array, "N ..."], Any, Array | None]:
        """Samples, their returns by the network that acted, starting states of cores, and which count."""
        nets = state.nets
        stats = sight.absorb_rewards(state.rewards, c, c.gamma, rollout)
        reward = sight.scaled_reward(stats, c, rollout.reward)

        def head(features: Array, legal: Any) -> Array:
            return values.best(values.masked(nets, nets(features), legal))

        _, nexts, memory = sight.valued(c, nets.trunk, head, state.moments, rollout, self._length)
        ends = (rollout.terminated, rollout.truncated)
        chosen = self.along("q_lambda", rollout.point)
        trace = c.q_lambda if chosen is None else chosen
        returns = q_lambda(reward, nexts, *ends, c.gamma, trace, rollout.mask, rollout.elapsed)
        samples = Sample(sight.seen(rollout), values.chosen(nets.codec, rollout))
        if c.core == "none":
            flat = jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), (samples, returns, rollout.mask))
            return flat[0], flat[1], None, flat[2]
        samples = samples._replace(first=rollout.first, mask=rollout.mask)
        samples, returns = jax.tree.map(partial(sequences, length=self._length), (samples, returns))
        memory = jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), memory)
        return samples, returns, memory, None if samples.mask is None else jnp.any(samples.mask, axis=1)


def loss(
    nets: QNet,
    c: PQNConfig,
    moments: Moments | None,
    samples: Sample,
    returns: Float[Array, "N ..."],
    memory: Any,
    valid: Array | None,
) -> tuple[Float[Array, ""], dict[str, Array]]:
    """Half the squared error of a minibatch, over all branches."""
    if c.core != "none":
        samples, returns = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (samples, returns))
        if valid is not None:
            count = jnp.broadcast_to(valid, returns.shape)
            valid = count if samples.mask is None else count & samples.mask
    table = values.of(nets, c.clip_obs, moments, samples.obs, samples.first, memory)
    q = values.taken(table, samples.chosen)
    error = q - returns[..., None]
    total = masked_mean(0.5 * jnp.mean(jnp.square(error), axis=-1), valid)
    mean = jnp.mean(q, axis=-1)
    return total, {
        "train/loss": total,
        "train/td_error": masked_mean(jnp.mean(jnp.abs(error), axis=-1), valid),
        "train/q_mean": masked_mean(mean, valid),
        "train/explained_variance": explained_variance(mean, returns, valid),
    }
