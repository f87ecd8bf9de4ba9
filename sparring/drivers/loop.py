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
from sparring.types import Algorithm, Key, Metrics, Transition


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

    def update(carry: tuple[Any, Any], key: Key) -> tuple[tuple[Any, Any], Metrics]:
        train, memory = carry
        sample_key, update_key = keys.several(key, 2)
        batch = replay.sample(memory, sample_key)
        train, report = algo.update(train, batch, update_key)
        return (train, replay.feedback(memory, batch, report)), report.metrics

    if algo.plan.updates == 1:
        (train, memory), metrics = update((learner.train, memory), base)
    else:
        each = keys.several(base, algo.plan.updates)
        (train, memory), traces = jax.lax.scan(update, (learner.train, memory), each)
        metrics = jax.tree.map(jnp.mean, traces)
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
    return Learner(train, replay.settle(memory), episodes), metrics
