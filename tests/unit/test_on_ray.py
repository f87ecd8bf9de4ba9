"""On Ray: a replay in shards gives what one ring gives and survives a lost shard; an actor evaluates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from scipy.stats import chi2

from sparring import launch
from sparring.background import Request, RequestPlayer, Stage
from sparring.config import from_mapping
from sparring.drivers import remote, shards
from sparring.drivers.cluster import ClusterRun, RaySeat, _trouble, connect
from sparring.drivers.ray_library import library
from sparring.drivers.remote import RemoteRun
from sparring.drivers.shards import ShardedRing, ShardLost
from sparring.drivers.tree_shards import ShardedTree, TreeShard
from sparring.errors import CheckpointError, ConfigError, EnvironmentFailure, LearnerLost
from sparring.metrics import sqlite
from sparring.model import algorithm_class, assemble
from sparring.remote_evaluator import ClusterEvaluator, Remote
from sparring.replay.host_ring import HostRing
from sparring.replay.prioritised import Prioritised
from sparring.replay.sequence import Sequence
from sparring.session import Settings
from sparring.types import Report, Transition

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


def numbered(random: np.random.Generator, first: int) -> Transition:
    """A rollout whose rewards are all different whole numbers."""
    data = rollout(random)
    return data._replace(reward=np.arange(first, first + STEPS * ROWS, dtype=np.float32).reshape(STEPS, ROWS))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_shards_draw_by_the_mass_of_all(ray: Any) -> None:
    """A step's share of the draws and its N·P are those of one replay, also after errors came back."""
    random = np.random.default_rng(0)
    kept = Prioritised(CAPACITY, 32, alpha=0.7, minimum=30)
    shared = ShardedTree(kept, shapes(rollout(random)), 2)
    whole = kept.init(shapes(rollout(random)))
    for i in range(4):
        assert shared.draw(2, random).weight.shape == ((0, 32) if shared.written < 30 else (2, 32))
        data = numbered(random, 100 * i)
        shared.add(data)
        whole = jax.jit(kept.add)(whole, data)
    assert shared.written == int(kept.drawable(whole))

    drawn = shared.draw(40, random)
    mass = {float(r): 1.0 for r in np.unique(drawn.data.reward)}
    assert len(mass) == shared.written
    np.testing.assert_allclose(drawn.weight, 1.0, rtol=1e-5)
    errors = np.abs(random.normal(size=drawn.weight.shape)).astype(np.float32)
    shared.renew(errors, kept)
    for reward in mass:  # of several errors of a step, the largest counts
        mass[reward] = (errors[drawn.data.reward[..., 0] == reward].max() + kept.epsilon) ** kept.alpha

    again = shared.draw(200, random)
    total = sum(mass.values())
    for reward, weight in zip(again.data.reward[..., 0].flat, again.weight.flat, strict=True):
        assert weight == pytest.approx(len(mass) * mass[float(reward)] / total, rel=1e-4)
    rewards, counts = np.unique(again.data.reward, return_counts=True)
    expected = {r: 200 * 32 * m / total for r, m in mass.items()}
    found = dict(zip(rewards.tolist(), counts.tolist(), strict=True))
    statistic = sum((found.get(r, 0) - e) ** 2 / e for r, e in expected.items())
    assert statistic < chi2.ppf(0.999, len(mass) - 1)
    shared.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_shards_hold_the_sequences_of_one_replay(ray: Any) -> None:
    random = np.random.default_rng(1)
    kept = Sequence(CAPACITY, 8, 3, burn_in=1, alpha=0.0, minimum=1)
    shared, whole = ShardedTree(kept, shapes(rollout(random)), 2), kept.init(shapes(rollout(random)))
    for i in range(8):  # more than fits
        data = numbered(random, 100 * i)
        shared.add(data)
        whole = jax.jit(kept.add)(whole, data)
    leaves = np.flatnonzero(np.asarray(whole.live.tree.leaves) > 0)
    there = kept.take(whole.data, jax.numpy.asarray(leaves, jax.numpy.int32))

    def content(data: Any) -> set[tuple[float, ...]]:
        """Every sequence as its rewards, and where it starts and ends."""
        shown = np.where(data.mask, data.reward, -1.0).reshape(-1, 4)
        over = np.where(data.mask, data.terminated | data.truncated, False).reshape(-1, 4)
        first = np.where(data.mask, data.first, False).reshape(-1, 4)
        return {tuple(map(float, row)) for row in np.concatenate([shown, over, first], axis=1)}

    assert content(shared.draw(60, random).data) == content(there)
    again = ShardedTree(kept, shapes(rollout(random)), 2)
    again.restore(shared.state())
    drawn = [tree.draw(2, np.random.default_rng(5)) for tree in (shared, again)]
    jax.tree.map(np.testing.assert_array_equal, *drawn)
    with pytest.raises(CheckpointError, match="replay_shards"):
        again.restore({**shared.state(), "0-0": np.zeros(3)})

    ray.kill(again._shards[1])
    left = again.draw(2, random)
    assert content(left.data) < content(there)
    assert "Replay shard 1 died" in again.news[0]
    for tree in (shared, again):
        tree.close()


def test_what_fills_up_a_call_of_a_shard_says_nothing_of_its_heads() -> None:
    random = np.random.default_rng(2)
    kept = Sequence(CAPACITY, 8, 3, burn_in=1, alpha=0.9, minimum=1, heads=2)
    shard = TreeShard(kept, shapes(rollout(random)))
    for i in range(8):
        shard.add(numbered(random, 100 * i))
    held = shard._memory
    point = random.random(9) * shard.standing()[0]
    taken = shard.take(point.astype(np.float32), np.zeros(9, np.float32))  # 16 to the program
    errors = random.normal(size=(9, 3, 2)).astype(np.float32) * np.float32([1.0, 100.0])
    shard.renew(errors, {"alpha": 0.9, "eta": 0.9})
    batch, report = jax.tree.map(jax.numpy.asarray, (taken, Report({}, errors)))
    wanted = kept.feedback(held, batch, report)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), shard._memory.live, wanted)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_gdi_learns_from_sequences_in_shards(ray: Any) -> None:
    settings = Settings(n_envs=ROWS, driver="cluster", actors=2, replay_shards=2)
    cls = algorithm_class("gdi")
    values = {**TINY, "sequence_length": 8, "prioritized": True, "priority_alpha": "linear(0.9, 0.1)"}
    config = from_mapping(cls.Config, values)
    run: Any = assemble(cls, "gym:CartPole-v1", settings, config, (0,), eval_env=False).driver
    run.reschedule(100.0)
    try:
        told = run.advance(10)[0]
        assert told["train/n_updates"][-1] > 0
        assert run._ring.written == run.steps_per_iteration * run.iteration
        masses, counts = zip(*run._ring._all("standing"), strict=True)
        assert all(0 < count < 40 for count in counts)
        assert np.not_equal(masses, counts).all()  # 1 each, had no error come back
        world, state = run.world(), run.state()
        run.restore(state, run.iteration)
        run.restore_world(world)
        assert run.advance(2)[0]["train/n_updates"][-1] > told["train/n_updates"][-1]
    finally:
        run.close()


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
    run = learner_elsewhere(replay_shards=2)
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
    with pytest.raises(ConfigError, match="No node of the cluster had a free core and 1 GPU for"):
        learner_elsewhere(learner_gpus=1)
    monkeypatch.setattr(remote, "PLACE_SECONDS", 60.0)
    with pytest.raises(ConfigError, match="cannot be shared evenly by replay_shards=3"):
        learner_elsewhere(replay_shards=3)


def gone() -> dict[str, Exception]:
    """What Ray raises where a node went: before an answer, or with one that was not fetched yet."""
    found = library().exceptions
    lost = (found.ObjectLostError, found.OwnerDiedError, found.ObjectFetchTimedOutError)
    raised = [each("00" * 28, None, "") for each in lost]
    return {type(error).__name__: error for error in (*raised, found.NodeDiedError("gone"))}


class Raising:
    """Ray, whose every `get` raises this."""

    def __init__(self, error: Exception) -> None:
        self.error, self.exceptions = error, library().exceptions

    def get(self, call: Any) -> Any:
        raise self.error


@pytest.mark.parametrize(
    "name", ["ObjectLostError", "OwnerDiedError", "ObjectFetchTimedOutError", "NodeDiedError"]
)
def test_an_answer_that_went_with_its_node_is_a_loss(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = Raising(gone()[name])
    monkeypatch.setattr(shards, "library", lambda: ray)
    monkeypatch.setattr(ShardedRing, "_made", lambda self: object())
    ring = ShardedRing(shapes(rollout(np.random.default_rng(0))), CAPACITY, 1, 1, shards=2)
    assert ring._waited(1, None) is None
    assert "Replay shard 1 died, or its node left the cluster" in ring.news[0]
    learner = object.__new__(RemoteRun)
    learner._ray = ray
    with pytest.raises(LearnerLost, match="or its node left the cluster"):
        learner._answered(None)
    evaluator = object.__new__(Remote)
    evaluator._ray, evaluator._call = ray, None
    with pytest.raises(EOFError):
        evaluator.recv()
    assert "its node left" in _trouble(ray.error, ray).reason


def test_what_a_shard_or_a_learner_raises_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    error = library().exceptions.RayTaskError("take", "traceback", ValueError("a bug"))
    ray = Raising(error.as_instanceof_cause())
    monkeypatch.setattr(shards, "library", lambda: ray)
    monkeypatch.setattr(ShardedRing, "_made", lambda self: object())
    ring = ShardedRing(shapes(rollout(np.random.default_rng(0))), CAPACITY, 1, 1, shards=2)
    with pytest.raises(ValueError, match="traceback"):
        ring._waited(1, None)
    learner = object.__new__(RemoteRun)
    learner._ray = ray
    with pytest.raises(EnvironmentFailure, match="ValueError: a bug"):
        learner._answered(None)


def test_an_actor_may_be_silent_for_longer_than_its_chunks_take() -> None:
    seat = object.__new__(RaySeat)
    seat.made, seat._longest = 0, 0.0
    assert seat.patience(3.0) == 180.0
    seat.made, seat._longest = 1, 0.5
    assert seat.patience(3.0) == 3.0
    seat._longest = 8.0
    assert seat.patience(3.0) == 24.0


def test_who_waits_for_a_node_is_not_silent() -> None:
    placed: list[bool] = []

    class Waiting:
        def wait(self, calls: Any, timeout: float) -> Any:
            return (calls, []) if placed else ([], calls)

    seat = object.__new__(RaySeat)
    seat.made, seat._asked, seat._ready, seat._ray = 0, 2, None, Waiting()
    assert seat._pulse() != seat._pulse()
    placed.append(True)
    assert seat._pulse() == seat._pulse() == 0
    seat.made = 1
    assert seat._pulse() == seat._pulse() == 1
    seat.made = 2  # it owes nothing
    assert seat._pulse() != seat._pulse()


def test_a_learner_elsewhere_needs_a_cluster() -> None:
    for driver in ("async", "auto"):
        with pytest.raises(ConfigError, match="learner=here"):
            learner_elsewhere(driver=driver)


def test_shards_need_a_cluster_and_a_replay_of_the_hosts() -> None:
    cls = algorithm_class("dqn")
    for settings, extra, words in (
        (Settings(n_envs=4, driver="async", replay_shards=2), {"buffer": "host"}, "driver=cluster"),
        (Settings(n_envs=4, driver="cluster", replay_shards=2), {}, "Set buffer=host"),
        (
            Settings(n_envs=4, driver="cluster", replay_shards=2),
            {"buffer_folder": "frames"},
            "none of them reads buffer_folder='frames'",
        ),
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
