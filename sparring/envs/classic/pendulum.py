"""Pendulum-v1: swing up and hold a pendulum with limited torque, Gymnasium's version."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sparring.envs.api import Outcome
from sparring.spaces import Box, EnvSpec
from sparring.types import Action, Key, Obs

DT = 0.05
MAX_SPEED = 8.0
MAX_TORQUE = 2.0
TAU = 2 * math.pi

SPEC = EnvSpec(
    id="Pendulum-v1",
    observation=Box((3,), low=(-1.0, -1.0, -MAX_SPEED), high=(1.0, 1.0, MAX_SPEED)),
    action=Box((1,), -MAX_TORQUE, MAX_TORQUE),
    time_limit=200,
)


class State(NamedTuple):
    """Angle from upright, within about one turn, and angular speed."""

    theta: Any
    speed: Any


@dataclass(frozen=True)
class Pendulum:
    """A pendulum that costs its squared angle, speed and torque per step and never terminates."""

    g: float = 10.0
    """Gravity; the name is Gymnasium's."""

    @property
    def spec(self) -> EnvSpec:
        return SPEC

    def reset(self, key: Key) -> State:
        unit = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0)
        return State(math.pi * unit[0], unit[1])

    def observe(self, state: State) -> Obs:
        return jnp.stack((jnp.cos(state.theta), jnp.sin(state.theta), state.speed))

    def step(self, state: State, action: Action, key: Key) -> tuple[State, Outcome]:
        # Gymnasium lets the angle grow without bound; wrapping it here costs nothing, since the cost
        # needs the wrapped angle anyway, and keeps float32 exact over long episodes.
        theta = state.theta - TAU * jnp.round(state.theta * (1 / TAU))
        torque = jnp.clip(action[0].astype(theta.dtype), -MAX_TORQUE, MAX_TORQUE)
        cost = theta * theta + 0.1 * state.speed * state.speed + 0.001 * torque * torque
        push = (1.5 * self.g) * jnp.sin(theta) + 3.0 * torque
        speed = jnp.clip(state.speed + DT * push, -MAX_SPEED, MAX_SPEED)
        never = jnp.zeros_like(theta, dtype=bool)
        return State(theta + DT * speed, speed), Outcome(-cost, never, never)
