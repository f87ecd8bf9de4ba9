"""The JAX classic environments equal Gymnasium's."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparring.envs.classic.acrobot import Acrobot
from sparring.envs.classic.cartpole import CartPole
from sparring.envs.classic.mountain_car import MountainCar, MountainCarContinuous
from sparring.envs.classic.pendulum import Pendulum

ENVS: list[Any] = [CartPole(), MountainCar(), MountainCarContinuous(), Acrobot(), Pendulum()]
STEPS = 500
SEEDS = [0, 1, 2, 3]

by_env = pytest.mark.parametrize("env", ENVS, ids=lambda env: env.spec.id)
by_seed = pytest.mark.parametrize("seed", SEEDS)


def state_type(env: Any) -> Any:
    return type(jax.eval_shape(env.reset, jax.random.key(0)))


def original(env: Any, seed: int) -> Any:
    """Gymnasium's environment without its wrappers: no time limit, no order enforcement."""
    unwrapped = gymnasium.make(env.spec.id).unwrapped
    unwrapped.reset(seed=seed)
    unwrapped.action_space.seed(seed)
    return unwrapped


class Quiet:
    """Gymnasium warns about steps after the end, which these tests take on purpose."""

    def __enter__(self) -> None:
        self._level = gymnasium.logger.min_level
        gymnasium.logger.min_level = gymnasium.logger.ERROR

    def __exit__(self, *_: object) -> None:
        gymnasium.logger.min_level = self._level


class Played(NamedTuple):
    """A random run of Gymnasium's environment; the state is the one before the step."""

    state: np.ndarray
    action: np.ndarray
    obs: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray


def play(env: Any, seed: int, dtype: Any, *, restart: bool) -> Played:
    """500 steps; after an end either a new start or simply on."""
    world, steps = original(env, seed), []
    with Quiet():
        for _ in range(STEPS):
            state = np.array(world.state, np.float64)
            action = np.asarray(world.action_space.sample())
            action = action.astype(dtype) if action.dtype == np.float32 else action
            obs, reward, terminated, truncated, _ = world.step(action)
            assert not truncated
            steps.append((state, action, np.array(obs), float(reward), terminated))
            if terminated and restart:
                world.reset(seed=seed + len(steps))
    return Played(*(np.stack(column) for column in zip(*steps, strict=True)))


def one_step(env: Any, state: Any, action: Any) -> Any:
    after, outcome = env.step(state, action, jax.random.key(0))
    return after, (env.observe(after), outcome)


@by_env
@by_seed
def test_one_step_from_the_same_state_agrees_in_float32(env: Any, seed: int) -> None:
    played = play(env, seed, np.float32, restart=True)
    states = state_type(env)(*played.state.astype(np.float32).T)
    _, (obs, outcome) = jax.jit(jax.vmap(partial(one_step, env)))(states, played.action)
    assert obs.dtype == outcome.reward.dtype == jnp.float32
    np.testing.assert_allclose(obs, played.obs, atol=1e-5, rtol=1e-6)
    np.testing.assert_allclose(outcome.reward, played.reward, atol=1e-5, rtol=1e-6)
    np.testing.assert_array_equal(outcome.terminated, played.terminated)
    assert not outcome.truncated.any()


@by_env
@by_seed
def test_500_steps_from_the_same_start_agree_in_float64(env: Any, seed: int) -> None:
    # A float32 action would make Gymnasium itself round parts of its step to float32.
    played = play(env, seed, np.float64, restart=False)
    with jax.enable_x64(True):
        start = state_type(env)(*(jnp.asarray(value) for value in played.state[0]))
        _, (obs, outcome) = jax.jit(partial(jax.lax.scan, partial(one_step, env)))(start, played.action)
        assert obs.dtype == outcome.reward.dtype == jnp.float64
        np.testing.assert_allclose(obs, played.obs, atol=1e-5, rtol=1e-6)
        np.testing.assert_array_equal(outcome.terminated, played.terminated)
        # Gymnasium's CartPole pays nothing after the end, where no step belongs to an episode.
        before = np.cumsum(played.terminated) - played.terminated == 0
        np.testing.assert_allclose(outcome.reward[before], played.reward[before], atol=1e-5, rtol=1e-6)


@by_env
def test_the_start_is_drawn_from_gymnasiums_range(env: Any) -> None:
    states = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 4000))
    ours = np.stack([np.asarray(v) for v in states], -1)
    world = original(env, 0)
    theirs = np.stack([(world.reset(seed=s), np.asarray(world.state))[1] for s in range(2000)])
    spread = theirs.max(0) - theirs.min(0)
    np.testing.assert_allclose(ours.min(0), theirs.min(0), atol=0.01 * spread.max() + 1e-9)
    np.testing.assert_allclose(ours.max(0), theirs.max(0), atol=0.01 * spread.max() + 1e-9)
    np.testing.assert_allclose(ours.mean(0), theirs.mean(0), atol=0.05 * spread.max() + 1e-9)


@by_env
def test_limits_and_thresholds_are_gymnasiums(env: Any) -> None:
    spec = gymnasium.spec(env.spec.id)
    assert env.spec.time_limit == spec.max_episode_steps
    assert env.spec.reward_threshold == spec.reward_threshold


@by_env
def test_an_environment_is_static(env: Any) -> None:
    assert hash(env) == hash(type(env)())
    assert env == type(env)()
