"""The best fixed behaviour of GDI: 20 indices are tried with one seed each, the best again with five others.

    python benchmarks/fixed_indices.py ENV [--steps 300000] [--jobs 2]

What a bandit could have found if it had known. Indices are spread evenly over the space (a Sobol sequence in
the cells of 1/τ_1, 1/τ_2 and ε, in their logarithm where the cells are); each agent's final greedy policy
plays 100 episodes on fresh seeds. Writes docs/results/fixed/ENV.json; results of agents that exist are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from scipy.stats import qmc

sys.path.insert(0, str(Path(__file__).parent))
from learn import learned, on_cores

HERE = Path(__file__).parent
RESULTS = HERE.parent / "docs" / "results" / "fixed"
TRIED = 20
CHOOSING = 100
"""the seed with which indices are tried; those of the winner are 0 to 4"""


def indices(env: str) -> list[list[float]]:
    """Points of GDI's space of behaviours for an environment."""
    from sparring import launch
    from sparring.envs import registry

    plan = launch.plan("gdi", env)
    spec = registry.make(env, n_envs=1, backend="inline").spec
    space = launch.algorithm_class("gdi")(spec, plan.config, 1.0).space
    drawn = qmc.Sobol(len(space.coordinates), seed=0).random(32)[:TRIED]
    return [[at(*pair) for pair in zip(space.coordinates, point, strict=True)] for point in drawn]


def at(coordinate: Any, share: float) -> float:
    """The number that has this share of a coordinate's interval below it, as its cells are spaced."""
    low, high = float(coordinate.edges[0]), float(coordinate.edges[-1])
    value = low * (high / low) ** share if coordinate.log else low + (high - low) * share
    return round(float(value), 4)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("env")
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--scratch", type=Path, default=HERE.parent / "runs" / "fixed")
    parser.add_argument("--one", nargs=3, metavar=("POINT", "NUMBER", "SEED"), help=argparse.SUPPRESS)
    parser.add_argument("--core", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder = arguments.scratch / arguments.env
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {arguments.core})
    if arguments.one:
        point, number, seed = json.loads(arguments.one[0]), *map(int, arguments.one[1:])
        settings = {"controller": "fixed", "controller_index": point, "total_timesteps": arguments.steps}
        row = {"algorithm": "gdi", "env": arguments.env, "set": settings}
        learned(f"index-{number}", row, seed, folder / f"{number}-{seed}.json", folder)
        return
    points = indices(arguments.env)

    def score(job: tuple[int, int], core: int) -> dict[str, Any]:
        number, seed = job
        out = folder / f"{number}-{seed}.json"
        if not out.exists():
            command = [sys.executable, __file__, arguments.env, "--steps", str(arguments.steps)]
            command += ["--scratch", str(arguments.scratch), "--core", str(core)]
            command += ["--one", json.dumps(points[number]), str(number), str(seed)]
            with (folder / f"{number}-{seed}.log").open("a") as log:
                subprocess.run(command, stdout=log, stderr=log, check=True)
        result = json.loads(out.read_text())
        mean = result["deterministic"]["mean"]
        print(f"index {number} {points[number]} seed {seed}: {mean:.1f}", flush=True)
        earned = result["training"]["mean"]
        return {"mean": mean, "earned": earned, "date": result["date"], "cores": result["cores"]}

    tried = on_cores([(number, CHOOSING) for number in range(TRIED)], arguments.jobs, score)
    best = max(range(TRIED), key=lambda number: tried[number]["mean"])
    again = on_cores([(best, seed) for seed in range(5)], arguments.jobs, score)
    RESULTS.mkdir(parents=True, exist_ok=True)
    told = {
        "env": arguments.env,
        "steps": arguments.steps,
        "tried": [{"point": p, "mean": t["mean"]} for p, t in zip(points, tried, strict=True)],
        "best": points[best],
        "means": [t["mean"] for t in again],
        "earned": [t["earned"] for t in again],
        "date": again[0]["date"],
        "cores": again[0]["cores"],
    }
    (RESULTS / f"{arguments.env}.json").write_text(json.dumps(told, indent=1) + "\n")
    print(f"best {points[best]}: {told['means']}")


if __name__ == "__main__":
    main()
