"""The host driver: a world outside JAX, one jitted call per step to act, one per iteration to learn."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from sparring import actor
from sparring.drivers import loop
from sparring.drivers.loop import Learner
from sparring.drivers.platform import compile_seconds, prepare
from sparring.envs import references
from sparring.envs.api import HostEnv
from sparring.envs.batched import BatchedState, JaxHost
from sparring.envs.infos import InfoTally
from sparring.errors import ConfigError
from sparring.nets import checkup
from sparring.ops import keys
from sparring.ops.pack import Unpack, pack
from sparring.replay import offpolicy, ring
from sparring.replay.host_ring import HostRing
from sparring.replay.size import bytes_of, check_fits, free_bytes, same_layout
from sparring.spaces import shows_images
from sparring.types import (
    ActorState,
    Algorithm,
    Batch,
    Key,
    Memory,
    Metrics,
    TimeStep,
    Transition,
)

OnStep = Callable[[TimeStep, "Host"], None]

REPLAY = "replay/"
"""How the names of a host replay's arrays begin in a checkpoint."""
AT_ONCE = 64
"""Steps that wait before they are copied into the rollout's buffers."""
LOOK_SECONDS = 0.1
"""Time between two looks at what copying a rollout to an accelerator takes."""
NEAR = 1 << 25
"""Weights times rows up to which the processor acts itself: asking an accelerator takes longer."""


class Situation(NamedTuple):
    """Everything that changes in a host run, but for the world outside: learner, actor, JAX environment."""

    learner: Learner
    actor: ActorState
    env: BatchedState | None


class References(NamedTuple):
    """The numbers that stand for observations: of those acted on now, and of a rollout's, [2, T, B]."""

    now: Any
    rollout: np.ndarray

    def noted(self, t: int, timestep: TimeStep) -> References:
        """With the step's own and next observations."""
        self.rollout[0, t], self.rollout[1, t] = self.now, timestep.next_reference
        return self._replace(now=timestep.reference)


class Trace(NamedTuple):
    """The metrics of an iteration: those of learning as `pack` made them, and by name those told here.

    Taking a hundred numbers apart takes as long as a step of an environment, so many iterations are taken
    apart at once.
    """

    packed: list[np.ndarray]
    told: Metrics


@partial(jax.jit, static_argnums=(2, 3))
def _stream(key: Key, iteration: jax.Array, tag: int, steps: int) -> jax.Array:
    return jax.random.key_data(keys.per_step(key, iteration, (tag,), steps)[0])


class Trees(NamedTuple):
    """How flat lists become an algorithm and a learner again."""

    algo: Any
    kept: Any
    """training state and episodes"""
    data: Any
    live: Any
    names: tuple[str, ...]
    """the metrics of an iteration"""
    mesh: Any = None
    """devices that share every batch; None for one"""
    apart: bool = False
    """whether acting happens elsewhere: weights then travel as few arrays"""


Shared: TypeAlias = tuple[int | None, ...]
"""Where each of the weights to act with stands among what learning keeps; None where nowhere."""


def find_shared(policy: Callable[[Any], list[Any]], kept: list[Any]) -> Shared:
    """Which of the weights to act with are what learning keeps, untouched: handing those over once more
    would copy a network in every iteration."""
    traced = jax.make_jaxpr(policy)(kept).jaxpr
    places = {id(variable): place for place, variable in enumerate(traced.invars)}
    return tuple(places.get(id(weight)) for weight in traced.outvars)


def own(shared: Shared, weights: list[Any]) -> list[Any]:
    """The weights that stand nowhere else."""
    return [weight for weight, place in zip(weights, shared, strict=True) if place is None]


@cache
def _storing(trees: Trees) -> Any:
    """The replay's data and live part with one more rollout, in place, and whether it is ready."""

    def store(
        floats: jax.Array, data: list[Any], live: list[Any], rollout: Transition
    ) -> tuple[list[Any], list[Any], jax.Array]:
        replay = jax.tree.unflatten(trees.algo, list(floats)).replay
        memory = Memory(jax.tree.unflatten(trees.data, data), jax.tree.unflatten(trees.live, live))
        memory = replay.add(memory, loop.learned(rollout))
        return jax.tree.leaves(memory.data), jax.tree.leaves(memory.live), replay.ready(memory)

    return jax.jit(store, donate_argnums=(1, 2))


@cache
def _learning(trees: Trees, added: bool | None, shared: Shared) -> Any:
    """One iteration of learning on flat lists, and what acting needs in the next one and they do not hold.

    `added` None adds the rollout first; else it was added, and says whether the replay is ready: its data are
    only read. A program that writes and reads them, or has a choice, copies them. Flattening Equinox modules
    in Python and dispatching several small programs would take longer than a small update.
    """

    def learn(
        floats: jax.Array,
        kept: list[Any],
        live: list[Any],
        data: list[Any],
        rollout: Transition,
        key: Key,
        iteration: jax.Array,
    ) -> tuple[Any, ...]:
        algo = jax.tree.unflatten(trees.algo, list(floats))
        train, episodes = jax.tree.unflatten(trees.kept, kept)
        memory = Memory(jax.tree.unflatten(trees.data, data), jax.tree.unflatten(trees.live, live))
        learner = Learner(train, memory, episodes)
        with loop.on_devices(trees.mesh):
            if added is None:
                learner, metrics = loop.learn(algo, learner, rollout, key, iteration)
            else:
                learner, metrics = loop.learn_on(algo, learner, rollout, key, iteration, added)
        weights = jax.tree.leaves(algo.policy(learner.train))
        return (
            jax.tree.leaves((learner.train, learner.episodes)),
            jax.tree.leaves(learner.replay.live),
            jax.tree.leaves(learner.replay.data) if added is None else [],
            pack(weights) if trees.apart else own(shared, weights),
            _stream(key, iteration + 1, keys.ACT, algo.plan.rollout),
            pack([metrics[name] for name in trees.names]),
        )

    return jax.jit(learn, donate_argnums=(1, 2, 3) if added is None else (1, 2))


@partial(jax.jit, donate_argnums=1)
def _learn_from(
    algo: Algorithm, learner: Learner, rollout: Transition, batches: Batch, key: Key, iteration: jax.Array
) -> tuple[Learner, Metrics, Any]:
    full = whole(batches) if batches.weight is None else batches
    return loop.learn_from(algo, learner, rollout, full, key, iteration)


def whole(batches: Batch) -> Batch:
    """Batches whose windows have an observation at every step: the first, and the last step's next one."""
    steps = batches.data.reward.shape[2]

    def spread(x: jax.Array) -> jax.Array:
        return jnp.broadcast_to(x[:, :, None], (*x.shape[:2], steps, *x.shape[2:]))

    data = batches.data
    seen = {"obs": jax.tree.map(spread, data.obs), "next_obs": jax.tree.map(spread, data.next_obs)}
    return batches._replace(data=data._replace(**seen))


@jax.jit
def _draw(algo: Algorithm, windows: jax.Array, key: Key, iteration: jax.Array) -> tuple[jax.Array, jax.Array]:
    return loop.draw(algo, windows, key, iteration)


class Host:
    """Steps a host environment with the policy and learns from each rollout.

    Given a JAX environment behind `JaxHost`, it computes bit for bit what the fused driver computes.
    """

    def __init__(
        self,
        algo: Algorithm,
        env: HostEnv,
        seed: int,
        window: int = 100,
        on_step: OnStep | None = None,
        copies: int = 1,
    ) -> None:
        """`copies` drivers of this kind, this one counted in, are still to share what memory is free."""
        prepare()
        self.algo: Any = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), algo)
        self.env = env
        self.rows = env.spec.rows
        self.seeds: tuple[int, ...] = (seed,)
        self.iteration = 0
        self.on_step = on_step
        self.action: Any = None
        """the last actions, for `on_step`"""
        self.seconds = {"env": 0.0, "act": 0.0, "transfer": 0.0, "update": 0.0}
        self._key = jax.random.key(seed)
        self._seed = seed
        self._none_lost = np.zeros(self.rows, bool)
        self._tally = InfoTally(self.rows)
        self._news: list[str] = []
        self._crowded = False
        self._treedef: Any = None
        self._mesh = self._devices()
        self._ahead: tuple[list[Any], Any] | None = None
        """weights and keys to act with, where the last update left them"""
        self._policy = jax.jit(lambda algo, train: jax.tree.leaves(algo.policy(train)))
        self._near = self._beside()
        self._compiled_before = compile_seconds()
        self._copies = jax.default_backend() != "cpu"
        self._looked_at, self._copying = -LOOK_SECONDS, 0.0
        timestep = self._reset()
        self.actor = jax.tree.map(np.asarray, actor.start(self.algo, timestep, self._key))
        self._controller = actor.controller_of(self.algo)
        self._turn = None if self._controller is None else jax.jit(self._controller.turn)
        self._buffers, self._bins = self._allocate(timestep)
        example = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), self._buffers)
        self._references = self._referring(timestep)
        self._ring = self._open_ring(loop.learned(example), copies)
        self._names: tuple[str, ...] = ()
        self._programs: dict[bool | None, Any]
        """`_learning`, found once: looking it up compares large trees"""
        self._trees: Trees
        self._take_floats()
        kept = self._ring is None
        self.learner = loop.start(self.algo, self._key, example, window, kept, copies)
        self._keeps = bool(self._data)
        self._name_metrics()
        self._waits = self._ring is None and self.algo.replay.ready(self.learner.replay) is not True
        self._store = _storing(self._trees)

    @property
    def learner(self) -> Learner:
        """What learning has changed."""
        trees = self._trees
        train, episodes = jax.tree.unflatten(trees.kept, self._kept)
        memory = Memory(
            jax.tree.unflatten(trees.data, self._data), jax.tree.unflatten(trees.live, self._live)
        )
        return Learner(train, memory, episodes)

    @learner.setter
    def learner(self, learner: Learner) -> None:
        if self._mesh is not None:
            learner = jax.device_put(learner, NamedSharding(self._mesh, PartitionSpec()))
        self._kept, kept = jax.tree.flatten((learner.train, learner.episodes))
        self._data, data = jax.tree.flatten(learner.replay.data)
        self._live, live = jax.tree.flatten(learner.replay.live)
        apart = self._near is not None
        self._trees = Trees(jax.tree.structure(self.algo), kept, data, live, self._names, self._mesh, apart)
        self._ahead = None
        self._warm = self._ready = False
        self._programs = {}

    def _name_metrics(self) -> None:
        """Finds out which numbers an iteration hands back."""
        shapes = self._metric_shapes()
        self._names, self._numbers = tuple(shapes), Unpack(tuple(shapes.values()))
        self._trees = self._trees._replace(names=self._names)

    def _metric_shapes(self) -> Metrics:
        """The metrics of an iteration, by name."""
        if self._ring is not None:
            return {}
        rollout = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), actor.begun(self._buffers, self.actor.carry)
        )
        return jax.eval_shape(loop.learn, self.algo, self.learner, rollout, self._key, np.int32(0))[1]

    def _devices(self) -> Mesh | None:
        """Devices that share every batch; None for one."""
        return None

    @property
    def _may_lose(self) -> bool:
        """Whether rollouts have a mask."""
        return self.env.may_lose

    @property
    def compile_seconds(self) -> float:
        """Seconds spent compiling since this driver was made."""
        return compile_seconds() - self._compiled_before

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps in one iteration."""
        return int(self.algo.plan.rollout) * self.rows

    @property
    def replay_bytes(self) -> int:
        return self._ring.nbytes if self._ring is not None else bytes_of((self._data, self._live))

    def advance(self, iterations: int) -> list[dict[str, np.ndarray]]:
        """Runs iterations and returns, for the one seed, each metric as an array over them."""
        traces = [self._iterate() for _ in range(iterations)]
        done = time.perf_counter()
        packed = [np.stack(kind) for kind in zip(*(trace.packed for trace in traces), strict=True)]
        fetched = self._unpacked(packed)
        told = [trace.told for trace in traces]
        for name in dict.fromkeys(name for each in told for name in each):  # the environment's may come later
            fetched[name] = np.array([each.get(name, np.nan) for each in told])
        self.seconds["transfer"] += time.perf_counter() - done
        return [fetched]

    def _unpacked(self, packed: list[np.ndarray]) -> Metrics:
        """Metrics by name, of one iteration or, stacked, of several."""
        return dict(zip(self._names, self._numbers(packed), strict=True)) if packed else {}

    def _iterate(self) -> Trace:
        before, compiled = self.seconds.copy(), compile_seconds()
        self._collect()
        self._leave_out(compile_seconds() - compiled, before, "act", "env")
        began, compiled = time.perf_counter(), compile_seconds()
        here = (self._key, np.int32(self.iteration))
        rollout = self._rollout()
        packed: list[np.ndarray] = []
        metrics: Metrics = {}
        if self._ring is None:
            rollout, copying = self._handed_over(rollout)
            packed = self._learn(rollout, *here)
        else:
            self._ring.add(self._referred(loop.learned(rollout)))
            batches = self._drawn()
            copying = time.perf_counter() - began
            self.learner, metrics, errors = _learn_from(self.algo, self.learner, rollout, batches, *here)
            metrics = jax.device_get(metrics)
            if isinstance(self._ring, HostRing):
                metrics["replay/filled"] = self._ring.filled
            self._renew_priorities(errors)
        if self._controller is not None and (self.iteration + 1) % self._stride == 0:
            metrics = metrics | jax.device_get(_control_metrics(self.algo, self.actor.control))
        self.seconds["transfer"] += copying
        self.seconds["update"] += max(time.perf_counter() - began - copying, 0.0)
        self._leave_out(compile_seconds() - compiled, before, "update", "transfer")
        self.iteration += 1
        return Trace(packed, {**metrics, **self._tally.metrics()})

    def _handed_over(self, rollout: Transition) -> tuple[Transition, float]:
        """The rollout where the networks are, and about how long its copy took.

        A CPU's networks read it in place. To an accelerator it is copied by the call itself; every so often
        the copy is made apart and timed, and the time stands for those in between.
        """
        began = time.perf_counter()
        if self._copies and began - self._looked_at >= LOOK_SECONDS:
            rollout = jax.block_until_ready(jax.device_put(rollout))
            self._looked_at = time.perf_counter()
            self._copying = self._looked_at - began
        return rollout, self._copying

    def _leave_out(self, compiling: float, before: Mapping[str, float], *kinds: str) -> None:
        """Takes time that was spent compiling off the kinds it was counted to since `before`."""
        if not compiling:
            return
        for kind in kinds:
            taken = min(compiling, self.seconds[kind] - before[kind])
            self.seconds[kind] -= taken
            compiling -= taken

    def _learn(self, rollout: Transition, key: Key, iteration: Any) -> list[np.ndarray]:
        """Adds the rollout to the replay and learns, in one program or, where there is a wait, in two.

        The packed metrics are numbers on the host: whoever has them has waited.
        """
        added: bool | None = None
        if self._waits:
            self._data, self._live, ready = self._store(self._floats, self._data, self._live, rollout)
            added = self._ready = self._ready or bool(ready)  # once it is, it stays so
        return self._learned(added, rollout, key, iteration)

    def _learned(self, added: bool | None, rollout: Transition, key: Key, iteration: Any) -> list[np.ndarray]:
        """One call of `_learning`'s program."""
        if added not in self._programs:
            self._programs[added] = _learning(self._trees, added, self._shared)
        self._kept, self._live, data, *ahead, values = self._programs[added](
            self._floats, self._kept, self._live, self._data, rollout, key, iteration
        )
        self._data = data if added is None else self._data
        self._ahead = (ahead[0], ahead[1])
        return [np.asarray(kind) for kind in values]

    def _open_ring(self, example: Transition, copies: int) -> HostRing | None:
        """The replay in the host's memory, where the settings put it there; each has files of its own."""
        algo = self.algo
        if not offpolicy.on_host(algo.config, algo.spec):
            return None
        c, frames = algo.config, algo.config.frame_stack
        shape = (self._referred(example), c.buffer_size, c.n_steps, frames)
        resolve = None if self._references is None else self.env.resolve  # type: ignore[attr-defined]
        mapped = HostRing.mapped_bytes(*shape) if c.buffer_folder else 0
        needed = HostRing.predicted_bytes(*shape) - mapped
        check_fits(copies * needed, free_bytes(), "memory", c.buffer_size, copies)
        if not c.buffer_folder:
            return HostRing(*shape, resolve=resolve)
        try:
            folder = Path(c.buffer_folder)
            folder.mkdir(parents=True, exist_ok=True)
            check_fits(copies * mapped, shutil.disk_usage(folder).free, "the disk", c.buffer_size, copies)
            return HostRing(*shape, folder=folder, resolve=resolve)
        except OSError as error:
            raise ConfigError(
                f"buffer_folder={c.buffer_folder!r} cannot be used: {error.strerror or error}."
            ) from error

    def _referring(self, timestep: TimeStep) -> References | None:
        """Numbers of a rollout's observations, where the replay keeps those; a wrapper may not change what
        they stand for."""
        if not offpolicy.by_reference(self.algo.config, self.algo.spec):
            return None
        made = self.env.resolve(timestep.reference)  # type: ignore[attr-defined]
        if not references.same(made, timestep.obs):
            raise ConfigError(
                f"{self.env.spec.id}: {references.RESOLVE} makes other observations of "
                f"{references.REFER}'s numbers than the agent is shown. Let it return exactly those, put "
                "wrappers that change observations inside of it, or keep observations: buffer=host."
            )
        return References(timestep.reference, np.zeros((2, self.algo.plan.rollout, self.rows), np.int64))

    def _referred(self, rollout: Transition) -> Transition:
        """The rollout with numbers in the place of observations, where the replay keeps those."""
        if self._references is None:
            return rollout
        obs, next_obs = self._references.rollout
        return rollout._replace(obs=obs, next_obs=next_obs)

    def _drawn(self) -> Batch:
        """The batches of this iteration's updates, [U, N, n, …]; none while the replay fills."""
        ring, algo = self._ring, self.algo
        assert ring is not None
        windows = ring.windows()
        rows, ages = _draw(algo, windows.astype(np.int32), self._key, np.int32(self.iteration))
        rows, ages = np.asarray(rows), np.asarray(ages)
        if ring.written < algo.replay.minimum or windows.sum() == 0:
            rows, ages = rows[:0], ages[:0]
        shape = rows.shape
        data = ring.take(rows.reshape(-1), ages.reshape(-1)).data
        return Batch(jax.tree.map(lambda x: x.reshape((*shape, *x.shape[1:])), data))

    def _renew_priorities(self, errors: Any) -> None:
        """Tells a replay elsewhere what updates from its batches found; a host's ring has no priorities."""

    def _collect(self) -> None:
        """Fills the buffers with one rollout."""
        self._begun_with = self.actor.carry
        steps = self.algo.plan.rollout
        acting = self._acting()
        outside = isinstance(self.env, JaxHost)
        env_keys = _stream(self._key, np.int32(self.iteration), keys.ENV, steps) if outside else None
        turning = None if self._turn is None else self._turning(steps)
        clock, seconds, state = time.perf_counter, self.seconds, self.actor
        tally = self._tally if hasattr(self.env, "last_infos") else None
        waiting: list[tuple[ActorState, Any, Any, TimeStep]] = []
        for t in range(steps):
            began = clock()
            action, extras, carry = acting(state)
            action = np.asarray(action)
            acted = clock()
            if env_keys is None:
                timestep = self.env.step(action)
            else:
                timestep = self.env.advance(action, jax.random.wrap_key_data(env_keys[t]))  # type: ignore[attr-defined]
            seconds["env"] += clock() - acted
            if tally is not None:
                tally.add(self.env.last_infos, timestep)  # type: ignore[attr-defined]
            if self._references is not None:
                self._references = self._references.noted(t, timestep)
            waiting.append((state, action, extras, timestep))
            if len(waiting) == AT_ONCE:
                self._write(waiting, t + 1)
                waiting = []
            state = actor.observe(state, carry, timestep)
            if turning is not None:
                state = state._replace(control=turning(t, state, timestep))
            if self.on_step is not None:
                self.actor, self.action = state, action
                self.on_step(timestep, self)
            seconds["act"] += acted - began
        self._write(waiting, steps)
        self.actor = state

    def _turning(self, steps: int) -> Callable[[int, ActorState, TimeStep], Any]:
        """What the controller makes of each step; only an episode's end asks the bandit."""
        turn = self._turn
        assert turn is not None
        stream = np.asarray(_stream(self._key, np.int32(self.iteration), keys.BANDIT, steps))
        random = self._acts_at_random()

        def turning(t: int, state: ActorState, timestep: TimeStep) -> Any:
            control, earned = state.control, timestep.reward
            if random:
                earned = np.full_like(earned, np.nan)
            if not state.first.any():
                return control._replace(total=control.total + earned)
            key = jax.random.wrap_key_data(stream[t])
            turned = turn(control, earned, state.first, timestep.lost, key)
            return jax.tree.map(np.asarray, turned)

        return turning

    def _acts_at_random(self) -> bool:
        """Whether actions are random whatever a controller chose; once they are not, they stay so."""
        if not self._warm:
            random = getattr(jax.tree.unflatten(self._treedef, self.weights()), "random", None)
            self._warm = random is None or not bool(random)
        return not self._warm

    def _write(self, steps: list[tuple[ActorState, Any, Any, TimeStep]], end: int) -> None:
        """Copies the last steps into the buffers up to time `end`.

        Many at once: in a loop of its own this code stays in the processor's caches, between the
        environment's and the network's it does not.
        """
        began = time.perf_counter()
        loses = self._buffers.mask is not None
        start = end - len(steps)
        for t, (state, action, extras, timestep) in enumerate(steps, start):
            kept = loses and timestep.lost is None
            outcome = timestep._replace(lost=self._none_lost) if kept else timestep
            record = actor.transition(state, action, extras, outcome)
            for place, leaf in zip(self._bins, jax.tree.leaves(record), strict=True):
                place[t] = leaf
        self.seconds["transfer"] += time.perf_counter() - began

    def _rollout(self) -> Transition:
        """The buffers; a mask that masks nothing is left out, so that the dense update runs."""
        rollout = actor.begun(self._buffers, self._begun_with)
        if rollout.mask is None or not rollout.mask.all() or self._keeps:
            return rollout
        return rollout._replace(mask=None)

    def _acting(self) -> Callable[[ActorState], tuple[Any, Any, Any]]:
        """The compiled act of this iteration's weights; each call takes the next step's key.

        Weights travel as a plain list and the algorithm's numbers as one array: flattening Equinox modules
        in Python, and handing over many scalars, would cost more than acting.
        """
        algo = self.algo
        if self._treedef is None:
            self._treedef = jax.tree.structure(jax.eval_shape(algo.policy, self.learner.train))
            self._act = jax.jit(partial(_act, self._treedef, self._trees.algo))
            self._remembers = bool(jax.tree.leaves(self.actor.carry))
        if self._ahead is None:
            steps = _stream(self._key, np.int32(self.iteration), keys.ACT, algo.plan.rollout)
            weights = self._policy(algo, self.learner.train)
            self._ahead = (own(self._shared, weights) if self._near is None else pack(weights), steps)
        steps, weights, floats = self._ahead[1], self.weights(), self._floats
        if self._near is not None:
            weights, floats = jax.device_put(weights, self._near), self._floats_near
        stream = iter(np.asarray(steps))
        compiled, remembers = self._act, self._remembers

        def acting(state: ActorState) -> tuple[Any, Any, Any]:
            first = state.first if remembers else None
            point = actor.point(state)
            return compiled(floats, weights, state.obs, first, state.carry, state.legal, point, next(stream))

        return acting

    def weights(self) -> list[Any]:
        """What acting needs of the newest weights, as a flat list; the next update may take them away."""
        if self._ahead is None:
            return self._policy(self.algo, self.learner.train)
        if self._near is not None:
            return self._weights(self._ahead[0])
        rest = iter(self._ahead[0])
        return [next(rest) if place is None else self._kept[place] for place in self._shared]

    @cached_property
    def _shared(self) -> Shared:
        """Where the weights to act with stand in `_kept`."""
        tree = self._trees.kept
        return find_shared(
            lambda kept: jax.tree.leaves(self.algo.policy(jax.tree.unflatten(tree, kept)[0])), self._kept
        )

    @cached_property
    def _weights(self) -> Unpack:
        """What packed weights are taken apart by; only an accelerator's user waits for this trace."""
        return Unpack(jax.eval_shape(lambda: self.algo.policy(self.algo.init(self._key))))

    def _beside(self) -> Any:
        """The processor, where networks learn on an accelerator but a step's decisions are few; else None."""
        if jax.default_backend() == "cpu" or shows_images(self.algo.spec.observation):
            return None
        if self._weights.size * self.rows > NEAR:
            return None
        try:
            return jax.devices("cpu")[0]
        except RuntimeError:  # JAX_PLATFORMS leaves it out
            return None

    def _take_floats(self) -> None:
        """The algorithm's numbers as one array, and beside them those that acting reads."""
        self._floats = jnp.stack(jax.tree.leaves(self.algo))
        self._floats_near = self._floats if self._near is None else jax.device_put(self._floats, self._near)
        self._stride = int(checkup.stride(float(getattr(self.algo, "horizon", 1.0))))
        """iterations between those whose metrics a session keeps"""

    def _reset(self) -> TimeStep:
        if isinstance(self.env, JaxHost):
            return self.env.start(keys.once(self._key, keys.RESET))
        return self.env.reset(self._seed)

    def _allocate(self, timestep: TimeStep) -> tuple[Transition, list[np.ndarray]]:
        """Numpy arrays [T, B, …] for a rollout, and their leaves."""
        steps = self.algo.plan.rollout
        if self._may_lose:
            timestep = timestep._replace(lost=self._none_lost)

        def record(algo: Algorithm, train: Any, state: ActorState, timestep: TimeStep) -> Transition:
            behaviour = actor.behaviour(algo, actor.point(state))
            action, extras, _ = actor.act(algo, algo.policy(train), state, behaviour, self._key)
            return actor.transition(state, action, extras, timestep)

        train = jax.eval_shape(self.algo.init, self._key)
        shapes = jax.eval_shape(record, self.algo, train, self.actor, timestep)
        buffers = jax.tree.map(lambda s: np.zeros((steps, *s.shape), s.dtype), shapes)
        return buffers, jax.tree.leaves(buffers)

    def reschedule(self, horizon: float) -> None:
        """Changes the number of iterations over which schedules run; nothing is recompiled."""
        self.algo = replace(self.algo, horizon=jnp.float32(horizon))
        self._take_floats()
        self._ahead = None

    def state(self, index: int = 0) -> Situation:
        """Everything that the run has changed, but for the world outside."""
        return Situation(self.learner, self.actor, self.env.state if isinstance(self.env, JaxHost) else None)

    def acting(self, index: int = 0) -> ActorState:
        return self.actor

    def restore(self, situation: Situation, iteration: int, index: int = 0) -> None:
        """Continues from a saved state; the caller restores the world outside."""
        self._mask_for(situation.learner.replay)
        self.learner = jax.tree.map(jnp.asarray, situation.learner)
        self.actor = jax.tree.map(np.asarray, situation.actor)
        if isinstance(self.env, JaxHost):
            self.env.state = jax.tree.map(jnp.asarray, situation.env)
        self.iteration = iteration
        self._ahead = None

    def world(self, index: int = 0) -> dict[str, np.ndarray] | None:
        """A snapshot of the world outside and of a replay on the host; None when there is none."""
        outside = None if isinstance(self.env, JaxHost) else self.env.snapshot()
        if self._ring is None:
            return outside
        return (outside or {}) | {f"{REPLAY}{name}": array for name, array in self._ring.state().items()}

    def restore_world(self, snapshot: dict[str, np.ndarray], index: int = 0) -> None:
        """Puts the world outside back to where the snapshot was taken; rows that cannot be start anew."""
        if self._ring is not None:
            found = {n.removeprefix(REPLAY): x for n, x in snapshot.items() if n.startswith(REPLAY)}
            self._ring.restore(found)
            snapshot = {name: x for name, x in snapshot.items() if not name.startswith(REPLAY)}
        if isinstance(self.env, JaxHost):
            return  # its state came with the rest
        if snapshot:
            timestep = self.env.restore(snapshot, self._seed)
            lost = self._none_lost if timestep.lost is None else timestep.lost
        else:
            timestep = self.env.reset(
                self._seed + 1_000_003 * (self.iteration + 1)
            )  # not the old episodes again
            lost = ~self._none_lost
            self._news.append(
                f"{self.env.spec.id} cannot be put back to where it was: its episodes start anew. "
                "Learning continues, but not bit for bit."
            )
        if self._references is not None:
            self._references = self._references._replace(now=timestep.reference)
        control = self.actor.control
        if control is not None:  # an episode that starts anew is credited from its own first step
            control = control._replace(total=np.where(lost, np.float32(0.0), control.total))
        self.actor = self.actor._replace(
            obs=timestep.obs, legal=timestep.legal, first=self.actor.first | lost, control=control
        )
        self.learner = self.learner._replace(episodes=actor.forget(self.learner.episodes, lost))
        self._tally.forget(lost)

    def train_state(self, index: int = 0) -> Any:
        return self.learner.train

    def replayed(self) -> Any:
        """What the replay holds: arrays that `take_over` of another driver takes."""
        return self.learner.replay if self._ring is None else self._ring.state()

    def take_over(self, replayed: Any) -> bool:
        """Goes on with what another driver's replay held; False and no change if its layout differs, or what
        its references stand for."""
        if not same_layout(replayed, self.replayed()):
            return False
        if self._ring is None:
            self._mask_for(replayed)
            self.learner = self.learner._replace(replay=replayed)
            return True
        if isinstance(self._ring, HostRing) and not self._ring.resolves(replayed):
            return False
        self._ring.restore(replayed)
        return True

    def _mask_for(self, replay: Memory) -> None:
        """Gives rollouts a mask from now on where the rows of such a replay must be written one by one."""
        if self._buffers.mask is not None or ring.even(replay, int(self.algo.plan.rollout)):
            return
        self._buffers = self._buffers._replace(mask=np.ones(self._buffers.reward.shape, bool))
        self._bins = jax.tree.leaves(self._buffers)
        self._name_metrics()

    def events(self) -> list[str]:
        """What happened in the world outside that a user should know."""
        news, self._news = self._news, []
        if isinstance(self._ring, HostRing) and self._ring.crowded and not self._crowded:
            self._crowded = True
            news.append(
                f"Episodes are short, and the replay holds {self._ring.filled:.0%} of buffer_size: every "
                "episode has one observation more than it has steps. Raise buffer_size to keep more."
            )
        return news + self._tally.events() + self.env.events()

    def close(self) -> None:
        self.env.close()


def _act(
    weights_tree: Any,
    algo_tree: Any,
    floats: jax.Array,
    weights: list[Any],
    obs: Any,
    first: Any,
    carry: Any,
    legal: Any,
    point: Any,
    key: Any,
) -> tuple[Any, Any, Any]:
    state = ActorState(obs, first, carry, legal)
    policy = jax.tree.unflatten(weights_tree, weights)
    algo = jax.tree.unflatten(algo_tree, list(floats))
    behaviour = actor.behaviour(algo, point)
    return actor.act(algo, policy, state, behaviour, jax.random.wrap_key_data(key))


@jax.jit
def _control_metrics(algo: Algorithm, control: Any) -> Metrics:
    return actor.control_metrics(algo, control)
