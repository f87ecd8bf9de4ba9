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

    def pairs(self) -> list[dict[str, Any]]:
        """Mean returns by cells of every two coordinates, or of the one there is; None for no episode."""
        names, count = self.space.names, len(self.space.names)
        chosen: list[tuple[int, ...]] = [(a, b) for a in range(count) for b in range(a + 1, count)] or [(0,)]
        return [{"names": [names[c] for c in pair], "means": _rounded(self.mean(*pair))} for pair in chosen]

    def as_json(self) -> dict[str, Any]:
        return {name: _rounded(self.mean(c)) for c, name in enumerate(self.space.names)}


def _rounded(means: np.ndarray) -> list[Any]:
    """Numbers for JSON, None where there is none."""
    if means.ndim > 1:
        return [_rounded(row) for row in means]
    return [None if np.isnan(x) else round(float(x), 3) for x in means]


def heads(agent: Any, env: Any, episodes: int, seed: int) -> dict[str, Evaluation]:
    """Greedy episodes by each head, and by all of them together."""
    told = {
        str(number): agent.evaluate(env, episodes, seed, True, behave)
        for number, behave in _alone(agent.algo).items()
    }
    return {**told, "+".join(told): agent.evaluate(env, episodes, seed, True)} if told else {}


Play = Callable[[bool, Callable[[int], Behaviour]], Evaluation]
"""Episodes, greedy or not, of rows that behave so."""


def validation(algo: Any, play: Play, points: np.ndarray | None) -> dict[str, float]:
    """Metrics of an evaluation beyond the usual two: every head alone, and the controller's choices.

    `points` [N, C] are the behaviours that the controller has chosen.
    """
    values = {
        f"eval/head_{number}_mean_reward": play(True, behave).mean for number, behave in _alone(algo).items()
    }
    if points is not None:
        values["eval/bandit_mean_reward"] = play(False, _at(algo, points)).mean
    return values


def _alone(algo: Any) -> dict[int, Callable[[int], Behaviour]]:
    """How rows act by one head, for each of several, counted from 1."""

    def by(head: int) -> Callable[[int], Behaviour]:
        return lambda rows: Behaviour(head=np.full(rows, head, np.int32))

    count = getattr(algo, "heads", 1)
    return {head + 1: by(head) for head in range(count)} if count > 1 else {}


def _at(algo: Any, points: np.ndarray) -> Callable[[int], Behaviour]:
    """How rows act at these points: spread evenly over them, or over and over where they are fewer."""

    def behave(rows: int) -> Behaviour:
        chosen = (
            np.arange(rows) * len(points) // rows if rows < len(points) else np.arange(rows) % len(points)
        )
        return actor.behaviour(algo, jnp.asarray(points[chosen]))

    return behave


def over_indices(agent: Any, env: Any, episodes: int, seed: int, rows: int) -> Map:
    """Episodes at uniform points of the space of behaviours, `rows` points at a time."""
    algo = agent.algo
    if not hasattr(algo, "space") or not hasattr(algo, "behaviour"):
        raise ConfigError(f"{type(algo).__name__} has no behaviours that a bandit could choose.")
    space, key = algo.space, keys.once(jax.random.key(seed), keys.BANDIT)
    acted = _acted(algo)
    if not acted:
        raise ConfigError(
            f"Only learning reads {', '.join(space.names)}: whatever of it is chosen, {type(algo).__name__} "
            "acts the same."
        )
    cells, returns = [], []
    for turn in range(-(-episodes // rows)):
        lots = keys.uniform(keys.derive(key, turn), (2, rows, len(space.coordinates)))
        sizes = jnp.asarray(space.cells)
        cell = jnp.minimum((lots[0] * sizes).astype(jnp.int32), sizes - 1)
        behaviour = actor.behaviour(algo, space.points(cell, lots[1]))
        score = agent.evaluate(env, rows, seed + turn, False, lambda _, chosen=behaviour: chosen)
        cells.append(np.asarray(cell)[:, acted])
        returns.append(score.returns)
    shown = Space(tuple(space.coordinates[c] for c in acted))
    return Map(shown, np.concatenate(cells), np.concatenate(returns))


def _acted(algo: Any) -> list[int]:
    """The coordinates that acting reads: another point there, another behaviour."""
    count = len(algo.space.coordinates)
    last = jnp.asarray(algo.space.cells) - 1
    cell = jnp.concatenate([jnp.zeros((1, count), jnp.int32), jnp.diag(last)])
    lots = jnp.concatenate([jnp.zeros((1, count)), jnp.eye(count)])
    behaviours = jax.tree.leaves(actor.behaviour(algo, algo.space.points(cell, lots)))
    behaviours = [jnp.nan_to_num(x) for x in behaviours]  # NaN is what nothing chose, and equals itself here
    changed = [jnp.any((x[1:] != x[:1]).reshape(count, -1), axis=1) for x in behaviours]
    return np.flatnonzero(np.any(changed, axis=0)).tolist() if changed else []
