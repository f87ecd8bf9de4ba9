"""Learning results over seeds: every row × seed is one process and one JSON file, skipped when it exists.

    python benchmarks/learn.py [--row NAME] [--jobs 2]
    python benchmarks/learn.py --row "lunarlander-gdi-*"     the study of GDI on LunarLander

A row that was interrupted resumes from its checkpoint. `benchmarks/report.py` writes docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import json
import os
import platform
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

Job = TypeVar("Job")
Done = TypeVar("Done")

HERE = Path(__file__).parent
RESULTS = HERE.parent / "docs" / "results" / "learn"
EPISODES = 100
EVAL_SEED = 10_000


def rows() -> dict[str, dict[str, Any]]:
    """What is learned: see learn.toml."""
    return tomllib.loads((HERE / "learn.toml").read_text())


def over_steps(metrics: Path, name: str) -> dict[str, float] | None:
    """A metric's mean over all steps of a run, and its last value; None where it was hardly told."""
    import numpy as np

    from sparring.metrics import sqlite

    if not metrics.exists():
        return None
    told = sqlite.read(metrics, name)
    there = np.isfinite(told.values)
    steps, means = np.asarray(told.steps, float)[there], np.asarray(told.values, float)[there]
    if len(steps) < 2:
        return None
    return {"mean": float(np.trapezoid(means, steps) / (steps[-1] - steps[0])), "last": float(means[-1])}


def learned(name: str, row: dict[str, Any], seed: int, out: Path, scratch: Path) -> None:
    """Trains one seed of a row, evaluates its final policy on fresh seeds, and writes the result."""
    from sparring import launch
    from sparring.envs import registry
    from sparring.metrics import sqlite
    from sparring.model import Agent
    from sparring.runs import directory
    from sparring.runs.durable import replace_file
    from sparring.runs.provenance import processor

    values = {"eval_freq": -1, "n_eval_episodes": 1, **row.get("set", {})}
    plan = launch.plan(row["algorithm"], row["env"], (seed,), values=values)
    folder = scratch / f"{name}-{seed}"
    if not folder.is_dir():
        launch.train(plan, run_dir=folder)
    elif directory.find(folder).read_status().state != "finished":
        launch.resume(directory.find(folder))
    run = directory.find(folder)
    if run.read_status().state != "finished":
        sys.exit(f"{name} seed {seed} was interrupted; the same command continues it.")
    agent = Agent.load(folder / "last")
    env = registry.make(row["env"], n_envs=10, kwargs=plan.env_kwargs, backend="inline")
    scores = {
        kind: agent.evaluate(env, EPISODES, EVAL_SEED + seed, deterministic=kind == "deterministic")
        for kind in ("deterministic", "stochastic")
    }
    import jax

    result = {
        "row": name,
        "seed": seed,
        "algorithm": row["algorithm"],
        "env": row["env"],
        "steps": run.read_status().steps,
        "train_seconds": sqlite.last(run.metrics, "time/time_elapsed") if run.metrics.exists() else None,
        **{k: {**e.as_json(), "returns": e.returns.tolist()} for k, e in scores.items()},
        "training": over_steps(run.metrics, "rollout/ep_rew_mean"),
        "greedy": over_steps(run.metrics, "eval/mean_reward"),
        "versions": {"jax": jax.__version__, "python": platform.python_version()},
        "processor": processor(),
        "date": datetime.date.today().isoformat(),
        "cores": os.cpu_count(),
        "device": jax.devices()[0].device_kind,
        "settings": values,
    }
    replace_file(out, [json.dumps(result).encode() + b"\n"])


def on_cores(todo: Iterable[Job], jobs: int, run: Callable[[Job, int], Done]) -> list[Done]:
    """Runs jobs beside one another, each with a core of its own: thread pools sized to it do not clash."""
    cores: SimpleQueue[int] = SimpleQueue()
    for slot in range(jobs):
        cores.put(slot % (os.cpu_count() or 1))

    def with_core(job: Job) -> Done:
        core = cores.get()
        try:
            return run(job, core)
        finally:
            cores.put(core)

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(with_core, todo))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--row", action="append", help="only these rows; * stands for anything")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--scratch", type=Path, default=HERE.parent / "runs" / "learn")
    parser.add_argument("--core", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--one", nargs=2, metavar=("ROW", "SEED"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {arguments.core})
    if arguments.one:
        name, seed = arguments.one[0], int(arguments.one[1])
        out = arguments.out / f"sparring-{name}-{seed}.json"
        learned(name, rows()[name], seed, out, arguments.scratch)
        return
    known = rows()
    chosen: list[str] = []
    for wanted in arguments.row or ["*"]:
        found = fnmatch.filter(known, wanted)
        if not found:
            sys.exit(f"There is no row {wanted!r}. Known: {', '.join(known)}")
        chosen += [name for name in found if name not in chosen]
    todo = [
        (name, seed)
        for name in chosen
        for seed in range(known[name].get("seeds", 5))
        if not (arguments.out / f"sparring-{name}-{seed}.json").exists()
    ]
    print(f"{len(todo)} results to learn, {arguments.jobs} at a time", flush=True)

    def run(job: tuple[str, int], core: int) -> None:
        name, seed = job
        command = [sys.executable, __file__, "--one", name, str(seed), "--out", str(arguments.out)]
        log = arguments.scratch / f"{name}-{seed}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        with log.open("a") as stream:
            command += ["--scratch", str(arguments.scratch), "--core", str(core)]
            code = subprocess.run(
                command, stdout=stream, stderr=stream, env=environment, check=False
            ).returncode
        print(f"{name} seed {seed}: {'done' if code == 0 else f'FAILED, see {log}'}", flush=True)

    on_cores(todo, arguments.jobs, run)


if __name__ == "__main__":
    main()
