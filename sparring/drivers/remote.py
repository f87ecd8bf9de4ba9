"""The learner as a Ray actor: networks, replay and updates on some node, the run's folder here."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparring.drivers.acting import Job
from sparring.drivers.async_ import Crew
from sparring.drivers.cluster import ClusterRun, connect
from sparring.drivers.ray_library import end, library, losses
from sparring.errors import EnvironmentFailure, LearnerLost, NoPlace, SparringError
from sparring.types import ActorState, Algorithm

PLACE_SECONDS = 60.0
"""for which a learner may wait for a node"""


@dataclass(frozen=True)
class Task:
    """What a learner is to do; it travels to the node that does it."""

    algo: Any
    env: str
    seed: int
    window: int
    crew: Crew


class Standing(NamedTuple):
    """How far a learner is, told with every answer."""

    iteration: int
    seconds: Mapping[str, float]
    compile_seconds: float
    events: list[str]
    replay_bytes: int = 0


class Learner:
    """A `ClusterRun` on some node, which answers one question at a time."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._run: ClusterRun

    def begin(self) -> tuple[None, Standing]:
        """Takes up the work; what is wrong with it is said here."""
        from sparring.drivers.platform import prepare

        prepare("auto")
        task, crew, rows = self._task, self._task.crew, self._task.algo.spec.rows
        kwargs = crew.kwargs or {}
        shown = Job(task.algo, task.env, 0, rows, task.seed, kwargs=kwargs, time_limit=crew.time_limit).make()
        self._run = ClusterRun(task.algo, shown, task.env, task.seed, task.window, crew)
        return None, self._standing()

    def answer(self, method: str, *arguments: Any) -> tuple[Any, Standing]:
        """What a method of the run returns, as numpy arrays, and how far the run is."""
        return jax.tree.map(_plain, getattr(self._run, method)(*arguments)), self._standing()

    def _standing(self) -> Standing:
        run = self._run
        return Standing(run.iteration, dict(run.seconds), run.compile_seconds, run.events(), run.replay_bytes)


def _plain(leaf: Any) -> Any:
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf


class RemoteRun:
    """A driver whose work is done by a `Learner` in the cluster.

    When that is gone, so is this; `launch` goes on with another, from what the run's folder has.
    """

    def __init__(
        self,
        algo: Algorithm,
        source: str,
        seed: int,
        window: int = 100,
        crew: Crew | None = None,
        address: str = "",
        gpus: float = 0.0,
    ) -> None:
        crew = crew or Crew()
        self.algo: Any = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), algo)
        self.seeds = (seed,)
        self.rows = algo.spec.rows
        self._started = connect(address, crew.actors, gpus)
        self._ray = library()
        self._standing = Standing(0, {}, 0.0, [])
        self._news: list[str] = []
        self._learner: Any = None
        with contextlib.ExitStack() as undo:  # whatever goes wrong is the user's to see; Ray does not stay
            undo.callback(self._leave)
            remote = self._ray.remote(Learner).options(num_cpus=1, num_gpus=gpus)
            self._learner = remote.remote(Task(algo, source, seed, window, crew))
            self._await_place(gpus)
            self._answered(self._learner.begin.remote())
            undo.pop_all()

    @property
    def iteration(self) -> int:
        return self._standing.iteration

    @property
    def seconds(self) -> Mapping[str, float]:
        return self._standing.seconds

    @property
    def compile_seconds(self) -> float:
        return self._standing.compile_seconds

    @property
    def steps_per_iteration(self) -> int:
        return int(self.algo.plan.rollout) * self.rows

    @property
    def replay_bytes(self) -> int:
        return self._standing.replay_bytes

    def advance(self, iterations: int) -> list[dict[str, np.ndarray]]:
        return list(self._ask("advance", iterations))

    def reschedule(self, horizon: float) -> None:
        self.algo = replace(self.algo, horizon=jnp.float32(horizon))
        self._ask("reschedule", horizon)

    def state(self, index: int = 0) -> Any:
        return self._ask("state")

    def acting(self, index: int = 0) -> ActorState:
        found: ActorState = self._ask("acting")
        return found

    def restore(self, state: Any, iteration: int, index: int = 0) -> None:
        self._ask("restore", jax.tree.map(_plain, state), iteration)

    def world(self, index: int = 0) -> dict[str, np.ndarray] | None:
        found: dict[str, np.ndarray] | None = self._ask("world")
        return found

    def restore_world(self, snapshot: dict[str, np.ndarray], index: int = 0) -> None:
        self._ask("restore_world", snapshot)

    def train_state(self, index: int = 0) -> Any:
        return jax.tree.map(jnp.asarray, self._ask("train_state"))

    def events(self) -> list[str]:
        news, self._news = self._news, []
        return news

    def close(self) -> None:
        with contextlib.suppress(EnvironmentFailure):  # the learner has gone already
            self._ask("close")
        self._leave()

    def _leave(self) -> None:
        if self._learner is not None:
            end(self._learner)
        if self._started:
            self._started = False
            self._ray.shutdown()

    def _await_place(self, gpus: float) -> None:
        ready, _ = self._ray.wait([self._learner.__ray_ready__.remote()], timeout=PLACE_SECONDS)
        if not ready:
            accelerators = f" and {gpus:g} GPU{'s' * (gpus > 1)}" if gpus else ""
            raise NoPlace(
                f"No node of the cluster had a free core{accelerators} for the learner within "
                f"{PLACE_SECONDS:.0f} s. Lower actors or learner_gpus, let a node join, or use learner=here."
            )

    def _ask(self, method: str, *arguments: Any) -> Any:
        return self._answered(self._learner.answer.remote(method, *arguments))

    def _answered(self, call: Any) -> Any:
        ray = self._ray
        try:
            answer, self._standing = ray.get(call)
        except ray.exceptions.RayTaskError as error:
            cause = getattr(error, "cause", error)
            if isinstance(cause, SparringError):
                raise cause from error
            raise EnvironmentFailure(f"The learner failed with {type(cause).__name__}: {cause}") from error
        except losses() as error:
            raise LearnerLost(
                f"The learner died, or its node left the cluster ({str(error).splitlines()[0].rstrip('.')}); "
                "`sparring resume` goes on from the newest checkpoint."
            ) from error
        self._news += self._standing.events
        return answer
