"""Selectors that learn nothing: the controls that a bandit has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from sparring.bandit.api import Choice
from sparring.bandit.report import of_choosing
from sparring.bandit.space import Space
from sparring.errors import ConfigError
from sparring.ops import keys
from sparring.ranges import Range
from sparring.types import Key


class Count(NamedTuple):
    """How many episodes were counted."""

    episodes: Int[Array, ""]


@dataclass(frozen=True)
class Unlearned:
    """What they have in common: they count episodes, and no return changes what they select."""

    space: Space

    def init(self, key: Key) -> Count:
        return Count(jnp.int32(0))

    def update(
        self, state: Count, choice: Choice, returns: Float[Array, " B"], mask: Bool[Array, " B"]
    ) -> Count:
        return Count(state.episodes + (mask & jnp.isfinite(returns)).sum(dtype=jnp.int32))

    def report(self, state: Count, rows: int = 1) -> dict[str, Array]:
        return {"bandit/effective_pulls": state.episodes.astype(jnp.float32)}


@dataclass(frozen=True)
class Uniform(Unlearned):
    """A fresh uniform index for every episode."""

    def select(self, state: Count, key: Key, rows: int) -> Choice:
        lots = keys.uniform(key, (2, rows, len(self.space.cells)))
        cell = self.space.anywhere(lots[0])
        return Choice(cell, self.space.points(cell, lots[1]))

    def report(self, state: Count, rows: int = 1) -> dict[str, Array]:
        chance = self.space.exists / np.asarray(self.space.cells, np.float32)[:, None]
        return {**super().report(state), **of_choosing(self.space, jnp.asarray(chance))}


@dataclass(frozen=True)
class Fixed(Unlearned):
    """One given point for every row and episode."""

    point: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.point) != len(self.space.names) or not all(map(Range().holds, self.point)):
            raise ConfigError(
                f"A fixed index needs a point, a finite number for each of {self.space.names}, not "
                f"{self.point}."
            )

    def select(self, state: Count, key: Key, rows: int) -> Choice:
        point = jnp.broadcast_to(jnp.asarray(self.point, jnp.float32), (rows, len(self.point)))
        return Choice(self.space.cell_of(point), point)


@dataclass(frozen=True)
class Ladder(Unlearned):
    """Row i has its own place for ever, as Ape-X's actors have their ε.

    The first coordinate falls from its highest place in row 0 to its lowest in the last row, in equal steps
    (of its logarithm, if it is logarithmic); the others fill their ranges evenly, each in another order.
    """

    def select(self, state: Count, key: Key, rows: int) -> Choice:
        row = np.arange(rows)
        steps = [1.0 - row / max(rows - 1, 1)]
        # Steps of irrational length, those of the Kronecker sequence with the best spread in so many axes.
        others = len(self.space.cells) - 1
        ratio = 2.0
        for _ in range(64):
            ratio = (1.0 + ratio) ** (1.0 / (others + 1))
        steps += [(0.5 + row * ratio ** -(c + 1.0)) % 1.0 for c in range(others)]
        point = np.stack([_along(self.space, c, part) for c, part in enumerate(steps)], axis=1)
        places = jnp.asarray(point, jnp.float32)
        return Choice(self.space.cell_of(places), places)


def _along(space: Space, c: int, part: np.ndarray) -> np.ndarray:
    """The points of a coordinate at these parts of its range."""
    coordinate = space.coordinates[c]
    if coordinate.values:
        return np.asarray(coordinate.values)[
            np.minimum((part * coordinate.cells).astype(int), coordinate.cells - 1)
        ]
    low, high = coordinate.edges[0], coordinate.edges[-1]
    return low ** (1 - part) * high**part if coordinate.log else low + part * (high - low)
