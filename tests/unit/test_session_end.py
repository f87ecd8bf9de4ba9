"""How a run ends: all is kept before the last evaluations, which nobody can stop; the best agent is the best
seed's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cli_help import quick

from sparring import launch
from sparring.envs import registry
from sparring.metrics import sqlite
from sparring.model import Agent
from sparring.runs import checkpoint
from sparring.session import Stop

SMALL = {"n_envs": 4, "total_timesteps": 512, "n_eval_episodes": 6, "pi": [8], "vf": [8], "eval_freq": 128}


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with quick(tmp_path_factory):
        yield


class Impatient:
    """Asks for the end at every evaluation from a step on, and looks at what had been kept by then."""

    def __init__(self, folder: Path, start: int) -> None:
        self.folder, self.start = folder, start
        self.kept: list[int] = []

    def write(self, step: int, seconds: float, values: Mapping[str, float], seed: int = 0) -> None:
        if "eval/mean_reward" in values and step >= self.start:
            found = checkpoint.listing(self.folder / "checkpoints")
            self.kept.append(max((checkpoint.read_manifest(path).step for path in found), default=0))
            raise Stop

    def close(self) -> None: ...


def train(folder: Path, seeds: tuple[int, ...] = (0,), start: int = 1 << 60, **values: Any) -> Any:
    plan = launch.plan("a2c", "CartPole-v1", seeds, values={**SMALL, **values}, use_preset=False)
    sink = Impatient(folder, start)
    done = launch.train(plan, run_dir=folder, say=lambda text: None, display=lambda *_: [sink])
    return done, sink


def test_who_asks_for_the_end_at_the_end_changes_nothing(tmp_path: Path) -> None:
    done, sink = train(tmp_path / "run", start=512, eval_freq=-1)
    assert done.result.outcome == "finished"
    assert done.run.read_status().state == "finished"
    # The last checkpoint was there before the last evaluation.
    assert sink.kept == [done.run.read_status().steps]
    assert "fresh" in json.loads(done.run.evaluation.read_text())["best"]


def test_who_asks_for_the_end_before_it_gets_it(tmp_path: Path) -> None:
    done, _ = train(tmp_path / "run", start=128)
    assert done.result.outcome == "stopped"
    assert done.result.steps < 512


@pytest.mark.slow
def test_the_best_agent_is_the_best_seeds(tmp_path: Path) -> None:
    """Its score is its own, and playing it again gives it."""
    done, _ = train(tmp_path / "run", seeds=(0, 1, 2))
    best = json.loads(done.run.evaluation.read_text())["best"]
    index = best["seed"]
    curves = [sqlite.read(done.run.metrics, "eval/mean_reward", seed) for seed in range(3)]
    scores = {(int(s), i): v for i, c in enumerate(curves) for s, v in zip(c.steps, c.values, strict=True)}
    assert best["selected"]["mean"] == pytest.approx(scores[best["step"], index], rel=1e-6)
    agent = Agent.load(done.run.best)
    played = agent.evaluate(registry.make("CartPole-v1"), 6, index)
    assert played.mean == pytest.approx(best["selected"]["mean"])


def test_a_resumed_run_knows_the_best_that_was_found_after_its_checkpoint(tmp_path: Path) -> None:
    done, _ = train(tmp_path / "run", eval_freq=-1)
    found = json.loads(done.run.evaluation.read_text())
    found["best"]["selected"]["ci95"] = [1e6, 1e6]
    done.run.evaluation.write_text(json.dumps(found))
    launch.resume(done.run, total_timesteps=1024, say=lambda text: None)
    assert json.loads(done.run.evaluation.read_text())["best"]["step"] == found["best"]["step"]


def test_a_spoilt_record_of_the_best_is_told_and_does_not_stop_a_resumed_run(tmp_path: Path) -> None:
    done, _ = train(tmp_path / "run", eval_freq=-1)
    done.run.evaluation.write_text('{"best": {}}')
    said: list[str] = []
    again = launch.resume(done.run, total_timesteps=1024, say=said.append)
    assert again.result.outcome == "finished"
    assert any("evaluation.json cannot be read" in line for line in said)


def test_the_first_evaluation_compiles_and_training_does_not_again(tmp_path: Path) -> None:
    done, _ = train(tmp_path / "run", eval_freq=256)
    compiled = sqlite.read(done.run.metrics, "time/compile_seconds").values
    assert set(compiled) == {compiled[0]}
    assert 0.0 < compiled[0] < done.result.compile_seconds
