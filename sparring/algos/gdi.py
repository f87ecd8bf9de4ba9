"""GDI: a family of behaviours made of the learner's own policies, one member per episode (Fan et al. 2022).

Two heads (H3) learn under two reward shapings; what acts is μ = ε softmax(A_1/τ_1) + (1-ε) softmax(A_2/τ_2),
and a bandit picks (1/τ_1, 1/τ_2, ε) by the episode's return. Every head learns from all data off policy: V
by V-trace, Q by Retrace, the policy by its gradient, Q and policy through CASA's structure (`nets.policies`).
I3 mixes two temperatures of one head; LBC (Fan et al. 2023) mixes N policies with weights of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import xlogy
from jaxtyping import Array, Float, Int

from sparring.bandit.settings import ControlConfig, Controlled, Selection
from sparring.config import Linear, Schedulable, algorithm, configuration, resolve
from sparring.errors import ConfigError, nearest
from sparring.limits import READERS, Reader, check_ranges, unread
from sparring.nets import checkup, policies, sequences, sight, values
from sparring.nets.policies import Judged, Policies, PolicyWeights
from sparring.nets.sight import AgentConfig, BinsConfig, Carry, RewardStats
from sparring.ops import optim
from sparring.ops.priorities import importance
from sparring.ops.returns import explained_variance, masked_mean, masked_var
from sparring.ops.statistics import Moments
from sparring.ops.traces import retrace, vtrace
from sparring.replay import offpolicy
from sparring.replay.sequence import Sequence
from sparring.spaces import Discrete, EnvSpec
from sparring.types import Action, Batch, Behaviour, Key, Obs, Plan, Report, Transition, View

SHAPINGS = {
    "none": lambda r: r,
    "log": lambda r: jnp.sign(r) * jnp.log1p(jnp.abs(r)),
    "optimistic": lambda r: jnp.log1p(jnp.abs(r)) * jnp.where(r >= 0, 2.0, -1.0),
    "compressive": lambda r: jnp.sign(r) * ((jnp.abs(r) + 1.0) ** 0.25 - 1.0) + 0.001 * r,
}
"""Rewards as a head sees them; the last two are GDI's for heads 1 and 2, as recalled, not confirmed."""

REUSE_OFF = 1.5
"""Factor by which what is learned from a step may differ from `sample_reuse` without a warning."""


@configuration
class GDIConfig(AgentConfig, BinsConfig, ControlConfig):
    """GDI's settings; values for problems the size of LunarLander, the paper's where they fit."""

    controller: Selection = "thompson"
    """what chooses (1/τ_1, 1/τ_2, ε) of each row's episode; none acts by the target policies"""
    variant: Literal["h3", "i3", "lbc"] = "h3"
    """two heads and their mixture, one head at two temperatures, or a weighted mixture of `policies` heads"""
    policies: int = 2
    """heads of h3 (2) and lbc; i3 has one"""
    shaping: tuple[str, ...] = ("optimistic", "compressive")
    """reward of each head: none, log, optimistic or compressive; the last stands for the heads that follow"""
    gammas: tuple[float, ...] = ()
    """discount of each head (lbc); empty gives all of them `gamma`"""
    activation: str = "relu"
    """tanh, relu, elu, gelu, silu, leaky_relu, sigmoid or identity"""
    net_arch: tuple[int, ...] = (256, 256)
    """hidden sizes of the body that the heads share"""
    layer_norm: bool = True
    """normalise every hidden layer"""
    learning_rate: Schedulable = Linear(5e-4, 0.0)
    """step size of AdamW"""
    warmup: int = 1000
    """updates over which the step size rises from 0"""
    weight_decay: Schedulable = Linear(0.01, 0.0)
    """AdamW's pull towards zero"""
    adam_b2: float = 0.98
    """memory of the gradient's square"""
    adam_eps: float = 1e-6
    """ε of Adam"""
    max_grad_norm: Schedulable | None = 50.0
    """bound of the gradient's norm; none leaves it free"""
    gamma: Schedulable = 0.99
    """discount"""
    target_temperature: Schedulable = 1.0
    """τ* of the policies that are learned; unconfirmed in the paper"""
    rho_bar: Schedulable = 1.05
    """bound of V-trace's ratios"""
    c_bar: Schedulable = 1.05
    """bound of the traces' ratios"""
    v_trace: Schedulable = 1.0
    """λ of V-trace"""
    q_trace: Schedulable = 0.95
    """λ of Retrace"""
    doubly_robust: bool = False
    """V's target corrects by Q of the action taken instead of by V (CASA's trace): clipped ratios then leave
    V the value of the target policy, however sharp the behaviour was"""
    v_coef: Schedulable = 1.0
    """weight of the value losses"""
    q_coef: Schedulable = 10.0
    """weight of the action-value losses"""
    pi_coef: Schedulable = 10.0
    """weight of the policy losses"""
    buffer_size: int = 200_000
    """transitions that the replay holds"""
    learning_starts: int = 2000
    """transitions collected before learning begins"""
    batch_size: int = 64
    """sequences in an update"""
    sequence_length: int = 40
    """steps of a sequence that are learned from"""
    sequence_stride: int = 0
    """steps between the starts of sequences; 0 means their length, less makes them overlap"""
    burn_in: int = 0
    """steps before a sequence that only warm a core up"""
    train_freq: int = 40
    """steps of every environment between blocks of updates"""
    gradient_steps: int = -1
    """updates in a block; -1 makes as many as `sample_reuse` asks for"""
    sample_reuse: float = 2.0
    """how often every step is learned from, on average"""
    prioritized: bool = False
    """sample sequences in proportion to their last error"""
    priority_alpha: Schedulable = 0.6
    """exponent of the priority"""
    priority_beta: Schedulable = 0.4
    """exponent of the importance weights"""
    priority_initial: Literal["max", "mean"] = "max"
    """priority of what was never sampled: the largest so far, or the mean"""
    priority_eta: Schedulable = 0.9
    """weight of the largest error of a sequence against the mean"""
    sharpness_range: tuple[float, float] = (0.0, 50.0)
    """smallest and largest 1/τ of the behaviours"""
    sharpness_log: bool = False
    """cells of 1/τ of equal ratio instead of equal width"""
    index_cells: tuple[int, int] = (10, 6)
    """cells of each 1/τ and of each mixture weight, between which the controller chooses"""
    record_heads: bool = False
    """actors also note V and A of every head and the behaviour's whole distribution, as they were"""


OWN_READERS = (
    Reader(
        ("priority_alpha", "priority_beta", "priority_initial", "priority_eta"),
        lambda c: c.prioritized,
        "prioritized=True",
    ),
    Reader(("sample_reuse",), lambda c: c.gradient_steps == -1, "gradient_steps=-1"),
    Reader(
        ("index_cells", "sharpness_range", "sharpness_log"),
        lambda c: c.controller != "none" and not c.controller_space,
        "a controller whose controller_space is the default",
    ),
)
ALONE = "gamma_index"
"""The coordinate that lets one policy act, whose discount and reward shaping are then the behaviour's."""


class Noted(NamedTuple):
    """What the heads said when an action was chosen, and how likely every option was."""

    value: Float[Array, "B H"]
    advantage: Float[Array, "B H D W"]
    mu: Float[Array, "B D W"]


class Acted(NamedTuple):
    """What acting stores for the replay; a field is None when it would repeat another."""

    log_mu: Float[Array, " B"]
    """log-probability of the choice under the behaviour"""
    sample: Array | None = None
    frames: Obs | None = None
    core: Any = None
    noted: Noted | None = None
    """with `record_heads`; learning computes all of it anew with its present weights"""


class TrainState(NamedTuple):
    """All that training changes."""

    nets: Policies
    optimiser: Any
    moments: Moments | None
    rewards: RewardStats | None
    iteration: Int[Array, ""]
    updates: Int[Array, ""]


@algorithm
class GDI(Controlled):
    """Generalised data distribution iteration."""

    spec: EnvSpec
    config: GDIConfig
    horizon: Any = 1.0

    Config: ClassVar = GDIConfig

    @property
    def heads(self) -> int:
        """Policies that learn."""
        return 1 if self.config.variant == "i3" else self.config.policies

    @property
    def components(self) -> int:
        """Policies that the behaviour mixes."""
        return self.config.policies if self.config.variant == "lbc" else 2

    @property
    def plan(self) -> Plan:
        c = self.config
        if c.gradient_steps > 0:
            return Plan(c.train_freq, c.gradient_steps)
        wanted = c.sample_reuse * self._collected / (c.batch_size * c.sequence_length)
        return Plan(c.train_freq, max(round(wanted), 1))

    @property
    def _collected(self) -> int:
        """Steps of all rows between blocks of updates."""
        return self.config.train_freq * self.spec.rows

    @property
    def reuse(self) -> float:
        """How often every step is learned from with as many updates as there are: whole ones, at least 1."""
        return self.plan.updates * self.config.batch_size * self.config.sequence_length / self._collected

    def _reuse_amiss(self) -> list[str]:
        """A warning where whole updates cannot give the `sample_reuse` that is set."""
        c = self.config
        if c.gradient_steps > 0 or 1 / REUSE_OFF <= self.reuse / c.sample_reuse <= REUSE_OFF:
            return []
        steps = math.ceil(c.batch_size * c.sequence_length / c.sample_reuse)  # of all rows, for one update
        frequency, rows = math.ceil(steps / self.spec.rows), math.ceil(steps / c.train_freq)
        return [
            f"sample_reuse = {c.sample_reuse:g} is not what you get: one update of "
            f"{c.batch_size} × {c.sequence_length} steps after every {self._collected} learns from each step "
            f"{self.reuse:.3g} times. Choose train_freq={frequency}, or n_envs={rows}, or a smaller batch."
        ]

    @property
    def replay(self) -> Sequence:
        c = self.config
        return Sequence(
            c.buffer_size,
            c.batch_size,
            c.sequence_length,
            c.burn_in,
            c.sequence_stride,
            minimum=max(c.learning_starts, 1),
            alpha=c.priority_alpha if c.prioritized else 0.0,
            eta=c.priority_eta,
            initial=c.priority_initial,
            heads=self.heads if c.prioritized else 0,
        )

    @property
    def coordinates(self) -> tuple[str, ...]:  # type: ignore[override]
        """1/τ of every component, then ε, or for LBC every component's weight; last the one component that
        acts alone, with its discount and reward."""
        c, (cells, weights) = self.config, self.config.index_cells
        low, high = c.sharpness_range
        log = ":log" if c.sharpness_log else ""
        sharp = [f"inverse_tau_{n}:{low}:{high}:{cells}{log}" for n in self._numbers]
        alone = f"{ALONE}={'|'.join(map(str, self._numbers))}"
        if c.variant == "lbc":
            return (*sharp, *(f"omega_{n}:0:1:{weights}" for n in self._numbers), alone)
        return (*sharp, f"epsilon:0:1:{weights}", alone)

    def _default(self, known: dict[str, str]) -> Iterable[str]:
        """Mixtures, as GDI and LBC have them; one policy at a time is Agent57's way."""
        return [text for name, text in known.items() if name != ALONE]

    @property
    def _numbers(self) -> range:
        """Components, counted from 1."""
        return range(1, self.components + 1)

    def behaviour(self, point: Float[Array, "B C"]) -> Behaviour:
        """How rows act at these points; a sharpness that nothing chose is NaN and the target policy's, a
        mixture that nothing chose is even."""
        given = {name: point[:, c] for c, name in enumerate(self.space.names)}

        def chosen(names: list[str], default: Any) -> Float[Array, "B P"]:
            even = jnp.full(point.shape[0], default)
            return jnp.stack([given.get(name, even) for name in names], axis=-1)

        sharpness = chosen([f"inverse_tau_{n}" for n in self._numbers], jnp.nan)
        if ALONE in given:
            place = jnp.round(given[ALONE]).astype(jnp.int32) - 1
            mixture = jax.nn.one_hot(place, self.components)
        elif self.config.variant == "lbc":
            omega = chosen([f"omega_{n}" for n in self._numbers], 1.0) + 1e-6
            mixture = omega / jnp.sum(omega, axis=-1, keepdims=True)
        else:
            epsilon = chosen(["epsilon"], 0.5)
            mixture = jnp.concatenate([epsilon, 1.0 - epsilon], axis=-1)
        return Behaviour(sharpness=sharpness, mixture=mixture)

    def shaped(self, weights: PolicyWeights, reward: Float[Array, "*N"]) -> Float[Array, "*N H"]:
        """The reward as every head sees it now, but for a running normalisation."""
        return shaped(self.config, reward * weights.reward_scale, self.heads)

    def check(self) -> list[str]:
        """Refuses impossible settings; returns warnings about unwise ones."""
        c = self.config
        values.choice_codec(self.spec, c, "GDI")
        for name in ("buffer_size", "batch_size", "sequence_length", "train_freq", "policies"):
            if getattr(c, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(c, name)}.")
        if c.gradient_steps == 0 or c.gradient_steps < -1:
            raise ConfigError(f"gradient_steps must be at least 1, or -1, got {c.gradient_steps}.")
        check_ranges(c)
        if not all(0.0 <= gamma <= 1.0 for gamma in c.gammas):
            raise ConfigError(
                f"gammas must lie between 0 and 1, got {', '.join(f'{g:g}' for g in c.gammas)}."
            )
        if c.variant == "h3" and c.policies != 2:
            raise ConfigError(f"variant='h3' has 2 policies, got {c.policies}. Use variant='lbc' for more.")
        if not c.shaping:
            raise ConfigError("shaping names no reward. Example: shaping=('none',)")
        for name in c.shaping:
            if name not in SHAPINGS:
                raise ConfigError(f"There is no reward shaping {name!r}.{nearest(name, SHAPINGS)}")
        if c.gammas and len(c.gammas) != self.heads:
            raise ConfigError(f"gammas has {len(c.gammas)} discounts for {self.heads} heads.")
        low, high = c.sharpness_range
        if not 0 <= low < high or (c.sharpness_log and low == 0):
            raise ConfigError(
                f"sharpness_range = ({low:g}, {high:g}) must rise from at least 0, or, with "
                "sharpness_log, from more than 0."
            )
        if min(c.index_cells) < 1 or c.sample_reuse <= 0 or c.burn_in < 0 or c.learning_starts < 0:
            raise ConfigError(
                "index_cells must be at least 1, sample_reuse above 0, and neither burn_in nor "
                "learning_starts negative."
            )
        offpolicy.check_stride(c.sequence_stride, c.sequence_length)
        _ = self.controller  # refuses an index that does not fit
        self._check_alone()
        found = [*self._reuse_amiss(), *unread(c, (*READERS, *OWN_READERS)), *self.unread()]
        if c.variant == "i3" and c.policies != GDIConfig.policies:
            found.append(f"policies = {c.policies} is for variant='lbc'; i3 learns one. Leave it out.")
        if c.core == "none" and c.burn_in:
            found.append("burn_in warms a core up, and there is none.")
        if len(c.shaping) > self.heads and c.shaping != GDIConfig.shaping:  # i3 takes the default's first
            found.append(
                f"shaping names {len(c.shaping)} rewards, and variant={c.variant!r} learns {self.heads}: "
                f"leave {', '.join(c.shaping[self.heads :])} out."
            )
        return found

    def _check_alone(self) -> None:
        """Refuses a component that is not there, and a mixture beside one that acts alone."""
        names = self.space.names if self.config.controller != "none" else ()
        if ALONE not in names:
            return
        place = names.index(ALONE)
        chosen = self.config.controller_index[place : place + 1] or self.space.coordinates[place].values
        if max(chosen) > self.components:
            raise ConfigError(
                f"{ALONE} = {max(chosen):g} is chosen from {self.components} policies, counted from 1."
            )
        mixed = [name for name in names if name == "epsilon" or name.startswith("omega_")]
        if mixed:
            raise ConfigError(
                f"{ALONE} lets one policy act, and {', '.join(mixed)} mixes several: leave one of them out."
            )

    def _rule(self) -> optim.Adam:
        return optim.Adam(self.config.adam_eps, b2=self.config.adam_b2)

    def init(self, key: Key) -> TrainState:
        c = self.config
        codec = values.choice_codec(self.spec, c, "GDI")
        nets = policies.build(self.spec, c, key, c.net_arch, codec, self.heads, c.layer_norm)
        return TrainState(
            nets,
            self._rule().init(nets),
            sight.start_moments(self.spec, c),
            sight.start_rewards(self.spec, c),
            jnp.zeros((), jnp.int32),
            jnp.zeros((), jnp.int32),
        )

    def _now(self, state: TrainState) -> GDIConfig:
        return resolve(self.config, state.iteration / self.horizon)

    def policy(self, state: TrainState) -> PolicyWeights:
        c = self._now(state)
        sharpness = jnp.asarray(1.0 / c.target_temperature, jnp.float32)
        scale = jnp.asarray(c.reward_scale, jnp.float32)
        return PolicyWeights(state.nets, state.moments, sight.clip(c, state.moments), sharpness, scale)

    def carry(self, rows: int) -> Carry:
        return values.start_carry(self.spec, self.config, rows)

    def act(
        self, weights: PolicyWeights, carry: Carry, view: View, behaviour: Behaviour, key: Key
    ) -> tuple[Action, Acted, Carry]:
        nets = weights.nets
        frames, features, core = sight.look(nets.trunk, weights.clip, weights.moments, carry, view)
        judged = nets(features, view.legal)
        rows = features.shape[0]
        parts = judged.advantage
        if self.config.variant == "i3":
            parts = jnp.repeat(parts, self.components, axis=1)
        sharpness, mixture = behaviour.sharpness, behaviour.mixture
        if sharpness is None:
            sharpness = jnp.full((rows, self.components), jnp.nan)
        sharpness = jnp.where(jnp.isnan(sharpness), weights.sharpness, sharpness)
        if mixture is None:
            mixture = jnp.full((rows, self.components), 1.0 / self.components)
        log_parts = policies.log_policy(parts, sharpness)
        chosen = policies.draw(key, log_parts, mixture)
        if behaviour.greedy is not None:
            chosen = jnp.where(behaviour.greedy[:, None], greedy(judged, behaviour.head), chosen)
        sample = chosen[:, 0] if isinstance(nets.codec.inner, Discrete) else chosen
        log_mu = policies.log_mixture(log_parts, mixture, chosen)
        kept = carry.core if self.config.core != "none" else None
        noted = None
        if self.config.record_heads:
            noted = Noted(judged.value, judged.advantage, policies.mixed(log_parts, mixture))
        extras = Acted(log_mu, None if nets.codec.identity else sample, frames, kept, noted)
        return nets.codec.decode(sample), extras, Carry(frames, None, None, core)

    def value(self, state: TrainState, obs: Any) -> Float[Array, "*N"]:
        """V of raw observations (stacked ones where there is a stack), the mean over heads."""
        shown = sight.normalised(self._now(state).clip_obs, state.moments, self.spec.observation, obs)
        return jnp.mean(state.nets(sight.alone(state.nets.trunk, shown)).value, axis=-1)

    def update(self, state: TrainState, batch: Batch, key: Key) -> tuple[TrainState, Report]:
        c = self._now(state)
        weight = importance(batch.weight, c.priority_beta) if c.prioritized else None

        def objective(nets: Policies) -> tuple[Float[Array, ""], tuple[Array, dict[str, Array]]]:
            return loss(nets, c, state.moments, state.rewards, batch.data, weight)

        gradient, (error, metrics) = jax.grad(objective, has_aux=True)(state.nets)
        rate = c.learning_rate * jnp.minimum((state.updates + 1) / max(c.warmup, 1), 1.0)
        new = optim.apply(
            self._rule(), state.nets, state.optimiser, gradient, rate, c.max_grad_norm, c.weight_decay
        )
        metrics |= {
            "train/grad_norm": new.norm,
            "train/learning_rate": rate,
            "train/n_updates": state.updates + 1,
        }
        metrics |= checkup.look(
            offpolicy.due(state, self.plan.updates, self.horizon),
            new.params,
            lambda: optim.moved(self._rule(), new, rate, c.weight_decay),
            lambda nets: values.hidden(c, nets, state.moments, batch.data),
            c.activation,
        )
        state = state._replace(nets=new.params, optimiser=new.state, updates=state.updates + 1)
        return state, Report(metrics, jnp.swapaxes(error, 0, 1) if c.prioritized else None)

    def absorb(self, state: TrainState, rollout: Transition) -> TrainState:
        c = self._now(state)
        return state._replace(
            moments=sight.absorb_obs(state.moments, self.spec, rollout),
            rewards=sight.absorb_rewards(state.rewards, c, c.gamma, rollout),
            iteration=state.iteration + 1,
        )


def greedy(judged: Judged, head: Int[Array, " B"] | None) -> Int[Array, "B D"]:
    """The best options by one head, or by the sum of all heads' advantages."""
    table = jnp.sum(judged.advantage, axis=1)
    if head is not None:
        table = judged.advantage[jnp.arange(table.shape[0]), head]
    return jnp.argmax(table, axis=-1).astype(jnp.int32)


def shaped(c: GDIConfig, reward: Float[Array, "*N"], heads: int) -> Float[Array, "*N H"]:
    """The reward as every head sees it."""
    names = [c.shaping[min(i, len(c.shaping) - 1)] for i in range(heads)]
    return jnp.stack([SHAPINGS[name](reward) for name in names], axis=-1)


def loss(
    nets: Policies,
    c: GDIConfig,
    moments: Moments | None,
    rewards: RewardStats | None,
    data: Transition,
    weight: Float[Array, " N"] | None,
) -> tuple[Float[Array, ""], tuple[Float[Array, "L N H"], dict[str, Array]]]:
    """The sum over heads of the value, action-value and policy losses of sequences [N, burn-in + L, …]."""
    parts = sequences.prepared(data, sight.seen(data), sight.seen_next(data))
    shown = sight.normalised(c.clip_obs, moments, nets.trunk.space, parts.obs)
    features = sequences.unrolled(nets.trunk, data.core, shown, parts.first, c.burn_in)
    steps = jax.tree.map(lambda x: x[c.burn_in :], parts.data)
    judged = nets(features[:-1], steps.legal)
    after = nets.value(nets.body(features[-1:]))  # of what followed the last step
    follows = jax.lax.stop_gradient(jnp.concatenate([judged.value[1:], after]))

    choice = values.chosen(nets.codec, steps)
    log_pi = policies.log_policy(judged.advantage, jnp.full((nets.heads,), 1.0 / c.target_temperature))
    log_taken = policies.taken(log_pi, choice)
    q = policies.q_of(judged, log_pi, choice)
    ratio = jax.lax.stop_gradient(jnp.exp(log_taken - steps.extras.log_mu[..., None]))

    reward = shaped(c, sight.scaled_reward(rewards, c, steps.reward), nets.heads)
    gamma = jnp.asarray(c.gammas) if c.gammas else c.gamma
    lasted = 1.0 if steps.elapsed is None else steps.elapsed[..., None]
    discount = jnp.where(steps.terminated[..., None], 0.0, gamma**lasted * jnp.ones_like(reward))
    over = steps.terminated | steps.truncated
    here = jnp.concatenate([steps.mask[1:], jnp.zeros_like(steps.mask[:1])]) & ~over
    goes_on = jnp.broadcast_to(here[..., None], reward.shape)

    fixed = jax.lax.stop_gradient((judged.value, q))
    baseline = fixed[1] if c.doubly_robust else None
    corrected = vtrace(
        reward, discount, fixed[0], follows, goes_on, ratio, c.rho_bar, c.c_bar, c.v_trace, baseline
    )
    target = retrace(reward, discount, fixed[1], follows, goes_on, ratio, c.c_bar, c.q_trace)
    rho = jnp.minimum(c.rho_bar, ratio)

    def mean(x: Float[Array, "L N H"]) -> Float[Array, " H"]:
        each = x if weight is None else x * weight[:, None]
        return jax.vmap(lambda y: masked_mean(y, steps.mask), in_axes=-1)(each)

    v_loss = mean(jnp.square(corrected.target - judged.value))
    q_loss = mean(jnp.square(target - q))
    pi_loss = -mean(rho * corrected.advantage * log_taken)
    total = jnp.sum(c.v_coef * v_loss + c.q_coef * q_loss + c.pi_coef * pi_loss)

    probability = jnp.exp(log_pi)
    entropy = -jnp.sum(jnp.where(probability > 0, probability * log_pi, 0.0), axis=(-2, -1))
    metrics = {
        "train/loss": total,
        "train/ratio_clipped": masked_mean(jnp.mean(ratio > c.rho_bar, axis=-1), steps.mask),
        "train/ratio_one": masked_mean(jnp.mean(jnp.abs(ratio - 1.0) < 1e-3, axis=-1), steps.mask),
        "train/behaviour_kl": masked_mean(jnp.mean(xlogy(ratio, ratio) - ratio + 1.0, axis=-1), steps.mask),
    }
    if steps.extras.noted is not None:
        drift = jnp.mean(jnp.abs(judged.value - steps.extras.noted.value), axis=-1)
        metrics["train/value_drift"] = masked_mean(drift, steps.mask)
    for i in range(nets.heads):
        n = f"_{i + 1}"
        metrics |= {
            f"train/v_loss{n}": v_loss[i],
            f"train/q_loss{n}": q_loss[i],
            f"train/pi_loss{n}": pi_loss[i],
            f"train/entropy{n}": masked_mean(entropy[..., i], steps.mask),
            f"train/advantage_std{n}": jnp.sqrt(masked_var((q - judged.value)[..., i], steps.mask)),
            f"train/value{n}": masked_mean(judged.value[..., i], steps.mask),
            f"train/explained_variance{n}": explained_variance(
                judged.value[..., i], corrected.target[..., i], steps.mask
            ),
        }
    return total, (jnp.abs(target - q), metrics)
