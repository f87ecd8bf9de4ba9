"""Tasks for agents that remember: what is right now was decided by something seen earlier.

Each docstring gives the expected return of the best policy and of the best one that sees only the present
observation; both are exact. Time limits truncate, as everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparring.envs.api import JaxEnv, Outcome
from sparring.envs.classic.cartpole import CartPole
from sparring.envs.classic.mountain_car import MountainCar
from sparring.envs.classic.pendulum import Pendulum
from sparring.errors import ConfigError
from sparring.spaces import Box, Discrete, EnvSpec
from sparring.types import Action, Key, Obs

SYMBOLS = 4
LEVELS = (-1.0, -1 / 3, 1 / 3, 1.0)
SPREAD = sum(level * level for level in LEVELS) / len(LEVELS)
"""Variance of the levels: the least squared error of someone who does not know which it was."""
DECK = 52
UP, FORWARD, DOWN, BACK = range(4)


def _symbol(key: Key) -> Any:
    return jax.random.randint(key, (), 0, SYMBOLS, jnp.int32)


def _goes_on(reward: Any) -> Outcome:
    """The outcome of a step that ends nothing."""
    never = jnp.zeros_like(reward, bool)
    return Outcome(reward, never, never)


def _require(task: str, name: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(f"{task} needs {name} of at least {least}, not {value}.")


# -- repeating what was seen -----------------------------------------------------------------------------


class Recent(NamedTuple):
    """The last k + 1 symbols, oldest first, and the steps since the start."""

    symbols: Any
    t: Any


def _recent(key: Key, k: int) -> Recent:
    return Recent(jnp.concatenate([jnp.zeros(k, jnp.int32), _symbol(key)[None]]), jnp.int32(0))


def _pushed(state: Recent, key: Key) -> Recent:
    return Recent(jnp.concatenate([state.symbols[1:], _symbol(key)[None]]), state.t + 1)


def _decks(k: int) -> int:
    """The length of an episode: POPGym's 52, 104 and 156 cards for k of 4, 32 and 64."""
    return DECK * (1 + k // 32)


@dataclass(frozen=True)
class RepeatPrevious:
    """Every step shows one of four symbols; the right action is the symbol of k steps ago.

    After POPGym (Morad et al. 2023), with independent symbols: 1 / (length - k) for a right and minus as
    much for a wrong action; the first k steps pay nothing. The best return is 1; every policy without memory,
    a random one too, gets -1/2.
    """

    k: int = 4
    length: int | None = None
    """steps of an episode; None takes POPGym's"""

    def __post_init__(self) -> None:
        _require("RepeatPrevious", "k", self.k, 1)
        _require("RepeatPrevious", "a length", self.steps, self.k + 1)

    @property
    def steps(self) -> int:
        return _decks(self.k) if self.length is None else self.length

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(
            f"RepeatPrevious-{self.k}",
            Discrete(SYMBOLS),
            Discrete(SYMBOLS),
            time_limit=self.steps,
            reward_threshold=0.9,
        )

    def reset(self, key: Key) -> Recent:
        return _recent(key, self.k)

    def observe(self, state: Recent) -> Obs:
        return state.symbols[-1]

    def step(self, state: Recent, action: Action, key: Key) -> tuple[Recent, Outcome]:
        share = 1.0 / (self.steps - self.k)
        reward = jnp.where(action == state.symbols[0], share, -share)
        return _pushed(state, key), _goes_on(jnp.where(state.t >= self.k, reward, 0.0))


@dataclass(frozen=True)
class RepeatPreviousContinuous:
    """Every step shows one of four numbers in [-1, 1]; the right action is the number of k steps ago.

    1 - 1.5 e² / v, divided by length - k, for an error e, where v = 5/9 is the variance of the numbers; the
    first k steps pay nothing. The best return is 1; without memory the best is to act 0, for -1/2.
    """

    k: int = 4
    length: int | None = None
    """steps of an episode; None takes POPGym's"""

    def __post_init__(self) -> None:
        _require("RepeatPreviousContinuous", "k", self.k, 1)
        _require("RepeatPreviousContinuous", "a length", self.steps, self.k + 1)

    @property
    def steps(self) -> int:
        return _decks(self.k) if self.length is None else self.length

    @property
    def spec(self) -> EnvSpec:
        number = Box((1,), -1.0, 1.0)
        return EnvSpec(
            f"RepeatPreviousContinuous-{self.k}",
            number,
            number,
            time_limit=self.steps,
            reward_threshold=0.9,
        )

    def reset(self, key: Key) -> Recent:
        return _recent(key, self.k)

    def observe(self, state: Recent) -> Obs:
        return jnp.asarray(LEVELS)[state.symbols[-1:]]

    def step(self, state: Recent, action: Action, key: Key) -> tuple[Recent, Outcome]:
        error = jnp.clip(action[0], -1.0, 1.0) - jnp.asarray(LEVELS)[state.symbols[0]]
        reward = (1.0 - 1.5 / SPREAD * error * error) / (self.steps - self.k)
        return _pushed(state, key), _goes_on(jnp.where(state.t >= self.k, reward, 0.0))


class First(NamedTuple):
    """The symbol that the episode began with and the one that is shown."""

    first: Any
    shown: Any


@dataclass(frozen=True)
class RepeatFirst:
    """Every step shows one of four symbols; the right action is always the episode's first symbol.

    After POPGym (Morad et al. 2023): 1 / length for a right and minus as much for a wrong action. The best
    return is 1; without memory the best is to name what is shown, for -1/2 + 3 / (2 length).
    """

    length: int = DECK

    def __post_init__(self) -> None:
        _require("RepeatFirst", "a length", self.length, 1)

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(
            "RepeatFirst",
            Discrete(SYMBOLS),
            Discrete(SYMBOLS),
            time_limit=self.length,
            reward_threshold=0.9,
        )

    def reset(self, key: Key) -> First:
        symbol = _symbol(key)
        return First(symbol, symbol)

    def observe(self, state: First) -> Obs:
        return state.shown

    def step(self, state: First, action: Action, key: Key) -> tuple[First, Outcome]:
        share = 1.0 / self.length
        reward = jnp.where(action == state.first, share, -share)
        return First(state.first, _symbol(key)), _goes_on(reward)


# -- a cue, a corridor and a choice ----------------------------------------------------------------------


class Maze(NamedTuple):
    """How far along the corridor the agent is, and whether the prize lies up (0) or down (1)."""

    position: Any
    cue: Any


@dataclass(frozen=True)
class TMaze:
    """A cue at the start tells where to turn at the end of a corridor (Bakker 2001).

    Observations: the cue (0 up, 1 down) at the start, 2 in the corridor, 3 at the junction, `length` steps
    on. Actions: up, forward, down, back. A turn at the junction ends the episode with 1 if it is right and
    -1 if it is wrong; every other step that leads no further costs 1 / limit, which shows an untrained
    agent the way; the limit is 4 (length + 1) steps. The best return is 1; without memory it is 0.
    """

    length: int = 10

    def __post_init__(self) -> None:
        _require("TMaze", "a length", self.length, 1)

    @property
    def limit(self) -> int:
        return 4 * (self.length + 1)

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(
            f"TMaze-{self.length}", Discrete(4), Discrete(4), time_limit=self.limit, reward_threshold=0.9
        )

    def reset(self, key: Key) -> Maze:
        return Maze(jnp.int32(0), jax.random.bernoulli(key).astype(jnp.int32))

    def observe(self, state: Maze) -> Obs:
        beyond = jnp.where(state.position == self.length, jnp.int32(3), jnp.int32(2))
        return jnp.where(state.position == 0, state.cue, beyond)

    def step(self, state: Maze, action: Action, key: Key) -> tuple[Maze, Outcome]:
        turns = (state.position == self.length) & ((action == UP) | (action == DOWN))
        right = action == jnp.where(state.cue == 0, UP, DOWN)
        move = (action == FORWARD).astype(jnp.int32) - (action == BACK).astype(jnp.int32)
        position = jnp.clip(state.position + move, 0, self.length)
        walk = jnp.where(position > state.position, 0.0, -1.0 / self.limit)
        reward = jnp.where(turns, jnp.where(right, 1.0, -1.0), walk)
        return Maze(position, state.cue), Outcome(reward, turns, jnp.zeros_like(turns))


# -- classic control without speeds ----------------------------------------------------------------------


@dataclass(frozen=True)
class Hidden:
    """An environment of whose observation only some entries are shown."""

    env: JaxEnv
    id: str
    shown: tuple[int, ...]

    @property
    def spec(self) -> EnvSpec:
        inner = self.env.spec
        assert isinstance(inner.observation, Box)
        low, high = (tuple(float(bound[i]) for i in self.shown) for bound in inner.observation.bounds())
        return replace(inner, id=self.id, observation=Box((len(self.shown),), low, high))

    def reset(self, key: Key) -> Any:
        return self.env.reset(key)

    def observe(self, state: Any) -> Obs:
        obs = self.env.observe(state)
        return jnp.stack([obs[i] for i in self.shown])

    def step(self, state: Any, action: Action, key: Key) -> tuple[Any, Outcome]:
        return self.env.step(state, action, key)

    def draw(self, state: Any) -> np.ndarray:
        """The whole scene; whoever looks at it sees more than the agent."""
        return np.asarray(_drawing(self.env.spec.id).frame(state))


@lru_cache
def _drawing(env_id: str) -> Any:
    from sparring.envs.classic.drawing import Drawing

    return Drawing(env_id)


def masked_cartpole(**kwargs: Any) -> Hidden:
    """CartPole that shows the position of the cart and the angle of the pole."""
    return Hidden(CartPole(**kwargs), "MaskedCartPole-v1", (0, 2))


def masked_pendulum(**kwargs: Any) -> Hidden:
    """Pendulum that shows cosine and sine of its angle."""
    return Hidden(Pendulum(**kwargs), "MaskedPendulum-v1", (0, 1))


def position_mountain_car(**kwargs: Any) -> Hidden:
    """MountainCar that shows the car's position."""
    return Hidden(MountainCar(**kwargs), "PositionMountainCar-v0", (0,))
