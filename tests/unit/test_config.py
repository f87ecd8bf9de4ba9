"""Settings: schedules, layers, TOML, clear errors."""

from __future__ import annotations

import dataclasses
import math
import tomllib
import typing
from typing import Any

import jax
import numpy as np
import pytest
from conftest import ALGORITHMS, CHOOSERS, EVERY_TIME, agent, algorithm, train
from hypothesis import given
from hypothesis import strategies as st

from sparring.algos.ppo import PPOConfig
from sparring.config import (
    Cosine,
    Exponential,
    Layer,
    Linear,
    Piecewise,
    Schedulable,
    as_mapping,
    dump_toml,
    from_mapping,
    load_toml,
    merge,
    parse_assignment,
    resolve,
    tabulate,
)
from sparring.envs.probes import Multiply, MultiplyContinuous
from sparring.errors import ConfigError


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (Linear(1.0), [1.0, 0.75, 0.5, 0.0, 0.0]),
        (Linear(1.0, 2.0, 0.5), [1.0, 1.5, 2.0, 2.0, 2.0]),
        (Cosine(2.0, 1.0), [2.0, 1.5 + 0.5 * math.cos(math.pi / 4), 1.5, 1.0, 1.0]),
        (Exponential(1.0, 1e-4), [1.0, 0.1, 0.01, 1e-4, 1e-4]),
        (Piecewise((0.0, 0.5, 1.0), (1.0, 3.0, 0.0)), [1.0, 2.0, 3.0, 0.0, 0.0]),
    ],
    ids=str,
)
def test_schedules_have_their_values_and_stay_at_their_end(schedule, values):
    got = [float(schedule.at(p)) for p in (0.0, 0.25, 0.5, 1.0, 1.7)]
    np.testing.assert_allclose(got, values, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("lin_1e-3", Linear(1e-3)),
        ("linear(1e-3, 1e-4)", Linear(1e-3, 1e-4)),
        ("linear(1e-3, 0, 0.5)", Linear(1e-3, 0, 0.5)),
        ("cosine(0.2)", Cosine(0.2)),
        ("exponential(1e-3, 1e-5)", Exponential(1e-3, 1e-5)),
        ("piecewise((0, 1), (1e-3, 0))", Piecewise((0, 1), (1e-3, 0))),
        ({"schedule": "linear", "start": 0.1, "end": 0.0, "fraction": 1.0}, Linear(0.1)),
        (Cosine(0.3), Cosine(0.3)),
        ("1e-3", 1e-3),
        (1, 1.0),
    ],
    ids=str,
)
def test_a_scalar_may_be_a_number_or_a_schedule_in_any_spelling(text, schedule):
    assert from_mapping(PPOConfig, {"learning_rate": text}).learning_rate == schedule


def test_a_callable_of_the_remaining_progress_becomes_a_table():
    made = from_mapping(PPOConfig, {"clip_range": lambda remaining: 0.2 * remaining**2}).clip_range
    for progress in (0.0, 0.3, 1.0):
        assert float(made.at(progress)) == pytest.approx(0.2 * (1 - progress) ** 2, abs=1e-5)
    assert tabulate(lambda remaining: remaining).at(0.25) == pytest.approx(0.75)


def test_resolve_replaces_schedules_and_keeps_constants():
    config = PPOConfig(learning_rate=Linear(1.0), target_kl=Cosine(4.0), gamma=0.5)
    now = resolve(config, 0.5)
    assert (float(now.learning_rate), float(now.target_kl), now.gamma) == pytest.approx((0.5, 2.0, 0.5))
    constant = PPOConfig()
    assert resolve(constant, 0.5) is constant


def test_schedulable_fields_are_traced_and_the_others_static():
    leaves = jax.tree.leaves(
        PPOConfig(learning_rate=Linear(7.0, 8.0, 9.0), clip_range_vf=None, target_kl=0.25)
    )
    assert {7.0, 8.0, 9.0, 0.25} <= set(leaves)
    assert 2048 not in leaves

    def other(n_steps: int, learning_rate: float) -> Any:
        return jax.tree.structure(PPOConfig(n_steps=n_steps, learning_rate=learning_rate))

    assert other(8, 1e-3) == other(8, 1e-4)
    assert other(8, 1e-3) != other(9, 1e-3)


POSITIVE = st.floats(1e-6, 1e6)
SCHEDULES = (
    POSITIVE
    | st.builds(Linear, POSITIVE, POSITIVE, st.floats(0.1, 1.0))
    | st.builds(Cosine, POSITIVE, POSITIVE)
    | st.builds(Exponential, POSITIVE, POSITIVE)
    | st.lists(POSITIVE, min_size=2, max_size=4).map(
        lambda v: Piecewise(tuple(i / (len(v) - 1) for i in range(len(v))), tuple(v))
    )
)


def strategy(hint: Any) -> st.SearchStrategy[Any]:
    """Values that a field of this type may have."""
    if typing.get_origin(hint) is typing.Literal:
        return st.sampled_from(typing.get_args(hint))
    if hint == Schedulable:
        return SCHEDULES
    if hint == Schedulable | None:
        return st.none() | SCHEDULES
    if hint == Schedulable | tuple[float, ...]:
        return SCHEDULES | strategy(tuple[float, ...])
    if typing.get_origin(hint) is tuple:
        item = strategy(str) if str in typing.get_args(hint) else st.integers(1, 512)
        return st.lists(item, max_size=3).map(tuple)
    return {
        bool: st.booleans(),
        int: st.integers(-1, 2**31),
        float: st.floats(allow_nan=False, allow_infinity=False),
        str: st.text(max_size=12),
    }[hint]


@st.composite
def configs(draw):
    cls = algorithm(draw(st.sampled_from(list(ALGORITHMS)))).Config
    hints = typing.get_type_hints(cls)
    names = draw(st.lists(st.sampled_from([f.name for f in dataclasses.fields(cls)]), unique=True))
    return cls(**{name: draw(strategy(hints[name])) for name in names})


@given(configs())
def test_every_configuration_survives_toml(config):
    text = dump_toml(as_mapping(config), {"gamma": "from a preset"})
    assert from_mapping(type(config), tomllib.loads(text)) == config


@pytest.mark.parametrize("text", ["\r", "\x00", "\x1f", "\x7f", "\u2028", "a\tb"], ids=repr)
def test_every_character_survives_toml(text):
    assert tomllib.loads(dump_toml({"network": text}))["network"] == text


def test_tables_strings_and_comments_survive_toml(tmp_path):
    values = {"a b": 'say "hi"\\\n\ttab', "run": {"seed": 3, "deep": {"x": [1.5, True, "s"]}}, "z": -0.0}
    path = tmp_path / "c.toml"
    path.write_text(dump_toml(values, {"run.seed": "given"}))
    assert load_toml(path) == values
    assert "# given" in path.read_text()


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("learning_rate=1e-3", ("learning_rate", 1e-3)),
        ("pi=(64, 64)", ("pi", (64, 64))),
        ("pi=[32]", ("pi", [32])),
        ("learning_rate=lin_3e-4", ("learning_rate", "lin_3e-4")),
        (" normalize_obs = true", ("normalize_obs", True)),
        ("target_kl=none", ("target_kl", None)),
        ("network=a.py:B", ("network", "a.py:B")),
    ],
)
def test_assignments_of_the_command_line(text, pair):
    assert parse_assignment(text) == pair


@pytest.mark.parametrize("text", ["learning_rate", "=3", ""])
def test_what_is_no_assignment_is_explained(text):
    with pytest.raises(ConfigError, match="key=value"):
        parse_assignment(text)


def test_later_layers_win_and_provenance_is_kept():
    values, source = merge(
        [Layer("default", {"a": 1, "b": 1}), Layer("file", {"b": 2}), Layer("--set", {"c": 3})]
    )
    assert values == {"a": 1, "b": 2, "c": 3}
    assert source == {"a": "default", "b": "file", "c": "--set"}


@pytest.mark.parametrize(
    ("wrong", "right"), [("learning_rte", "learning_rate"), ("framestack", "frame_stack"), ("GAMMA", "gamma")]
)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_unknown_key_names_the_nearest(name, wrong, right):
    with pytest.raises(ConfigError, match=f"no setting '{wrong}'.*'{right}'"):
        from_mapping(algorithm(name).Config, {wrong: 1})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("n_steps", 2.5),
        ("n_steps", "many"),
        ("n_steps", True),
        ("n_steps", None),
        ("n_steps", math.inf),
        ("n_steps", "nan"),
        ("n_steps", [8]),
        ("learning_rate", "fast"),
        ("learning_rate", "lin_x"),
        ("learning_rate", "linear("),
        ("learning_rate", "linear()"),
        ("learning_rate", "linear('a')"),
        ("learning_rate", "linear(1, 2, 3, 4)"),
        ("learning_rate", "linear(1e-3, 0, 0)"),
        ("learning_rate", "exponential(1e-3, 0)"),
        ("learning_rate", "piecewise((0, 1), (1e-3,))"),
        ("learning_rate", {"schedule": "linear"}),
        ("learning_rate", {"schedule": "linear", "begin": 1.0}),
        ("learning_rate", {"schedule": "linear", "start": "x"}),
        ("learning_rate", {"schedule": "zigzag", "start": 1.0}),
        ("learning_rate", {"schedule": ["linear"]}),
        ("learning_rate", None),
        ("learning_rate", True),
        ("learning_rate", math.nan),
        ("learning_rate", [1e-3]),
        ("adam_eps", "small"),
        ("normalize_obs", "yes"),
        ("normalize_obs", 1),
        ("log_std", "fixed"),
        ("normalize_advantage", "sometimes"),
        ("pi", "wide"),
        ("pi", (64, 1.5)),
        ("pi", None),
        ("action_bins", (True,)),
    ],
    ids=str,
)
def test_a_bad_value_is_an_error_that_names_its_field(key, value):
    with pytest.raises(ConfigError, match=key):
        from_mapping(PPOConfig, {key: value})


def test_sb3s_booleans_for_advantage_normalisation_are_understood():
    assert from_mapping(PPOConfig, {"normalize_advantage": False}).normalize_advantage == "false"
    assert from_mapping(PPOConfig, {"normalize_advantage": True}).normalize_advantage == "minibatch"


def test_files_that_are_missing_or_no_toml_are_explained(tmp_path):
    with pytest.raises(ConfigError, match="no configuration file"):
        load_toml(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("a = = 1")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_toml(tmp_path / "bad.toml")


def schedulable(name: str) -> list[str]:
    hints = typing.get_type_hints(algorithm(name).Config)
    return [key for key, hint in hints.items() if hint in (Schedulable, Schedulable | None)]


@pytest.mark.parametrize("key", schedulable("ppo"))
def test_every_scalar_of_ppo_accepts_a_schedule(key):
    accepts("ppo", key)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "key"),
    [
        pytest.param(n, k, marks=[pytest.mark.exhaustive] * (n not in EVERY_TIME))
        for n in ALGORITHMS
        if n != "ppo"
        for k in schedulable(n)
    ],
)
def test_every_scalar_of_the_others_accepts_a_schedule(name, key):
    accepts(name, key)


def accepts(name: str, key: str) -> None:
    """Traces acting and learning with a schedule in the field; nothing is compiled."""
    on = {"normalize_obs": True, "normalize_reward": True, key: Linear(0.2, 0.1)}
    if "ortho_init" in typing.get_type_hints(algorithm(name).Config):
        on["ortho_init"] = False
    env = Multiply() if name in CHOOSERS else MultiplyContinuous()
    world = jax.eval_shape(lambda k: train(agent(name, env, 2, **on), env, k), jax.random.key(0))
    assert world.learner.train.iteration.shape == ()
