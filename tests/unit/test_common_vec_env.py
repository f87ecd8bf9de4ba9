"""Vector environments with SB3's interface: auto-reset, infos, wrappers, workers, and training in them."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from sparring.common import vec_env
from sparring.common.env_util import make_vec_env
from sparring.common.translate import gym_space, unwrap
from sparring.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecEnv,
    VecEnvWrapper,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecVideoRecorder,
    as_vec_env,
)
from sparring.common.vec_env.picture import tiled
from sparring.common.vec_env.rows import VecRows
from sparring.envs.gym_spaces import observation_space
from sparring.envs.gymnasium import GymRows
from sparring.envs.workers import WorkerRows
from sparring.errors import ConfigError, EnvironmentFailure
from sparring.types import TimeStep

VECTOR = spaces.Box(-1, 99, (2,), np.float32)
IMAGE = spaces.Box(0, 255, (40, 40, 1), np.uint8)


class Count(gym.Env):
    """Shows the step number; ends after `length` steps, by itself or by truncation."""

    render_mode = "rgb_array"
    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012

    def __init__(self, length: int = 3, cut: bool = False, space: Any = VECTOR) -> None:
        self.observation_space, self.action_space = space, spaces.Discrete(2)
        self.length, self.cut, self.t, self.seeds = length, cut, 0, []

    def _look(self) -> Any:
        if isinstance(self.observation_space, spaces.Dict):
            return {n: np.full(s.shape, self.t + 1, s.dtype) for n, s in self.observation_space.items()}
        return np.full(self.observation_space.shape, self.t + 1, self.observation_space.dtype)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seeds.append(seed)
        self.t = 0
        return self._look(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        over = self.t >= self.length
        return self._look(), float(self.t), over and not self.cut, over and self.cut, {"t": self.t}

    def render(self) -> Any:
        return np.full((16, 16, 3), 10 * self.t, np.uint8)


def two(**kwargs: Any) -> DummyVecEnv:
    """A row that terminates after 3 steps and one that is truncated after 2."""
    return DummyVecEnv([lambda: Count(3, **kwargs), lambda: Count(2, cut=True, **kwargs)])


# -- the interface -------------------------------------------------------------------------------------------


def test_exports() -> None:
    assert all(hasattr(vec_env, name) for name in vec_env.__all__)


def test_auto_reset_and_infos() -> None:
    env = two()
    assert env.reset()[:, 0].tolist() == [1, 1]
    env.step([0, 0])
    obs, rewards, dones, infos = env.step(np.array([0, 1]))
    assert (obs[:, 0].tolist(), rewards.tolist(), dones.tolist()) == ([3, 1], [2, 2], [False, True])
    assert infos[0] == {"t": 2, "TimeLimit.truncated": False}
    assert infos[1]["TimeLimit.truncated"]
    assert infos[1]["terminal_observation"].tolist() == [3, 3]
    assert {k: infos[1]["episode"][k] for k in "rl"} == {"r": 3.0, "l": 2}
    infos = env.step([0, 0])[3]
    assert not infos[0]["TimeLimit.truncated"]
    assert {k: infos[0]["episode"][k] for k in "rl"} == {"r": 6.0, "l": 3}


def test_reaching_into_environments() -> None:
    env = two()
    assert env.get_attr("length") == [3, 2]
    env.set_attr("length", 9, indices=1)
    assert env.get_attr("length", [1]) == [9]
    assert env.env_method("_look", indices=0)[0].tolist() == [1, 1]
    assert env.env_is_wrapped(gym.Wrapper) == [False, False]
    compiled = make_vec_env("CartPole-v1", 2)
    with pytest.raises(ConfigError, match="vec_env_cls=DummyVecEnv"):
        compiled.get_attr("gravity")
    assert compiled.env_is_wrapped(gym.Wrapper) == [False, False]
    with pytest.raises(ConfigError, match="Reset options"):
        env.set_options({"x": 1})
    with pytest.raises(NotImplementedError, match="needs a method reset"):
        VecEnv(1, VECTOR, spaces.Discrete(2)).reset()


def test_seeds() -> None:
    a, b = make_vec_env("CartPole-v1", 2, seed=5), make_vec_env("CartPole-v1", 2)
    first, second = a.reset(), a.reset()
    assert not np.array_equal(first, second)
    assert not np.array_equal(b.reset(), first)
    assert b.seed(5) == [5, 6]
    assert np.array_equal(b.reset(), first)
    assert np.array_equal(b.reset(), second)


def test_one_object_is_not_several() -> None:
    env = Count()
    with pytest.raises(ConfigError, match="Each must build its own"):
        DummyVecEnv([lambda: env] * 2)
    with pytest.raises(ConfigError, match="functions that build"):
        DummyVecEnv([env])  # type: ignore[list-item]


def test_pictures(tmp_path: Path) -> None:
    env = two()
    env.reset()
    env.step([0, 0])
    picture = env.render()
    assert picture is not None
    assert picture.shape == (32, 16, 3)
    assert tiled([np.full((2, 2, 3), i, np.uint8) for i in range(3)])[:, :, 0].tolist() == [
        [0, 0, 1, 1],
        [0, 0, 1, 1],
        [2, 2, 0, 0],
        [2, 2, 0, 0],
    ]
    film = VecVideoRecorder(two(), str(tmp_path / "videos"), lambda step: step == 2, video_length=4)
    film.reset()
    for _ in range(8):
        film.step([0, 0])
    film.close()
    assert [p.name for p in (tmp_path / "videos").iterdir()] == ["rl-video-step-2-to-step-6.mp4"]
    assert film.video_path is not None
    blind = DummyVecEnv([lambda: gym.make("CartPole-v1")])
    with pytest.raises(ConfigError, match="render_mode='rgb_array'"):
        VecVideoRecorder(blind, str(tmp_path), lambda step: True)


def test_monitor_of_rows(tmp_path: Path) -> None:
    from sparring.common.monitor import read_results

    env = VecMonitor(two(), str(tmp_path / "log"), info_keywords=("t",))
    env.reset()
    for _ in range(6):
        infos = env.step([0, 0])[3]
    assert infos[0]["episode"]["r"] == 6.0
    env.close()
    results = read_results(str(tmp_path))
    assert sorted(results["r"].tolist()) == [3, 3, 3, 6, 6]


def test_vector_environments() -> None:
    made = gym.make_vec("CartPole-v1", 2, vectorization_mode="sync")
    env = as_vec_env(made)
    env.reset()
    for _ in range(40):
        obs, _, dones, infos = env.step([0, 0])
        if dones.any():
            break
    assert obs.shape == (2, 4)
    assert "terminal_observation" in infos[int(np.flatnonzero(dones)[0])]
    env.close()


# -- workers -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_workers_equal_this_process() -> None:
    make = functools.partial(gym.make, "CartPole-v1", max_episode_steps=7)
    apart, here = SubprocVecEnv([make, make]), DummyVecEnv([make, make])
    assert isinstance(apart.rows, WorkerRows)
    for env in (apart, here):
        env.seed(3)
    assert np.array_equal(apart.reset(), here.reset())
    for step in range(15):
        ours, theirs = apart.step([step % 2, 1]), here.step([step % 2, 1])
        assert all(np.array_equal(a, b) for a, b in zip(ours[:3], theirs[:3], strict=True))
        assert [i["TimeLimit.truncated"] for i in ours[3]] == [i["TimeLimit.truncated"] for i in theirs[3]]
    with pytest.raises(ConfigError, match="cannot be reached"):
        apart.get_attr("spec")
    apart.close()


def test_functions_that_cannot_travel_stay_here() -> None:
    with pytest.warns(UserWarning, match=r"cannot travel.*vec_env_cls=SubprocVecEnv"):
        env = SubprocVecEnv([lambda: gym.make("CartPole-v1")] * 2)
    assert isinstance(env.rows, GymRows)
    with pytest.raises(ConfigError, match="deadlock"):
        SubprocVecEnv([functools.partial(gym.make, "CartPole-v1")], start_method="fork")


# -- frame stack ---------------------------------------------------------------------------------------------


def test_frame_stack_of_vectors() -> None:
    env = VecFrameStack(two(), 3)
    assert env.observation_space.shape == (6,)
    assert env.reset()[0].tolist() == [0, 0, 0, 0, 1, 1]
    assert env.step([0, 0])[0][0].tolist() == [0, 0, 1, 1, 2, 2]
    obs, _, _, infos = env.step([0, 0])
    assert obs[0].tolist() == [1, 1, 2, 2, 3, 3]
    assert obs[1].tolist() == [0, 0, 0, 0, 1, 1]
    assert infos[1]["terminal_observation"].tolist() == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("shape", "order", "stacked"),
    [
        ((40, 40, 1), None, (40, 40, 3)),
        ((1, 40, 40), None, (3, 40, 40)),
        ((40, 40, 1), "first", (120, 40, 1)),
    ],
)
def test_frame_stack_of_images(shape: Any, order: Any, stacked: Any) -> None:
    env = VecFrameStack(two(space=spaces.Box(0, 255, shape, np.uint8)), 3, channels_order=order)
    assert env.observation_space.shape == stacked
    obs = env.reset()
    assert (obs.shape, obs.dtype) == ((2, *stacked), np.uint8)
    obs = env.step([0, 0])[0]
    axis = 1 if stacked[0] != 40 else -1
    assert [int(part.max()) for part in np.split(obs[0], 3, axis - 1 if axis == 1 else -1)] == [0, 1, 2]


def test_frame_stack_of_dicts() -> None:
    env = VecFrameStack(two(space=spaces.Dict(a=VECTOR, b=IMAGE)), 2, {"a": None, "b": "last"})
    obs = env.reset()
    assert {name: part.shape for name, part in obs.items()} == {"a": (2, 4), "b": (2, 40, 40, 2)}
    env.step([0, 0])
    assert env.step([0, 0])[3][1]["terminal_observation"]["a"].tolist() == [2, 2, 3, 3]
    with pytest.raises(ConfigError, match="stacks Box observations"):
        VecFrameStack(two(space=spaces.Dict(a=spaces.Discrete(9))), 2)


# -- as a world to train in ----------------------------------------------------------------------------------


def test_what_is_trained_in() -> None:
    compiled = make_vec_env("CartPole-v1", 3)
    given = unwrap(VecNormalize(compiled, norm_reward=False, clip_obs=5.0))
    assert given.world is compiled.rows.env
    assert given.rows == 3
    wanted = {"normalize_obs": True, "normalize_reward": False, "clip_obs": 5.0, "clip_reward": 10.0}
    assert given.config == wanted
    here = two()
    assert unwrap(here).world is here.rows
    assert isinstance(unwrap(VecFrameStack(VecNormalize(here), 2)).world, VecRows)
    assert unwrap("gym:CartPole-v1", 2).rows == 2
    assert unwrap(None).world is None


def test_wrapped_rows_are_a_host_environment() -> None:
    rows = VecRows(VecMonitor(two()))
    start = rows.reset(0)
    assert start.obs[:, 0].tolist() == [1, 1]
    rows.step(np.array([0, 0]))
    step = rows.step(np.array([0, 0]))
    assert isinstance(step, TimeStep)
    assert (step.terminated.tolist(), step.truncated.tolist()) == ([False, False], [False, True])
    assert (step.obs[:, 0].tolist(), step.next_obs[:, 0].tolist()) == ([3, 1], [3, 3])
    step = rows.step(np.array([0, 0]))
    assert (step.terminated.tolist(), step.truncated.tolist()) == ([True, False], [False, False])
    assert rows.foreign == 0
    rows.venv.reset()
    assert rows.foreign == 1
    assert rows.snapshot() is None
    with pytest.raises(EnvironmentFailure, match="cannot be restored"):
        rows.restore({}, 0)


def test_rows_that_a_worker_lost() -> None:
    class Losing(VecEnvWrapper):
        def step_wait(self) -> Any:
            obs, rewards, dones, infos = self.venv.step_wait()
            dones = np.array([True, False])
            infos[0] |= {"lost": True}
            return obs, rewards, dones, infos

    step = VecRows(Losing(two()))
    step.reset(0)
    lost = step.step(np.array([0, 0]))
    assert lost.lost is not None
    assert lost.lost.tolist() == [True, False]
    assert not (lost.terminated | lost.truncated).any()
    assert lost.reward.tolist() == [0, 1]


def test_an_ending_without_its_observation_is_explained() -> None:
    class Forgetful(VecEnvWrapper):
        def step_wait(self) -> Any:
            obs, rewards, dones, _ = self.venv.step_wait()
            return obs, rewards, dones, [{}, {}]

    rows = VecRows(Forgetful(two()))
    rows.reset(0)
    rows.step(np.array([0, 0]))
    with pytest.raises(EnvironmentFailure, match="terminal_observation"):
        rows.step(np.array([0, 0]))


def test_wrappers_pass_everything_on() -> None:
    env = VecEnvWrapper(VecMonitor(two()))
    assert env.get_attr("length") == [3, 2]
    assert env.unwrapped is env.venv.venv
    assert vec_env.is_vecenv_wrapped(env, VecMonitor)
    assert not vec_env.is_vecenv_wrapped(env, VecNormalize)
    assert vec_env.unwrap_vec_normalize(env) is None
    assert env.made_from is None  # an attribute of the innermost
    with pytest.raises(AttributeError):
        _ = env.nothing
    with env as same:
        assert same is env
    vec_env.sync_envs_normalization(env, env)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(4),
        spaces.Box(np.array([-1, -2], np.float32), np.array([1, np.inf], np.float32)),
        IMAGE,
        spaces.Dict(a=spaces.Discrete(2), b=VECTOR),
    ],
)
def test_spaces_there_and_back(space: Any) -> None:
    assert gym_space(observation_space(space)) == space
