"""A tracker in a process of its own: failures are told; neither death nor hanging costs the run anything."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparring.errors import StorageError
from sparring.metrics import tracker_process, trackers
from sparring.metrics.apart import Apart
from sparring.metrics.tracker_process import TrackerProcess, serve


class Faulty:
    """Keeps numbers, refuses films, and has no method for anything else."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def write(self, *arguments: Any) -> None:
        self.calls.append(arguments)

    def video(self, step: int, path: Path, seed: int = 0) -> None:
        raise RuntimeError(f"no room for {path.name}")

    def close(self) -> None:
        self.calls.append("closed")
        raise StorageError("The file is torn.")


def served(monkeypatch: pytest.MonkeyPatch, *requests: Any) -> tuple[Faulty, list[str]]:
    sink, answers = Faulty(), io.BytesIO()
    monkeypatch.setattr(trackers, "make", lambda *plan: sink)
    monkeypatch.setattr(tracker_process, "LINGER", 3600.0)  # its end would be the test's
    lines = [["faulty", "folder", "title", None], *requests]
    serve(io.BytesIO(b"".join(json.dumps(line).encode() + b"\n" for line in lines)), answers)
    return sink, [json.loads(line) for line in answers.getvalue().splitlines()]


def test_every_call_is_answered_and_the_end_of_requests_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    sink, answers = served(
        monkeypatch,
        ["write", 1, 0.5, {"a": float("nan"), "b": 0.1}, 0],
        ["video", 1, "films/one.mp4", 0],
        ["alert", 1, "rule", "text", "error", 0],
        ["write", 2, 0.5, {"a": float("inf")}, 1],
    )
    assert answers == ["", "RuntimeError: no room for one.mp4", "", "", "The file is torn."]
    assert str(sink.calls) == "[(1, 0.5, {'a': nan, 'b': 0.1}, 0), (2, 0.5, {'a': inf}, 1), 'closed']"


def test_a_trainer_that_goes_at_once_needs_no_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    sink, answers = served(monkeypatch)
    assert (sink.calls, answers) == ([], [""])
    out = io.BytesIO()
    serve(io.BytesIO(b""), out)
    assert out.getvalue() == b""


@pytest.fixture
def board(tmp_path: Path) -> Iterator[TrackerProcess]:
    tracker = TrackerProcess("tensorboard", tmp_path / "board", "title")
    yield tracker
    pid = tracker.pid
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(StorageError):
            tracker.close()


def until(what: Callable[[], Any], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_plays_at_low_priority_finishes_and_leaves_no_process(
    board: TrackerProcess, tmp_path: Path
) -> None:
    board.close()
    assert board.pid is None  # nothing was written: nothing was started
    board = TrackerProcess("tensorboard", tmp_path / "board", "title")
    board.write(1, 0.0, {"a": 1.0})
    pid = board.pid
    assert pid is not None
    assert os.getpriority(os.PRIO_PROCESS, pid) >= tracker_process.NICENESS
    board.close()
    board.close()
    assert not Path(f"/proc/{pid}").exists()
    assert list((tmp_path / "board").glob("events.*"))


def test_its_death_is_said_once_and_counted(board: TrackerProcess) -> None:
    said: list[str] = []
    sink = Apart(board, "tensorboard", said.append, remedy="Replay it.")
    sink.write(1, 0.0, {"a": 1.0})
    until(lambda: sink.lost == 0)
    assert board.pid is not None
    os.kill(board.pid, signal.SIGKILL)
    for step in (2, 3):
        sink.write(step, 0.0, {"a": 1.0})
    sink.close()
    assert said == [
        "tensorboard failed (its process died, exit code -9); training goes on. Replay it.",
        "tensorboard lost 2 of 3 records. Replay it.",
    ]
    assert board.pid is None


def test_one_that_hangs_is_told_to_finish_by_itself(board: TrackerProcess, tmp_path: Path) -> None:
    said: list[str] = []
    sink = Apart(board, "tensorboard", said.append, patience=0.1)
    sink.write(1, 0.0, {"a": 1.0})
    until(lambda: sink.lost == 0)
    pid = board.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    sink.write(2, 0.0, {"a": 2.0})
    sink.close()
    assert "left behind" in said[0]
    os.kill(pid, signal.SIGCONT)  # it finishes, and the thread that waits for it ends it
    until(lambda: board.pid is None)
    assert not Path(f"/proc/{pid}").exists()


def test_it_finishes_when_the_trainer_is_killed(tmp_path: Path) -> None:
    program = (
        "import os, sys, signal; from pathlib import Path\n"
        "from sparring.metrics.tracker_process import TrackerProcess\n"
        "board = TrackerProcess('tensorboard', Path(sys.argv[1]), 'title')\n"
        "board.write(1, 0.0, {'a': 1.0}); print(board.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "board")],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    stat = Path(f"/proc/{int(done.stdout)}/stat")
    until(lambda: not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z")
    assert list((tmp_path / "board").glob("events.*"))
