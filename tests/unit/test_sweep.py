"""Sweeps: ranges are checked, hopeless trials end early, winners are trained on fresh seeds."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_help import Shell, quick

from sparring.errors import ConfigError
from sparring.evaluation.statistics import interval
from sparring.metrics.sink import Sink
from sparring.runs.directory import RunDirectory
from sparring.session import Stop
from sparring.sweep import FRESH, Range, Watch, read_space

optuna = pytest.importorskip("optuna")

SPACE = """
[learning_rate]
low = 1e-4
high = 1e-2
log = true
[n_steps]
low = 4
high = 8
step = 4
[pi]
choices = [[8], [8, 8]]
"""


@pytest.fixture
def space(tmp_path: Path) -> Path:
    file = tmp_path / "space.toml"
    file.write_text(SPACE)
    return file


def test_a_space_is_read_and_suggests_values_in_its_ranges(space: Path) -> None:
    ranges = read_space(space)
    assert ranges["learning_rate"] == Range(low=1e-4, high=1e-2, log=True)
    assert ranges["pi"].choices == ([8], [8, 8])
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    drawn = []
    for _ in range(20):
        trial = study.ask()
        drawn.append({name: given.suggest(trial, name) for name, given in ranges.items()})
    assert {value["n_steps"] for value in drawn} == {4, 8}
    assert all(isinstance(value["n_steps"], int) for value in drawn)
    assert {len(value["pi"]) for value in drawn} == {1, 2}
    rates = [value["learning_rate"] for value in drawn]
    assert 1e-4 <= min(rates) < 1e-3 < max(rates) <= 1e-2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no setting"),
        ("gamma = 0.9", "must be a table"),
        ("[gamma]\nlov = 0.9\nhigh = 1.0", "Did you mean 'low'"),
        ("[gamma]\nlow = 0.9", "needs `low` and `high`"),
        ("[gamma]\nlow = 1.0\nhigh = 0.9", "low must be below high"),
        ("[gamma]\nlow = 0.0\nhigh = 0.9\nlog = true", "above 0 with log"),
        ("[gamma]\nlow = 0.1\nhigh = 0.9\nstep = 0", "step must be above 0"),
        ("[gamma]\nchoices = []", "a list that is not empty"),
        ("[gamma]\nchoices = [1]\nlow = 1", "nothing beside it"),
    ],
)
def test_a_wrong_space_is_explained(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "space.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_space(file)


def test_a_hopeless_trial_ends_when_all_seeds_were_evaluated() -> None:
    study = optuna.create_study(direction="maximize", pruner=optuna.pruners.ThresholdPruner(lower=10.0))
    trial = study.ask()
    watch = Watch(trial, seeds=2)
    assert isinstance(watch, Sink)
    watch.write(100, 0.0, {"train/loss": 1.0})
    for seed, score in enumerate((12.0, 20.0)):
        watch.write(100, 0.0, {"eval/mean_reward": score}, seed)
    watch.write(200, 0.0, {"eval/mean_reward": 1.0}, 0)  # the other seed is still to come
    assert not watch.pruned
    with pytest.raises(Stop):
        watch.write(200, 0.0, {"eval/mean_reward": 2.0}, 1)
    assert (watch.pruned, watch.step) == (True, 200)
    watch.write(200, 0.0, {"eval/mean_reward": 2.0}, 1)  # the last evaluation of a run that was ended
    reported = study.get_trials()[0].intermediate_values
    assert reported == {100: interval(np.array([12.0, 20.0])).low, 200: interval(np.array([1.0, 2.0])).low}


def test_mistakes_are_met_before_anything_is_written(
    space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sparring = Shell(capsys)
    folder = tmp_path / "sweep"
    space.write_text("[learning_rat]\nlow = 0.1\nhigh = 0.2\n")
    said = sparring("sweep", "a2c", "CartPole-v1", space, "--run-dir", folder)
    assert said.code == 2
    assert "'learning_rate'" in said.error
    assert not folder.exists()
    monkeypatch.setitem(sys.modules, "optuna", None)
    said = sparring("sweep", "a2c", "CartPole-v1", space, "--run-dir", folder)
    assert (said.code, "pip install 'sparring[sweep]'" in said.error) == (2, True)


@pytest.mark.slow
def test_a_sweep_goes_on_and_promotes(
    space: Path,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sparring, folder = Shell(capsys), tmp_path / "sweep"
    space.write_text("[learning_rate]\nlow = 1e-4\nhigh = 1e-2\nlog = true\n")

    def sweep(*words: Any) -> Any:
        small = ("--total-timesteps", 128, "--set", "n_envs=4", "n_eval_episodes=4", "eval_freq=-1", "pi=[8]")
        given = ("sweep", "a2c", "CartPole-v1", space, "--seeds", 2, "--run-dir", folder, "--json", *small)
        return sparring(*given, *words)

    # Gives up whatever it is asked about: here a trial's last evaluation, when all of it has been paid for.
    monkeypatch.setattr(optuna.pruners, "MedianPruner", lambda **_: optuna.pruners.ThresholdPruner(lower=1e9))
    with quick(tmp_path_factory):
        first = sweep("--trials", 2)
        assert first.code == 0, first.err
        assert len(first.last["trials"]) == 2
        second = sweep("--trials", 3, "--promote", 1)
        assert second.code == 0, second.err
        other = sweep("--trials", 3, "--seed", 7)
    trials = second.last["trials"]
    assert {trial["number"] for trial in trials} == {0, 1, 2}
    assert [t for t in trials if t["number"] < 2] == first.last["trials"]
    assert trials == sorted(trials, key=lambda t: -t["score"]["low"])
    (promoted,) = second.last["promoted"]
    assert promoted["trial"] == trials[0]["number"]
    assert promoted["shrinkage"] == promoted["sweep"]["value"] - promoted["fresh"]["value"]
    assert RunDirectory(promoted["run"]).read_config()["seeds"] == [FRESH, FRESH + 1]
    assert tomllib.loads((folder / "best.toml").read_text()) == trials[0]["values"]
    assert (folder / "trial-0002" / "metrics.sqlite").exists()
    assert other.code == 2
    assert "another seeds" in other.error
