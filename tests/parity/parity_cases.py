"""Environments and settings in which two ways of running an agent must agree bit for bit."""

from __future__ import annotations

from typing import Any, NamedTuple

from conftest import agent, differences

from sparring.config import Linear
from sparring.drivers.fused import Fused
from sparring.drivers.host import Host
from sparring.envs.batched import JaxHost, WithTimeLimit
from sparring.envs.classic.cartpole import CartPole
from sparring.envs.probes import DictObservation, Masked, Multiply, MultiplyContinuous

ROWS = 3


class Case(NamedTuple):
    """An environment, settings that make it hard, and the longest episode that REINFORCE keeps."""

    env: Any
    settings: dict[str, Any]
    longest: int


NORMALISED = {"normalize_obs": True, "normalize_reward": True}
CASES = {
    "cartpole": Case(CartPole(), {}, 40),
    "normalised": Case(Multiply(), NORMALISED, 37),
    "truncating": Case(WithTimeLimit(CartPole(), 7), {"normalize_reward": True}, 7),
    "stack and gSDE": Case(
        MultiplyContinuous(), {"frame_stack": 3, "use_sde": True, "sde_sample_freq": 3}, 37
    ),
    "masked": Case(Masked(), {}, 4),
    "dict": Case(DictObservation(), {"normalize_obs": True}, 1),
    "everything": Case(
        MultiplyContinuous(),
        {
            **NORMALISED,
            "frame_stack": 2,
            "use_sde": True,
            "sde_sample_freq": 3,
            "learning_rate": Linear(0.01),
        },
        37,
    ),
}


def make(name: str, case: str) -> tuple[Any, Any]:
    """Agent and environment of a case."""
    env, settings, longest = CASES[case]
    extra = {"max_episode_steps": longest} if name == "reinforce" else {}
    return agent(name, env, ROWS, 40.0, **{"learning_rate": 0.01, **settings, **extra}), env


def fused(name: str, case: str, seeds: tuple[int, ...] = (0,), unroll: int = 1) -> Fused:
    algo, env = make(name, case)
    return Fused(algo, env, ROWS, seeds, window=10, unroll=unroll)


def host(name: str, case: str, seed: int = 0) -> Host:
    algo, env = make(name, case)
    return Host(algo, JaxHost(env, ROWS), seed, window=10)


def unequal(one: Any, other: Any) -> list[str]:
    """Leaves of learner, actor or environment in which two drivers' states differ."""
    return [
        f"{part}{path}"
        for part in ("learner", "actor", "env")
        for path in differences(getattr(one, part), getattr(other, part))
    ]
