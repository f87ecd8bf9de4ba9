"""Discounted Thompson sampling, factored over the coordinates, on returns ranked against recent ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr
from jaxtyping import Array, Bool, Float

from sparring.bandit import pool as pools
from sparring.bandit.api import Choice
from sparring.bandit.pool import Pool
from sparring.bandit.report import evenness, of_cells, of_choosing, of_pool
from sparring.bandit.space import Space
from sparring.ops import keys
from sparring.ranges import COUNT, ENDLESS, POSITIVE, PROBABILITY, check_options
from sparring.types import Key

POINTS = 512
"""Places at which densities of draws are compared."""


class ThompsonState(NamedTuple):
    """Discounted sums of scores and pulls of every coordinate's cells, and the recent returns."""

    score: Float[Array, "C K"]
    pulls: Float[Array, "C K"]
    pool: Pool


@dataclass(frozen=True)
class Thompson:
    """One posterior N(S / (N + 1), 1 / (N + 1)) per cell of each coordinate, in units of rank scores.

    A finished episode adds the score of its return to its cell of every coordinate, and everything older is
    discounted by exp(-1 / memory). The prior is the pool's mean with full uncertainty, so unseen cells are
    neutral whatever the sign and scale of returns. Each row draws from the posteriors for itself and takes
    the best cell of each coordinate, or with probability `floor`, for each coordinate by itself, any cell.

    Draws are narrower than the posteriors. Forgetting keeps these wide for ever, and scores cannot exceed √3:
    among many cells the luckiest full draw would beat any cell, however good (600 cells that share 1500
    pulls have a standard deviation of 0.53, and the largest of 600 such draws is about 1.7).
    """

    space: Space
    memory: float = 1500.0
    """episodes until a pull counts 1/e; at least 20 times the number of cells"""
    floor: float = 0.1
    """probability of a uniform cell"""
    spread: float = 0.5
    """what posterior standard deviations are multiplied by when drawing; 1 is Thompson sampling proper"""
    pool: int = 2000
    """returns to rank against"""
    warm_up: int = 64
    """returns before ranks count"""

    def __post_init__(self) -> None:
        ranges = {"memory": ENDLESS, "floor": PROBABILITY, "spread": POSITIVE, "pool": COUNT}
        check_options(self, {**ranges, "warm_up": COUNT})

    def init(self, key: Key) -> ThompsonState:
        blank = jnp.zeros(self.space.exists.shape)
        return ThompsonState(blank, blank, pools.empty(self.pool))

    def select(self, state: ThompsonState, key: Key, rows: int) -> Choice:
        mean, sd = posterior(state)
        shape = (rows, *mean.shape)
        drawn = mean + self.spread * sd * keys.normal(keys.derive(key, 0), shape)
        best = jnp.argmax(jnp.where(self.space.exists, drawn, -jnp.inf), axis=-1).astype(jnp.int32)
        lots = keys.uniform(keys.derive(key, 1), (3, *shape[:2]))
        anywhere = self.space.anywhere(lots[0])
        cell = jnp.where(lots[1] <= self.floor, anywhere, best)
        return Choice(cell, self.space.points(cell, lots[2]))

    def update(
        self, state: ThompsonState, choice: Choice, returns: Float[Array, " B"], mask: Bool[Array, " B"]
    ) -> ThompsonState:
        mask = mask & jnp.isfinite(returns)
        return jax.lax.cond(mask.any(), lambda: self._learned(state, choice, returns, mask), lambda: state)

    def _learned(
        self, state: ThompsonState, choice: Choice, returns: Float[Array, " B"], mask: Bool[Array, " B"]
    ) -> ThompsonState:
        """Sums are of whole numbers, so that the order of the rows cannot matter."""
        ranks = jnp.where(mask, pools.doubled_ranks(state.pool, returns), 0)
        coordinate = jnp.arange(choice.cell.shape[1])
        nothing = jnp.zeros(state.pulls.shape, jnp.int32)
        pulled = nothing.at[coordinate, choice.cell].add(mask[:, None].astype(jnp.int32))
        ranked = nothing.at[coordinate, choice.cell].add(ranks[:, None])
        kept = jnp.exp(-mask.sum() / self.memory)
        return ThompsonState(
            state.score * kept + pools.scores(ranked, pulled, state.pool, self.warm_up),
            state.pulls * kept + pulled,
            pools.insert(state.pool, returns, mask),
        )

    def report(self, state: ThompsonState, rows: int = 1) -> dict[str, Array]:
        wins = self.wins(state)
        return {
            "bandit/effective_pulls": state.pulls[0].sum(),
            **of_pool(state.pool),
            **of_choosing(self.space, self._floored(wins), evenness(self.space, wins)),
            **of_cells(self.space, *posterior(state), state.pulls),
        }

    def probability(self, state: ThompsonState) -> Float[Array, "C K"]:
        """The probability with which each cell is selected."""
        return self._floored(self.wins(state))

    def wins(self, state: ThompsonState) -> Float[Array, "C K"]:
        """The probability with which each cell's draw is the best: ∫ φ_k / Φ_k Π_j Φ_j over where the largest
        draw can lie."""
        mean, sd = posterior(state)
        sd = sd * self.spread
        exists = jnp.asarray(self.space.exists)[..., None]
        low, high = (
            jnp.max(jnp.where(exists[..., 0], mean + side * sd, -jnp.inf), axis=1) for side in (-5, 5)
        )
        x = low[:, None] + (high - low)[:, None] * jnp.asarray((np.arange(POINTS) + 0.5) / POINTS)
        z = (x[:, None] - mean[..., None]) / sd[..., None]  # [C, K, POINTS]
        below = jnp.where(exists, log_ndtr(z), 0.0)
        density = -0.5 * jnp.square(z) - jnp.log(sd)[..., None] - below + below.sum(axis=1, keepdims=True)
        most = jnp.max(jnp.where(exists, density, -jnp.inf), axis=(1, 2), keepdims=True)
        chance = jnp.where(exists, jnp.exp(density - most), 0.0).sum(axis=2)
        return chance / chance.sum(axis=1, keepdims=True)

    def _floored(self, wins: Float[Array, "C K"]) -> Float[Array, "C K"]:
        count = jnp.asarray(self.space.cells)[:, None]
        return jnp.where(self.space.exists, (1.0 - self.floor) * wins + self.floor / count, 0.0)


def posterior(state: ThompsonState) -> tuple[Float[Array, "C K"], Float[Array, "C K"]]:
    """Mean and standard deviation of what each cell is worth, under a standard normal prior."""
    precision = state.pulls + 1.0
    return state.score / precision, jnp.sqrt(1.0 / precision)
