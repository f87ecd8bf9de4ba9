"""Sinks of others, apart from training: a slow, broken or hanging tracker costs neither time nor the run.

What a tracker loses is still in the run's SQLite file, from which `sparring export` replays it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from sparring.errors import SparringError
from sparring.metrics.sink import Sink
from sparring.secrets import redact

CAPACITY = 10_000
"""Records that may wait for the tracker; further ones are dropped."""
PAUSE = 0.2
"""Seconds between looks at what waits for the tracker."""
PATIENCE = 5.0
"""Seconds that `close` waits for the tracker to finish."""


class _Call(NamedTuple):
    method: str
    arguments: tuple[Any, ...]


class Apart:
    """Hands everything to another sink from a background thread; no call waits and none raises.

    Everything about the inner sink happens on that thread, so it may open files or connections at its first
    record. Calls that it has no method for are left out. A sink that has much to compute belongs into a
    process (`TrackerProcess`): threads of Python take turns of five milliseconds. One that is left behind is
    told so by its `abandon`, where it has one.
    """

    def __init__(
        self,
        sink: Sink,
        name: str,
        say: Callable[[str], None] = print,
        *,
        capacity: int = CAPACITY,
        patience: float = PATIENCE,
        remedy: str = "Nothing is lost from metrics.sqlite: `sparring export` replays it.",
    ) -> None:
        self.sink = sink
        self.name = name
        self._say = say
        self._capacity = capacity
        self._patience = patience
        self._remedy = remedy
        self._queue: SimpleQueue[_Call] = SimpleQueue()  # its put takes no lock that we could wait for
        self._given = 0
        self._kept = 0
        self._dropping = False
        self._failing = False
        self._closing = threading.Event()
        self._abandoned = False
        self._thread = threading.Thread(target=self._run, name=f"sparring-{name}", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> int:
        """Records that the tracker does not have: dropped, failed, or still waiting."""
        return self._given - self._kept

    def write(self, step: int, seconds: float, values: Mapping[str, float], seed: int = 0) -> None:
        self._hand("write", step, seconds, dict(values), seed)

    def describe(self, facts: Mapping[str, Any]) -> None:
        self._hand("describe", dict(facts))

    def alert(self, step: int, title: str, text: str, level: str = "warning", seed: int = 0) -> None:
        self._hand("alert", step, title, text, level, seed)

    def video(self, step: int, path: Path, seed: int = 0) -> None:
        self._hand("video", step, path, seed)

    def model(self, step: int, folder: Path, seed: int = 0) -> None:
        self._hand("model", step, folder, seed)

    def close(self) -> None:
        """Lets the tracker finish, but no longer than the patience; says what it lost."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._thread.join(self._patience)
        self._abandoned = hanging = self._thread.is_alive()
        if hanging:
            self._report(f"{self.name} did not finish within {self._patience:g} s and is left behind.")
            if hasattr(self.sink, "abandon"):
                self.sink.abandon()
        if self.lost:
            self._report(f"{self.name} lost {self.lost:,} of {self._given:,} records. {self._remedy}")

    def _hand(self, method: str, *arguments: Any) -> None:
        if self._closing.is_set() or not hasattr(self.sink, method):
            return
        self._given += 1
        if self._queue.qsize() < self._capacity:
            self._queue.put(_Call(method, arguments))
        elif not self._dropping:
            self._dropping = True
            text = (
                f"{self.name} is too slow: records are dropped while {self._capacity:,} wait. {self._remedy}"
            )
            # Even a terminal may be slow, and the tracker's own thread may hang.
            threading.Thread(target=self._report, args=(text,), daemon=True).start()

    def _run(self) -> None:
        # Looks now and then: a thread that wakes at a call takes its turn from the caller in the midst of it.
        over = False
        while not over:
            over = self._closing.wait(PAUSE)
            while not self._abandoned and not self._queue.empty():
                self._kept += self._attempt(self._queue.get())
        self._attempt(_Call("close", ()))

    def _attempt(self, call: _Call) -> bool:
        try:
            getattr(self.sink, call.method)(*call.arguments)
        except Exception as error:  # noqa: BLE001 - whatever a tracker raises must not end the run
            if not (self._failing or self._abandoned):
                self._failing = True
                self._report(f"{self.name} failed ({words(error)}); training goes on. {self._remedy}")
            return False
        return True

    def _report(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # a terminal that went away
            self._say(redact(text))


def words(error: Exception) -> str:
    """What went wrong in a tracker; errors of ours say it themselves."""
    if isinstance(error, SparringError):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
