"""TD3's smoothed target, its losses, their delay and its exploration are their definitions."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import differences, quick
from replayed import CHOICE, NUMBERS, N, as64, batch, critic_values, dense, learner, mlp, returns, start, unit

from sparring.envs.probes import ObservedActionContinuous
from sparring.errors import ConfigError, SpaceMismatch
from sparring.ops.keys import normal
from sparring.ops.priorities import importance
from sparring.spaces import Box
from sparring.types import Behaviour, View

GAMMA = 0.9
SETTINGS: dict[str, Any] = {
    "gamma": GAMMA,
    "n_steps": 2,
    "prioritized": True,
    "target_policy_noise": 0.6,
    "target_noise_clip": 0.5,
    "tau": 0.1,
}


@cache
def setting() -> tuple[Any, Any, Any, list[tuple[Any, Any]]]:
    """Agent, state before, batch, and states and reports of two updates."""
    algo = learner("td3", NUMBERS, **SETTINGS)
    state, sampled, update, story = start(algo), batch(algo), quick(algo.update), []
    before = state
    for i in range(2):
        state, report = update(state, sampled, jax.random.key(i))
        story.append((state, report))
    return algo, before, sampled, story


def mu(actor: Any, obs: np.ndarray) -> np.ndarray:
    return np.tanh(dense(actor.output, mlp(actor.body, obs)))


def test_the_critics_learn_from_the_least_target_at_a_smoothed_action():
    _, before, sampled, story = setting()
    data = as64(sampled.data)
    noise = 0.6 * np.asarray(normal(jax.random.key(0), (N, 2)), np.float64)
    assert (np.abs(noise) > 0.5).any()
    total, factor, last = returns(data, GAMMA)
    follows = data.next_obs[np.arange(N), last]
    ahead = mu(before.actor_target, follows) + np.clip(noise, -0.5, 0.5)
    assert (np.abs(ahead) > 1.0).any()
    y = total + factor * critic_values(before.critic_target, follows, np.clip(ahead, -1.0, 1.0)).min(0)
    error = critic_values(before.critic, data.obs[:, 0], unit(data.action[:, 0])) - y
    weight = np.asarray(importance(sampled.weight, 0.4))
    report = story[0][1]
    wanted = ((error**2).sum(0) * weight).mean()
    assert float(report.metrics["train/critic_loss"]) == pytest.approx(wanted, rel=1e-4)
    np.testing.assert_allclose(report.priority, np.abs(error).mean(0), rtol=1e-4, atol=1e-5)


def test_policy_and_targets_wait_for_every_second_update():
    _, before, sampled, ((one, first), (two, second)) = setting()
    for part in ("actor", "actor_target", "critic_target", "actor_optimiser"):
        assert differences(getattr(one, part), getattr(before, part)) == [], part
        assert differences(getattr(two, part), getattr(before, part)) != [], part
    assert differences(one.critic, before.critic) != []
    assert float(first.metrics["train/actor_loss"]) == 0.0
    obs = as64(sampled.data).obs[:, 0]
    wanted = -critic_values(two.critic, obs, mu(before.actor, obs))[0].mean()
    assert float(second.metrics["train/actor_loss"]) == pytest.approx(wanted, rel=1e-4)
    assert float(two.actor_loss) == float(second.metrics["train/actor_loss"])
    for target, online in (("actor_target", "actor"), ("critic_target", "critic")):
        jax.tree.map(
            lambda new, old, now: np.testing.assert_allclose(
                new, 0.9 * old + 0.1 * now, rtol=1e-4, atol=1e-5
            ),
            getattr(two, target),
            getattr(before, target),
            getattr(two, online),
        )


def test_a_delay_of_one_never_waits():
    algo = learner("td3", NUMBERS, policy_delay=1)
    before = start(algo)
    after, _ = quick(algo.update)(before, batch(algo), jax.random.key(0))
    assert differences(after.actor, before.actor) != []


def explored(algo: Any, weights: Any, carry: Any, first: np.ndarray, key: int) -> tuple[np.ndarray, Any]:
    """Actions in [-1, 1] at one observation, and the carry after them."""
    view = View(jnp.ones((len(first), 3)), first=jnp.asarray(first))
    action, _, carry = quick(type(algo).act)(algo, weights, carry, view, Behaviour(), jax.random.key(key))
    return unit(np.asarray(action)), carry


def test_gaussian_exploration_is_added_and_clipped():
    algo = learner("td3", NUMBERS, noise_std=0.4, learning_starts=0)
    state, rows = start(algo), 4000
    got, _ = explored(algo, algo.policy(state), algo.carry(rows), np.zeros(rows, bool), 1)
    mean = mu(state.actor, np.ones((1, 3)))[0]
    noise = np.asarray(jax.random.normal(jax.random.key(3), (100_000, 2)))
    wanted = np.clip(mean + 0.4 * noise, -1.0, 1.0)
    np.testing.assert_allclose(got.mean(0), wanted.mean(0), atol=0.03)
    np.testing.assert_allclose(got.std(0), wanted.std(0), atol=0.03)
    still = replace(algo, config=replace(algo.config, noise="none"))
    same, _ = explored(still, still.policy(state), still.carry(3), np.zeros(3, bool), 1)
    np.testing.assert_allclose(same, np.broadcast_to(mean, (3, 2)), atol=1e-5)


def test_drifting_noise_is_ornsteins_and_uhlenbecks_and_an_episode_starts_without():
    algo = learner(
        "td3", NUMBERS, noise="ou", noise_std=0.5, noise_theta=2.0, noise_dt=0.1, learning_starts=0
    )
    weights, rows, steps = algo.policy(start(algo)), 2000, 30
    carry, variance = algo.carry(rows), 0.0
    for step in range(steps):
        fresh = np.full(rows, step == 20)
        old, (_, carry) = carry, explored(algo, weights, carry, fresh, step)
        variance = (0.0 if step == 20 else variance * (1 - 0.2) ** 2) + 0.1 * 0.25
        drift = np.asarray(carry.noise)
        assert drift.var() == pytest.approx(variance, rel=0.1)
        if step not in (0, 20):
            share = (drift * np.asarray(old.noise)).mean() / np.asarray(old.noise).var()
            assert share == pytest.approx(0.8, abs=0.05)
    half = np.arange(rows) < rows // 2
    _, after = explored(algo, weights, carry, half, 99)
    kept = np.corrcoef(np.asarray(carry.noise[:, 0]), np.asarray(after.noise[:, 0]))[0, 1]
    fresh, going = (
        np.corrcoef(np.asarray(carry.noise[part, 0]), np.asarray(after.noise[part, 0]))[0, 1]
        for part in (half, ~half)
    )
    assert abs(fresh) < 0.1 < 0.5 < going
    assert 0.1 < kept < going


def test_the_first_actions_are_uniform_and_greedy_ones_are_not():
    algo = learner("td3", NUMBERS, learning_starts=20)
    state, rows = start(algo), 3000
    got, _ = explored(algo, algo.policy(state), algo.carry(rows), np.zeros(rows, bool), 1)
    np.testing.assert_allclose(got.mean(0), 0.0, atol=0.05)
    np.testing.assert_allclose(got.var(0), 1 / 3, atol=0.02)
    view, calm = View(jnp.ones((2, 3))), Behaviour(greedy=jnp.array([True, False]))
    action, _, _ = quick(algo.act)(algo.policy(state), algo.carry(2), view, calm, jax.random.key(0))
    mean = mu(state.actor, np.ones((1, 3)))[0]
    np.testing.assert_allclose(unit(np.asarray(action))[0], mean, atol=1e-5)
    assert np.abs(unit(np.asarray(action))[1] - mean).max() > 0.01


@pytest.mark.parametrize("name", ["td3", "crossq"])
def test_spaces_that_cannot_be_are_refused(name):
    kind = {"td3": "TD3", "crossq": "CrossQ"}[name]
    with pytest.raises(SpaceMismatch, match=f"{kind} acts with numbers.*Use DQN, PQN, PPO"):
        learner(name, CHOICE).check()
    with pytest.raises(SpaceMismatch, match="finite bounds"):
        learner(name, replace(NUMBERS, action=Box((2,)))).check()
    with pytest.raises(ConfigError, match="cannot mask"):
        learner(name, replace(NUMBERS, masks_actions=True)).check()
    for bad in ({"n_critics": 0}, {"policy_delay": 0}, {"batch_size": 0}):
        with pytest.raises(ConfigError, match="at least 1"):
            learner(name, ObservedActionContinuous().spec, **bad).check()
    assert learner(name, NUMBERS).check() == []
