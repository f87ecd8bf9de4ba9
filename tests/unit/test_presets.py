"""Presets: RL-Zoo's settings (hyperparams/*.yml, 2026-04), valid here, and its rule for when to stop."""

from __future__ import annotations

import importlib.resources
import tomllib
from pathlib import Path

import pytest
from conftest import ALGORITHMS

from sparring import launch

MUJOCO = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5")
STEPS = {
    "ppo": {
        "CartPole-v1": 100_000,
        "MountainCar-v0": 1_000_000,
        "Acrobot-v1": 1_000_000,
        "LunarLander-v3": 1_000_000,
        "LunarLanderContinuous-v3": 1_000_000,
        "Pendulum-v1": 100_000,
        "MountainCarContinuous-v0": 20_000,
        **dict.fromkeys(MUJOCO[:3], 1_000_000),
        "ALE/Pong-v5": 10_000_000,
        "ALE/Breakout-v5": 10_000_000,
    },
    "a2c": {
        "CartPole-v1": 500_000,
        "MountainCar-v0": 1_000_000,
        "Acrobot-v1": 500_000,
        "LunarLander-v3": 200_000,
        "LunarLanderContinuous-v3": 5_000_000,
        "Pendulum-v1": 1_000_000,
        "MountainCarContinuous-v0": 100_000,
        **dict.fromkeys(MUJOCO, 1_000_000),
        "Humanoid-v5": 2_000_000,
        "Swimmer-v5": 1_000_000,
        "ALE/Pong-v5": 10_000_000,
        "ALE/Breakout-v5": 10_000_000,
    },
    "dqn": {
        "CartPole-v1": 50_000,
        "MountainCar-v0": 120_000,
        "LunarLander-v3": 100_000,
        "Acrobot-v1": 100_000,
        "ALE/Pong-v5": 10_000_000,
        "ALE/Breakout-v5": 10_000_000,
    },
    "sac": {
        "Pendulum-v1": 20_000,
        "LunarLanderContinuous-v3": 500_000,
        "MountainCarContinuous-v0": 50_000,
        "BipedalWalker-v3": 500_000,
        **dict.fromkeys(MUJOCO, 1_000_000),
        "Humanoid-v5": 2_000_000,
        "Swimmer-v5": 1_000_000,
    },
    "td3": {
        "Pendulum-v1": 20_000,
        "LunarLanderContinuous-v3": 300_000,
        "MountainCarContinuous-v0": 300_000,
        **dict.fromkeys(MUJOCO, 1_000_000),
        "Humanoid-v5": 2_000_000,
        "Swimmer-v5": 1_000_000,
    },
    "crossq": {
        "Pendulum-v1": 20_000,
        "LunarLanderContinuous-v3": 200_000,
        "MountainCarContinuous-v0": 50_000,
        "BipedalWalker-v3": 200_000,
        **dict.fromkeys(MUJOCO, 5_000_000),
        "Humanoid-v5": 5_000_000,
        "HumanoidStandup-v5": 5_000_000,
    },
}
"""RL-Zoo stops after so many steps and at nothing else; environments by their present versions."""
TOLD = [(algorithm, env) for algorithm in STEPS for env in STEPS[algorithm]]
LEARN = Path(__file__).parents[2] / "benchmarks" / "learn.toml"


def presets(algorithm: str) -> dict[str, dict[str, object]]:
    file = importlib.resources.files("sparring") / "presets" / f"{algorithm}.toml"
    return tomllib.loads(file.read_text())


@pytest.mark.parametrize(("algorithm", "env"), TOLD, ids=[f"{a}-{e}" for a, e in TOLD])
def test_training_stops_where_rl_zoo_does(algorithm: str, env: str) -> None:
    made = launch.plan(algorithm, env)
    assert made.settings.total_timesteps == STEPS[algorithm][env]
    assert made.settings.stop_reward is None


def test_rows_beside_rl_zoo_keep_its_steps() -> None:
    rows = [row for row in tomllib.loads(LEARN.read_text()).values() if "zoo" in row]
    assert len(rows) >= 14
    for row in rows:
        assert "total_timesteps" not in row.get("set", {}), row
        assert presets(row["algorithm"])[row["env"]]["total_timesteps"] == STEPS[row["algorithm"]][row["env"]]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_preset_is_a_valid_plan(algorithm: str) -> None:
    found = presets(algorithm)
    assert found, "an algorithm without a preset"
    for env in found:
        made = launch.plan(algorithm, env)
        assert made.settings.total_timesteps > 0
        assert launch.plan(algorithm, env, use_preset=False).config != made.config or len(found[env]) <= 2


@pytest.mark.parametrize("algorithm", ["dqn", "ppo", "a2c"])
def test_nothing_stands_between_the_images_of_atari_and_the_heads(algorithm: str) -> None:
    images = [env for env in presets(algorithm) if env.startswith("ALE/") and "ram" not in env]
    assert images
    for env in images:
        config = launch.plan(algorithm, env).config
        assert {getattr(config, part) for part in ("net_arch", "pi", "vf") if hasattr(config, part)} == {()}
