"""The host driver: a world outside JAX, one jitted call per step to act, one per iteration to learn."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from sparring import actor
from sparring.drivers import loop
from sparring.drivers.loop import Learner
from sparring.drivers.platform import compile_seconds, prepare
from sparring.envs.api import HostEnv
from sparring.envs.batched import BatchedState, JaxHost
from sparring.ops import keys
from sparring.types import ActorState, Algorithm, Behaviour, Key, Metrics, TimeStep, Transition

OnStep = Callable[[TimeStep, "Host"], None]

AT_ONCE = 64
"""Steps that wait before they are copied into the rollout's buffers."""


class Situation(NamedTuple):
    """Everything that changes in a host run, but for the world outside: learner, actor, JAX environment."""

    learner: Learner
    actor: ActorState
    env: BatchedState | None


@partial(jax.jit, static_argnums=(2, 3))
def _stream(key: Key, iteration: jax.Array, tag: int, steps: int) -> jax.Array:
    return jax.random.key_data(keys.per_step(key, iteration, (tag,), steps)[0])


@partial(jax.jit, donate_argnums=1)
def _learn(
    algo: Algorithm, learner: Learner, rollout: Transition, key: Key, iteration: jax.Array
) -> tuple[Learner, Metrics]:
    return loop.learn(algo, learner, rollout, key, iteration)


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
    ) -> None:
        prepare()
        self.algo: Any = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), algo)
        self.env = env
        self.rows = env.spec.rows
        self.seeds = (seed,)
        self.iteration = 0
        self.on_step = on_step
        self.action: Any = None
        """the last actions, for `on_step`"""
        self.seconds = {"env": 0.0, "act": 0.0, "update": 0.0}
        self._key = jax.random.key(seed)
        self._seed = seed
        self._none_lost = np.zeros(self.rows, bool)
        self._news: list[str] = []
        self._treedef: Any = None
        self._policy = jax.jit(lambda algo, train: jax.tree.leaves(algo.policy(train)))
        self._compiled_before = compile_seconds()
        timestep = self._reset()
        self.actor = jax.tree.map(np.asarray, actor.start(self.algo, timestep))
        self._buffers, self._bins = self._allocate(timestep)
        example = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), self._buffers)
        self.learner = loop.start(self.algo, self._key, example, window)

    @property
    def compile_seconds(self) -> float:
        """Seconds spent compiling since this driver was made."""
        return compile_seconds() - self._compiled_before

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps in one iteration."""
        return int(self.algo.plan.rollout) * self.rows

    def advance(self, iterations: int) -> list[dict[str, np.ndarray]]:
        """Runs iterations and returns, for the one seed, each metric as an array over them."""
        traces = [self._iterate() for _ in range(iterations)]
        return [{name: np.stack([np.asarray(t[name]) for t in traces]) for name in traces[0]}]

    def _iterate(self) -> Metrics:
        self._collect()
        collected = time.perf_counter()
        self.learner, metrics = _learn(
            self.algo, self.learner, self._rollout(), self._key, np.int32(self.iteration)
        )
        metrics = jax.block_until_ready(metrics)
        self.seconds["update"] += time.perf_counter() - collected
        self.iteration += 1
        return metrics

    def _collect(self) -> None:
        """Fills the buffers with one rollout."""
        steps = self.algo.plan.rollout
        acting = self._acting()
        outside = isinstance(self.env, JaxHost)
        env_keys = _stream(self._key, np.int32(self.iteration), keys.ENV, steps) if outside else None
        clock, seconds, state = time.perf_counter, self.seconds, self.actor
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
            waiting.append((state, action, extras, timestep))
            if len(waiting) == AT_ONCE:
                self._write(waiting, t + 1)
                waiting = []
            state = actor.observe(state, carry, timestep)
            if self.on_step is not None:
                self.actor, self.action = state, action
                self.on_step(timestep, self)
            seconds["act"] += acted - began
        self._write(waiting, steps)
        self.actor = state

    def _write(self, steps: list[tuple[ActorState, Any, Any, TimeStep]], end: int) -> None:
        """Copies the last steps into the buffers up to time `end`.

        Many at once: in a loop of its own this code stays in the processor's caches, between the
        environment's and the network's it does not.
        """
        loses = self._buffers.mask is not None
        start = end - len(steps)
        for t, (state, action, extras, timestep) in enumerate(steps, start):
            kept = loses and timestep.lost is None
            outcome = timestep._replace(lost=self._none_lost) if kept else timestep
            record = actor.transition(state, action, extras, outcome)
            for place, leaf in zip(self._bins, jax.tree.leaves(record), strict=True):
                place[t] = leaf

    def _rollout(self) -> Transition:
        """The buffers; a mask that masks nothing is left out, so that the dense update runs."""
        mask = self._buffers.mask
        if mask is None or not mask.all() or jax.tree.leaves(self.learner.replay):
            return self._buffers
        return self._buffers._replace(mask=None)

    def _acting(self) -> Callable[[ActorState], tuple[Any, Any, Any]]:
        """The compiled act of this iteration's weights; each call takes the next step's key.

        Weights travel as a plain list and the algorithm's numbers as one array: flattening Equinox modules
        in Python, and handing over many scalars, would cost more than acting.
        """
        algo, train = self.algo, self.learner.train
        if self._treedef is None:
            self._treedef = jax.tree.structure(jax.eval_shape(algo.policy, train))
            self._floats, unravel = ravel_pytree(algo)
            self._act = jax.jit(partial(_act, self._treedef, unravel))
            self._remembers = bool(jax.tree.leaves(self.actor.carry))
        weights = self._policy(algo, train)
        stream = iter(np.asarray(_stream(self._key, np.int32(self.iteration), keys.ACT, algo.plan.rollout)))
        compiled, floats, remembers = self._act, self._floats, self._remembers

        def acting(state: ActorState) -> tuple[Any, Any, Any]:
            first = state.first if remembers else None
            return compiled(floats, weights, state.obs, first, state.carry, state.legal, next(stream))

        return acting

    def _reset(self) -> TimeStep:
        if isinstance(self.env, JaxHost):
            return self.env.start(keys.once(self._key, keys.RESET))
        return self.env.reset(self._seed)

    def _allocate(self, timestep: TimeStep) -> tuple[Transition, list[np.ndarray]]:
        """Numpy arrays [T, B, …] for a rollout, and their leaves."""
        steps = self.algo.plan.rollout
        if self.env.may_lose:
            timestep = timestep._replace(lost=self._none_lost)

        def record(algo: Algorithm, train: Any, state: ActorState, timestep: TimeStep) -> Transition:
            action, extras, _ = actor.act(algo, algo.policy(train), state, Behaviour(), self._key)
            return actor.transition(state, action, extras, timestep)

        train = jax.eval_shape(self.algo.init, self._key)
        shapes = jax.eval_shape(record, self.algo, train, self.actor, timestep)
        buffers = jax.tree.map(lambda s: np.zeros((steps, *s.shape), s.dtype), shapes)
        return buffers, jax.tree.leaves(buffers)

    def reschedule(self, horizon: float) -> None:
        """Changes the number of iterations over which schedules run; nothing is recompiled."""
        self.algo = replace(self.algo, horizon=jnp.float32(horizon))
        self._floats = ravel_pytree(self.algo)[0]

    def state(self, index: int = 0) -> Situation:
        """Everything that the run has changed, but for the world outside."""
        return Situation(self.learner, self.actor, self.env.state if isinstance(self.env, JaxHost) else None)

    def restore(self, situation: Situation, iteration: int, index: int = 0) -> None:
        """Continues from a saved state; the caller restores the world outside."""
        self.learner = jax.tree.map(jnp.asarray, situation.learner)
        self.actor = jax.tree.map(np.asarray, situation.actor)
        if isinstance(self.env, JaxHost):
            self.env.state = jax.tree.map(jnp.asarray, situation.env)
        self.iteration = iteration

    def world(self, index: int = 0) -> dict[str, np.ndarray] | None:
        """A snapshot of the world outside; None when it cannot be taken, or is part of `state`."""
        return None if isinstance(self.env, JaxHost) else self.env.snapshot()

    def restore_world(self, snapshot: dict[str, np.ndarray], index: int = 0) -> None:
        """Puts the world outside back to where the snapshot was taken; rows that cannot be start anew."""
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
        self.actor = self.actor._replace(
            obs=timestep.obs, legal=timestep.legal, first=self.actor.first | lost
        )
        episodes = self.learner.episodes
        self.learner = self.learner._replace(
            episodes=episodes._replace(
                total=jnp.where(lost, 0.0, episodes.total), length=jnp.where(lost, 0, episodes.length)
            )
        )

    def train_state(self, index: int = 0) -> Any:
        return self.learner.train

    def events(self) -> list[str]:
        """What happened in the world outside that a user should know."""
        news, self._news = self._news, []
        return news + self.env.events()

    def close(self) -> None:
        self.env.close()


def _act(
    weights_tree: Any,
    unravel: Callable[[jax.Array], Any],
    floats: jax.Array,
    weights: list[Any],
    obs: Any,
    first: Any,
    carry: Any,
    legal: Any,
    key: Any,
) -> tuple[Any, Any, Any]:
    state = ActorState(obs, first, carry, legal)
    policy = jax.tree.unflatten(weights_tree, weights)
    return actor.act(unravel(floats), policy, state, Behaviour(), jax.random.wrap_key_data(key))
