"""A population of tile-coding bandits that vote, after GDI."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from sparring.bandit import pool as pools
from sparring.bandit.api import Choice
from sparring.bandit.pool import Pool
from sparring.bandit.report import evenness_of_members, of_cells, of_choosing, of_pool
from sparring.bandit.space import Space, check_size
from sparring.errors import ConfigError
from sparring.ops import keys
from sparring.ranges import COUNT, NOT_NEGATIVE, Range, check_options
from sparring.types import Key


class TilesState(NamedTuple):
    """Value and pulls of every tile of every member, where its tiles begin, and the recent returns."""

    value: Float[Array, "M T"]
    pulls: Float[Array, "M T"]
    offset: Int[Array, "M C"]
    pool: Pool


@dataclass(frozen=True)
class Tiles:
    """Members cut the table into joint tiles of their own width and offset and score them by UCB.

    A row takes one of the `candidates` best tiles of a member that argmaxes, or a tile drawn from the softmax
    of the scores of one that does not, every candidate of every member being equally likely; then any cell in
    that tile. Every member learns from every episode with its own learning rate.

    `faithful` is GDI as far as it is known: raw returns, values standardised over all tiles, those never
    visited at zero. Where returns are negative every visit makes a tile look worse than those never visited,
    and it is about as good as choosing uniformly, or worse. `safe` learns from
    rank scores and standardises over visited tiles alone, unvisited ones being neutral.
    """

    space: Space
    mode: Literal["faithful", "safe"] = "safe"
    members: int = 7
    widths: tuple[int, ...] = (2, 3, 4)
    """in cells; members take turns"""
    rates: tuple[float, ...] = (0.05, 0.1, 0.2)
    """learning rates; members take turns"""
    candidates: int = 3
    bonus: float = 1.0
    """weight of the exploration term"""
    pool: int = 2000
    warm_up: int = 64

    def __post_init__(self) -> None:
        if self.mode not in ("faithful", "safe"):
            raise ConfigError(f"The mode of tiles is 'faithful' or 'safe', not {self.mode!r}.")
        counts = dict.fromkeys(("members", "widths", "candidates", "pool", "warm_up"), COUNT)
        check_options(self, {**counts, "rates": Range(0.0, 1.0, above=True), "bonus": NOT_NEGATIVE})
        check_size("tiles", self.members * math.prod(self._shape))

    @cached_property
    def width(self) -> np.ndarray:
        return np.asarray([self.widths[m % len(self.widths)] for m in range(self.members)])

    @cached_property
    def rate(self) -> np.ndarray:
        # Shifted by one in every round, so that a width meets every rate.
        turn = [(m + m // len(self.rates)) % len(self.rates) for m in range(self.members)]
        return np.asarray(self.rates, np.float32)[turn]

    @cached_property
    def greedy(self) -> np.ndarray:
        """Members that argmax: every other one."""
        return np.arange(self.members) % 2 == 0

    @cached_property
    def _shape(self) -> tuple[int, ...]:
        """The most tiles that a member may have along each coordinate."""
        width = min(self.widths)
        return tuple((cells + width - 2) // width + 1 for cells in self.space.cells)

    @cached_property
    def _tiles(self) -> np.ndarray:
        """Where each tile lies along each coordinate, [T, C]."""
        return np.stack(np.unravel_index(np.arange(math.prod(self._shape)), self._shape), axis=1)

    def init(self, key: Key) -> TilesState:
        coordinates = len(self.space.cells)
        lots = keys.uniform(key, (self.members, coordinates)) * (1.0 - 2.0**-20)
        offset = (lots * self.width[:, None]).astype(jnp.int32)
        blank = jnp.zeros((self.members, len(self._tiles)))
        return TilesState(blank, blank, offset, pools.empty(self.pool))

    def _last(self, state: TilesState) -> Int[Array, "M C"]:
        """Each member's last tile along each coordinate."""
        return (jnp.asarray(self.space.cells) - 1 + state.offset) // self.width[:, None]

    def _exists(self, state: TilesState) -> Bool[Array, "M T"]:
        """Tiles that hold a cell."""
        return (jnp.asarray(self._tiles) <= self._last(state)[:, None]).all(axis=-1)

    def scores(self, state: TilesState) -> Float[Array, "M T"]:
        """What speaks for each tile; minus infinity where there is none."""
        exists = self._exists(state)
        among = exists if self.mode == "faithful" else exists & (state.pulls > 0)
        score = jax.vmap(tile_scores, (0, 0, 0, None))(state.value, state.pulls, among, self.bonus)
        return jnp.where(exists, score, -jnp.inf)

    def select(self, state: TilesState, key: Key, rows: int) -> Choice:
        score = self.scores(state)
        lots = keys.uniform(keys.derive(key, 0), score.shape)
        top = jax.lax.top_k(score + 1e-6 * lots, min(self.candidates, score.shape[1]))[1]  # ties by lot
        member = keys.below(keys.derive(key, 1), rows, self.members)
        lots, place = keys.uniform(keys.derive(key, 2), (2, rows))
        among = jnp.minimum(jnp.isfinite(score).sum(axis=1), top.shape[1])[member]
        place = jnp.minimum((place * among).astype(jnp.int32), among - 1)
        steps = jnp.cumsum(jax.nn.softmax(score, axis=1), axis=1)
        drawn = jax.vmap(lambda step: jnp.searchsorted(step, lots * step[-1]))(steps)  # [M, B]
        row = jnp.arange(rows)
        tile = jnp.where(jnp.asarray(self.greedy)[member], top[member, place], drawn[member, row])
        lots = keys.uniform(keys.derive(key, 3), (2, rows, len(self.space.cells)))
        width, offset = jnp.asarray(self.width)[member, None], state.offset[member]
        begin = jnp.asarray(self._tiles)[tile] * width - offset
        count = jnp.asarray(self.space.cells)
        low, high = jnp.maximum(begin, 0), jnp.minimum(begin + width, count)
        cell = low + jnp.minimum((lots[0] * (high - low)).astype(jnp.int32), high - low - 1)
        cell = cell.astype(jnp.int32)
        return Choice(cell, self.space.points(cell, lots[1]))

    def update(
        self, state: TilesState, choice: Choice, returns: Float[Array, " B"], mask: Bool[Array, " B"]
    ) -> TilesState:
        mask = mask & jnp.isfinite(returns)
        return jax.lax.cond(mask.any(), lambda: self._learned(state, choice, returns, mask), lambda: state)

    def _learned(
        self, state: TilesState, choice: Choice, returns: Float[Array, " B"], mask: Bool[Array, " B"]
    ) -> TilesState:
        """n episodes of one tile move its value towards their mean as far as n steps would."""
        order = pools.order(mask, returns, *choice.cell.T)
        cell, counted = choice.cell[order], mask[order]
        tiles = self._tile_of(state, cell)
        count = len(self._tiles)

        def summed(x: Array) -> Array:
            return jax.vmap(lambda tile: jax.ops.segment_sum(jnp.where(counted, x, 0), tile, count))(tiles)

        pulled = summed(jnp.ones_like(cell[:, 0])).astype(jnp.float32)
        if self.mode == "faithful":
            total = summed(returns[order])
        else:
            ranks = summed(pools.doubled_ranks(state.pool, returns[order]))
            total = pools.scores(ranks, pulled, state.pool, self.warm_up)
        step = 1.0 - (1.0 - self.rate[:, None]) ** pulled
        value = state.value + step * (total / jnp.maximum(pulled, 1.0) - state.value)
        pool = pools.insert(state.pool, returns, mask, order)
        return TilesState(value, state.pulls + pulled, state.offset, pool)

    def _tile_of(self, state: TilesState, cell: Int[Array, "N C"]) -> Int[Array, "M N"]:
        """The tile of every member that holds each cell."""
        along = (cell + state.offset[:, None]) // self.width[:, None, None]
        number = jnp.zeros(along.shape[:2], jnp.int32)
        for c, count in enumerate(self._shape):
            number = number * count + along[..., c].astype(jnp.int32)
        return number

    def report(self, state: TilesState, rows: int = 1) -> dict[str, Array]:
        score = self.scores(state)
        best, where = jax.lax.top_k(score, min(self.candidates, score.shape[1]))
        even = jnp.isfinite(best) / jnp.isfinite(best).sum(axis=1, keepdims=True)
        argmax = jnp.zeros_like(score).at[jnp.arange(self.members)[:, None], where].set(even)
        chances = jnp.where(self.greedy[:, None], argmax, jax.nn.softmax(score, axis=1))
        pulls = self._per_cell(state, state.pulls) / self.members
        total = self._per_cell(state, state.pulls * state.value) / self.members
        unit = pools.moments(state.pool)[1] if self.mode == "faithful" else 1.0
        return {
            "bandit/effective_pulls": state.pulls[0].sum(),
            **of_pool(state.pool),
            **of_choosing(
                self.space,
                self._per_cell(state, chances) / self.members,
                evenness_of_members(self._slabs(chances), self._last(state) + 1),
            ),
            **of_cells(
                self.space,
                total / jnp.maximum(pulls, 1e-6),
                unit / jnp.sqrt(jnp.maximum(pulls, 1.0)),
                pulls,
            ),
        }

    def _per_cell(self, state: TilesState, weight: Float[Array, "M T"]) -> Float[Array, "C K"]:
        """The tiles' weight on every coordinate's cells, each tile's spread evenly over its own."""
        found = []
        most = max(self.space.cells)
        each = zip(self.space.cells, self._shape, self._slabs(weight), strict=True)
        for c, (cells, tiles, slab) in enumerate(each):
            along = (jnp.arange(cells) + state.offset[:, c, None]) // self.width[:, None]  # [M, cells]
            sharing = jax.nn.one_hot(along, tiles).sum(axis=1)
            spread = jnp.take_along_axis(slab / jnp.maximum(sharing, 1.0), along, axis=1).sum(axis=0)
            found.append(jnp.pad(spread, (0, most - cells)))
        return jnp.stack(found)

    def _slabs(self, weight: Float[Array, "M T"]) -> list[Float[Array, "M _"]]:
        """The tiles' weight on the parts of every coordinate that each member cuts it into."""
        return [
            jnp.zeros((self.members, count)).at[:, self._tiles[:, c]].add(weight)
            for c, count in enumerate(self._shape)
        ]


def tile_scores(
    value: Float[Array, " T"], pulls: Float[Array, " T"], among: Bool[Array, " T"], bonus: float
) -> Float[Array, " T"]:
    """Value standardised over the tiles `among` (0 elsewhere), plus a bonus for few pulls."""
    count = jnp.maximum(among.sum(), 1)
    mean = jnp.where(among, value, 0.0).sum() / count
    apart = jnp.where(among, value - mean, 0.0)
    std = jnp.sqrt((apart * apart).sum() / count)
    explore = jnp.sqrt(jnp.log1p(pulls.sum()) / (1.0 + pulls))
    return apart / jnp.where(std > 0, std, 1.0) + bonus * explore
