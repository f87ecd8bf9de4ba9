"""CrossQ: both observations pass the critics together, no target network, statistics learn beside weights."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import differences, quick
from replayed import NUMBERS, N, adam, as64, batch, dense, learner, returns, start, unit

from sparring.ops.keys import normal, several

GAMMA, RATE, MOMENTUM, EPSILON = 0.9, 0.01, 0.8, 1e-3


@cache
def setting() -> tuple[Any, Any, Any, list[tuple[Any, Any]]]:
    """Agent, state before, batch, and states and reports of two updates; the second moves the actor."""
    algo = learner(
        "crossq",
        NUMBERS,
        gamma=GAMMA,
        learning_rate=RATE,
        n_steps=2,
        policy_delay=2,
        renorm_momentum=MOMENTUM,
        renorm_warm_up=10.0,
    )
    state = start(algo)._replace(log_ent_coef=jnp.float32(-0.5))
    before, sampled, update, story = state, batch(algo), quick(algo.update), []
    for i in range(2):
        state, report = update(state, sampled, jax.random.key(i))
        story.append((state, report))
    return algo, before, sampled, story


def evaluated(norm: Any, x: np.ndarray) -> np.ndarray:
    scale, shift, mean, variance = (
        np.asarray(getattr(norm, n), np.float64) for n in ("scale", "shift", "mean", "variance")
    )
    return (x - mean) / np.sqrt(variance + EPSILON) * scale + shift


def trained(norm: Any, x: np.ndarray, statistics: list[Any]) -> np.ndarray:
    scale, shift, mean, variance = (
        np.asarray(getattr(norm, n), np.float64) for n in ("scale", "shift", "mean", "variance")
    )
    running = np.sqrt(variance + EPSILON)
    r = np.clip(np.sqrt(x.var(0) + EPSILON) / running, 1 / 3, 3.0)
    d = np.clip((x.mean(0) - mean) / running, -5.0, 5.0)
    statistics.append((MOMENTUM * mean + 0.2 * x.mean(0), MOMENTUM * variance + 0.2 * x.var(0)))
    return ((x - x.mean(0)) / np.sqrt(x.var(0) + EPSILON) * r + d) * scale + shift


def passed(body: Any, x: np.ndarray, statistics: list[Any] | None = None) -> np.ndarray:
    """The network in training mode, which appends new statistics, or in evaluation mode without a list."""

    def norm(layer: Any, x: np.ndarray) -> np.ndarray:
        return evaluated(layer, x) if statistics is None else trained(layer, x, statistics)

    x = norm(body.norms[0], x)
    for layer, after in zip(body.layers, body.norms[1:], strict=True):
        x = norm(after, np.maximum(dense(layer, x), 0.0))
    return x


def drawn(
    actor: Any, obs: np.ndarray, key: Any, statistics: list[Any] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Squashed actions and their log-probabilities."""
    latent = passed(actor.body, obs, statistics)
    log_std = np.clip(dense(actor.output.log_std, latent), -20.0, 2.0)
    noise = np.asarray(normal(key, log_std.shape), np.float64)
    u = dense(actor.output.dense, latent) + np.exp(log_std) * noise
    density = -0.5 * noise**2 - log_std - 0.5 * np.log(2 * np.pi)
    return np.tanh(u), (density - np.log(1.0 - np.tanh(u) ** 2)).sum(-1)


def test_what_is_and_what_follows_share_the_batchs_statistics():
    _, before, sampled, story = setting()
    data = as64(sampled.data)
    total, factor, last = returns(data, GAMMA)
    follows = data.next_obs[np.arange(N), last]
    action, log_prob = drawn(before.actor, follows, several(jax.random.key(0), 2)[0])
    together = np.concatenate(
        [
            np.concatenate([data.obs[:, 0], follows]),
            np.concatenate([unit(data.action[:, 0]), action]),
        ],
        axis=1,
    )
    after, report = story[0]
    values = []
    for index, critic in enumerate(before.critic.each):
        statistics: list[Any] = []
        values.append(dense(critic.output, passed(critic.body, together, statistics))[:, 0])
        for norm, (mean, variance) in zip(after.critic.each[index].body.norms, statistics, strict=True):
            np.testing.assert_allclose(norm.mean, mean, rtol=1e-3, atol=1e-4)
            np.testing.assert_allclose(norm.variance, variance, rtol=1e-3, atol=1e-4)
            assert float(norm.updates) == 51.0
    q, q_next = np.split(np.stack(values), 2, axis=1)
    y = total + factor * (q_next.min(0) - np.exp(-0.5) * log_prob)
    error = q - y
    assert float(report.metrics["train/critic_loss"]) == pytest.approx(
        (0.5 * (error**2).sum(0)).mean(), rel=1e-3
    )
    np.testing.assert_allclose(report.priority, np.abs(error).mean(0), rtol=1e-3, atol=1e-4)


def test_the_actor_waits_and_then_trains_in_batches_against_critics_in_evaluation():
    _, before, sampled, ((one, first), (two, second)) = setting()
    for part in ("actor", "actor_optimiser", "log_ent_coef", "ent_optimiser"):
        assert differences(getattr(one, part), getattr(before, part)) == [], part
        assert differences(getattr(two, part), getattr(before, part)) != [], part
    assert float(first.metrics["train/actor_loss"]) == 0.0
    obs, alpha = as64(sampled.data).obs[:, 0], np.exp(-0.5)
    statistics: list[Any] = []
    action, log_prob = drawn(before.actor, obs, several(jax.random.key(1), 2)[1], statistics)
    x = np.concatenate([obs, action], axis=1)
    q = np.stack([dense(c.output, passed(c.body, x))[:, 0] for c in two.critic.each])
    wanted = (alpha * log_prob - q.min(0)).mean()
    assert float(second.metrics["train/actor_loss"]) == pytest.approx(wanted, rel=1e-3)
    assert float(second.metrics["train/entropy"]) == pytest.approx(-log_prob.mean(), rel=1e-3)
    for norm, (mean, variance) in zip(two.actor.body.norms, statistics, strict=True):
        np.testing.assert_allclose(norm.mean, mean, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(norm.variance, variance, rtol=1e-3, atol=1e-4)
    slope = -(log_prob.mean() - 2.0)
    assert float(two.log_ent_coef) == pytest.approx(-0.5 + float(adam(slope, RATE, 1e-8)), rel=1e-4)


def test_nothing_that_is_stored_is_a_target_network():
    algo, state, _, _ = setting()
    assert not [name for name in state._fields if "target" in name]
    assert algo.config.adam_b1 == 0.5


def test_the_target_gets_no_gradient():
    """The critics' gradient, half of Adam's first mean, is that of the error with the target held fixed."""
    _, before, sampled, story = setting()
    data, step = as64(sampled.data), 1e-5
    total, factor, last = returns(data, GAMMA)
    follows = data.next_obs[np.arange(N), last]
    action, log_prob = drawn(before.actor, follows, several(jax.random.key(0), 2)[0])
    x = np.concatenate(
        [np.concatenate([data.obs[:, 0], follows]), np.concatenate([unit(data.action[:, 0]), action])], axis=1
    )

    def values(critic: Any, bias: float) -> np.ndarray:
        return dense(critic.output, passed(critic.body, x, []))[:, 0] + bias

    both = np.stack([values(c, 0.0) for c in before.critic.each])
    y = total + factor * (both[:, N:].min(0) - np.exp(-0.5) * log_prob)
    slope = 2.0 * np.asarray(story[0][0].critic_optimiser.mu.each[0].output.bias)[0]
    sides = [0.5 * ((both[0, :N] + sign * step - y) ** 2).mean() for sign in (1, -1)]
    assert slope == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=1e-3)
