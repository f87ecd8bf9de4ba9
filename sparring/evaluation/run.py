"""`Run("runs/…")`: a run in Python and in notebooks, while it trains and after, read from its folder."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sparring.errors import CheckpointError, StorageError, UnknownName, nearest
from sparring.evaluation import bands, charts
from sparring.evaluation.charts import Chart
from sparring.evaluation.units import Unit, common_metric, no_value
from sparring.metrics import sqlite
from sparring.metrics.sqlite import Curve
from sparring.runs import directory
from sparring.runs.directory import ROOT, RunDirectory, Status
from sparring.runs.selection import listed

SHOWN = 5
"""Rows of a table that are shown at its beginning and at its end."""
LARGEST_FILM = 50 * 2**20
"""Bytes of a film that a page may hold."""


class Table(Mapping[str, np.ndarray]):
    """Columns of equal length by name; `pandas.DataFrame(dict(table))` takes it as it is."""

    def __init__(self, columns: Mapping[str, np.ndarray]) -> None:
        self._columns = dict(columns)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._columns:
            raise KeyError(f"There is no column {name!r}.{nearest(name, self._columns)}")
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    @property
    def rows(self) -> int:
        return len(next(iter(self._columns.values()))) if self._columns else 0

    def __repr__(self) -> str:
        cells = self._cells()
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in cells]
        return "\n".join([*lines, self._size()])

    def _repr_html_(self) -> str:
        head, *body = self._cells()
        lines = [_html_row(head, "th"), *(_html_row(row, "td") for row in body)]
        return f"<table>{''.join(lines)}</table><p>{self._size()}</p>"

    def _cells(self) -> list[list[str]]:
        """The head and the first and last rows, as text."""
        rows = range(self.rows)
        shown: Sequence[int | None] = rows
        if len(rows) > 2 * SHOWN + 1:
            shown = [*rows[:SHOWN], None, *rows[-SHOWN:]]
        return [
            list(self._columns),
            *(["…" if i is None else _cell(column[i]) for column in self._columns.values()] for i in shown),
        ]

    def _size(self) -> str:
        return f"{self.rows} rows × {len(self)} columns"


class Film:
    """A video file; a notebook plays it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"Film({str(self.path)!r})"

    def _repr_html_(self) -> str:
        size = self.path.stat().st_size
        if size > LARGEST_FILM:
            return f"<p>{html.escape(str(self.path))} ({size / 2**20:.0f} MiB) is too large for a page.</p>"
        data = base64.b64encode(self.path.read_bytes()).decode()
        return f'<video controls loop muted width="480" src="data:video/mp4;base64,{data}"></video>'


class Run:
    """A run's folder: its status, settings, metrics, curves and films, read anew at every call."""

    def __init__(self, name: Path | str = "last", root: Path | str = ROOT) -> None:
        self._directory = directory.find(name, root)

    @property
    def directory(self) -> RunDirectory:
        return self._directory

    @property
    def path(self) -> Path:
        return self._directory.path

    @property
    def name(self) -> str:
        return self._directory.name

    @property
    def status(self) -> Status:
        """What the run is and how far it is."""
        return self._directory.read_status()

    @property
    def config(self) -> dict[str, Any]:
        """The settings, as in `config.toml`."""
        return self._directory.read_config()

    @property
    def seeds(self) -> tuple[int, ...]:
        return listed(self._directory).seeds

    @property
    def names(self) -> list[str]:
        """The metrics that the run has; empty before its first ones."""
        try:
            return sqlite.names(self._directory.metrics)
        except StorageError:
            if self._directory.metrics.exists():
                raise
            return []

    def curve(self, name: str, seed: int | None = None) -> Curve:
        """One metric of one seed (default: the first) as arrays: steps, times, values."""
        self._check(name)
        return sqlite.read(self._directory.metrics, name, self._index(seed))

    def metrics(self, *names: str) -> Table:
        """A row for every seed and step at which something was written; NaN where a metric was not."""
        chosen = list(names) or self.names
        for name in chosen:
            self._check(name)
        index = sqlite.seeds(self._directory.metrics) if chosen else []
        found = {(i, name): sqlite.read(self._directory.metrics, name, i) for i in index for name in chosen}
        places = sorted({(i, step) for (i, _), curve in found.items() for step in curve.steps.tolist()})
        row = {place: number for number, place in enumerate(places)}
        columns = {name: np.full(len(places), np.nan) for name in ("time", *chosen)}
        for (i, name), curve in found.items():
            rows = [row[i, step] for step in curve.steps.tolist()]
            columns[name][rows] = curve.values
            columns["time"][rows] = curve.times
        seeds = self.seeds
        real = [seeds[i] if i < len(seeds) else i for i, _ in places]
        return Table(
            {
                "seed": np.array(real, np.int64),
                "step": np.array([step for _, step in places], np.int64),
                **columns,
            }
        )

    def plot(self, *names: str, x: bands.Axis = "steps", sqrt: bool = False) -> Chart:
        """Learning curves with a band over the seeds; by default the episodes' mean reward."""
        unit = Unit("A", self.name, (listed(self._directory),))
        for name in names:
            self._check(name)
        chosen = names or (common_metric([unit], bands.LEARNING),)
        lines = [line for name in chosen for line in bands.lines([unit], name, x)]
        if not lines:
            raise no_value(unit, chosen[0])
        return charts.learning_curves(lines, x, sqrt)

    def video(self, name: str | None = None) -> Film:
        """The newest film of the run, or the one of this name."""
        films = sorted(self._directory.videos.glob("**/*.mp4"), key=lambda file: file.stat().st_mtime)
        if name is not None:
            chosen = [film for film in films if name in (film.name, film.stem)]
            if not chosen:
                raise UnknownName(
                    f"{self.name} has no film {name!r}.{nearest(name, [film.name for film in films])}"
                )
            return Film(chosen[-1])
        if not films:
            raise CheckpointError(f"{self.name} has no film yet. Make one: sparring record {self.path}")
        return Film(films[-1])

    def __repr__(self) -> str:
        status, n = self.status, len(self.seeds)
        seeds = "1 seed" if n == 1 else f"{n} seeds"
        what = (
            f"{status.algo} on {status.env}, {seeds}, {status.steps:,}/{status.total:,} steps, {status.state}"
        )
        return f"Run({str(self.path)!r}: {what})"

    def _repr_html_(self) -> str:
        shown = {"run": self.path, **self.status._asdict(), "seeds": ", ".join(map(str, self.seeds))}
        hidden = ("seed", "started", "updated", "pid", "message" if not shown["message"] else "")
        rows = [_html_row([key, str(value)], "td") for key, value in shown.items() if key not in hidden]
        return f"<table>{''.join(rows)}</table>"

    def _check(self, name: str) -> None:
        known = self.names
        if name not in known:
            raise UnknownName(f"{self.name} has no metric {name!r}.{nearest(name, known)} See: Run.names")

    def _index(self, seed: int | None) -> int:
        """Where a seed's numbers are in the file: it counts seeds from zero."""
        if seed is None:
            return 0
        if seed not in self.seeds:
            raise UnknownName(f"{self.name} has no seed {seed}; it has {', '.join(map(str, self.seeds))}.")
        return self.seeds.index(seed)


def _cell(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, np.floating) else str(value)


def _html_row(cells: Sequence[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"
