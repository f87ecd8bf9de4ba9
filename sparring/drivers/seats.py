"""Where actors sit: a seat starts one, takes what it makes, and says when it is gone.

A seat hands out a bounded number of permits. An actor that has used them up waits, so that what has been
made and not been learned from stays small.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
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
CLOSE_SECONDS = 2.0
WAIT_SECONDS = 0.2
PERMIT, CHUNK, TROUBLE = b"p", b"c", b"t"


class Trouble(NamedTuple):
    """Why an actor is gone."""

    reason: str
    details: str = ""
    refusal: SparringError | None = None
    """what to raise when this happens before its first chunk, where another attempt would end the same way"""


class Seat:
    """One actor and what it has made; whoever waits for chunks waits for `arrived`."""

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


def deliver(
    acting: Acting,
    send: Callable[[Chunk], None],
    permitted: Callable[[float], bool],
    beat: Callable[[], None],
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """An actor's whole life: makes a chunk for every permit until it is told to stop."""
    waited = 0.0
    for chunk in acting.chunks():
        chunk.seconds[1] = waited
        send(chunk)
        began = time.perf_counter()
        while not permitted(WAIT_SECONDS):
            beat()
            if stopped():
                return
        waited = time.perf_counter() - began
        if stopped():
            return


class ProcessSeat(Seat):
    """An actor in a process of its own, on the CPU and with one thread."""

    def __init__(self, job: Job, slot: Slot, template: Chunk, arrived: threading.Condition) -> None:
        super().__init__(job, slot, template, arrived)
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._heart = context.RawValue("q", 0)
        self.process = context.Process(
            target=serve,
            args=(theirs, job, slot, self._heart),
            name=f"sparring-actor-{job.number}",
            daemon=True,
        )
        with quiet_start(keep_main=False):
            self.process.start()
        theirs.close()  # so that the child's death closes the pipe
        self._reader = threading.Thread(target=self._read, name=f"actor-{job.number}-reader", daemon=True)
        self._reader.start()
        for _ in range(DEPTH - 1):  # it makes the first chunk without one
            self.permit()

    def permit(self) -> None:
        with contextlib.suppress(OSError):  # the reader notices that it is gone
            self._pipe.send_bytes(PERMIT)

    def close(self) -> None:
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
            self._fail(Trouble(end_of(self.process)))
        except CheckpointError as error:
            self._fail(Trouble(f"sent something that is no chunk: {error}"))


def serve(pipe: Connection, job: Job, slot: Slot, heart: Any) -> None:
    """What runs in an actor's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the learner decides
    threading.Thread(target=follow_parent, daemon=True).start()
    from sparring.drivers.platform import prepare

    prepare("cpu")  # the accelerator belongs to the learner

    def beat() -> None:
        heart.value += 1

    def permitted(seconds: float) -> bool:
        return pipe.poll(seconds) and pipe.recv_bytes() == PERMIT

    try:
        acting = Acting(job, slot, beat)
        deliver(acting, lambda chunk: pipe.send_bytes(CHUNK + encode(chunk)), permitted, beat)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(0)  # the learner is gone
    except Exception as error:  # noqa: BLE001  (whatever an environment raises is told to the learner)
        words = [type(error).__name__, str(error), traceback.format_exc(), isinstance(error, SparringError)]
        pipe.send_bytes(TROUBLE + json.dumps(words).encode())


def _told(data: bytes) -> Trouble:
    """What an actor said of its own end."""
    try:
        name, text, details, ours = json.loads(data)
        known = getattr(errors, str(name), None) if ours is True else None
    except (ValueError, TypeError) as error:
        return Trouble(f"said something that is not understood: {error}")
    return Trouble(f"raised {name}: {text}", str(details), None if known is None else known(str(text)))


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

    def close(self) -> None:
        self._stop.set()
        self._thread.join(CLOSE_SECONDS)

    def _pulse(self) -> int:
        return self._heart

    def _beat(self) -> None:
        self._heart += 1

    def _run(self) -> None:
        acting = None
        try:
            acting = Acting(self.job, self._slot, self._beat)
            deliver(
                acting,
                self._arrive,
                lambda seconds: self._permits.acquire(timeout=seconds),
                self._beat,
                self._stop.is_set,
            )
        except Exception as error:  # noqa: BLE001  (whatever an environment raises is told to the learner)
            refusal = error if isinstance(error, SparringError) else None
            self._fail(Trouble(f"raised {type(error).__name__}: {error}", traceback.format_exc(), refusal))
        finally:
            if acting is not None:
                acting.close()


SEATS: dict[str, type[Seat]] = {"process": ProcessSeat, "thread": ThreadSeat}
