"""A quick seeded reset leads where ale_py's own leads."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
import pytest

from sparring.envs.atari import Cartridge, quicken
from sparring.envs.source import GymId


def pair(game: str, **kwargs: Any) -> tuple[Any, Any]:
    """Two consoles alike, the second with quick resets."""
    plain, quick = (GymId(f"ALE/{game}-v5", kwargs)() for _ in range(2))
    quicken(quick)
    return plain, quick


@pytest.mark.parametrize(
    ("game", "kwargs"),
    [("Pong", {}), ("Breakout", {}), ("Seaquest", {"mode": 0, "difficulty": 1}), ("Pong", {"mode": 1})],
)
def test_episodes_are_those_of_the_same_seed(game: str, kwargs: dict[str, Any]) -> None:
    plain, quick = pair(game, obs_type="ram", **kwargs)
    for seed in (3, 4, 2**31 + 5, 3):
        draw = np.random.default_rng(seed)
        first, second = plain.reset(seed=seed)[0], quick.reset(seed=seed)[0]
        assert first.tobytes() == second.tobytes()
        for _ in range(200):
            action = int(draw.integers(plain.action_space.n))
            ours, theirs = quick.step(action), plain.step(action)
            assert ours[0].tobytes() == theirs[0].tobytes()
            assert ours[1:4] == theirs[1:4]
        assert quick.unwrapped.ale.getScreenRGB().tobytes() == plain.unwrapped.ale.getScreenRGB().tobytes()


def test_only_the_first_reset_loads_the_cartridge() -> None:
    _, quick = pair("Pong")
    loads: list[int] = []
    cartridge = quick.unwrapped.load_game
    load = cartridge._load
    cartridge._load = lambda: (loads.append(1), load())
    for seed in range(4):
        quick.reset(seed=seed)
    assert len(loads) == 1


def test_a_state_that_is_not_as_expected_is_never_restored() -> None:
    plain, quick = pair("Pong", obs_type="ram")
    cartridge: Cartridge = quick.unwrapped.load_game
    plain.reset(seed=8)
    cartridge._keep(b"of another version", 8)
    assert cartridge._loaded is None
    quick.reset(seed=9)
    assert quick.reset(seed=8)[0].tobytes() == plain.reset(seed=8)[0].tobytes()


def test_other_environments_are_left_alone() -> None:
    env = gymnasium.make("CartPole-v1")
    before = dict(vars(env.unwrapped))
    quicken(env)
    assert vars(env.unwrapped).keys() == before.keys()


def test_it_is_quicker() -> None:
    plain, quick = pair("Pong")
    took = []
    for env in (plain, quick):
        env.reset(seed=0)
        began = time.process_time()
        for seed in range(3):
            env.reset(seed=seed)
        took.append(time.process_time() - began)
    assert took[1] < took[0] / 3
