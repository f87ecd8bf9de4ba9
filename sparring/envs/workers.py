"""Gymnasium environments in supervised worker processes.

A worker that raises, dies or hangs is replaced; its rows lose the step and start new episodes. Processes are
spawned, never forked: a fork after jax has started threads can deadlock.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import multiprocessing
import os
import pickle  # for its error only: multiprocessing raises it when a factory cannot travel
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from sparring import errors
from sparring.envs.board import Board
from sparring.envs.source import Factory
from sparring.envs.worker_process import Assignment, serve
from sparring.errors import ConfigError, EnvironmentFailure, SparringError
from sparring.machine import end_of, usable_cores
from sparring.spaces import Dict, EnvSpec
from sparring.types import TimeStep

MAX_FAILURES = 10
"""Failures of one worker in a row, without a good step between, after which the run stops."""
START_SECONDS = 120.0
REPLAY_SECONDS = 3600.0
CLOSE_SECONDS = 2.0
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")

_start_lock = threading.Lock()


@dataclass(frozen=True)
class Trouble:
    """Why a worker did not answer."""

    reason: str
    details: str = ""
    refusal: SparringError | None = None
    """What to raise when this happens on the first start, where another attempt would end the same way."""


@dataclass
class Worker:
    """One process, the rows it hosts, and how often it failed since its last good step."""

    index: int
    assignment: Assignment
    rows: slice
    process: BaseProcess | None = None
    pipe: Connection | None = None
    failures: int = 0
    broken: Trouble | None = None
    """Trouble that was noticed outside a step and is mended in the next one."""

    @property
    def size(self) -> int:
        return int(self.rows.stop - self.rows.start)


class WorkerRows:
    """Rows spread over supervised processes; the same trajectories as `GymRows` for the same seed."""

    backend_reason = "asked for"
    may_lose = True

    def __init__(
        self,
        sources: Sequence[Callable[[], Any]],
        *,
        label: str | None = None,
        time_limit: int | None = None,
        fresh_every_episode: bool | None = None,
        n_workers: int | None = None,
        deadline: float = 30.0,
    ) -> None:
        if not sources:
            raise ConfigError("An environment needs at least one row; set n_envs >= 1.")
        if deadline <= 0:
            raise ConfigError(f"The deadline of a step must be positive, not {deadline} s.")
        _check_travels(sources)
        self._label = label or str(getattr(sources[0], "label", "environment"))
        self._deadline = deadline
        self._keep_main = any(isinstance(source, Factory) and source.in_main for source in sources)
        count = min(n_workers or usable_cores(), len(sources))
        self._workers: list[Worker] = []
        for index, rows in enumerate(_slices(len(sources), count)):
            given = Assignment(tuple(sources[rows]), rows.start, label, time_limit, fresh_every_episode)
            self._workers.append(Worker(index, given, rows))
        self._boards: list[Board] = []
        self._events: list[str] = []
        self._seed: int | None = None
        self.last_infos: Sequence[dict[str, Any]] = [{} for _ in sources]
        # Runs when this object is collected or the interpreter exits, whichever comes first.
        self._finalizer = weakref.finalize(self, _shut_down, self._workers, self._boards)
        try:
            self._spec = self._first_start(len(sources))
        except BaseException:
            self.close()
            raise

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    @property
    def processes(self) -> list[BaseProcess]:
        """The worker processes now alive or expected to be."""
        return [worker.process for worker in self._workers if worker.process is not None]

    def reset(self, seed: int) -> TimeStep:
        self._seed = seed
        self._board["episode"][:] = 0
        for worker in self._workers:
            worker.failures = 0
        troubled = self._call(
            {w.index: ("start", seed, [0] * w.size) for w in self._workers}, self._deadline
        )[1]
        self._replace(troubled, seed)
        return self._outcome(still=True)

    def step(self, action: np.ndarray) -> TimeStep:
        if self._seed is None:
            raise EnvironmentFailure(f"{self._label!r} was stepped before it was reset; call `reset` first.")
        shared = self._board["action"]
        if np.shape(action) != shared.shape:
            raise EnvironmentFailure(
                f"{self._label!r} takes actions of shape {shared.shape}, not {np.shape(action)}."
            )
        shared[:] = action
        answers, troubled = self._call({worker.index: ("step",) for worker in self._workers}, self._deadline)
        infos: list[dict[str, Any]] = [{} for _ in range(self._spec.rows)]
        for worker, answer in answers:
            worker.failures = 0
            infos[worker.rows] = answer
        self.last_infos = infos
        if not troubled:
            return self._outcome()
        lost = self._rows_of(worker for worker, _ in troubled)
        self._replace(troubled, self._seed)
        return self._outcome(lost)

    def snapshot(self) -> dict[str, np.ndarray]:
        """The workers' snapshots joined: the same that `GymRows` takes, so either may restore it."""
        if self._seed is None:
            raise EnvironmentFailure(f"{self._label!r} was used before it was reset; call `reset` first.")
        answers, troubled = self._call({w.index: ("snapshot",) for w in self._workers}, START_SECONDS)
        parts = {worker.index: answer for worker, answer in answers}
        for worker, trouble in troubled:
            worker.broken = trouble
            parts[worker.index] = self._unknown(worker)
        whole = [parts[worker.index] for worker in self._workers]
        return {name: np.concatenate([part[name] for part in whole]) for name in whole[0]}

    def restore(self, snapshot: dict[str, np.ndarray], seed: int) -> TimeStep:
        requests = {w.index: ("restore", self._part(snapshot, w), seed) for w in self._workers}
        self._seed = seed
        self._board["episode"][:] = snapshot["episode"]
        answers, troubled = self._call(requests, REPLAY_SECONDS)
        lost = self._rows_of(worker for worker, _ in troubled)
        for worker, (rows, events) in answers:
            self._events += events
            if rows is not None:
                lost[worker.rows] = rows
        self._replace(troubled, seed)
        return self._outcome(lost if lost.any() else None, still=True)

    def render(self) -> np.ndarray | None:
        first = self._workers[0]
        answers, troubled = self._call({first.index: ("render",)}, self._deadline)
        for worker, trouble in troubled:
            worker.broken = trouble
        return answers[0][1] if answers else None

    def events(self) -> list[str]:
        events, self._events[:] = list(self._events), []
        return events

    def close(self) -> None:
        self._finalizer()

    # -- talking to workers --------------------------------------------------------------------------------

    def _call(
        self, requests: dict[int, tuple[Any, ...]], seconds: float
    ) -> tuple[list[tuple[Worker, Any]], list[tuple[Worker, Trouble]]]:
        """Sends each worker its request; what came back, and which workers are in trouble."""
        asked, troubled = [], []
        for index, request in requests.items():
            worker = self._workers[index]
            trouble = worker.broken or _send(worker, request)
            if trouble is None:
                asked.append(worker)
            else:
                worker.broken = None
                troubled.append((worker, trouble))
        answers, more = _gather(asked, seconds)
        return answers, troubled + more

    def _first_start(self, rows: int) -> EnvSpec:
        """Starts all workers; what goes wrong here is the user's to mend, so nothing is tried again."""
        for worker in self._workers:
            _launch(worker, self._keep_main)
        ready, troubled = _gather(self._workers, START_SECONDS)
        for worker, trouble in troubled:
            raise trouble.refusal or EnvironmentFailure(
                f"Worker {worker.index} of {self._label!r} could not start: "
                f"{trouble.reason}.\n{trouble.details}"
            )
        # What a number stands for is known where the environment is, and that is not here.
        spec: EnvSpec = dataclasses.replace(ready[0][1], rows=rows, refers=False)
        self._label = spec.id
        self._boards.append(Board(spec))
        requests = {w.index: ("attach", spec, self._boards[0].name) for w in self._workers}
        self._spec = spec
        for worker, trouble in self._call(requests, START_SECONDS)[1]:
            raise EnvironmentFailure(
                f"Worker {worker.index} of {self._label!r} failed at once: {trouble.reason}"
            )
        return spec

    def _replace(self, troubled: list[tuple[Worker, Trouble]], seed: int) -> None:
        """Puts a new process in the place of each failed one, in the next episode of its rows."""
        while troubled:
            for worker, trouble in troubled:
                self._give_up_on(worker, trouble)
                self._board["episode"][worker.rows] += 1
                _launch(worker, self._keep_main)
            ready, unready = _gather([worker for worker, _ in troubled], START_SECONDS)
            requests: dict[int, tuple[Any, ...]] = {
                worker.index: ("attach", self._spec, self._boards[0].name) for worker, _ in ready
            }
            attached, unattached = self._call(requests, START_SECONDS)
            requests = {
                worker.index: ("start", seed, self._board["episode"][worker.rows].tolist())
                for worker, _ in attached
            }
            unstarted = self._call(requests, self._deadline)[1]
            troubled = unready + unattached + unstarted

    def _give_up_on(self, worker: Worker, trouble: Trouble) -> None:
        """Ends a failed worker, says so, and stops the run when it never recovers."""
        worker.failures += 1
        _kill(worker)
        rows = (
            f"rows {worker.rows.start}-{worker.rows.stop - 1}"
            if worker.size > 1
            else f"row {worker.rows.start}"
        )
        if worker.failures >= MAX_FAILURES:
            raise EnvironmentFailure(
                f"Worker {worker.index} ({rows} of {self._label!r}) failed {worker.failures} times in a row "
                f"without one good step; the last time it {trouble.reason}. Run `sparring check-env` on the "
                f"environment.\n{trouble.details}"
            )
        self._events.append(
            f"worker {worker.index} ({rows} of {self._label}) {trouble.reason}; it was replaced and "
            f"{worker.size} partial episode{'s' if worker.size > 1 else ''} dropped"
        )

    # -- shared arrays -------------------------------------------------------------------------------------

    @property
    def _board(self) -> dict[str, np.ndarray]:
        if not self._finalizer.alive:
            raise EnvironmentFailure(f"{self._label!r} was used after `close`; make it again.")
        return self._boards[0].arrays

    def _outcome(self, lost: np.ndarray | None = None, *, still: bool = False) -> TimeStep:
        """The shared arrays as a step of our own; a lost row has no outcome."""
        board = self._board
        obs = self._observation("obs")
        next_obs = obs if still else self._observation("next_obs")
        reward, terminated, truncated = (board[name].copy() for name in ("reward", "terminated", "truncated"))
        for array in (reward, terminated, truncated):
            if still:
                array[:] = 0
            elif lost is not None:
                array[lost] = 0
        masked = self._spec.masks_actions
        legal, follows = ((board[name].copy() if masked else None) for name in ("legal", "next_legal"))
        follows = legal if still else follows
        return TimeStep(obs, reward, terminated, truncated, next_obs, None, legal, lost, next_legal=follows)

    def _observation(self, kind: str) -> Any:
        if isinstance(self._spec.observation, Dict):
            return {name: self._board[f"{kind}.{name}"].copy() for name, _ in self._spec.observation.parts}
        return self._board[f"{kind}."].copy()

    def _rows_of(self, workers: Iterable[Worker]) -> np.ndarray:
        rows = np.zeros(self._spec.rows, bool)
        for worker in workers:
            rows[worker.rows] = True
        return rows

    def _part(self, snapshot: dict[str, np.ndarray], worker: Worker) -> dict[str, np.ndarray]:
        """The part of a snapshot that belongs to a worker's rows."""
        if "length" not in snapshot or len(snapshot["length"]) != self._spec.rows:
            raise EnvironmentFailure(
                f"The saved state does not belong to {self._label!r} with {self._spec.rows} rows; resume "
                "with the environment and n_envs of the run."
            )
        ends = np.concatenate([[0], np.cumsum(np.maximum(snapshot["length"], 0))])
        actions = snapshot["actions"][ends[worker.rows.start] : ends[worker.rows.stop]]
        part = {name: array[worker.rows] for name, array in snapshot.items() if name != "actions"}
        return {**part, "actions": actions}

    def _unknown(self, worker: Worker) -> dict[str, np.ndarray]:
        """The snapshot of a worker that could not take one: its rows will start new episodes."""
        names = [name for name in self._board if name.startswith("obs.")]
        return {
            "episode": self._board["episode"][worker.rows].copy(),
            "length": np.full(worker.size, -1, np.int64),
            "actions": self._board["action"][:0].copy(),
            **{name: self._board[name][worker.rows].copy() for name in names},
        }


def _slices(rows: int, count: int) -> list[slice]:
    """`count` runs of rows, as even as they can be."""
    edges = [rows * i // count for i in range(count + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(edges)]


def _check_travels(sources: Sequence[Callable[[], Any]]) -> None:
    for source in sources:
        if isinstance(source, Factory) and not source.importable:
            raise ConfigError(
                f"The factory {source.label!r} cannot travel to a worker process, because it has no name "
                "that can be imported. Make it a function at the top level of a module, give it as "
                "file.py:name, or use backend='inline'."
            )


def _launch(worker: Worker, keep_main: bool) -> None:
    """Starts the worker's process and keeps this end of its pipe."""
    context = multiprocessing.get_context("spawn")
    worker.pipe, theirs = context.Pipe()
    worker.broken = None
    process = context.Process(
        target=serve, args=(theirs, worker.assignment), name=f"sparring-env-{worker.index}", daemon=True
    )
    try:
        with quiet_start(keep_main):
            process.start()
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise ConfigError(
            f"The environment {worker.assignment.label!r} cannot travel to a worker process: {error}. Its "
            "factory must be importable and its kwargs plain data; or use backend='inline'."
        ) from error
    worker.process = process
    theirs.close()  # so that the child's death closes the pipe


@contextlib.contextmanager
def quiet_start(keep_main: bool) -> Iterator[None]:
    """Lets a child start with single-threaded numerics and without importing the user's script again.

    `spawn` imports the parent's main module into the child, which would run an unguarded script a second
    time and load jax there. Only a factory that lives in the script needs it.
    """
    with _start_lock:
        before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
        main = sys.modules["__main__"]
        os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
        if not keep_main:
            sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def _send(worker: Worker, request: tuple[Any, ...]) -> Trouble | None:
    if worker.pipe is None:
        return Trouble("was given up")
    try:
        worker.pipe.send(request)
    except (BrokenPipeError, ConnectionResetError, OSError):
        return _died(worker)
    return None


def _gather(
    workers: Sequence[Worker], seconds: float
) -> tuple[list[tuple[Worker, Any]], list[tuple[Worker, Trouble]]]:
    """Waits for one answer of each worker; the death of a process is noticed at once."""
    waiting = {id(worker): worker for worker in workers}
    answers: list[tuple[Worker, Any]] = []
    troubled: list[tuple[Worker, Trouble]] = []
    end = time.monotonic() + seconds
    while waiting:
        handles: dict[Any, Worker] = {}
        for worker in waiting.values():
            assert worker.pipe is not None
            assert worker.process is not None
            handles[worker.pipe] = worker
            handles[worker.process.sentinel] = worker
        ready = wait(list(handles), max(0.0, end - time.monotonic()))
        if not ready:
            late = f"did not answer within {seconds:g} s"
            troubled += [(worker, Trouble(late)) for worker in waiting.values()]
            break
        for worker in {id(handles[handle]): handles[handle] for handle in ready}.values():
            del waiting[id(worker)]
            answer = _receive(worker)
            if isinstance(answer, Trouble):
                troubled.append((worker, answer))
            else:
                answers.append((worker, answer[1]))
    order = {id(worker): place for place, worker in enumerate(workers)}
    answers.sort(key=lambda pair: order[id(pair[0])])
    return answers, troubled


def _receive(worker: Worker) -> tuple[str, Any] | Trouble:
    """What a worker that is ready has to say; a dead one says nothing."""
    assert worker.pipe is not None
    try:
        # A process may have died after it sent its last words: read those first.
        if not worker.pipe.poll(0):
            return _died(worker)
        kind, *rest = worker.pipe.recv()
    except (EOFError, OSError):
        return _died(worker)
    if kind in ("ready", "done"):
        return kind, rest[0]
    name, text, details = rest
    known = getattr(errors, name, None) if kind == "refused" else None
    refusal = known(text) if known is not None else None
    return Trouble(f"raised {name}: {text}", details, refusal)


def _died(worker: Worker) -> Trouble:
    assert worker.process is not None
    return Trouble(end_of(worker.process))


def _kill(worker: Worker) -> None:
    if worker.process is not None:
        worker.process.kill()
        worker.process.join()
        worker.process.close()
        worker.process = None
    if worker.pipe is not None:
        worker.pipe.close()
        worker.pipe = None


def _shut_down(workers: list[Worker], boards: list[Board]) -> None:
    """Asks every worker to close, then ends those that do not."""
    for worker in workers:
        if worker.pipe is not None and worker.process is not None:
            _send(worker, ("close",))
    end = time.monotonic() + CLOSE_SECONDS
    for worker in workers:
        if worker.process is not None:
            worker.process.join(max(0.0, end - time.monotonic()))
        _kill(worker)
    for board in boards:
        board.close()
    boards.clear()
