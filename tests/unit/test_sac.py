"""SAC's targets, losses and entropy coefficient are their definitions, for numbers and for choices."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import differences, quick
from replayed import (
    BRANCHES,
    CHOICE,
    NUMBERS,
    N,
    adam,
    as64,
    batch,
    critic_values,
    dense,
    learner,
    mlp,
    returns,
    start,
    unit,
)

from sparring.envs.probes import ManyBits
from sparring.errors import ConfigError, SpaceMismatch
from sparring.ops.keys import normal, several
from sparring.ops.priorities import importance
from sparring.spaces import Box
from sparring.types import Batch, Behaviour, View

GAMMA, RATE = 0.9, 0.01
SPECS = {"NUMBERS": NUMBERS, "CHOICE": CHOICE, "MASKED": replace(BRANCHES, masks_actions=True)}


@cache
def setting(name: str, **settings: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Agent, state before and after one update, the batch, and what the update reported."""
    base = {"gamma": GAMMA, "learning_rate": RATE, "n_steps": 2, "prioritized": True, "priority_beta": 0.5}
    algo = learner("sac", SPECS[name], **{**base, **settings})
    before, sampled = start(algo)._replace(log_ent_coef=jnp.float32(-0.5)), batch(algo)
    after, report = quick(algo.update)(before, sampled, jax.random.key(5))
    return algo, before, sampled, after, report


@cache
def noises() -> list[np.ndarray]:
    """What the update of `setting` draws: for what follows, and for now."""
    return [np.asarray(normal(key, (N, 2)), np.float64) for key in several(jax.random.key(5), 2)]


def drawn(actor: Any, obs: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Squashed actions and their log-probabilities."""
    latent = mlp(actor.body, obs)
    mean = dense(actor.output.dense, latent)
    log_std = np.clip(dense(actor.output.log_std, latent), -20.0, 2.0)
    u = mean + np.exp(log_std) * noise
    density = -0.5 * noise**2 - log_std - 0.5 * np.log(2 * np.pi)
    return np.tanh(u), (density - np.log(1.0 - np.tanh(u) ** 2)).sum(-1)


def test_numbers():
    _, before, sampled, after, report = setting("NUMBERS")
    data, alpha = as64(sampled.data), np.exp(-0.5)
    next_noise, now_noise = noises()
    total, factor, last = returns(data, GAMMA)
    follows = data.next_obs[np.arange(N), last]
    action, log_prob = drawn(before.actor, follows, next_noise)
    y = total + factor * (critic_values(before.target, follows, action).min(0) - alpha * log_prob)
    error = critic_values(before.critic, data.obs[:, 0], unit(data.action[:, 0])) - y
    weight = np.asarray(importance(sampled.weight, 0.5))
    metrics = report.metrics
    assert float(metrics["train/critic_loss"]) == pytest.approx(
        (0.5 * (error**2).sum(0) * weight).mean(), rel=1e-4
    )
    np.testing.assert_allclose(report.priority, np.abs(error).mean(0), rtol=1e-4, atol=1e-5)

    # The actor is judged by critics that have learned; its own weights are those before the step.
    action, log_prob = drawn(before.actor, data.obs[:, 0], now_noise)
    least = critic_values(after.critic, data.obs[:, 0], action).min(0)
    wanted = (alpha * log_prob - least).mean()
    assert float(metrics["train/actor_loss"]) == pytest.approx(wanted, rel=1e-4, abs=1e-4)
    assert float(metrics["train/entropy"]) == pytest.approx(-log_prob.mean(), rel=1e-4)
    slope = -(log_prob.mean() + -2.0)  # of -log α (log π + goal), the goal being minus the actions
    assert float(metrics["train/ent_coef_loss"]) == pytest.approx(-0.5 * slope, rel=1e-4)
    assert float(after.log_ent_coef) == pytest.approx(-0.5 + float(adam(slope, RATE, 1e-8)), rel=1e-4)
    assert float(metrics["train/ent_coef"]) == pytest.approx(alpha, rel=1e-5)


def choice_table(critics: Any, obs: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    """[C, N, D, W]."""
    shape = (len(obs), len(sizes), max(sizes))
    return np.stack([dense(q.output, mlp(q.body, obs)).reshape(shape) for q in critics.each])


def soft(
    actor: Any, q: np.ndarray, obs: np.ndarray, legal: Any, sizes: tuple[int, ...], alpha: float
) -> tuple[np.ndarray, np.ndarray]:
    """E[min Q - α log π] and the entropy of every row, means over branches, option by option."""
    logits = dense(actor.output.dense, mlp(actor.body, obs)).reshape(len(obs), len(sizes), -1)
    value, entropy, starts = np.zeros(len(obs)), np.zeros(len(obs)), np.cumsum([0, *sizes[:-1]])
    for i, d in np.ndindex(len(obs), len(sizes)):
        allowed = [o for o in range(sizes[d]) if legal is None or legal[i, starts[d] + o]]
        p = np.exp(logits[i, d, allowed] - logits[i, d, allowed].max())
        p /= p.sum()
        value[i] += (p * (q[:, i, d, allowed].min(0) - alpha * np.log(p))).sum() / len(sizes)
        entropy[i] -= (p * np.log(p)).sum() / len(sizes)
    return value, entropy


@pytest.mark.parametrize("name", ["CHOICE", "MASKED"])
def test_choices(name):
    algo, before, sampled, after, report = setting(name)
    data, alpha, sizes = as64(sampled.data), np.exp(-0.5), (4,) if name == "CHOICE" else (2, 4, 3)
    total, factor, last = returns(data, GAMMA)
    rows = np.arange(N)
    follows = data.next_obs[rows, last]
    ahead = None if data.next_legal is None else data.next_legal[rows, last]
    value, _ = soft(before.actor, choice_table(before.target, follows, sizes), follows, ahead, sizes, alpha)
    y = total + factor * value
    obs, taken = data.obs[:, 0], data.action[:, 0].reshape(1, N, -1, 1)
    q = np.take_along_axis(choice_table(before.critic, obs, sizes), taken.repeat(2, 0), -1)[..., 0]
    error = q - y[:, None]
    weight = np.asarray(importance(sampled.weight, 0.5))
    metrics = report.metrics
    wanted = (0.5 * (error**2).mean(-1).sum(0) * weight).mean()
    assert float(metrics["train/critic_loss"]) == pytest.approx(wanted, rel=1e-4)
    np.testing.assert_allclose(report.priority, np.abs(error).mean((0, 2)), rtol=1e-4, atol=1e-5)

    now = None if data.legal is None else data.legal[:, 0]
    value, entropy = soft(before.actor, choice_table(after.critic, obs, sizes), obs, now, sizes, alpha)
    assert float(metrics["train/actor_loss"]) == pytest.approx(-value.mean(), rel=1e-4, abs=1e-4)
    assert float(metrics["train/entropy"]) == pytest.approx(entropy.mean(), rel=1e-4)
    # Of what is masked only the legal options count: more entropy than theirs cannot be had.
    starts = np.cumsum([0, *sizes])
    free = [[n] * N if now is None else now[:, a : a + n].sum(1) for a, n in zip(starts, sizes, strict=False)]
    goal = 0.89 * np.mean(np.log(np.maximum(free, 1)))
    slope = entropy.mean() - goal
    assert float(after.log_ent_coef) == pytest.approx(-0.5 + float(adam(slope, RATE, 1e-8)), rel=1e-4)
    assert algo.check() == []


def test_the_gradients_are_those_of_the_losses():
    """By finite differences of float64 losses, in a few weights of critic and actor."""
    algo, before, sampled, after, _ = setting("NUMBERS", prioritized=False, learning_rate=1e-4)
    data, alpha = as64(sampled.data), np.exp(-0.5)
    next_noise, now_noise = noises()
    total, factor, last = returns(data, GAMMA)
    follows = data.next_obs[np.arange(N), last]
    action, log_prob = drawn(before.actor, follows, next_noise)
    y = total + factor * (critic_values(before.target, follows, action).min(0) - alpha * log_prob)

    def critic_loss(critic: Any) -> float:
        error = critic_values(critic, data.obs[:, 0], unit(data.action[:, 0])) - y
        return float((0.5 * (error**2).sum(0)).mean())

    def actor_loss(actor: Any) -> float:
        action, log_prob = drawn(actor, data.obs[:, 0], now_noise)
        return float((alpha * log_prob - critic_values(after.critic, data.obs[:, 0], action).min(0)).mean())

    for part, loss in (("critic", critic_loss), ("actor", actor_loss)):
        leaves, tree = jax.tree.flatten(as64(getattr(before, part)))
        mean = jax.tree.leaves(getattr(after, f"{part}_optimiser").mu)  # 0.1 of the first gradient
        for index, leaf in enumerate(leaves):
            place, step = tuple(0 for _ in leaf.shape), 1e-5
            sides = []
            for sign in (1, -1):
                moved = leaf.copy()
                moved[place] += sign * step
                sides.append(loss(jax.tree.unflatten(tree, [*leaves[:index], moved, *leaves[index + 1 :]])))
            wanted = (sides[0] - sides[1]) / (2 * step)
            assert 10.0 * float(mean[index][place]) == pytest.approx(wanted, rel=2e-3, abs=2e-4)
    assert algo.config.ent_coef is None


def test_the_targets_follow_by_tau_and_wait_for_their_interval():
    algo, before, sampled, after, _ = setting("NUMBERS")
    wanted = jax.tree.map(lambda old, new: 0.995 * old + 0.005 * new, before.target, after.critic)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), after.target, wanted)
    patient = replace(algo, config=replace(algo.config, target_update_interval=2))
    update = quick(patient.update)
    one, _ = update(before, sampled, jax.random.key(5))
    assert differences(one.target, before.target) == []
    two, _ = update(one, sampled, jax.random.key(6))
    assert differences(two.target, before.target) != []


def test_a_fixed_coefficient_stays_and_is_used():
    fixed = setting("CHOICE", ent_coef=0.3)
    assert differences(fixed[3].log_ent_coef, fixed[1].log_ent_coef) == []
    assert float(fixed[4].metrics["train/ent_coef"]) == pytest.approx(0.3)
    assert "train/ent_coef_loss" not in fixed[4].metrics


@pytest.mark.parametrize("name", ["NUMBERS", "MASKED"])
def test_the_first_actions_are_uniform_unless_they_are_to_be_greedy(name):
    algo = learner("sac", SPECS[name], learning_starts=20)
    state, rows = start(algo), 3000
    view = View(jnp.ones((rows, 3)))
    if name == "MASKED":
        view = view._replace(legal=jnp.broadcast_to(jnp.arange(9) % 2 == 0, (rows, 9)))
    act = quick(algo.act)

    def actions(iteration: int, behaviour: Behaviour) -> np.ndarray:
        weights = algo.policy(state._replace(iteration=jnp.int32(iteration)))
        return np.asarray(act(weights, algo.carry(rows), view, behaviour, jax.random.key(1))[0])

    first, later = actions(0, Behaviour()), actions(3, Behaviour())
    greedy = [actions(i, Behaviour(greedy=jnp.ones(rows, bool))) for i in (0, 3)]
    np.testing.assert_array_equal(*greedy)
    assert (greedy[0] == greedy[0][0]).all()
    assert not np.array_equal(first, later)
    if name == "NUMBERS":
        low, high = SPECS[name].action.bounds()
        np.testing.assert_allclose(first.mean(0), (low + high) / 2, atol=0.1)
        np.testing.assert_allclose(first.var(0), (high - low) ** 2 / 12, rtol=0.1)
        assert ((first >= low) & (first <= high)).all()
    else:  # branches of 2, 4 and 3 options, of which 0; 0 and 2; 0 and 2 are legal
        for branch, options in enumerate(([0], [0, 2], [0, 2])):
            share = np.bincount(first[:, branch], minlength=4) / rows
            np.testing.assert_allclose(share, np.isin(np.arange(4), options) / len(options), atol=0.04)


def test_spaces_that_cannot_be_are_refused_and_bins_make_choices():
    with pytest.raises(ConfigError, match="SAC cannot act with bits"):
        learner("sac", ManyBits().spec).check()
    with pytest.raises(SpaceMismatch, match="finite"):
        learner("sac", replace(NUMBERS, action=Box((2,)))).check()
    with pytest.raises(ConfigError, match="at least 1"):
        learner("sac", NUMBERS, n_critics=0).check()
    binned = learner("sac", NUMBERS, action_bins=(3,))
    act = quick(binned.act)
    state = start(binned)
    weights = binned.policy(state._replace(iteration=jnp.int32(9)))
    action, stored, _ = act(
        weights, binned.carry(50), View(jnp.ones((50, 3))), Behaviour(), jax.random.key(0)
    )
    assert set(np.unique(action[:, 0])) <= {-2.0, 0.0, 2.0}
    np.testing.assert_array_equal(action[:, 1], stored.sample[:, 1] / 2.0)


def test_sampled_actions_are_scaled_to_the_bounds_and_learned_from_in_units():
    """What the replay holds is the environment's action; the critics see it in [-1, 1]."""
    algo, before, sampled, _, report = setting("NUMBERS")
    low, high = NUMBERS.action.bounds()
    middle = jnp.broadcast_to(jnp.asarray((low + high) / 2), sampled.data.action.shape)
    other = Batch(sampled.data._replace(action=middle), sampled.index, sampled.weight)
    _, moved = quick(algo.update)(before, other, jax.random.key(5))
    data = as64(other.data)
    q = critic_values(before.critic, data.obs[:, 0], np.zeros((N, 2))).mean(0)
    assert float(moved.metrics["train/q_mean"]) == pytest.approx(q.mean(), rel=1e-4)
    assert float(moved.metrics["train/q_mean"]) != float(report.metrics["train/q_mean"])
