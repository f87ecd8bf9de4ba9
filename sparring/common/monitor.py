"""Monitor: the log of an environment's episodes, in SB3's CSV. Imports no jax: workers wrap with it."""

from __future__ import annotations

import csv
import json
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from sparring.errors import ConfigError, MissingExtra, UnknownName

EXTENSION = "monitor.csv"


class Results:
    """A CSV file with a JSON comment on top and one line per episode, written as they end."""

    def __init__(
        self,
        path: str | Path,
        env_id: str | None,
        began: float | None = None,
        extra: Sequence[str] = (),
        override: bool = True,
    ) -> None:
        self.path = results_path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        again = not override and self.path.is_file()
        self._file = self.path.open("a" if again else "w", newline="\n", encoding="utf-8")
        self._table = csv.DictWriter(self._file, ["r", "l", "t", *extra], extrasaction="ignore")
        if not again:
            head = {"t_start": time.time() if began is None else began, "env_id": str(env_id)}
            self._file.write(f"#{json.dumps(head)}\n")
            self._table.writeheader()
        self._file.flush()
        self._closer = weakref.finalize(self, self._file.close)  # also when nobody calls close

    def write(self, record: Mapping[str, Any]) -> None:
        self._table.writerow(record)
        self._file.flush()

    def close(self) -> None:
        self._closer()


def results_path(path: str | Path) -> Path:
    """Where SB3 would put the file: `name.monitor.csv`, or `monitor.csv` inside a folder."""
    place = Path(path)
    if place.is_dir():
        return place / EXTENSION
    return place if place.name.endswith(EXTENSION) else place.with_name(f"{place.name}.{EXTENSION}")


class Monitor(gymnasium.Wrapper):
    """Counts an environment's episodes, reports each in `info["episode"]`, and logs it if a file is named."""

    EXT = EXTENSION

    def __init__(
        self,
        env: Any,
        filename: str | None = None,
        allow_early_resets: bool = True,
        reset_keywords: tuple[str, ...] = (),
        info_keywords: tuple[str, ...] = (),
        override_existing: bool = True,
    ) -> None:
        super().__init__(env)
        self.t_start = time.time()
        self.allow_early_resets = allow_early_resets
        self.reset_keywords = reset_keywords
        self.info_keywords = info_keywords
        self.rewards: list[float] = []
        self.needs_reset = True
        self.episode_returns: list[float] = []
        self.episode_lengths: list[int] = []
        self.episode_times: list[float] = []
        self.total_steps = 0
        self._given: dict[str, Any] = {}
        extra = (*reset_keywords, *info_keywords)
        env_id = None if env.spec is None else env.spec.id
        self.results_writer = (
            None if filename is None else Results(filename, env_id, self.t_start, extra, override_existing)
        )

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        if not self.allow_early_resets and not self.needs_reset:
            raise ConfigError(
                "The environment was reset before its episode ended; set allow_early_resets=True."
            )
        missing = [name for name in self.reset_keywords if name not in kwargs]
        if missing:
            raise ConfigError(
                f"Monitor expects the keyword {missing[0]!r} in reset(); it is a reset_keyword."
            )
        self._given = {name: kwargs[name] for name in self.reset_keywords}
        self.rewards = []
        self.needs_reset = False
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self.needs_reset:
            raise ConfigError("The environment was stepped after its episode ended; call reset() first.")
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.rewards.append(float(reward))
        self.total_steps += 1
        if terminated or truncated:
            self.needs_reset = True
            info = {**info, "episode": self._ended(info)}
        return obs, reward, terminated, truncated, info

    def _ended(self, info: Mapping[str, Any]) -> dict[str, Any]:
        record: dict[str, Any] = {
            "r": round(sum(self.rewards), 6),
            "l": len(self.rewards),
            "t": round(time.time() - self.t_start, 6),
        }
        self.episode_returns.append(sum(self.rewards))
        self.episode_lengths.append(record["l"])
        self.episode_times.append(time.time() - self.t_start)
        record |= {name: info[name] for name in self.info_keywords} | self._given
        if self.results_writer is not None:
            self.results_writer.write(record)
        return record

    def close(self) -> None:
        super().close()
        if self.results_writer is not None:
            self.results_writer.close()

    def get_total_steps(self) -> int:
        return self.total_steps

    def get_episode_rewards(self) -> list[float]:
        return self.episode_returns

    def get_episode_lengths(self) -> list[int]:
        return self.episode_lengths

    def get_episode_times(self) -> list[float]:
        return self.episode_times


def get_monitor_files(path: str) -> list[str]:
    """All monitor files in a folder."""
    return sorted(str(file) for file in Path(path).glob(f"*{EXTENSION}"))


def read_results(path: str) -> dict[str, np.ndarray]:
    """The episodes of all monitor files in a folder, by the time they ended: `r`, `l`, `t` and the rest."""
    files = get_monitor_files(path)
    if not files:
        raise UnknownName(f"There are no monitor files (*{EXTENSION}) in {path!r}.")
    rows: list[dict[str, Any]] = []
    starts: list[float] = []
    for file in files:
        with open(file, newline="", encoding="utf-8") as handle:
            began = float(json.loads(handle.readline()[1:])["t_start"])
            starts.append(began)
            rows += [{**row, "t": float(row["t"]) + began} for row in csv.DictReader(handle)]
    rows.sort(key=lambda row: row["t"])
    names = list(rows[0]) if rows else ["r", "l", "t"]
    columns = {name: np.array([_number(row[name]) for row in rows]) for name in names}
    columns["t"] = columns["t"] - min(starts)
    return columns


def load_results(path: str) -> Any:
    """`read_results` as the pandas table that SB3 returns."""
    try:
        import pandas  # type: ignore[import-untyped,unused-ignore]
    except ImportError as error:
        raise MissingExtra(
            "load_results returns a pandas table, and pandas is not installed: pip install pandas. "
            "read_results(path) in the same module returns numpy arrays without it."
        ) from error
    return pandas.DataFrame(read_results(path))


def _number(text: Any) -> Any:
    try:
        number = float(text)
    except (TypeError, ValueError):
        return text
    return int(number) if number.is_integer() and "." not in str(text) else number
