"""Signals: an interrupted run is saved, ends well and can be resumed; a killed one can be resumed too."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_help import cached

START_SECONDS = 120.0


@pytest.fixture(autouse=True)
def quick_start(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of these tests compile once."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    for name, value in cached(tmp_path_factory).items():
        monkeypatch.setenv(name.upper(), str(value))


def sparring(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sparring", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def start(run: Path) -> subprocess.Popen[str]:
    """An endless training that has written its second checkpoint."""
    process = sparring(
        "train", "a2c", "CartPole-v1", "--total-timesteps", "1e9", "--run-dir", run, "--quiet", "--json",
        "--set", "n_envs=4", "n_eval_episodes=4", "checkpoint_freq=2000", "eval_freq=-1",
    )  # fmt: skip
    deadline = time.monotonic() + START_SECONDS
    while len(list(run.glob("checkpoints/step-*/manifest.json"))) < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "training did not start"
        time.sleep(0.05)
    return process


def resumes(run: Path) -> None:
    """The run goes on for a little and ends."""
    steps = json.loads((run / "status.json").read_text())["steps"]
    process = sparring("resume", run, "--total-timesteps", steps + 5000, "--quiet", "--json")
    out, err = process.communicate(timeout=START_SECONDS)
    assert process.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["outcome"] == "finished"
    status = json.loads((run / "status.json").read_text())
    assert status["state"] == "finished"
    assert status["steps"] >= steps + 5000  # a kill may leave the status behind the checkpoint


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive)]
)
def test_a_signal_saves_and_ends_with_0(tmp_path: Path, number: signal.Signals) -> None:
    run = tmp_path / "run"
    process = start(run)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "everything is saved" in err
    assert f"sparring resume {run}" in err
    result = json.loads(out.splitlines()[-1])
    assert result["outcome"] == "interrupted"
    status = json.loads((run / "status.json").read_text())
    assert status["state"] == "interrupted"
    assert status["steps"] == result["steps"]
    resumes(run)


@pytest.mark.slow
def test_a_killed_run_resumes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start(run)
    process.kill()
    process.communicate(timeout=60)
    resumes(run)


def test_a_signal_before_training_ends_at_once(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = sparring("train", "a2c", "CartPole-v1", "--run-dir", run)
    assert process.stdout is not None
    assert "preset" in process.stdout.readline()  # it begins to compile now
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "nothing to resume" in err
    assert not run.exists()
