"""Whether one group of seeds is better than another, in a sentence that does not promise too much."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from sparring.evaluation import statistics as st
from sparring.evaluation.statistics import Interval

ALPHA = 0.05
TOO_MANY = 200
"""More seeds than this are not worth naming."""

Pairs = Sequence[tuple[np.ndarray, np.ndarray]]
"""Scores of the first and of the second group, seed by seed, for every environment that both have."""


class Verdict(NamedTuple):
    """What can be said about two groups; `better` is None when they cannot be told apart."""

    first: str
    second: str
    better: str | None
    sentence: str
    improvement: float
    """probability that a seed of the second beats one of the first, mean over environments"""
    p_value: float | None
    difference: Interval | None
    """IQM of the second minus that of the first, for a single environment"""
    more_seeds: int | None
    """about how many more of each group would separate them; None when they are, or when nobody can say"""

    def as_json(self) -> dict[str, Any]:
        return {
            **self._asdict(),
            "difference": None if self.difference is None else self.difference._asdict(),
        }


def judge(
    first: str,
    second: str,
    pairs: Pairs,
    direction: Literal["higher", "lower"] = "higher",
    comparisons: int = 1,
) -> Verdict:
    """Two groups are separated when the 95 % interval of the difference of their IQMs excludes zero and a
    permutation test agrees (p below 5 %, shared by all `comparisons`). The bootstrap alone would not do: with
    few seeds its intervals are too narrow."""
    sign = 1.0 if direction == "higher" else -1.0
    columns = [(sign * x[:, None], sign * y[:, None]) for x, y in pairs]
    improvement = float(np.mean([st.probability_of_improvement(y, x) for x, y in columns]))
    fewest = min(min(len(x), len(y)) for x, y in pairs)
    alone = [name for name, part in ((first, 0), (second, 1)) if min(len(p[part]) for p in pairs) == 1]
    if fewest == 1:
        sentence = (
            f"Nothing can be concluded about {first} and {second}: {' and '.join(alone)} "
            f"{'has' if len(alone) == 1 else 'have'} one seed. Train more: sparring train … --seeds 5"
        )
        return Verdict(first, second, None, sentence, improvement, None, None, None)
    values = np.concatenate([part for pair in pairs for part in pair])
    if len(pairs) == 1 and np.ptp(values) == 0:
        sentence = f"{first} and {second} are equal: every seed has {number(values[0])}."
        return Verdict(first, second, None, sentence, improvement, 1.0, Interval(0.0, 0.0, 0.0), None)
    alpha = ALPHA / comparisons
    p_value = st.permutation_test([(y[:, 0], x[:, 0]) for x, y in columns])
    if len(pairs) == 1:
        difference = st.bootstrap(lambda y, x: st.pooled_iqm(y) - st.pooled_iqm(x), *_swapped(pairs[0])).only
        apart = difference.low > 0 or difference.high < 0
        agrees = (sign * difference.value > 0) == (improvement > 0.5)
        span = f"difference of IQMs {spread(difference)}"
    else:
        difference, agrees = None, True
        beats = st.bootstrap(_mean_improvement, *(part for x, y in columns for part in (y, x))).only
        apart = beats.low > 0.5 or beats.high < 0.5
        span = f"over {len(pairs)} environments, probability of improvement {spread(beats)}"
    if apart and agrees and p_value < alpha:
        better, worse = (second, first) if improvement > 0.5 else (first, second)
        chance = max(improvement, 1 - improvement)
        sentence = (
            f"{better} is better than {worse} ({direction} is better): {span}, p = {p_value:.2g}. A seed of "
            f"{better} beats one of {worse} with probability {chance:.2f}."
        )
        return Verdict(first, second, better, sentence, improvement, p_value, difference, None)
    more = more_seeds(improvement, fewest, alpha, len(pairs))
    hope = (
        f"about {more} more seed{'s' if more > 1 else ''} of each needed, if the difference is what it seems"
        if more is not None
        else f"if there is a difference, {TOO_MANY} more seeds of each would not show it"
    )
    sentence = f"{first} and {second} cannot be separated ({span}, p = {p_value:.2g}); {hope}."
    return Verdict(first, second, None, sentence, improvement, p_value, difference, more)


def more_seeds(improvement: float, have: int, alpha: float = ALPHA, tasks: int = 1) -> int | None:
    """About how many more seeds of each group, in each of the tasks, would separate them; None beyond what is
    worth naming."""
    needed = st.seeds_needed(improvement, alpha) / tasks - have
    return None if needed > TOO_MANY else max(math.ceil(needed), 1)


def _swapped(pair: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return pair[1][:, None], pair[0][:, None]


def _mean_improvement(*groups: np.ndarray) -> np.ndarray:
    """Probability of improvement of each even group over the next one, averaged."""
    each = [st.probability_of_improvement(*groups[i : i + 2]) for i in range(0, len(groups), 2)]
    return np.asarray(np.mean(each, axis=0))


def spread(found: Interval) -> str:
    """`12.3 [4, 20]`: an estimate with its interval."""
    return f"{number(found.value)} [{number(found.low)}, {number(found.high)}]"


def number(value: float) -> str:
    """A number in few characters."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"
