"""Environment steps per second of the asynchronous driver beside the host driver, interleaved.

python benchmarks/speed_async.py [--rounds 5] [--seconds 6] [--actors 1 2] [--env LunarLander-v3]

Both drivers live at once, warmed up; they are measured in turns, so that a machine that others use too slows
both down alike, and the ratio of each round is what counts. Beside wall time it prints the processor's time.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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


def measure(driver: Any, seconds: float) -> tuple[float, float, dict[str, float]]:
    """Steps per second of wall time, processor seconds of this process per second, and the last metrics."""
    driver.advance(3)  # an asynchronous driver has filled its queues while the other was measured
    steps, began = 0, time.perf_counter()
    cpu = resource.getrusage(resource.RUSAGE_SELF)
    trace: dict[str, Any] = {}
    while time.perf_counter() - began < seconds:
        trace = driver.advance(1)[0]
        steps += driver.steps_per_iteration
    wall = time.perf_counter() - began
    now = resource.getrusage(resource.RUSAGE_SELF)
    used = now.ru_utime + now.ru_stime - cpu.ru_utime - cpu.ru_stime
    told = {name: float(x[-1]) for name, x in trace.items() if name.startswith("async/")}
    return steps / wall, used / wall, told


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
    ratios: dict[int, list[float]] = {count: [] for count in options.actors}
    rows: list[dict[str, Any]] = []
    host = make(options.env, options.rows, backend="inline")
    for count in options.actors:
        driver = make(options.env, options.rows, driver="async", actors=count, slot=options.slot)
        try:
            for _ in range(options.rounds):
                base, base_cpu, _ = measure(host, options.seconds)
                fast, cpu, told = measure(driver, options.seconds)
                ratios[count].append(fast / base)
                rows.append({"actors": count, "host": base, "async": fast, "ratio": fast / base, **told})
                print(
                    f"actors {count}: host {base:7.0f} steps/s (cpu {base_cpu:.2f}), async {fast:7.0f} "
                    f"(learner cpu {cpu:.2f}), ratio {fast / base:.2f}, staleness "
                    f"{told['async/staleness']:.1f}, learner idle {told['async/learner_idle']:.2f}, actors "
                    f"idle {told['async/actor_idle']:.2f}",
                    flush=True,
                )
        finally:
            driver.close()
    for count, values in ratios.items():
        print(f"actors {count}: median ratio {statistics.median(values):.2f}, all {sorted(values)}")
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
