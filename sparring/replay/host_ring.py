"""A ring of past transitions in the host's memory, for observations that a device has no room for."""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from sparring.errors import CheckpointError
from sparring.replay.ring import Ring
from sparring.types import Batch, Obs, Transition

TERMINATED, TRUNCATED, FIRST = 1, 2, 4
PROBES = 32
"""References whose observations are compared before a replay of them is gone on with."""


class Layout(NamedTuple):
    """Shape and dtype of every array of a host ring, and how a transition is taken apart."""

    arrays: dict[str, tuple[tuple[int, ...], np.dtype]]
    size: int
    """decisions held per row"""
    obs: Any
    """structure of an observation"""
    rest: Any
    """structure of what is kept of a transition besides observations and flags"""


def layout(
    example: Transition, capacity: int, n_step: int = 1, frame_stack: int = 1, spare: float = 0.1
) -> Layout:
    """What a ring for transitions like the example's [T, B, …] holds."""
    rollout, rows = example.reward.shape
    size = Ring(capacity, 1, n_step).steps(rollout, rows)
    frames = size + math.ceil(spare * size) + frame_stack + 1
    places = size + frame_stack - 1
    obs, obs_tree = jax.tree.flatten(example.obs)
    rest, rest_tree = jax.tree.flatten(_rest(example))
    arrays = {f"frames-{i}": ((frames, *x.shape[1:]), np.dtype(x.dtype)) for i, x in enumerate(obs)}
    arrays |= {f"kept-{i}": ((places, *x.shape[1:]), np.dtype(x.dtype)) for i, x in enumerate(rest)}
    arrays |= {
        "frame": ((places, rows), np.dtype(np.int64)),
        "flags": ((places, rows), np.dtype(np.uint8)),
        "written": ((rows,), np.dtype(np.int64)),
        "oldest": ((rows,), np.dtype(np.int64)),
        "pushed": ((rows,), np.dtype(np.int64)),
        "open": ((rows,), np.dtype(bool)),
    }
    return Layout(arrays, size, obs_tree, rest_tree)


class HostRing:
    """Keeps the last `capacity` decisions of all rows; what `Ring` returns, with each observation kept once.

    A row's observations lie one behind the other, an episode of E steps as E + 1 of them, so that the next
    observation of a step is the one behind its own. They take `spare` more places than the decisions, enough
    for episodes of 1 / spare steps on average; where episodes are shorter, the oldest decisions go early.

    With `frame_stack` k the observations that come in are single frames and those that go out are stacks
    [N, k, …], newest last, an episode's first frame repeated before it: what `nets.sight.stack` shows. In
    `folder`, where one is given, the observations are memory-mapped files without a name. With `resolve`
    observations are references (an integer each) into data that the caller holds: `resolve` makes
    observations of an array of them.
    """

    def __init__(
        self,
        example: Transition,
        capacity: int,
        n_step: int = 1,
        frame_stack: int = 1,
        spare: float = 0.1,
        folder: str | Path | None = None,
        resolve: Callable[[Any], Obs] | None = None,
    ) -> None:
        self.n_step, self.frame_stack, self.resolve = n_step, frame_stack, resolve
        self.crowded = False
        """whether decisions went early, because episodes are too short for the places of observations"""
        self._layout = layout(example, capacity, n_step, frame_stack, spare)
        self._arrays: dict[str, np.ndarray] = {}
        for name, (shape, dtype) in self._layout.arrays.items():
            mapped = folder is not None and name.startswith("frames-")
            self._arrays[name] = (
                _mapped(Path(folder or ""), shape, dtype) if mapped else np.zeros(shape, dtype)
            )
        a = self._arrays
        self._frames = [a[f"frames-{i}"] for i in range(self._layout.obs.num_leaves)]
        self._kept = [a[f"kept-{i}"] for i in range(self._layout.rest.num_leaves)]
        self._frame, self._flags = a["frame"], a["flags"]
        self._written, self._oldest, self._pushed, self._open = (
            a[name] for name in ("written", "oldest", "pushed", "open")
        )

    @staticmethod
    def predicted_bytes(
        example: Transition, capacity: int, n_step: int = 1, frame_stack: int = 1, spare: float = 0.1
    ) -> int:
        """Bytes that such a ring takes, nothing being allocated."""
        shapes = layout(example, capacity, n_step, frame_stack, spare).arrays.values()
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in shapes)

    @staticmethod
    def mapped_bytes(
        example: Transition, capacity: int, n_step: int = 1, frame_stack: int = 1, spare: float = 0.1
    ) -> int:
        """Those of them that lie in files where there is a folder."""
        arrays = layout(example, capacity, n_step, frame_stack, spare).arrays.items()
        return sum(
            math.prod(shape) * dtype.itemsize for name, (shape, dtype) in arrays if name.startswith("frames-")
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, in memory or mapped."""
        return sum(x.nbytes for x in self._arrays.values())

    @property
    def filled(self) -> float:
        """Share of the places that hold a decision."""
        return float((self._written - self._oldest).sum() / (self._layout.size * len(self._written)))

    @property
    def written(self) -> int:
        """Decisions of all rows since the start."""
        return int(self._written.sum())

    def add(self, rollout: Transition) -> None:
        """Writes the decisions of a rollout [T, B, …]; a masked end says that the episode was lost there."""
        obs, next_obs = (jax.tree.leaves(x) for x in (rollout.obs, rollout.next_obs))
        rest = jax.tree.leaves(_rest(rollout))
        for t in range(rollout.reward.shape[0]):
            mask = np.ones(len(self._written), bool) if rollout.mask is None else np.asarray(rollout.mask[t])
            self._lose(np.flatnonzero(~mask & rollout.truncated[t]))
            rows = np.flatnonzero(mask)
            if rollout.first is not None:
                self._lose(np.flatnonzero(mask & rollout.first[t] & self._open))
            begins = ~self._open[rows]
            self._push([x[t, rows] for x in obs], rows, begins)
            place = self._written[rows] % len(self._frame)
            self._frame[place, rows] = self._pushed[rows] - 1
            over = rollout.terminated[t, rows], rollout.truncated[t, rows]
            self._flags[place, rows] = over[0] * TERMINATED + over[1] * TRUNCATED + begins * FIRST
            for old, new in zip(self._kept, rest, strict=True):
                old[place, rows] = new[t, rows]
            self._push([x[t, rows] for x in next_obs], rows, np.ones(len(rows), bool))
            self._written[rows] += 1
            self._open[rows] = ~(over[0] | over[1])
            self._forget()

    def _lose(self, rows: np.ndarray) -> None:
        """Ends the episodes of these rows at their last decision."""
        rows = rows[self._written[rows] > 0]
        place = (self._written[rows] - 1) % len(self._flags)
        ended = self._flags[place, rows] & TERMINATED != 0
        self._flags[place, rows] |= np.where(ended, 0, TRUNCATED).astype(np.uint8)
        self._open[rows] = False

    def _push(self, obs: list[np.ndarray], rows: np.ndarray, always: np.ndarray) -> None:
        """Appends an observation to these rows, unless it is there already as the next of the step before."""
        new = always.copy()
        size = len(self._frames[0])
        newest = (self._pushed[rows] - 1) % size
        for frames, x in zip(self._frames, obs, strict=True):
            same = np.flatnonzero(~new)
            differs = frames[newest[same], rows[same]] != x[same]
            new[same] = differs.any(axis=tuple(range(1, differs.ndim)))
        rows = rows[new]
        for frames, x in zip(self._frames, obs, strict=True):
            frames[self._pushed[rows] % size, rows] = x[new]
        self._pushed[rows] += 1

    def _forget(self) -> None:
        """Moves past the decisions that are overwritten, or miss an observation that is."""
        np.maximum(self._oldest, self._written - self._layout.size, out=self._oldest)
        gone = self._pushed - len(self._frames[0])
        if (gone <= 0).all():
            return
        rows = np.arange(len(gone))
        while True:
            earliest = np.maximum(self._oldest - (self.frame_stack - 1), 0)
            misses = self._frame[earliest % len(self._frame), rows] < gone
            misses &= self._oldest < self._written
            if not misses.any():
                return
            self._oldest += misses
            self.crowded = True

    def windows(self) -> np.ndarray:
        """Decisions of each row that start a window of full length, [B]."""
        return np.maximum(self._written - self._oldest - (self.n_step - 1), 0)

    def take(self, row: np.ndarray, age: np.ndarray) -> Batch:
        """The windows that start at these decisions of these rows; the oldest kept is number 0.

        Leaves are [N, n, …], but for the observations: `obs` is that of the first step alone and `next_obs`
        that of the last step of the first episode in the window, [N, …] or [N, k, …].
        """
        number = self._oldest[row] + age
        place = (number[:, None] + np.arange(self.n_step)) % len(self._frame)
        flags = self._flags[place, row[:, None]]
        terminated, truncated = flags & TERMINATED != 0, flags & TRUNCATED != 0
        over = terminated | truncated
        last = np.where(over.any(axis=1), over.argmax(axis=1), self.n_step - 1)
        rest = [x[place, row[:, None]] for x in self._kept]
        data: Transition = jax.tree.unflatten(self._layout.rest, rest)
        final = self._stack(number + last, row)
        follows = np.concatenate([final[:, 1:], final[:, -1:] + 1], axis=1)
        return Batch(
            data._replace(
                obs=self._observations(self._stack(number, row), row),
                next_obs=self._observations(follows, row),
                terminated=terminated,
                truncated=truncated,
            ),
            np.stack([number, row], axis=1),
        )

    def _stack(self, number: np.ndarray, row: np.ndarray) -> np.ndarray:
        """The numbers of the frames that an agent saw at these decisions, oldest first: [N, k]."""
        frames = []
        for _ in range(self.frame_stack):
            place = number % len(self._frame)
            frames.append(self._frame[place, row])
            number = np.where(self._flags[place, row] & FIRST, number, number - 1)
        return np.stack(frames[::-1], axis=1)

    def _observations(self, frame: np.ndarray, row: np.ndarray) -> Obs:
        """The frames of these numbers, [N, k, …], without the axis of frames where k is 1."""
        place = frame % len(self._frames[0])
        if self.frame_stack == 1:
            place = place[:, 0]
        else:
            row = row[:, None]
        obs: Obs = jax.tree.unflatten(self._layout.obs, [x[place, row] for x in self._frames])
        return obs if self.resolve is None else self.resolve(obs)

    def state(self) -> dict[str, np.ndarray]:
        """Everything that the ring holds, for a checkpoint: its own arrays, not copies; of references also
        what some of them stand for."""
        return self._arrays | self._probes()

    def _probes(self) -> dict[str, np.ndarray]:
        """Some of the references held, evenly over rows and places, and digests of their observations."""
        if self.resolve is None:
            return {}
        held = np.minimum(self._pushed, len(self._frames[0]))
        ends = np.cumsum(held)
        if not ends[-1]:
            return {"probe": np.zeros(PROBES, np.int64), "digest": np.zeros((PROBES, 16), np.uint8)}
        number = np.linspace(0, ends[-1] - 1, PROBES).astype(np.int64)
        row = np.searchsorted(ends, number, side="right")
        probe = self._frames[0][number - (ends - held)[row], row]
        return {"probe": probe, "digest": _digests(self.resolve(probe))}

    def resolves(self, state: dict[str, np.ndarray]) -> bool:
        """Whether the references of a state stand for the observations that they stood for in it."""
        if self.resolve is None or "probe" not in state or not state["written"].any():
            return True
        try:
            made = _digests(self.resolve(state["probe"]))
        except LookupError:  # data that are gone
            return False
        return bool((made == state["digest"]).all())

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Continues from what `state` returned, in a ring of the same layout and for the same data."""
        for name, held in self._arrays.items():
            saved = state.get(name)
            if saved is None or saved.shape != held.shape or saved.dtype != held.dtype:
                found = "nothing" if saved is None else f"{saved.dtype}{list(saved.shape)}"
                raise CheckpointError(
                    f"The replay's {name} should be {held.dtype}{list(held.shape)}, but the checkpoint holds "
                    f"{found}. Resume with the buffer_size, n_envs and frame_stack it was saved with."
                )
        if not self.resolves(state):
            raise CheckpointError(
                "The replay holds references, and they stand for other observations than when it was saved: "
                "the environment's data have changed. Resume with the data it was saved with, or start a "
                "new run."
            )
        for name, held in self._arrays.items():
            held[...] = state[name]


def _digests(obs: Obs) -> np.ndarray:
    """A digest of every observation [N, …], [N, 16]."""
    leaves = [np.asarray(x) for x in jax.tree.leaves(obs)]

    def digest(*parts: np.ndarray) -> bytes:
        made = hashlib.blake2b(digest_size=16)
        for part in parts:
            made.update(f"{part.dtype}{part.shape}".encode() + part.tobytes())
        return made.digest()

    return np.array([list(digest(*parts)) for parts in zip(*leaves, strict=True)], np.uint8)


def _mapped(folder: Path, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Zeros on the disk of a folder; the file has no name, so it goes with the process, killed or not."""
    with tempfile.TemporaryFile(dir=folder) as file:
        return np.memmap(file, dtype, "w+", shape=shape)


def _rest(rollout: Transition) -> Transition:
    """What is kept of a transition besides its observations and flags; stacks are rebuilt when sampling."""
    extras = rollout.extras
    if getattr(extras, "frames", None) is not None:
        extras = extras._replace(frames=None)
    return rollout._replace(
        obs=None,
        next_obs=None,
        terminated=None,
        truncated=None,
        mask=None,
        first=None,
        core=None,
        extras=extras,
    )
