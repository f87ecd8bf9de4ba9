"""Between which numbers a setting means something."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from sparring.errors import ConfigError

LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`; with `above` without `low` itself, with `below` without `high`."""

    low: float = -LARGEST
    high: float = LARGEST
    above: bool = False
    whole: bool = False
    below: bool = False

    def holds(self, number: float) -> bool:
        """Whether a number lies in it; NaN lies in none."""
        if self.whole and not (isinstance(number, Integral) or float(number).is_integer()):
            return False
        if (self.above and number == self.low) or (self.below and number == self.high):
            return False
        return self.low <= number <= self.high

    def __str__(self) -> str:
        kind = "whole and " if self.whole else ""
        if self.high < LARGEST:
            if self.below:
                return f"{kind}{'above' if self.above else 'at least'} {self.low:g} and below {self.high:g}"
            if self.above:
                return f"{kind}above {self.low:g} and at most {self.high:g}"
            return f"{kind}between {self.low:g} and {self.high:g}"
        if self.low == -LARGEST:
            return f"{kind}finite in 32 bits"
        return f"{kind}{'above' if self.above else 'at least'} {self.low:g}"


PROBABILITY = Range(0.0, 1.0)
DECAY = Range(0.0, 1.0, below=True)
COUNT = Range(1, whole=True)
NOT_NEGATIVE = Range(0.0)
POSITIVE = Range(0.0, above=True)
ENDLESS = Range(0.0, math.inf, above=True)


def check_options(selector: Any, ranges: Mapping[str, Range]) -> None:
    """Refuses a selector of behaviours with an option out of its range, of several numbers any."""
    for name, span in ranges.items():
        given = getattr(selector, name)
        numbers = given if isinstance(given, tuple) else (given,)
        if not numbers or not all(span.holds(number) for number in numbers):
            each = "hold numbers, each" if isinstance(given, tuple) else "be"
            raise ConfigError(
                f"The option {name} of {type(selector).__name__} must {each} {span}, got {given}. "
                f"The default is {getattr(type(selector), name)}."
            )
