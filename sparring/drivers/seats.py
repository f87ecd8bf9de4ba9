"""Where actors sit: a seat starts one, takes what it makes, and says when it is gone.

A seat hands out a bounded number of permits. An actor that has used them up waits, so that what has been
made and not been learned from stays small.
"""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from typing import Any, NamedTuple

from sparring import errors
from sparring.drivers.acting import Acting, Job, decode, encode
from sparring.drivers.collector import Chunk
from sparring.drivers.slot import Slot
from sparring.envs.worker_process import follow_parent
from sparring.envs.workers import quiet_start
from sparring.errors import CheckpointError, SparringError
from sparring.machine import end_of

DEPTH = 2
"""Chunks of one actor that may wait for the learner."""
START_SECONDS = 180.0
"""That an actor may take to its first chunk: it imports and compiles."""
CLOSE_SECONDS = 2.0
"""That an actor may take to close its environments."""
WAIT_SECONDS = 0.2
PERMIT, CHUNK, TROUBLE = b"p", b"c", b"t"
ORIGIN_LINES = 8
OWN = " The traceback above is the environment's own."
"""How an environment's failure ends where its traceback is printed, which an actor's is not."""


class Trouble(NamedTuple):
    """Why an actor is gone."""

    reason: str
    details: str = ""
    refusal: SparringError | None = None
    """what to raise when this happens before its first chunk, where another attempt would end the same way"""
    killed: bool = False
    """whether it ended by a signal or with its node: what it did itself need not be the cause"""


def raised(name: str, text: str, details: str, ours: bool) -> Trouble:
    """An actor's end by an exception, whose traceback nobody has seen yet."""
    words = text.removesuffix(OWN)
    known = getattr(errors, name, None) if ours else None
    told = text if words == text else f"{words}\n{origin(details)}"
    return Trouble(f"raised {name}: {words.rstrip('.')}", details, None if known is None else known(told))


def origin(details: str) -> str:
    """The last lines of a traceback's first part: where the error that led to all others was raised."""
    return "\n".join(details.split("\n\n", 1)[0].splitlines()[-ORIGIN_LINES:])


class Seat:
    """One actor and what it has made; whoever waits for chunks waits for `arrived`."""

    SIGN = "step"
    """what an actor makes while it is well"""

    def __init__(self, job: Job, slot: Slot, template: Chunk, arrived: threading.Condition) -> None:
        self.job = job
        self.chunks: deque[Chunk] = deque()
        self.trouble: Trouble | None = None
        self.made = 0
        """chunks since it was started"""
        self.surplus = 0
        """chunks that are here beyond what an actor may have waiting"""
        self._slot, self._template, self._arrived = slot, template, arrived
        self._beats, self._beaten = -1, time.monotonic()

    def patience(self, deadline: float) -> float:
        """Seconds that the actor may be silent."""
        return deadline if self.made else max(START_SECONDS, deadline)

    def silence(self) -> float:
        """Seconds since the actor last gave a sign of life."""
        beats = self._pulse()
        if beats != self._beats:
            self._beats, self._beaten = beats, time.monotonic()
        return time.monotonic() - self._beaten

    def inherit(self, chunks: Iterable[Chunk]) -> None:
        """Takes over what the actor before has left."""
        with self._arrived:
            before = list(chunks)
            self.chunks.extendleft(reversed(before))
            self.surplus += len(before)

    def urge(self) -> None:
        """Lets an actor go on although enough of its chunks wait, because the learner waits too."""
        if len(self.chunks) >= DEPTH + self.surplus:
            self.surplus += 1
            self.permit()

    def take(self) -> Chunk:
        """The oldest chunk; the actor may make another."""
        chunk = self.chunks.popleft()
        if self.surplus:
            self.surplus -= 1
        else:
            self.permit()
        return chunk

    def permit(self) -> None:
        """Lets the actor make one more chunk."""
        raise NotImplementedError

    def dismiss(self) -> None:
        """Tells the actor to end, without waiting for it: many that are dismissed end at the same time."""

    def close(self) -> None:
        """Ends the actor; what it was making is lost."""
        raise NotImplementedError

    def _pulse(self) -> int:
        raise NotImplementedError

    def _arrive(self, chunk: Chunk) -> None:
        with self._arrived:
            self.chunks.append(chunk)
            self.made += 1
            self._arrived.notify_all()

    def _fail(self, trouble: Trouble) -> None:
        with self._arrived:
            self.trouble = self.trouble or trouble
            self._arrived.notify_all()


def deliver(acting: Acting, send: Callable[[Chunk], None], permitted: Callable[[float], bool]) -> None:
    """An actor's whole life: makes a chunk for every permit until it is told to stop."""
    waited = 0.0
    for chunk in acting.chunks():
        chunk.seconds[1] = waited
        send(chunk)
        began = time.perf_counter()
        while not permitted(WAIT_SECONDS):
            acting.beat()
            if acting.stopped():
                return
        waited = time.perf_counter() - began


class ProcessSeat(Seat):
    """An actor in a process of its own, on the CPU and with one thread."""

    def __init__(self, job: Job, slot: Slot, template: Chunk, arrived: threading.Condition) -> None:
        super().__init__(job, slot, template, arrived)
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._heart, self._dismissed = context.RawValue("q", 0), context.RawValue("b", 0)
        self._ends_by = math.inf
        self.process = context.Process(
            target=serve,
            args=(theirs, job, slot, self._heart, self._dismissed),
            name=f"sparring-actor-{job.number}",
            daemon=True,
        )
        with quiet_start(keep_main=False):
            self.process.start()
        theirs.close()  # so that the child's death closes the pipe
        # An interpreter that exits without closing would send SIGTERM, which actors ignore, and wait.
        self._finalizer = Finalize(None, self._end, exitpriority=0)
        self._reader = threading.Thread(target=self._read, name=f"actor-{job.number}-reader", daemon=True)
        self._reader.start()
        for _ in range(DEPTH - 1):  # it makes the first chunk without one
            self.permit()

    def permit(self) -> None:
        with contextlib.suppress(OSError):  # the reader notices that it is gone
            self._pipe.send_bytes(PERMIT)

    def dismiss(self) -> None:
        if not self._dismissed.value:
            self._dismissed.value = 1
            self._ends_by = time.monotonic() + CLOSE_SECONDS

    def close(self) -> None:
        self._finalizer()

    def _end(self) -> None:
        """Lets the actor close its environments and go; one that does not is killed."""
        self.dismiss()
        self.process.join(max(self._ends_by - time.monotonic(), 0.0))
        self.process.kill()
        self.process.join()
        self._reader.join(CLOSE_SECONDS)
        self._pipe.close()

    def _pulse(self) -> int:
        return int(self._heart.value)

    def _read(self) -> None:
        """Takes what the actor sends, so that it never waits for a pipe."""
        try:
            while True:
                data = self._pipe.recv_bytes()
                if data[:1] == CHUNK:
                    self._arrive(decode(self._template, data[1:], f"a chunk of actor {self.job.number}"))
                else:
                    self._fail(_told(data[1:]))
        except (EOFError, OSError):
            self._fail(Trouble(end_of(self.process), killed=(self.process.exitcode or 0) < 0))
        except CheckpointError as error:
            self._fail(Trouble(f"sent something that is no chunk: {error}"))


def serve(pipe: Connection, job: Job, slot: Slot, heart: Any, dismissed: Any) -> None:
    """What runs in an actor's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the learner decides
    # SIGTERM may reach the whole group. A handler, because programs that the environment starts and ends
    # would inherit SIG_IGN.
    signal.signal(signal.SIGTERM, lambda *_: None)
    threading.Thread(target=follow_parent, daemon=True).start()
    from sparring.drivers.platform import prepare

    prepare("cpu")  # the accelerator belongs to the learner

    def beat() -> None:
        heart.value += 1

    def permitted(seconds: float) -> bool:
        return pipe.poll(seconds) and pipe.recv_bytes() == PERMIT

    acting = None
    try:
        acting = Acting(job, slot, beat, lambda: bool(dismissed.value))
        deliver(acting, lambda chunk: pipe.send_bytes(CHUNK + encode(chunk)), permitted)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the learner is gone
    except Exception as error:  # noqa: BLE001  (whatever an environment raises is told to the learner)
        words = [type(error).__name__, str(error), traceback.format_exc(), isinstance(error, SparringError)]
        pipe.send_bytes(TROUBLE + json.dumps(words).encode())
    finally:
        if acting is not None:
            acting.close()


def _told(data: bytes) -> Trouble:
    """What an actor said of its own end."""
    try:
        name, text, details, ours = json.loads(data)
    except (ValueError, TypeError) as error:
        return Trouble(f"said something that is not understood: {error}")
    return raised(str(name), str(text), str(details), ours is True)


class ThreadSeat(Seat):
    """An actor in a thread of this process: for environments that step outside Python's lock."""

    def __init__(self, job: Job, slot: Slot, template: Chunk, arrived: threading.Condition) -> None:
        super().__init__(job, slot, template, arrived)
        self._permits = threading.Semaphore(DEPTH - 1)
        self._stop = threading.Event()
        self._heart = 0
        self._thread = threading.Thread(target=self._run, name=f"sparring-actor-{job.number}", daemon=True)
        self._thread.start()

    def permit(self) -> None:
        self._permits.release()

    def dismiss(self) -> None:
        self._stop.set()

    def close(self) -> None:
        self.dismiss()
        self._thread.join(CLOSE_SECONDS)

    def _pulse(self) -> int:
        return self._heart

    def _beat(self) -> None:
        self._heart += 1

    def _run(self) -> None:
        acting = None
        try:
            acting = Acting(self.job, self._slot, self._beat, self._stop.is_set)
            deliver(acting, self._arrive, lambda seconds: self._permits.acquire(timeout=seconds))
        except Exception as error:  # noqa: BLE001  (whatever an environment raises is told to the learner)
            ours = isinstance(error, SparringError)
            self._fail(raised(type(error).__name__, str(error), traceback.format_exc(), ours))
        finally:
            if acting is not None:
                acting.close()


SEATS: dict[str, type[Seat]] = {"process": ProcessSeat, "thread": ThreadSeat}
