"""Speed of the host driver through Gymnasium, RL-Zoo's settings. Prints one JSON line.

python benchmarks/speed_host.py cartpole-host|lunarlander-host|hopper-host --steps N
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import jax

from sparring import launch
from sparring.model import algorithm_class, assemble

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "cartpole-host": ("gym:CartPole-v1", {}),
    "lunarlander-host": ("LunarLander-v3", {}),
    "hopper-host": (
        "Hopper-v5",
        {"n_envs": 1, "n_steps": 2048, "batch_size": 64, "n_epochs": 10, "use_preset": False},
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("case", choices=CASES)
    parser.add_argument(
        "--steps", type=int, required=True, help="environment steps, the first iteration apart"
    )
    a = parser.parse_args()
    env, values = CASES[a.case]
    values = dict(values)
    use_preset = values.pop("use_preset", True)
    plan = launch.plan("ppo", env, values={**values, "eval_freq": -1}, use_preset=use_preset)
    parts = assemble(
        algorithm_class("ppo"), env, plan.settings, plan.config, (0,), eval_env=False, device="cpu"
    )
    driver = parts.driver
    iterations = max(a.steps // driver.steps_per_iteration, 1)
    driver.reschedule(float(iterations + 1))
    driver.advance(1)
    began = time.perf_counter()
    driver.advance(iterations)
    seconds = time.perf_counter() - began
    steps = iterations * driver.steps_per_iteration
    print(
        json.dumps(
            {
                "peer": "sparring",
                "case": a.case,
                "steps": steps,
                "seconds": seconds,
                "steps_per_second": steps / seconds,
                "compile_seconds": driver.compile_seconds,
                "versions": {"jax": jax.__version__},
            }
        )
    )


if __name__ == "__main__":
    main()
