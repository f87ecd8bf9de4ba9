"""Write what rliable says about some scores, as an oracle for ours: tests/golden/rliable/*.json.

    python3 -m venv .venv-rliable && .venv-rliable/bin/pip install 'rliable==1.2.0' 'arch<8' 'pandas<3'
    .venv-rliable/bin/python benchmarks/peers/fixture_rliable.py

Each file holds scores of two methods, seeds × tasks, the indices that every bootstrap drew, and rliable's
point and interval of each statistic on those draws. numpy alone reads them.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rliable import library, metrics

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "golden" / "rliable"
SAMPLES = 200
TARGET = 1.0
CASES = {  # seeds of x, seeds of y, tasks, decimals (one: many ties)
    "one-task": (5, 5, 1, 6),
    "three-tasks": (10, 7, 3, 6),
    "ties": (6, 9, 2, 1),
}


class Draws:
    """Keeps the indices of every resampling, and leaves the resampling as it is."""

    def __init__(self, kind: type[Any]) -> None:
        self.kind, self.original, self.kept = kind, kind.update_indices, []

    def __enter__(self) -> list[Any]:
        def kept(bootstrap: Any) -> Any:
            drawn = self.original(bootstrap)
            self.kept.append(drawn)
            return drawn

        self.kind.update_indices = kept
        return self.kept

    def __exit__(self, *_: object) -> None:
        self.kind.update_indices = self.original


def estimate(scores: Any, statistic: Callable[..., Any]) -> dict[str, Any]:
    """rliable's point and interval, and the indices they came from."""
    several = isinstance(scores, list)
    kind = library.StratifiedIndependentBootstrap if several else library.StratifiedBootstrap
    with Draws(kind) as kept:
        points, intervals = library.get_interval_estimates({"m": scores}, statistic, reps=SAMPLES)
    assert len(kept) == SAMPLES
    draws = [[group[0] for group in k[0]] if several else [k[0]] for k in kept]
    return {
        "draws": [np.stack(group).tolist() for group in zip(*draws, strict=True)],
        "value": np.asarray(points["m"]).tolist(),
        "low": intervals["m"][0].tolist(),
        "high": intervals["m"][1].tolist(),
    }


def case(n: int, k: int, tasks: int, decimals: int) -> dict[str, Any]:
    """Two methods' scores and everything rliable says about them."""
    random = np.random.default_rng(n * 100 + k)
    shift = np.linspace(0.2, 0.8, tasks)
    x = np.round(random.normal(shift + 0.1, 0.3, (n, tasks)), decimals)
    y = np.round(random.normal(shift, 0.3, (k, tasks)), decimals)
    thresholds = np.linspace(-0.5, 1.5, 9)
    np.random.seed(0)  # noqa: NPY002  (rliable draws from numpy's global generator)

    def one(statistic: Callable[[np.ndarray], Any]) -> Callable[[np.ndarray], np.ndarray]:
        return lambda scores: np.array([statistic(scores)])

    return {
        "x": x.tolist(),
        "y": y.tolist(),
        "target": TARGET,
        "thresholds": thresholds.tolist(),
        "iqm": estimate(x, one(metrics.aggregate_iqm)),
        "mean": estimate(x, one(metrics.aggregate_mean)),
        "optimality_gap": estimate(x, one(lambda s: metrics.aggregate_optimality_gap(s, TARGET))),
        "profile": estimate(x, lambda s: library.score_distributions(s, thresholds)),
        "probability_of_improvement": estimate(
            [x, y], lambda a, b: np.array([metrics.probability_of_improvement(a, b)])
        ),
    }


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, sizes in CASES.items():
        (FOLDER / f"{name}.json").write_text(json.dumps(case(*sizes)) + "\n")
        print(FOLDER / f"{name}.json")


if __name__ == "__main__":
    main()
