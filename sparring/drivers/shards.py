"""A replay whose rows lie in several Ray actors, wherever the cluster has memory.

What is drawn is decided by the learner. A shard whose node leaves is replaced by an empty one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from sparring.drivers.ray_library import end, library, losses
from sparring.errors import ConfigError
from sparring.replay.host_ring import HostRing
from sparring.types import Batch, Transition


class ShardLost(Exception):
    """A batch was asked of a shard that is gone; draw again from what is left."""


class Shards:
    """Ray actors of which the i-th keeps the i-th share of the rows, whatever it keeps them in."""

    nbytes = 0
    """in this process"""

    def __init__(self, example: Transition, shards: int) -> None:
        rows = example.reward.shape[1]
        if rows % shards:
            raise ConfigError(
                f"n_envs={rows} rows cannot be shared evenly by replay_shards={shards}: use a divisor of it."
            )
        self._each = rows // shards
        self._part = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((x.shape[0], self._each, *x.shape[2:]), x.dtype), example
        )
        """what a shard gets of a rollout"""
        self._shards = [self._made() for _ in range(shards)]
        self._adding: list[Any] = [None] * shards
        self.written = 0
        self.news: list[str] = []

    def add(self, rollout: Transition) -> None:
        """Hands every shard its rows of a rollout; waits only for the one before."""
        self._settle()
        for i, shard in enumerate(self._shards):
            span = slice(i * self._each, (i + 1) * self._each)
            own = jax.tree.map(lambda x, s=span: np.asarray(x)[:, s], rollout)
            self._adding[i] = shard.add.remote(own)
        mask = np.ones(rollout.reward.shape, bool) if rollout.mask is None else rollout.mask
        self.written += int(np.sum(mask))

    def state(self) -> dict[str, np.ndarray]:
        """Everything that the shards hold, for a checkpoint."""
        self._settle()
        held = {f"{i}-{n}": x for i, own in enumerate(self._all("state")) for n, x in own.items()}
        return {**held, "written": np.array(self.written)}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Continues from what `state` returned, with as many shards."""
        for i in self._numbers:
            own = {n.removeprefix(f"{i}-"): x for n, x in state.items() if n.startswith(f"{i}-")}
            library().get(self._shards[i].restore.remote(own))
        self.written = int(state["written"])

    def close(self) -> None:
        """Ends the shards."""
        for shard in self._shards:
            end(shard)

    @property
    def _numbers(self) -> range:
        return range(len(self._shards))

    def _made(self) -> Any:
        """A shard that holds nothing, on some node."""
        raise NotImplementedError

    def _taken(self, owner: np.ndarray, *questions: np.ndarray) -> Any:
        """What the shards' `take` answers to these questions, each put to its owner; in their order."""
        places = [np.flatnonzero(owner == i) for i in self._numbers]
        calls = [self._shards[i].take.remote(*(q[places[i]] for q in questions)) for i in self._numbers]
        found = [self._waited(i, call) for i, call in enumerate(calls)]
        if any(answer is None for answer in found):
            raise ShardLost
        order = np.argsort(np.concatenate(places))
        return jax.tree.map(lambda *x: np.concatenate(x)[order], *found)

    def _settle(self) -> None:
        """Waits until what was added last has arrived."""
        for i in self._numbers:
            if self._adding[i] is not None:
                self._waited(i, self._adding[i])
                self._adding[i] = None

    def _all(self, question: str) -> Sequence[Any]:
        """What a method of every shard returns, or of the empty one in its place."""
        calls = [getattr(shard, question).remote() for shard in self._shards]
        answers = [self._waited(i, call) for i, call in enumerate(calls)]
        for i, answer in enumerate(answers):
            if answer is None:
                answers[i] = self._waited(i, getattr(self._shards[i], question).remote())
        return answers

    def _waited(self, i: int, call: Any) -> Any:
        """What a call returned; None when the shard is gone, which is replaced."""
        try:
            return library().get(call)
        except losses():
            self._shards[i], self._adding[i] = self._made(), None
            self.news.append(
                f"Replay shard {i} died, or its node left the cluster: what it held is gone, it fills anew."
            )
            return None


class ShardedRing(Shards):
    """`HostRing` for a cluster: every batch is bit for bit the one that a single one would give."""

    def __init__(
        self, example: Transition, capacity: int, n_step: int, frame_stack: int, shards: int
    ) -> None:
        self._plan = (capacity // shards, n_step, frame_stack)
        super().__init__(example, shards)

    def windows(self) -> np.ndarray:
        """Decisions of each row that start a window of full length, [B]."""
        self._settle()
        return np.concatenate(self._all("windows"))

    def take(self, row: np.ndarray, age: np.ndarray) -> Batch:
        """The windows that start at these decisions of these rows, as `HostRing.take` gives them."""
        owner = row // self._each
        found: Batch = self._taken(owner, row - owner * self._each, age)
        return Batch(found.data)

    def _made(self) -> Any:
        remote = library().remote(HostRing).options(num_cpus=0, scheduling_strategy="SPREAD")
        return remote.remote(self._part, *self._plan)
