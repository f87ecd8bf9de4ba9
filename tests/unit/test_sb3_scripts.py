"""Scripts written for Stable-Baselines3 run when the module's name is changed, and nothing else."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from test_model import compiled_once  # noqa: F401 - a fixture

README = """
    import gymnasium as gym
    from stable_baselines3 import PPO

    env = gym.make("CartPole-v1")
    model = PPO("MlpPolicy", env, n_steps=256, verbose=1)
    model.learn(total_timesteps=512)

    vec_env = model.get_env()
    obs = vec_env.reset()
    returns = []
    for i in range(501):
        action, _states = model.predict(obs, deterministic=True)
        obs, reward, done, info = vec_env.step(action)
        if done[0]:
            returns.append(info[0]["episode"]["r"])
    env.close()
"""

NORMALISED = """
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize

    env = make_vec_env("CartPole-v1", n_envs=4, seed=0)
    env = VecNormalize(env, norm_obs=True, norm_reward=True, clip_obs=10.0)
    small = dict(net_arch=[16], ortho_init=False)
    model = PPO("MlpPolicy", env, n_steps=32, batch_size=64, n_epochs=2, policy_kwargs=small, seed=1)
    model.learn(256)
    model.save("ppo_cartpole")
    env.save("vec_normalize.pkl")
    seen = env.obs_rms.mean.copy()
    del model, env

    env = VecNormalize.load("vec_normalize.pkl", make_vec_env("CartPole-v1", n_envs=4))
    env.training = False
    env.norm_reward = False
    model = PPO.load("ppo_cartpole", env=env)
    mean_reward, std_reward = evaluate_policy(model, env, n_eval_episodes=5)
"""

EVALUATED = """
    import gymnasium as gym
    import numpy as np
    from stable_baselines3 import A2C
    from stable_baselines3.common.callbacks import EvalCallback, StopTrainingOnRewardThreshold
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    eval_env = make_vec_env("CartPole-v1", n_envs=2)
    stop = StopTrainingOnRewardThreshold(reward_threshold=1.0, verbose=1)
    eval_callback = EvalCallback(
        eval_env, callback_on_new_best=stop, best_model_save_path="./logs/", log_path="./logs/",
        eval_freq=100, n_eval_episodes=6, deterministic=True, render=False,
    )
    model = A2C("MlpPolicy", "CartPole-v1", policy_kwargs=dict(net_arch=[16], ortho_init=False))
    model.learn(5000, callback=eval_callback)
    log = np.load("./logs/evaluations.npz")
    timesteps, results, lengths = log["timesteps"], log["results"], log["ep_lengths"]
    best = A2C.load("./logs/best_model")
    mean, std = evaluate_policy(best, eval_env, n_eval_episodes=4)
"""

OWN_CALLBACK = """
    import numpy as np
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback, CallbackList
    from stable_baselines3.common.env_util import make_vec_env

    class LogRewards(BaseCallback):
        def __init__(self, verbose=0):
            super().__init__(verbose)
            self.episodes = []
            self.rollouts = 0
            self.started = self.ended = 0

        def _on_training_start(self) -> None:
            self.started += 1
            self.rows = self.training_env.num_envs

        def _on_rollout_start(self) -> None:
            self.rollouts += 1

        def _on_step(self) -> bool:
            assert self.locals["self"] is self.model
            assert self.locals["rewards"].shape == (self.rows,)
            assert self.locals["actions"].shape == self.locals["dones"].shape == (self.rows,)
            assert self.locals["new_obs"].shape == (self.rows, 4)
            assert self.num_timesteps == self.n_calls * self.rows == self.model.num_timesteps
            for info in self.locals["infos"]:
                if "episode" in info:
                    self.episodes.append(info["episode"]["r"])
                    self.logger.record("rollout/last_return", info["episode"]["r"])
            self.logger.record("mine/reward", np.mean(self.locals["rewards"]))
            return True

        def _on_training_end(self) -> None:
            self.ended += 1

    mine = LogRewards()
    calls = []
    env = make_vec_env("CartPole-v1", n_envs=2)
    small = dict(net_arch=dict(pi=[16], vf=[16]), ortho_init=False)
    model = PPO("MlpPolicy", env, n_steps=32, batch_size=32, n_epochs=1, policy_kwargs=small)
    model.learn(128, callback=CallbackList([mine]), log_interval=1)
    counted = model.num_timesteps
"""

CHECKPOINTS = """
    import gymnasium as gym
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import CheckpointCallback, EveryNTimesteps

    checkpoint = CheckpointCallback(save_freq=64, save_path="./models/", name_prefix="cart")
    small = dict(net_arch=[16], ortho_init=False)
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=32, n_epochs=1, policy_kwargs=small)
    model.learn(128, callback=checkpoint)

    model = PPO.load("./models/cart_64_steps")
    before = model.num_timesteps
    model.set_env(gym.make("CartPole-v1"))
    event = EveryNTimesteps(n_steps=32, callback=CheckpointCallback(1, "./more/", name_prefix="again"))
    model.learn(64, callback=[event], reset_num_timesteps=False)
    after = model.num_timesteps
    model.learn(32)
    again = model.num_timesteps
"""

STACKED = """
    from stable_baselines3 import A2C
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecMonitor

    def build():
        env = make_vec_env("CartPole-v1", n_envs=2, vec_env_cls=DummyVecEnv)
        return VecMonitor(VecFrameStack(env, n_stack=3))

    env = build()
    model = A2C("MlpPolicy", env, n_steps=8, policy_kwargs=dict(net_arch=[16], ortho_init=False))
    model.learn(64)
    shape = model.observation_space.shape
    rewards, lengths = evaluate_policy(model, build(), n_eval_episodes=3, return_episode_rewards=True)
"""

MONITORED = """
    import os
    import gymnasium as gym
    from stable_baselines3 import A2C
    from stable_baselines3.common.env_checker import check_env
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.utils import get_linear_fn, set_random_seed

    set_random_seed(3)
    os.makedirs("log", exist_ok=True)
    env = Monitor(gym.make("CartPole-v1"), "log/one")
    check_env(env, warn=False)
    small = dict(net_arch=[16], ortho_init=False)
    rate = get_linear_fn(1e-3, 1e-4, 0.5)
    model = A2C("MlpPolicy", env, learning_rate=rate, tensorboard_log="./tb/", policy_kwargs=small)
    model.learn(total_timesteps=200, tb_log_name="first")
    model.learn(total_timesteps=50, tb_log_name="first", reset_num_timesteps=False)
    model.learn(total_timesteps=50, tb_log_name="first")
    env.close()
    many = make_vec_env("CartPole-v1", n_envs=2, monitor_dir="log/many", env_kwargs={}, seed=2)
    obs = many.reset()
    for _ in range(60):
        obs, _, _, _ = many.step([1, 1])
    many.close()
"""

OWN_ENV = """
    import gymnasium as gym
    import numpy as np
    from gymnasium import spaces
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import StopTrainingOnMaxEpisodes
    from stable_baselines3.common.vec_env import DummyVecEnv, VecEnvWrapper

    class Corridor(gym.Env):
        def __init__(self, size=5):
            super().__init__()
            self.size = size
            self.action_space = spaces.Discrete(2)
            self.observation_space = spaces.Dict(
                place=spaces.Box(0, size, (1,), np.float32), bits=spaces.MultiBinary(2)
            )

        def _look(self):
            return {"place": np.array([self.at], np.float32), "bits": np.array([self.at % 2, 1], np.int8)}

        def reset(self, seed=None, options=None):
            super().reset(seed=seed)
            self.at = 0
            return self._look(), {}

        def step(self, action):
            self.at = max(self.at + (1 if action == 1 else -1), 0)
            done = self.at >= self.size
            return self._look(), float(done), done, False, {"is_success": done}

    class Doubled(VecEnvWrapper):
        def reset(self):
            return self.venv.reset()

        def step_wait(self):
            obs, reward, done, info = self.venv.step_wait()
            return obs, 2 * reward, done, info

    def make_env(size, seed):
        def _init():
            env = gym.wrappers.TimeLimit(Corridor(size), 20)
            env.reset(seed=seed)
            return env
        return _init

    env = Doubled(DummyVecEnv([make_env(5, rank) for rank in range(3)]))
    policy_kwargs = dict(net_arch=[16], ortho_init=False)
    model = PPO("MultiInputPolicy", env, n_steps=32, batch_size=48, n_epochs=2, policy_kwargs=policy_kwargs)
    model.learn(2000, callback=StopTrainingOnMaxEpisodes(max_episodes=4))
    sizes = env.get_attr("size")
    single, _ = model.predict({"place": np.zeros(1, np.float32), "bits": np.zeros(2, np.int8)})
    obs = env.reset()
    batch, _ = model.predict(obs)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(script: str) -> dict[str, Any]:
    """Runs a script after the change of name; returns what it defined."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(dedent(script).replace("stable_baselines3", "sparring"), "script.py", "exec"), names)
    return names


def test_readme(capsys: pytest.CaptureFixture[str]) -> None:
    names = run(README)
    assert names["returns"]
    assert names["obs"].shape == (1, 4)
    assert names["model"].num_timesteps == 512
    shown = capsys.readouterr().out
    assert "ep_rew_mean" in shown
    assert "total_timesteps" in shown


@pytest.mark.slow
def test_normalised_environment_saved_and_loaded() -> None:
    names = run(NORMALISED)
    assert names["mean_reward"] > 8
    assert np.array_equal(names["seen"], names["env"].obs_rms.mean)
    assert np.abs(names["seen"]).max() > 0


@pytest.mark.slow
def test_evaluation_stops_training(capsys: pytest.CaptureFixture[str]) -> None:
    names = run(EVALUATED)
    assert names["timesteps"].tolist() == [100]
    assert names["results"].shape == names["lengths"].shape == (1, 6)
    assert names["model"].num_timesteps == 100
    assert names["mean"] > 8
    assert "Stopping training" in capsys.readouterr().out


def test_own_callback_sees_every_step(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    names = run(OWN_CALLBACK)
    mine = names["mine"]
    assert (mine.n_calls, mine.rollouts, mine.started, mine.ended) == (64, 2, 1, 1)
    assert names["counted"] == 128
    assert mine.episodes
    shown = capsys.readouterr().out.strip()
    assert shown.count("\n") == 0
    assert "LogRewards looks at every step" in shown
    from sparring.metrics import sqlite

    metrics = next(folder.glob("runs/*/metrics.sqlite"))
    assert sqlite.read(metrics, "mine/reward").values.tolist() == [1.0, 1.0]
    assert len(sqlite.read(metrics, "train/approx_kl").values) == 2


@pytest.mark.slow
def test_checkpoints_load_and_go_on(folder: Path) -> None:
    names = run(CHECKPOINTS)
    assert (names["before"], names["after"], names["again"]) == (64, 128, 32)
    assert sorted(p.name for p in (folder / "models").iterdir()) == [
        "cart_128_steps.zip",
        "cart_64_steps.zip",
    ]
    assert sorted(p.name for p in (folder / "more").iterdir()) == [
        "again_128_steps.zip",
        "again_96_steps.zip",
    ]


@pytest.mark.slow
def test_frame_stack() -> None:
    names = run(STACKED)
    assert names["shape"] == (12,)
    assert names["rewards"] == names["lengths"]
    assert len(names["rewards"]) == 3


@pytest.mark.slow
def test_monitor_and_tensorboard(folder: Path) -> None:
    from sparring.common.monitor import read_results

    names = run(MONITORED)
    assert sorted(p.name for p in (folder / "tb").iterdir()) == ["first_1", "first_2"]
    assert names["model"].num_timesteps == 50
    one = read_results("log")
    assert one["r"].tolist() == one["l"].tolist()
    assert sorted(p.name for p in (folder / "log/many").iterdir()) == ["0.monitor.csv", "1.monitor.csv"]
    assert len(read_results("log/many")["r"]) > 4


@pytest.mark.slow
def test_own_environment_and_wrapper() -> None:
    names = run(OWN_ENV)
    assert names["sizes"] == [5, 5, 5]
    assert names["single"].shape == ()
    assert names["batch"].shape == (3,)
    model = names["model"]
    assert 96 <= model.num_timesteps < 2000
    assert {info["r"] for info in model.ep_info_buffer} <= {0.0, 2.0}


@pytest.mark.slow
def test_example() -> None:
    script = Path(__file__).parents[2] / "examples" / "sb3_script.py"
    names = run(script.read_text().replace("20_000", "512").replace("n_epochs=20", "n_epochs=1"))
    assert names["mean"] > 8
