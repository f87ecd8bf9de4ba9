"""CartPole-v1: balance a pole on a cart (Barto, Sutton and Anderson 1983), Gymnasium's version."""

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

GRAVITY = 9.8
CART_MASS = 1.0
POLE_MASS = 0.1
HALF_LENGTH = 0.5
FORCE = 10.0
DT = 0.02
MAX_X = 2.4
MAX_ANGLE = 12 * math.pi / 180

TOTAL_MASS = CART_MASS + POLE_MASS
POLE_MOMENT = POLE_MASS * HALF_LENGTH

SPEC = EnvSpec(
    id="CartPole-v1",
    observation=Box(
        (4,),
        low=(float(np.float32(-2 * MAX_X)), -math.inf, float(np.float32(-2 * MAX_ANGLE)), -math.inf),
        high=(float(np.float32(2 * MAX_X)), math.inf, float(np.float32(2 * MAX_ANGLE)), math.inf),
    ),
    action=Discrete(2),
    time_limit=500,
    reward_threshold=475.0,
)


class State(NamedTuple):
    """Position and speed of the cart, angle and angular speed of the pole."""

    x: Any
    x_dot: Any
    theta: Any
    theta_dot: Any


@dataclass(frozen=True)
class CartPole:
    """A pole on a cart that is pushed left or right; reward 1 per step until it falls or leaves the track."""

    sutton_barto_reward: bool = False
    """Reward 0 per step and -1 at the end instead of 1 always."""

    @property
    def spec(self) -> EnvSpec:
        return SPEC

    def reset(self, key: Key) -> State:
        return State(*jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05))

    def observe(self, state: State) -> Obs:
        return jnp.stack(state)

    def step(self, state: State, action: Action, key: Key) -> tuple[State, Outcome]:
        x, x_dot, theta, theta_dot = state
        force = jnp.where(action == 1, FORCE, -FORCE).astype(x.dtype)
        cos, sin = jnp.cos(theta), jnp.sin(theta)
        pushed = (force + POLE_MOMENT * theta_dot * theta_dot * sin) * (1 / TOTAL_MASS)
        theta_acc = (GRAVITY * sin - cos * pushed) / (
            HALF_LENGTH * 4 / 3 - (HALF_LENGTH * POLE_MASS / TOTAL_MASS) * cos * cos
        )
        x_acc = pushed - (POLE_MOMENT / TOTAL_MASS) * theta_acc * cos
        after = State(
            x + DT * x_dot, x_dot + DT * x_acc, theta + DT * theta_dot, theta_dot + DT * theta_acc
        )  # explicit Euler: positions move with the old speeds
        fell = (jnp.abs(after.x) > MAX_X) | (jnp.abs(after.theta) > MAX_ANGLE)
        reward = -fell.astype(x.dtype) if self.sutton_barto_reward else jnp.ones_like(x)
        return after, Outcome(reward, fell, jnp.zeros_like(fell))
