"""On Ray: a replay in shards gives what one ring gives and survives a lost shard; an actor evaluates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from sparring import launch
from sparring.background import Request, RequestPlayer, Stage
from sparring.config import from_mapping
from sparring.drivers import remote
from sparring.drivers.cluster import ClusterRun, connect
from sparring.drivers.ray_library import library
from sparring.drivers.remote import RemoteRun
from sparring.drivers.shards import ShardedRing, ShardLost
from sparring.errors import ConfigError, LearnerLost
from sparring.metrics import sqlite
from sparring.model import algorithm_class, assemble
from sparring.remote_evaluator import ClusterEvaluator
from sparring.replay.host_ring import HostRing
from sparring.session import Settings
from sparring.types import Transition

pytestmark = pytest.mark.filterwarnings("ignore:.*fork")  # Ray starts its servers from this process

STEPS, ROWS, CAPACITY = 4, 4, 96
TINY = {"net_arch": [8], "buffer_size": 200, "learning_starts": 16, "batch_size": 8, "train_freq": 4}


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    assert connect("", 2)
    try:
        yield library()
    finally:
        library().shutdown()


def rollout(random: np.random.Generator) -> Transition:
    """Steps of episodes that end now and then; some rows have none."""
    shape = (STEPS, ROWS)
    over, terminated = random.random(shape) < 0.2, random.random(shape) < 0.5
    return Transition(
        obs=random.normal(size=(*shape, 3)).astype(np.float32),
        action=random.integers(0, 5, shape).astype(np.int32),
        reward=random.normal(size=shape).astype(np.float32),
        terminated=over & terminated,
        truncated=over & ~terminated,
        next_obs=random.normal(size=(*shape, 3)).astype(np.float32),
        extras=None,
        mask=random.random(shape) < 0.9,
    )


def shapes(data: Transition) -> Transition:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), data)


def draws(random: np.random.Generator, windows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    row = random.choice(np.flatnonzero(windows), 16)
    return row, (random.random(16) * windows[row]).astype(np.int64)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_shards_hold_what_one_ring_holds(ray: Any) -> None:
    random = np.random.default_rng(0)
    plan = (shapes(rollout(random)), CAPACITY, 2, 1)
    whole, shared = HostRing(*plan), ShardedRing(*plan, shards=2)
    for _ in range(10):  # more than fits
        data = rollout(random)
        whole.add(data)
        shared.add(data)
        assert shared.written == whole.written
        windows = whole.windows()
        np.testing.assert_array_equal(shared.windows(), windows)
        wanted = draws(random, windows)
        jax.tree.map(np.testing.assert_array_equal, shared.take(*wanted).data, whole.take(*wanted).data)
    again = ShardedRing(*plan, shards=2)
    again.restore(shared.state())
    assert again.written == shared.written
    jax.tree.map(np.testing.assert_array_equal, again.take(*wanted).data, whole.take(*wanted).data)

    ray.kill(again._shards[1])
    with pytest.raises(ShardLost):
        again.take(*wanted)
    np.testing.assert_array_equal(again.windows() > 0, [True, True, False, False])
    assert "Replay shard 1 died" in again.news[0]
    again.add(data)
    assert (again.windows()[2:] > 0).any()
    for ring in (shared, again):
        ring.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_learner_learns_from_shards(ray: Any) -> None:
    settings = Settings(n_envs=ROWS, driver="cluster", actors=2, replay_shards=2)
    cls = algorithm_class("dqn")
    config = from_mapping(cls.Config, {**TINY, "buffer": "host"})
    run: Any = assemble(cls, "gym:CartPole-v1", settings, config, (0,), eval_env=False).driver
    assert isinstance(run, ClusterRun)
    run.reschedule(100.0)
    try:
        told = run.advance(8)[0]
        assert told["train/n_updates"][-1] > 0
        assert run._ring.written == run.steps_per_iteration * run.iteration
        ray.kill(run._ring._shards[0])
        before = told["train/n_updates"][-1]
        assert run.advance(3)[0]["train/n_updates"][-1] > before
        assert any("Replay shard 0 died" in event for event in run.events())
    finally:
        run.close()


def learner_elsewhere(**settings: Any) -> Any:
    """A run whose learner is an actor of the cluster, with its replay in shards besides."""
    chosen = {"n_envs": ROWS, "driver": "cluster", "learner": "cluster", "actors": 2, **settings}
    cls = algorithm_class("dqn")
    config = from_mapping(cls.Config, {**TINY, "buffer": "host"})
    return assemble(cls, "gym:CartPole-v1", Settings(**chosen), config, (0,), eval_env=False).driver


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_learner_is_an_actor_of_the_cluster(ray: Any) -> None:
    """It learns there, is saved and restored from here, and its death is told with the way out."""
    run = learner_elsewhere()
    try:
        assert isinstance(run, RemoteRun)
        run.reschedule(100.0)
        told = run.advance(8)[0]
        assert run.iteration == 8
        assert told["train/n_updates"][-1] > 0
        assert run.seconds["update"] > 0
        state, world = run.state(), run.world()
        jax.tree.map(np.testing.assert_array_equal, run.train_state(), state.learner.train)
        assert jax.tree.structure(run.acting()) == jax.tree.structure(state.actor)
        run.advance(1)
        run.restore(state, 8)
        run.restore_world(world)
        assert run.iteration == 8
        jax.tree.map(np.testing.assert_array_equal, run.train_state(), state.learner.train)
        assert any("start anew" in event for event in run.events())
        ray.kill(run._learner)
        with pytest.raises(LearnerLost, match="sparring resume"):
            run.advance(1)
    finally:
        run.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("dies_at", [8, 30])  # before the first checkpoint, and after it
def test_another_learner_takes_over(
    ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_at: int
) -> None:
    """The run goes on from its newest checkpoint, by itself, and tells every step once."""
    drivers: list[RemoteRun] = []
    advance = RemoteRun.advance

    def advance_and_kill_once(self: RemoteRun, iterations: int) -> Any:
        if self not in drivers:
            drivers.append(self)
        if len(drivers) == 1 and self.iteration >= dies_at:
            ray.kill(self._learner)
        return advance(self, min(iterations, 4))

    monkeypatch.setattr(RemoteRun, "advance", advance_and_kill_once)
    values = {**TINY, "n_envs": ROWS, "driver": "cluster", "learner": "cluster", "actors": 2}
    values |= {"buffer": "host", "total_timesteps": 800, "checkpoint_freq": 320, "eval_freq": -1}
    said: list[str] = []
    plan = launch.plan("dqn", "gym:CartPole-v1", values=values, use_preset=False)
    run, result = launch.train(plan, run_dir=tmp_path / "run", say=said.append)
    assert result.outcome == "finished"
    assert len(drivers) == 2
    assert sum("Doing that now" in line for line in said) == 1
    assert run.read_status().steps >= 800
    steps = sqlite.read(run.metrics, "train/n_updates").steps
    assert (np.diff(steps) > 0).all()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_learners_that_die_again_and_again_end_the_run(
    ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "LEARNERS_LOST", 2)

    def kill_and_ask(self: RemoteRun, iterations: int) -> Any:
        ray.kill(self._learner)
        return self._ask("advance", iterations)

    monkeypatch.setattr(RemoteRun, "advance", kill_and_ask)
    values = {**TINY, "n_envs": ROWS, "driver": "cluster", "learner": "cluster", "actors": 2}
    plan = launch.plan("dqn", "gym:CartPole-v1", values={**values, "buffer": "host"}, use_preset=False)
    said: list[str] = []
    with pytest.raises(LearnerLost, match="sparring resume"):
        launch.train(plan, run_dir=tmp_path / "run", say=said.append)
    assert sum("Doing that now" in line for line in said) == 1


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_learner_that_finds_no_place_or_cannot_work_says_so(
    ray: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "PLACE_SECONDS", 2.0)
    with pytest.raises(ConfigError, match="No node of the cluster had a free core and 1 GPUs"):
        learner_elsewhere(learner_gpus=1)
    monkeypatch.setattr(remote, "PLACE_SECONDS", 60.0)
    with pytest.raises(ConfigError, match="cannot be shared evenly by replay_shards=3"):
        learner_elsewhere(replay_shards=3)


def test_a_learner_elsewhere_needs_a_cluster() -> None:
    for driver in ("async", "auto"):
        with pytest.raises(ConfigError, match="learner=here"):
            learner_elsewhere(driver=driver)


def test_shards_need_a_cluster_and_a_replay_of_the_hosts() -> None:
    cls = algorithm_class("dqn")
    for settings, extra, words in (
        (Settings(n_envs=4, driver="async", replay_shards=2), {"buffer": "host"}, "driver=cluster"),
        (Settings(n_envs=4, driver="cluster", replay_shards=2), {}, "Set buffer=host"),
    ):
        with pytest.raises(ConfigError, match=words):
            assemble(cls, "gym:CartPole-v1", settings, from_mapping(cls.Config, {**TINY, **extra}), (0,))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_actor_of_the_cluster_evaluates(ray: Any, tmp_path: Path) -> None:
    values = {"n_envs": 2, "total_timesteps": 64, "eval_freq": -1, "n_eval_episodes": 2}
    plan = launch.plan("a2c", "gym:CartPole-v1", values=values, use_preset=False)
    run = launch.train(plan, run_dir=tmp_path / "run", say=lambda text: None).run
    said: list[str] = []
    evaluator = ClusterEvaluator(Stage("gym:CartPole-v1", {}, None, 2, 3, trusted=False), said.append)
    request = Request(64, 1.0, (run.last,), (5,), keep=True, points=(None,))
    try:
        evaluator.submit(request)
        ray.kill(evaluator._process._actor)
        (answer,) = evaluator.drain()
        here = RequestPlayer(evaluator.stage)
        _, greedy, _, _ = here.answer(request)
        here.close()
    finally:
        evaluator.close()
    assert evaluator.restarts == 1
    assert "died and was started again" in said[0]
    np.testing.assert_array_equal(answer.greedy[0].returns, greedy[0].returns)
    assert len(answer.sampled[0].returns) == 3
