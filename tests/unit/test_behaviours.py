"""What an agent's heads and behaviours are worth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from conftest import agent
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring import actor
from sparring.bandit.space import Coordinate, Space
from sparring.cli.main import main
from sparring.envs import registry
from sparring.envs.classic.cartpole import CartPole
from sparring.errors import ConfigError
from sparring.evaluation import behaviours
from sparring.evaluation.behaviours import Map
from sparring.evaluation.evaluator import evaluate
from sparring.metrics import sqlite
from sparring.runs import directory
from sparring.types import Transition
from sparring.web import gather, report

VALIDATION = (
    "eval/mean_reward",
    "eval/shaped_mean_reward_1",
    "eval/shaped_mean_reward_2",
    "eval/head_1_mean_reward",
    "eval/head_2_mean_reward",
    "eval/bandit_mean_reward",
)
SHAPING = 'shaping=["optimistic","compressive"]'


def test_means_by_cell() -> None:
    space = Space((Coordinate.interval("a", 0, 1, 2), Coordinate.interval("b", 0, 1, 3)))
    found = Map(space, np.array([[0, 0], [0, 2], [1, 2]]), np.array([1.0, 3.0, 5.0]))
    assert found.mean(0).tolist() == [2.0, 5.0]
    np.testing.assert_array_equal(found.mean(1), [1.0, np.nan, 4.0])
    np.testing.assert_array_equal(found.mean(0, 1), [[1.0, np.nan, 3.0], [np.nan, np.nan, 5.0]])
    assert found.as_json() == {"a": [2.0, 5.0], "b": [1.0, None, 4.0]}


@pytest.mark.parametrize(
    ("name", "settings", "acted"),
    [
        ("ppo", {}, ["temperature"]),
        ("dqn", {"n_steps": 3}, ["epsilon"]),
        ("pqn", {}, ["epsilon"]),
        ("gdi", {}, ["inverse_tau_1", "inverse_tau_2", "epsilon"]),
        ("gdi", {"variant": "lbc", "policies": 2}, ["inverse_tau_1", "inverse_tau_2", "omega_1", "omega_2"]),
        ("pqn", {"controller_space": ("q_lambda:0.1:0.9:4",)}, []),
    ],
)
def test_a_map_has_the_coordinates_that_acting_reads(name: str, settings: Any, acted: list[str]) -> None:
    algo = agent(name, CartPole(), 4, controller="thompson", **settings)
    assert [algo.space.names[c] for c in behaviours._acted(algo)] == acted


def test_an_agent_that_acts_the_same_has_no_map() -> None:
    class Known:
        algo = agent("pqn", CartPole(), 4, controller="thompson", controller_space=("q_lambda:0.1:0.9:4",))

    with pytest.raises(ConfigError, match="Only learning reads q_lambda"):
        behaviours.over_indices(Known(), None, 8, 0, 4)


@pytest.mark.slow
def test_a_trained_agents_map(tmp_path: Path, capsys: Any) -> None:
    run = tmp_path / "run"
    tiny = ["net_arch=[8]", "n_envs=4", "train_freq=8", "sequence_length=8", "batch_size=4", "eval_freq=-1"]
    start = ["train", "gdi", "CartPole-v1", "--total-timesteps", "256", "--run-dir", str(run), "--quiet"]
    assert (
        main([*start, "--set", *tiny, "n_eval_episodes=2", "learning_starts=64", "reward_scale=1", SHAPING])
        == 0
    )
    capsys.readouterr()
    known = {name: sqlite.read(run / "metrics.sqlite", name).values[-1] for name in VALIDATION}
    for head, factor in (("1", 2 * np.log(2)), ("2", 2**0.25 - 1 + 0.001)):  # a reward is always 1
        assert known[f"eval/shaped_mean_reward_{head}"] == pytest.approx(known["eval/mean_reward"] * factor)
    assert 8 <= known["eval/bandit_mean_reward"] <= 500
    picture = tmp_path / "map.png"
    assert main(["behaviours", str(run), "--episodes", "32", "-o", str(picture), "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(told["heads"]) == {"1", "2", "1+2"}
    assert {name: len(cells) for name, cells in told["cells"].items()} == {
        "inverse_tau_1": 10,
        "inverse_tau_2": 10,
        "epsilon": 6,
    }
    assert told["episodes"] == 32
    (a, b, c) = (found for found in gather.gather([directory.find(run)]).indices)
    assert (a.names, b.values.shape, c.episodes) == (("inverse_tau_1", "inverse_tau_2"), (10, 6), 32)
    assert np.isfinite(a.values).sum() <= 32
    page = report.write_report([directory.find(run)], tmp_path / "r.html").path.read_text()
    assert page.count("evaluation by index") == 3
    assert picture.read_bytes().startswith(b"\x89PNG")


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=10)
def test_shaped_returns_are_sums_over_whole_episodes(seed: int) -> None:
    steps, rows, window = 12, 2, 3
    rng = np.random.default_rng(seed)
    rewards = rng.normal(size=(2 * steps, rows, 2)).astype(np.float32)
    over = rng.random((2 * steps, rows)) < 0.2
    ended, running = [], np.zeros((rows, 2))
    for t in range(2 * steps):
        running += rewards[t]
        ended += [running[row].copy() for row in np.flatnonzero(over[t])]
        running[over[t]] = 0.0
    episodes = actor.start_episodes(rows, window, heads=2)
    for part in (slice(0, steps), slice(steps, None)):  # an episode may cross the border of rollouts
        rollout = Transition(
            None, None, rewards[part, :, 0], over[part], np.zeros_like(over[part]), None, None
        )
        episodes = actor.count_episodes(episodes, rollout, rewards[part])
    told = [float(x) for x in actor.shaped_means(episodes).values()]
    expected = np.mean(ended[-window:], axis=0) if ended else np.zeros(2)
    np.testing.assert_allclose(told, expected, atol=1e-5)
    np.testing.assert_allclose(np.asarray(episodes.shaped.total), running, atol=1e-5)


def test_shaped_returns_of_a_host_environment() -> None:
    algo = agent("gdi", CartPole(), 2, reward_scale=1.0, shaping=("none", "log"))
    env = registry.host(registry.make("CartPole-v1", n_envs=2), 2)
    found = evaluate(algo, algo.policy(algo.init(jax.random.key(0))), env, 5, 0)
    np.testing.assert_allclose(found.shaped[:, 0], found.returns)
    np.testing.assert_allclose(found.shaped[:, 1], found.returns * np.log(2), rtol=1e-5)
