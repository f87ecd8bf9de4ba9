"""Every setting does something: each field has a value that changes what training computes."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import ALGORITHMS, agent, algorithm, quick, train

from sparring.config import Schedulable
from sparring.envs.api import Outcome
from sparring.envs.batched import WithTimeLimit
from sparring.envs.probes import Drift, MultiplyContinuous
from sparring.spaces import Box, Discrete, EnvSpec
from sparring.types import Action, Key, Obs

DRIFT = WithTimeLimit(MultiplyContinuous(), 5)
"""Continuous actions, and episodes that end within a rollout."""


@dataclass(frozen=True)
class Pixels:
    """A grey image whose brightness is the reward for action 1."""

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("pixels", Box((36, 36), 0, 255, "uint8"), Discrete(2), time_limit=3)

    def reset(self, key: Key) -> Any:
        return jax.random.uniform(key)

    def observe(self, state: Any) -> Obs:
        shade = state * jnp.linspace(100.0, 255.0, 36 * 36).reshape(36, 36)
        return shade.astype(jnp.uint8)

    def step(self, state: Any, action: Action, key: Key) -> tuple[Any, Outcome]:
        no = jnp.zeros((), bool)
        return jax.random.uniform(key), Outcome(jnp.where(action == 1, state, 0.0), no, no)


class Trial(NamedTuple):
    """A value other than the base's, where it matters: environment and settings on top of the base."""

    value: Any
    given: Mapping[str, Any] = MappingProxyType({})
    env: Any = DRIFT


BASE: dict[str, dict[str, Any]] = {
    "ppo": {"normalize_obs": True, "normalize_reward": True, "clip_range_vf": 10.0, "target_kl": 10.0},
    "a2c": {"normalize_obs": True, "normalize_reward": True},
    "reinforce": {"normalize_obs": True, "normalize_reward": True, "max_episode_steps": 5},
}
POLICY = {
    "network": Trial("mlp", env=Pixels()),
    "pi": Trial((6,)),
    "vf": Trial((6,)),
    "activation": Trial("relu"),
    "ortho_init": Trial(False),
    "share_features": Trial(False, env=Pixels()),
    "log_std_init": Trial(-1.0),
    "log_std": Trial("state"),
    "squash": Trial(True),
    "use_sde": Trial(True),
    "sde_sample_freq": Trial(3, {"use_sde": True}),
    "action_bins": Trial((3,)),
    "action_grid": Trial("joint", {"action_bins": (3,)}),
    "frame_stack": Trial(2),
    "normalize_obs": Trial(False),
    "normalize_reward": Trial(False),
    "clip_obs": Trial(0.1),
    "clip_reward": Trial(0.1),
    "reward_scale": Trial(0.5, {"normalize_reward": False}),
}
SHARED = {
    "learning_rate": Trial(1e-2),
    "n_steps": Trial(6),
    "gamma": Trial(0.5),
    "ent_coef": Trial(0.1),
    "vf_coef": Trial(0.1),
    "max_grad_norm": Trial(1e-3),
}
OWN = {
    "ppo": {
        "batch_size": Trial(4),
        "n_epochs": Trial(3),
        "gae_lambda": Trial(0.5),
        "clip_range": Trial(1e-6),
        "clip_range_vf": Trial(1e-6),
        "normalize_advantage": Trial("batch"),
        "target_kl": Trial(-1.0),
        "adam_eps": Trial(0.1),
    },
    "a2c": {
        "gae_lambda": Trial(0.5),
        "rms_prop_eps": Trial(0.1),
        "use_rms_prop": Trial(False),
        "normalize_advantage": Trial(True),
    },
    "reinforce": {
        "baseline": Trial(False),
        "normalize_advantage": Trial(False),
        "adam_eps": Trial(0.1),
        "max_episode_steps": Trial(3),
    },
}
TABLE = {name: {**POLICY, **SHARED, **OWN[name]} for name in ALGORITHMS}


def traced(name: str, field: str) -> bool:
    """Whether a change of the field's value needs no new program."""
    hint = typing.get_type_hints(algorithm(name).Config)[field]
    return hint in (Schedulable, Schedulable | None)


def pair(name: str, field: str) -> tuple[Any, Any, Any]:
    """Environment, the agent as it is, and the agent with the other value."""
    trial = TABLE[name][field]
    settings = {**BASE[name], **trial.given}
    with_it = {**settings, field: trial.value}
    return trial.env, agent(name, trial.env, 2, **settings), agent(name, trial.env, 2, **with_it)


@partial(quick, static_argnums=0)
def outcome(env: Any, algo: Any, key: Any) -> Any:
    """The parameters after two iterations."""
    return jax.tree.leaves(train(algo, env, key).learner.train.nets)


@cache
def program(env: Any, algo: Any) -> str:
    """The program of two iterations, without compiling it."""
    return str(jax.make_jaxpr(partial(train, env=env))(algo, key=jax.random.key(0)))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_table_lists_every_field(name):
    assert set(TABLE[name]) == {f.name for f in dataclasses.fields(algorithm(name).Config)}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_value_in_the_table_differs_from_the_one_it_replaces(name):
    for field, trial in TABLE[name].items():
        assert trial.value != getattr(pair(name, field)[1].config, field), field


def test_tracing_the_same_program_twice_gives_the_same_text():
    env, algo, _ = pair("ppo", "pi")
    first = program(env, algo)
    program.cache_clear()
    assert program(env, algo) == first


FIELDS = [(name, field) for name in ALGORITHMS for field in TABLE[name]]
NUMBERS = [(n, f) for n, f in FIELDS if traced(n, f)]
CHOICES = [(n, f) for n, f in FIELDS if not traced(n, f)]


def fast(cases: list[tuple[str, str]]) -> list[Any]:
    """Only PPO's are quick enough for every run; the scale of rewards needs a program of its own."""
    slow = [case for case in cases if case[0] != "ppo" or case[1] == "reward_scale"]
    return [pytest.param(*case, marks=pytest.mark.slow) if case in slow else case for case in cases]


@pytest.mark.parametrize(("name", "field"), fast(NUMBERS))
def test_every_number_changes_what_is_learned(name, field):
    differs(name, field)


@pytest.mark.parametrize(("name", "field"), fast(CHOICES))
def test_every_choice_changes_the_program(name, field):
    env, one, other = pair(name, field)
    assert program(env, one) != program(env, other)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "field"), [c for c in CHOICES if c[0] == "ppo" or c[1] in OWN[c[0]]])
def test_every_choice_changes_what_is_learned(name, field):
    differs(name, field)


def differs(name: str, field: str) -> None:
    env, one, other = pair(name, field)
    key = jax.random.key(0)
    before, after = outcome(env, one, key), outcome(env, other, key)
    assert all(np.isfinite(x).all() for x in (*before, *after))
    assert [x.shape for x in before] != [x.shape for x in after] or any(
        not np.array_equal(a, b) for a, b in zip(before, after, strict=True)
    )


def test_the_drift_ends_within_a_rollout():
    assert DRIFT.spec.time_limit == 5
    assert isinstance(DRIFT.reset(jax.random.key(0)), Drift)
