"""The behaviour table: an index is a point in a space of coordinates, each cut into cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from sparring.errors import ConfigError

MOST = 10_000_000
"""Numbers in a selector's tables, at most."""


def check_size(what: str, count: int) -> None:
    """Refuses tables that would take gigabytes."""
    if count > MOST:
        raise ConfigError(
            f"{count:,} {what} are more than the {MOST:,} that a selector's table may have. Give the space "
            "fewer coordinates or fewer cells (controller_space, index_cells), or use "
            "controller='thompson', which counts every coordinate by itself."
        )


@dataclass(frozen=True)
class Coordinate:
    """One number that a behaviour has: an interval cut at `edges`, or one of `values`; never both.

    Inside a cell of an interval a point is drawn uniformly, with `log` uniformly in its logarithm.
    """

    name: str
    edges: tuple[float, ...] = ()
    values: tuple[float, ...] = ()
    log: bool = False

    def __post_init__(self) -> None:
        if bool(self.edges) == bool(self.values):
            raise ConfigError(
                f"Coordinate {self.name!r} needs either edges of cells or values, and not both."
            )
        numbers = np.asarray(self.edges or self.values, np.float32)
        if not np.isfinite(numbers).all():
            raise ConfigError(f"Coordinate {self.name!r} holds a number that is not finite: {numbers}.")
        if self.edges and (len(numbers) < 2 or (np.diff(numbers) <= 0).any()):
            raise ConfigError(
                f"The edges of coordinate {self.name!r} must rise, at least two of them, also in 32 bits: "
                f"{self.edges}."
            )
        if self.log and (not self.edges or numbers[0] <= 0):
            raise ConfigError(
                f"Coordinate {self.name!r} is logarithmic and needs an interval above 0: {numbers}."
            )

    @classmethod
    def interval(cls, name: str, low: float, high: float, cells: int, log: bool = False) -> Coordinate:
        """Cells of equal width between two numbers, with `log` of equal ratio."""
        if cells < 1 or not low < high or (log and low <= 0):
            raise ConfigError(
                f"Coordinate {name!r} needs at least one cell and low < high (both above 0 if logarithmic), "
                f"not {cells} cells from {low} to {high}."
            )
        spaced = np.geomspace(low, high, cells + 1) if log else np.linspace(low, high, cells + 1)
        return cls(name, edges=tuple(spaced.tolist()), log=log)

    @classmethod
    def discrete(cls, name: str, values: Sequence[float]) -> Coordinate:
        """One cell per value."""
        return cls(name, values=tuple(float(value) for value in values))

    @property
    def cells(self) -> int:
        return len(self.values) or len(self.edges) - 1


@dataclass(frozen=True)
class Space:
    """All coordinates of a behaviour; an index has one cell, and one point in it, of each."""

    coordinates: tuple[Coordinate, ...]

    def __post_init__(self) -> None:
        if not self.coordinates or len(set(self.names)) < len(self.names):
            raise ConfigError(f"A space needs at least one coordinate, each with its own name: {self.names}.")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(coordinate.name for coordinate in self.coordinates)

    @property
    def cells(self) -> tuple[int, ...]:
        """How many cells each coordinate has."""
        return tuple(coordinate.cells for coordinate in self.coordinates)

    @property
    def size(self) -> int:
        """How many cells there are in all combinations."""
        return math.prod(self.cells)

    @cached_property
    def exists(self) -> np.ndarray:
        """Which places of a table [C, most cells] are cells."""
        return np.arange(max(self.cells)) < np.asarray(self.cells)[:, None]

    @cached_property
    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Ends of every cell, [C, most cells]; those of a discrete cell are both its value."""
        low, high = np.ones((2, len(self.coordinates), max(self.cells)), np.float32)
        for c, coordinate in enumerate(self.coordinates):
            ends = coordinate.edges
            low[c, : coordinate.cells] = ends[:-1] if ends else coordinate.values
            high[c, : coordinate.cells] = ends[1:] if ends else coordinate.values
        return low, high

    def points(self, cell: Int[Array, "N C"], lots: Float[Array, "N C"]) -> Float[Array, "N C"]:
        """The point of each cell at a lot in (0, 1], above its lower end and at most at its upper."""
        column = jnp.arange(len(self.coordinates))
        low, high = (jnp.asarray(bound)[column, cell] for bound in self._bounds)
        log = np.asarray([coordinate.log for coordinate in self.coordinates])
        straight = low + lots * (high - low)
        if log.any():
            start, end = jnp.log(jnp.where(log, low, 1.0)), jnp.log(jnp.where(log, high, 1.0))
            straight = jnp.where(log, jnp.exp(start + lots * (end - start)), straight)
        above = jnp.minimum(jnp.nextafter(low, jnp.inf), high)
        return jnp.clip(straight, above, high)

    def cell_of(self, point: Float[Array, "N C"]) -> Int[Array, "N C"]:
        """The cell that holds each point; for one outside or between values, the nearest."""
        found = []
        for c, coordinate in enumerate(self.coordinates):
            here = point[:, c, None]
            if coordinate.values:
                values = jnp.asarray(coordinate.values, jnp.float32)
                found.append(jnp.argmin(jnp.abs(here - values), axis=1))
            else:
                inner = jnp.asarray(coordinate.edges[1:-1], jnp.float32)
                found.append((here > inner).sum(axis=1))
        return jnp.stack(found, axis=1).astype(jnp.int32)

    def anywhere(self, lots: Float[Array, "N C"]) -> Int[Array, "N C"]:
        """A uniform cell of each coordinate for lots in (0, 1]."""
        count = jnp.asarray(self.cells)
        return jnp.minimum((lots * count).astype(jnp.int32), count - 1)

    def flat(self, cell: Int[Array, "N C"]) -> Int[Array, " N"]:
        """The number of each combination of cells, the last coordinate running fastest."""
        number = jnp.zeros(cell.shape[0], jnp.int32)
        for c, count in enumerate(self.cells):
            number = number * count + cell[:, c]
        return number

    def unflat(self, number: Int[Array, " N"]) -> Int[Array, "N C"]:
        """The combination of cells of each number."""
        return jnp.stack(jnp.unravel_index(number, self.cells), axis=1).astype(jnp.int32)
