"""The report of some runs: one HTML file that needs nothing else and asks nobody for anything."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Sequence
from datetime import datetime
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import numpy as np

from sparring import __version__
from sparring.errors import StorageError
from sparring.runs.directory import RunDirectory
from sparring.runs.durable import replace_file
from sparring.web import sections
from sparring.web.films import Film, films
from sparring.web.gather import Alert, Metric, Series, Story, gather

MOST_RUNS = 12
"""More lines than this cannot be told apart."""
ROOM = 16 * 2**20
"""Bytes of films that are put into the page."""


class Written(NamedTuple):
    """A finished report."""

    path: Path
    size: int
    story: Story
    films: tuple[Film, ...]


def write_report(
    runs: Sequence[RunDirectory], path: Path, room: int = ROOM, now: datetime | None = None
) -> Written:
    """Writes the report of some runs to a file; films beyond `room` bytes are linked."""
    story = gather(runs)
    shown = films([run.videos for run in runs], path, room)
    page = render(story, shown, now or datetime.now()).encode("utf-8", "replace")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, [page])
    except OSError as error:
        raise StorageError(
            f"The report could not be written to {str(path)!r}: {error.strerror or error}. Choose another "
            "place with -o."
        ) from error
    return Written(path, len(page), story, tuple(shown))


def render(story: Story, shown: Sequence[Film], now: datetime) -> str:
    """The page as text."""
    style, script = asset("report.css"), asset("chart.js") + asset("report.js")
    title = " · ".join(run.label for run in story.runs)
    return Template(asset("report.html")).substitute(
        policy=policy(style, script),
        title=sections.text(f"{title} · sparring report"),
        style=style,
        script=script,
        data=island(data(story)),
        runs=sections.runs(story),
        toolbar=sections.toolbar(story),
        headline=sections.headline(story),
        evaluation=sections.evaluation(story),
        alerts=sections.alerts(story),
        choices=sections.choices(story),
        groups=sections.groups(story),
        films=sections.videos(story, shown),
        settings=sections.settings(story),
        machine=sections.machine(story),
        footer=sections.footer(__version__, now, story),
    )


def asset(name: str) -> str:
    """A file of the page."""
    return (resources.files("sparring.web") / "assets" / name).read_text(encoding="utf-8")


def policy(style: str, script: str) -> str:
    """A Content-Security-Policy that lets the page use its own style, script and films, and nothing else."""
    return "; ".join(
        [
            "default-src 'none'",
            f"style-src {_source(style)}",
            f"script-src {_source(script)}",
            "media-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def _source(body: str) -> str:
    digest = hashlib.sha256(body.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def island(value: Any) -> str:
    """JSON for inside a script element: nothing in it can end the element or begin another."""
    written = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def data(story: Story) -> dict[str, Any]:
    """What the charts are drawn from."""
    return {
        "runs": [
            {
                "label": run.label,
                "steps": run.steps,
                "seconds": _short(run.seconds),
                "alerts": None if run.alerts is None else [_alert(alert) for alert in run.alerts],
            }
            for run in story.runs
        ],
        "metrics": [_metric(metric) for metric in story.metrics],
    }


def _alert(alert: Alert) -> dict[str, Any]:
    return {
        "rule": alert.rule,
        "level": alert.level,
        "steps": [alert.onset, alert.last],
        "times": [_short(alert.onset_time), _short(alert.last_time)],
    }


def _metric(metric: Metric) -> dict[str, Any]:
    return {
        "name": metric.name,
        "group": metric.group,
        "meaning": metric.meaning,
        "series": [_series(series) for series in metric.series],
    }


def _series(series: Series) -> dict[str, Any]:
    band = series.band
    found = {
        "run": series.run,
        "n": band.n,
        "steps": band.steps.tolist(),
        "times": _shorts(band.times),
        "middle": _shorts(band.middle),
    }
    if band.low is not None and band.high is not None:
        found |= {"low": _shorts(band.low), "high": _shorts(band.high)}
    if series.seeds:
        found["seeds"] = [
            {"steps": c.steps.tolist(), "times": _shorts(c.times), "middle": _shorts(c.values)}
            for c in series.seeds
        ]
    if series.fan:
        found["fan"] = [[_shorts(low), _shorts(high)] for low, high in series.fan]
    return found


def _shorts(values: np.ndarray) -> list[float | int | None]:
    return [_short(value) for value in values.tolist()]


def _short(value: float | None) -> float | int | None:
    """A number in five digits; None when it is not finite."""
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.5g}")
    return int(rounded) if rounded == int(rounded) and abs(rounded) < 1e15 else rounded
