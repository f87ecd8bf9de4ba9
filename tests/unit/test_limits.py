"""Settings out of bounds are refused, schedules included; settings that nothing reads are told."""

from __future__ import annotations

import importlib.resources
import tomllib
from dataclasses import fields, replace
from typing import Any

import pytest
from conftest import ALGORITHMS
from conftest import algorithm as algorithm_class

from sparring import TD3, launch
from sparring.algos import gdi
from sparring.common.noise import NormalActionNoise
from sparring.config import Linear, Piecewise, from_mapping
from sparring.envs.classic.cartpole import CartPole
from sparring.envs.classic.pendulum import Pendulum
from sparring.errors import ConfigError
from sparring.limits import RANGES, READERS, SEQUENCES, Reader, check_ranges, given
from sparring.replay import offpolicy

CONTINUOUS = ("sac", "td3", "crossq")


def check(name: str, **values: Any) -> list[str]:
    """What the algorithm says of its settings."""
    env: Any = Pendulum() if name in CONTINUOUS else CartPole()
    kind = algorithm_class(name)
    return kind(replace(env.spec, rows=4), from_mapping(kind.Config, values)).check()


@pytest.mark.parametrize("value", [
    -1.0,
    Linear(1e-3, -1.0, 1.0),
    Linear(-1.0, 1e-3, 1.0),
    Piecewise((0.0, 0.5, 1.0), (1e-3, -1.0, 0.0)),
    float("nan"),
])  # fmt: skip
@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_algorithm_takes_a_learning_rate_below_zero(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=r"learning_rate must be at least 0, got"):
        check_ranges(algorithm_class(name).Config(learning_rate=value))
    with pytest.raises(ConfigError, match="learning_rate"):
        check(name, learning_rate=value)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_defaults_are_within_bounds_and_read(name: str) -> None:
    found = check(name, n_steps=8, batch_size=32) if "n_epochs" in known(name) else check(name)
    assert not any("Nothing reads" in warning for warning in found)


def known(name: str) -> set[str]:
    return {field.name for field in fields(algorithm_class(name).Config)}


def test_lists_are_looked_into() -> None:
    with pytest.raises(ConfigError, match=r"net_arch must hold numbers, each whole and at least 1, got"):
        check("dqn", net_arch=[64, 0])


def test_no_bound_and_no_reader_is_of_a_setting_that_nobody_has() -> None:
    every = set().union(*(known(name) for name in ALGORITHMS))
    assert set(RANGES) <= every
    for reader in (*READERS, *offpolicy.OWN_READERS, *gdi.OWN_READERS):
        assert set(reader.names) <= every


@pytest.mark.parametrize(("name", "values", "needed"), [
    ("ppo", {"core_size": 7}, "a core"),
    ("a2c", {"core_heads": 3, "core": "gru"}, "core='transformer'"),
    ("reinforce", {"clip_obs": 3.0}, "normalize_obs=True"),
    ("pqn", {"core_layers": 2}, "a core"),
    ("dqn", {"priority_alpha": 0.3}, "prioritized=True"),
    ("dqn", {"prioritized": True, "priority_eta": 0.3}, "prioritized=True and a core"),
    ("dqn", {"exploration": "noisy", "exploration_final_eps": 0.3}, "exploration='epsilon'"),
    ("dqn", {"burn_in": 3}, "a core"),
    ("sac", {"log_std_init": -1.0}, "use_sde=True"),
    ("sac", {"ent_coef": 0.1, "target_entropy": -1.0}, "ent_coef='auto'"),
    ("td3", {"noise_theta": 0.3}, "noise='ou'"),
    ("crossq", {"sde_sample_freq": 4}, "use_sde=True"),
    ("pqn", {"sequence_length": 8}, "a core"),
    ("ppo", {"sequence_length": 8}, "a core"),
    ("gdi", {"priority_beta": 0.2}, "prioritized=True"),
    ("gdi", {"gradient_steps": 3, "sample_reuse": 9.0}, "gradient_steps=-1"),
    ("gdi", {"controller": "none", "index_cells": 3}, "a controller"),
])  # fmt: skip
def test_a_setting_that_nothing_reads_is_told(name: str, values: dict[str, Any], needed: str) -> None:
    told = [warning for warning in check(name, **values) if "Nothing reads" in warning]
    assert len(told) == 1, told
    assert needed in told[0]


def test_what_a_controller_takes_the_place_of_is_told() -> None:
    (told,) = check("pqn", controller="thompson", exploration_fraction=0.3)
    assert told == "The controller chooses epsilon in the place of exploration_fraction=0.3."
    values = {"controller": "thompson", "controller_space": ["q_lambda:0.1:0.9:4"]}
    assert check("pqn", exploration_fraction=0.3, **values) == []


def test_a_factor_on_no_noise_is_told() -> None:
    assert check("td3", controller="thompson") == []
    (told,) = check("td3", controller="thompson", noise="none")
    assert "there is none: set noise='normal'" in told


def test_arguments_of_an_environment_are_a_table() -> None:
    with pytest.raises(ConfigError, match="env_kwargs must be a table of the environment's arguments, got"):
        launch.plan("gdi", "Pendulum-v1", values={"env_kwargs": "{g=9.0}"})


def test_more_steps_of_reward_than_a_sequence_has_are_told() -> None:
    assert check("dqn", core="gru", sequence_length=3, n_steps=3) == []
    (told,) = check("dqn", core="gru", sequence_length=3, n_steps=50)
    assert "n_steps=50 is above sequence_length=3" in told


def test_what_is_read_is_not_told() -> None:
    values = {"core": "transformer", "core_size": 8, "core_heads": 2, "core_window": 4, "burn_in": 2}
    assert check("dqn", prioritized=True, priority_alpha=0.3, priority_eta=0.3, **values) == []


@pytest.mark.parametrize("name", ALGORITHMS)
def test_presets_have_nothing_that_nobody_reads(name: str) -> None:
    found = tomllib.loads((importlib.resources.files("sparring") / "presets" / f"{name}.toml").read_text())
    assert found
    for env in found:
        config = launch.plan(name, env).config
        for reader in readers(name):
            if told := given(config, reader.names):
                assert reader.reads(config), (env, told)


def readers(name: str) -> tuple[Reader, ...]:
    if name in ("dqn", *CONTINUOUS):
        return (*READERS, *offpolicy.OWN_READERS)
    return (*READERS, *gdi.OWN_READERS) if name == "gdi" else (*READERS, SEQUENCES)


def test_sb3s_words_are_understood_wherever_settings_are_given() -> None:
    values = {"train_freq": [2, "step"], "ent_coef": "auto_0.2", "target_entropy": "auto"}
    config = launch.plan("sac", "Pendulum-v1", values=values).config
    assert (config.train_freq, config.ent_coef, config.ent_coef_init) == (2, None, 0.2)
    with pytest.raises(ConfigError, match="not episodes"):
        launch.plan("td3", "Pendulum-v1", values={"train_freq": [1, "episode"]})
    with pytest.raises(ConfigError, match=r"noise=normal with noise_std=0\.1"):
        launch.plan("td3", "Pendulum-v1", values={"action_noise": 0.1})
    model = TD3("MlpPolicy", "Pendulum-v1", run_dir=False)
    assert model.config.noise == "none"
    model.action_noise = NormalActionNoise([0.0], [0.3])
    assert (model.config.noise, model.config.noise_std) == ("normal", (0.3,))
    model.action_noise = None
    assert model.config.noise == "none"
