"""One iteration of learning, the same for every algorithm and driver: add → updates → absorb."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from sparring import actor
from sparring.actor import Episodes
from sparring.drivers.platform import once_options
from sparring.ops import keys
from sparring.types import Algorithm, Key, Memory, Metrics, Transition


class Driver(Protocol):
    """What owns time: advances one or several seeds and gives the host control in between."""

    algo: Any
    seeds: tuple[int, ...]
    iteration: int

    @property
    def compile_seconds(self) -> float: ...
    @property
    def steps_per_iteration(self) -> int: ...
    def advance(self, iterations: int) -> list[dict[str, np.ndarray]]: ...
    def reschedule(self, horizon: float) -> None: ...
    def state(self, index: int = 0) -> Any: ...
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


def start(algo: Algorithm, key: Key, example: Transition, window: int) -> Learner:
    """The learner before the first iteration, one compiled block; `example` has a rollout's shapes."""
    leaves, structure = jax.tree.flatten(example)
    shapes = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves)
    return _starter()(algo, key, shapes, structure, window)


@cache
def _starter() -> Any:
    def fresh(algo: Algorithm, key: Key, shapes: Any, structure: Any, window: int) -> Learner:
        example = jax.tree.unflatten(structure, shapes)
        train = algo.init(keys.once(key, keys.INIT))
        episodes = actor.start_episodes(example.reward.shape[1], window)
        return Learner(train, algo.replay.init(example), episodes)

    return jax.jit(fresh, static_argnums=(2, 3, 4), compiler_options=once_options())


def learn(
    algo: Algorithm, learner: Learner, rollout: Transition, key: Key, iteration: jax.Array
) -> tuple[Learner, Metrics]:
    """Hands the rollout to the replay, updates as often as the plan says, then absorbs its statistics."""
    replay = algo.replay
    base = keys.consumer(key, iteration, keys.UPDATE)
    memory = replay.add(learner.replay, rollout)
    train, live, metrics = _update(algo, learner.train, memory, base)
    train = algo.absorb(train, rollout)
    episodes = actor.count_episodes(learner.episodes, rollout)
    mean, length, count = actor.window_mean(episodes)
    metrics = {
        **metrics,
        "rollout/ep_rew_mean": mean,
        "rollout/ep_len_mean": length,
        "rollout/window_episodes": count,
        "rollout/episodes": episodes.finished,
    }
    return Learner(train, replay.settle(memory._replace(live=live)), episodes), metrics


def _update(algo: Algorithm, train: Any, memory: Memory, base: Key) -> tuple[Any, Any, Metrics]:
    """The plan's updates, or none while the replay is not ready: then the metrics are zeros."""
    replay = algo.replay

    def update(carry: tuple[Any, Any], key: Key) -> tuple[tuple[Any, Any], Metrics]:
        train, live = carry
        now = memory._replace(live=live)
        sample_key, update_key = keys.several(key, 2)
        batch = replay.sample(now, sample_key)
        train, report = algo.update(train, batch, update_key)
        return (train, replay.feedback(now, batch, report)), report.metrics

    def learn(start: tuple[Any, Any]) -> tuple[tuple[Any, Any], Metrics]:
        if algo.plan.updates == 1:
            return update(start, base)
        end, traces = jax.lax.scan(update, start, keys.several(base, algo.plan.updates))
        return end, {name: _summary(trace) for name, trace in traces.items()}

    start, ready = (train, memory.live), replay.ready(memory)
    if ready is True:
        (train, live), metrics = learn(start)
    else:
        shapes = jax.eval_shape(learn, start)[1]
        none = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        (train, live), metrics = jax.lax.cond(ready, learn, lambda start: (start, none), start)
    return train, live, metrics


def _summary(trace: jax.Array) -> jax.Array:
    """One number for all updates: the last of a count, the mean of anything else."""
    return trace[-1] if jnp.issubdtype(trace.dtype, jnp.integer) else jnp.mean(trace)
