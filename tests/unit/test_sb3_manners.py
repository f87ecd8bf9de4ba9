"""What a user of SB3 reaches for: it is there, or an error or warning says what to use."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import algorithm

import sparring
from sparring import DQN, PPO, TD3
from sparring.cli.config import cells, line, spelled
from sparring.cli.parser import ALGORITHMS, UsageError
from sparring.cli.train import parser
from sparring.common.elsewhere import PLACES
from sparring.config import Linear, Piecewise, from_mapping, tabulate, to_plain
from sparring.errors import SpaceMismatch
from sparring.evaluation.diagnosis import Subject, diagnose
from sparring.model import ALGORITHMS as ALL
from sparring.nets.critics import bounded
from sparring.replay.offpolicy import too_short, unwise
from sparring.spaces import Box, Discrete, EnvSpec, MultiBinary


@pytest.mark.parametrize("name", sorted(sparring.INSTEAD))
def test_names_of_contrib_say_what_to_use(name: str) -> None:
    with pytest.raises(ImportError, match=f"sparring has no {name}: .*Available: A2C"):
        exec(f"from sparring import {name}")


def test_what_is_said_instead_can_be_made() -> None:
    DQN("MlpPolicy", "CartPole-v1", double=True, dueling=True, prioritized=True, n_steps=3, run_dir=False)
    TD3("MlpPolicy", "Pendulum-v1", policy_delay=1, target_policy_noise=0.0, n_critics=1, run_dir=False)
    PPO("LstmPolicy", "CartPole-v1", target_kl=0.01, run_dir=False)


def test_attributes_that_are_elsewhere_say_where() -> None:
    model = DQN(
        "MlpPolicy", "CartPole-v1", run_dir=False, seed=0, exploration_initial_eps=0.7, learning_starts=0
    )
    for name in PLACES.keys() - {"exploration_rate"}:
        assert not hasattr(model, name)
    with pytest.raises(AttributeError, match=r"no attribute 'replay_buffer': .*sparring resume"):
        _ = model.replay_buffer
    with pytest.raises(AttributeError, match="get_parameters"):
        _ = model.q_net
    with pytest.raises(AttributeError, match=r"no attribute 'nonsense'$"):
        _ = model.nonsense
    assert model.exploration_rate == pytest.approx(0.7)


def test_an_episode_start_for_every_observation() -> None:
    model = PPO("MlpPolicy", "CartPole-v1", run_dir=False)
    with pytest.raises(SpaceMismatch, match="episode_start has 2 entries for 1 observations"):
        model.predict(np.zeros(4, np.float32), episode_start=[True, False])


def test_an_exploration_rate_needs_chance() -> None:
    model = TD3("MlpPolicy", "Pendulum-v1", run_dir=False, policy_kwargs={"net_arch": [4]})
    assert not hasattr(model, "exploration_rate")  # as generic callbacks ask
    with pytest.raises(AttributeError, match="'exploration_rate': it does not act by chance"):
        _ = model.exploration_rate


def test_bits_are_sent_to_what_can_act_with_them() -> None:
    with pytest.raises(SpaceMismatch, match=r"Use PPO or A2C\."):
        bounded(EnvSpec("bits", Box((1,)), MultiBinary(2)), "TD3")
    with pytest.raises(SpaceMismatch, match="Use DQN"):
        bounded(EnvSpec("choice", Box((1,)), Discrete(2)), "TD3")
    for name in ("dqn", "pqn"):
        kind = algorithm(name)
        with pytest.raises(SpaceMismatch, match=r"Use PPO or A2C\."):
            kind(EnvSpec("bits", Box((1,)), MultiBinary(2)), kind.Config()).init(None)


def replays(**settings: Any) -> Any:
    return from_mapping(algorithm("dqn").Config, settings)


def test_settings_that_are_hardly_meant_are_named() -> None:
    assert unwise(replays()) == []
    (warning,) = unwise(replays(batch_size=64, buffer_size=32, learning_starts=0))
    assert "batch_size=64 is above buffer_size=32" in warning
    (warning,) = unwise(replays(learning_starts=1000, buffer_size=500))
    assert "learning_starts=1000 is above buffer_size=500" in warning
    assert too_short(replays(learning_starts=100), 101) == []
    assert "nothing is learned" in too_short(replays(learning_starts=100), 100)[0]
    assert too_short(algorithm("ppo").Config(), 1) == []


def test_a_run_that_ends_before_learning_warns(capsys: pytest.CaptureFixture[str]) -> None:
    model = DQN("MlpPolicy", "CartPole-v1", learning_starts=50, buffer_size=200, run_dir=False, seed=0)
    model.learn(8)
    assert "Warning: learning_starts=50 is not below the 8 steps" in capsys.readouterr().out


def test_schedules_read_well() -> None:
    assert repr(Piecewise((0.0, 0.5, 1.0), (1.0, 0.1, 0.0))) == "Piecewise(0: 1, 0.5: 0.1, 1: 0)"
    long = tabulate(lambda left: 3e-4 * left)
    assert repr(long) == "Piecewise(0: 0.0003, … 255 more …, 1: 0)"
    assert spelled(to_plain(long)) == "piecewise(257 knots, 0.0003 to 0)"
    assert spelled(to_plain(Linear(0.1))) == "linear(0.1, 0, 1)"
    assert spelled("") == '""'


def test_settings_stand_in_columns() -> None:
    settings = {
        "gamma": {"value": 0.99, "from": "default", "help": "discount"},
        "exploration_initial_eps": {"value": 1.0, "from": "preset dqn/CartPole-v1", "help": "chance"},
    }
    widths = [max(len(cells(n, s)[i]) for n, s in settings.items()) for i in range(3)]
    one, other = (line(name, setting, widths, 200) for name, setting in settings.items())
    assert one.index("discount") == other.index("chance")
    assert one.index("default") == other.index("preset")
    assert line("gamma", settings["gamma"], widths, 40).splitlines()[1] == "    discount"


def test_a_diagnosis_lists_no_rules_of_other_algorithms() -> None:
    records = [(step, {"train/grad_norm": 1.0, "rollout/ep_rew_mean": 1.0}) for step in range(0, 1000, 100)]
    silent, report = (
        diagnose(Subject("run", "dqn", "CartPole-v1", "finished", records=made))
        for made in ((), tuple((step, 0, values) for step, values in records))
    )
    foreign = ("R02", "R03", "R17")
    assert any(skip["id"].startswith(foreign) for skip in silent["checks_skipped"])
    assert not [skip for skip in report["checks_skipped"] if skip["id"].startswith(foreign)]
    assert "for other algorithms" not in str(report)
    assert np.all([skip["why"] for skip in report["checks_skipped"]])


@pytest.mark.parametrize(
    ("option", "hint"),
    [("--steps", "'--total-timesteps'"), ("--learning-rate", "--set learning_rate=…"), ("--sed", "'--seed'")],
)
def test_options_of_other_programs_are_understood_well_enough_to_help(option: str, hint: str) -> None:
    with pytest.raises(UsageError, match=hint):
        parser().parse_args(["dqn", "CartPole-v1", option, "5"])


def test_the_help_names_every_algorithm() -> None:
    assert all(name in ALGORITHMS for name in ALL)
