"""MountainCar-v0 and MountainCarContinuous-v0: swing up a hill (Moore 1990), Gymnasium's versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparring.envs.api import Outcome
from sparring.spaces import Box, Discrete, EnvSpec
from sparring.types import Action, Key, Obs

LEFT, RIGHT = -1.2, 0.6
MAX_SPEED = 0.07
GRAVITY = 0.0025
FORCE = 0.001
POWER = 0.0015
GOAL, CONTINUOUS_GOAL = 0.5, 0.45

OBSERVATION = Box(
    (2,),
    low=(float(np.float32(LEFT)), float(np.float32(-MAX_SPEED))),
    high=(float(np.float32(RIGHT)), float(np.float32(MAX_SPEED))),
)


class State(NamedTuple):
    """Where the car is and how fast it moves."""

    position: Any
    velocity: Any


def _reset(key: Key) -> State:
    position = jax.random.uniform(key, (), minval=-0.6, maxval=-0.4)
    return State(position, jnp.zeros_like(position))


def _roll(state: State, push: Any) -> State:
    """One step down the valley; the left wall stops the car."""
    velocity = state.velocity + (push - GRAVITY * jnp.cos(3 * state.position))
    velocity = jnp.clip(velocity, -MAX_SPEED, MAX_SPEED)
    position = jnp.clip(state.position + velocity, LEFT, RIGHT)
    velocity = jnp.where((position <= LEFT) & (velocity < 0), jnp.zeros_like(velocity), velocity)
    return State(position, velocity)


@dataclass(frozen=True)
class MountainCar:
    """A car too weak for its hill, pushed left, not at all, or right; reward -1 per step until the flag."""

    goal_velocity: float = 0.0

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("MountainCar-v0", OBSERVATION, Discrete(3), time_limit=200, reward_threshold=-110.0)

    def reset(self, key: Key) -> State:
        return _reset(key)

    def observe(self, state: State) -> Obs:
        return jnp.stack(state)

    def step(self, state: State, action: Action, key: Key) -> tuple[State, Outcome]:
        after = _roll(state, (action - 1).astype(state.position.dtype) * FORCE)
        arrived = (after.position >= GOAL) & (after.velocity >= self.goal_velocity)
        return after, Outcome(-jnp.ones_like(after.position), arrived, jnp.zeros_like(arrived))


@dataclass(frozen=True)
class MountainCarContinuous:
    """The same hill with a continuous push: 100 at the flag, minus a tenth of the squared action per step."""

    goal_velocity: float = 0.0

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(
            "MountainCarContinuous-v0",
            OBSERVATION,
            Box((1,), -1.0, 1.0),
            time_limit=999,
            reward_threshold=90.0,
        )

    def reset(self, key: Key) -> State:
        return _reset(key)

    def observe(self, state: State) -> Obs:
        return jnp.stack(state)

    def step(self, state: State, action: Action, key: Key) -> tuple[State, Outcome]:
        push = action[0].astype(state.position.dtype)
        after = _roll(state, jnp.clip(push, -1.0, 1.0) * POWER)
        arrived = (after.position >= CONTINUOUS_GOAL) & (after.velocity >= self.goal_velocity)
        # Gymnasium charges for the action as given, before it is clipped.
        reward = 100.0 * arrived.astype(push.dtype) - 0.1 * push * push
        return after, Outcome(reward, arrived, jnp.zeros_like(arrived))
