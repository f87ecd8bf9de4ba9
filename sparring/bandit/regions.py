"""Several bandits over regions of the space, softmax over their scores, renewed in turn, after LBC."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from sparring.bandit import pool as pools
from sparring.bandit.api import Choice
from sparring.bandit.pool import Pool
from sparring.bandit.report import evenness_of_members, of_cells, of_choosing, of_pool
from sparring.bandit.space import Space, check_size
from sparring.ops import keys
from sparring.ranges import COUNT, NOT_NEGATIVE, POSITIVE, check_options
from sparring.types import Key


class RegionsState(NamedTuple):
    """Scores and pulls of every region of every member, how each cuts the space, and the recent returns."""

    score: Float[Array, "M R"]
    pulls: Float[Array, "M R"]
    parts: Int[Array, "M C"]
    """into how many parts a member cuts each coordinate"""
    bonus: Float[Array, " M"]
    episodes: Int[Array, ""]
    seed: UInt32[Array, "2"]
    """of the members to come"""
    pool: Pool


@dataclass(frozen=True)
class Regions:
    """Each row asks one member, which draws a region by softmax of V + c √(log(1 + others) / (1 + pulls)).

    V is a region's mean rank score, shrunk as by one neutral pull; others are the other regions' pulls.
    Members differ in how they cut the space and in c. Each lives for `lifetime` episodes, then a new one
    takes its place: that is how they forget.
    """

    space: Space
    members: int = 7
    parts: tuple[int, ...] = (2, 3, 4)
    """into how many parts a coordinate may be cut"""
    bonuses: tuple[float, ...] = (0.5, 1.0, 2.0)
    """what c may be"""
    temperature: float = 0.1
    """of the softmax; LBC has 1 over raw values, but rank scores, at most √3, would all look alike at 1"""
    lifetime: int = 3500
    pool: int = 2000
    warm_up: int = 64

    def __post_init__(self) -> None:
        counts = dict.fromkeys(("members", "parts", "lifetime", "pool", "warm_up"), COUNT)
        check_options(self, {**counts, "bonuses": NOT_NEGATIVE, "temperature": POSITIVE})
        check_size("regions", self.members * math.prod(self._shape))

    @cached_property
    def _shape(self) -> tuple[int, ...]:
        return tuple(min(max(self.parts), cells) for cells in self.space.cells)

    @cached_property
    def _regions(self) -> np.ndarray:
        """Where each region lies along each coordinate, [R, C]."""
        return np.stack(np.unravel_index(np.arange(math.prod(self._shape)), self._shape), axis=1)

    def init(self, key: Key) -> RegionsState:
        blank = jnp.zeros((self.members, len(self._regions)))
        seed = jax.random.key_data(key)
        parts, bonus = self._members(seed, jnp.int32(0))
        return RegionsState(blank, blank, parts, bonus, jnp.int32(0), seed, pools.empty(self.pool))

    def _members(
        self, seed: UInt32[Array, "2"], generation: Int[Array, ""]
    ) -> tuple[Int[Array, "M C"], Float[Array, " M"]]:
        """How the members of a generation cut the space, and their bonus."""
        key = keys.derive(jax.random.wrap_key_data(seed), generation)
        shape = (self.members, len(self.space.cells))
        cut = keys.below(keys.derive(key, 0), math.prod(shape), len(self.parts)).reshape(shape)
        parts = jnp.minimum(jnp.asarray(self.parts)[cut], jnp.asarray(self._shape))
        bonus = keys.below(keys.derive(key, 1), self.members, len(self.bonuses))
        return parts.astype(jnp.int32), jnp.asarray(self.bonuses, jnp.float32)[bonus]

    def chances(self, state: RegionsState) -> Float[Array, "M R"]:
        """With which probability each member chooses each of its regions."""
        exists = (self._regions < state.parts[:, None]).all(axis=-1)
        others = state.pulls.sum(axis=1, keepdims=True) - state.pulls
        explore = jnp.sqrt(jnp.log1p(others) / (1.0 + state.pulls))
        score = state.score / (1.0 + state.pulls) + state.bonus[:, None] * explore
        return jax.nn.softmax(jnp.where(exists, score / self.temperature, -jnp.inf), axis=1)

    def select(self, state: RegionsState, key: Key, rows: int) -> Choice:
        member = keys.below(keys.derive(key, 0), rows, self.members)
        lots = keys.uniform(keys.derive(key, 1), (rows,))
        steps = jnp.cumsum(self.chances(state), axis=1)
        drawn = jax.vmap(lambda step: jnp.searchsorted(step, lots * step[-1]))(steps)
        place = jnp.asarray(self._regions)[drawn[member, jnp.arange(rows)]]
        count, parts = jnp.asarray(self.space.cells), state.parts[member]
        low, high = -(-place * count // parts), -(-(place + 1) * count // parts)
        lots = keys.uniform(keys.derive(key, 2), (2, *place.shape))
        cell = low + jnp.minimum((lots[0] * (high - low)).astype(jnp.int32), high - low - 1)
        cell = cell.astype(jnp.int32)
        return Choice(cell, self.space.points(cell, lots[1]))

    def update(
        self, state: RegionsState, choice: Choice, returns: Float[Array, " B"], mask: Bool[Array, " B"]
    ) -> RegionsState:
        mask = mask & jnp.isfinite(returns)
        return jax.lax.cond(mask.any(), lambda: self._learned(state, choice, returns, mask), lambda: state)

    def _learned(
        self, state: RegionsState, choice: Choice, returns: Float[Array, " B"], mask: Bool[Array, " B"]
    ) -> RegionsState:
        along = choice.cell * state.parts[:, None] // jnp.asarray(self.space.cells)  # [M, B, C]
        region = jnp.zeros(along.shape[:2], jnp.int32)
        for c, count in enumerate(self._shape):
            region = region * count + along[..., c].astype(jnp.int32)
        row = jnp.arange(self.members)[:, None]
        nothing = jnp.zeros(state.pulls.shape, jnp.int32)
        pulled = nothing.at[row, region].add(mask.astype(jnp.int32))
        ranks = jnp.where(mask, pools.doubled_ranks(state.pool, returns), 0)
        ranked = nothing.at[row, region].add(ranks)
        score = state.score + pools.scores(ranked, pulled, state.pool, self.warm_up)
        episodes = state.episodes + mask.sum(dtype=jnp.int32)
        every = max(self.lifetime // self.members, 1)
        before, now = state.episodes // every, episodes // every
        new = ((jnp.arange(self.members) - before - 1) % self.members) < now - before
        parts, bonus = self._members(state.seed, now)
        return RegionsState(
            jnp.where(new[:, None], 0.0, score),
            jnp.where(new[:, None], 0.0, state.pulls + pulled),
            jnp.where(new[:, None], parts, state.parts),
            jnp.where(new, bonus, state.bonus),
            episodes,
            state.seed,
            pools.insert(state.pool, returns, mask),
        )

    def report(self, state: RegionsState, rows: int = 1) -> dict[str, Array]:
        chances = self.chances(state)
        pulls = self._per_cell(state, state.pulls) / self.members
        score = self._per_cell(state, state.score) / self.members
        return {
            "bandit/effective_pulls": state.pulls.sum(axis=1).mean(),
            **of_pool(state.pool),
            **of_choosing(
                self.space,
                self._per_cell(state, chances) / self.members,
                evenness_of_members(self._slabs(chances), state.parts),
            ),
            **of_cells(self.space, score / (pulls + 1.0), 1.0 / jnp.sqrt(pulls + 1.0), pulls),
        }

    def _per_cell(self, state: RegionsState, weight: Float[Array, "M R"]) -> Float[Array, "C K"]:
        """The regions' weight on every coordinate's cells, each region's spread evenly over its own."""
        found = []
        most = max(self.space.cells)
        each = zip(self.space.cells, self._shape, self._slabs(weight), strict=True)
        for c, (cells, parts, slab) in enumerate(each):
            along = jnp.arange(cells) * state.parts[:, c, None] // cells  # [M, cells]
            sharing = jax.nn.one_hot(along, parts).sum(axis=1)
            spread = jnp.take_along_axis(slab / jnp.maximum(sharing, 1.0), along, axis=1).sum(axis=0)
            found.append(jnp.pad(spread, (0, most - cells)))
        return jnp.stack(found)

    def _slabs(self, weight: Float[Array, "M R"]) -> list[Float[Array, "M _"]]:
        """The regions' weight on the parts of every coordinate that each member cuts it into."""
        return [
            jnp.zeros((self.members, count)).at[:, self._regions[:, c]].add(weight)
            for c, count in enumerate(self._shape)
        ]
