"""Sequences and prioritised steps in several Ray actors, drawn in proportion to their mass.

The learner lays the masses of all shards end to end and draws points on them, for each batch one from each of
its equal parts, as one replay does; only the order of the leaves differs. All batches of an iteration are
drawn at once and their errors come back together: no batch knows the priorities that the one before it gave.
With several heads, every shard scales their errors by those it has seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sparring.drivers.ray_library import library
from sparring.drivers.shards import Shards
from sparring.envs.workers import THREAD_VARIABLES
from sparring.errors import CheckpointError
from sparring.ops import sum_tree
from sparring.types import Batch, Memory, Report, Transition

NUMBERS = ("alpha", "eta")
"""Settings of a replay that schedules may change: they come with the errors."""
LEAST_TAKEN = 8


class TreeShard:
    """A replay of some rows on some node, in compiled calls on its processor."""

    def __init__(self, kept: Any, example: Transition) -> None:
        """`kept` is a `Sequence` or a `Prioritised`."""
        from sparring.drivers.platform import prepare

        prepare("cpu")  # accelerators belong to the learner
        self._memory: Memory = kept.init(example)
        self._drawn: Batch | None = None

        def take(memory: Memory, point: jax.Array, rest: jax.Array, there: jax.Array) -> Batch:
            leaf = sum_tree.find(memory.live.tree, point, rest)
            mass = jnp.where(there, sum_tree.at(memory.live.tree, leaf), 0.0)
            data = kept.take(memory.data, leaf)
            if data.mask is not None:  # what fills up is no step, and its errors say nothing of a head's
                data = data._replace(mask=data.mask & there[:, None])
            return Batch(data, leaf, mass)

        def renew(memory: Memory, batch: Batch, error: jax.Array, numbers: Mapping[str, jax.Array]) -> Any:
            return replace(kept, **numbers).feedback(memory, batch, Report({}, error))

        self._add = jax.jit(kept.add, donate_argnums=0)
        self._take, self._renew = jax.jit(take), jax.jit(renew)
        self._standing = jax.jit(lambda memory: (sum_tree.total(memory.live.tree), kept.drawable(memory)))

    def add(self, rollout: Transition) -> None:
        self._memory = self._add(self._memory, rollout)

    def standing(self) -> tuple[float, int]:
        """The mass of all that can be drawn, and how much that is."""
        mass, count = self._standing(self._memory)
        return float(mass), int(count)

    def take(self, point: np.ndarray, rest: np.ndarray) -> Batch:
        """What lies at these points of the mass, each given as a number and what its rounding left out.

        `weight` is the mass of each. The sizes of calls are powers of two, so that few programs are compiled.
        """
        count = len(point)
        size = max(1 << (count - 1).bit_length(), LEAST_TAKEN)
        there = np.arange(size) < count
        drawn = self._take(self._memory, _filled(point, size), _filled(rest, size), there)
        self._drawn = drawn
        found: Batch = jax.tree.map(lambda x: np.asarray(x)[:count], drawn)
        return found

    def renew(self, error: np.ndarray, numbers: Mapping[str, float]) -> None:
        """Gives what was taken last priorities by its errors; nothing, where another shard took it."""
        if self._drawn is not None:
            size = len(self._drawn.weight)
            live = self._renew(self._memory, self._drawn, _filled(error, size), dict(numbers))
            self._memory, self._drawn = self._memory._replace(live=live), None

    def state(self) -> dict[str, np.ndarray]:
        return {str(i): np.asarray(x) for i, x in enumerate(jax.tree.leaves(self._memory))}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        held, structure = jax.tree.flatten(self._memory)
        saved = [state.get(str(i)) for i in range(len(held))]
        for i, (old, new) in enumerate(zip(held, saved, strict=True)):
            if new is None or new.shape != old.shape or new.dtype != old.dtype:
                raise CheckpointError(
                    f"Array {i} of a replay shard should be {old.dtype}{list(old.shape)}, but the checkpoint "
                    "holds another. Resume with the buffer_size, n_envs and replay_shards it was saved with."
                )
        self._memory = jax.tree.unflatten(structure, [jnp.asarray(x) for x in saved])


class ShardedTree(Shards):
    """`Sequence` or `Prioritised` for a cluster."""

    def __init__(self, kept: Any, example: Transition, shards: int) -> None:
        unset = {name: 0.0 for name in NUMBERS if hasattr(kept, name)}
        self._kept = replace(kept, capacity=kept.capacity // shards, **unset)
        self._owner = np.zeros(0, np.int64)
        super().__init__(example, shards)

    def draw(self, updates: int, random: np.random.Generator) -> Batch:
        """Batches for so many updates, [U, N, …]; U is 0 while the replay fills."""
        self._settle()
        standing = self._all("standing")
        mass, count = np.array([m for m, _ in standing], np.float64), sum(c for _, c in standing)
        if self.written < self._kept.minimum or count == 0:
            return self._nothing()
        shape = (updates, self._kept.batch_size)
        point = ((np.arange(shape[1]) + random.random(shape)) / shape[1] * mass.sum()).reshape(-1)
        ends = np.cumsum(mass)
        # A point on a border belongs to what is on its right, one at the very end to the last that has mass.
        self._owner = np.minimum(np.searchsorted(ends, point, side="right"), np.flatnonzero(mass)[-1])
        point -= (ends - mass)[self._owner]
        near = point.astype(np.float32)
        found: Batch = self._taken(self._owner, near, (point - near).astype(np.float32))
        weight = (found.weight * (count / mass.sum())).astype(np.float32)
        return jax.tree.map(lambda x: x.reshape((*shape, *x.shape[1:])), Batch(found.data, None, weight))

    def renew(self, errors: np.ndarray, kept: Any) -> None:
        """Hands the errors [U, N, …] of what was drawn last to the shards that it came from.

        `kept` is the replay with the numbers of this moment.
        """
        numbers = {name: float(getattr(kept, name)) for name in NUMBERS if hasattr(kept, name)}
        errors = errors.reshape(-1, *errors.shape[2:])
        for i in self._numbers:
            if len(own := errors[self._owner == i]):
                self._shards[i].renew.remote(own, numbers)

    def _nothing(self) -> Batch:
        """No batch, in the shapes of one."""
        size = self._kept.batch_size
        index = jax.ShapeDtypeStruct((size,), jnp.int32)
        data = jax.eval_shape(lambda leaf: self._kept.take(self._kept.init(self._part).data, leaf), index)
        return jax.tree.map(
            lambda x: np.zeros((0, *x.shape), x.dtype),
            Batch(data, None, jax.ShapeDtypeStruct((size,), jnp.float32)),
        )

    def _made(self) -> Any:
        threads = dict.fromkeys(THREAD_VARIABLES, "1") | {"JAX_PLATFORMS": "cpu"}
        remote = library().remote(TreeShard)
        placed = remote.options(num_cpus=0, scheduling_strategy="SPREAD", runtime_env={"env_vars": threads})
        return placed.remote(self._kept, self._part)


def _filled(x: np.ndarray, size: int) -> np.ndarray:
    """The array with zeros behind it up to a length."""
    return np.concatenate([x, np.zeros((size - len(x), *x.shape[1:]), x.dtype)])
