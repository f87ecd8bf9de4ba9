"""Exports: every point of a run in tables and trackers, and policies that decide as the agent does."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.export
import numpy as np
import pytest
from cli_help import Shell, quick
from conftest import TINY, algorithm

from sparring.cli.main import main
from sparring.envs import registry
from sparring.export import metrics, onnx_graph, policy
from sparring.metrics import sqlite, wandb_file
from sparring.metrics.sqlite import SqliteSink
from sparring.model import Agent
from sparring.runs import directory
from sparring.runs.directory import RunDirectory

SMALL = ("--total-timesteps", 1024, "--set", "n_envs=4", "n_eval_episodes=4", "eval_freq=-1", "--quiet")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with quick(tmp_path_factory):
        yield


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home" / name))
    monkeypatch.delenv("WANDB_MODE", raising=False)


@pytest.fixture
def sparring(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.fixture(scope="module")
def trained(cache: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "short"
    words = ("train", "a2c", "CartPole-v1", *SMALL, "--run-dir", folder, "--track", "tensorboard")
    assert main([str(word) for word in words]) == 0
    return folder


# -- metrics -----------------------------------------------------------------------------------------------

WRITTEN = [
    (100, 1.5, {"train/loss": 0.1, "rollout/ep_rew_mean": 3.0}, 0),
    (100, 1.5, {"train/loss": 0.2}, 1),
    (200, 2.5, {"train/loss": math.nan, "my own, name": 1 / 3}, 0),
    (200, 3.5, {"eval/mean_reward": 5.0}, 0),
]
POINTS = [
    (seed, step, seconds, name, value)
    for step, seconds, values, seed in WRITTEN
    for name, value in sorted(values.items())
]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run of a few points, some of them odd."""
    made = directory.create("ppo", "CartPole-v1", 0, path=tmp_path / "run")
    made.write_config({"algorithm": "ppo", "env": "CartPole-v1", "seeds": [0, 1], "config": {"gamma": 0.9}})
    sink = SqliteSink(made.metrics)
    for record in reversed(WRITTEN):
        sink.write(*record)
    sink.close()
    made.unlock()
    return made


def same(found: Any, wanted: Any) -> bool:
    return repr(found) == repr(wanted)  # NaN is not equal to itself


def test_records_come_back_together_and_by_step(run: RunDirectory) -> None:
    wanted = [(step, seconds, dict(sorted(values.items())), seed) for step, seconds, values, seed in WRITTEN]
    assert same([tuple(record) for record in sqlite.written(run.metrics)], wanted)


def test_csv_holds_every_point(run: RunDirectory, tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    for _ in range(2):  # a second time replaces the file
        assert metrics.write_csv(run, file) == len(POINTS)
    head, *rows = csv.reader(file.read_text().splitlines())
    assert tuple(head) == metrics.COLUMNS
    found = [(int(a), int(b), float(c), name, float(value)) for a, b, c, name, value in rows]
    assert same(found, POINTS)


def test_parquet_holds_every_point(run: RunDirectory, tmp_path: Path) -> None:
    from pyarrow import parquet

    file = tmp_path / "metrics.parquet"
    assert metrics.write_parquet(run, file) == len(POINTS)
    table = parquet.read_table(file)
    assert table.column_names == list(metrics.COLUMNS)
    assert same([tuple(row[name] for name in metrics.COLUMNS) for row in table.to_pylist()], POINTS)
    assert [p.name for p in tmp_path.iterdir() if "tmp-" in p.name] == []


def test_tensorboard_gets_every_number(run: RunDirectory, tmp_path: Path, sparring: Shell) -> None:
    from test_metrics_console import scalars

    folder = tmp_path / "board"
    said = sparring("export", run.path, "--to", "tensorboard", "-o", folder, "--json")
    assert (said.code, said.last["points"]) == (0, len(POINTS))
    found = scalars(folder)
    assert found["eval/mean_reward"] == [(200, 5.0)]
    assert found["rollout/ep_rew_mean"] == [(100, 3.0)]
    assert scalars(folder / "seed-1")["train/loss"] == [(100, pytest.approx(0.2))]
    again = sparring("export", run.path, "--to", "tensorboard", "-o", folder)
    assert again.code == 5
    assert "Choose another folder" in again.error


def test_wandb_gets_every_number_and_the_settings(run: RunDirectory, tmp_path: Path, sparring: Shell) -> None:
    said = sparring("export", run.path, "--to", "wandb", "-o", tmp_path / "out", "--json")
    assert (said.code, said.last["points"]) == (0, len(POINTS))
    found = {r.name: r for r in map(wandb_file.read, (tmp_path / "out" / "wandb").glob("offline-run-*"))}
    first = found["run"]
    assert first.config["config"] == {"gamma": 0.9}
    points = [
        (row["time/total_timesteps"], name, float(value))
        for row in first.history
        for name, value in sorted(row.items())
        if not name.startswith("_") and name != "time/total_timesteps"
    ]
    assert same(points, [(step, name, value) for seed, step, _, name, value in POINTS if seed == 0])
    assert len(found["run-1"].history) == 1


@pytest.mark.slow
def test_a_tracked_run_and_its_replay_hold_the_same(trained: Path, tmp_path: Path, sparring: Shell) -> None:
    from test_metrics_console import scalars

    assert sparring("export", trained, "--to", "tensorboard", "-o", tmp_path / "board").code == 0
    live = scalars(trained / "tensorboard")
    assert len(live["train/loss" if "train/loss" in live else "train/value_loss"]) > 10
    assert scalars(tmp_path / "board") == live


@pytest.mark.parametrize(
    ("kind", "package"),
    [("parquet", "pyarrow"), ("wandb", "wandb"), ("onnx", "onnx"), ("onnx", "onnxruntime")],
)
def test_a_missing_extra_is_named(
    kind: str,
    package: str,
    run: RunDirectory,
    sparring: Shell,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "sparring.export.onnx_graph")
    monkeypatch.delattr("sparring.export.onnx_graph")
    said = sparring("export", run.path, "--to", kind, "-o", tmp_path / "x")
    assert said.code == 2
    assert f"{package!r} is not installed" in said.error
    assert f"pip install 'sparring[{kind}]'" in said.error


def test_a_place_that_cannot_be_written_is_named(run: RunDirectory, sparring: Shell, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = sparring("export", run.path, "--to", "csv", "-o", tmp_path / "file" / "x.csv")
    assert said.code == 5
    assert "cannot be written" in said.error


# -- policies ----------------------------------------------------------------------------------------------


def agent_in(name: str, env: str, **settings: Any) -> tuple[Agent, Any]:
    """An agent with random weights, and a host environment of one row."""
    world = registry.host(registry.make(env, n_envs=1, backend="inline"), 1)
    cls = algorithm(name)
    algo = cls(dataclasses.replace(world.spec, rows=1), cls.Config(**{**TINY[name], **settings}), 100.0)
    shapes = jax.eval_shape(lambda key: algo.policy(algo.init(key)), jax.random.key(0))
    weights = jax.jit(lambda key: algo.policy(algo.init(key)))(jax.random.key(1))
    assert jax.tree.structure(shapes) == jax.tree.structure(weights)
    return Agent(algo, weights, name), world


CASES = [
    ("ppo", "Pendulum-v1", {"normalize_obs": True, "squash": True, "log_std": "state"}, ["observation"]),
    ("a2c", "CartPole-v1", {"frame_stack": 3}, ["first", "memory/frames", "observation"]),
    ("dqn", "CartPole-v1", {"core": "gru", "core_size": 4}, ["first", "memory/core/0", "observation"]),
    ("sac", "Pendulum-v1", {}, ["observation"]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "env", "settings", "inputs"), CASES, ids=lambda x: str(x)[:12])
def test_stablehlo_decides_as_the_agent_does(
    name: str, env: str, settings: dict[str, Any], inputs: list[str], tmp_path: Path
) -> None:
    agent, world = agent_in(name, env, **settings)
    decisions = policy.record(agent, world, 60)
    file = tmp_path / "policy.stablehlo"
    parity, about = policy.write_stablehlo(file, agent, decisions)
    assert parity.observations == 60
    assert parity.largest < 1e-5
    assert parity.equal == 60 or "float" in about["outputs"][0]["dtype"]
    assert [port["name"] for port in about["inputs"]] == inputs
    assert json.loads(policy.beside(file).read_text()) == json.loads(json.dumps(about))
    # Many rows at once, by the file alone: each acts as one row of the agent does.
    if len(inputs) == 1:
        program = jax.export.deserialize(bytearray(file.read_bytes()))
        (actions,) = program.call(np.concatenate([decision.obs for decision in decisions]))
        wanted = np.concatenate([decision.action for decision in decisions])
        assert np.abs(np.asarray(actions) - wanted).max() < 1e-5


@pytest.mark.slow
def test_safetensors_hold_the_whole_policy(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    agent, world = agent_in("ppo", "Pendulum-v1", normalize_obs=True)
    decisions = policy.record(agent, world, 20)
    parity, about = policy.write_safetensors(tmp_path / "policy.safetensors", agent, decisions)
    assert parity == (20, 20, 0.0)
    arrays = load_file(tmp_path / "policy.safetensors")
    assert any(name.startswith("moments") for name in arrays)  # the normaliser goes along
    assert about["config"]["normalize_obs"] is True
    assert about["spec"]["id"] == "Pendulum-v1"


def test_a_policy_that_differs_is_seen() -> None:
    obs, yes = np.zeros((1, 2), np.float32), np.ones(1, bool)
    decisions = [policy.Decision(obs, yes, None, np.array([[0.5]], np.float32)) for _ in range(3)]
    answers = iter([0.5, 0.75, 0.5])
    found = policy.compare(decisions, lambda *given: np.array([[next(answers)]], np.float32))
    assert found == (3, 2, 0.25)
    assert str(found) == "2 of 3 decisions equal bit for bit, largest difference 0.25"


@pytest.mark.slow
def test_the_command_exports_a_policy(trained: Path, sparring: Shell, tmp_path: Path) -> None:
    file = tmp_path / "p" / "policy.stablehlo"
    said = sparring("export", trained, "--to", "stablehlo", "-o", file, "--json")
    assert said.code == 0
    assert said.last["parity"] == {"observations": 1000, "equal": 1000, "largest": 0.0}
    assert said.last["inputs"] == [{"name": "observation", "shape": [4], "dtype": "float32"}]
    assert "1,000 of 1,000 decisions equal" in said.err
    assert file.stat().st_size > 1000


@pytest.mark.slow
def test_the_command_exports_to_onnx(trained: Path, sparring: Shell, tmp_path: Path) -> None:
    file = tmp_path / "policy.onnx"
    said = sparring("export", trained, "--to", "onnx", "-o", file, "--json")
    assert said.code == 0
    assert said.last["parity"] == {"observations": 1000, "equal": 1000, "largest": 0.0}
    assert said.last["inputs"] == [{"name": "observation", "shape": [4], "dtype": "float32"}]
    assert "float32[rows, 4]" in said.err
    assert "1,000 of 1,000 decisions equal" in said.err
    # What the page says to run, where neither sparring nor jax is imported.
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text()
    (snippet,) = re.findall(r"```python\n([^`]*onnxruntime[^`]*)```", page)
    tail = "\nimport sys; print(action.tolist(), 'sparring' in sys.modules, 'jax' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-I", "-c", snippet + tail], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    (wanted,) = onnx_graph.loaded(file)(np.zeros((1, 4), np.float32))
    assert ran.stdout.strip() == f"{wanted.tolist()} False False"
