"""Environment steps per second of the asynchronous driver beside the host driver, interleaved.

python benchmarks/speed_async.py [--rounds 5] [--seconds 6] [--actors 1 2] [--env LunarLander-v3]

Both drivers live at once, warmed up; they are measured in turns, and the ratio of each round is what counts.
Where others use the machine too, wall time says more of them than of us. So processor time per step is
measured as well, and `free_cores_ratio` is what two cores of our own would give: the host driver's processor
time per step over that of the busiest core.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sparring.config import from_mapping
from sparring.model import algorithm_class, assemble
from sparring.session import Settings

GDI: dict[str, Any] = {
    "shaping": ["none"],
    "reward_scale": 0.05,
    "target_temperature": 0.03,
    "train_freq": 20,
    "sequence_length": 20,
    "batch_size": 32,
    "sample_reuse": 8,
    "learning_starts": 2000,
}


def make(env: str, rows: int, **settings: Any) -> Any:
    """A driver that has compiled everything and learns."""
    cls = algorithm_class("gdi")
    made = Settings(n_envs=rows, **settings)
    driver = assemble(cls, env, made, from_mapping(cls.Config, GDI), (0,), eval_env=False).driver
    driver.reschedule(100_000.0)
    driver.advance(12)
    return driver


class Measured(NamedTuple):
    """One driver in one round; processor time is in microseconds per step."""

    rate: float
    learner: float
    actors: float
    told: dict[str, float]


def processor_seconds(pids: Sequence[int]) -> float:
    """What processes have used so far (Linux)."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(driver: Any, seconds: float) -> Measured:
    driver.advance(3)  # an asynchronous driver has filled its queues while the other was measured
    actors = [seat.process.pid for seat in getattr(driver, "_seats", ())]
    steps, began = 0, time.perf_counter()
    before = processor_seconds([os.getpid()]), processor_seconds(actors)
    traces: list[Any] = []
    while time.perf_counter() - began < seconds:
        traces.append(driver.advance(1)[0])
        steps += driver.steps_per_iteration
    wall = time.perf_counter() - began
    after = processor_seconds([os.getpid()]), processor_seconds(actors)
    learner, made = (1e6 * (b - a) / steps for a, b in zip(before, after, strict=True))
    names = [name for name in traces[0] if name.startswith("async/")]
    told = {name: float(statistics.mean(float(t[name][0]) for t in traces)) for name in names}
    return Measured(steps / wall, learner, made, told)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--actors", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--env", default="LunarLander-v3")
    parser.add_argument("--slot", default="memory")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    host = make(options.env, options.rows, backend="inline")
    for count in options.actors:
        driver = make(options.env, options.rows, driver="async", actors=count, slot=options.slot)
        try:
            for _ in range(options.rounds):
                base, fast = measure(host, options.seconds), measure(driver, options.seconds)
                # With two free cores: the busiest of them, or both full.
                bound = max(fast.learner, fast.actors / count, (fast.learner + fast.actors) / 2)
                row = {
                    "actors": count,
                    "host": base.rate,
                    "async": fast.rate,
                    "ratio": fast.rate / base.rate,
                    "host_us": base.learner,
                    "learner_us": fast.learner,
                    "actors_us": fast.actors,
                    "free_cores_ratio": base.learner / bound,
                    **fast.told,
                }
                rows.append(row)
                print({name: round(value, 2) for name, value in row.items()}, flush=True)
        finally:
            driver.close()
    for count in options.actors:
        for name in ("ratio", "free_cores_ratio"):
            values = [row[name] for row in rows if row["actors"] == count]
            print(f"actors {count}: median {name} {statistics.median(values):.2f}")
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
