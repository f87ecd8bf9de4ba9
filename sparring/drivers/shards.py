"""A replay whose rows lie in several Ray actors, wherever the cluster has memory.

What is drawn is decided by the learner from how much each row has, so every batch is bit for bit the one that
a single `HostRing` would give. A shard whose node leaves is replaced by an empty one.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from sparring.drivers.ray_library import end, library
from sparring.errors import ConfigError
from sparring.replay.host_ring import HostRing
from sparring.types import Batch, Transition


class ShardLost(Exception):
    """A batch was asked of a shard that is gone; draw again from what is left."""


class ShardedRing:
    """`HostRing` for a cluster: shard i keeps the i-th share of the rows and of the capacity."""

    def __init__(
        self, example: Transition, capacity: int, n_step: int, frame_stack: int, shards: int
    ) -> None:
        rows = example.reward.shape[1]
        if rows % shards:
            raise ConfigError(
                f"n_envs={rows} rows cannot be shared evenly by replay_shards={shards}: use a divisor of it."
            )
        self._each = rows // shards
        part = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((x.shape[0], self._each, *x.shape[2:]), x.dtype), example
        )
        self._plan = (part, capacity // shards, n_step, frame_stack)
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

    def windows(self) -> np.ndarray:
        """Decisions of each row that start a window of full length, [B]."""
        self._settle()
        return np.concatenate([self._asked(i, "windows") for i in self._numbers])

    def take(self, row: np.ndarray, age: np.ndarray) -> Batch:
        """The windows that start at these decisions of these rows, as `HostRing.take` gives them."""
        owner = row // self._each
        parts = []
        for i in self._numbers:
            here = np.flatnonzero(owner == i)
            parts.append((i, row[here] - i * self._each, age[here], here))
        calls = [self._shards[i].take.remote(r, a) for i, r, a, _ in parts]
        found = []
        for (i, *_), call in zip(parts, calls, strict=True):
            answer = self._waited(i, call)
            if answer is None:
                raise ShardLost
            found.append(answer)
        order = np.argsort(np.concatenate([here for *_, here in parts]))
        data = jax.tree.map(lambda *x: np.concatenate(x)[order], *[batch.data for batch in found])
        return Batch(data)

    def state(self) -> dict[str, np.ndarray]:
        """Everything that the shards hold, for a checkpoint."""
        self._settle()
        held = {f"{i}-{n}": x for i in self._numbers for n, x in self._asked(i, "state").items()}
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
        remote = library().remote(HostRing).options(num_cpus=0, scheduling_strategy="SPREAD")
        return remote.remote(*self._plan)

    def _settle(self) -> None:
        """Waits until what was added last has arrived."""
        for i in self._numbers:
            if self._adding[i] is not None:
                self._waited(i, self._adding[i])
                self._adding[i] = None

    def _asked(self, i: int, question: str) -> Any:
        """What a method of a shard returns, or of the empty one in its place."""
        answer = self._waited(i, getattr(self._shards[i], question).remote())
        return self._waited(i, getattr(self._shards[i], question).remote()) if answer is None else answer

    def _waited(self, i: int, call: Any) -> Any:
        """What a call returned; None when the shard is gone, which is replaced."""
        ray = library()
        try:
            return ray.get(call)
        except ray.exceptions.RayActorError:
            self._shards[i], self._adding[i] = self._made(), None
            self.news.append(
                f"Replay shard {i} died, or its node left the cluster: what it held is gone, it fills anew."
            )
            return None
