"""A tracker that is slow, broken or hangs costs training nothing and is reported once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from sparring.metrics.apart import Apart
from sparring.metrics.sink import Sink

VALUES = {f"train/{i}": float(i) for i in range(20)}


class Kept:
    """Keeps records; `before` may sleep, raise or hang."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self.records: list[tuple[int, float, Mapping[str, float], int]] = []
        self.alerts: list[Any] = []
        self.closed = 0
        self.threads: set[int] = set()
        self._before = before

    def write(self, step: int, seconds: float, values: Mapping[str, float], seed: int = 0) -> None:
        self.threads.add(threading.get_ident())
        self._before()
        self.records.append((step, seconds, values, seed))

    def alert(self, step: int, title: str, text: str, level: str = "warning", seed: int = 0) -> None:
        self.alerts.append((step, title, text, level, seed))

    def close(self) -> None:
        self.closed += 1


class Said(list[str]):
    def wait(self, count: int) -> None:
        deadline = time.monotonic() + 5
        while len(self) < count and time.monotonic() < deadline:
            time.sleep(0.005)
        assert len(self) >= count


def fail() -> None:
    raise RuntimeError("no room")


def median_and_own_time(sink: Sink, count: int) -> tuple[float, float]:
    """The median wall time of a write, and the most time that the processor spent in one."""
    walls, own = [], []
    for step in range(count):
        wall, cpu = time.perf_counter(), time.thread_time()
        sink.write(step, 0.0, VALUES)
        walls.append(time.perf_counter() - wall)
        own.append(time.thread_time() - cpu)
    return sorted(walls)[count // 2], max(own)


def test_records_arrive_in_order_from_another_thread_and_unchanged() -> None:
    said = Said()
    inner = Kept()
    sink = Apart(inner, "tracker", said.append)
    assert isinstance(sink, Sink)
    values = {"a": 0.0}
    for step in range(100):
        values["a"] = float(step)  # the caller may go on with its own mapping
        sink.write(step, step / 10, values, seed=step % 3)
    sink.alert(100, "rule", "look", "error")
    sink.close()
    sink.close()
    assert inner.records == [(s, s / 10, {"a": float(s)}, s % 3) for s in range(100)]
    assert inner.alerts == [(100, "rule", "look", "error", 0)]
    assert threading.get_ident() not in inner.threads
    assert (inner.closed, sink.lost, said) == (1, 0, [])
    sink.write(101, 0.0, values)
    assert len(inner.records) == 100


def test_a_call_the_sink_has_no_method_for_is_left_out() -> None:
    inner = Kept()
    sink = Apart(inner, "tracker", pytest.fail)
    sink.video(1, Path("film.mp4"))
    sink.describe({"a": 1})
    sink.close()
    assert (inner.records, sink.lost) == ([], 0)


def test_a_slow_sink_drops_what_does_not_fit_and_says_so_once_and_at_the_end() -> None:
    said = Said()
    inner = Kept(lambda: time.sleep(0.02))
    sink = Apart(inner, "tracker", said.append, capacity=5, remedy="Replay it.")
    median, own = median_and_own_time(sink, 300)
    assert median < 1e-3
    assert own < 1e-3
    said.wait(1)
    assert said == ["tracker is too slow: records are dropped while 5 wait. Replay it."]
    sink.close()
    kept = len(inner.records)
    assert 5 <= kept < 300
    assert said[1:] == [f"tracker lost {300 - kept} of 300 records. Replay it."]
    assert inner.closed == 1


def test_a_failing_sink_is_reported_once_and_tried_again() -> None:
    said = Said()
    troubles = iter(range(3))

    def fail_thrice() -> None:
        if next(troubles, None) is not None:
            fail()

    inner = Kept(fail_thrice)
    sink = Apart(inner, "tracker", said.append, remedy="Replay it.")
    for step in range(10):
        sink.write(step, 0.0, VALUES)
    sink.close()
    assert [record[0] for record in inner.records] == [3, 4, 5, 6, 7, 8, 9]
    assert said == [
        "tracker failed (RuntimeError: no room); training goes on. Replay it.",
        "tracker lost 3 of 10 records. Replay it.",
    ]


def test_a_close_that_fails_is_reported_and_does_not_raise() -> None:
    said = Said()
    inner = Kept()
    inner.close = fail  # type: ignore[method-assign]
    sink = Apart(inner, "tracker", said.append)
    sink.write(0, 0.0, VALUES)
    sink.close()
    assert len(said) == 1
    assert said[0].startswith("tracker failed (RuntimeError: no room)")


def test_a_sink_that_hangs_forever_is_left_behind() -> None:
    said = Said()
    never = threading.Event()
    inner = Kept(lambda: (never.wait(), None)[1])
    sink = Apart(inner, "tracker", said.append, capacity=50, patience=0.2, remedy="Replay it.")
    began = time.monotonic()
    median, own = median_and_own_time(sink, 2000)
    assert median < 1e-3
    assert own < 1e-3
    said.wait(1)
    closing = time.monotonic()
    sink.close()
    assert time.monotonic() - closing < 2
    assert time.monotonic() - began < 5
    assert said[1:] == [
        "tracker did not finish within 0.2 s and is left behind.",
        "tracker lost 2,000 of 2,000 records. Replay it.",
    ]
    never.set()  # the thread ends without writing what was given up
    sink._thread.join(5)
    assert not sink._thread.is_alive()
    assert (len(inner.records), inner.closed) == (1, 1)


def test_a_token_in_an_error_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "s3cret" * 6)
    said = Said()

    def leak() -> None:
        raise RuntimeError(f"401 for {'s3cret' * 6}")

    sink = Apart(Kept(leak), "tracker", said.append)
    sink.write(0, 0.0, VALUES)
    sink.close()
    assert "401 for <WANDB_API_KEY>" in said[0]
    assert "s3cret" not in " ".join(said)


def test_a_terminal_that_went_away_is_no_trouble() -> None:
    def gone(text: str) -> None:
        raise ValueError("I/O operation on closed file")

    sink = Apart(Kept(fail), "tracker", gone)
    sink.write(0, 0.0, VALUES)
    sink.close()
    assert sink.lost == 1
