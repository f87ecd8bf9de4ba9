"""Evaluation in a process of its own: answers, dropped snapshots, deaths, and what a run keeps of it."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from conftest import agent as make_algo

from sparring import launch
from sparring.background import NICENESS, BackgroundEvaluator, Request, Stage
from sparring.envs.classic.cartpole import CartPole
from sparring.metrics import sqlite
from sparring.model import Agent, save_agent
from sparring.runs.directory import find

pytestmark = pytest.mark.slow
STAGE = Stage("gym:CartPole-v1", {}, None, 2, 4, trusted=False)


def snapshot(folder: Path, name: str) -> Path:
    import jax

    algo = make_algo("ppo", CartPole(), 2)
    save_agent(folder / name, algo, jax.jit(algo.init)(jax.random.key(0)), "ppo")
    return folder / name


def test_answers_are_those_of_the_same_agent_here_and_only_the_newest_waits(tmp_path):
    said: list[str] = []
    evaluator = BackgroundEvaluator(STAGE, said.append)
    places = [snapshot(tmp_path, name) for name in "abc"]
    for step, place in enumerate(places):
        evaluator.submit(Request(step, 0.5 * step, (place,), (3,)))
    answers = evaluator.drain()
    assert [a.request.step for a in answers] == [0, 2]
    assert evaluator.dropped == 1
    assert not places[1].exists()
    assert said == []
    from sparring.envs import registry

    env = registry.make("gym:CartPole-v1", n_envs=2, backend="inline")
    here = Agent.load(places[0]).evaluate(env, 4, 3)
    assert answers[0].greedy[0].returns.tolist() == here.returns.tolist()
    assert len(answers[0].sampled[0].returns) == 4
    evaluator.close()
    assert evaluator.pid is None


def test_a_killed_process_is_replaced_and_plays_its_snapshot_again(tmp_path):
    said: list[str] = []
    evaluator = BackgroundEvaluator(STAGE, said.append)
    evaluator.submit(Request(7, 1.0, (snapshot(tmp_path, "a"),), (3,)))
    assert evaluator.pid is not None
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, evaluator.pid) == min(mine + NICENESS, 19)  # from its start on
    os.kill(evaluator.pid, signal.SIGKILL)
    assert [a.request.step for a in evaluator.drain()] == [7]
    assert evaluator.restarts == 1
    assert "was started again" in said[0]
    evaluator.close()


def test_a_snapshot_that_cannot_be_played_is_told_and_others_follow(tmp_path):
    said: list[str] = []
    evaluator = BackgroundEvaluator(STAGE, said.append)
    evaluator.submit(Request(1, 1.0, (tmp_path / "missing",), (3,)))
    assert evaluator.drain() == []
    assert "no saved agent" in said[0]
    evaluator.submit(Request(2, 1.0, (snapshot(tmp_path, "a"),), (3,)))
    assert [a.request.step for a in evaluator.drain()] == [2]
    evaluator.close()


def test_a_run_is_evaluated_beside_its_training_while_its_evaluator_is_killed(tmp_path):
    said: list[str] = []
    values = {"total_timesteps": 12_288, "eval_freq": 2048, "n_eval_episodes": 4, "n_envs": 2}
    plan = launch.plan("ppo", "gym:CartPole-v1", values=values, use_preset=False)
    killed: list[int] = []

    class Killer:
        """Ends the evaluating process whenever a new one is seen, at most three times."""

        def write(self, step, seconds, values, seed=0):
            for path in Path("/proc").glob("[0-9]*/stat"):
                try:
                    text = path.read_text()
                except OSError:
                    continue
                pid, parent = int(path.parent.name), int(text.rpartition(")")[2].split()[1])
                line = (path.parent / "cmdline").read_bytes()
                if parent == os.getpid() and b"spawn_main" in line and pid not in killed and len(killed) < 3:
                    time.sleep(0.2)
                    killed.append(pid)
                    os.kill(pid, signal.SIGKILL)

        def close(self):
            pass

    outcome = launch.train(
        plan, run_dir=tmp_path / "run", display=lambda *_: [Killer()], say=said.append, device="cpu"
    )
    run = find(tmp_path / "run")
    assert killed
    assert sum("was started again" in line or "given up" in line for line in said) == len(killed)
    assert outcome.result.outcome == "finished"
    steps = sqlite.read(run.metrics, "eval/mean_reward").steps
    assert steps[-1] == outcome.result.steps
    found = json.loads(run.evaluation.read_text())
    assert found["best"]["step"] in steps
    assert found["best"]["selected"]["ci95"][0] <= found["best"]["selected"]["mean"]
    for name in ("best", "last"):
        assert found[name]["fresh"]["episodes"] == 4
        assert Agent.load(run.path / name).spec.id
    assert not list(run.snapshots.iterdir())
