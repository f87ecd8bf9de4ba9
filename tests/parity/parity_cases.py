"""Environments and settings in which two ways of running an agent must agree bit for bit."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from conftest import CHOOSERS, agent, algorithm, differences

from sparring.config import Linear
from sparring.drivers.fused import Fused
from sparring.drivers.host import Host
from sparring.envs.batched import JaxHost, WithTimeLimit
from sparring.envs.classic.cartpole import CartPole
from sparring.envs.probes import DictObservation, Masked, Multiply, MultiplyContinuous
from sparring.spaces import Box

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


RAINBOW = {
    "prioritized": True,
    "priority_beta": Linear(0.4, 1.0),
    "n_steps": 3,
    "double": True,
    "dueling": True,
}
RECURRENT = {"core": "gru", "core_size": 4, "prioritized": True}
CASES |= {
    "rainbow": Case(CartPole(), {**RAINBOW, "normalize_obs": True}, 40),
    "noisy": Case(Masked(), {"exploration": "noisy"}, 4),
    "recurrent": Case(CartPole(), RECURRENT, 40),
    "chosen": Case(CartPole(), {"controller": "thompson", "n_steps": 3, "normalize_obs": True}, 40),
    "lstm": Case(CartPole(), {"core": "lstm", "core_size": 4}, 40),
    "transformer": Case(
        CartPole(), {"core": "transformer", "core_size": 4, "core_heads": 1, "core_window": 8}, 40
    ),
    "s5": Case(CartPole(), {"core": "s5", "core_size": 4}, 40),
    "remembering": Case(MultiplyContinuous(), RECURRENT, 37),
    "drifting": Case(MultiplyContinuous(), {**NORMALISED, "noise": "ou", "frame_stack": 2, "n_steps": 2}, 37),
}
ON_POLICY = ("cartpole", "normalised", "truncating", "stack and gSDE", "masked", "dict")
PAIRS = [("ppo", case) for case in ON_POLICY]
PAIRS += [
    ("a2c", "truncating"),
    ("a2c", "stack and gSDE"),
    ("reinforce", "normalised"),
    ("reinforce", "masked"),
    ("ppo", "recurrent"),
    ("dqn", "rainbow"),
    ("dqn", "noisy"),
    ("dqn", "recurrent"),
    ("pqn", "normalised"),
    ("gdi", "truncating"),
    ("gdi", "recurrent"),
    ("ppo", "chosen"),
    ("dqn", "chosen"),
    ("sac", "masked"),
    ("sac", "stack and gSDE"),
    ("td3", "drifting"),
    ("crossq", "stack and gSDE"),
    ("pqn", "recurrent"),
    *((name, core) for name in ("ppo", "dqn") for core in ("lstm", "transformer", "s5")),
    *((name, "s5") for name in ("gdi", "pqn", "sac")),
    *((name, "remembering") for name in ("sac", "td3", "crossq")),
]

LIKE = {
    ("pqn", "recurrent"),
    ("dqn", "chosen"),
    ("ppo", "dict"),
    ("sac", "masked"),
    *((name, core) for name in ("ppo", "dqn") for core in ("lstm", "transformer")),
    *((name, "s5") for name in ("ppo", "pqn", "sac")),
    *((name, "remembering") for name in ("sac", "td3", "crossq")),
    ("ppo", "stack and gSDE"),
    ("ppo", "chosen"),
    ("a2c", "stack and gSDE"),
    ("reinforce", "normalised"),
    ("dqn", "noisy"),
    ("gdi", "truncating"),
    ("dqn", "recurrent"),
    ("ppo", "masked"),
    ("ppo", "normalised"),
    ("crossq", "stack and gSDE"),
    ("ppo", "cartpole"),
}
"""Pairs whose parts are all in others, too: only `make exhaustive` runs them."""


def make(name: str, case: str) -> tuple[Any, Any]:
    """Agent and environment of a case, with those of its settings that the algorithm has."""
    env, settings, longest = CASES[case]
    wanted = {"learning_rate": 0.01, "max_episode_steps": longest, **settings}
    if name in CHOOSERS and isinstance(env.spec.action, Box):
        wanted["action_bins"] = (3,)
    fields = {f.name for f in dataclasses.fields(algorithm(name).Config)}
    known = {key: value for key, value in wanted.items() if key in fields}
    return agent(name, env, ROWS, 40.0, **known), env


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
