"""Steps and minutes until an agent is good: training stops at the first evaluation that reaches the score.

    python benchmarks/time_to.py [--env LunarLander-v3] [--reward 200] [--algorithm gdi]

Each algorithm runs with its preset of the command line and is evaluated every 10,000 steps over 20 greedy
episodes; minutes are those of training, on one core, without evaluations, checkpoints and compilation.
Results that exist are kept.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "time_to"
ALGORITHMS = ("ppo", "dqn", "gdi")
EVERY = 10_000
EPISODES = 20


def one(algorithm: str, env: str, reward: float, seed: int, out: Path, scratch: Path) -> None:
    """Trains one seed and writes when it reached the score; `steps` is null when it never did."""
    from sparring import launch
    from sparring.metrics import performance, sqlite
    from sparring.runs import directory
    from sparring.runs.durable import replace_file
    from sparring.runs.provenance import processor

    values = {
        "eval_freq": EVERY,
        "n_eval_episodes": EPISODES,
        "stop_reward": reward,
        "evaluation": "inline",
    }
    folder = scratch / out.stem
    launch.train(launch.plan(algorithm, env, (seed,), values=values), run_dir=folder)
    run = directory.find(folder)
    if run.read_status().state != "finished":
        sys.exit(f"{algorithm} seed {seed} was interrupted: delete {folder} and start again.")
    scores = sqlite.read(run.metrics, "eval/mean_reward")
    reached = [int(step) for step, score in zip(scores.steps, scores.values, strict=True) if score >= reward]
    wall, shares = performance.total(performance.recorded(run.metrics))
    training = 1.0 - sum(shares.get(kind, 0.0) for kind in ("evaluation", "compile", "checkpoint"))
    result = {
        "algorithm": algorithm,
        "env": env,
        "seed": seed,
        "reward": reward,
        "steps": min(reached, default=None),
        "trained": run.read_status().steps,
        "best": float(scores.values.max()),
        "seconds": wall * training,
        "wall_seconds": wall,
        "processor": processor(),
        "cores": os.cpu_count(),
        "date": datetime.date.today().isoformat(),
    }
    replace_file(out, [json.dumps(result).encode() + b"\n"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env", default="LunarLander-v3")
    parser.add_argument("--reward", type=float, default=200.0)
    parser.add_argument("--algorithm", action="append", choices=ALGORITHMS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--core", type=int, default=0, help="the core that everything runs on")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--scratch", type=Path, default=Path("runs") / "time_to")
    parser.add_argument("--one", nargs=2, metavar=("ALGORITHM", "SEED"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.one:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {arguments.core})
        algorithm, seed = arguments.one[0], int(arguments.one[1])
        out = arguments.out / f"{algorithm}-{seed}.json"
        one(algorithm, arguments.env, arguments.reward, seed, out, arguments.scratch)
        return
    for algorithm in arguments.algorithm or ALGORITHMS:
        for seed in range(arguments.seeds):
            if (arguments.out / f"{algorithm}-{seed}.json").exists():
                continue
            command = [sys.executable, __file__, "--one", algorithm, str(seed)]
            for name in ("env", "reward", "core", "out", "scratch"):
                command += [f"--{name}", str(getattr(arguments, name))]
            code = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False).returncode
            print(f"{algorithm} seed {seed}: {'done' if code == 0 else 'FAILED'}", flush=True)


if __name__ == "__main__":
    main()
