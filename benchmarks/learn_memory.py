"""Who remembers: PPO with every core on the memory tasks, five seeds of a row as one program.

    python benchmarks/learn_memory.py [--row tmaze-50-s5] [--out docs/results/memory]

On an accelerator the seeds are one `vmap`, on a CPU they take turns. One JSON file per row, which is
skipped when it exists; `benchmarks/report.py` writes docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from sparring.algos.ppo import PPO, PPOConfig
from sparring.config import Linear
from sparring.drivers.fused import Fused
from sparring.drivers.platform import prepare
from sparring.envs import registry
from sparring.evaluation.evaluator import evaluate

ROOT = Path(__file__).resolve().parents[1]
ROWS, SEEDS, EPISODES = 64, 5, 100
CORES = ("none", "gru", "lstm", "transformer", "s5")
SETTINGS: dict[str, Any] = {
    "core_size": 64,
    "n_steps": 128,
    "batch_size": 2048,
    "n_epochs": 4,
    "learning_rate": Linear(1e-3),
    "gamma": 0.995,
    "gae_lambda": 0.97,
}
TASKS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "tmaze-50": ("TMaze-50", 3_000_000, {}),
    "repeat-previous-32": ("RepeatPrevious-32", 6_000_000, {"gamma": 0.9, "gae_lambda": 0.8}),
}
OWN: dict[str, dict[str, Any]] = {
    "transformer": {"core_window": 64, "core_layers": 2},
    "s5": {"core_layers": 2},
}
"""A transformer must see the cue, and so its layers and window reach further than the task is long."""
ROW_OWN: dict[str, dict[str, Any]] = {"repeat-previous-32-s5": {"core_size": 128}}
"""32 steps of four symbols are 96 numbers, more than 64 linear states hold: with those it reached 0.66."""


def row_names() -> list[str]:
    return [f"{task}-{core}" for task in TASKS for core in CORES]


def learn(name: str, out: Path) -> None:
    """Trains the seeds of a row, evaluates the final policies greedily on fresh seeds, writes the result."""
    task, _, core = name.rpartition("-")
    env_id, steps, own = TASKS[task]
    env = registry.make(env_id)
    settings = {**SETTINGS, **own, **OWN.get(core, {}), **ROW_OWN.get(name, {})}
    config = PPOConfig(**settings, core=core)
    iterations = steps // (ROWS * config.n_steps)
    algo = PPO(replace(env.spec, rows=ROWS), config, float(iterations))
    driver = Fused(algo, env, ROWS, tuple(range(SEEDS)))
    driver.advance(1)
    began = time.perf_counter()
    curve: list[list[float]] = []
    while driver.iteration < iterations:
        traces = driver.advance(min(max(iterations // 20, 1), iterations - driver.iteration))
        curve.append([float(t["rollout/ep_rew_mean"][-1]) for t in traces])
        print(f"{name} {driver.iteration}/{iterations}: {[round(x, 2) for x in curve[-1]]}", flush=True)
    seconds = time.perf_counter() - began
    scores = [
        evaluate(driver.algo, driver.algo.policy(driver.train_state(i)), env, EPISODES, 10_000 + i).mean
        for i in range(SEEDS)
    ]
    result = {
        "row": name,
        "env": env_id,
        "core": core,
        "steps": iterations * driver.steps_per_iteration,
        "means": scores,
        "curve": curve,
        "seconds": seconds,
        "compile_seconds": driver.compile_seconds,
        "device": jax.devices()[0].device_kind,
        "settings": settings,
    }
    temporary = out / f"{name}.tmp"
    temporary.write_text(json.dumps(result) + "\n")
    temporary.replace(out / f"{name}.json")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--row", action="append", choices=row_names(), help="only these rows")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "memory")
    a = parser.parse_args()
    prepare()
    a.out.mkdir(parents=True, exist_ok=True)
    for name in a.row or row_names():
        if not (a.out / f"{name}.json").exists():
            learn(name, a.out)


if __name__ == "__main__":
    main()
