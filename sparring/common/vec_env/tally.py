"""Returns and lengths of episodes as rows step, and the infos that report them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sparring.types import TimeStep


class Tally:
    """The running return and length of every row."""

    def __init__(self, rows: int) -> None:
        self._began = time.time()
        self._return = np.zeros(rows)
        self._length = np.zeros(rows, int)

    def start(self) -> None:
        """All rows begin a new episode."""
        self._return[:] = 0.0
        self._length[:] = 0

    def add(self, reward: np.ndarray, over: np.ndarray) -> dict[int, dict[str, Any]]:
        """Counts one step; SB3's `episode` record of every row that ended."""
        self._return += reward
        self._length += 1
        seconds = round(time.time() - self._began, 6)
        ended = {}
        for row in np.flatnonzero(over).tolist():
            ended[row] = {
                "r": round(float(self._return[row]), 6),
                "l": int(self._length[row]),
                "t": seconds,
            }
            self._return[row], self._length[row] = 0.0, 0
        return ended


def row_infos(raw: Any, timestep: TimeStep, tally: Tally) -> list[dict[str, Any]]:
    """SB3's infos of a step: what each environment said, and how its episode ended."""
    count = len(timestep.reward)
    infos = split(raw, count)
    lost = np.zeros(count, bool) if timestep.lost is None else timestep.lost
    over = timestep.terminated | timestep.truncated | lost
    ended = tally.add(timestep.reward, over)
    for row, info in enumerate(infos):
        info["TimeLimit.truncated"] = bool(timestep.truncated[row] and not timestep.terminated[row])
        if over[row]:
            info["terminal_observation"] = pick(timestep.next_obs, row)
        if lost[row]:
            info["lost"] = True
        elif row in ended:
            info.setdefault("episode", ended[row])
    return infos


def split(raw: Any, rows: int) -> list[dict[str, Any]]:
    """Infos as one dict per row: a list of them as it is, a vector environment's dict of arrays cut up."""
    if isinstance(raw, Sequence) and len(raw) == rows:
        return [dict(info) for info in raw]
    infos: list[dict[str, Any]] = [{} for _ in range(rows)]
    if isinstance(raw, Mapping):
        for name, values in raw.items():
            if str(name).startswith("_") or not isinstance(values, np.ndarray) or len(values) != rows:
                continue
            given = raw.get(f"_{name}", np.ones(rows, bool))
            for row in np.flatnonzero(given).tolist():
                infos[row][name] = values[row]
    return infos


def pick(obs: Any, row: int) -> Any:
    """One row of a batch of observations."""
    return {name: part[row] for name, part in obs.items()} if isinstance(obs, dict) else obs[row]
