"""Numbers in the infos of host environments, summed up by episode as `env/…` metrics.

Infos are read in the step that returned them: an environment may hand out the same dict again and again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sparring.envs.api import MOST_NUMBERS
from sparring.types import TimeStep

NUMBERS = frozenset({float, int, bool, np.bool_, np.float64, np.float32, np.int64, np.int32})
"""Types of entries that are read; arrays, strings and nested infos are not."""
NOT_TASKS = frozenset({"TimeLimit.truncated"})
"""Numbers that wrappers add about themselves."""
FINAL = "final_info"
"""Where a vector environment that resets within the step puts the infos of what ended."""


class _Number:
    """One entry of the infos: sum, count and last value of the running episode of every row."""

    __slots__ = ("count", "ended", "last", "mean", "total")

    def __init__(self, rows: int) -> None:
        self.total = [0.0] * rows
        self.count = [0] * rows
        self.last = [0.0] * rows
        self.ended: list[tuple[float, float, float]] = []
        """sum, mean and last value of the episodes that ended since `metrics` was called"""
        self.mean: tuple[float, ...] = ()

    def close(self, row: int, counts: bool) -> None:
        """Ends the episode of a row; one that was lost does not count."""
        count = self.count[row]
        if count and counts:
            self.ended.append((self.total[row], self.total[row] / count, self.last[row]))
        self.total[row], self.count[row] = 0.0, 0


class InfoTally:
    """Reads infos step by step; of an environment without numbers it looks at nothing but emptiness."""

    def __init__(self, rows: int, most: int = MOST_NUMBERS) -> None:
        self._rows, self._most = rows, most
        self._numbers: dict[str, _Number] = {}
        self._left_out: set[str] = set()
        self._news: list[str] = []

    def add(self, infos: Any, timestep: TimeStep) -> None:
        """One step of all rows: a dict per row, or a vector environment's dict of arrays."""
        if isinstance(infos, Mapping):
            if infos:
                self._add_arrays(infos, timestep)
        elif any(infos):
            self._add_dicts(infos, timestep.lost)
        if self._numbers:
            self._close_episodes(timestep)

    def ended(self) -> dict[str, np.ndarray]:
        """Sum, mean and last value of every episode that ended since the last call, [n, 3] by name."""
        found = {name: np.array(number.ended) for name, number in self._numbers.items() if number.ended}
        for name in found:
            self._numbers[name].ended = []
        return found

    def merge(self, ended: Mapping[str, np.ndarray]) -> None:
        """Counts episodes that another tally saw end."""
        for name, episodes in ended.items():
            number = self._numbers.get(name) or self._admit(name)
            if number is not None:
                number.ended += [(total, mean, last) for total, mean, last in episodes.tolist()]

    def metrics(self) -> dict[str, np.float64]:
        """Means over the episodes that ended since the last call, or what the call before said."""
        found: dict[str, np.float64] = {}
        for name, number in self._numbers.items():
            if number.ended:
                number.mean = tuple(np.mean(number.ended, axis=0).tolist())
                number.ended = []
            for kind, value in zip(("sum", "mean", "last"), number.mean, strict=False):
                found[f"env/{name}_{kind}"] = np.float64(value)
        return found

    def forget(self, lost: np.ndarray) -> None:
        """Drops the running episodes of some rows."""
        for row in np.flatnonzero(lost).tolist():
            for number in self._numbers.values():
                number.close(row, counts=False)

    def events(self) -> list[str]:
        news, self._news = self._news, []
        return news

    def _add_dicts(self, infos: Sequence[Mapping[str, Any]], lost: np.ndarray | None) -> None:
        for row, info in enumerate(infos):
            if info and (lost is None or not lost[row]):
                for name, value in info.items():
                    if type(value) in NUMBERS:
                        self._put(name, row, float(value))

    def _add_arrays(self, infos: Mapping[str, Any], timestep: TimeStep) -> None:
        ended = timestep.terminated | timestep.truncated
        rows = ~ended if FINAL in infos else np.ones(self._rows, bool)
        final = infos.get(FINAL)
        parts = [(infos, rows)] + ([(final, ended)] if isinstance(final, Mapping) else [])
        for part, where in parts:
            for name, value in part.items():
                if not (isinstance(value, np.ndarray) and value.shape == (self._rows,)):
                    continue
                if name.startswith("_") or value.dtype.kind not in "fiub":
                    continue
                told = where & np.asarray(part.get(f"_{name}", True), bool)
                told = told if timestep.lost is None else told & ~timestep.lost
                for row in np.flatnonzero(told).tolist():
                    self._put(name, row, float(value[row]))

    def _put(self, name: str, row: int, value: float) -> None:
        number = self._numbers.get(name)
        if number is None:
            number = self._admit(name)
            if number is None:
                return
        if math.isfinite(value):
            number.total[row] += value
            number.count[row] += 1
            number.last[row] = value

    def _admit(self, name: str) -> _Number | None:
        if name in NOT_TASKS or name in self._left_out:
            return None
        if len(self._numbers) >= self._most:
            if not self._left_out:
                self._news.append(
                    f"The infos hold more than {self._most} numbers: only the first become metrics; "
                    f"{name!r} is left out."
                )
            if len(self._left_out) < 1000:  # names may go on for ever
                self._left_out.add(name)
            return None
        self._numbers[name] = _Number(self._rows)
        return self._numbers[name]

    def _close_episodes(self, timestep: TimeStep) -> None:
        over = timestep.terminated | timestep.truncated
        lost = timestep.lost
        gone = over if lost is None else over | lost
        if gone.any():
            for row in np.flatnonzero(gone).tolist():
                counts = lost is None or not lost[row]
                for number in self._numbers.values():
                    number.close(row, counts)
