"""Evaluation and films beside training: a process of its own plays the snapshots that it is handed."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sparring.envs.worker_process import follow_parent
from sparring.envs.workers import quiet_start
from sparring.errors import SparringError
from sparring.evaluation.evaluator import Evaluation
from sparring.runs import durable

PATIENCE = 3
"""Deaths over evaluations, or over films, with no answer between them, after which one is given up; and films
given up in a row after which there are no more."""
CLOSE_SECONDS = 2.0
DEADLINE_SECONDS = 900.0
"""After which what is played is taken to hang, where nothing has taken long before;"""
HANGING = 20.0
"""else after so many times the longest."""
FILM_STEPS = 3000
"""Steps of an episode that are filmed while a run trains, at most."""
NICENESS = 10
"""Where no core is free, training goes first."""


class Stage(NamedTuple):
    """The environment that is played, as `registry.make` takes it, and for how long."""

    env: str
    kwargs: dict[str, Any]
    time_limit: int | None
    rows: int
    episodes: int
    trusted: bool
    """whether code that the agent names may be run: it is what is being trained"""


class Request(NamedTuple):
    """Snapshots of one moment, one for each seed; they belong to whoever answers."""

    step: int
    seconds: float
    places: tuple[Path, ...]
    seeds: tuple[int, ...]
    keep: bool = False
    """the places are not snapshots but agents that stay"""
    film: Path | None = None
    """where a film of the first agent goes; such a request is not evaluated"""
    grid: int = 1
    """episodes side by side in the film"""
    points: tuple[np.ndarray | None, ...] = ()
    """[B, C]: the behaviours of each seed's rows now, as its controller has chosen them; None without one.
    Without any points nothing is played beyond greedy and sampled episodes"""


class Answer(NamedTuple):
    """How the agents of a request did."""

    request: Request
    greedy: tuple[Evaluation, ...]
    sampled: tuple[Evaluation, ...]
    more: tuple[dict[str, float], ...] = ()
    """metrics of each agent beyond these two"""


class BackgroundEvaluator:
    """Hands snapshots to the evaluating process, one at a time; while it is busy only the newest one waits.

    A process that dies is replaced and gets its snapshot again. Of films, too, only the newest waits;
    where both wait they take turns. After a film that failed there are no more.
    """

    def __init__(self, stage: Stage, say: Callable[[str], None] = print) -> None:
        self.stage = stage
        self.dropped = 0
        self.restarts = 0
        self._say = say
        self._playing: Request | None = None
        self._waiting: Request | None = None
        self._to_film: Request | None = None
        self._filming = False
        self.films = True
        """whether drawing has worked so far"""
        self._deaths = {"evaluation": 0, "film": 0}
        """since the last answer of the kind: an evaluation's do not count against a film"""
        self._films_given_up = 0
        """since the last one that was made"""
        self._process: Any = None
        self._pipe: Any = None
        self._clock = time.monotonic
        self._began = 0.0
        self._deadline = DEADLINE_SECONDS

    @property
    def busy(self) -> bool:
        """Whether an answer is still to come."""
        return any(request is not None for request in (self._playing, self._waiting, self._to_film))

    @property
    def pid(self) -> int | None:
        """The evaluating process, once there is one."""
        return None if self._process is None else self._process.pid

    def submit(self, request: Request) -> None:
        """Takes a snapshot; one of its kind that still waits is dropped for it."""
        if request.film is not None:
            if self._to_film is not None:
                discard(self._to_film)
            self._to_film = request
            self._feed()
            return
        if self._waiting is not None:
            self.dropped += 1
            discard(self._waiting)
        self._waiting = request
        self._feed()

    def poll(self, seconds: float = 0.0) -> list[Answer]:
        """The answers that have arrived; waits at most so long for one."""
        if self._playing is None or self._pipe is None:
            return []
        try:
            if not self._pipe.poll(seconds):
                if self._clock() - self._began > self._deadline:
                    self._died(hung=True)
                return []
            kind, *rest = self._pipe.recv()
        except (EOFError, OSError):
            self._died()
            return []
        request, self._playing = self._playing, None
        self._deadline = max(self._deadline, HANGING * (self._clock() - self._began))
        self._deaths[_kind(request)] = 0
        self._feed()
        if request.film is not None:
            discard(request)
            self._films_given_up = 0
            if kind == "failed":
                self._no_more_films(f"The film at step {request.step:,} failed: {rest[0]}")
            return []
        if kind == "failed":
            self._say(f"An evaluation at step {request.step:,} failed: {rest[0]}")
            discard(request)
            return []
        return [Answer(request, *rest)]

    def drain(self, stop: Callable[[], bool] = lambda: False) -> list[Answer]:
        """Waits for everything that was submitted, unless `stop` says that it has taken long enough."""
        answers = []
        while self.busy and not stop():
            answers += self.poll(1.0)
        return answers

    def close(self) -> None:
        """Ends the process; what it was playing is lost."""
        if self._pipe is not None:
            with contextlib.suppress(OSError):
                self._pipe.send(None)
            self._pipe.close()
        if self._process is not None:
            self._process.join(CLOSE_SECONDS)
            self._process.kill()
            self._process.join()
        for request in (self._playing, self._waiting, self._to_film):
            if request is not None:
                discard(request)
        self._playing = self._waiting = self._to_film = self._pipe = self._process = None

    def _feed(self) -> None:
        if self._playing is not None or not self.busy:
            return
        self._filming = self._to_film is not None and (self._waiting is None or not self._filming)
        if self._filming:
            self._playing, self._to_film = self._to_film, None
        else:
            self._playing, self._waiting = self._waiting, None
        if self._process is None:
            self._start()
        assert self._pipe is not None
        self._began = self._clock()
        try:
            self._pipe.send(self._playing)
        except OSError:
            self._died()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=serve, args=(theirs, self.stage), name="sparring-evaluator", daemon=True
        )
        with quiet_start(keep_main=False):
            self._process.start()
        theirs.close()  # so that the child's death closes the pipe
        give_way(self._process.pid)

    def _died(self, hung: bool = False) -> None:
        """Replaces the process; what it was playing is played again, unless it kills every process or is the
        one that never ends."""
        assert self._process is not None
        assert self._pipe is not None
        assert self._playing is not None
        if not hung:
            self._process.join(1.0)
        self._process.kill()
        self._process.join()
        code = self._process.exitcode
        self._pipe.close()
        self._process = self._pipe = None
        self.restarts += 1
        request, self._playing = self._playing, None
        kind = _kind(request)
        self._deaths[kind] += 1
        if hung or self._deaths[kind] >= PATIENCE:
            why = f"no end after {self._deadline:.0f} s" if hung else f"its process died {PATIENCE} times"
            given_up = f"The {kind} at step {request.step:,} was given up: {why}."
            discard(request)
            self._deaths[kind] = 0
            self._films_given_up += request.film is not None
            if request.film is None or self._films_given_up < PATIENCE:
                self._say(given_up)
            else:
                self._no_more_films(given_up)
        else:
            how = "" if code is None else f" (exit code {code})"
            self._say(f"The evaluating process died{how} and was started again; training goes on.")
            self._again(request)
        self._feed()

    def _again(self, request: Request) -> None:
        """Puts back what a process died over, unless a newer one waits already."""
        newer = self._waiting if request.film is None else self._to_film
        if newer is not None:
            self.dropped += request.film is None
            discard(request)
        elif request.film is None:
            self._waiting = request
        else:
            self._to_film = request

    def _no_more_films(self, reason: str) -> None:
        self.films = False
        if self._to_film is not None:
            discard(self._to_film)
            self._to_film = None
        self._say(f"{reason} Training goes on without films.")


def give_way(pid: int) -> None:
    """Lets a process that was just started run behind this one, from its imports on; its threads follow."""
    with contextlib.suppress(OSError, AttributeError):  # it is gone already, or the system knows no niceness
        mine = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, pid, min(mine + NICENESS, 19))


def _kind(request: Request) -> str:
    return "evaluation" if request.film is None else "film"


def discard(request: Request) -> None:
    """Deletes the snapshots of a request, and what a killed process left of its film."""
    if request.film is not None:
        for draft in request.film.parent.glob(f"{durable.TEMPORARY}{request.film.name}-*"):
            durable.discard(draft)
    if not request.keep:
        for place in request.places:
            shutil.rmtree(place, ignore_errors=True)


def serve(pipe: Connection, stage: Stage) -> None:
    """What runs in the evaluating process: plays each request until the trainer goes away."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the trainer decides
    threading.Thread(target=follow_parent, daemon=True).start()
    from sparring.drivers.platform import prepare

    prepare("cpu")  # the accelerator belongs to training
    player = RequestPlayer(stage)
    try:
        while (request := pipe.recv()) is not None:
            pipe.send(player.answer(request))
    except (EOFError, OSError):
        return  # the trainer is gone
    finally:
        player.close()


class RequestPlayer:
    """Plays requests in an environment that is made for the first one."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._env: Any = None

    def answer(self, request: Request) -> tuple[Any, ...]:
        """("done", evaluations …), ("filmed",) or ("failed", why)."""
        try:
            if request.film is not None:
                shoot(self.stage, request)
                return ("filmed",)
            if self._env is None:
                self._env = _environment(self.stage)
            return ("done", *play(self._env, self.stage, request))
        except Exception as error:  # noqa: BLE001  (whatever an environment raises is told to the trainer)
            if not isinstance(error, SparringError):  # ours say what is wrong
                traceback.print_exc()
            return ("failed", f"{type(error).__name__}: {error}")

    def close(self) -> None:
        if hasattr(self._env, "close"):
            self._env.close()


def play(
    env: Any, stage: Stage, request: Request
) -> tuple[tuple[Evaluation, ...], tuple[Evaluation, ...], tuple[dict[str, float], ...]]:
    """Greedy and sampled episodes of every agent of a request, and what its algorithm wants besides."""
    from sparring.evaluation.behaviours import validation
    from sparring.model import Agent

    agents = [Agent.load(place, trusted=stage.trusted) for place in request.places]
    pairs = list(zip(agents, request.seeds, strict=True))
    greedy = tuple(agent.evaluate(env, stage.episodes, seed) for agent, seed in pairs)
    sampled = tuple(agent.evaluate(env, stage.episodes, seed, deterministic=False) for agent, seed in pairs)

    def besides(agent: Agent, seed: int, points: np.ndarray | None) -> dict[str, float]:
        return validation(agent.algo, partial(agent.evaluate, env, stage.episodes, seed), points)

    more = tuple(besides(*pair, points) for pair, points in zip(pairs, request.points, strict=False))
    return greedy, sampled, more


def shoot(stage: Stage, request: Request) -> None:
    """A film of the first agent of a request: greedy episodes of different seeds, with what it thinks."""
    from sparring.evaluation import frames
    from sparring.evaluation.episode import Performer
    from sparring.evaluation.film import Look, Part, Take, film
    from sparring.evaluation.video import write_video
    from sparring.model import Agent

    assert request.film is not None
    agent, train = Agent.load_full(request.places[0], trusted=stage.trusted)
    takes = tuple(Take(request.seeds[0] + number) for number in range(request.grid))
    part = Part(Performer(agent.algo, agent.weights, train), takes, (f"{request.step:,} steps",))
    look = Look(request.grid, overlay=True, most=FILM_STEPS)
    with contextlib.ExitStack() as stack:
        envs = []
        for _ in takes:
            envs.append(frames.drawable(stage.env, stage.kwargs, stage.time_limit))
            stack.callback(envs[-1].close)
        rate = frames.fps(envs[0])
        write_video(request.film, film([part], envs, look, rate, lambda played: None), rate)


def _environment(stage: Stage) -> Any:
    from sparring.envs import registry

    return registry.make(
        stage.env, n_envs=stage.rows, kwargs=stage.kwargs, time_limit=stage.time_limit, backend="inline"
    )
