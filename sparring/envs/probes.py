"""Probe environments: each isolates one thing an algorithm must get right, with a known answer.

An algorithm that fails one of them has a bug that a score on CartPole would hide. `g` is the discount.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sparring.envs.api import Outcome
from sparring.spaces import Box, Dict, Discrete, EnvSpec, MultiBinary, MultiDiscrete, Space
from sparring.types import Action, Key, Obs

UNIT = Box((1,), -1.0, 1.0)


class Sign(NamedTuple):
    """A state that is one number, -1 or +1."""

    sign: Any


class Step(NamedTuple):
    """A state that counts steps."""

    t: Any


def _random_sign(key: Key, shape: tuple[int, ...] = ()) -> Any:
    return 2.0 * jax.random.bernoulli(key, shape=shape).astype(float) - 1.0


def _end(reward: Any) -> Outcome:
    """The outcome of a step that ends the episode."""
    reward = jnp.asarray(reward, float)
    return Outcome(reward, jnp.ones_like(reward, bool), jnp.zeros_like(reward, bool))


@dataclass(frozen=True)
class ConstantValue:
    """One step, observation 0, reward 1 for any action. V = 1."""

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("probe/constant-value", UNIT, Discrete(2), reward_threshold=1.0)

    def reset(self, key: Key) -> Step:
        return Step(jnp.int32(0))

    def observe(self, state: Step) -> Obs:
        return jnp.zeros(1)

    def step(self, state: Step, action: Action, key: Key) -> tuple[Step, Outcome]:
        return Step(state.t + 1), _end(1.0)


@dataclass(frozen=True)
class ObservedValue:
    """One step, observation -1 or +1 at random, reward equal to it. V(o) = o."""

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("probe/observed-value", UNIT, Discrete(2))

    def reset(self, key: Key) -> Sign:
        return Sign(_random_sign(key))

    def observe(self, state: Sign) -> Obs:
        return state.sign[None]

    def step(self, state: Sign, action: Action, key: Key) -> tuple[Sign, Outcome]:
        return state, _end(state.sign)


@dataclass(frozen=True)
class Discounting:
    """Two steps, observation 0 then 1, reward 1 at the end. V(0) = g, V(1) = 1."""

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("probe/discounting", UNIT, Discrete(2), reward_threshold=1.0)

    def reset(self, key: Key) -> Step:
        return Step(jnp.int32(0))

    def observe(self, state: Step) -> Obs:
        return jnp.minimum(state.t, 1).astype(float)[None]

    def step(self, state: Step, action: Action, key: Key) -> tuple[Step, Outcome]:
        last = state.t >= 1
        return Step(state.t + 1), Outcome(last.astype(float), last, jnp.zeros_like(last))


@dataclass(frozen=True)
class ActionReward:
    """One step, observation 0, reward +1 for action 1 and -1 for action 0. The right policy takes 1."""

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("probe/action-reward", UNIT, Discrete(2), reward_threshold=1.0)

    def reset(self, key: Key) -> Step:
        return Step(jnp.int32(0))

    def observe(self, state: Step) -> Obs:
        return jnp.zeros(1)

    def step(self, state: Step, action: Action, key: Key) -> tuple[Step, Outcome]:
        return Step(state.t + 1), _end(jnp.where(action == 1, 1.0, -1.0))


@dataclass(frozen=True)
class ActionRewardContinuous:
    """One step, observation 0, reward -(a - 1/2)^2. The right policy takes 1/2; V = 0 under it."""

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("probe/action-reward-continuous", UNIT, UNIT, reward_threshold=0.0)

    def reset(self, key: Key) -> Step:
        return Step(jnp.int32(0))

    def observe(self, state: Step) -> Obs:
        return jnp.zeros(1)

    def step(self, state: Step, action: Action, key: Key) -> tuple[Step, Outcome]:
        return Step(state.t + 1), _end(-jnp.square(action[0] - 0.5))


@dataclass(frozen=True)
class ObservedAction:
    """One step, observation -1 or +1; reward +1 when the action (1 or 0) matches its sign, else -1.

    The right policy takes 1 at +1 and 0 at -1; V = 1 under it.
    """

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("probe/observed-action", UNIT, Discrete(2), reward_threshold=1.0)

    def reset(self, key: Key) -> Sign:
        return Sign(_random_sign(key))

    def observe(self, state: Sign) -> Obs:
        return state.sign[None]

    def step(self, state: Sign, action: Action, key: Key) -> tuple[Sign, Outcome]:
        return state, _end(jnp.where((action == 1) == (state.sign > 0), 1.0, -1.0))


@dataclass(frozen=True)
class ObservedActionContinuous:
    """One step, observation o of -1 or +1, reward -(a - o/2)^2. The right policy takes o/2, with V = 0."""

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("probe/observed-action-continuous", UNIT, UNIT, reward_threshold=0.0)

    def reset(self, key: Key) -> Sign:
        return Sign(_random_sign(key))

    def observe(self, state: Sign) -> Obs:
        return state.sign[None]

    def step(self, state: Sign, action: Action, key: Key) -> tuple[Sign, Outcome]:
        return state, _end(-jnp.square(action[0] - 0.5 * state.sign))


@dataclass(frozen=True)
class Truncation:
    """Reward 1 per step, observation 0, never terminates, cut after 5 steps.

    V = 1 / (1 - g) everywhere, because truncation bootstraps; an algorithm that takes the cut for an end
    learns less than (1 - g^5) / (1 - g).
    """

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("probe/truncation", UNIT, Discrete(2), time_limit=5)

    def reset(self, key: Key) -> Step:
        return Step(jnp.int32(0))

    def observe(self, state: Step) -> Obs:
        return jnp.zeros(1)

    def step(self, state: Step, action: Action, key: Key) -> tuple[Step, Outcome]:
        return Step(state.t + 1), Outcome(jnp.ones(()), jnp.zeros((), bool), jnp.zeros((), bool))


class Context(NamedTuple):
    """Which of four situations the row is in, and for how long the episode has run."""

    context: Any
    t: Any


@dataclass(frozen=True)
class Masked:
    """Four steps in random contexts c, of four actions only c and c + 1 (mod 4) are legal.

    Reward 1 for c + 1 and 0 for c; an illegal action ends the episode with -10. The observation is c as
    one-hot. The right policy takes c + 1: return 4.
    """

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(
            "probe/masked", Box((4,), 0.0, 1.0), Discrete(4), reward_threshold=4.0, masks_actions=True
        )

    def reset(self, key: Key) -> Context:
        return Context(jax.random.randint(key, (), 0, 4, jnp.int32), jnp.int32(0))

    def observe(self, state: Context) -> Obs:
        return jax.nn.one_hot(state.context, 4, dtype=float)

    def legal(self, state: Context) -> Any:
        offset = (jnp.arange(4, dtype=jnp.int32) - state.context) % 4
        return offset <= 1

    def step(self, state: Context, action: Action, key: Key) -> tuple[Context, Outcome]:
        offset = (action - state.context) % 4
        reward = jnp.where(offset == 1, 1.0, jnp.where(offset == 0, 0.0, -10.0))
        ended = (offset > 1) | (state.t >= 3)
        after = Context(jax.random.randint(key, (), 0, 4, jnp.int32), state.t + 1)
        return after, Outcome(reward, ended, jnp.zeros_like(ended))


@dataclass(frozen=True)
class ManyChoices:
    """One step, MultiDiscrete(2, 3, 4): at observation +1 take every branch's last option, at -1 its first.

    The reward is the share of branches that are right; the right policy gets 1.
    """

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("probe/multidiscrete", UNIT, MultiDiscrete((2, 3, 4)), reward_threshold=1.0)

    def reset(self, key: Key) -> Sign:
        return Sign(_random_sign(key))

    def observe(self, state: Sign) -> Obs:
        return state.sign[None]

    def step(self, state: Sign, action: Action, key: Key) -> tuple[Sign, Outcome]:
        right = jnp.where(state.sign > 0, jnp.array([1, 2, 3]), 0)
        return state, _end(jnp.mean(action == right, dtype=float))


@dataclass(frozen=True)
class ManyBits:
    """One step, three observed signs, MultiBinary(3): set the bits whose sign is +1.

    The reward is the share of bits that are right; the right policy gets 1.
    """

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("probe/multibinary", Box((3,), -1.0, 1.0), MultiBinary(3), reward_threshold=1.0)

    def reset(self, key: Key) -> Sign:
        return Sign(_random_sign(key, (3,)))

    def observe(self, state: Sign) -> Obs:
        return state.sign

    def step(self, state: Sign, action: Action, key: Key) -> tuple[Sign, Outcome]:
        return state, _end(jnp.mean((action == 1) == (state.sign > 0), dtype=float))


class Parts(NamedTuple):
    """A sign and a switch."""

    sign: Any
    switch: Any


@dataclass(frozen=True)
class DictObservation:
    """One step, a Dict of a sign (Box) and a switch (Discrete): match the sign, inverted if the switch is on.

    The right policy takes (sign > 0) xor switch for +1; any other action gets -1.
    """

    @property
    def spec(self) -> EnvSpec:
        parts: tuple[tuple[str, Space], ...] = (("sign", UNIT), ("switch", Discrete(2)))
        return EnvSpec("probe/dict", Dict(parts), Discrete(2), reward_threshold=1.0)

    def reset(self, key: Key) -> Parts:
        sign_key, switch_key = jax.random.split(key)
        return Parts(_random_sign(sign_key), jax.random.bernoulli(switch_key).astype(jnp.int32))

    def observe(self, state: Parts) -> Obs:
        return {"sign": state.sign[None], "switch": state.switch}

    def step(self, state: Parts, action: Action, key: Key) -> tuple[Parts, Outcome]:
        right = (state.sign > 0) ^ (state.switch == 1)
        return state, _end(jnp.where((action == 1) == right, 1.0, -1.0))


class Drift(NamedTuple):
    """A point that drifts and a phase that turns."""

    position: Any
    phase: Any


@dataclass(frozen=True)
class Multiply:
    """A drifting point whose observation and reward each end in a float multiply.

    Compilers contract a multiply and an add that follows it into one rounding; an environment like this one
    shows whether two drivers compile the same arithmetic. Ends when the point leaves its interval, is cut
    at 37 steps, and draws a random number in every step.
    """

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("probe/multiply", Box((3,)), Discrete(3), time_limit=37)

    def reset(self, key: Key) -> Drift:
        start = jax.random.uniform(key, (2,), minval=-0.5, maxval=0.5)
        return Drift(start[0], start[1])

    def observe(self, state: Drift) -> Obs:
        swing = jnp.sin(state.phase)
        return jnp.stack((state.position * 0.7331, swing * 1.6180339, state.position * swing))

    def step(self, state: Drift, action: Action, key: Key) -> tuple[Drift, Outcome]:
        noise = jax.random.uniform(key, (), minval=-0.1, maxval=0.1)
        position = state.position * 1.03 + 0.11 * (action - 1).astype(noise.dtype) + noise
        phase = state.phase + 0.37
        ended = jnp.abs(position) > 1.5
        reward = (1.0 - position * position) * (0.31415927 + jnp.cos(phase) * 0.01)
        return Drift(position, phase), Outcome(reward, ended, jnp.zeros_like(ended))


@dataclass(frozen=True)
class MultiplyContinuous:
    """`Multiply` with a two-dimensional continuous action in [-1, 1]."""

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("probe/multiply-continuous", Box((3,)), Box((2,), -1.0, 1.0), time_limit=37)

    def reset(self, key: Key) -> Drift:
        return Multiply().reset(key)

    def observe(self, state: Drift) -> Obs:
        return Multiply().observe(state)

    def step(self, state: Drift, action: Action, key: Key) -> tuple[Drift, Outcome]:
        noise = jax.random.uniform(key, (), minval=-0.1, maxval=0.1)
        push, turn = action[0].astype(noise.dtype), action[1].astype(noise.dtype)
        position = state.position * 1.03 + 0.11 * push + noise
        phase = state.phase + 0.37 * (1.0 + 0.2 * turn)
        ended = jnp.abs(position) > 1.5
        reward = (1.0 - position * position) * (0.31415927 + jnp.cos(math.pi * phase) * 0.01)
        return Drift(position, phase), Outcome(reward, ended, jnp.zeros_like(ended))
