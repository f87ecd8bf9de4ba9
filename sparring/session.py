"""A training session: drives a driver to its goal; sees to metrics, evaluation, checkpoints and signals."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from sparring import actor
from sparring.background import Answer, BackgroundEvaluator, Request, discard
from sparring.config import configuration
from sparring.drivers.loop import Driver
from sparring.errors import ConfigError, DivergedError
from sparring.evaluation.behaviours import validation
from sparring.evaluation.evaluator import Evaluation, evaluate
from sparring.metrics.alerts import HealthSink, parse_policy
from sparring.metrics.health import Alert
from sparring.metrics.performance import shares
from sparring.metrics.registry import EPISODIC, OF_UPDATES, SPARSE, roots
from sparring.metrics.sink import Sink, Tee
from sparring.runs import artefact, checkpoint
from sparring.runs.directory import RunDirectory, Status
from sparring.runs.durable import replace_file
from sparring.spaces import Discrete, MultiDiscrete, Space

CHUNK_SECONDS = 1.0
"""How long a fused call may keep the host waiting."""
LEARNED = ("train/", "rollout/exploration_rate")
"""How the names of an update's metrics begin, beside those in `OF_UPDATES`."""
POINTS = 2000
"""Iterations of a run whose metrics are kept, at most."""
FRESH = 500_009
"""Added to a seed for the episodes on which the best and the last agent are compared."""


@configuration
class Settings:
    """How long to train and what to do on the way; all counts are environment steps of one seed."""

    total_timesteps: int = 100_000
    """environment steps to train for"""
    n_envs: int = 1
    """copies of the environment that step together"""
    eval_freq: int = 0
    """steps between evaluations; 0 evaluates ten times, -1 only at the end"""
    n_eval_episodes: int = 0
    """episodes of one evaluation; 0 takes 100 in a JAX environment and 10 elsewhere"""
    evaluation: Literal["auto", "inline", "background"] = "auto"
    """evaluate between iterations, or in a process of its own beside them; auto: JAX environments inline"""
    video_freq: int = 0
    """steps between films of the agent, made beside training; 0 films nothing"""
    video_grid: int = 4
    """episodes side by side in such a film"""
    checkpoint_freq: int = 0
    """steps between checkpoints; 0 saves ten times, -1 only at the end"""
    keep_checkpoints: int = 3
    """newest checkpoints to keep, beside the best"""
    stats_window_size: int = 100
    """episodes over which rewards are averaged, in training and in `ep_rew_mean`"""
    stop_reward: float | None = None
    """stop when an evaluation reaches this mean reward; none trains to the end"""
    stop_on: Literal["deterministic", "stochastic"] = "deterministic"
    """which evaluation is held against stop_reward"""
    on_alert: str = ""
    """what health rules do besides showing alerts: `R01=stop R14=ignore`"""
    time_limit: int | None = None
    """steps after which an episode is truncated; none keeps the environment's own"""
    backend: Literal["auto", "inline", "workers"] = "auto"
    """run host environments in this process or in workers; auto measures their cost"""
    worker_deadline: float = 30.0
    """seconds after which a worker or an actor that does not answer is replaced"""
    driver: Literal["auto", "async", "cluster"] = "auto"
    """auto: act and learn in turn; async: actors act while the learner learns; cluster: the same on Ray"""
    address: str = ""
    """of the Ray cluster for driver=cluster; empty starts one in this machine"""
    actors: int = 0
    """actors of driver=async and cluster, which share the n_envs rows; 0: two, or one where rows are odd"""
    learner: Literal["here", "cluster"] = "here"
    """where networks and updates of driver=cluster are: in this process, or in a Ray actor on any node"""
    learner_gpus: float = 0.0
    """GPUs that Ray keeps for learner=cluster"""
    replay_shards: int = 0
    """Ray actors that hold the replay of driver=cluster, each a share of the rows; 0: the learner does"""
    actor_kind: Literal["process", "thread"] = "process"
    """where an actor lives; threads are for environments that step outside Python's lock"""
    actor_pull: int = 0
    """steps between an actor's looks for newer weights; 0 looks once per rollout"""
    learner_push: int = 1
    """blocks of updates between published weights"""
    slot: Literal["memory", "file"] = "memory"
    """how weights reach actors: shared memory, or files that are renamed into place"""
    slot_folder: str = ""
    """where slot=file keeps them; empty takes the system's temporary folder"""


Outcome: TypeAlias = Literal["finished", "solved", "interrupted", "stopped"]


class Result(NamedTuple):
    """What a session achieved."""

    steps: int
    seconds: float
    """spent training, compilation apart"""
    compile_seconds: float
    outcome: Outcome
    evaluations: list[Evaluation]
    """the last deterministic evaluation of every seed"""

    @property
    def steps_per_second(self) -> float:
        return self.steps / self.seconds if self.seconds > 0 else 0.0


@dataclass
class Progress:
    """The parts of a session that a checkpoint must bring back."""

    best: float = -math.inf
    """lower end of the 95 % interval of the best evaluation"""
    next_eval: int = 0
    next_checkpoint: int = 0
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "best": self.best if math.isfinite(self.best) else None,
            "next_eval": self.next_eval,
            "next_checkpoint": self.next_checkpoint,
            "seconds": self.seconds,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Progress:
        best = -math.inf if data["best"] is None else float(data["best"])
        return cls(best, int(data["next_eval"]), int(data["next_checkpoint"]), float(data["seconds"]))


class Stop(Exception):
    """Ends training before its goal."""


def watch(
    run: RunDirectory,
    algorithm: str,
    settings: Mapping[str, Any],
    *,
    on_alert: str,
    say: Callable[[str], None],
    **facts: Any,
) -> HealthSink:
    """The health rules beside a run; `facts` are those of `HealthSink`. A webhook's address may be a secret:
    it comes from the environment."""

    def stop(alert: Alert) -> None:
        say(f"Stopping, as on_alert asks: {alert.line()}")
        raise Stop

    return HealthSink(
        run.metrics,
        algorithm,
        settings,
        say=say,
        on_stop=stop,
        on_alert=parse_policy(on_alert),
        webhook=os.environ.get("SPARRING_WEBHOOK", ""),
        run=run.name,
        **facts,
    )


@dataclass
class Session:
    """Trains until the goal, a solved task, a signal or a callback ends it.

    Evaluation environments are separate from training ones; `save_agent(folder, index, full)` writes the
    artefact, a full one with what values are computed from. Evaluations happen in `eval_env`, or in the
    `evaluator`'s process; films in the `filmer`'s, which may be the same.
    """

    driver: Driver
    settings: Settings
    eval_env: Any = None
    directory: RunDirectory | None = None
    sinks: list[Sink] = field(default_factory=list)
    """what keeps numbers"""
    displays: list[Sink] = field(default_factory=list)
    """what shows them"""
    save_agent: Callable[[Path, int, bool], None] | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    on_iterations: Callable[[Session], None] | None = None
    say: Callable[[str], None] = print
    progress: Progress = field(default_factory=Progress)
    evaluator: BackgroundEvaluator | None = None
    filmer: BackgroundEvaluator | None = None
    most_iterations: int = 1_000_000
    """iterations between returns of control to `on_iterations`"""

    def __post_init__(self) -> None:
        self.steps_at_start = self.steps
        self.seconds_at_start = self.progress.seconds
        self.last: dict[str, float] = {}
        self.evaluations: list[Evaluation] = []
        self._stopping = ""
        self._over = False
        self._saved = -1
        self._evaluated = -1
        self._filmed = self.steps
        self._chunk = 1
        self._waited = {"evaluation": 0.0, "checkpoint": 0.0}
        """seconds in which training waited, compilation apart"""
        self._compiled_beside = 0.0
        """seconds of compiling meanwhile"""
        self._dumped: tuple[float, dict[str, float]] | None = None
        """when the time was last divided up, and what each kind had taken by then"""

    # -- where the run is --------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """Environment steps of one seed so far."""
        return self.driver.iteration * self.driver.steps_per_iteration

    @property
    def total_iterations(self) -> int:
        return max(math.ceil(self.settings.total_timesteps / self.driver.steps_per_iteration), 1)

    def _period(self, value: int, share: int = 10) -> int:
        """Steps between events; a very large number when they happen only at the end."""
        if value < 0:
            return 1 << 62
        return value or max(self.settings.total_timesteps // share, self.driver.steps_per_iteration)

    # -- the loop ----------------------------------------------------------------------------------------

    def run(self) -> Result:
        """Trains to the end and returns what came of it; the run's folder tells the same."""
        p = self.progress
        p.next_eval = p.next_eval or self._period(self.settings.eval_freq)
        p.next_checkpoint = p.next_checkpoint or self._period(self.settings.checkpoint_freq)
        self.driver.reschedule(float(self.total_iterations))
        self._status("running")
        self._dumped = (time.perf_counter(), self._spent())
        try:
            with self._signals():
                try:
                    outcome = self._train()
                except Stop:
                    outcome = "stopped"
                self._over = True
                self._finish(outcome)
        except BaseException as error:
            self._status("failed", f"{type(error).__name__}: {error}")
            self._close_sinks()
            raise
        self._close_sinks()
        state = {"finished": "finished", "solved": "finished", "stopped": "stopped"}.get(
            outcome, "interrupted"
        )
        self._status(state, self._stopping)
        return Result(
            self.steps - self.steps_at_start,
            self.progress.seconds - self.seconds_at_start,
            self.driver.compile_seconds,
            outcome,
            self.evaluations,
        )

    def _train(self) -> Outcome:
        """Iterations, with evaluations, films and checkpoints when they are due."""
        p = self.progress
        while self.driver.iteration < self.total_iterations:
            self._advance()
            solved = self._answered()
            if self.steps >= p.next_eval:
                with self._waiting("evaluation"):
                    solved |= self._evaluate()
            if self.steps >= self._next_film():
                self._film()
            if solved:
                return "solved"
            if self.steps >= p.next_checkpoint:
                p.next_checkpoint = self.steps + self._period(self.settings.checkpoint_freq)
                with self._waiting("checkpoint"):
                    self.save()
            if self._stopping:
                return "interrupted"
        return "finished"

    def _finish(self, outcome: Outcome) -> None:
        """Keeps everything, then waits for the last evaluations and films: who ends that loses nothing."""
        if self.save_agent is not None and self.directory is not None:
            self.save_agent(self.directory.last, 0, False)
        self.save()
        if outcome != "interrupted":
            self._conclude(again=outcome != "solved")
            self._last_film()

    def _advance(self) -> None:
        """Some iterations: up to the next event, and no longer than the host may wait."""
        per = self.driver.steps_per_iteration
        p = self.progress
        event = min(p.next_eval, p.next_checkpoint, self._next_film(), self.total_iterations * per)
        ahead = max(math.ceil((event - self.steps) / per), 1)
        count = min(ahead, self._chunk, self.total_iterations - self.driver.iteration, self.most_iterations)
        first, compiled = self.driver.iteration, self.driver.compile_seconds
        began = time.perf_counter()
        traces = self.driver.advance(count)
        count = self.driver.iteration - first
        elapsed = time.perf_counter() - began
        spent = max(elapsed - (self.driver.compile_seconds - compiled), 1e-9)
        self.progress.seconds += spent
        self._chunk = int(min(max(CHUNK_SECONDS * count / spent, 1), 4 * max(self._chunk, count)))
        self._record(traces, first, count)
        for event_text in self.driver.events():
            self.say(event_text)
        if self.on_iterations is not None:
            self.on_iterations(self)

    def _record(self, traces: list[dict[str, np.ndarray]], first: int, count: int) -> None:
        """Keeps every so many iterations, by number so that a resumed run keeps the same; shows the last."""
        per = self.driver.steps_per_iteration
        stride = max(self.total_iterations // POINTS, 1)
        fps = (self.steps - self.steps_at_start) / (self.progress.seconds - self.seconds_at_start)
        done = range(first + 1, first + count + 1)
        kept = [n for n in done if n % stride == 0 or n == self.total_iterations]
        split = {(0, kept[-1]): self._time_split()} if kept else {}
        for index, trace in enumerate(traces):
            # Most iterations are neither kept nor shown: only those with odd numbers are looked at besides.
            for iteration in sorted({*kept, *doubtful(trace, first + 1), done[-1]}):
                row = iteration - first - 1
                values = {name: float(x[row]) for name, x in trace.items()}
                values = measured(values)
                values |= relative_entropy(self.driver.algo.spec.action, values)
                values |= {
                    "time/fps": fps,
                    "time/iterations": iteration,
                    "time/total_timesteps": iteration * per,
                    "time/time_elapsed": self.progress.seconds,
                    "time/compile_seconds": self.driver.compile_seconds - self._compiled_beside,
                }
                self._check_finite(values, iteration * per, index)
                if iteration % stride == 0 or iteration == self.total_iterations:
                    all_values = values | split.get((index, iteration), {})
                    Tee(self.sinks).write(iteration * per, self.progress.seconds, all_values, index)
            Tee(self.displays).write(self.steps, self.progress.seconds, values, index)
            if index == 0:
                self.last |= values

    def _spent(self) -> dict[str, float]:
        """Seconds that each kind of work has taken so far."""
        return {**self.driver.seconds, **self._waited, "compile": self.driver.compile_seconds}

    def _time_split(self) -> dict[str, float]:
        """Where the time since the last call went, as shares."""
        now, spent = time.perf_counter(), self._spent()
        since, before = self._dumped or (now, spent)
        self._dumped = now, spent
        return shares({kind: spent[kind] - before[kind] for kind in spent}, now - since)

    @contextmanager
    def _waiting(self, kind: str) -> Iterator[None]:
        """Counts the time inside as waiting for something, but for what is compiled in it."""
        began, compiled = time.perf_counter(), self.driver.compile_seconds
        try:
            yield
        finally:
            compiling = self.driver.compile_seconds - compiled
            self._compiled_beside += compiling
            self._waited[kind] += max(time.perf_counter() - began - compiling, 0.0)

    def _check_finite(self, values: dict[str, float], step: int, index: int) -> None:
        """Ends a training that diverged, after its last numbers were kept and the rules have seen them."""
        bad = [name for name, value in values.items() if not math.isfinite(value)]
        if not bad:
            return
        with suppress(Stop):  # a rule may ask for the end, too; the state is not worth saving
            Tee(self.sinks).write(step, self.progress.seconds, values, index)
        seed = f" of seed {self.driver.seeds[index]}" if len(self.driver.seeds) > 1 else ""
        saved = self.directory is not None and checkpoint.listing(self.directory.checkpoints)
        kept = f" The last good checkpoint is kept in {saved[0]}." if saved else ""
        raise DivergedError(
            f"Training{seed} diverged at step {step:,}: {bad[0]} is {values[bad[0]]}.{kept} Likely causes: a "
            "learning rate that is too high, rewards or observations that are not normalised (try "
            "normalize_obs=true, normalize_reward=true), or an environment that returns huge values."
        )

    def _close_sinks(self) -> None:
        Tee([*self.displays, *self.sinks]).close()

    # -- evaluation --------------------------------------------------------------------------------------

    def _evaluate(self) -> bool:
        """Evaluates every seed both ways, here or elsewhere; True when the task is known to be solved."""
        self.progress.next_eval = self.steps + self._period(self.settings.eval_freq)
        if self._evaluated == self.steps:
            return False
        self._evaluated = self.steps
        if self.evaluator is not None:
            self.evaluator.submit(self._snapshot(self.evaluator))
            return False
        if self.eval_env is None:
            return False
        return self._judge(self._played_here(self.driver.seeds))

    def _snapshot(self, evaluator: BackgroundEvaluator) -> Request:
        """Copies of the agents as they are now, for the evaluating process."""
        assert self.directory is not None
        assert self.save_agent is not None
        seeds = self.driver.seeds
        places = tuple(self.directory.snapshots / f"{self.steps}-{i}" for i in range(len(seeds)))
        for index, place in enumerate(places):
            self.save_agent(place, index, False)
        return Request(self.steps, self.progress.seconds, places, seeds, points=self._points())

    def _points(self) -> tuple[Any, ...]:
        """The behaviours that each seed's controller has chosen for its rows; None without one."""
        chosen = (actor.point(self.driver.acting(index)) for index in range(len(self.driver.seeds)))
        return tuple(None if point is None else np.asarray(point) for point in chosen)

    def _played_here(self, seeds: tuple[int, ...]) -> Answer:
        algo, episodes = self.driver.algo, self.settings.n_eval_episodes
        weights = [algo.policy(self.driver.train_state(index)) for index in range(len(seeds))]

        def all_of_them(deterministic: bool) -> tuple[Evaluation, ...]:
            return tuple(
                evaluate(algo, w, self.eval_env, episodes, seed, deterministic)
                for w, seed in zip(weights, seeds, strict=True)
            )

        request = Request(self.steps, self.progress.seconds, (), seeds)
        greedy, sampled = all_of_them(deterministic=True), all_of_them(deterministic=False)
        more = tuple(
            validation(algo, partial(evaluate, algo, w, self.eval_env, episodes, seed), points)
            for w, seed, points in zip(weights, seeds, self._points(), strict=True)
        )
        return Answer(request, greedy, sampled, more)

    def _answered(self) -> bool:
        """Takes what the evaluating process has found; True when the task is solved."""
        if self.filmer is not None and self.filmer is not self.evaluator:
            self.filmer.poll()
        answers = [] if self.evaluator is None else self.evaluator.poll()
        solved = [self._judge(answer) for answer in answers]
        return any(solved)

    def _judge(self, answer: Answer) -> bool:
        """Records an evaluation and keeps the agent when it is the best; True when the task is solved."""
        request = answer.request
        each = zip(answer.greedy, answer.sampled, answer.more, strict=True)
        for index, (greedy, sampled, more) in enumerate(each):
            values = {
                "eval/mean_reward": greedy.mean,
                "eval/std_reward": greedy.std,
                "eval/mean_ep_length": float(greedy.lengths.mean()),
                "eval/stochastic_mean_reward": sampled.mean,
                "eval/stochastic_std_reward": sampled.std,
                "eval/stochastic_mean_ep_length": float(sampled.lengths.mean()),
                "eval/episodes": len(greedy.returns),
            }
            if greedy.shaped is not None:
                by_head = enumerate(greedy.shaped.mean(axis=0), 1)
                values |= {f"eval/shaped_mean_reward_{head}": float(mean) for head, mean in by_head}
            values |= more
            if self.evaluator is not None:
                values |= {"eval/dropped": self.evaluator.dropped, "eval/restarts": self.evaluator.restarts}
            try:
                Tee([*self.sinks, *self.displays]).write(request.step, request.seconds, values, index)
            except Stop:
                if not self._over:  # after the end of training there is nothing to stop
                    raise
            if index == 0:
                self.last |= values
        self.evaluations = list(answer.greedy)
        best = max(range(len(answer.greedy)), key=lambda index: answer.greedy[index].ci95[0])
        if answer.greedy[best].ci95[0] > self.progress.best:
            self.progress.best = answer.greedy[best].ci95[0]
            self._keep_best(request, best, answer.greedy[best])
        discard(request)
        judged = answer.greedy if self.settings.stop_on == "deterministic" else answer.sampled
        goal = self.settings.stop_reward
        return goal is not None and min(e.mean for e in judged) >= goal

    def _keep_best(self, request: Request, index: int, score: Evaluation) -> None:
        """One seed's agent as the best so far, with the score that made it so."""
        if self.save_agent is None or self.directory is None:
            return
        if request.places:
            artefact.copy(request.places[index], self.directory.best)
        else:
            self.save_agent(self.directory.best, index, False)
        seed = self.driver.seeds[index]
        self._write_evaluation({"best": {"step": request.step, "seed": seed, "selected": score.as_json()}})

    def _conclude(self, again: bool) -> None:
        """Waits for evaluations, evaluates the end, then best and last once more on fresh episodes.

        The best agent was chosen among many for its score, which flatters it; fresh episodes do not.
        """
        if self.evaluator is not None:
            if again:
                self._evaluate()
            if self.evaluator.busy:
                self.say("Waiting for the last evaluations …")
            for answer in self.evaluator.drain(self._asked_to_stop):
                self._judge(answer)
        elif again and self.eval_env is not None:
            self._evaluate()
        found = self._read_evaluation()
        if self.directory is None or found is None or self._stopping:
            return
        places = (self.directory.best, self.directory.last)
        seeds = (int(found["best"].get("seed", self.driver.seeds[0])) + FRESH, self.driver.seeds[0] + FRESH)
        fresh = self._fresh(Request(self.steps, self.progress.seconds, places, seeds, keep=True))
        if fresh is None:
            return
        found["best"]["fresh"] = fresh.greedy[0].as_json()
        last = {"step": self.steps, "fresh": fresh.greedy[1].as_json()}
        self._write_evaluation(found | {"last": last})
        scores = {
            "eval/best_fresh_reward": fresh.greedy[0].mean,
            "eval/last_fresh_reward": fresh.greedy[1].mean,
        }
        with suppress(Stop):  # training is over already
            Tee(self.sinks).write(self.steps, self.progress.seconds, scores)

    def _fresh(self, request: Request) -> Answer | None:
        """The best and the last agent on episodes that no evaluation has seen."""
        if self.evaluator is not None:
            self.evaluator.submit(request)
            return next(iter(self.evaluator.drain(self._asked_to_stop)), None)
        if self.eval_env is None:
            return None
        from sparring.model import Agent

        agents = [Agent.load(place, trusted=True) for place in request.places]
        pairs = zip(agents, request.seeds, strict=True)
        episodes = self.settings.n_eval_episodes
        return Answer(request, tuple(a.evaluate(self.eval_env, episodes, seed) for a, seed in pairs), ())

    def _asked_to_stop(self) -> bool:
        return bool(self._stopping)

    def _read_evaluation(self) -> dict[str, Any] | None:
        """What is known of the best agent; None when there is none, or the file was spoilt."""
        if self.directory is None or not self.directory.evaluation.exists():
            return None
        try:
            found: dict[str, Any] = json.loads(self.directory.evaluation.read_text())
            _ = int(found["best"]["step"]), float(found["best"]["selected"]["ci95"][0])
        except (ValueError, KeyError, TypeError) as error:
            self.say(f"{self.directory.evaluation} cannot be read and will be written anew: {error!r}")
            return None
        return found

    def _write_evaluation(self, found: dict[str, Any]) -> None:
        assert self.directory is not None
        replace_file(self.directory.evaluation, [json.dumps(found, indent=1).encode() + b"\n"])

    # -- films -------------------------------------------------------------------------------------------

    def _next_film(self) -> int:
        """Steps at which the next film is due: the multiples of `video_freq`."""
        freq = self.settings.video_freq
        return (self._filmed // freq + 1) * freq if freq > 0 and self.filmer is not None else 1 << 62

    def _film(self) -> None:
        """Has the agent of the first seed filmed as it is now; training does not wait for it."""
        self._filmed = self.steps
        if self.filmer is None or self.directory is None or self.save_agent is None or not self.filmer.films:
            return
        place = self.directory.snapshots / f"{self.steps}-film"
        self.save_agent(place, 0, True)
        film, seeds = self.directory.videos / f"step-{self.steps}.mp4", self.driver.seeds[:1]
        grid = self.settings.video_grid
        self.filmer.submit(Request(self.steps, self.progress.seconds, (place,), seeds, film=film, grid=grid))

    def _last_film(self) -> None:
        """Films the end and waits for it."""
        if self.filmer is None:
            return
        if self._filmed != self.steps:
            self._film()
        if self.filmer.busy:
            self.say("Waiting for the last film …")
            self.filmer.drain(self._asked_to_stop)

    # -- what is kept ------------------------------------------------------------------------------------

    def save(self) -> None:
        """A checkpoint of everything that training changed."""
        if self.directory is None or self._saved == self.steps:
            return
        self._saved = self.steps
        count = len(self.driver.seeds)
        worlds = [self.driver.world(i) or {} for i in range(count)]
        host = {f"{i}/{name}": array for i, world in enumerate(worlds) for name, array in world.items()}
        checkpoint.save(
            self.directory.checkpoints,
            tuple(self.driver.state(i) for i in range(count)),
            step=self.steps,
            iteration=self.driver.iteration,
            host=host or None,
            metadata={**self.metadata, "progress": self.progress.as_json()},
            keep=self.settings.keep_checkpoints,
        )
        self._status("running")

    def restore(self) -> bool:
        """Continues from the newest good checkpoint of the run's folder; False when there is none."""
        if self.directory is None:
            return False
        found = checkpoint.load_latest(self.directory.checkpoints, report=self.say)
        if found is None:
            self._forget_later()
            return False
        count = len(self.driver.seeds)
        states = found.restore(tuple(self.driver.state(i) for i in range(count)))
        for index, state in enumerate(states):
            self.driver.restore(state, found.manifest.iteration, index)
            prefix = f"{index}/"
            world = {k.removeprefix(prefix): v for k, v in (found.host or {}).items() if k.startswith(prefix)}
            self.driver.restore_world(world, index)
        self.progress = Progress.from_json(found.manifest.metadata["progress"])
        self.progress.best = max(self.progress.best, self._best_score(found.manifest.step))
        self.steps_at_start = self._filmed = self.steps
        self.seconds_at_start = self.progress.seconds
        for difference in checkpoint.exactness(found.manifest):
            self.say(f"Resuming, but not bit for bit: {difference}")
        self._forget_later()
        return True

    def _forget_later(self) -> None:
        """Takes back what was told of steps that are made again."""
        for sink in self.sinks:
            if hasattr(sink, "truncate_after"):
                sink.truncate_after(self.steps)

    def _best_score(self, step: int) -> float:
        """Of the best agent up to a step, which may have been found after the checkpoint was written."""
        found = self._read_evaluation()
        if found is None or int(found["best"]["step"]) > step:
            return -math.inf
        return float(found["best"]["selected"]["ci95"][0])

    def _status(self, state: Any, message: str = "") -> None:
        if self.directory is None:
            return
        old = self.directory.read_status()
        mean = self.last.get("eval/mean_reward", self.last.get("rollout/ep_rew_mean", old.mean_reward))
        self.directory.write_status(
            Status(
                old.algo,
                old.env,
                old.seed,
                state,
                self.steps,
                self.settings.total_timesteps,
                mean,
                message,
                old.started,
            )
        )

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Ctrl-C or SIGTERM asks for a checkpoint and a clean end; a second Ctrl-C aborts."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, frame: FrameType | None) -> None:
            if self._stopping and number == signal.SIGINT:
                raise KeyboardInterrupt
            self._stopping = f"{signal.Signals(number).name} received"
            self.say("Stopping: saving a checkpoint. Press Ctrl-C again to abort without saving.")

        kinds = (signal.SIGINT, signal.SIGTERM)
        before = {kind: signal.signal(kind, ask) for kind in kinds}
        try:
            yield
        finally:
            for kind, handler in before.items():
                signal.signal(kind, handler)


def doubtful(trace: Mapping[str, np.ndarray], first: int) -> list[int]:
    """The iterations, counted from `first`, in which a number is not finite that should be."""
    odd = [~np.isfinite(x) for name, x in trace.items() if not may_be_absent(name)]
    return (np.flatnonzero(np.any(odd, axis=0)) + first).tolist() if odd else []


def may_be_absent(name: str) -> bool:
    """Whether a metric is not finite where it was not measured."""
    return name in SPARSE or name.startswith(("env/", "bandit/"))


def measured(values: dict[str, float]) -> dict[str, float]:
    """With the roots of losses, and without what was not measured: looks inside that were not due, what is
    known of an episode before the first has ended, and updates while a replay fills."""
    values = {n: x for n, x in values.items() if math.isfinite(x) or not may_be_absent(n)}
    if values.get("rollout/window_episodes") == 0:
        values = {n: x for n, x in values.items() if not n.startswith(EPISODIC)}
    if values.get("train/n_updates") != 0:
        return values | roots(values)
    return {n: x for n, x in values.items() if not n.startswith(LEARNED) and n not in OF_UPDATES}


def relative_entropy(space: Space, values: Mapping[str, float]) -> dict[str, float]:
    """The entropy of a policy of choices as a share of the most there can be; nothing for others."""
    match space:
        case Discrete(n):
            most = math.log(n)
        case MultiDiscrete(sizes):
            most = sum(math.log(n) for n in sizes)
        case _:
            most = 0.0
    if most == 0.0 or "train/entropy_loss" not in values:
        return {}
    return {"stats/entropy_relative": -values["train/entropy_loss"] / most}


def eval_episodes(settings: Settings, is_jax: bool) -> int:
    """How many episodes an evaluation has."""
    if settings.n_eval_episodes < 0:
        raise ConfigError(f"n_eval_episodes must be positive, got {settings.n_eval_episodes}.")
    return settings.n_eval_episodes or (100 if is_jax else 10)
