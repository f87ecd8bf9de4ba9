"""Curves of several seeds as one line with a band, in few points."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from sparring.evaluation.statistics import curve_band, iqm
from sparring.metrics.sqlite import Curve


class Band(NamedTuple):
    """The middle of some seeds by step, and its 95 % interval; `low` and `high` are None for one seed."""

    steps: np.ndarray
    times: np.ndarray
    middle: np.ndarray
    low: np.ndarray | None
    high: np.ndarray | None
    n: int


def summarise(curves: Sequence[Curve], limit: int) -> Band:
    """The interquartile mean of the seeds where all of them have a value, in at most `limit` points."""
    steps, times, values = align(curves)
    middle = iqm(values)
    kept = thin(middle, limit)
    low, high = curve_band(values[kept].T)[1:] if len(curves) > 1 else (None, None)
    return Band(steps[kept], times[kept], middle[kept], low, high, len(curves))


def align(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps, mean times and values [P, n] at the steps that lie within every seed's curve."""
    steps = np.unique(np.concatenate([curve.steps for curve in curves]))
    first, last = max(c.steps[0] for c in curves), min(c.steps[-1] for c in curves)
    steps = steps[(steps >= first) & (steps <= last)]
    values = np.stack([np.interp(steps, c.steps, c.values) for c in curves], -1)
    values[~np.isfinite(values).all(-1)] = np.nan
    times = np.stack([np.interp(steps, c.steps, spread_times(c)) for c in curves], -1)
    return steps, times.mean(-1), values


def spread_times(curve: Curve) -> np.ndarray:
    """Times that grow with the steps: all points of one device call were stamped when it ended."""
    ends = np.append(np.flatnonzero(np.diff(curve.times) > 0), len(curve.times) - 1)
    steps, times = np.append(0, curve.steps[ends]), np.append(0.0, curve.times[ends])
    return np.interp(curve.steps, steps, times)


def thin(values: np.ndarray, limit: int) -> np.ndarray:
    """Indices of at most `limit` points: both ends, and of every stretch its lowest, highest and first
    that is not a number."""
    if len(values) <= limit:
        return np.arange(len(values))
    kept = {0, len(values) - 1}
    edges = np.linspace(0, len(values), max((limit - 2) // 3, 1) + 1).astype(int)
    for start, stop in pairwise(edges):
        stretch = values[start:stop]
        finite = np.flatnonzero(np.isfinite(stretch))
        if len(finite):
            kept |= {start + finite[stretch[finite].argmin()], start + finite[stretch[finite].argmax()]}
        if len(finite) < len(stretch):
            kept.add(start + int(np.flatnonzero(~np.isfinite(stretch))[0]))
    return np.array(sorted(kept))
