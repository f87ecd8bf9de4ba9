"""The probe environments have the answers that their docstrings give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparring.envs import registry

ROWS, STEPS = 16, 60


def right(env_id: str, obs: Any) -> np.ndarray:
    """The right action in every row."""
    match env_id:
        case "probe/action-reward":
            return np.ones(ROWS, np.int32)
        case "probe/action-reward-continuous":
            return np.full((ROWS, 1), 0.5, np.float32)
        case "probe/observed-action":
            return (obs[:, 0] > 0).astype(np.int32)
        case "probe/observed-action-continuous":
            return (0.5 * obs).astype(np.float32)
        case "probe/masked":
            return ((obs.argmax(1) + 1) % 4).astype(np.int32)
        case "probe/multidiscrete":
            return np.where(obs > 0, np.array([1, 2, 3]), 0).astype(np.int32)
        case "probe/multibinary":
            return (obs > 0).astype(np.int32)
        case "probe/dict":
            return ((obs["sign"][:, 0] > 0) ^ (obs["switch"] == 1)).astype(np.int32)
    raise KeyError(env_id)


DECIDED = [
    "probe/action-reward",
    "probe/action-reward-continuous",
    "probe/observed-action",
    "probe/observed-action-continuous",
    "probe/masked",
    "probe/multidiscrete",
    "probe/multibinary",
    "probe/dict",
]


@pytest.mark.parametrize("env_id", DECIDED)
def test_the_right_policy_reaches_the_threshold(env_id: str) -> None:
    host = registry.host(registry.make(env_id), ROWS)
    obs, returns, finished = host.reset(0).obs, np.zeros(ROWS), []
    for _ in range(STEPS):
        step = host.step(right(env_id, obs))
        returns += step.reward
        ended = step.terminated | step.truncated
        finished += returns[ended].tolist()
        returns[ended] = 0
        obs = step.obs
    assert finished
    np.testing.assert_allclose(finished, host.spec.reward_threshold, atol=1e-6)


@pytest.mark.parametrize("env_id", DECIDED)
def test_every_wrong_action_costs(env_id: str) -> None:
    host = registry.host(registry.make(env_id), ROWS)
    obs = host.reset(0).obs
    for _ in range(STEPS):
        best = right(env_id, obs)
        wrong = (
            best - 0.25
            if best.dtype == np.float32
            else (best + 1) % 2
            if host.spec.id != "probe/masked"
            else (best + 3) % 4
        )
        step = host.step(wrong.astype(best.dtype))
        limit = host.spec.reward_threshold if host.spec.id != "probe/masked" else 1.0
        assert (step.reward < limit).all()
        obs = step.obs


def test_an_illegal_action_ends_the_masked_probe() -> None:
    host = registry.host(registry.make("probe/masked"), ROWS)
    first = host.reset(0)
    assert (first.legal.sum(1) == 2).all()
    illegal = (~first.legal).argmax(1).astype(np.int32)
    step = host.step(illegal)
    assert (step.reward == -10).all()
    assert step.terminated.all()


def test_values_do_not_depend_on_the_action() -> None:
    for env_id, value in (
        ("probe/constant-value", lambda _: 1.0),
        ("probe/observed-value", lambda obs: obs[:, 0]),
    ):
        host = registry.host(registry.make(env_id), ROWS)
        obs = host.reset(0).obs
        for t in range(10):
            step = host.step(np.full(ROWS, t % 2, np.int32))
            assert (step.reward == value(obs)).all()
            assert step.terminated.all()
            obs = step.obs


def test_discounting_pays_at_the_second_step() -> None:
    host = registry.host(registry.make("probe/discounting"), 1)
    seen = [(float(host.reset(0).obs[0, 0]), 0.0, False)]
    for _ in range(4):
        step = host.step(np.zeros(1, np.int32))
        seen.append((float(step.obs[0, 0]), float(step.reward[0]), bool(step.terminated[0])))
    assert seen == [(0, 0, False), (1, 0, False), (0, 1, True), (1, 0, False), (0, 1, True)]


def test_truncation_never_terminates() -> None:
    host = registry.host(registry.make("probe/truncation"), 2)
    host.reset(0)
    steps = [host.step(np.zeros(2, np.int32)) for _ in range(20)]
    assert not any(step.terminated.any() for step in steps)
    assert [bool(step.truncated[0]) for step in steps] == [t % 5 == 4 for t in range(20)]


@pytest.mark.parametrize("env_id", ["probe/multiply", "probe/multiply-continuous"])
def test_multiply_ends_in_both_ways(env_id: str) -> None:
    host = registry.host(registry.make(env_id), 64)
    host.reset(0)
    terminated = truncated = 0
    shape = (64, 2) if env_id.endswith("continuous") else (64,)
    generator = np.random.default_rng(0)
    for _ in range(200):
        action = generator.uniform(-1, 1, shape) if len(shape) == 2 else generator.integers(0, 3, shape)
        step = host.step(action.astype(np.float32 if len(shape) == 2 else np.int32))
        terminated += int(step.terminated.sum())
        truncated += int(step.truncated.sum())
    assert terminated > 10
    assert truncated > 10
