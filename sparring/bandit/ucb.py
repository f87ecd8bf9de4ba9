"""Sliding-window UCB over a set of arms, after Agent57's meta-controller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from sparring.bandit import pool as pools
from sparring.bandit.api import Choice
from sparring.bandit.pool import Pool
from sparring.bandit.report import evenness, marginals, of_cells, of_choosing, of_pool
from sparring.bandit.space import Space
from sparring.errors import ConfigError
from sparring.ops import keys
from sparring.ranges import COUNT, NOT_NEGATIVE, PROBABILITY, Range, check_options
from sparring.types import Key


class WindowState(NamedTuple):
    """The arms, and which of them each of the last pulls was."""

    arms: Int[Array, "A C"]
    """cells of each arm"""
    pool: Pool
    """the window's returns"""
    pulled: Int[Array, " W"]
    """the arm of each return"""


@dataclass(frozen=True)
class SlidingWindowUCB:
    """Plays the arm with the highest mean + β / √pulls of the last `window` episodes, or any with chance ε.

    Everything is computed from the window itself, so a pull that left it is forgotten entirely. An arm that
    is not in the window comes first, but is played by one of the rows on average, not by all of them at once,
    which would flood the window. With `normalise` returns
    count in standard deviations of the window, without it as they are (Agent57 as published has that, a
    window of 160, ε = 0.5 and one bandit per row).
    """

    space: Space
    window: int = 2000
    arms: int = 32
    """combinations of cells, drawn once; all of them where there are no more"""
    beta: float = 1.0
    epsilon: float = 0.1
    normalise: bool = True

    def __post_init__(self) -> None:
        ranges = {"window": COUNT, "arms": COUNT, "beta": NOT_NEGATIVE, "epsilon": PROBABILITY}
        check_options(self, {**ranges, "normalise": Range(0, 1, whole=True)})
        if self.space.size >= 2**31:
            raise ConfigError(
                f"A sliding-window UCB needs a space of fewer than 2^31 cells in all, got {self.space.size}. "
                "Give its coordinates fewer cells."
            )

    def init(self, key: Key) -> WindowState:
        count = min(self.arms, self.space.size)
        # One arm from each of as many equal stretches of the table: no two are the same.
        begins = jnp.asarray([i * self.space.size // count for i in range(count + 1)], jnp.int32)
        lots = keys.uniform(key, (count,)) * (1.0 - 2.0**-20)
        number = begins[:-1] + (lots * jnp.diff(begins)).astype(jnp.int32)
        arms = self.space.unflat(number)
        return WindowState(arms, pools.empty(self.window), jnp.zeros(self.window, jnp.int32))

    def select(self, state: WindowState, key: Key, rows: int) -> Choice:
        steps = jnp.cumsum(self.probability(state, rows))
        lots = keys.uniform(keys.derive(key, 0), (rows,))
        cell = state.arms[jnp.searchsorted(steps, lots * steps[-1])]
        lots = keys.uniform(keys.derive(key, 1), cell.shape)
        return Choice(cell, self.space.points(cell, lots))

    def probability(self, state: WindowState, rows: int) -> Float[Array, " A"]:
        """With which probability each of so many rows plays each arm."""
        mean, pulls = self.statistics(state)
        score = jnp.where(pulls > 0, mean + self.beta / jnp.sqrt(jnp.maximum(pulls, 1.0)), -jnp.inf)
        best = (score == score.max()) & (pulls > 0)
        absent = pulls == 0
        fresh = jnp.minimum(absent.sum() / rows, 1.0)
        fresh = jnp.where(best.any(), fresh, 1.0)
        even = fresh * absent / jnp.maximum(absent.sum(), 1) + (1.0 - fresh) * best / jnp.maximum(
            best.sum(), 1
        )
        return (1.0 - self.epsilon) * even + self.epsilon / len(pulls)

    def statistics(self, state: WindowState) -> tuple[Float[Array, " A"], Float[Array, " A"]]:
        """Mean return, in the window's units, and number of pulls of every arm; the mean of none is 0."""
        held = jnp.arange(self.window) < state.pool.held
        value = state.pool.returns
        if self.normalise:
            mean, std = pools.moments(state.pool)
            value = (value - mean) / jnp.where(std > 0, std, 1.0)
        arms = state.arms.shape[0]
        arm = jnp.where(held, state.pulled, arms)  # dropped where nothing is held yet
        total = jax.ops.segment_sum(value, arm, arms)
        pulls = jax.ops.segment_sum(jnp.ones(self.window), arm, arms)
        return total / jnp.maximum(pulls, 1.0), pulls

    def update(
        self, state: WindowState, choice: Choice, returns: Float[Array, " B"], mask: Bool[Array, " B"]
    ) -> WindowState:
        same = (choice.cell[:, None] == state.arms).all(axis=-1)
        mask = mask & jnp.isfinite(returns) & same.any(axis=1)
        arm = jnp.argmax(same, axis=1).astype(jnp.int32)

        def learned() -> WindowState:
            order = pools.order(mask, returns, arm)
            where = pools.places(state.pool.place, mask.sum(dtype=jnp.int32), len(mask), self.window)
            pulled = state.pulled.at[where].set(arm[order], mode="drop")
            return WindowState(state.arms, pools.insert(state.pool, returns, mask, order), pulled)

        return jax.lax.cond(mask.any(), learned, lambda: state)

    def report(self, state: WindowState, rows: int = 1) -> dict[str, Array]:
        mean, pulls = self.statistics(state)
        chance = self.probability(state, rows)
        per_cell = marginals(self.space, state.arms, pulls)
        total = marginals(self.space, state.arms, pulls * mean)
        unit = 1.0 if self.normalise else pools.moments(state.pool)[1]
        return {
            "bandit/effective_pulls": pulls.sum(),
            **of_pool(state.pool),
            **of_choosing(
                self.space, marginals(self.space, state.arms, chance), self._undecided(state, pulls)
            ),
            **of_cells(
                self.space,
                total / jnp.maximum(per_cell, 1.0),
                unit / jnp.sqrt(jnp.maximum(per_cell, 1.0)),
                per_cell,
            ),
        }

    def _undecided(self, state: WindowState, pulls: Float[Array, " A"]) -> list[Float[Array, ""]]:
        """How even the window's pulls are but for those by chance ε: at any moment one arm alone is best."""
        count = jnp.maximum(pulls.sum(), 1.0)
        chosen = jnp.maximum(pulls / count - self.epsilon / len(pulls), 0.0)
        chosen = jnp.where(chosen.sum() > 0.0, chosen, 1.0)
        return evenness(self.space, marginals(self.space, state.arms, chosen / chosen.sum()))
