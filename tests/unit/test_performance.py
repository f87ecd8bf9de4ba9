"""The time split: what drivers and sessions measure, and the sentence about the bottleneck."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_help import quick

from sparring import launch
from sparring.drivers.platform import _Compiling
from sparring.evaluation.diagnosis import diagnose, subject_of
from sparring.evaluation.diagnosis_text import render
from sparring.metrics import performance, sqlite
from sparring.metrics.advice import Commands
from sparring.metrics.health import Advice
from sparring.metrics.performance import IDLE, KINDS, WINDOW, judge, shares
from sparring.runs.directory import RunDirectory
from sparring.web.gather import gather

CONFIG = {"n_envs": 1, "backend": "auto", "evaluation": "auto", "checkpoint_freq": 0, "n_epochs": 10}


def record(seconds: float = 10.0, **parts: float) -> tuple[int, int, dict[str, float]]:
    return 1000, 0, {WINDOW: seconds, **{f"time/{kind}": share for kind, share in parts.items()}}


def verdict(
    *records: tuple[int, int, dict[str, float]], device: str = "cpu", **config: Any
) -> performance.Performance:
    known = CONFIG | config
    found = judge(records, known, Commands("ppo", "Hopper-v5", "run", known, 1000), device)
    assert found is not None
    return found


def test_shares_add_up_and_the_rest_is_other() -> None:
    found = shares({"env": 2.0, "act": 1.0, "update": 4.0, "compile": 1.0}, 10.0)
    assert found["time/env"] == pytest.approx(0.2)
    assert found["time/other"] == pytest.approx(0.2)
    assert found[IDLE] == pytest.approx(0.5)
    assert found[WINDOW] == 10.0


def test_shares_never_exceed_the_whole() -> None:
    """Clocks that overlap are scaled, and a clock that ran backwards counts for nothing."""
    found = shares({"env": 6.0, "update": 6.0, "transfer": -0.1}, 10.0)
    assert found["time/env"] + found["time/update"] == pytest.approx(1.0, abs=0.01)
    assert found["time/transfer"] == 0.0
    assert min(found.values()) >= 0.0


def test_longer_records_weigh_more() -> None:
    wall, parts = performance.total([record(1.0, compile=1.0), record(9.0, env=1.0)])
    assert wall == 10.0
    assert parts == pytest.approx({"compile": 0.1, "env": 0.9})


@pytest.mark.parametrize(
    ("parts", "bound", "words", "command"),
    [
        ({"env": 0.78, "update": 0.2}, "env", "The environment takes 78%", "n_envs=8 backend=workers"),
        ({"act": 0.6, "env": 0.3}, "act", "Acting takes 60%", "n_envs=8"),
        ({"update": 0.9, "env": 0.1}, "update", "Learning takes 90%", "n_epochs=5"),
        ({"fused": 0.95, "other": 0.05}, "fused", "busy 95%", ""),
        ({"compile": 0.7, "fused": 0.3}, "compile", "Compiling took 70%", "sparring doctor"),
        ({"evaluation": 0.3, "fused": 0.7}, "evaluation", "waits 30%", "evaluation=background"),
        ({"checkpoint": 0.25, "env": 0.75}, "checkpoint", "waits 25%", "checkpoint_freq=-1"),
        ({"other": 0.8, "env": 0.2}, "other", "80% of the time goes to neither", "sparring doctor"),
        ({"env": 0.3, "act": 0.3, "update": 0.3, "other": 0.1}, "nothing", "no single bottleneck", ""),
    ],
)
def test_the_bottleneck_is_named_with_a_command(
    parts: dict[str, float], bound: str, words: str, command: str
) -> None:
    found = verdict(record(**parts))
    assert found.bound == bound
    assert words in found.sentence
    assert command in found.command
    assert bool(found.command) == bool(command)


def test_an_idle_gpu_is_explained() -> None:
    found = verdict(record(env=0.8, act=0.1, update=0.1), device="NVIDIA H200")
    assert found.sentence.startswith("The NVIDIA H200 is idle 80% of the time. The environment takes 80%")


def test_compiling_is_left_out_of_what_goes_on() -> None:
    found = verdict(record(compile=0.4, env=0.3, act=0.2, update=0.1), device="NVIDIA H200")
    assert found.bound == "env"
    assert "takes 50% of the time" in found.sentence
    assert "is idle 50%" in found.sentence
    assert "(Compiling, 40% of all, is left out.)" in found.sentence
    assert found.device_idle == pytest.approx(0.7)


def test_what_is_set_already_is_not_proposed() -> None:
    assert "backend" not in verdict(record(env=1.0), backend="workers").command
    assert verdict(record(env=1.0), backend="workers", n_envs=64).command == ""


def test_a_copying_replay_is_moved_to_the_device() -> None:
    found = verdict(record(transfer=0.7, update=0.3), buffer="host")
    assert found.bound == "transfer"
    assert "buffer=device" in found.command


def test_little_time_says_nothing_and_no_split_is_none() -> None:
    assert verdict(record(0.5, env=1.0)).bound == "unknown"
    assert judge([(0, 0, {"time/fps": 1.0})], {}, Commands("ppo", "E", "r", {}, 1)) is None


def test_an_environment_that_a_script_made_gets_advice_in_python() -> None:
    advice = Advice("a smaller step", "a smoother curve", settings=(("learning_rate", "*0.5"),))
    seeds = Advice("more seeds", "a median", verb="sparring train {algorithm} {env} --seeds 10")
    config = {"learning_rate": 0.001, "gamma": 0.9}
    made = Commands("td3", "object:Pendulum-v1", "run", config, 1000, changed=["gamma"])
    assert made.of(advice) == "TD3(policy, env, gamma=0.9, learning_rate=0.0005)"
    assert made.of(seeds) == ""
    named = Commands("td3", "Pendulum-v1", "run", config, 1000, changed=["gamma"])
    assert named.of(advice) == "sparring train td3 Pendulum-v1 --set gamma=0.9 learning_rate=0.0005"
    assert named.of(seeds) == "sparring train td3 Pendulum-v1 --seeds 10"


def test_a_split_that_somebody_damaged_is_ignored() -> None:
    assert performance.total([record(float("nan"), env=1.0), record(-1.0, env=1.0)]) == (0.0, {})
    assert performance.total([record(5.0, env=7.0, act=0.5)])[1] == {"act": 0.5}


def test_compile_time_counts_nested_traces_once() -> None:
    log = _Compiling()
    log.note(1.0, 2.0)
    log.note(2.5, 3.0)
    log.note(0.5, 4.0)
    log.note(5.0, 6.0)
    assert log.intervals == [(0.5, 4.0), (5.0, 6.0)]
    assert log.seconds == pytest.approx(4.5)


def trained(folder: Path, env: str, **values: Any) -> RunDirectory:
    given = {"total_timesteps": 1024, "n_steps": 128, "batch_size": 64, "n_epochs": 2, **values}
    plan = launch.plan("ppo", env, values=given, use_preset=False)
    return launch.train(plan, run_dir=folder, say=lambda text: None).run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "there", "absent"),
    [
        ("CartPole-v1", {"fused", "transfer", "compile", "evaluation"}, {"env", "act", "update"}),
        ("gym:CartPole-v1", {"env", "act", "update", "transfer", "compile"}, {"fused"}),
    ],
)
def test_a_run_records_where_its_time_went(
    env: str, there: set[str], absent: set[str], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with quick(tmp_path_factory):
        run = trained(tmp_path / "run", env, n_eval_episodes=2, evaluation="inline")
    names = set(sqlite.names(run.metrics))
    assert {f"time/{kind}" for kind in there} <= names
    assert not {f"time/{kind}" for kind in absent} & names
    splits = [values for _, _, values in sqlite.records(run.metrics) if WINDOW in values]
    assert splits
    for values in splits:
        parts = [values[f"time/{kind}"] for kind in KINDS if f"time/{kind}" in values]
        assert sum(parts) == pytest.approx(1.0, abs=0.01)
        assert min(parts) >= 0.0
        busy = sum(values.get(f"time/{kind}", 0.0) for kind in performance.COMPUTING)
        assert values[IDLE] == pytest.approx(1.0 - busy, abs=0.01)
    report = diagnose(subject_of(run))
    assert report["performance"]["seconds"] > 0
    assert report["run"]["device"]
    assert "time: " in render(report)
    assert gather([run]).runs[0].speed.startswith(report["performance"]["sentence"][:8])
