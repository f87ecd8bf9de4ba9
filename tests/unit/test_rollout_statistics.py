"""A rollout's statistics are numpy's, with and without places that hold no decision."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from sparring.drivers.statistics import statistics
from sparring.session import relative_entropy
from sparring.spaces import Box, Discrete, EnvSpec, MultiDiscrete
from sparring.types import Transition

T, B = 9, 5
random = np.random.default_rng(0)
NUMBERS = EnvSpec("numbers", Box((3,)), Box((2,), (-2.0, 0.0), (2.0, 1.0)))
CHOICES = EnvSpec("choices", Box((3,)), Discrete(3))


def rollout(action: np.ndarray, mask: np.ndarray | None = None) -> Transition:
    ended = random.random((T, B)) < 0.3
    terminated = ended & (random.random((T, B)) < 0.5)
    made = Transition(
        obs=random.normal(size=(T, B, 3)).astype(np.float32),
        action=action,
        reward=np.where(random.random((T, B)) < 0.5, 0.0, random.normal(size=(T, B))).astype(np.float32),
        terminated=terminated,
        truncated=ended & ~terminated,
        next_obs=np.zeros((T, B, 3), np.float32),
        extras=None,
        mask=mask,
    )
    return jax.tree.map(jax.numpy.asarray, made)


def test_of_numbers():
    action = np.clip(random.normal(0.5, 1.5, (T, B, 2)), [-2, 0], [2, 1]).astype(np.float32)
    made = rollout(action)
    got = statistics(NUMBERS, made)
    edge = np.array([0.04, 0.01])
    at_edge = (action <= np.array([-2, 0]) + edge) | (action >= np.array([2, 1]) - edge)
    reward, obs = np.asarray(made.reward), np.asarray(made.obs).reshape(-1, 3)
    wanted = {
        "stats/action_saturation": at_edge.mean(),
        "stats/reward_mean": reward.mean(),
        "stats/reward_std": reward.std(),
        "stats/reward_nonzero": (reward != 0).mean(),
        "stats/terminated_share": made.terminated.sum() / (made.terminated | made.truncated).sum(),
        "stats/obs_std_min": obs.std(0).min(),
        "stats/obs_std_max": obs.std(0).max(),
        "stats/obs_abs_max": np.abs(obs).max(),
    }
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        assert float(got[name]) == pytest.approx(float(value), rel=1e-5), name


def test_places_without_a_decision_do_not_count():
    mask = random.random((T, B)) < 0.6
    made = rollout(random.integers(0, 3, (T, B)).astype(np.int32), mask)
    got = statistics(CHOICES, made)
    counts = np.bincount(np.asarray(made.action)[mask], minlength=3)
    assert float(got["stats/action_top_share"]) == pytest.approx(counts.max() / counts.sum(), rel=1e-6)
    assert float(got["stats/reward_mean"]) == pytest.approx(np.asarray(made.reward)[mask].mean(), rel=1e-5)


def test_a_short_rollout_has_none_and_no_end_is_minus_one():
    made = rollout(np.zeros((T, B), np.int32))
    short = jax.tree.map(lambda x: x[:1], made)
    assert statistics(CHOICES, short) == {}
    none = made._replace(terminated=made.terminated & False, truncated=made.truncated & False)
    assert float(statistics(CHOICES, none)["stats/terminated_share"]) == -1.0


def test_relative_entropy():
    values = {"train/entropy_loss": -np.log(4.0)}
    assert relative_entropy(Discrete(4), values)["stats/entropy_relative"] == pytest.approx(1.0)
    assert relative_entropy(MultiDiscrete((4, 4)), values)["stats/entropy_relative"] == pytest.approx(0.5)
    assert relative_entropy(Box((2,)), values) == {}
    assert relative_entropy(Discrete(4), {}) == {}
