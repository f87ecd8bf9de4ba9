"""What evaluations and films in the background cost training: steps per second with and without, interleaved.

python benchmarks/cost_evaluation.py [--rounds 5] [--steps 300000] [--env gym:CartPole-v1]
    [--out docs/results/cost_evaluation.json]

PPO trains the same steps in turns: without, with ten evaluations (deterministic and stochastic, ten
episodes each), and with five films of four episodes side by side as well. The rate is that of the run as a
user sees it, copies of the agent and waiting included, from a tenth of the steps (all is compiled by then)
to the last; the evaluations that would follow are left out. What counts is the rate over that of the same
round without. Where others use the machine too, wall time says more of them than of us: beside it stand the
processor time of the training process and of the evaluating one.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from machine import described

from sparring import launch
from sparring.metrics import sqlite

CONFIG = {"n_steps": 128, "n_envs": 8, "batch_size": 256, "n_epochs": 4, "backend": "inline"}
ARMS: dict[str, dict[str, float]] = {
    "none": {"evaluations": 0, "films": 0},
    "evaluation": {"evaluations": 10, "films": 0},
    "evaluation and films": {"evaluations": 10, "films": 5},
}


class Watch:
    """Takes the time while a run trains, and looks at the process beside it (Linux)."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end
        self.moments: list[tuple[int, float, float]] = []
        self.niceness: int | None = None
        self.beside = 0.0
        """processor seconds of the evaluating process while training went on"""

    def write(self, step: int, seconds: float, values: Mapping[str, float], seed: int = 0) -> None:
        if step < self.start or "train/loss" not in values:
            return
        self.moments.append((step, time.perf_counter(), time.process_time()))
        for place in Path("/proc").glob("[0-9]*"):
            try:
                fields = (place / "stat").read_text().rsplit(")", 1)[1].split()
                if int(fields[1]) == os.getpid() and b"spawn_main" in (place / "cmdline").read_bytes():
                    self.niceness = int(fields[16])
                    self.beside = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            except (OSError, IndexError, ValueError):
                continue

        if step >= self.end:  # ends the run without the evaluations that follow training
            signal.raise_signal(signal.SIGTERM)

    def close(self) -> None:
        pass


class Measured(NamedTuple):
    """One arm in one round."""

    rate: float
    """steps per second"""
    processor: float
    """microseconds of the training process per step"""
    beside: float
    niceness: int | None
    evaluations: int
    films: int


def measure(env: str, steps: int, arm: Mapping[str, float], folder: Path) -> Measured:
    values: dict[str, Any] = {
        **CONFIG,
        "total_timesteps": steps,
        "evaluation": "background",
        "eval_freq": steps // int(arm["evaluations"]) if arm["evaluations"] else -1,
        "video_freq": steps // int(arm["films"]) if arm["films"] else 0,
        "checkpoint_freq": -1,
    }
    watch = Watch(steps // 10, steps)
    plan = launch.plan("ppo", env, (0,), values=values, use_preset=False)
    launch.train(plan, run_dir=folder, say=lambda text: None, device="cpu", display=lambda *_: [watch])
    (first, began, own), (last, ended, used) = watch.moments[0], watch.moments[-1]
    return Measured(
        (last - first) / (ended - began),
        1e6 * (used - own) / (last - first),
        watch.beside,
        watch.niceness,
        len(sqlite.read(folder / "metrics.sqlite", "eval/mean_reward").steps),
        len(list((folder / "videos").glob("*.mp4"))),
    )


def summary(rounds: Sequence[Mapping[str, Measured]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name in ARMS:
        mine = [a_round[name] for a_round in rounds]
        base = [a_round["none"] for a_round in rounds]
        ratios = [m.rate / b.rate for m, b in zip(mine, base, strict=True)]
        work = [m.processor / b.processor for m, b in zip(mine, base, strict=True)]
        out[name] = {
            "steps_per_second": round(statistics.median(m.rate for m in mine)),
            "ratio": round(statistics.median(ratios), 4),
            "ratios": [round(ratio, 4) for ratio in ratios],
            "processor_us_per_step": round(statistics.median(m.processor for m in mine), 2),
            "processor_ratio": round(statistics.median(work), 4),
            "processor_ratios": [round(ratio, 4) for ratio in work],
            "evaluator_processor_seconds": round(statistics.median(m.beside for m in mine), 2),
            "evaluator_niceness": sorted({m.niceness for m in mine if m.niceness is not None}),
            "evaluations": [m.evaluations for m in mine],
            "films": [m.films for m in mine],
        }
    return out


def table(found: Mapping[str, Any]) -> str:
    head = ("arm", "steps/s", "ratio", "least", "most", "processor ratio", "evaluator", "nice")
    rows = [head]
    for name, arm in found.items():
        spread = f"{min(arm['ratios']):.3f}", f"{max(arm['ratios']):.3f}"
        nice = ", ".join(map(str, arm["evaluator_niceness"]))
        beside = f"{arm['evaluator_processor_seconds']:.1f} s"
        rate, ratio = f"{arm['steps_per_second']:,}", f"{arm['ratio']:.3f}"
        rows.append((name, rate, ratio, *spread, f"{arm['processor_ratio']:.3f}", beside, nice))
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--env", default="gym:CartPole-v1")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    before = os.getloadavg()
    rounds = []
    with tempfile.TemporaryDirectory() as place:
        for number in range(options.rounds):
            order = list(ARMS) if number % 2 == 0 else list(ARMS)[::-1]
            rounds.append(
                {
                    name: measure(options.env, options.steps, ARMS[name], Path(place) / f"{number}-{index}")
                    for index, name in enumerate(order)
                }
            )
            rates = {name: round(m.rate) for name, m in rounds[-1].items()}
            print(f"round {number + 1}: {rates}", flush=True)
    found = summary(rounds)
    print(table(found))
    result = {
        "machine": described(before),
        "env": options.env,
        "steps": options.steps,
        "rounds": options.rounds,
        "arms": found,
    }
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
