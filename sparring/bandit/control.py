"""One index per row and episode: the bandit learns from whole episodes and speaks between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from sparring.bandit.api import Choice, Selector
from sparring.bandit.simple import Ladder
from sparring.errors import ConfigError
from sparring.ops import keys
from sparring.types import Key

MEMORY = 500.0
"""Episodes until what one earned counts 1/e in the table of returns."""


class Earned(NamedTuple):
    """What episodes earned in each coordinate's cells, and how many there were; older ones count less."""

    returns: Float[Array, "C K"]
    episodes: Float[Array, "C K"]


class Control(NamedTuple):
    """The bandit's state, the index that each row acts by, and what its episode has earned so far."""

    state: Any
    """of the selector; one per row or task, along a leading axis, where they are not shared"""
    choice: Choice
    total: Float[Array, " B"]
    """raw return of the episode in progress"""
    earned: Earned | None = None
    """by cells, for whoever looks: selectors keep to numbers of their own"""


@dataclass(frozen=True)
class Controller:
    """Chooses a behaviour for every row at the start of its episode and credits it with the whole return.

    All rows share one bandit, or each row or task has its own; `tasks` says which task each row plays.
    """

    selector: Selector
    scope: Literal["shared", "row", "task"] = "shared"
    tasks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.scope not in ("shared", "row", "task"):
            raise ConfigError(f"A bandit's scope is 'shared', 'row' or 'task', not {self.scope!r}.")
        if (self.scope == "task") != bool(self.tasks) or any(task < 0 for task in self.tasks):
            raise ConfigError(
                f"Scope 'task' needs the task of every row as numbers from 0, and no other scope has tasks; "
                f"scope {self.scope!r} was given {self.tasks}."
            )
        if self.scope == "row" and isinstance(self.selector, Ladder):
            raise ConfigError("A ladder gives each row its own place already: use it with scope 'shared'.")

    def start(self, key: Key, rows: int) -> Control:
        """A bandit that knows nothing and the first index of each row."""
        if self.tasks and len(self.tasks) != rows:
            raise ConfigError(f"There are {rows} rows, but tasks were given for {len(self.tasks)}.")
        first = keys.derive(key, 0)
        if self.scope == "shared":
            state = self.selector.init(first)
        else:
            state = jax.vmap(self.selector.init)(keys.several(first, self._bandits(rows)))
        blank = jnp.zeros(self.selector.space.exists.shape)
        choice = self._selected(state, keys.derive(key, 1), rows)
        return Control(state, choice, jnp.zeros(rows), Earned(blank, jnp.copy(blank)))

    def turn(
        self,
        control: Control,
        reward: Float[Array, " B"],
        ended: Bool[Array, " B"],
        lost: Bool[Array, " B"] | None,
        key: Key,
    ) -> Control:
        """After one step of all rows: the bandit learns from the episodes that ended, and these rows alone
        get a new index.

        A lost row gets a new index too, but what it earned is not counted.
        """
        counted = ended if lost is None else ended & ~lost
        over = ended if lost is None else ended | lost
        total = control.total + (reward if lost is None else jnp.where(lost, 0.0, reward))

        def turned() -> tuple[Any, Choice, Earned | None]:
            state = self._updated(control.state, control.choice, total, counted)
            fresh = self._selected(state, key, over.shape[0])
            choice = jax.tree.map(lambda new, old: jnp.where(over[:, None], new, old), fresh, control.choice)
            return state, choice, _earned(control.earned, control.choice, total, counted)

        state, choice, earned = jax.lax.cond(
            over.any(), turned, lambda: (control.state, control.choice, control.earned)
        )
        return Control(state, choice, jnp.where(over, 0.0, total), earned)

    def report(self, control: Control) -> dict[str, Array]:
        """What the selector says, the mean over rows or tasks where each has its own; and the mean return of
        each coordinate's cells, where no episode was played that of all."""
        told = {} if control.earned is None else self._returns(control.earned)
        if self.scope == "shared":
            return told | self.selector.report(control.state, control.total.shape[0])
        each = jax.vmap(self.selector.report)(control.state)
        return told | jax.tree.map(lambda x: x.mean(axis=0), each)

    def _returns(self, earned: Earned) -> dict[str, Array]:
        space = self.selector.space
        total, episodes = earned.returns[0].sum(), earned.episodes[0].sum()
        overall = jnp.where(episodes > 0.0, total / jnp.maximum(episodes, 1e-30), 0.0)
        played = earned.episodes > 0.0
        mean = jnp.where(played, earned.returns / jnp.where(played, earned.episodes, 1.0), overall)
        cells = zip(space.names, space.cells, strict=True)
        return {f"bandit/return/{name}": mean[c, :count] for c, (name, count) in enumerate(cells)}

    def _bandits(self, rows: int) -> int:
        return rows if self.scope == "row" else max(self.tasks) + 1

    def _selected(self, state: Any, key: Key, rows: int) -> Choice:
        if self.scope == "shared":
            return self.selector.select(state, key, rows)
        each = keys.several(key, self._bandits(rows))
        if self.scope == "row":
            own = jax.vmap(lambda s, k: self.selector.select(s, k, 1))(state, each)
            return jax.tree.map(lambda x: x[:, 0], own)
        every = jax.vmap(lambda s, k: self.selector.select(s, k, rows))(state, each)
        return jax.tree.map(lambda x: x[np.asarray(self.tasks), np.arange(rows)], every)

    def _updated(
        self, state: Any, choice: Choice, total: Float[Array, " B"], counted: Bool[Array, " B"]
    ) -> Any:
        if self.scope == "shared":
            return self.selector.update(state, choice, total, counted)
        if self.scope == "row":
            alone = jax.tree.map(lambda x: x[:, None], (choice, total, counted))
            return jax.vmap(self.selector.update)(state, *alone)
        own = np.asarray(self.tasks) == np.arange(max(self.tasks) + 1)[:, None]
        return jax.vmap(self.selector.update, in_axes=(0, None, None, 0))(state, choice, total, counted & own)


def _earned(
    before: Earned | None, choice: Choice, returns: Float[Array, " B"], counted: Bool[Array, " B"]
) -> Earned | None:
    """The table after the episodes that count, those of finite return."""
    if before is None:
        return None
    counted = counted & jnp.isfinite(returns)
    coordinate, kept = jnp.arange(choice.cell.shape[1]), jnp.exp(-counted.sum() / MEMORY)

    def added(table: Float[Array, "C K"], each: Float[Array, " B"]) -> Float[Array, "C K"]:
        return table * kept + jnp.zeros_like(table).at[coordinate, choice.cell].add(each[:, None])

    return Earned(
        added(before.returns, jnp.where(counted, returns, 0.0)),
        added(before.episodes, counted.astype(jnp.float32)),
    )
