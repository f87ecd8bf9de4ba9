"""Run folders with made-up settings and curves, for whatever reads runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sparring.metrics.sqlite import SqliteSink
from sparring.runs import directory
from sparring.runs.directory import RunDirectory

STEPS = (1000, 2000, 3000, 4000)


def make_run(
    root: Path,
    name: str,
    final: Sequence[float],
    *,
    algo: str = "ppo",
    env: str = "CartPole-v1",
    seed: int = 0,
    state: Any = "finished",
    steps: Sequence[int] = STEPS,
    metric: str = "eval/mean_reward",
    config: Mapping[str, Any] | None = None,
) -> RunDirectory:
    """A run whose seeds climb straight to their final values; `final` holds one number for each seed."""
    seeds = list(range(seed, seed + len(final)))
    with directory.create(algo, env, seed, path=root / name, total=steps[-1]) as run:
        run.write_config(
            {
                "schema": 1,
                "algorithm": algo,
                "env": env,
                "seeds": seeds,
                "settings": {"total_timesteps": steps[-1], "n_envs": 4},
                "config": {"learning_rate": 0.001, **(config or {})},
            }
        )
        sink = SqliteSink(run.metrics)
        for index, value in enumerate(final):
            for step in steps:
                sink.write(step, step / 100, {metric: value * step / steps[-1]}, index)
        sink.close()
        status = run.read_status()
        reward = float(final[0]) if len(final) else None
        run.write_status(status._replace(state=state, steps=steps[-1], mean_reward=reward))
    return run


def spread_around(mean: float, n: int, deviation: float = 10.0, seed: int = 0) -> list[float]:
    """Scores of n seeds."""
    return np.random.default_rng(seed).normal(mean, deviation, n).tolist()
