"""The fused driver: environment, policy and learning in one XLA program, several iterations per call."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparring import actor
from sparring.drivers import loop
from sparring.drivers.loop import Learner
from sparring.drivers.platform import compile_seconds
from sparring.envs import batched
from sparring.envs.api import JaxEnv
from sparring.envs.batched import BatchedState
from sparring.errors import CheckpointError
from sparring.nets import checkup
from sparring.ops import keys
from sparring.ops.seam import block
from sparring.replay import ring
from sparring.replay.size import bytes_of, same_layout
from sparring.types import ActorState, Algorithm, Key, Metrics, Transition

MOST = 1024
"""Iterations one call can report on."""


class World(NamedTuple):
    """Everything that changes in a fused run: learner, actor and environment."""

    learner: Learner
    actor: ActorState
    env: BatchedState


def collect(
    algo: Algorithm, env: JaxEnv, world: World, key: Key, iteration: jax.Array, unroll: int = 1
) -> tuple[ActorState, BatchedState, Transition]:
    """A rollout of every row under the current policy."""
    steps = algo.plan.rollout
    weights = algo.policy(world.learner.train)
    controller = actor.controller_of(algo)

    def step(carry: tuple[ActorState, BatchedState], now: tuple[Key, ...]) -> tuple[Any, Transition]:
        state, env_state = carry
        behaviour = actor.behaviour(algo, actor.point(state))
        action, extras, memory = block(actor.act)(algo, weights, state, behaviour, now[0])
        env_state, timestep = block(partial(batched.step, env))(env_state, action, now[1])
        record = actor.transition(state, action, extras, timestep)
        state = actor.observe(state, memory, timestep)
        if controller is not None:
            earned = actor.credited(weights, timestep.reward)
            control = block(controller.turn)(state.control, earned, state.first, timestep.lost, now[2])
            state = state._replace(control=control)
        return (state, env_state), record

    tags = (keys.ACT, keys.ENV) if controller is None else (keys.ACT, keys.ENV, keys.BANDIT)
    each = keys.per_step(key, iteration, tags, steps)
    start = (world.actor, world.env)
    (state, env_state), rollout = jax.lax.scan(step, start, tuple(each), unroll=unroll)
    return state, env_state, actor.begun(rollout, world.actor.carry)


def start(algo: Algorithm, env: JaxEnv, rows: int, window: int, key: Key, copies: int = 1) -> World:
    """The world before the first iteration."""
    env_state, timestep = batched.start(env, keys.once(key, keys.RESET), rows)
    # Arrays of its own: the program is given their buffers, and none twice.
    state = jax.tree.map(jnp.copy, actor.start(algo, timestep, key))
    train = jax.eval_shape(algo.init, key)
    blank = World(Learner(train, None, None), state, env_state)  # type: ignore[arg-type]
    example = jax.eval_shape(lambda w: collect(algo, env, w, key, jnp.int32(0))[2], blank)
    return World(loop.start(algo, key, example, window, copies=copies), state, env_state)


def iterate(
    algo: Algorithm, env: JaxEnv, world: World, key: Key, iteration: jax.Array, unroll: int = 1
) -> tuple[World, Metrics]:
    """One iteration: collect, then learn."""
    state, env_state, rollout = collect(algo, env, world, key, iteration, unroll)
    learner, metrics = loop.learn(algo, world.learner, rollout, key, iteration)
    when = checkup.kept(iteration, getattr(algo, "horizon", 1.0))
    metrics |= checkup.looked(when, lambda: actor.control_metrics(algo, state.control))
    return World(learner, state, env_state), metrics


def run(
    env: JaxEnv, unroll: int, algo: Algorithm, world: World, key: Key, first: jax.Array, count: jax.Array
) -> tuple[World, Metrics]:
    """`count` iterations from number `first`; metrics of iteration i stand in row i."""
    once = jax.jit(lambda world, iteration: iterate(algo, env, world, key, iteration, unroll))
    metrics = jax.eval_shape(once, world, first)[1]  # traced here, and not again in the loop
    blank = jax.tree.map(lambda s: jnp.zeros((MOST, *s.shape), s.dtype), metrics)

    def body(i: jax.Array, carry: tuple[World, Metrics]) -> tuple[World, Metrics]:
        world, metrics = carry
        world, now = once(world, first + i)
        return world, jax.tree.map(lambda rows, x: rows.at[i].set(x), metrics, now)

    return jax.lax.fori_loop(0, count, body, (world, blank))


class Fused:
    """Runs a JAX environment and an algorithm on the device; the host gets control between calls.

    With several seeds on a CPU the one compiled program runs from a thread pool, so each seed equals its
    single run bit for bit; on an accelerator they run as one `vmap`, equal statistically.
    """

    def __init__(
        self,
        algo: Algorithm,
        env: JaxEnv,
        rows: int,
        seeds: tuple[int, ...],
        window: int = 100,
        unroll: int = 1,
    ) -> None:
        self.algo = _on_device(algo)
        self.env = env
        self.rows = rows
        self.seeds = seeds
        self.iteration = 0
        self.seconds = {"fused": 0.0, "transfer": 0.0}
        self._compiled_before = compile_seconds()
        self._program: Any = None
        self._unroll = unroll
        self._stacked = len(seeds) > 1 and jax.default_backend() != "cpu"
        self._keys = [jax.random.key(seed) for seed in seeds]
        # Stacked worlds exist three times for a moment: alone, side by side, and as the program's result.
        left = len(seeds) * (3 if self._stacked else 1)
        self.worlds = [start(self.algo, env, rows, window, k, left - i) for i, k in enumerate(self._keys)]

    @property
    def compile_seconds(self) -> float:
        """Seconds spent compiling since this driver was made."""
        return compile_seconds() - self._compiled_before

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps of one seed in one iteration."""
        return self.algo.plan.rollout * self.rows

    @property
    def replay_bytes(self) -> int:
        return bytes_of([world.learner.replay for world in self.worlds])

    def advance(self, iterations: int) -> list[dict[str, np.ndarray]]:
        """Runs iterations and returns, per seed, each metric as an array over them."""
        iterations = min(iterations, MOST)
        if self._program is None:
            self._compile()
        first, count = jnp.int32(self.iteration), jnp.int32(iterations)
        began, compiled = time.perf_counter(), compile_seconds()

        def one(index: int) -> tuple[World, Metrics]:
            return jax.block_until_ready(
                self._program(self.algo, self.worlds[index], self._keys[index], first, count)
            )

        if self._stacked:
            world = jax.tree.map(lambda *x: jnp.stack(x), *self.worlds)
            keys_of_all = jnp.stack(self._keys)
            world, metrics = jax.block_until_ready(self._program(self.algo, world, keys_of_all, first, count))
            size = len(self.seeds)
            self.worlds = [jax.tree.map(lambda x, i=i: x[i], world) for i in range(size)]
            traces = [jax.tree.map(lambda x, i=i: x[i], metrics) for i in range(size)]
        elif len(self.seeds) == 1:
            self.worlds[0], trace = one(0)
            traces = [trace]
        else:
            with ThreadPoolExecutor() as pool:
                done = list(pool.map(one, range(len(self.seeds))))
            self.worlds = [world for world, _ in done]
            traces = [trace for _, trace in done]
        self.iteration += iterations
        done_at = time.perf_counter()
        fetched = [{name: np.asarray(x)[:iterations] for name, x in trace.items()} for trace in traces]
        self.seconds["fused"] += max(done_at - began - (compile_seconds() - compiled), 0.0)
        self.seconds["transfer"] += time.perf_counter() - done_at
        return fetched

    def _compile(self) -> None:
        program = partial(run, self.env, self._unroll)
        if self._stacked:
            program = jax.vmap(program, in_axes=(None, 0, 0, None, None))
            world = jax.tree.map(lambda *x: jnp.stack(x), *self.worlds)
            arguments = (self.algo, world, jnp.stack(self._keys), jnp.int32(0), jnp.int32(1))
        else:
            arguments = (self.algo, self.worlds[0], self._keys[0], jnp.int32(0), jnp.int32(1))
        self._program = jax.jit(program, donate_argnums=1).lower(*arguments).compile()

    def reschedule(self, horizon: float) -> None:
        """Changes the number of iterations over which schedules run; nothing is recompiled."""
        self.algo = replace(self.algo, horizon=jnp.float32(horizon))

    def state(self, index: int = 0) -> World:
        """Everything that one seed's run has changed."""
        return self.worlds[index]

    def acting(self, index: int = 0) -> ActorState:
        return self.worlds[index].actor

    def restore(self, world: World, iteration: int, index: int = 0) -> None:
        """Continues from a saved state."""
        if not ring.even(world.learner.replay, self.algo.plan.rollout):
            raise CheckpointError(
                f"The rows of this state's replay have not written the same whole number of rollouts of "
                f"{self.algo.plan.rollout} steps, and a compiled environment adds to all of them at once. "
                f"Step it in Python, for example as gym:{self.env.spec.id}."
            )
        self.worlds[index] = jax.tree.map(jnp.asarray, world)
        self.iteration = iteration

    def train_state(self, index: int = 0) -> Any:
        return self.worlds[index].learner.train

    def replayed(self) -> Any:
        """What the first seed's replay holds: arrays that `take_over` of another driver takes."""
        return self.worlds[0].learner.replay

    def take_over(self, replayed: Any) -> bool:
        """Goes on with what another driver's replay held; False and no change if its layout differs, or rows
        that must be written one by one."""
        world = self.worlds[0]
        if not same_layout(replayed, world.learner.replay):
            return False
        if not ring.even(replayed, self.algo.plan.rollout):
            return False
        self.worlds[0] = world._replace(learner=world.learner._replace(replay=replayed))
        return True

    def world(self, index: int = 0) -> dict[str, np.ndarray] | None:
        """The world is inside the state."""
        return None

    def restore_world(self, snapshot: dict[str, np.ndarray], index: int = 0) -> None:
        """The world is inside the state."""

    def events(self) -> list[str]:
        return []

    def close(self) -> None:
        """Nothing to release."""


def _on_device(algo: Algorithm) -> Any:
    """The algorithm with its traced floats as float32 arrays, so that a call converts nothing."""
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), algo)
