"""A tracker in a process of its own, so that its work takes no turns of the interpreter that trains.

Requests and answers are lines of JSON on the process's standard input and output. The end of its input, also
by the trainer's death, tells it to finish what it keeps and to go.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

from sparring.errors import StorageError
from sparring.metrics.apart import words
from sparring.metrics.sink import Sink

NICENESS = 10
"""Where no core is free, training goes first."""
LINGER = 30.0
"""Seconds that a tracker has for its end once nobody listens any more."""


class TrackerProcess:
    """Hands every call to a tracker in its process and waits for it; raises what failed there.

    Use it through `Apart`: waiting is for a thread that has nothing else to do. The process starts at the
    first call. When it dies every further call fails at once; it is not started again, because that would
    begin a second W&B run.
    """

    def __init__(self, name: str, folder: Path, title: str, run: Path | None = None) -> None:
        self._plan = [name, str(folder), title, None if run is None else str(run)]
        self._process: subprocess.Popen[bytes] | None = None
        self._over = False

    @property
    def pid(self) -> int | None:
        """The tracker's process, once there is one."""
        return None if self._process is None else self._process.pid

    def write(self, step: int, seconds: float, values: Mapping[str, float], seed: int = 0) -> None:
        self._call("write", step, seconds, values, seed)

    def describe(self, facts: Mapping[str, Any]) -> None:
        self._call("describe", facts)

    def alert(self, step: int, title: str, text: str, level: str = "warning", seed: int = 0) -> None:
        self._call("alert", step, title, text, level, seed)

    def video(self, step: int, path: Path, seed: int = 0) -> None:
        self._call("video", step, str(path), seed)

    def model(self, step: int, folder: Path, seed: int = 0) -> None:
        self._call("model", step, str(folder), seed)

    def close(self) -> None:
        """Waits until the tracker has finished."""
        if self._process is None:
            return
        self.abandon()
        try:
            self._answer(self._process)
        finally:
            self._process.wait()
            _output(self._process).close()
            self._process = None

    def abandon(self) -> None:
        """Tells the tracker to finish by itself; waits for nothing. Any thread may call it."""
        self._over = True
        if self._process is not None:
            with contextlib.suppress(OSError):
                _input(self._process).close()

    def _call(self, method: str, *arguments: Any) -> None:
        if self._over:
            raise StorageError("its process is over")
        if self._process is None:
            self._process = _start()
            self._send(self._process, self._plan)
        self._send(self._process, [method, *arguments])
        self._answer(self._process)

    def _send(self, process: subprocess.Popen[bytes], request: list[Any]) -> None:
        rest = memoryview(json.dumps(request, default=str).encode() + b"\n")
        try:
            while rest:  # a pipe may take less than it is given
                rest = rest[_input(process).write(rest) :]
        except (OSError, ValueError) as error:
            raise self._died(process) from error

    def _answer(self, process: subprocess.Popen[bytes]) -> None:
        line = _output(process).readline()
        if not line:
            raise self._died(process)
        if trouble := json.loads(line):
            raise StorageError(trouble)

    def _died(self, process: subprocess.Popen[bytes]) -> StorageError:
        self._over = True
        return StorageError(f"its process died, exit code {process.wait()}")


def _start() -> subprocess.Popen[bytes]:
    """A process that serves, finds the same modules as this one, and leaves numerics to one thread."""
    places = os.pathsep.join(place or os.getcwd() for place in sys.path)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "sparring.metrics.tracker_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        env={**os.environ, "PYTHONPATH": places, **threads},
    )


def _input(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdin is not None
    return process.stdin


def _output(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdout is not None
    return process.stdout


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """What runs in the tracker's process: makes the calls that it is told to, and answers each."""
    waiting: SimpleQueue[list[Any] | None] = SimpleQueue()
    threading.Thread(target=_listen, args=(requests, waiting), daemon=True).start()
    plan = waiting.get()
    if plan is None:
        return
    sink: Sink | None = None
    while (request := waiting.get()) is not None:
        try:
            if sink is None:
                sink = _make(*plan)
            _tell(answers, _perform(sink, *request))
        except Exception as error:  # noqa: BLE001 - whatever a tracker raises is told to the trainer
            _tell(answers, words(error))
    try:
        if sink is not None:
            sink.close()
        _tell(answers, "")
    except Exception as error:  # noqa: BLE001
        _tell(answers, words(error))


def _listen(requests: IO[bytes], waiting: SimpleQueue[list[Any] | None]) -> None:
    """Queues what the trainer asks for; after its last word a tracker that hangs is ended."""
    for line in requests:
        waiting.put(json.loads(line))
    waiting.put(None)
    end = threading.Timer(LINGER, os._exit, (1,))
    end.daemon = True
    end.start()


def _make(name: str, folder: str, title: str, run: str | None) -> Sink:
    from sparring.metrics.trackers import make

    return make(name, Path(folder), title, None if run is None else Path(run))


def _perform(sink: Sink, method: str, *arguments: Any) -> str:
    """Calls a tracker; what it has no method for is left out."""
    if method in ("video", "model"):
        step, place, seed = arguments
        arguments = (step, Path(place), seed)
    if hasattr(sink, method):
        getattr(sink, method)(*arguments)
    return ""


def _tell(answers: IO[bytes], trouble: str) -> None:
    with contextlib.suppress(OSError):  # the trainer is gone; the tracker goes on to its end
        answers.write(json.dumps(trouble).encode() + b"\n")
        answers.flush()


def main() -> None:
    # Both reach every process of a terminal or a service; the trainer decides when it is over.
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, signal.SIG_IGN)
    with contextlib.suppress(OSError, AttributeError):
        os.nice(NICENESS)
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with Path(os.devnull).open("rb") as nothing:  # neither does a library read requests nor print answers
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    serve(requests, answers)


if __name__ == "__main__":
    main()
