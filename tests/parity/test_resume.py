"""A run that was interrupted and resumed equals one that was not, bit for bit, through the files on disk."""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring import launch
from sparring.metrics import sqlite
from sparring.model import algorithm_class, assemble
from sparring.runs import checkpoint, directory
from sparring.session import Session

SHORT: dict[str, Any] = {"n_envs": 2, "eval_freq": -1, "n_eval_episodes": 2, "total_timesteps": 960}
TINY: dict[str, Any] = {"pi": [8], "vf": [8], **SHORT}
CASES = {
    "ppo": {"n_steps": 16, "batch_size": 16, "n_epochs": 2, "learning_rate": "lin_1e-3"},
    "a2c": {"n_steps": 8},
    "reinforce": {"n_steps": 24, "learning_rate": "lin_1e-3"},
}
MORE = {
    "dqn": ("gym:CartPole-v1", {"net_arch": [8], "train_freq": 8, "buffer_size": 300, "prioritized": True}),
    "sac": ("gym:Pendulum-v1", {"pi": [8], "qf": [8], "train_freq": 8, "buffer_size": 300}),
    "td3": ("gym:Pendulum-v1", {"pi": [8], "qf": [8], "train_freq": 8, "buffer_size": 300, "noise": "ou"}),
    "crossq": ("gym:Pendulum-v1", {"pi": [8], "qf": [8], "train_freq": 8, "buffer_size": 300}),
    "pqn": ("gym:CartPole-v1", {"net_arch": [8], "n_steps": 16}),
}
ENVS = {
    "CartPole-v1": {},
    "probe/multiply-continuous": {"normalize": True, "use_sde": True, "sde_sample_freq": 4, "frame_stack": 2},
    "gym:CartPole-v1": {"normalize": True},
    "gym:Pendulum-v1": {"frame_stack": 2},
}


def quiet(text: str) -> None:
    """Swallows what a run says."""


def final(run: Path) -> dict[str, np.ndarray]:
    found = checkpoint.load_latest(run / "checkpoints")
    assert found is not None
    return found.arrays


PAIRS = [*product(CASES, ENVS), *((a, e) for a, (e, _) in MORE.items())]
EACH = {("a2c", "probe/multiply-continuous"), ("reinforce", "gym:CartPole-v1")}
"""Pairs of which every run tries one or two per algorithm; PPO, DQN and SAC stand for the others."""


def marked(pair: tuple[str, str]) -> Any:
    like = pair[0] not in ("ppo", "dqn", "sac") and pair not in EACH
    return pytest.param(*pair, marks=[pytest.mark.exhaustive] * like)


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "env"), [marked(pair) for pair in PAIRS])
def test_resumed_equals_uninterrupted(algorithm: str, env: str, tmp_path: Path) -> None:
    values = {
        **SHORT,
        **(MORE[algorithm][1] if algorithm in MORE else {**TINY, **CASES[algorithm], **ENVS[env]}),
    }
    if algorithm == "reinforce" and env == "gym:Pendulum-v1":
        values["time_limit"] = 40
    plan = launch.plan(algorithm, env, (3,), values=values, use_preset=False)
    launch.train(plan, run_dir=tmp_path / "whole", say=quiet)

    # The interrupted run stops in the middle, at the checkpoint it would have taken there.
    halves = plan._replace(settings=dataclasses.replace(plan.settings, checkpoint_freq=480))
    run = directory.create(algorithm, env, 3, path=tmp_path / "parts", total=960)
    with run:
        parts = assemble(algorithm_class(algorithm), env, halves.settings, plan.config, (3,))
        session = Session(parts.driver, parts.settings, None, run, say=quiet)
        parts.driver.reschedule(float(session.total_iterations))
        parts.driver.advance(session.total_iterations // 2)
        session.progress.next_eval = session.progress.next_checkpoint = 1 << 60
        session.save()
        parts.driver.close()
        launch_config(run, plan)
    launch.resume(run, say=quiet)

    whole, resumed = final(tmp_path / "whole"), final(tmp_path / "parts")
    assert whole.keys() == resumed.keys()
    different = [name for name in whole if not np.array_equal(whole[name], resumed[name])]
    assert different == []


def launch_config(run: directory.RunDirectory, plan: launch.Plan) -> None:
    from sparring.config import as_mapping

    run.write_config(
        {
            "schema": 1,
            "algorithm": plan.algorithm,
            "env": plan.env,
            "seeds": list(plan.seeds),
            "settings": as_mapping(plan.settings),
            "config": as_mapping(plan.config),
            "env_kwargs": {},
        }
    )


@pytest.mark.slow
def test_metrics_of_a_resumed_run_have_no_gap_and_no_double(tmp_path: Path) -> None:
    values = {**TINY, **CASES["ppo"], "total_timesteps": 960}
    plan = launch.plan("ppo", "CartPole-v1", (0,), values=values, use_preset=False)
    launch.train(plan, run_dir=tmp_path / "run", say=quiet)
    launch.resume(directory.find(tmp_path / "run"), total_timesteps=1920, say=quiet)
    steps = sqlite.read(tmp_path / "run" / "metrics.sqlite", "train/loss").steps
    assert list(steps) == list(range(32, 1921, 32))


PROGRAM = """
import sys
from pathlib import Path
from sparring import launch
from sparring.runs import directory
folder = Path(sys.argv[1])
values = dict(pi=[8], vf=[8], n_envs=2, n_steps=8, batch_size=8, n_epochs=1, eval_freq=-1, n_eval_episodes=1,
              total_timesteps=100_000_000, checkpoint_freq=16)
if folder.exists():
    run = directory.find(folder)
    print("resuming", flush=True)
    launch.resume(run)
else:
    launch.train(launch.plan("ppo", "CartPole-v1", (0,), values=values, use_preset=False), run_dir=folder)
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_kills_at_random_moments_leave_a_run_that_resumes(tmp_path: Path) -> None:
    """SIGKILL while a run trains and checkpoints all the time: what is left loads, and the run resumes.

    Six kills here; `make kills` does fifty (every one pays for a compilation).
    """
    random.seed(0)
    folder = tmp_path / "run"
    reached = -1
    for _ in range(int(os.environ.get("SPARRING_KILLS", "6"))):
        with (tmp_path / "log").open("a") as log:
            process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(folder)], stdout=log, stderr=log)
        deadline = time.monotonic() + 120
        while newest(folder) <= reached and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.05)
        time.sleep(random.random() * 0.5)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.returncode == -signal.SIGKILL, (tmp_path / "log").read_text()
        complaints: list[str] = []
        found = checkpoint.load_latest(folder / "checkpoints", report=complaints.append)
        assert found is not None
        assert complaints == []
        assert found.manifest.step > reached
        reached = found.manifest.step


def newest(folder: Path) -> int:
    names = [p.name for p in checkpoint.listing(folder / "checkpoints")]
    return int(names[0].removeprefix("step-").partition(".")[0]) if names else -1
