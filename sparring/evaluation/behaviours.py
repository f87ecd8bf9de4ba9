"""What an agent of several heads, or one that a bandit steered, is worth at each of its behaviours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparring import actor
from sparring.bandit.space import Space
from sparring.errors import ConfigError
from sparring.evaluation.evaluator import Evaluation
from sparring.ops import keys
from sparring.types import Behaviour


class Map(NamedTuple):
    """Returns of episodes at points all over the space of behaviours."""

    space: Space
    cell: np.ndarray
    """[N, C]: the cells of each episode's point"""
    returns: np.ndarray

    def mean(self, *coordinates: int) -> np.ndarray:
        """The mean return by cells of one or two coordinates; NaN where no episode was."""
        shape = tuple(self.space.cells[c] for c in coordinates)
        place = np.ravel_multi_index(tuple(self.cell[:, c] for c in coordinates), shape)
        count = np.bincount(place, minlength=int(np.prod(shape)))
        total = np.bincount(place, weights=self.returns, minlength=int(np.prod(shape)))
        return np.where(count > 0, total / np.maximum(count, 1), np.nan).reshape(shape)

    def as_json(self) -> dict[str, Any]:
        return {
            name: [None if np.isnan(x) else round(float(x), 3) for x in self.mean(c)]
            for c, name in enumerate(self.space.names)
        }


def heads(agent: Any, env: Any, episodes: int, seed: int) -> dict[str, Evaluation]:
    """Greedy episodes by each head, and by all of them together."""
    count = getattr(agent.algo, "heads", 1)
    if count < 2:
        return {}

    def by(head: int) -> Callable[[int], Behaviour]:
        return lambda rows: Behaviour(head=np.full(rows, head, np.int32))

    told = {str(h + 1): agent.evaluate(env, episodes, seed, True, by(h)) for h in range(count)}
    return {**told, "+".join(told): agent.evaluate(env, episodes, seed, True)}


def over_indices(agent: Any, env: Any, episodes: int, seed: int, rows: int) -> Map:
    """Episodes at uniform points of the space of behaviours, `rows` points at a time."""
    algo = agent.algo
    if not hasattr(algo, "space") or not hasattr(algo, "behaviour"):
        raise ConfigError(f"{type(algo).__name__} has no behaviours that a bandit could choose.")
    space, key = algo.space, keys.once(jax.random.key(seed), keys.BANDIT)
    cells, returns = [], []
    for turn in range(-(-episodes // rows)):
        lots = keys.uniform(keys.derive(key, turn), (2, rows, len(space.coordinates)))
        sizes = jnp.asarray(space.cells)
        cell = jnp.minimum((lots[0] * sizes).astype(jnp.int32), sizes - 1)
        behaviour = actor.behaviour(algo, space.points(cell, lots[1]))
        score = agent.evaluate(env, rows, seed + turn, False, lambda _, chosen=behaviour: chosen)
        cells.append(np.asarray(cell))
        returns.append(score.returns)
    return Map(space, np.concatenate(cells), np.concatenate(returns))
