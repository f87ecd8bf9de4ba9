"""Environments of one's own: one of Gymnasium's kind, one of pure JAX.

sparring check-env examples/my_env.py:make
sparring train ppo examples/my_env.py:make        # steps in Python, on the host driver
sparring train ppo examples/my_env.py:Corridor    # compiled together with the algorithm
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from sparring.envs.api import Outcome
from sparring.spaces import Box, Discrete, EnvSpec

LENGTH = 8


class CorridorEnv(gymnasium.Env):
    """Walk right to the end of a corridor: every step costs 0.1, the end pays 1."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012  (Gymnasium's own form)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(LENGTH // 2))
        return self._seen(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.place = max(self.place + (1 if action == 1 else -1), 0)
        arrived = self.place >= LENGTH
        return self._seen(), 1.0 if arrived else -0.1, arrived, False, {}

    def render(self) -> np.ndarray:
        return np.asarray(picture(self.place))

    def _seen(self) -> np.ndarray:
        return np.array([self.place / LENGTH], np.float32)


def make(render_mode: str | None = None) -> gymnasium.Env:
    """What `my_env.py:make` calls once per row; a render_mode is asked for by `play` and `record`."""
    return gymnasium.wrappers.TimeLimit(CorridorEnv(render_mode), 50)


class Place(NamedTuple):
    """The state of one corridor."""

    place: jax.Array


@dataclass(frozen=True)
class Corridor:
    """The same corridor as pure functions; rows, time limit and resets are added by the library."""

    length: int = LENGTH

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("Corridor", Box((1,), 0.0, 1.0), Discrete(2), time_limit=50, reward_threshold=0.2)

    def reset(self, key: Any) -> Place:
        return Place(jax.random.randint(key, (), 0, self.length // 2))

    def observe(self, state: Place) -> jax.Array:
        return (state.place / self.length).astype(jnp.float32)[None]

    def step(self, state: Place, action: jax.Array, key: Any) -> tuple[Place, Outcome]:
        place = jnp.maximum(state.place + jnp.where(action == 1, 1, -1), 0)
        arrived = place >= self.length
        return Place(place), Outcome(jnp.where(arrived, 1.0, -0.1), arrived, jnp.zeros_like(arrived))

    def draw(self, state: Place) -> np.ndarray:
        """A picture of one row, for `play` and `record`."""
        return picture(int(state.place))


def picture(place: int, cell: int = 32) -> np.ndarray:
    """The corridor from above: walker orange, goal green."""
    frame = np.full((2 * cell, (LENGTH + 1) * cell, 3), 235, np.uint8)
    frame[:, LENGTH * cell :] = (90, 170, 90)
    frame[cell // 2 : -cell // 2, place * cell : (place + 1) * cell] = (225, 120, 30)
    return frame
