"""Statistics over seeds: rliable's numbers on rliable's draws, honest tests, and quick."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

from sparring.evaluation import statistics as st

GOLDEN = sorted((Path(__file__).parents[1] / "golden" / "rliable").glob("*.json"))


def mean(scores: np.ndarray) -> np.ndarray:
    return np.asarray(scores.mean((-2, -1)))


def statistics_of(case: dict[str, Any]) -> dict[str, tuple[Callable[..., np.ndarray], tuple[str, ...]]]:
    return {
        "iqm": (st.pooled_iqm, ("x",)),
        "mean": (mean, ("x",)),
        "optimality_gap": (partial(st.optimality_gap, target=case["target"]), ("x",)),
        "profile": (partial(st.profile, thresholds=np.array(case["thresholds"])), ("x",)),
        "probability_of_improvement": (st.probability_of_improvement, ("x", "y")),
    }


@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: file.stem)
@pytest.mark.parametrize("name", ["iqm", "mean", "optimality_gap", "profile", "probability_of_improvement"])
def test_estimates_equal_rliables_on_the_same_draws(file: Path, name: str) -> None:
    case = json.loads(file.read_text())
    statistic, inputs = statistics_of(case)[name]
    expected = case[name]
    groups = [np.array(case[i]) for i in inputs]
    found = st.bootstrap(statistic, *groups, draws=[np.array(d) for d in expected["draws"]])
    for part, ours in zip(("value", "low", "high"), found, strict=True):
        np.testing.assert_allclose(np.ravel(ours), np.ravel(expected[part]), atol=1e-6, rtol=0)


def test_the_fixtures_are_there() -> None:
    assert [file.stem for file in GOLDEN] == ["one-task", "three-tasks", "ties"]


@pytest.mark.parametrize("n", range(1, 14))
def test_iqm_is_the_trimmed_mean(n: int) -> None:
    scores = np.random.default_rng(n).normal(size=(3, n))
    np.testing.assert_allclose(st.iqm(scores), scipy.stats.trim_mean(scores, 0.25, axis=1))
    np.testing.assert_allclose(st.iqm(scores.T, axis=0), st.iqm(scores))


def test_chunks_do_not_change_a_bootstrap(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).normal(size=(6, 2))
    whole = st.bootstrap(st.pooled_iqm, x)
    monkeypatch.setattr(st, "AT_ONCE", 100)
    assert st.bootstrap(st.pooled_iqm, x).only == whole.only


def test_two_thousand_resamplings_are_quick() -> None:
    random = np.random.default_rng(0)
    x, y, curves = random.normal(size=(20, 5)), random.normal(size=(20, 5)), random.normal(size=(10, 200))

    def work() -> None:
        st.bootstrap(st.pooled_iqm, x, samples=2000)
        st.bootstrap(st.probability_of_improvement, x, y, samples=2000)

    for job in (work, lambda: st.curve_band(curves, samples=2000)):
        began = time.process_time()
        job()
        assert time.process_time() - began < 0.5


def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    covered = 0
    for trial in range(200):
        found = st.bootstrap(st.pooled_iqm, random.normal(3.0, 1.0, (20, 1)), samples=400, seed=trial).only
        covered += found.low <= 3.0 <= found.high
    assert 0.86 <= covered / 200 <= 0.99


def test_a_curves_band_is_the_interval_of_each_of_its_points() -> None:
    curves = np.random.default_rng(0).normal(size=(7, 5))
    band = st.curve_band(curves, samples=500, seed=3)
    for point in range(5):
        alone = st.interval(np.sort(curves[:, point]), samples=500, seed=3)
        np.testing.assert_allclose([band.value[point], band.low[point], band.high[point]], alone)


@pytest.mark.parametrize(("n", "k"), [(3, 3), (4, 4), (2, 5)])
def test_the_permutation_test_is_the_exact_one(n: int, k: int) -> None:
    values = np.random.default_rng(n).permutation(n + k).astype(float)
    values[0] = values[1]  # a tie
    x, y = values[:n], values[n:]

    def distance(chosen: tuple[int, ...]) -> float:
        rest = np.delete(values, chosen)
        return abs(float(st.probability_of_improvement(values[list(chosen), None], rest[:, None])) - 0.5)

    ways = [distance(chosen) for chosen in itertools.combinations(range(n + k), n)]
    exact = np.mean(np.array(ways) >= distance(tuple(range(n))) - 1e-12)
    assert st.permutation_test([(x, y)]) == pytest.approx(exact, abs=0.02)


def test_shuffled_labels_are_rarely_called_different() -> None:
    random = np.random.default_rng(0)
    found = [
        st.permutation_test([(random.normal(size=5), random.normal(size=6))], seed=i) < 0.05
        for i in range(300)
    ]
    assert np.mean(found) < 0.09


def test_the_seeds_needed_are_enough_for_the_power_asked() -> None:
    shift = 1.2
    chance = float(scipy.stats.norm.cdf(shift / np.sqrt(2)))
    n = int(np.ceil(st.seeds_needed(chance)))
    random = np.random.default_rng(0)
    found = [
        scipy.stats.mannwhitneyu(random.normal(shift, 1, n), random.normal(0, 1, n)).pvalue < 0.05
        for _ in range(400)
    ]
    assert 0.7 < np.mean(found) < 0.92
    assert st.seeds_needed(0.5) == np.inf
    assert st.seeds_needed(0.9) == pytest.approx(st.seeds_needed(0.1))
