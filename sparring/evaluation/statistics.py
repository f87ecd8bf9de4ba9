"""Statistics over seeds, after Agarwal et al. 2021: what few runs say, and how sure it is.

Scores are a matrix of seeds × tasks; every function takes any axes before these two. On the same draws all
estimates equal rliable's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

SAMPLES = 2000
"""Resamplings behind an interval."""
SHUFFLES = 10_000
"""Relabellings behind a p-value."""
COVERAGE = (2.5, 97.5)
AT_ONCE = 4_000_000
"""Numbers that a bootstrap holds at a time."""


class Interval(NamedTuple):
    """An estimate and its 95 % interval."""

    value: float
    low: float
    high: float


class Band(NamedTuple):
    """Estimates and their 95 % intervals, point by point."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @property
    def only(self) -> Interval:
        """The interval of a single number."""
        return Interval(float(self.value), float(self.low), float(self.high))


def iqm(scores: np.ndarray, axis: int = -1) -> np.ndarray:
    """Mean of the middle half: of n scores the n // 4 lowest and highest are left out."""
    ordered = np.moveaxis(np.sort(scores, axis=axis), axis, -1)
    n = ordered.shape[-1]
    trim = n // 4  # scipy.stats.trim_mean's convention, which rliable uses
    return np.asarray(ordered[..., trim : n - trim].mean(-1))


def pooled_iqm(scores: np.ndarray) -> np.ndarray:
    """Interquartile mean over all seeds and tasks together."""
    return iqm(scores.reshape(*scores.shape[:-2], -1))


def optimality_gap(scores: np.ndarray, target: float) -> np.ndarray:
    """How far the scores are below a target on average; scores above it count as the target."""
    return np.asarray(target - np.minimum(scores, target).mean((-2, -1)))


def profile(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Share of scores above each threshold."""
    return np.asarray((scores[..., None] > thresholds).mean((-3, -2)))


def probability_of_improvement(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Chance that a seed of x beats a seed of y on the same task, a tie counting half; mean over tasks."""
    ours, theirs = x[..., :, None, :], y[..., None, :, :]
    return np.asarray(((ours > theirs) + 0.5 * (ours == theirs)).mean((-3, -2)).mean(-1))


def bootstrap(
    statistic: Callable[..., np.ndarray],
    *groups: np.ndarray,
    samples: int = SAMPLES,
    seed: int = 0,
    draws: Sequence[np.ndarray] | None = None,
) -> Band:
    """Percentile interval of a statistic of several seeds × tasks matrices.

    Seeds are drawn again for each task by itself (stratified) and for each group by itself. `draws` are the
    indices to use, one array of resamplings × seeds × tasks per group.
    """
    groups = tuple(np.asarray(group, np.float64) for group in groups)
    if draws is None:
        random = np.random.default_rng(seed)
        draws = [random.integers(0, len(group), (samples, *group.shape)) for group in groups]
    step = max(AT_ONCE // math.prod(group.size for group in groups), 1)
    found = [
        statistic(
            *(
                np.take_along_axis(group[None], drawn[i : i + step], 1)
                for group, drawn in zip(groups, draws, strict=True)
            )
        )
        for i in range(0, len(draws[0]), step)
    ]
    low, high = np.percentile(np.concatenate(found), COVERAGE, axis=0)
    return Band(statistic(*groups), low, high)


def interval(scores: np.ndarray, samples: int = 10_000, seed: int = 0) -> Interval:
    """IQM of one score per seed, with a percentile bootstrap over the seeds."""
    scores = np.asarray(scores, np.float64)
    draws = np.random.default_rng(seed).integers(0, len(scores), (samples, len(scores)))
    low, high = np.percentile(iqm(scores[draws]), COVERAGE)
    return Interval(float(iqm(scores)), float(low), float(high))


def curve_band(curves: np.ndarray, samples: int = SAMPLES, seed: int = 0) -> Band:
    """IQM over the seeds of curves (seeds × points), with intervals; no interval where a seed has no number.

    Seeds are drawn by rank: sorted values indexed by sorted draws are sorted, so that the IQM of a draw is a
    weighted sum and all points share one table of weights.
    """
    n, points = curves.shape
    ranks = np.sort(np.random.default_rng(seed).integers(0, n, (samples, n)), axis=-1)
    middle = ranks[:, n // 4 : n - n // 4]
    weights = np.stack([(middle == rank).mean(-1) for rank in range(n)], axis=-1)
    ordered = np.sort(curves, axis=0)
    finite = np.isfinite(ordered).all(axis=0)
    found = np.full((2, points), np.nan)
    found[:, finite] = np.percentile(weights @ ordered[:, finite], COVERAGE, axis=0)
    return Band(iqm(curves, axis=0), *found)


def permutation_test(pairs: Sequence[tuple[np.ndarray, np.ndarray]], seed: int = 0) -> float:
    """Two-sided p-value of the probability of improvement: how often seeds whose labels were shuffled, within
    each task, lie as far apart. `pairs` holds the scores of x and y for every task."""
    random = np.random.default_rng(seed)
    observed, shuffled = 0.0, np.zeros(SHUFFLES)
    for x, y in pairs:
        ranks = _ranks(np.concatenate([x, y]))
        table = random.permuted(np.tile(ranks, (SHUFFLES, 1)), axis=1)
        middle = len(x) * (len(ranks) + 1) / 2
        observed += (ranks[: len(x)].sum() - middle) / (len(x) * len(y))
        shuffled += (table[:, : len(x)].sum(1) - middle) / (len(x) * len(y))
    beyond = np.count_nonzero(np.abs(shuffled) >= abs(observed) - 1e-12)
    return (1 + beyond) / (1 + SHUFFLES)


def seeds_needed(improvement: float, alpha: float = 0.05, power: float = 0.8) -> float:
    """Seeds of each group with which a rank test finds this probability of improvement (Noether 1987)."""
    if improvement == 0.5:
        return math.inf
    normal = NormalDist()
    quantiles = normal.inv_cdf(1 - alpha / 2) + normal.inv_cdf(power)
    return quantiles**2 / (6 * (improvement - 0.5) ** 2)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1; equal values share their mean rank."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[place])
