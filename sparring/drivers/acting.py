"""One actor of an asynchronous run: its own environments and its own copy of the weights, by itself for ever.

The same code runs in a thread, in a process of this machine, and on a cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote

import jax
import jax.numpy as jnp
import numpy as np

from sparring import actor
from sparring.drivers.collector import Chunk, Collector
from sparring.drivers.host import _act, _stream
from sparring.drivers.slot import Slot
from sparring.envs import registry
from sparring.envs.api import MOST_NUMBERS
from sparring.envs.infos import InfoTally
from sparring.errors import EnvironmentFailure
from sparring.ops import keys
from sparring.runs import tensors, tree

PULL_SECONDS = 0.02
"""Between looks for the first weights."""
INFOS = "infos/"
"""How the paths of a chunk's infos begin; `tree` escapes their names as addresses do."""


class Snapshot(NamedTuple):
    """What actors pull: everything that acting needs of what learning changes."""

    weights: list[Any]
    """leaves of the policy"""
    floats: Any
    """the algorithm's own numbers: its horizon may change when a run is resumed"""
    bandit: Any
    """state of the selector; None without a controller"""


@dataclass(frozen=True)
class Job:
    """What an actor is to do; it travels to the process that does it."""

    algo: Any
    env: str
    first: int
    """its first row among all rows of the run"""
    rows: int
    seed: int
    number: int = 0
    """which actor it is"""
    life: tuple[int, int] = (0, 0)
    """the run's iteration and how many were replaced before it: its episodes and choices are not theirs"""
    pull: int = 0
    """steps between looks for newer weights; 0 looks before every chunk"""
    kwargs: dict[str, Any] = field(default_factory=dict)
    time_limit: int | None = None

    def make(self) -> Any:
        """The actor's environments."""
        made = registry.make(
            self.env, n_envs=self.rows, kwargs=self.kwargs, time_limit=self.time_limit, backend="inline"
        )
        world = registry.host(made, self.rows)
        if world.spec.rows != self.rows:
            raise EnvironmentFailure(
                f"{self.env} has {world.spec.rows} rows of its own and cannot be split among actors; use "
                "driver=auto."
            )
        return world


def blank(shapes: Any) -> Any:
    """Numpy arrays of these shapes that take no memory, to decode by."""
    return jax.tree.map(lambda s: np.broadcast_to(np.zeros((), s.dtype), s.shape), shapes)


def encode(parts: Any) -> bytes:
    """A tree of arrays as the bytes of a safetensors file."""
    return b"".join(tensors.encode(tree.flatten(parts)))


def decode(template: Chunk, data: bytes, name: str) -> Chunk:
    """The chunk again; bytes that do not hold exactly the template's arrays, beside infos, are refused."""
    arrays = tensors.decode(data, name)
    told = {path: array for path, array in arrays.items() if path.startswith(INFOS)}
    infos = {unquote(path.removeprefix(INFOS)): array for path, array in told.items()}
    chunk: Chunk = tree.unflatten(template._replace(infos=infos), arrays)
    return chunk


def snapshot_template(algo: Any) -> Snapshot:
    """The shapes of what actors of an algorithm pull."""
    train = jax.eval_shape(algo.init, jax.random.key(0))
    weights = jax.tree.leaves(jax.eval_shape(algo.policy, train))
    floats = jax.ShapeDtypeStruct((len(jax.tree.leaves(algo)),), jnp.float32)
    controller = actor.controller_of(algo)
    bandit = None
    if controller is not None:
        bandit = jax.eval_shape(lambda key: controller.start(key, algo.spec.rows), jax.random.key(0)).state
    return blank(Snapshot(weights, floats, bandit))


class Acting:
    """An actor at work: `chunks` yields what it made, as long as somebody asks."""

    def __init__(
        self,
        job: Job,
        slot: Slot,
        beat: Callable[[], None] = lambda: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """`beat` is called at every step: it lives. `stopped` is asked at every step: it may go."""
        self.job, self.slot, self.beat, self.stopped = job, slot, beat, stopped
        self.algo = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), job.algo)
        self.env = job.make()
        self._template = snapshot_template(self.algo)
        self._policy_tree = jax.tree.structure(
            jax.eval_shape(self.algo.policy, jax.eval_shape(self.algo.init, jax.random.key(0)))
        )
        self._act = jax.jit(partial(_act, self._policy_tree, jax.tree.structure(self.algo)))
        self._key = jax.random.key(job.seed)
        self._random = False
        """whether the newest weights act at random, whatever a bandit chose"""
        for part in (job.number, *job.life):
            self._key = keys.derive(self._key, part)
        self.version = -1
        self._snapshot: Snapshot

    def chunks(self) -> Iterator[Chunk]:
        """Acts and steps until it is stopped."""
        job, algo = self.job, self.algo
        if not self._found_weights():
            return
        collector = self._collector()
        seed = np.random.SeedSequence([job.seed, job.number, *job.life]).generate_state(1)[0]
        timestep = self.env.reset(int(seed))
        state = collector.begin(timestep, jax.tree.map(np.asarray, algo.carry(job.rows)))
        remembers = bool(jax.tree.leaves(state.carry))
        steps, clock = int(algo.plan.rollout), time.perf_counter
        every = job.pull or steps
        tells = hasattr(self.env, "last_infos")
        tally = InfoTally(job.rows, MOST_NUMBERS + 1)  # by one too many the learner knows of more
        made = number = 0
        while True:
            began = clock()
            act_keys = np.asarray(_stream(self._key, np.int32(number), keys.ACT, steps))
            bandit_keys = np.asarray(_stream(self._key, np.int32(number), keys.BANDIT, steps))
            number += 1
            for t in range(steps):
                if made % every == 0:
                    self._pull(collector)
                made += 1
                first = state.first if remembers else None
                action, extras, carry = self._act(
                    self._snapshot.floats,
                    self._snapshot.weights,
                    state.obs,
                    first,
                    state.carry,
                    state.legal,
                    actor.point(state),
                    act_keys[t],
                )
                action = np.asarray(action)
                timestep = self.env.step(action)
                self.beat()
                if self.stopped():
                    return
                if tells:
                    tally.add(self.env.last_infos, timestep)
                state, chunk = collector.step(
                    state, action, extras, carry, timestep, self.version, bandit_keys[t], self._random
                )
                if chunk is not None:
                    seconds = np.array([clock() - began, 0.0], np.float32)
                    yield chunk._replace(seconds=seconds, infos=tally.ended())

    def close(self) -> None:
        self.env.close()

    def _collector(self) -> Collector:
        controller, job = actor.controller_of(self.algo), self.job
        steps, rows = int(self.algo.plan.rollout), self.algo.spec.rows
        if controller is None:
            return Collector(steps, job.first, job.rows, None, None)
        turn = jax.jit(controller.turn)
        key = keys.once(self._key, keys.BANDIT)
        control = controller.start(key, rows)._replace(state=self._snapshot.bandit)
        everyone = np.ones(rows, bool)  # the bandit may know something already: choose again, credit nobody
        control = turn(control, np.zeros(rows, np.float32), everyone, everyone, keys.derive(key, 2))
        return Collector(steps, job.first, job.rows, jax.tree.map(np.asarray, control), turn)

    def _found_weights(self) -> bool:
        """Waits for the first weights; False when it is stopped before they come."""
        self._pull(None)
        while self.version < 0:
            if self.stopped():
                return False
            self.beat()
            time.sleep(PULL_SECONDS)
            self._pull(None)
        return True

    def _pull(self, collector: Collector | None) -> None:
        found = self.slot.pull(self.version)
        if found is None:
            return
        self.version, weights = found
        pulled = tree.unflatten(self._template, weights)
        self._snapshot = pulled._replace(weights=[jnp.asarray(x) for x in pulled.weights])
        random = getattr(jax.tree.unflatten(self._policy_tree, pulled.weights), "random", None)
        self._random = random is not None and bool(random)
        if collector is not None:
            collector.renew(self._snapshot.bandit)
