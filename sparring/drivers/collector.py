"""What follows a step of an actor's rows: a new index, word to the bandit, a chunk for the learner.

An actor that only acts and steps needs no checks of its own: it hands every step to a `Collector`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from sparring import actor
from sparring.bandit.api import Choice
from sparring.bandit.control import Control
from sparring.types import ActorState, TimeStep, Transition

Turn = Callable[[Control, Any, Any, Any, Any], Control]
"""`Controller.turn`, compiled."""


class Chunk(NamedTuple):
    """T steps of an actor's rows, and what a learner must know of how they came about."""

    rollout: Transition
    """[T, b, …], always with a mask"""
    total: Any
    """[T, b]: what the episode had earned after this step; its return where it ended"""
    cell: Any
    """[T, b, C]: the index that the row acted by; None without a controller"""
    version: Any
    """of the oldest weights that acted"""
    seconds: Any
    """[2]: how long making it took, and how long the actor then waited for the learner"""
    infos: dict[str, Any]
    """[n, 3] by name: sum, mean and last value of a number in the infos, of the n episodes that ended"""


class Credit(NamedTuple):
    """Episodes that ended, at most one of each row: what the bandit learns from in one call."""

    choice: Choice
    returns: Any
    mask: Any


class Collector:
    """Gathers the steps of rows `first` … of a run's `rows`, and chooses their indices as episodes end."""

    def __init__(self, steps: int, first: int, size: int, control: Control | None, turn: Turn | None) -> None:
        self.steps = steps
        self.span = slice(first, first + size)
        self.control = control
        """of all rows of the run, so that a row's index does not depend on who plays it; only ours matter"""
        self._turn = turn
        self._total = np.zeros(size, np.float32)
        self._none_lost = np.zeros(size, bool)
        self._waiting: list[tuple[Transition, Any, Any]] = []
        self._versions: list[int] = []
        self._chosen = self._ours()

    def begin(self, timestep: TimeStep, carry: Any) -> ActorState:
        """The actor's state before its first decision."""
        first = np.ones(len(self._total), bool)
        return ActorState(timestep.obs, first, carry, timestep.legal, self._chosen)

    def renew(self, bandit: Any) -> None:
        """Takes the bandit as the learner knows it; rows keep their indices until their episodes end."""
        if self.control is not None:
            self.control = self.control._replace(state=bandit)

    def step(
        self,
        state: ActorState,
        action: Any,
        extras: Any,
        carry: Any,
        timestep: TimeStep,
        version: int,
        key: Any = None,
        random: bool = False,
    ) -> tuple[ActorState, Chunk | None]:
        """Takes one step; the state to act on next, and a chunk whenever T steps are together.

        `key` is the data of a random key: few steps need one. What `random` actions earn is not told to a
        bandit, whatever it chose.
        """
        lost = self._none_lost if timestep.lost is None else timestep.lost
        record = actor.transition(state, action, extras, timestep._replace(lost=lost))
        over = np.asarray(actor.ended(timestep))
        reward = (
            np.full_like(timestep.reward, np.nan) if random and self.control is not None else timestep.reward
        )
        total = self._total + np.where(lost, np.float32(0.0), reward)
        cell = None if self._chosen is None else self._chosen.choice.cell
        self._waiting.append((record, total, cell))
        self._versions.append(version)
        if self.control is not None and over.any():
            self._choose(total, over, lost, key)
        self._total = np.where(over, np.float32(0.0), total)
        state = ActorState(timestep.obs, over, carry, timestep.legal, self._chosen)
        return state, self._chunk() if len(self._waiting) == self.steps else None

    def _choose(self, total: np.ndarray, over: np.ndarray, lost: np.ndarray, key: Any) -> None:
        """New indices for rows whose episode is over; our copy of the bandit learns until it is renewed."""
        assert self.control is not None
        assert self._turn is not None
        rows = self.control.total.shape[0]
        returns: Any = np.zeros(rows, np.float32)
        ended, gone = np.zeros((2, rows), bool)
        returns[self.span], ended[self.span], gone[self.span] = total, over, lost
        # The returns are given as what was earned before this step: a lost row's reward is not counted.
        before = self.control._replace(total=returns)
        turned = self._turn(before, np.zeros(rows, np.float32), ended, gone, jax.random.wrap_key_data(key))
        self.control = jax.tree.map(np.asarray, turned)
        self._chosen = self._ours()

    def _ours(self) -> Control | None:
        """The indices of our rows."""
        if self.control is None:
            return None
        choice = jax.tree.map(lambda x: np.asarray(x)[self.span], self.control.choice)
        return self.control._replace(choice=choice)

    def _chunk(self) -> Chunk:
        structure = jax.tree.structure(self._waiting[0])
        columns = zip(*(jax.tree.leaves(step) for step in self._waiting), strict=True)
        rollout, total, cell = jax.tree.unflatten(structure, [np.stack(column) for column in columns])
        version = min(self._versions)
        self._waiting, self._versions = [], []
        return Chunk(rollout, total, cell, np.int64(version), np.zeros(2, np.float32), {})


def credits(chunk: Chunk, first: int, rows: int) -> list[Credit]:
    """The chunk's finished episodes as calls to the bandit, in order of time; a lost episode is none."""
    if chunk.cell is None:
        return []
    rollout = chunk.rollout
    over = (rollout.terminated | rollout.truncated) & rollout.mask
    rank = np.cumsum(over, axis=0)
    found = []
    for number in range(1, int(rank[-1].max()) + 1):
        t, row = np.nonzero(over & (rank == number))
        place = first + row
        mask, returns = np.zeros(rows, bool), np.zeros(rows, np.float32)
        cell: Any = np.zeros((rows, chunk.cell.shape[2]), chunk.cell.dtype)
        point: Any = np.zeros((rows, rollout.point.shape[2]), rollout.point.dtype)
        mask[place], returns[place] = True, chunk.total[t, row]
        cell[place], point[place] = chunk.cell[t, row], rollout.point[t, row]
        found.append(Credit(Choice(cell, point), returns, mask))
    return found
