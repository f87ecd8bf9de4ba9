"""Metrics in SQLite: nothing doubled, nothing lost, failures heard."""

from __future__ import annotations

import math
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.errors import StorageError
from sparring.metrics import sqlite
from sparring.metrics.sink import Sink, Tee
from sparring.metrics.sqlite import SqliteSink


def test_it_is_a_sink(tmp_path: Path) -> None:
    sink = SqliteSink(tmp_path / "m.sqlite")
    assert isinstance(sink, Sink)
    sink.close()
    sink.close()


def test_curves_come_back_by_name_seed_and_step(tmp_path: Path) -> None:
    path = tmp_path / "m.sqlite"
    sink = SqliteSink(path)
    for step in (300, 100, 200):
        sink.write(step, step / 10, {"train/loss": step * 2, "odd": math.nan, "top": math.inf})
        sink.write(step, step / 10, {"train/loss": -step}, seed=1)
    sink.describe({"algo": "ppo", "env": "CartPole-v1"})
    sink.close()
    steps, times, values = sqlite.read(path, "train/loss")
    assert steps.tolist() == [100, 200, 300]
    assert times.tolist() == [10.0, 20.0, 30.0]
    assert values.tolist() == [200.0, 400.0, 600.0]
    assert sqlite.read(path, "train/loss", seed=1).values.tolist() == [-100.0, -200.0, -300.0]
    assert np.isnan(sqlite.read(path, "odd").values).all()
    assert np.isinf(sqlite.read(path, "top").values).all()
    assert sqlite.names(path) == ["odd", "top", "train/loss"]
    assert sqlite.seeds(path) == [0, 1]
    assert sqlite.last(path, "train/loss") == 600.0
    assert sqlite.last(path, "nothing") is None
    assert len(sqlite.read(path, "nothing").steps) == 0
    assert sqlite.metadata(path) == {"algo": "ppo", "env": "CartPole-v1"}


def test_a_resumed_run_has_no_duplicate_and_no_missing_row(tmp_path: Path) -> None:
    path = tmp_path / "m.sqlite"
    sink = SqliteSink(path)
    for step in range(1, 11):
        sink.write(step, step, {"x": step})
    sink.close()
    resumed = SqliteSink(path)
    resumed.truncate_after(6)  # the checkpoint
    assert sqlite.read(path, "x").steps.tolist() == list(range(1, 7))
    for step in range(7, 13):
        resumed.write(step, step, {"x": step, "y": 0})
    resumed.close()
    assert sqlite.read(path, "x").steps.tolist() == list(range(1, 13))
    assert sqlite.read(path, "x").values.tolist() == list(range(1, 13))


def test_the_same_step_twice_keeps_the_last(tmp_path: Path) -> None:
    sink = SqliteSink(tmp_path / "m.sqlite")
    sink.write(5, 1.0, {"x": 1})
    sink.write(5, 2.0, {"x": 2})
    sink.close()
    assert sqlite.read(tmp_path / "m.sqlite", "x").values.tolist() == [2.0]


def test_points_appear_within_a_second_while_writing_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "m.sqlite"
    sink = SqliteSink(path)
    sink.write(1, 0.0, {"x": 1})
    deadline = time.monotonic() + 5
    while len(sqlite.read(path, "x").steps) == 0:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    sink.close()


def test_writing_is_cheap_for_the_caller_and_bounded(tmp_path: Path) -> None:
    path = tmp_path / "m.sqlite"
    sink = SqliteSink(path, capacity=50)
    for step in range(5000):
        sink.write(step, 0.0, {"a": step, "b": -step})
    sink.flush()
    assert sqlite.read(path, "b").steps.tolist() == list(range(5000))
    sink.close()


def test_close_does_not_wait_for_the_flush_period(tmp_path: Path) -> None:
    sink = SqliteSink(tmp_path / "m.sqlite", flush_seconds=30.0)
    sink.write(1, 0.0, {"x": 1})
    began = time.monotonic()
    sink.close()
    assert time.monotonic() - began < 2.0
    assert sqlite.last(tmp_path / "m.sqlite", "x") == 1.0
    with pytest.raises(StorageError, match="closed"):
        sink.write(2, 0.0, {"x": 1})


def small_disk(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes databases report a full disk after a few pages, as SQLite does when the disk is full."""
    real = sqlite3.connect
    opened: list[sqlite3.Connection] = []

    def connect(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection = real(*args, **kwargs)
        connection.execute("PRAGMA max_page_count = 12")
        opened.append(connection)
        return connection

    monkeypatch.setattr(sqlite.sqlite3, "connect", connect)
    return opened


def fill(sink: SqliteSink) -> int:
    for step in range(100_000):
        sink.write(step, 0.0, {f"metric/{step % 50}": 1.0})
        if step % 50 == 0:
            sink.flush()
    raise AssertionError("the disk never filled")


def test_a_full_disk_is_heard_at_the_next_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_disk(monkeypatch)
    sink = SqliteSink(tmp_path / "m.sqlite", flush_seconds=0.05)
    with pytest.raises(StorageError, match="full"):
        fill(sink)
    with pytest.raises(StorageError, match="full"):
        sink.write(10**6, 0.0, {"x": 1})
    with pytest.raises(StorageError, match="full"):
        sink.flush()
    with pytest.raises(StorageError, match="full"):
        sink.close()
    monkeypatch.undo()
    assert len(sqlite.names(tmp_path / "m.sqlite")) > 0
    assert not any(thread.name == "sparring-metrics" for thread in threading.enumerate())


def write_for_ever(sink: SqliteSink, accepted: list[int]) -> None:
    for step in range(100_000):
        sink.write(step, 0.0, {"x": float(step)})
        accepted.append(step)
        time.sleep(0.0002)


def test_when_space_returns_what_was_accepted_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.sqlite"
    opened = small_disk(monkeypatch)
    sink = SqliteSink(path, flush_seconds=0.05)
    accepted: list[int] = []
    with pytest.raises(StorageError):
        write_for_ever(sink, accepted)
    opened[0].execute("PRAGMA max_page_count = 100000")
    deadline = time.monotonic() + 10
    while True:
        try:
            sink.write(10**6, 0.0, {"back": 1})
            break
        except StorageError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    sink.close()
    monkeypatch.undo()
    assert sqlite.read(path, "x").steps.tolist() == accepted
    assert sqlite.last(path, "back") == 1.0


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="could not be written"):
        SqliteSink(tmp_path / "nowhere" / "m.sqlite")


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "m.sqlite"
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(StorageError):
        SqliteSink(path)
    with pytest.raises(StorageError, match="cannot be read"):
        sqlite.names(path)
    with pytest.raises(StorageError, match="no metrics"):
        sqlite.names(tmp_path / "other")


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StorageError, match="newer sparring"):
        SqliteSink(path)


WRITER = """
    import sys
    from sparring.metrics.sqlite import SqliteSink
    assert "jax" not in sys.modules
    sink = SqliteSink(sys.argv[1], flush_seconds=0.01)
    step = int(sys.argv[2])
    sink.truncate_after(step - 1)
    while True:
        for _ in range(20):
            sink.write(step, step, {"a": step, "b": -step})
            step += 1
        sink.flush()
        print(step - 1, flush=True)
"""


def test_kills_lose_nothing_that_was_flushed(tmp_path: Path) -> None:
    path = tmp_path / "m.sqlite"
    start = 0
    for round_ in range(8):
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WRITER), str(path), str(start)], stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        flushed = int(child.stdout.readline())
        time.sleep(0.01 * round_)
        child.send_signal(signal.SIGKILL)
        flushed = max([flushed, *(int(line) for line in child.stdout.read().splitlines() if line)])
        child.wait()
        child.stdout.close()
        connection = sqlite3.connect(path)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        connection.close()
        curve = sqlite.read(path, "a")
        assert curve.steps.tolist() == list(range(len(curve.steps)))
        assert curve.steps[-1] >= flushed
        np.testing.assert_array_equal(sqlite.read(path, "b").values, -curve.values)
        start = flushed + 1  # resume from a checkpoint that is older than the last row


def test_tee_writes_to_all_and_closes_all(tmp_path: Path) -> None:
    class Broken:
        def write(self, step: int, seconds: float, values: Any, seed: int = 0) -> None: ...

        def close(self) -> None:
            raise StorageError("broken")

    sink = SqliteSink(tmp_path / "m.sqlite")
    tee = Tee([Broken(), sink])
    tee.write(1, 0.0, {"x": 1})
    with pytest.raises(StorageError, match="broken"):
        tee.close()
    assert sqlite.last(tmp_path / "m.sqlite", "x") == 1.0


def test_a_record_of_many_points_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "m.sqlite"
    sink = SqliteSink(path)
    many = {f"metric/{i}": i / 7 for i in range(2 * sqlite.TOGETHER + 3)}
    sink.write(1, 0.1, many)
    sink.write(2, 0.2, {})
    sink.close()
    (record,) = sqlite.written(path)
    assert record == (1, 0.1, many, 0)  # every number to its last bit


def test_the_writer_takes_its_turn_once_a_record_and_sleeps_while_records_come(tmp_path: Path) -> None:
    """Otherwise the thread that trains waits for its own turn, 5 ms at a time."""
    sink = SqliteSink(tmp_path / "m.sqlite", flush_seconds=30.0)
    sink.write(0, 0.0, {f"metric/{i}": 0.0 for i in range(60)})
    sink.flush()  # names have their ids now
    statements: list[str] = []
    sink._connection.set_trace_callback(statements.append)
    for step in range(1, 11):
        sink.write(step, 0.0, {f"metric/{i}": 0.0 for i in range(60)})
    assert statements == []
    sink.flush()
    assert [statement.split(" ", 1)[0] for statement in statements] == ["BEGIN", *["INSERT"] * 10, "COMMIT"]
    sink.close()
