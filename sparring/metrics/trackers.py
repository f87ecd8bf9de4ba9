"""Trackers by name, each in a process apart from training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from sparring.errors import ConfigError, nearest
from sparring.metrics.apart import Apart
from sparring.metrics.sink import Sink
from sparring.metrics.tracker_process import TrackerProcess

TRACKERS = ("tensorboard", "wandb")
PATIENCE = 15.0
"""Seconds that the end of a run waits for a tracker; one of a short run has yet to start."""


def make(name: str, folder: Path, title: str, run: Path | None = None) -> Sink:
    """A tracker that writes below a folder; a missing extra or a wrong setting is an error here."""
    if name == "wandb":
        from sparring.metrics.wandb import WandbSink

        return WandbSink(folder, title, run)
    if name == "tensorboard":
        from sparring.metrics.tensorboard import TensorBoardSink

        return TensorBoardSink(folder)
    raise ConfigError(f"There is no tracker {name!r}.{nearest(name, TRACKERS)} Known: {', '.join(TRACKERS)}.")


def check(names: Iterable[str]) -> None:
    """Raises what would keep a tracker from working, before there is a run."""
    for name in names:
        make(name, Path(), "")


def start(
    names: Iterable[str],
    run: Path,
    facts: Mapping[str, Any],
    say: Callable[[str], None],
    tensorboard: Path | None = None,
) -> list[Apart]:
    """The trackers of a run, which know its settings; files lie in its folder unless told otherwise."""
    folders = {"tensorboard": tensorboard or run / "tensorboard", "wandb": run}
    started = []
    for name in dict.fromkeys([*names, *(["tensorboard"] if tensorboard else [])]):
        sink = TrackerProcess(name, folders.get(name, run), run.name, run)
        remedy = f"Nothing is lost from metrics.sqlite: sparring export {run} --to {name} -o DIR"
        tracker = Apart(sink, name, say, patience=PATIENCE, remedy=remedy)
        tracker.describe(facts)
        started.append(tracker)
    return started
