"""What every selector offers, and what it hands out."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Array, Bool, Float, Int

from sparring.bandit.space import Space
from sparring.types import Key


class Choice(NamedTuple):
    """The behaviour index of each row: a cell of every coordinate, and the point drawn inside it."""

    cell: Int[Array, "B C"]
    point: Float[Array, "B C"]


@runtime_checkable
class Selector(Protocol):
    """A bandit as a frozen dataclass of pure functions over a NamedTuple of arrays."""

    @property
    def space(self) -> Space: ...

    def init(self, key: Key) -> Any: ...

    def select(self, state: Any, key: Key, rows: int) -> Choice:
        """An index for each of so many rows, drawn independently."""
        ...

    def update(self, state: Any, choice: Choice, returns: Float[Array, " B"], mask: Bool[Array, " B"]) -> Any:
        """The state after the masked-in rows' episodes, whatever their order; with none it is unchanged.

        A return that is not finite counts as none.
        """
        ...

    def report(self, state: Any, rows: int = 1) -> dict[str, Array]:
        """What there is to see where it chooses for so many rows, as `bandit/…`: scalars, and arrays over
        the cells of a coordinate."""
        ...
