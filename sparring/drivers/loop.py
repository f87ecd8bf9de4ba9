"""One iteration of learning, the same for every algorithm and driver: add → updates → absorb."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from sparring import actor
from sparring.actor import Episodes
from sparring.config import resolve
from sparring.drivers.platform import once_options
from sparring.drivers.statistics import of_batch, of_episodes, of_normaliser, of_rollout
from sparring.metrics.registry import LOOKED_AT
from sparring.ops import keys
from sparring.ops.seam import block
from sparring.replay import ring
from sparring.replay.size import check_fits, free_bytes, replay_bytes
from sparring.types import ActorState, Algorithm, Batch, Key, Memory, Metrics, Replay, Report, Transition


class Driver(Protocol):
    """What owns time: advances one or several seeds and gives the host control in between."""

    @property
    def algo(self) -> Any: ...
    @property
    def seeds(self) -> tuple[int, ...]: ...
    @property
    def iteration(self) -> int: ...
    @property
    def seconds(self) -> Mapping[str, float]:
        """What `advance` spent its time on so far, compilation apart: kinds as in metrics.performance."""
        ...

    @property
    def compile_seconds(self) -> float: ...
    @property
    def steps_per_iteration(self) -> int: ...
    @property
    def replay_bytes(self) -> int:
        """Bytes of the replays of all seeds: taken at the start, they do not grow."""
        ...

    def advance(self, iterations: int) -> list[dict[str, np.ndarray]]: ...
    def reschedule(self, horizon: float) -> None: ...
    def state(self, index: int = 0) -> Any: ...
    def acting(self, index: int = 0) -> ActorState: ...
    def restore(self, state: Any, iteration: int, index: int = 0) -> None: ...
    def world(self, index: int = 0) -> dict[str, np.ndarray] | None: ...
    def restore_world(self, snapshot: dict[str, np.ndarray], index: int = 0) -> None: ...
    def train_state(self, index: int = 0) -> Any: ...
    def events(self) -> list[str]: ...
    def close(self) -> None: ...


class Learner(NamedTuple):
    """What learning carries from one iteration to the next."""

    train: Any
    replay: Any
    episodes: Episodes


def start(
    algo: Algorithm, key: Key, example: Transition, window: int, keeps: bool = True, copies: int = 1
) -> Learner:
    """The learner before the first iteration, one compiled block; `example` has a rollout's shapes.

    Without `keeps` the replay is elsewhere. One that does not fit into memory as often as there are copies is
    refused.
    """
    leaves, structure = jax.tree.flatten(example)
    shapes = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves)
    if keeps and hasattr(algo.config, "buffer_size"):
        needed = replay_bytes(algo.replay, learned(jax.tree.unflatten(structure, shapes)))
        check_fits(needed * copies, free_on_device(), "the device's memory", algo.config.buffer_size, copies)
    return _starter()(algo, key, shapes, structure, window, keeps)


@cache
def _starter() -> Any:
    def fresh(algo: Algorithm, key: Key, shapes: Any, structure: Any, window: int, keeps: bool) -> Learner:
        example = jax.tree.unflatten(structure, shapes)
        train = algo.init(keys.once(key, keys.INIT))
        heads = getattr(algo, "heads", 0) if hasattr(algo, "shaped") else 0
        episodes = actor.start_episodes(example.reward.shape[1], window, example.info, heads)
        return Learner(train, algo.replay.init(learned(example)) if keeps else Memory(()), episodes)

    return jax.jit(fresh, static_argnums=(2, 3, 4, 5), compiler_options=once_options())


def free_on_device() -> int | None:
    """Bytes that arrays may still take where the networks are; None where nobody says."""
    device = jax.devices()[0]
    if device.platform == "cpu":
        return free_bytes()
    facts = device.memory_stats() or {}
    return facts["bytes_limit"] - facts["bytes_in_use"] if "bytes_limit" in facts else None


def learned(rollout: Transition) -> Transition:
    """What an algorithm gets of a rollout: not what the environment tells about itself."""
    return rollout._replace(info=None)


def learn(
    algo: Algorithm, learner: Learner, rollout: Transition, key: Key, iteration: jax.Array
) -> tuple[Learner, Metrics]:
    """Hands the rollout to the replay, updates as often as the plan says, then absorbs its statistics."""
    memory = algo.replay.add(learner.replay, learned(rollout))
    return learn_on(algo, learner._replace(replay=memory), rollout, key, iteration, algo.replay.ready(memory))


def learn_on(
    algo: Algorithm, learner: Learner, rollout: Transition, key: Key, iteration: jax.Array, ready: Any
) -> tuple[Learner, Metrics]:
    """`learn` after the rollout was added; `ready` may be True or False itself where that is known."""
    base = keys.consumer(key, iteration, keys.UPDATE)
    train, live, metrics = updates(algo, learner.train, learner.replay, base, ready)
    memory = algo.replay.settle(learner.replay._replace(live=live))
    store = getattr(memory.data, "store", memory.data)
    if isinstance(store, ring.Store):
        metrics |= {"replay/filled": ring.filled(store)}
    return _absorbed(algo, learner._replace(train=train, replay=memory), rollout, metrics)


def draw(algo: Algorithm, windows: jax.Array, key: Key, iteration: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Rows and ages, [U, N], of the windows that `learn` would draw from a ring on the device."""
    each = _update_keys(algo, keys.consumer(key, iteration, keys.UPDATE))
    return jax.vmap(lambda key: algo.replay.draw(windows, keys.several(key, 2)[0]))(each)  # type: ignore[attr-defined]


def learn_from(
    algo: Algorithm, learner: Learner, rollout: Transition, batches: Batch, key: Key, iteration: jax.Array
) -> tuple[Learner, Metrics, Any]:
    """`learn` with batches [U, N, …] that were drawn from a replay elsewhere; U is 0 while it fills.

    Also the errors that the updates report for its priorities, [U, N, …]; None when they report none.
    """

    def update(train: Any, now: tuple[Batch, Key]) -> tuple[Any, Report]:
        batch, key = now
        return _update(algo, train, batch, keys.several(key, 2)[1])

    each = _update_keys(algo, keys.consumer(key, iteration, keys.UPDATE))
    if jax.tree.leaves(batches)[0].shape[0]:
        train, reports = jax.lax.scan(update, learner.train, (batches, each))
        metrics = {name: _summary(name, trace) for name, trace in reports.metrics.items()}
        errors = reports.priority
    else:
        one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), (batches, each))
        shapes = jax.eval_shape(update, learner.train, one)[1].metrics
        train, metrics = learner.train, jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        errors = None
    return *_absorbed(algo, learner._replace(train=train), rollout, metrics), errors


def _update_keys(algo: Algorithm, base: Key) -> Key:
    """The keys of the plan's updates, [U]."""
    return base[None] if algo.plan.updates == 1 else keys.several(base, algo.plan.updates)


def _absorbed(
    algo: Algorithm, learner: Learner, rollout: Transition, metrics: Metrics
) -> tuple[Learner, Metrics]:
    """The learner after the rollout's statistics and episodes, and all metrics."""
    train = algo.absorb(learner.train, learned(rollout))
    rewards = None
    if learner.episodes.shaped is not None:
        rewards = actor.shaped(algo, algo.policy(learner.train), rollout.reward)
    episodes = actor.count_episodes(learner.episodes, rollout, rewards)
    mean, length, count = actor.window_mean(episodes)
    metrics = {
        **metrics,
        **of_rollout(algo, learner.train, rollout),
        **of_normaliser(train),
        **of_episodes(algo, learner.train, episodes),
        "rollout/ep_rew_mean": mean,
        "rollout/ep_len_mean": length,
        "rollout/window_episodes": count,
        "rollout/episodes": episodes.finished,
        **actor.told_means(episodes),
        **actor.shaped_means(episodes),
    }
    return learner._replace(train=train, episodes=episodes), metrics


_mesh: ContextVar[Mesh | None] = ContextVar("mesh", default=None)


@contextmanager
def on_devices(mesh: Mesh | None) -> Iterator[None]:
    """While a program is traced inside, every batch is divided among the devices of the mesh.

    Each device computes the losses of its part and gradients are summed over all: the same update but for
    the order of a sum. Weights and replay lie on every device.
    """
    before = _mesh.set(mesh)
    try:
        yield
    finally:
        _mesh.reset(before)


def mesh_for(batch_size: int) -> Mesh | None:
    """All local devices, or the most that can share a batch evenly; None when that is one."""
    devices = jax.local_devices()
    count = max(n for n in range(1, len(devices) + 1) if batch_size % n == 0)
    return Mesh(np.array(devices[:count]), ("batch",)) if count > 1 else None


def _divided(batch: Batch) -> Batch:
    mesh = _mesh.get()
    if mesh is None:
        return batch
    return jax.lax.with_sharding_constraint(batch, NamedSharding(mesh, PartitionSpec("batch")))


def _update(algo: Algorithm, train: Any, batch: Batch, key: Key) -> tuple[Any, Report]:
    """The update, and beside it what its batch looked like."""
    new, report = block(lambda train, batch, key: algo.update(train, _divided(batch), key))(train, batch, key)
    return new, report._replace(metrics=report.metrics | of_batch(algo, train, batch))


def updates(
    algo: Algorithm, train: Any, memory: Memory, base: Key, ready: Any = True
) -> tuple[Any, Any, Metrics]:
    """The plan's updates, or none while the replay is not ready: then the metrics are zeros."""
    replay, count = replay_now(algo, train), algo.plan.updates

    def update(train: Any, live: Any, key: Key) -> tuple[Any, Any, Metrics]:
        now = memory._replace(live=live)
        sample_key, update_key = keys.several(key, 2)
        batch = replay.sample(now, sample_key)
        train, report = _update(algo, train, batch, update_key)
        return train, replay.feedback(now, batch, report), report.metrics

    def all_of_them(train: Any, live: Any) -> tuple[Any, Any, Metrics]:
        if count == 1:
            return update(train, live, base)

        def body(carry: tuple[Any, Any], key: Key) -> tuple[tuple[Any, Any], Metrics]:
            train, live, metrics = update(*carry, key)
            return (train, live), metrics

        (train, live), traces = jax.lax.scan(body, (train, live), keys.several(base, count))
        return train, live, {name: _summary(name, trace) for name, trace in traces.items()}

    if ready is True:
        return all_of_them(train, memory.live)
    shapes = jax.eval_shape(all_of_them, train, memory.live)[2]
    none = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    if ready is False:
        return train, memory.live, none
    return jax.lax.cond(ready, all_of_them, lambda train, live: (train, live, none), train, memory.live)


def replay_now(algo: Any, train: Any) -> Replay:
    """The replay with the numbers of this moment, where an algorithm counts what its schedules need."""
    if not hasattr(train, "iteration") or not hasattr(algo, "horizon"):
        return algo.replay
    return replace(algo, config=resolve(algo.config, train.iteration / algo.horizon)).replay


def _summary(name: str, trace: jax.Array) -> jax.Array:
    """One number for all updates: the last of a count or a look inside, the largest of a maximum, or the
    mean."""
    if jnp.issubdtype(trace.dtype, jnp.integer) or name in LOOKED_AT:
        return trace[-1]
    return jnp.max(trace) if name.endswith("_max") else jnp.mean(trace)
