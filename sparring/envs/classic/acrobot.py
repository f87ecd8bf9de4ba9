"""Acrobot-v1: swing up a two-link robot driven at its elbow (Sutton 1996), Gymnasium's version."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparring.envs.api import Outcome
from sparring.spaces import Box, Discrete, EnvSpec
from sparring.types import Action, Key, Obs

DT = 0.2
GRAVITY = 9.8
MAX_SPEED_1 = 4 * math.pi
MAX_SPEED_2 = 9 * math.pi
TAU = 2 * math.pi

_LIMITS = tuple(float(np.float32(v)) for v in (1.0, 1.0, 1.0, 1.0, MAX_SPEED_1, MAX_SPEED_2))
SPEC = EnvSpec(
    id="Acrobot-v1",
    observation=Box((6,), low=tuple(-v for v in _LIMITS), high=_LIMITS),
    action=Discrete(3),
    time_limit=500,
    reward_threshold=-100.0,
)


class State(NamedTuple):
    """Angle of the first link from hanging, of the second relative to the first, and their speeds."""

    theta1: Any
    theta2: Any
    speed1: Any
    speed2: Any


def _rates(state: State, torque: Any) -> State:
    """Time derivatives: the equations of Sutton and Barto's book for unit links of unit mass and inertia.

    Their constants m = l = I = 1 and l_c = 1/2 are multiplied out; cos(x - pi/2) is written sin(x).
    """
    theta1, theta2, speed1, speed2 = state
    cos2, sin2 = jnp.cos(theta2), jnp.sin(theta2)
    d1 = 3.5 + cos2
    d2 = 1.25 + 0.5 * cos2
    phi2 = (0.5 * GRAVITY) * jnp.sin(theta1 + theta2)
    phi1 = phi2 + (1.5 * GRAVITY) * jnp.sin(theta1) - (0.5 * speed2 + speed1) * speed2 * sin2
    ratio = d2 / d1
    acc2 = (torque + ratio * phi1 - 0.5 * speed1 * speed1 * sin2 - phi2) / (1.25 - d2 * ratio)
    acc1 = -(d2 * acc2 + phi1) / d1
    return State(speed1, speed2, acc1, acc2)


def _along(state: State, rates: State, dt: float) -> State:
    return State(*(s + dt * r for s, r in zip(state, rates, strict=True)))


def _integrate(state: State, torque: Any) -> State:
    """One step of the fourth-order Runge-Kutta method."""
    k1 = _rates(state, torque)
    k2 = _rates(_along(state, k1, DT / 2), torque)
    k3 = _rates(_along(state, k2, DT / 2), torque)
    k4 = _rates(_along(state, k3, DT), torque)
    mean = State(*(a + 2 * b + 2 * c + d for a, b, c, d in zip(k1, k2, k3, k4, strict=True)))
    return _along(state, mean, DT / 6)


def _wrap(angle: Any) -> Any:
    return angle - TAU * jnp.round(angle * (1 / TAU))


@dataclass(frozen=True)
class Acrobot:
    """Two links hanging from a pivot, torque at the elbow; reward -1 per step until the tip is high."""

    @property
    def spec(self) -> EnvSpec:
        return SPEC

    def reset(self, key: Key) -> State:
        return State(*jax.random.uniform(key, (4,), minval=-0.1, maxval=0.1))

    def observe(self, state: State) -> Obs:
        theta1, theta2, speed1, speed2 = state
        return jnp.stack((jnp.cos(theta1), jnp.sin(theta1), jnp.cos(theta2), jnp.sin(theta2), speed1, speed2))

    def step(self, state: State, action: Action, key: Key) -> tuple[State, Outcome]:
        swung = _integrate(state, (action - 1).astype(state.theta1.dtype))
        after = State(
            _wrap(swung.theta1),
            _wrap(swung.theta2),
            jnp.clip(swung.speed1, -MAX_SPEED_1, MAX_SPEED_1),
            jnp.clip(swung.speed2, -MAX_SPEED_2, MAX_SPEED_2),
        )
        raised = -jnp.cos(after.theta1) - jnp.cos(after.theta1 + after.theta2) > 1.0
        reward = raised.astype(after.theta1.dtype) - 1.0
        return after, Outcome(reward, raised, jnp.zeros_like(raised))
