"""Run folders: names, one writer at a time, status, and finding runs again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from datetime import datetime
from pathlib import Path

import pytest

from sparring.errors import ConfigError, StorageError, UnknownName
from sparring.runs import directory
from sparring.runs.directory import RunDirectory, Status
from sparring.runs.lock import is_held


def test_names_are_safe_and_say_what_the_run_is() -> None:
    now = datetime(2025, 1, 2, 3, 4, 5)
    assert directory.default_name("PPO", "CartPole-v1", 0, now) == "ppo-CartPole-v1-0-20250102-030405"
    name = directory.default_name("my/algo.py:Mine", "ALE/Pong:v5 \\..\\x", 3, now)
    assert name == "my_algo.py_mine-ALE_Pong_v5_.._x-3-20250102-030405"
    assert directory.default_name("ppo", "../..", 0, now) == "ppo-_-0-20250102-030405"


def test_runs_of_the_same_second_get_numbers(tmp_path: Path) -> None:
    made = [directory.create("ppo", "gym:A-v0", 1, root=tmp_path / "runs") for _ in range(5)]
    assert len({run.path for run in made}) == 5
    assert all(run.name.startswith("ppo-gym_A-v0-1-") for run in made)
    assert all(run.checkpoints.is_dir() for run in made)
    for run in made:
        run.unlock()


def test_a_chosen_folder_is_used_once(tmp_path: Path) -> None:
    run = directory.create("ppo", "A", 0, path=tmp_path / "mine")
    run.unlock()
    with pytest.raises(StorageError, match="sparring resume"):
        directory.create("ppo", "A", 0, path=tmp_path / "mine")


def test_settings_keep_their_comments_and_come_back(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    values = {"algo": "ppo", "config": {"learning_rate": 1e-3, "net_arch": [64, 64]}}
    run.write_config(values, {"config.learning_rate": "from --set"})
    assert "# from --set" in (tmp_path / "config.toml").read_text()
    assert run.read_config() == values
    (tmp_path / "config.toml").write_text("= broken")
    with pytest.raises(ConfigError, match="not valid TOML"):
        run.read_config()
    with pytest.raises(ConfigError, match="not a run"):
        RunDirectory(tmp_path / "other").read_config()


def test_a_folder_has_one_writer(tmp_path: Path) -> None:
    with directory.create("ppo", "A", 0, path=tmp_path / "run") as run:
        began = time.monotonic()
        with pytest.raises(StorageError, match=f"in use by process {os.getpid()}"):
            RunDirectory(run.path).lock()
        assert time.monotonic() - began < 1.0
    again = RunDirectory(tmp_path / "run")
    again.lock()
    again.unlock()
    again.unlock()


HOLDER = """
    import sys, time
    from sparring.runs.directory import RunDirectory
    run = RunDirectory(sys.argv[1])
    run.lock()
    run.write_status(run.read_status()._replace(state="running"))
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_killed_process_frees_the_folder_and_shows_as_killed(tmp_path: Path) -> None:
    directory.create("ppo", "A", 0, root=tmp_path).unlock()
    run = directory.find("last", tmp_path)
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLDER), str(run.path)], stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"held\n"
    assert is_held(run.path / "lock")
    assert run.read_status().state == "running"
    with pytest.raises(StorageError, match=f"in use by process {child.pid}"):
        run.lock()
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert run.read_status().state == "killed"
    run.lock()
    run.unlock()


def test_looking_at_a_run_does_not_disturb_its_owner(tmp_path: Path) -> None:
    run = directory.create("ppo", "A", 0, path=tmp_path / "run")
    run.unlock()
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(0.001):
            run.read_status()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(200):
            run.lock()
            assert is_held(run.path / "lock")
            run.unlock()
    finally:
        stop.set()
        thread.join()


def test_status_is_replaced_whole_and_listed_newest_first(tmp_path: Path) -> None:
    for number, name in enumerate(["a", "c", "b"]):
        (tmp_path / name).mkdir()
        RunDirectory(tmp_path / name).write_status(
            Status("ppo", "Env", number, state="finished", steps=100, mean_reward=1.5, started=float(number))
        )
    (tmp_path / "not a run").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "status.json").write_text("{half")
    listed = directory.statuses(tmp_path)
    assert [run.name for run, _ in listed] == ["broken", "b", "c", "a"]
    assert listed[0][1].state == "unknown"
    status = listed[1][1]
    assert (status.state, status.steps, status.mean_reward, status.seed) == ("finished", 100, 1.5, 2)
    assert not list(tmp_path.rglob(".tmp-*"))


def test_an_unknown_state_or_field_does_not_break_the_list(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "status.json").write_text('{"algo": "x", "state": "dancing", "later": 1}')
    assert directory.statuses(tmp_path)[0][1].state == "unknown"


def test_find_takes_a_path_a_name_or_last(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="sparring train"):
        directory.find("last", tmp_path)
    run = directory.create("ppo", "CartPole-v1", 0, root=tmp_path)
    run.unlock()
    assert directory.find(run.path).path == run.path
    assert directory.find(run.name, tmp_path).path == run.path
    assert directory.find("last", tmp_path).path == run.path
    with pytest.raises(UnknownName, match=f"Did you mean '{run.name}'"):
        directory.find(run.name[:-1] + "x", tmp_path)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="cannot be written"):
        directory.create("ppo", "A", 0, root=tmp_path / "file" / "runs")
    with pytest.raises(StorageError, match="cannot be written"):
        RunDirectory(tmp_path / "file").write_status(Status("a", "b", 0))
