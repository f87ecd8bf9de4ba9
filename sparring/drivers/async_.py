"""The asynchronous driver: actors act while the learner learns, with weights that are a little old.

Actors hand chunks of T steps of their rows to the learner through bounded queues. An iteration takes as many
chunks as there are actors, which is what one iteration of the host driver collects, and learns from them
exactly as that does. How old the weights were is a metric; correcting for it is the algorithm's affair.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from sparring import actor
from sparring.drivers import loop
from sparring.drivers.acting import Job, Snapshot, blank, encode, snapshot_template
from sparring.drivers.collector import Chunk, credits
from sparring.drivers.host import REPLAY, Host, Situation, Trace, Trees, _learn_from
from sparring.drivers.seats import DEPTH, SEATS, Seat, Trouble, origin
from sparring.drivers.slot import FileSlot, MemorySlot, SharedSlot, Slot
from sparring.envs.api import HostEnv
from sparring.errors import ConfigError, EnvironmentFailure
from sparring.replay import offpolicy
from sparring.replay.prioritised import Prioritised
from sparring.replay.sequence import Sequence
from sparring.runs import tree
from sparring.types import Algorithm, Metrics

MAX_FAILURES = 10
"""Actors of one seat that end in a row before they have made `FEW_CHUNKS`, after which the run stops."""
FEW_CHUNKS = 20
MEND_SECONDS = 0.5
_FOLDER = "sparring-weights-"


@dataclass(frozen=True)
class Crew:
    """The actors of an asynchronous run, and how weights reach them."""

    actors: int = 2
    kind: Literal["process", "thread"] = "process"
    pull: int = 0
    """steps between an actor's looks for newer weights; 0 looks before every chunk"""
    push: int = 1
    """iterations between published weights"""
    slot: Literal["memory", "file"] = "memory"
    folder: str = ""
    """where a file slot lies; empty takes the system's temporary folder"""
    deadline: float = 30.0
    """seconds without a step after which an actor is replaced"""
    kwargs: dict[str, Any] | None = None
    time_limit: int | None = None
    shards: int = 0
    """of the replay, on a cluster; 0 leaves it with the learner"""

    def check(self, algo: Any, env: Any) -> None:
        """Refuses what cannot work, with the way out."""
        name = type(algo).__name__
        if not hasattr(algo.config, "buffer_size"):
            raise ConfigError(
                f"{name} learns from what its newest weights have just done, and the actors of driver=async "
                "and driver=cluster act with older ones. Use gdi, dqn, sac, td3 or crossq, which learn from "
                "a replay, or driver=auto."
            )
        if not isinstance(env, str):
            raise ConfigError(
                "driver=async and driver=cluster build environments inside their actors and need an id or "
                f"file.py:name, not an object ({type(env).__name__})."
            )
        if self.deadline <= 0.0:
            raise ConfigError(
                f"worker_deadline = {self.deadline:g} seconds would replace every actor at once; it must be "
                "above 0."
            )
        rows = algo.spec.rows
        if self.actors < 1 or rows % self.actors:
            raise ConfigError(
                f"n_envs={rows} rows cannot be shared evenly by actors={self.actors}. Choose n_envs as a "
                f"multiple of it, for example n_envs={max(self.actors, 1) * -(-rows // max(self.actors, 1))}."
            )
        apart = offpolicy.on_host(algo.config, algo.spec) or isinstance(algo.replay, Prioritised | Sequence)
        if self.shards and not apart:
            raise ConfigError(
                "replay_shards divides sequences, priorities, or steps in the host's memory, and these steps "
                "are the device's. Set buffer=host, or leave replay_shards out."
            )
        if self.shards and getattr(algo.config, "buffer_folder", None):
            raise ConfigError(
                f"replay_shards={self.shards} lie in the memory of the cluster's nodes, and none of them "
                f"reads buffer_folder={algo.config.buffer_folder!r}. Leave one of them out."
            )
        if self.pull < 0 or self.push < 1:
            raise ConfigError(
                f"actor_pull must be 0 or above and learner_push at least 1, got {self.pull} and {self.push}."
            )


class Taken(NamedTuple):
    """A chunk and whose it is."""

    number: int
    chunk: Chunk


class Async(Host):
    """Learns as `Host` does, from what actors have made meanwhile.

    `env` shows what a step looks like and is closed; `source` is what actors build theirs from. Checkpoints
    hold the learner, the replay and the bandit. Resumed, the actors' episodes start anew.
    """

    def __init__(
        self,
        algo: Algorithm,
        env: HostEnv,
        source: str,
        seed: int,
        window: int = 100,
        crew: Crew | None = None,
    ) -> None:
        self.crew = crew or Crew()
        self.crew.check(algo, source)
        super().__init__(algo, env, seed, window)
        env.close()
        self._begun_with = self.actor.carry
        self._source = source
        self._plain: Any = algo
        self._each = self.rows // self.crew.actors
        self._template = self._chunk_template()
        self._arrived = threading.Condition()
        self._seats: list[Seat] = []
        self._failures = [0] * self.crew.actors
        self._shown: set[tuple[str, ...]] = set()
        """tracebacks that were told, as lines of code: messages may name actions"""
        self._slot: Slot | None = None
        self._folder: Path | None = None
        self._born_at = 0
        self.replaced = 0
        self._waited = 0.0
        self._updates_before: int | None = None
        self._told: dict[str, float] = {}

    def _devices(self) -> Mesh | None:
        """All that this process has."""
        return loop.mesh_for(self.algo.replay.batch_size)

    @property
    def _may_lose(self) -> bool:
        """Always a mask: an actor that is gone leaves its rows empty."""
        return True

    # -- one iteration -----------------------------------------------------------------------------------

    def _iterate(self) -> Trace:
        began = time.perf_counter()
        self._start()
        with loop.on_devices(self._mesh):  # for `_learn_from`, traced anew for the learner of another mesh
            trace = super()._iterate()
        if self.iteration % self.crew.push == 0:
            self._publish()
        seconds = time.perf_counter() - began
        metrics = self._unpacked(trace.packed) | trace.told
        return trace._replace(told=trace.told | self._tell(metrics, seconds))

    def _collect(self) -> None:
        """Fills the buffers with an iteration's chunks; what does not fit in beside them is added first."""
        layers = self._take()
        for layer in layers[:-1]:
            self._fill(layer)
            self._swallow()
        self._fill(layers[-1])

    def _take(self) -> list[list[Taken]]:
        """As many chunks as there are actors: one of each, or, where one is late, more of the others.

        They come in layers, each with at most one chunk of an actor; the last one is never empty.
        """
        began = time.perf_counter()
        while True:
            self._mend()
            with self._arrived:
                if self._enough() or (self._arrived.wait(MEND_SECONDS) and self._enough()):
                    waiting = sum(len(seat.chunks) for seat in self._seats)
                    layers = self._layers()
                    break
        self._waited = time.perf_counter() - began
        everything = [chunk for layer in layers for _, chunk in layer]
        updates = self.algo.plan.updates
        made, idle = np.sum([chunk.seconds for chunk in everything], axis=0)
        self._told = {
            "async/staleness": float(np.mean([self.iteration - int(c.version) for c in everything]))
            * updates,
            "async/queue": waiting,
            "async/actor_idle": float(idle / max(made + idle, 1e-9)),
        }
        return layers

    def _layers(self) -> list[list[Taken]]:
        """The oldest chunks, as many as there are actors."""
        layers: list[list[Taken]] = []
        left = self.crew.actors
        while left:
            ready = [seat for seat in self._seats if seat.chunks][:left]
            layers.append([Taken(seat.job.number, seat.take()) for seat in ready])
            left -= len(ready)
        return layers

    def _enough(self) -> bool:
        """Whether an iteration can begin. While the learner has nothing to do, nobody who waits must."""
        held = [len(seat.chunks) for seat in self._seats]
        if all(held) or (sum(held) >= self.crew.actors and max(held) >= DEPTH):
            return True
        for seat in self._seats:
            seat.urge()
        return False

    def _fill(self, layer: list[Taken]) -> None:
        """Puts chunks beside each other into the buffers; rows without one are masked out."""
        self._buffers.mask[:] = False
        self._buffers.truncated[:] = False
        self._buffers.terminated[:] = False
        self._buffers.first[:] = False
        for number, chunk in layer:
            span = self._span(number)
            for place, leaf in zip(self._bins, jax.tree.leaves(chunk.rollout), strict=True):
                place[:, span] = leaf
            self._credit(chunk, span)
            self._tally.merge(chunk.infos)
        first = self._buffers.first[0] & self._buffers.mask[0]
        if first.any():  # an actor that was replaced broke its episodes off: they have earned nothing
            self._kept = _beginning(self._trees)(self._kept, first)

    def _swallow(self) -> None:
        """Adds the buffers to the replay and absorbs them, without an update and without a step of time."""
        here = (self._key, np.int32(self.iteration))
        rollout = self._rollout()
        if self._ring is None:
            self._data, self._live, ready = self._store(self._floats, self._data, self._live, rollout)
            self._ready = self._ready or bool(ready)
            self._learned(False, rollout, *here)
        else:
            self._ring.add(loop.learned(rollout))
            none = jax.tree.map(lambda x: x[:0], self._drawn())
            self.learner, *_ = _learn_from(self.algo, self.learner, rollout, none, *here)
        self._kept = _rewinding(self._trees)(self._kept)

    def _credit(self, chunk: Chunk, span: slice) -> None:
        """The bandit learns from the episodes that ended in a chunk; the rows' indices are its newest."""
        if self._turn is None:
            return
        control, nothing = self.actor.control, np.zeros(self.rows, np.float32)
        state, earned = control.state, control.earned
        for credit in credits(chunk, span.start, self.rows):
            before = control._replace(state=state, choice=credit.choice, total=credit.returns, earned=earned)
            # The new choice is nobody's: actors have chosen for themselves.
            after = self._turn(before, nothing, credit.mask, None, self._key)
            state, earned = jax.tree.map(np.asarray, (after.state, after.earned))
        choice = jax.tree.map(np.array, control.choice)
        choice.cell[span], choice.point[span] = chunk.cell[-1], chunk.rollout.point[-1]
        control = control._replace(state=state, choice=choice, earned=earned)
        self.actor = self.actor._replace(control=control)

    def _tell(self, metrics: Metrics, seconds: float) -> Metrics:
        """How well actors and learner keep up with each other."""
        replay = self.algo.replay
        if self._updates_before is None:
            self._updates_before = int(metrics.get("train/n_updates", 0))
        updates = max(int(metrics.get("train/n_updates", 0)) - self._updates_before, 0)
        inserted = (self.iteration - self._born_at) * self.steps_per_iteration
        told = {
            **self._told,
            "async/samples_per_insert": updates * replay.batch_size * getattr(replay, "length", 1) / inserted,
            "async/learner_idle": self._waited / max(seconds, 1e-9),
            "async/actors_replaced": self.replaced,
        }
        return {name: np.float32(value) for name, value in told.items()}

    # -- actors ------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._seats:
            return
        self._born_at = self.iteration
        self._slot = self._open_slot()
        self._publish()
        self._seats = [self._seat(number) for number in range(self.crew.actors)]

    def _seat(self, number: int) -> Seat:
        assert self._slot is not None
        job = Job(
            self._plain,
            self._source,
            first=self._span(number).start,
            rows=self._each,
            seed=self._seed,
            number=number,
            # Not the episodes of those who sat here before, in this run or before it was resumed.
            life=(self.iteration, self.replaced),
            pull=self.crew.pull,
            kwargs=dict(self.crew.kwargs or {}),
            time_limit=self.crew.time_limit,
        )
        return self._made_seat(job)

    def _made_seat(self, job: Job) -> Seat:
        assert self._slot is not None
        return SEATS[self.crew.kind](job, self._slot, self._template, self._arrived)

    def _mend(self) -> None:
        """Replaces actors that are gone or hang; what they had sent is kept."""
        for number, seat in enumerate(self._seats):
            patience = seat.patience(self.crew.deadline)
            if seat.trouble is None and seat.silence() > patience:
                seat.trouble = Trouble(f"made no {seat.SIGN} for {patience:.3g} s")
            if seat.trouble is not None:
                self._replace(number, seat, seat.trouble)

    def _replace(self, number: int, seat: Seat, trouble: Trouble) -> None:
        if trouble.refusal is not None and not seat.made and not self.replaced:
            raise trouble.refusal
        # Who is killed after its first chunk was well.
        lasted = seat.made >= FEW_CHUNKS or (trouble.killed and seat.made > 0)
        self._failures[number] = 1 if lasted else self._failures[number] + 1
        if self._failures[number] >= MAX_FAILURES:
            raise EnvironmentFailure(
                f"Actor {number} {trouble.reason}, {self._failures[number]} times in a row with fewer than "
                f"{FEW_CHUNKS} chunks of steps between. Run `sparring check-env` on the environment. "
                f"The last time:\n{trouble.details}"
            )
        seat.close()
        self._publish()  # whoever comes anew has no weights, and a slot that was lost, too, none to give
        self.replaced += 1
        self._news.append(
            f"Actor {number} {trouble.reason} and was replaced; its unfinished sequences are lost."
            + self._new_traceback(trouble.details)
        )
        again = self._seat(number)
        again.inherit(seat.chunks)
        self._seats[number] = again

    def _new_traceback(self, details: str) -> str:
        """Where an actor's error came from, on lines of its own, unless that was told before."""
        lines = tuple(line for line in details.splitlines() if line.startswith("  File "))
        if not lines or lines in self._shown:
            return ""
        self._shown.add(lines)
        return f"\n{origin(details)}"

    def _span(self, number: int) -> slice:
        return slice(number * self._each, (number + 1) * self._each)

    # -- weights -----------------------------------------------------------------------------------------

    def _open_slot(self) -> Slot:
        if self.crew.slot == "file":
            base = Path(self.crew.folder or tempfile.gettempdir())
            try:
                base.mkdir(parents=True, exist_ok=True)
                _sweep(base)
                self._folder = Path(tempfile.mkdtemp(prefix=f"{_ours()}{os.getpid()}-", dir=base))
            except OSError as error:
                raise ConfigError(
                    f"slot_folder={str(base)!r} cannot be used: {error.strerror or error}. Name a folder "
                    "that can be written, or leave it out."
                ) from error
            return FileSlot(self._folder)
        if self.crew.kind == "thread":
            return MemorySlot()
        return SharedSlot(len(encode(snapshot_template(self.algo))))

    def _publish(self) -> None:
        assert self._slot is not None
        bandit = None if self.actor.control is None else self.actor.control.state
        now = Snapshot(list(self.weights()), self._floats, bandit)
        # Copies: the learner's own arrays are given away to its next update.
        self._slot.publish(self.iteration, {name: np.array(x) for name, x in tree.flatten(now).items()})

    def _chunk_template(self) -> Chunk:
        """The shapes of what actors send."""
        steps, size = int(self.algo.plan.rollout), self._each
        rollout = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((steps, size, *x.shape[2:]), x.dtype), self._buffers
        )
        control = self.actor.control
        cell = None
        if control is not None:
            shape = control.choice.cell.shape
            cell = jax.ShapeDtypeStruct((steps, size, shape[1]), control.choice.cell.dtype)
        total = jax.ShapeDtypeStruct((steps, size), np.float32)
        version, seconds = jax.ShapeDtypeStruct((), np.int64), jax.ShapeDtypeStruct((2,), np.float32)
        return Chunk(*blank((rollout, total, cell, version, seconds, {})))

    # -- what a session asks -----------------------------------------------------------------------------

    def reschedule(self, horizon: float) -> None:
        super().reschedule(horizon)
        self._plain = replace(self._plain, horizon=float(horizon))

    def state(self, index: int = 0) -> Situation:
        return Situation(self.learner, self.actor, None)

    def restore(self, situation: Situation, iteration: int, index: int = 0) -> None:
        self.learner = jax.tree.map(jnp.asarray, situation.learner)
        self.actor = jax.tree.map(np.asarray, situation.actor)
        self.iteration = iteration

    def world(self, index: int = 0) -> dict[str, np.ndarray] | None:
        """The actors' worlds are not kept; a replay on the host is."""
        if self._ring is None:
            return None
        return {f"{REPLAY}{name}": array for name, array in self._ring.state().items()}

    def restore_world(self, snapshot: dict[str, np.ndarray], index: int = 0) -> None:
        """Actors begin new episodes; learning, replay and bandit go on where they were."""
        if self._ring is not None:
            self._ring.restore({n.removeprefix(REPLAY): x for n, x in snapshot.items()})
        self._news.append(
            "Asynchronous: the actors' episodes start anew. Learning continues, not bit for bit."
        )

    def events(self) -> list[str]:
        news, self._news = self._news, []
        return news

    def close(self) -> None:
        for seat in self._seats:
            seat.dismiss()
        for seat in self._seats:
            seat.close()
        self._seats = []
        if self._slot is not None:
            self._slot.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


@cache
def _rewinding(trees: Trees) -> Any:
    """Training state and episodes with the iteration before: absorbing more of one is not the next."""

    def rewind(kept: list[Any]) -> list[Any]:
        train, episodes = jax.tree.unflatten(trees.kept, kept)
        return jax.tree.leaves((train._replace(iteration=train.iteration - 1), episodes))

    return jax.jit(rewind, donate_argnums=0)


@cache
def _beginning(trees: Trees) -> Any:
    """Training state and episodes in which these rows are at the start of an episode."""

    def begin(kept: list[Any], first: jax.Array) -> list[Any]:
        train, episodes = jax.tree.unflatten(trees.kept, kept)
        return jax.tree.leaves((train, actor.forget(episodes, first)))

    return jax.jit(begin, donate_argnums=0)


def _ours() -> str:
    """How the folders of this machine's learners begin: others may share the place, with numbers alike."""
    return f"{_FOLDER}{socket.gethostname()}-"


def _sweep(base: Path) -> None:
    """Removes the weights of this machine's learners that were killed."""
    for folder in base.iterdir():
        found = re.fullmatch(rf"{re.escape(_ours())}(\d+)-\w+", folder.name)
        if found is None:
            continue
        try:
            os.kill(int(found[1]), 0)
        except ProcessLookupError:
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # somebody else's
