"""The JAX classic environments equal Gymnasium's."""

from __future__ import annotations

from typing import Any

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


def one_step(env: Any) -> Any:
    def step(state: Any, action: Any) -> Any:
        after, outcome = env.step(state, action, jax.random.key(0))
        return env.observe(after), outcome, after

    return jax.jit(step)


def gym_step(env: Any, action: Any) -> Any:
    with Quiet():
        obs, reward, terminated, truncated, _ = env.step(action)
    assert not truncated
    return np.asarray(obs), float(reward), terminated


class Quiet:
    """Gymnasium warns about steps after the end, which these tests take on purpose."""

    def __enter__(self) -> None:
        self._level = gymnasium.logger.min_level
        gymnasium.logger.min_level = gymnasium.logger.ERROR

    def __exit__(self, *_: object) -> None:
        gymnasium.logger.min_level = self._level


@by_env
@by_seed
def test_one_step_from_the_same_state_agrees_in_float32(env: Any, seed: int) -> None:
    world, step = original(env, seed), one_step(env)
    for _ in range(STEPS):
        state = state_type(env)(*np.asarray(world.state, np.float32))
        action = world.action_space.sample()
        obs, outcome, _ = step(state, jnp.asarray(action))
        assert obs.dtype == jnp.float32
        assert outcome.reward.dtype == jnp.float32
        expected_obs, expected_reward, terminated = gym_step(world, action)
        np.testing.assert_allclose(obs, expected_obs, atol=1e-5, rtol=1e-6)
        if terminated and not isinstance(env, MountainCar | MountainCarContinuous):
            assert bool(outcome.terminated)
            world.reset(seed=seed + 1)
            continue
        assert bool(outcome.terminated) == terminated
        np.testing.assert_allclose(outcome.reward, expected_reward, atol=1e-5, rtol=1e-6)


@by_env
@by_seed
def test_500_steps_from_the_same_start_agree_in_float64(env: Any, seed: int) -> None:
    with jax.enable_x64(True):
        world, step = original(env, seed), one_step(env)
        state = state_type(env)(*(jnp.asarray(v, jnp.float64) for v in world.state))
        ended = False
        for _ in range(STEPS):
            # A float32 action would make Gymnasium itself round parts of its step to float32.
            action = np.asarray(world.action_space.sample())
            action = action.astype(np.float64) if action.dtype == np.float32 else action
            obs, outcome, state = step(state, jnp.asarray(action))
            expected_obs, expected_reward, terminated = gym_step(world, action)
            np.testing.assert_allclose(obs, expected_obs, atol=1e-5, rtol=1e-6)
            assert bool(outcome.terminated) == terminated
            if not ended:  # Gymnasium's CartPole pays nothing after the end
                np.testing.assert_allclose(outcome.reward, expected_reward, atol=1e-5, rtol=1e-6)
            ended = ended or terminated


@by_env
def test_the_start_is_drawn_from_gymnasiums_range(env: Any) -> None:
    states = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 4000))
    ours = np.stack([np.asarray(v) for v in states], -1)
    world = original(env, 0)
    theirs = np.stack([world.reset(seed=s)[0] is not None and np.asarray(world.state) for s in range(2000)])
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
