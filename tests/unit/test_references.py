"""A replay that keeps the numbers of observations which are windows of known data."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import jax
import numpy as np
import pytest

from sparring import DQN
from sparring.config import from_mapping
from sparring.envs import registry
from sparring.envs.check import check
from sparring.errors import CheckpointError, ConfigError
from sparring.model import algorithm_class, assemble
from sparring.session import Settings

WIDTH = 6
SERIES = np.cumsum(np.random.default_rng(0).normal(size=2000)).astype(np.float32)


class Windows(gym.Env):
    """Guess whether a known series rises; an observation is its last numbers."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (WIDTH,), np.float32)
    action_space = gym.spaces.Discrete(2)
    kept = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.steps = int(self.np_random.integers(WIDTH, 1900)), 0
        return self._window(), {}

    def step(self, action):
        reward = float((SERIES[self.at + 1] > SERIES[self.at]) == bool(action))
        self.at, self.steps = self.at + 1, self.steps + 1
        return self._window(), reward, self.steps == 17 and self.at % 2 == 0, self.steps >= 30, {}

    def _window(self):
        return SERIES[self.at - WIDTH : self.at]

    def observation_reference(self) -> int:
        return self.at

    def resolve_observations(self, references: np.ndarray) -> np.ndarray:
        return SERIES[references[..., None] - WIDTH + np.arange(WIDTH)]


class Doubled(gym.ObservationWrapper):
    def observation(self, observation):
        return 2.0 * observation


TINY = {
    "buffer_size": 300,
    "learning_starts": 40,
    "batch_size": 16,
    "train_freq": 8,
    "gradient_steps": 2,
    "net_arch": [16],
}


def made(values: dict[str, Any], env: Any = Windows, rows: int = 3, **settings: Any) -> Any:
    cls = algorithm_class("dqn")
    config = from_mapping(cls.Config, {**TINY, **values})
    return assemble(cls, [env] * rows, Settings(n_envs=rows, **settings), config, (0,), eval_env=False).driver


def weights(driver: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x in jax.tree.leaves(driver.train_state())]


@pytest.mark.parametrize("more", [{}, {"n_steps": 3}, {"frame_stack": 2}])
def test_references_learn_what_observations_learn_bit_for_bit(more):
    by_number, by_window = made(more), made({**more, "buffer": "host"})
    a, b = (driver.advance(40)[0] for driver in (by_number, by_window))
    for x, y in zip(weights(by_number), weights(by_window), strict=True):
        np.testing.assert_array_equal(x, y)
    assert a["train/loss"][-1] == b["train/loss"][-1] > 0.0
    kept = by_number.world()
    assert kept["replay/frames-0"].dtype == np.int64
    assert kept["replay/frames-0"].ndim == 2
    assert by_number.replay_bytes < by_window.replay_bytes


def test_five_million_references_take_less_than_half_a_gigabyte():
    from sparring.replay.host_ring import HostRing

    driver = made({})
    example = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), driver._buffers)
    needed = HostRing.predicted_bytes(driver._referred(example), 5_000_000)
    assert needed <= 0.5e9
    assert HostRing.predicted_bytes(example, 5_000_000) > needed


def test_a_resumed_run_goes_on_with_its_references():
    straight, cut = made({}), made({})
    straight.advance(30)
    cut.advance(20)
    again = made({})
    world = {name: np.array(x) for name, x in cut.world().items()}
    again.restore(cut.state(), cut.iteration)
    again.restore_world(world)
    again.advance(10)
    for x, y in zip(weights(straight), weights(again), strict=True):
        np.testing.assert_array_equal(x, y)
    np.testing.assert_array_equal(straight.world()["replay/frames-0"], again.world()["replay/frames-0"])


def test_the_class_takes_them_too():
    few = {"learning_starts": 10, "buffer_size": 100, "run_dir": False}
    model = DQN("MlpPolicy", Windows(), buffer="reference", seed=0, **few)
    model.learn(60)
    assert model.num_timesteps == 60


def test_a_wrapper_that_changes_observations_is_refused():
    with pytest.raises(ConfigError, match="buffer=host"):
        made({}, env=lambda: Doubled(Windows()))
    made({"buffer": "host"}, env=lambda: Doubled(Windows())).advance(8)


def test_references_are_refused_where_there_are_none():
    with pytest.raises(ConfigError, match="observation_reference"):
        made({"buffer": "reference"}, env=lambda: gym.make("CartPole-v1"))
    with pytest.raises(ConfigError, match="uniformly"):
        made({"buffer": "reference", "prioritized": True})


def test_workers_keep_observations():
    world = registry.make([Windows] * 2, n_envs=2, backend="workers")
    try:
        assert not world.spec.refers
        assert world.reset(0).reference is None
    finally:
        world.close()


def test_check_env_compares_what_numbers_stand_for():
    good = [f for f in check(Windows) if "number" in f.what]
    assert [f.level for f in good] == ["ok"]
    bad = [f for f in check(lambda: Doubled(Windows())) if "number" in f.what]
    assert [f.level for f in bad] == ["error"]


class Wrong(Windows):
    """The same world, but its numbers stand for other windows, or for none."""

    def _window(self):
        return self.series()[self.at - WIDTH : self.at]

    def resolve_observations(self, references: np.ndarray) -> np.ndarray:
        return self.series()[references[..., None] - WIDTH + np.arange(WIDTH)]

    def series(self) -> np.ndarray:
        return np.concatenate([SERIES[:1000], SERIES[1000:] + 1.0])


class Short(Wrong):
    def series(self) -> np.ndarray:
        return SERIES[:100]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = WIDTH
        return self._window(), {}


@pytest.mark.parametrize("env", [Wrong, Short])
def test_a_replay_whose_data_have_changed_is_refused(env):
    cut = made({})
    cut.advance(20)
    again = made({}, env=env)
    world = {name: np.array(x) for name, x in cut.world().items()}
    again.restore(cut.state(), cut.iteration)
    with pytest.raises(CheckpointError, match="data it was saved with"):
        again.restore_world(world)
    assert not again.take_over(cut.replayed())
    assert made({}).take_over(cut.replayed())
    assert made({}).take_over(made({}).replayed()), "nothing was referred to yet"
