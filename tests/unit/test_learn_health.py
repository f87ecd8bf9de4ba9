"""`model.learn` is watched by the health rules like every run: alerts are shown and kept in its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparring import PPO
from sparring.errors import ConfigError
from sparring.metrics import sqlite


def test_a_sick_training_is_told_and_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"n_steps": 16, "batch_size": 16, "n_epochs": 8, "n_envs": 4, "verbose": 0, "seed": 0}
    model = PPO("MlpPolicy", "CartPole-v1", learning_rate=0.3, run_dir=tmp_path / "run", **settings)
    model.learn(64 * 24, progress_bar=False)
    alerts = sqlite.alerts(tmp_path / "run" / "metrics.sqlite")
    assert alerts
    assert alerts[0].rule in capsys.readouterr().out
    assert sqlite.metadata(tmp_path / "run" / "metrics.sqlite")["cores"]


def test_a_call_that_goes_on_does_not_tell_the_same_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"n_steps": 16, "batch_size": 16, "n_epochs": 8, "n_envs": 4, "verbose": 0, "seed": 0}
    model = PPO("MlpPolicy", "CartPole-v1", learning_rate=0.3, run_dir=tmp_path / "run", **settings)
    model.learn(64 * 24, progress_bar=False)
    told = {(a.rule, a.name, a.onset) for a in sqlite.alerts(tmp_path / "run" / "metrics.sqlite") or ()}
    capsys.readouterr()
    model.learn(64 * 4, reset_num_timesteps=False, progress_bar=False)
    shown = capsys.readouterr().out
    assert told
    assert not [onset for _, _, onset in told if f"at step {onset:,}:" in shown]
    again = sqlite.alerts(tmp_path / "run" / "metrics.sqlite") or ()
    assert told <= {(a.rule, a.name, a.onset) for a in again}


def test_an_alert_can_end_the_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"n_steps": 16, "batch_size": 16, "n_epochs": 8, "n_envs": 4, "verbose": 0, "seed": 0}
    model = PPO("MlpPolicy", "CartPole-v1", learning_rate=0.3, run_dir=tmp_path / "run", **settings)
    model.learn(64 * 400, progress_bar=False, on_alert="R02=stop R03=stop R04=stop")
    assert model.num_timesteps < 64 * 400
    assert "Stopping, as on_alert asks" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="R99"):
        model.learn(64, on_alert="R99=stop")
