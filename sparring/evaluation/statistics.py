"""Statistics over seeds: interquartile mean and its bootstrap interval (Agarwal et al. 2021)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Interval(NamedTuple):
    """An estimate and its 95 % interval."""

    value: float
    low: float
    high: float


def iqm(scores: np.ndarray, axis: int = -1) -> np.ndarray:
    """Mean of the middle half: a quarter of the scores is trimmed at each end, in fractions where needed."""
    ordered = np.moveaxis(np.sort(scores, axis=axis), axis, -1)
    n = ordered.shape[-1]
    trim = n // 4  # scipy.stats.trim_mean's convention, which rliable uses
    return np.asarray(ordered[..., trim : n - trim].mean(-1))


def interval(scores: np.ndarray, samples: int = 10_000, seed: int = 0) -> Interval:
    """IQM of one score per seed, with a percentile bootstrap over the seeds."""
    scores = np.asarray(scores, np.float64)
    draws = np.random.default_rng(seed).integers(0, len(scores), (samples, len(scores)))
    low, high = np.percentile(iqm(scores[draws]), [2.5, 97.5])
    return Interval(float(iqm(scores)), float(low), float(high))
