"""Small functions that SB3's scripts import."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np


def set_random_seed(seed: int, using_cuda: bool = False) -> None:
    """Seeds Python and numpy for the script's own use; agents take their seed as an argument."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - SB3's scripts use the global generator


class ConstantSchedule:
    """The same value throughout."""

    def __init__(self, val: float) -> None:
        self.val = val

    def __call__(self, progress_remaining: float) -> float:
        return self.val


class LinearSchedule:
    """From `start` to `end` over the first `end_fraction` of training, by the remaining progress."""

    def __init__(self, start: float, end: float, end_fraction: float) -> None:
        self.start = start
        self.end = end
        self.end_fraction = end_fraction

    def __call__(self, progress_remaining: float) -> float:
        share = min((1.0 - progress_remaining) / self.end_fraction, 1.0)
        return self.start + share * (self.end - self.start)


def get_linear_fn(start: float, end: float, end_fraction: float) -> Callable[[float], float]:
    return LinearSchedule(start, end, end_fraction)


def constant_fn(val: float) -> Callable[[float], float]:
    return ConstantSchedule(val)


def get_schedule_fn(value_schedule: float | Callable[[float], float]) -> Callable[[float], float]:
    return value_schedule if callable(value_schedule) else ConstantSchedule(float(value_schedule))


def safe_mean(arr: Any) -> float:
    """The mean; NaN when there is nothing to average."""
    return float(np.mean(arr)) if len(arr) else float("nan")
