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
from conftest import ACTOR_CRITICS, ALGORITHMS, EVERY_TIME, STEERERS, agent, algorithm, quick, train
from jax.interpreters.partial_eval import dce_jaxpr

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


@dataclass(frozen=True)
class PixelsContinuous(Pixels):
    """The same picture for actions that are numbers."""

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("pixels", Box((36, 36), 0, 255, "uint8"), Box((1,), -1.0, 1.0), time_limit=3)

    def step(self, state: Any, action: Action, key: Key) -> tuple[Any, Outcome]:
        no = jnp.zeros((), bool)
        return jax.random.uniform(key), Outcome(state * action[0], no, no)


class Trial(NamedTuple):
    """A value other than the base's, where it matters: environment and settings on top of the base."""

    value: Any
    given: Mapping[str, Any] = MappingProxyType({})
    env: Any = DRIFT


NORMALISED = {"normalize_obs": True, "normalize_reward": True}
BASE: dict[str, dict[str, Any]] = {
    "ppo": {**NORMALISED, "clip_range_vf": 10.0, "target_kl": 10.0},
    "a2c": NORMALISED,
    "reinforce": {**NORMALISED, "max_episode_steps": 5},
    "dqn": {**NORMALISED, "action_bins": (5,), "learning_starts": 4, "gradient_steps": 8},
    "pqn": {**NORMALISED, "action_bins": (5,)},
    "gdi": {
        **NORMALISED,
        "action_bins": (5,),
        "learning_starts": 4,
        "gradient_steps": 8,
        "warmup": 1,
        "learning_rate": 1e-3,
        "weight_decay": 0.01,
    },
    "sac": {**NORMALISED, "learning_starts": 4, "gradient_steps": 8, "ent_coef": None},
    "td3": {**NORMALISED, "learning_starts": 4, "gradient_steps": 8},
    "crossq": {**NORMALISED, "learning_starts": 4, "gradient_steps": 8},
}
GRU = {"core": "gru", "core_size": 4}
GATED = {"core": "transformer", "core_size": 4, "core_heads": 1, "core_window": 8}
SIGHT = {
    "network": Trial("mlp", env=Pixels()),
    "core": Trial("gru", {"core_size": 4}),
    "core_size": Trial(6, GRU),
    "core_layers": Trial(2, GRU),
    "core_heads": Trial(2, GATED),
    "core_window": Trial(3, GATED),
    "frame_stack": Trial(2),
    "frame_differences": Trial(True, {"frame_stack": 2}),
    "fourier": Trial(1),
    "normalize_obs": Trial(False),
    "normalize_reward": Trial(False),
    "clip_obs": Trial(0.1),
    "clip_reward": Trial(0.1),
    "reward_scale": Trial(0.5, {"normalize_reward": False}),
    "learning_rate": Trial(1e-2),
    "gamma": Trial(0.5),
}
BINS = {"action_bins": Trial((3,)), "action_grid": Trial("joint", {"action_bins": (3,)})}
EXPLORE = {
    "use_sde": Trial(True),
    "sde_sample_freq": Trial(3, {"use_sde": True}),
    "log_std_init": Trial(-1.0, {"use_sde": True}),
}
NOISE = {
    "noise": Trial("ou"),
    "noise_std": Trial(0.5, {"noise": "normal"}),
    "noise_mean": Trial((0.5,), {"noise": "normal"}),
    "noise_theta": Trial(10.0, {"noise": "ou"}),
    "noise_dt": Trial(0.5, {"noise": "ou"}),
}
POLICY = {
    **SIGHT,
    **BINS,
    **EXPLORE,
    "pi": Trial((6,)),
    "vf": Trial((6,)),
    "activation": Trial("relu"),
    "ortho_init": Trial(False),
    "share_features": Trial(False, env=Pixels()),
    "log_std": Trial("state"),
    "squash": Trial(True),
    "n_steps": Trial(6),
    "ent_coef": Trial(0.1),
    "vf_coef": Trial(0.1),
    "max_grad_norm": Trial(1e-3),
}
PRIORITISED = {"prioritized": True}
RECURRENT = {**PRIORITISED, **GRU}
REPLAY = {
    **SIGHT,
    "activation": Trial("tanh"),
    "buffer_size": Trial(16),
    "learning_starts": Trial(12),
    "batch_size": Trial(4),
    "train_freq": Trial(3),
    "gradient_steps": Trial(2),
    "n_steps": Trial(2),
    "adam_eps": Trial(0.1),
    "prioritized": Trial(True),
    "priority_alpha": Trial(0.1, PRIORITISED),
    "priority_beta": Trial(1.0, PRIORITISED),
    "priority_initial": Trial("mean", PRIORITISED),
    "priority_eta": Trial(0.1, RECURRENT),
    "sequence_length": Trial(3, GRU),
    "sequence_stride": Trial(1, GRU),
    "burn_in": Trial(1, GRU),
    "buffer": Trial("host"),
    "buffer_folder": Trial("."),
}
ELSEWHERE = ("buffer", "buffer_folder", "controller_index", "sharpness_range")
"""What only a driver outside JAX looks at: tests/parity/test_host_replay.py; and constants, which a program's
text does not show: test_controllers.py."""
EPSILON = {
    "exploration_fraction": Trial(1.0),
    "exploration_initial_eps": Trial(0.5),
    "exploration_final_eps": Trial(0.6),
}
CRITICS = {
    "pi": Trial((6,)),
    "qf": Trial((6,)),
    "n_critics": Trial(3),
}


ONE_TASK = {"controller_scope": "task", "controller_tasks": (0, 0)}
TWO_TASKS = (0, 1)


def chosen(space: str, *index: float) -> dict[str, Trial]:
    """The settings of a bandit that chooses behaviours."""
    fixed = {"controller": "fixed", "controller_index": index, "controller_space": (space,) if index else ()}
    return {
        "controller": Trial("uniform"),
        "controller_space": Trial((space,), {"controller": "uniform"}),
        "controller_scope": Trial("row", {"controller": "thompson"}),
        "controller_tasks": Trial(TWO_TASKS, {"controller": "thompson", **ONE_TASK}),
        "controller_options": Trial(("floor=1",), {"controller": "thompson"}),
        "controller_index": Trial((0.3,), fixed),
    }


OWN: dict[str, dict[str, Trial]] = {
    "ppo": {
        **chosen("temperature:0.5:2:3", 0.7),
        **POLICY,
        "batch_size": Trial(4),
        "n_epochs": Trial(3),
        "gae_lambda": Trial(0.5),
        "clip_range": Trial(1e-6),
        "clip_range_vf": Trial(1e-6),
        "normalize_advantage": Trial("batch"),
        "target_kl": Trial(-1.0),
        "adam_eps": Trial(0.1),
        "sequence_length": Trial(4, GRU),
    },
    "a2c": {
        **POLICY,
        "gae_lambda": Trial(0.5),
        "rms_prop_eps": Trial(0.1),
        "use_rms_prop": Trial(False),
        "normalize_advantage": Trial(True),
    },
    "reinforce": {
        **POLICY,
        "baseline": Trial(False),
        "normalize_advantage": Trial(False),
        "adam_eps": Trial(0.1),
        "max_episode_steps": Trial(3),
    },
    "dqn": {
        **REPLAY,
        **BINS,
        **EPSILON,
        **chosen("epsilon:0.1:0.5:3", 0.7),
        "net_arch": Trial((6,)),
        "tau": Trial(0.5),
        "target_update_interval": Trial(10_000),
        "exploration": Trial("noisy"),
        "max_grad_norm": Trial(1e-3),
        "loss": Trial("mse"),
        "double": Trial(True),
        "dueling": Trial(True),
        "value_rescale": Trial(True),
    },
    "pqn": {
        **SIGHT,
        **chosen("epsilon:0.1:0.5:3", 0.7),
        **BINS,
        **EPSILON,
        "activation": Trial("tanh"),
        "net_arch": Trial((6,)),
        "layer_norm": Trial(False),
        "n_steps": Trial(6),
        "batch_size": Trial(4),
        "n_epochs": Trial(3),
        "q_lambda": Trial(0.1),
        "max_grad_norm": Trial(1e-3),
        "adam_eps": Trial(0.1),
        "sequence_length": Trial(4, GRU),
    },
    "gdi": {
        **SIGHT,
        **BINS,
        "controller": Trial("uniform"),
        "controller_space": Trial(("epsilon:0.1:0.5:3",), {"controller": "uniform"}),
        "controller_scope": Trial("row"),
        "controller_tasks": Trial(TWO_TASKS, ONE_TASK),
        "controller_options": Trial(("floor=1",)),
        "controller_index": Trial(
            (1.0, 2.0, 0.5), {"controller": "fixed", "controller_index": (3.0, 2.0, 0.5)}
        ),
        "variant": Trial("i3"),
        "policies": Trial(3, {"variant": "lbc"}),
        "shaping": Trial(("none",)),
        "gammas": Trial((0.5, 0.9)),
        "activation": Trial("tanh"),
        "net_arch": Trial((6,)),
        "layer_norm": Trial(False),
        "warmup": Trial(100),
        "weight_decay": Trial(10.0),
        "adam_b2": Trial(0.5),
        "adam_eps": Trial(0.1),
        "max_grad_norm": Trial(1e-3),
        "target_temperature": Trial(0.1),
        "rho_bar": Trial(0.1),
        "c_bar": Trial(0.1),
        "v_trace": Trial(0.1),
        "q_trace": Trial(0.1),
        "doubly_robust": Trial(True),
        "v_coef": Trial(0.1),
        "q_coef": Trial(0.1),
        "pi_coef": Trial(0.1),
        "buffer_size": Trial(16),
        "learning_starts": Trial(30),
        "batch_size": Trial(4),
        "sequence_length": Trial(3),
        "sequence_stride": Trial(2),
        "burn_in": Trial(1, GRU),
        "train_freq": Trial(3),
        "gradient_steps": Trial(2),
        "sample_reuse": Trial(16.0, {"gradient_steps": -1}),
        "prioritized": Trial(True),
        "priority_alpha": Trial(0.1, PRIORITISED),
        "priority_beta": Trial(1.0, PRIORITISED),
        "priority_initial": Trial("mean", PRIORITISED),
        "priority_eta": Trial(0.1, PRIORITISED),
        "sharpness_range": Trial((0.0, 5.0)),
        "sharpness_log": Trial(True, {"sharpness_range": (0.5, 50.0)}),
        "record_heads": Trial(True),
        "index_cells": Trial((3, 2)),
    },
    "sac": {
        **REPLAY,
        **chosen("temperature:0.5:2:3", 0.7),
        **BINS,
        **EXPLORE,
        **CRITICS,
        "share_features": Trial(True, {"batch_size": 4}, env=Pixels()),
        "tau": Trial(0.5),
        "ent_coef": Trial(0.5),
        "ent_coef_init": Trial(0.1),
        "target_entropy": Trial(5.0),
        "target_update_interval": Trial(3),
        **NOISE,
    },
    "td3": {
        **REPLAY,
        **chosen("noise:0.5:2:3", 0.7),
        **CRITICS,
        "share_features": Trial(True, {"batch_size": 4}, env=PixelsContinuous()),
        "tau": Trial(0.5),
        "policy_delay": Trial(3),
        "target_policy_noise": Trial(1.0),
        "target_noise_clip": Trial(0.01),
        **NOISE,
    },
    "crossq": {
        **REPLAY,
        **chosen("temperature:0.5:2:3", 0.7),
        **EXPLORE,
        **CRITICS,
        "share_features": Trial(True, {"batch_size": 4}, env=PixelsContinuous()),
        "policy_delay": Trial(1),
        "ent_coef": Trial(0.5),
        "ent_coef_init": Trial(0.1),
        "target_entropy": Trial(5.0),
        **NOISE,
        "adam_b1": Trial(0.9),
        "renorm_momentum": Trial(0.5),
        "renorm_warm_up": Trial(0.0),
    },
}
CHOICE_ENV = {name: {"action_bins": ()} for name in ("dqn", "pqn", "gdi")}
"""On an environment of choices there is nothing to discretise."""
TABLE = OWN


def traced(name: str, field: str) -> bool:
    """Whether a change of the field's value needs no new program."""
    hint = typing.get_type_hints(algorithm(name).Config)[field]
    return hint in (Schedulable, Schedulable | None, Schedulable | tuple[float, ...])


def pair(name: str, field: str) -> tuple[Any, Any, Any]:
    """Environment, the agent as it is, and the agent with the other value."""
    trial = TABLE[name][field]
    env = trial.env
    if isinstance(env, Pixels):
        env = PixelsContinuous() if name in STEERERS else Pixels()
    discrete = isinstance(env.spec.action, Discrete)
    settings = {**BASE[name], **(CHOICE_ENV.get(name, {}) if discrete else {}), **trial.given}
    with_it = {**settings, field: trial.value}
    return env, agent(name, env, 2, **settings), agent(name, env, 2, **with_it)


@partial(quick, static_argnums=0)
def outcome(env: Any, algo: Any, key: Any) -> Any:
    """The parameters after four iterations."""
    state = train(algo, env, key, 4).learner.train
    return jax.tree.leaves(getattr(state, "nets", None) or (state.actor, state.critic))


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


UNLIKE_PPO = {name: set(OWN[name]) - set(POLICY) for name in ACTOR_CRITICS}
FIELDS = [(name, field) for name in ALGORITHMS for field in TABLE[name] if field not in ELSEWHERE]
NUMBERS = [(n, f) for n, f in FIELDS if traced(n, f)]
CHOICES = [(n, f) for n, f in FIELDS if not traced(n, f)]
CHOICES = [c for c in CHOICES if c[0] in (*ACTOR_CRITICS, "dqn") or c[1] not in {**SIGHT, **REPLAY}]
"""What all learners from replay share is looked at once, in DQN."""


def fast(cases: list[tuple[str, str]]) -> list[Any]:
    """Only PPO's are quick enough for every run; the scale of rewards needs a program of its own."""

    def marks(case: tuple[str, str]) -> list[Any]:
        slow = case[0] != "ppo" or case[1] == "reward_scale"
        return [pytest.mark.slow] * slow + [pytest.mark.exhaustive] * (case[0] not in EVERY_TIME)

    return [pytest.param(*case, marks=marks(case)) for case in cases]


@pytest.mark.parametrize(("name", "field"), fast([c for c in NUMBERS if c[0] in ACTOR_CRITICS]))
def test_every_number_changes_what_is_learned(name, field):
    differs(name, field)


@cache
def read(env: Any, tree: Any, numbers: tuple[float, ...]) -> tuple[bool, ...]:
    """Which of an agent's numbers reach the parameters after four iterations."""
    algo = jax.tree.unflatten(tree, [jnp.float32(x) for x in numbers])
    program = jax.make_jaxpr(lambda algo: outcome.__wrapped__(env, algo, jax.random.key(0)))(algo)
    _, used = dce_jaxpr(program.jaxpr, [True] * len(program.jaxpr.outvars))
    return tuple(used)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "field"), [c for c in NUMBERS if c[0] not in ACTOR_CRITICS])
def test_every_number_is_read(name, field):
    env, algo, _ = pair(name, field)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(algo)]
    leaves, tree = jax.tree.flatten(algo)
    used = dict(zip(paths, read(env, tree, tuple(map(float, leaves))), strict=True))
    own = [known for path, known in used.items() if path.startswith(f".config.{field}")]
    if getattr(algo.config, field) is None:  # absent here: the other value makes another program
        assert program(env, algo) != program(env, pair(name, field)[2])
    else:
        assert own == [True]


@pytest.mark.parametrize(("name", "field"), fast(CHOICES))
def test_every_choice_changes_the_program(name, field):
    env, one, other = pair(name, field)
    assert program(env, one) != program(env, other)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "field"),
    [c for c in CHOICES if c[0] == "ppo" or (c[0] in ACTOR_CRITICS and c[1] in UNLIKE_PPO[c[0]])],
)
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
