"""Learning curves over seeds: a line per unit and environment, with a band where there are several seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from sparring.evaluation import statistics as st
from sparring.evaluation.units import Seed, Unit, curves
from sparring.metrics.sqlite import Curve

POINTS = 400
"""Points of a drawn curve, at most."""
LEARNING = ("rollout/ep_rew_mean", "eval/mean_reward")
"""What a learning curve shows: the episodes of training, or the evaluations."""

Axis = Literal["steps", "time"]


class Line(NamedTuple):
    """The IQM of some seeds' curves against steps or seconds."""

    unit: Unit
    env: str
    metric: str
    n: int
    """seeds"""
    x: np.ndarray
    value: np.ndarray
    low: np.ndarray | None
    """None for one seed: there is no band"""
    high: np.ndarray | None
    cut: float | None
    """the longest curve's end, where the line had to stop before it because another seed ended"""


def lines(units: Sequence[Unit], metric: str, axis: Axis = "steps") -> list[Line]:
    """A line for every unit and environment that has the metric."""
    found = []
    for unit in units:
        by_env: dict[str, list[Seed]] = {}
        for run in unit.runs:
            for seed in curves(run, metric):
                by_env.setdefault(run.env, []).append(seed)
        found += [line(unit, env, metric, seeds, axis) for env, seeds in by_env.items()]
    return found


def line(unit: Unit, env: str, metric: str, seeds: Sequence[Seed], axis: Axis) -> Line:
    """The seeds' curves as one: where all of them have values, read between their points."""
    each = [_against(seed.curve, axis) for seed in seeds]
    x, table = aligned(each)
    end = max(float(at[-1]) for at, _ in each)
    cut = end if axis == "steps" and len(x) and x[-1] < 0.98 * end else None
    if len(seeds) == 1:
        return Line(unit, env, metric, 1, x, table[0], None, None, cut)
    band = st.curve_band(table)
    return Line(unit, env, metric, len(seeds), x, band.value, band.low, band.high, cut)


def aligned(found: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Curves on common points, at most POINTS: seeds × points, from the latest start to the earliest end."""
    start, end = max(at[0] for at, _ in found), min(at[-1] for at, _ in found)
    every = np.unique(np.concatenate([at for at, _ in found]))
    x = every[(every >= start) & (every <= end)]
    if len(x) > POINTS:
        x = x[np.round(np.linspace(0, len(x) - 1, POINTS)).astype(int)]
    return x, np.stack([np.interp(x, at, values) for at, values in found])


def _against(curve: Curve, axis: Axis) -> tuple[np.ndarray, np.ndarray]:
    """Values by step or by second; of values written at the same second the last counts."""
    at = np.asarray(curve.steps if axis == "steps" else curve.times, np.float64)
    last = np.append(np.diff(at) > 0, True)
    return at[last], curve.values[last]
