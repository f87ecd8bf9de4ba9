"""Throughput of asynchronous actors over their number, on an environment that sleeps two milliseconds a step.

python benchmarks/speed_cluster.py [--driver cluster] [--actors 1 2 4] [--rows 4] [--rounds 3] [--seconds 5]

Every number of actors lives at once, warmed up, and they are measured in turns; those that are not measured
wait for their learner. The prediction is the model of docs/async.md: min(actors × rate of one, rate of the
learner).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparring.config import from_mapping
from sparring.model import algorithm_class, assemble
from sparring.session import Settings

ENV = f"{Path(__file__).parent / 'sleepy.py'}:Sleepy"
TINY: dict[str, Any] = {
    "net_arch": [16],
    "train_freq": 25,
    "sequence_length": 25,
    "batch_size": 4,
    "gradient_steps": 1,
    "learning_starts": 50,
    "buffer_size": 5000,
    "controller": "none",
}


def make(driver: str, actors: int, rows: int) -> Any:
    cls = algorithm_class("gdi")
    settings = Settings(n_envs=actors * rows, driver=driver, actors=actors, backend="inline")  # type: ignore[arg-type]
    made = assemble(cls, ENV, settings, from_mapping(cls.Config, TINY), (0,), eval_env=False).driver
    made.reschedule(1e6)
    made.advance(6)
    return made


def measure(driver: Any, seconds: float) -> tuple[float, float]:
    """Steps per second, and what the learner alone could take."""
    driver.advance(3)  # the queues filled while others were measured
    began, steps, busy = time.perf_counter(), 0, 0.0
    while time.perf_counter() - began < seconds:
        once = time.perf_counter()
        trace = driver.advance(1)[0]
        busy += (time.perf_counter() - once) * (1 - float(trace["async/learner_idle"][0]))
        steps += driver.steps_per_iteration
    return steps / (time.perf_counter() - began), steps / busy


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--driver", default="cluster", choices=("async", "cluster"))
    parser.add_argument("--actors", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rows", type=int, default=4, help="rows of every actor")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    if options.driver == "cluster":
        from sparring.drivers.cluster import connect

        connect("", sum(options.actors))
    drivers = {count: make(options.driver, count, options.rows) for count in options.actors}
    found: dict[int, list[tuple[float, float]]] = {count: [] for count in options.actors}
    for _ in range(options.rounds):
        for count, driver in drivers.items():
            found[count].append(measure(driver, options.seconds))
            print(f"actors {count}: {found[count][-1][0]:.0f} steps/s", flush=True)
    first = options.actors[0]
    each = statistics.median(rate for rate, _ in found[first]) / first
    rows = []
    for count in options.actors:
        rate = statistics.median(rate for rate, _ in found[count])
        learner = statistics.median(taken for _, taken in found[count])
        ratios = [a[0] / b[0] for a, b in zip(found[count], found[first], strict=True)]
        rows.append(
            {
                "actors": count,
                "steps_per_second": round(rate),
                "ratio": round(statistics.median(ratios), 2),
                "learner_could": round(learner),
                "model": round(min(count * each, learner)),
            }
        )
        print(rows[-1], flush=True)
    for driver in drivers.values():
        driver.close()
    if options.json is not None:
        options.json.write_text(json.dumps({"driver": options.driver, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
