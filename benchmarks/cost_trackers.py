"""What trackers cost the thread that trains, when they work, sleep, hang or die.

python benchmarks/cost_trackers.py [--rounds 5] [--iterations 150] [--out docs/results/cost_trackers.json]

One PPO on CartPole in Python trains the same iterations over and over, in turns: with nothing but
metrics.sqlite and the health rules, with TensorBoard and W&B (offline), with a sink that sleeps 50 ms over
each record, with trackers whose processes are stopped (SIGSTOP) after a third of the iterations, and with
ones whose processes are killed (SIGKILL) there. What counts is the median time of an iteration over that of
the same round without trackers, and the time of each call that the training thread makes into a tracker.

Where others use the machine too, wall time says more of them than of us. So the processor time of the
training process is beside that of iterations, that of the training thread beside that of calls; and of the
calls above a millisecond it is told in how many the thread waited (for a lock, or for its turn of the
interpreter) and in how many it was only preempted. Linux only: it stops and kills by signals.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import resource
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from machine import described

from sparring.config import from_mapping
from sparring.drivers.loop import Driver
from sparring.metrics import sqlite, trackers
from sparring.metrics.alerts import HealthSink
from sparring.metrics.apart import Apart
from sparring.metrics.sink import Sink
from sparring.model import algorithm_class, assemble
from sparring.session import Session, Settings

NAMES = ("tensorboard", "wandb")
CONFIG = {"n_steps": 32, "batch_size": 128, "n_epochs": 2}
ROWS = 8
LIMIT_MS = 1.0


class Call(NamedTuple):
    """One call of the training thread, in milliseconds."""

    wall: float
    processor: float
    """what the thread used itself"""
    waited: bool
    """whether the thread slept in it: for a lock or its turn of the interpreter"""
    preempted: bool
    """whether the system gave its core to others"""
    collected: bool
    """whether Python collected garbage in it"""


class Timed:
    """A sink whose calls are timed."""

    def __init__(self, sink: Any, calls: list[Call]) -> None:
        self.sink = sink
        self.calls = calls
        self.rows: set[tuple[str, int, int]] = set()

    def write(self, step: int, seconds: float, values: Mapping[str, float], seed: int = 0) -> None:
        self.rows.update((name, seed, step) for name in values)
        self._time(lambda: self.sink.write(step, seconds, values, seed))

    def alert(self, *arguments: Any) -> None:
        self._time(lambda: self.sink.alert(*arguments))

    def close(self) -> None:
        self.sink.close()

    def _time(self, call: Callable[[], None]) -> None:
        collections, before = _collections(), resource.getrusage(resource.RUSAGE_THREAD)
        wall, own = time.perf_counter(), time.thread_time()
        call()
        own, wall = time.thread_time() - own, time.perf_counter() - wall
        after = resource.getrusage(resource.RUSAGE_THREAD)
        self.calls.append(
            Call(
                1e3 * wall,
                1e3 * own,
                after.ru_nvcsw > before.ru_nvcsw,
                after.ru_nivcsw > before.ru_nivcsw,
                _collections() > collections,
            )
        )


def _collections() -> int:
    return sum(generation["collections"] for generation in gc.get_stats())


class Sleepy:
    """A tracker that is too slow."""

    def write(self, step: int, seconds: float, values: Mapping[str, float], seed: int = 0) -> None:
        time.sleep(0.05)

    def close(self) -> None:
        pass


class Arm(NamedTuple):
    """What a round trains with."""

    names: Sequence[str] = ()
    sleepy: bool = False
    signal: int = 0
    """sent to every tracker's process after a third of the iterations"""


ARMS = {
    "none": Arm(),
    "trackers": Arm(NAMES),
    "sleeps": Arm(sleepy=True),
    "hangs": Arm(NAMES, signal=signal.SIGSTOP),
    "dies": Arm(NAMES, signal=signal.SIGKILL),
}


class Measured(NamedTuple):
    """One arm in one round; times in milliseconds."""

    iterations: list[float]
    processor: list[float]
    """what the training process used in each iteration"""
    calls: dict[str, list[Call]]
    """by what was called"""
    written: int
    """points that SQLite was handed"""
    lost: int
    """of which are not in its file"""
    tracker_lost: int
    """records that trackers do not have"""


def measure(driver: Driver, start: Any, arm: Arm, iterations: int, folder: Path) -> Measured:
    driver.restore(jax.tree.map(jnp.array, start), 0)  # a copy: updates take over what they are given
    steps = iterations * driver.steps_per_iteration
    settings = Settings(total_timesteps=steps, n_envs=ROWS, eval_freq=-1, checkpoint_freq=-1)
    calls: dict[str, list[Call]] = {"sqlite": [], "health": [], "trackers": []}
    apart = trackers.start(arm.names, folder, {"algorithm": "ppo"}, _quiet)
    apart += [Apart(Sleepy(), "sleepy", _quiet, patience=0.1)] if arm.sleepy else []
    timed = [Timed(tracker, calls["trackers"]) for tracker in apart]
    stored = Timed(sqlite.SqliteSink(folder / "metrics.sqlite"), calls["sqlite"])
    health = Timed(HealthSink(None, "ppo", CONFIG, total=steps, say=_quiet, trackers=timed), calls["health"])
    sinks: list[Sink] = [stored, health, *timed]
    ticks, used = [time.perf_counter()], [time.process_time()]

    def tick(session: Session) -> None:
        ticks.append(time.perf_counter())
        used.append(time.process_time())
        if arm.signal and session.driver.iteration == iterations // 3:
            for tracker in apart:
                _signal(tracker, arm.signal)

    Session(driver, settings, sinks=sinks, most_iterations=1, on_iterations=tick, say=_quiet).run()
    for tracker in apart:
        _signal(tracker, signal.SIGKILL)  # ends what was stopped
    gone = stored.rows - in_file(folder / "metrics.sqlite")
    return Measured(
        between(ticks),
        between(used),
        calls,
        len(stored.rows),
        len(gone),
        sum(tracker.lost for tracker in apart),
    )


def between(seconds: Sequence[float]) -> list[float]:
    """Milliseconds from each moment to the next."""
    return [1e3 * (after - before) for before, after in itertools.pairwise(seconds)]


def in_file(path: Path) -> set[tuple[str, int, int]]:
    """The points that a metrics file has."""
    return {(name, record.seed, record.step) for record in sqlite.written(path) for name in record.values}


def _signal(tracker: Apart, number: int) -> None:
    pid = getattr(tracker.sink, "pid", None)
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _quiet(text: str) -> None:
    """Trackers that fail say so; here that is expected."""


def distribution(calls: Sequence[Call]) -> dict[str, float]:
    """Of the calls' times; the last entries are about those above the limit."""
    if not calls:
        return {"calls": 0}
    long = [call for call in calls if call.wall > LIMIT_MS]
    out: dict[str, float] = {"calls": len(calls)}
    for name in ("wall", "processor"):
        values = sorted(getattr(call, name) for call in calls)
        out[f"{name}_median_ms"] = statistics.median(values)
        out[f"{name}_p99_ms"] = values[min(int(0.99 * len(values)), len(values) - 1)]
        out[f"{name}_max_ms"] = values[-1]
    out["over_1ms_wall"] = len(long)
    out["over_1ms_processor"] = sum(call.processor > LIMIT_MS for call in calls)
    out["over_1ms_waited"] = sum(call.waited for call in long)
    out["over_1ms_only_preempted"] = sum(call.preempted and not call.waited for call in long)
    out["over_1ms_collecting_garbage"] = sum(call.collected for call in long)
    return {name: round(value, 4) for name, value in out.items()}


def summary(rounds: Sequence[Mapping[str, Measured]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name in [name for name in ARMS if name in rounds[0]]:
        measured = [a_round[name] for a_round in rounds]
        times: dict[str, Any] = {}
        for kind in ("iterations", "processor"):
            mine = [statistics.median(getattr(m, kind)) for m in measured]
            others = [statistics.median(getattr(a_round["none"], kind)) for a_round in rounds]
            ratios = [a / b for a, b in zip(mine, others, strict=True)]
            times[kind] = {
                "median_ms": round(statistics.median(mine), 3),
                "ratio": round(statistics.median(ratios), 4),
                "ratios": [round(ratio, 4) for ratio in ratios],
            }
        out[name] = {
            **times,
            "points_written": sum(m.written for m in measured),
            "points_lost": sum(m.lost for m in measured),
            "tracker_records_lost": sum(m.tracker_lost for m in measured),
            **{
                kind: distribution([call for m in measured for call in m.calls[kind]])
                for kind in ("trackers", "sqlite", "health")
            },
        }
    return out


def table(found: Mapping[str, Any]) -> str:
    head = (
        "arm",
        "iteration",
        "ratio",
        "processor",
        "call median",
        "p99",
        "max",
        "waited > 1 ms",
        "rows lost",
    )
    rows = [head]
    for name, arm in found.items():
        calls, iterations = arm["trackers"], arm["iterations"]
        shown = ("wall_median_ms", "wall_p99_ms", "wall_max_ms")
        rows.append(
            (
                name,
                f"{iterations['median_ms']:.2f} ms",
                f"{iterations['ratio']:.3f}",
                f"{arm['processor']['ratio']:.3f}",
                *(f"{calls[key]:.3f} ms" if key in calls else "" for key in shown),
                str(calls.get("over_1ms_waited", "")),
                f"{arm['points_lost']} of {arm['points_written']}",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=150)
    parser.add_argument("--arms", nargs="+", choices=list(ARMS)[1:], default=list(ARMS)[1:])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    os.environ.setdefault("WANDB_MODE", "offline")
    trackers.check(NAMES)
    cls = algorithm_class("ppo")
    settings = Settings(n_envs=ROWS, backend="inline")
    driver = assemble(
        cls, "gym:CartPole-v1", settings, from_mapping(cls.Config, CONFIG), (0,), eval_env=False, device="cpu"
    ).driver
    start = jax.tree.map(jnp.array, driver.state(0))
    before = os.getloadavg()
    arms = ["none", *options.arms]
    rounds = []
    with tempfile.TemporaryDirectory() as place:
        for number in range(-1, options.rounds):  # the first one compiles and is not counted
            order = arms if number % 2 else arms[::-1]
            measured = {}
            for name in order if number >= 0 else ["none"]:
                folder = Path(place) / f"{number}-{name}"
                folder.mkdir()
                measured[name] = measure(driver, start, ARMS[name], options.iterations, folder)
            if number >= 0:
                rounds.append(measured)
                medians = {name: round(statistics.median(m.iterations), 2) for name, m in measured.items()}
                print(f"round {number + 1}: {medians}", flush=True)
    driver.close()
    found = summary(rounds)
    print(table(found))
    result = {
        "machine": described(before),
        "rounds": options.rounds,
        "iterations": options.iterations,
        "arms": found,
    }
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if not any(arm["points_lost"] for arm in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
