"""Probes in one environment, so that one compiled program answers them all, and actions as numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparring.envs.api import Outcome
from sparring.spaces import Box, Discrete, EnvSpec
from sparring.types import Action, Key, Obs

CONSTANT, OBSERVED, DISCOUNTED, CUT, ACTION, MATCH = range(6)
"""probes' ConstantValue, ObservedValue, Discounting, Truncation, ActionReward and ObservedAction"""


class Probe(NamedTuple):
    """Which probe the episode is, the sign that it shows, and its steps."""

    which: Any
    sign: Any
    t: Any


@dataclass(frozen=True)
class AtOnce:
    """Every episode is one of six probes, which the observation names before it shows the probe's own."""

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("at-once", Box((7,), -1.0, 1.0), Discrete(2))

    def reset(self, key: Key) -> Probe:
        which_key, sign_key = jax.random.split(key)
        sign = 2.0 * jax.random.bernoulli(sign_key).astype(float) - 1.0
        return Probe(jax.random.randint(which_key, (), 0, 6, jnp.int32), sign, jnp.int32(0))

    def observe(self, state: Probe) -> Obs:
        later = jnp.minimum(state.t, 1).astype(float)
        shown = jnp.stack([0.0, state.sign, later, 0.0, 0.0, state.sign])[state.which]
        return jnp.append(jax.nn.one_hot(state.which, 6, dtype=float), shown)

    def step(self, state: Probe, action: Action, key: Key) -> tuple[Probe, Outcome]:
        one, second = jnp.ones(()), state.t >= 1
        push = jnp.where(action == 1, 1.0, -1.0)
        reward = jnp.stack([one, state.sign, second.astype(float), one, push, push * state.sign])[state.which]
        cut = (state.which == CUT) & (state.t >= 4)
        ended = (state.which != CUT) & ((state.which != DISCOUNTED) | second)
        return state._replace(t=state.t + 1), Outcome(reward, ended, cut)


def shown(which: int, value: float = 0.0) -> np.ndarray:
    """The observation of a probe."""
    return np.append(np.eye(6)[which], value).astype(np.float32)


@dataclass(frozen=True)
class Steered:
    """An environment of two choices, of which a number above zero takes the second."""

    env: Any

    @property
    def spec(self) -> EnvSpec:
        return replace(self.env.spec, action=Box((1,), -1.0, 1.0))

    def reset(self, key: Key) -> Any:
        return self.env.reset(key)

    def observe(self, state: Any) -> Obs:
        return self.env.observe(state)

    def step(self, state: Any, action: Action, key: Key) -> tuple[Any, Outcome]:
        return self.env.step(state, (action[0] > 0).astype(jnp.int32), key)
