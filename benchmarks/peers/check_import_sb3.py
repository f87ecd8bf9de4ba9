"""Trains small models with Stable-Baselines3, imports each, and holds the agent against the model.

    .venv/bin/python benchmarks/peers/check_import_sb3.py
    .venv/bin/python benchmarks/peers/check_import_sb3.py --fixtures    # writes tests/golden/sb3_import

Needs .venv-peers (benchmarks/peers/requirements.txt), or SPARRING_SB3_PYTHON. The first command prints the
table of docs/sb3.md; the second keeps what the exporter hands over for smaller models, which the tests read.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "golden" / "sb3_import"

TRAINER = """
import json, sys
import gymnasium as gym, torch
import stable_baselines3 as sb3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize
torch.set_num_threads(1)
case = json.loads(sys.argv[1])
env = make_vec_env(case["env"], n_envs=1, seed=0)
if case.get("normalise"):
    env = VecNormalize(env, **case["normalise"])
kwargs = dict(case["settings"])
kwargs["policy_kwargs"] = {k: getattr(torch.nn, v) if k == "activation_fn" else v
                           for k, v in kwargs.get("policy_kwargs", {}).items()}
model = getattr(sb3, case["algo"])("MlpPolicy", env, seed=0, device="cpu", **kwargs)
model.learn(case["steps"])
model.save(sys.argv[2] + "/model.zip")
if case.get("normalise"):
    env.save(sys.argv[2] + "/vecnormalize.pkl")
"""

WARM = {"learning_starts": 100}
CASES: dict[str, dict[str, Any]] = {
    "ppo": {"algo": "PPO", "env": "CartPole-v1", "steps": 4096, "settings": {"n_steps": 512}},
    "ppo-normalised": {
        "algo": "PPO",
        "env": "Pendulum-v1",
        "steps": 4096,
        "settings": {"n_steps": 512, "policy_kwargs": {"activation_fn": "ReLU"}},
        "normalise": {"clip_obs": 3.0},
    },
    "ppo-sde": {
        "algo": "PPO",
        "env": "Pendulum-v1",
        "steps": 2048,
        "settings": {"n_steps": 512, "use_sde": True, "sde_sample_freq": 4},
    },
    "a2c": {"algo": "A2C", "env": "CartPole-v1", "steps": 3000, "settings": {}},
    "a2c-box": {"algo": "A2C", "env": "MountainCarContinuous-v0", "steps": 3000, "settings": {}},
    "dqn": {"algo": "DQN", "env": "CartPole-v1", "steps": 4000, "settings": WARM},
    "sac": {"algo": "SAC", "env": "Pendulum-v1", "steps": 1000, "settings": WARM},
    "td3": {"algo": "TD3", "env": "Pendulum-v1", "steps": 1000, "settings": WARM},
    "ppo-hopper": {
        "algo": "PPO",
        "env": "Hopper-v5",
        "steps": 4096,
        "settings": {"n_steps": 512},
        "normalise": {},
    },
}
SMALL = ("ppo", "ppo-normalised", "ppo-sde", "a2c", "dqn", "sac", "td3")
"""Cases whose hand-over is kept for the tests."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fixtures", action="store_true")
    parser.add_argument("--only", choices=CASES)
    options = parser.parse_args()
    from sparring.sb3 import importing

    python = importing.find_python(None)
    if options.fixtures:
        for name in SMALL:
            keep(name, python)
        return
    print("| model | environment | decisions equal | largest difference | steps alike | largest difference |")
    print("|---|---|---|---|---|---|")
    worst = 0.0
    for name, case in CASES.items():
        if options.only in (None, name):
            worst = max(worst, check(name, case, python))
    sys.exit(worst > 1e-5)


def train(case: dict[str, Any], folder: Path, python: Path) -> None:
    subprocess.run([str(python), "-c", TRAINER, json.dumps(case), str(folder)], check=True)


def check(name: str, case: dict[str, Any], python: Path) -> float:
    """One row of the table; returns the largest difference of a decision."""
    with tempfile.TemporaryDirectory() as folder:
        train(case, Path(folder), python)
        command = [sys.executable, "-m", "sparring", "import-sb3", f"{folder}/model.zip", "--json"]
        command += ["--env", case["env"], "-o", f"{folder}/run", "--peers-python", str(python)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stderr, file=sys.stderr)
            return float("inf")
        said = json.loads(done.stdout.splitlines()[-1])
        seen, again = said["parity"], said["replay"]
        for verb in (["eval", "--episodes", "4"], ["export", "--to", "safetensors", "-o", f"{folder}/x"]):
            command = [sys.executable, "-m", "sparring", verb[0], f"{folder}/run", *verb[1:]]
            subprocess.run(command, capture_output=True, check=True)
    apart = max(seen["action"], seen["params"])
    print(
        f"| {name} | {case['env']} | {seen['equal']} of {seen['observations']} | {apart:.1e} | "
        f"{again['same']} of {again['steps']} | {max(again['obs'], again['reward']):.1e} |",
        flush=True,
    )
    return apart


def keep(name: str, python: Path) -> None:
    """The hand-over of a smaller model, as the tests read it."""
    from sparring.sb3 import importing

    case = json.loads(json.dumps(CASES[name]))
    case["steps"] = min(case["steps"], 2048)
    nets = {"SAC": {"pi": [16, 8], "qf": [8]}, "TD3": {"pi": [16, 8], "qf": [8]}, "DQN": [16, 8]}
    case["settings"].setdefault("policy_kwargs", {})["net_arch"] = nets.get(case["algo"], {"pi": [16, 8]})
    with tempfile.TemporaryDirectory() as folder:
        train(case, Path(folder), python)
        statistics = importing.find_statistics(Path(folder) / "model.zip")
        model = Path(folder) / "model.zip"
        returned = importing.export(model, case["env"], python, statistics, 250, 300)
    for file, body in returned.files.items():
        target = FIXTURES / name / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(body)
    print(name, {file: len(body) for file, body in returned.files.items()})


if __name__ == "__main__":
    main()
