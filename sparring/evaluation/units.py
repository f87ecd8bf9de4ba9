"""Units: runs that are looked at together, and the curves of all their seeds."""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sparring.errors import ConfigError, StorageError, UnknownName, nearest
from sparring.metrics import sqlite
from sparring.metrics.sqlite import Curve
from sparring.runs.directory import ROOT
from sparring.runs.selection import Listed, select


class Unit(NamedTuple):
    """Runs that are looked at together; all their seeds count alike."""

    letter: str
    text: str
    """how the user named them"""
    runs: tuple[Listed, ...]


class Seed(NamedTuple):
    """One seed's curve of a metric, and the run it belongs to."""

    run: Listed
    seed: int
    curve: Curve


def find_units(texts: Sequence[str], root: Path | str = ROOT) -> list[Unit]:
    """What a user named, each with a letter."""
    letters = string.ascii_uppercase
    if len(texts) > len(letters):
        raise ConfigError(f"At most {len(letters)} groups of runs at a time, got {len(texts)}.")
    found = [tuple(select(text, root)) for text in texts]
    return [
        Unit(letter, runs[0].run.name if text == "last" else text, runs)
        for letter, text, runs in zip(letters, texts, found, strict=False)
    ]


def curves(run: Listed, metric: str) -> list[Seed]:
    """The finite part of every seed's curve; a seed that wrote nothing has none."""
    try:
        indices = sqlite.seeds(run.run.metrics)
        found = [(index, sqlite.read(run.run.metrics, metric, index)) for index in indices]
    except StorageError:  # no metrics yet
        return []
    return [
        Seed(run, run.seeds[index] if index < len(run.seeds) else index, _finite(curve))
        for index, curve in found
        if np.isfinite(curve.values).any()
    ]


def common_metric(units: Sequence[Unit], candidates: Sequence[str]) -> str:
    """The first metric that every seed has; else the first that every unit has; else the first."""
    missing = {
        metric: [[max(len(run.seeds) - len(curves(run, metric)), 0) for run in unit.runs] for unit in units]
        for metric in candidates
    }
    seeds = [sum(len(run.seeds) for run in unit.runs) for unit in units]
    for metric, lacks in missing.items():
        if not any(map(sum, lacks)):
            return metric
    for metric, lacks in missing.items():
        if all(sum(lack) < count for lack, count in zip(lacks, seeds, strict=True)):
            return metric
    return candidates[0]


def no_value(unit: Unit, metric: str, when: str = "") -> UnknownName:
    """The error for a unit without a single value of a metric; it names those that it has."""
    known = sorted({name for run in unit.runs for name in _names(run)})
    shown = f"{', '.join(known[:12])}{' …' if len(known) > 12 else ''}"
    has = f"{nearest(metric, known)} It has: {shown}." if known else " It has no metrics yet."
    return UnknownName(f"{unit.letter} ({unit.text}) has no value of {metric!r}{when}.{has}")


def _names(run: Listed) -> list[str]:
    try:
        return sqlite.names(run.run.metrics)
    except StorageError:
        return []


def _finite(curve: Curve) -> Curve:
    good = np.isfinite(curve.values)
    return Curve(curve.steps[good], curve.times[good], curve.values[good])
