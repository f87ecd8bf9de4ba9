"""SB3's smaller modules: translation of arguments, callbacks, logger, evaluation, monitor, utilities."""

from __future__ import annotations

import json
import random
import sys
import types
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import jax
import numpy as np
import pytest

from sparring import A2C, PPO
from sparring.common import callbacks as cb
from sparring.common import translate, utils
from sparring.common.env_checker import check_env
from sparring.common.env_util import is_wrapped, make_vec_env, unwrap_wrapper
from sparring.common.evaluation import evaluate_policy
from sparring.common.learning import Shifted
from sparring.common.monitor import Monitor, get_monitor_files, load_results, read_results
from sparring.common.vec_env import DummyVecEnv
from sparring.errors import ConfigError, EnvironmentFailure, MissingExtra, UnknownName
from sparring.metrics.tensorboard import TensorBoardSink
from sparring.session import Progress


class ReLU:
    """Stands for torch.nn.ReLU, which is known by its name."""


class LeakyReLU:
    """Stands for torch.nn.LeakyReLU."""


class Adam:
    """Stands for torch.optim.Adam."""


class TorchExtractor:
    """Stands for a user's torch module."""


def values(algorithm: str = "ppo", /, **kwargs: Any) -> dict[str, Any]:
    return translate.config_values("MlpPolicy", kwargs, {}, algorithm)


# -- policies and policy_kwargs ------------------------------------------------------------------------------


def test_policies() -> None:
    assert translate.config_values("MlpPolicy", None, {})["network"] == "auto"
    cnn = translate.config_values("CnnPolicy", None, {"n_steps": 4})
    assert (cnn["network"], cnn["pi"], cnn["n_steps"]) == ("cnn", (), 4)
    assert translate.config_values("CnnPolicy", {"net_arch": [32]}, {})["vf"] == (32,)


@pytest.mark.parametrize(
    ("name", "core"),
    [
        ("GruPolicy", "gru"),
        ("MlpLstmPolicy", "lstm"),
        ("TransformerPolicy", "transformer"),
        ("S5Policy", "s5"),
    ],
)
def test_policies_with_a_memory(name: str, core: str) -> None:
    assert translate.config_values(name, None, {})["core"] == core


def test_policies_that_do_not_exist() -> None:
    with pytest.raises(ConfigError, match=r"Did you mean 'MlpPolicy'"):
        translate.config_values("MlpPolcy", None, {})
    with pytest.raises(ConfigError, match=r"TorchExtractor.*network='file.py:Name'"):
        translate.config_values(TorchExtractor, None, {})


def test_policy_kwargs() -> None:
    assert values(net_arch={"pi": [3, 4], "vf": [5]})["vf"] == (5,)
    assert values(net_arch=[7])["pi"] == (7,)
    assert values(net_arch=[])["pi"] == ()
    assert translate.config_values("CnnPolicy", {}, {}, "td3")["qf"] == (256, 256)
    for name in ("sac", "td3", "crossq"):
        with pytest.raises(ConfigError, match="has no 'qf'"):
            translate.config_values("MlpPolicy", {"net_arch": {"pi": [64]}}, {}, name)
    given = values(ortho_init=False, log_std_init=-2, squash_output=True, share_features_extractor=False)
    assert {given["ortho_init"], given["log_std_init"], given["squash"], given["share_features"]} == {
        False,
        -2,
        True,
    }
    assert values(full_std=True, use_expln=False, normalize_images=True) == values()
    assert values(optimizer_class=Adam, optimizer_kwargs={"eps": 1e-7, "weight_decay": 0})["adam_eps"] == 1e-7
    a2c = values("a2c", optimizer_class=Adam, optimizer_kwargs={"eps": 1e-7})
    assert (a2c["use_rms_prop"], a2c["rms_prop_eps"]) == (False, 1e-7)
    assert values(features_extractor_kwargs={"features_dim": 512}) == values()


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        (ReLU, "relu"),
        (LeakyReLU, "leaky_relu"),
        (jax.nn.silu, "silu"),
        (jax.numpy.tanh, "tanh"),
        ("GELU", "gelu"),
    ],
)
def test_activations(given: Any, ours: str) -> None:
    assert values(activation_fn=given)["activation"] == ours


@pytest.mark.parametrize(
    ("kwargs", "problem"),
    [
        ({"net_arch": [64, {"pi": [64]}]}, r"dict\(pi="),
        ({"net_arch": {"qf": [3]}}, "net_arch of PPO is 'pi' and 'vf'"),
        ({"activation_fn": TorchExtractor}, "TorchExtractor is not available"),
        ({"features_extractor_class": TorchExtractor}, "torch module"),
        ({"features_extractor_kwargs": {"features_dim": 64}}, "'features_dim' cannot be set"),
        ({"optimizer_class": TorchExtractor}, "A2C uses RMSProp or"),
        ({"optimizer_kwargs": {"betas": (0.9, 0.99)}}, "'betas' cannot be set"),
        ({"use_expln": True}, "use_expln=True is not available"),
        ({"full_std": False}, "full_std=False is not available"),
        ({"normalize_images": False}, "divided by 255"),
        ({"net_arc": [3]}, "Did you mean 'net_arch'"),
    ],
)
def test_policy_kwargs_that_cannot_be_carried_over(kwargs: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        values(**kwargs)


def test_objects_of_other_libraries() -> None:
    module = types.ModuleType("stable_baselines3.common.vec_env")
    theirs = type("DummyVecEnv", (), {"__module__": module.__name__, "step": None, "reset": None})
    with pytest.raises(ConfigError, match=r"DummyVecEnv belongs to Stable-Baselines3.*sparring.common"):
        PPO("MlpPolicy", theirs())
    with pytest.raises(ConfigError, match=r"sparring\.common\.callbacks"):
        cb.convert(type("Mine", (), {"__module__": "stable_baselines3.common.callbacks"})())
    legacy = type("CartPole", (), {"__module__": "gym.envs", "step": None, "reset": None, "render": None})
    with pytest.raises(EnvironmentFailure, match="legacy gym"):
        PPO("MlpPolicy", legacy())


@pytest.mark.parametrize("name", ["VecTransposeImage", "VecCheckNan", "CloudpickleWrapper"])
def test_missing_wrappers_say_what_to_do(name: str) -> None:
    with pytest.raises(ImportError, match=f"has no {name}: "):
        exec(f"from sparring.common.vec_env import {name}")


# -- callbacks -----------------------------------------------------------------------------------------------


class Trivial(cb.BaseCallback):
    def _on_step(self) -> bool:
        """Looks at nothing."""
        return True


class Looking(cb.BaseCallback):
    def _on_step(self) -> bool:
        return self.n_calls < 3


class Declared(Looking):
    per_step = False


class Own(cb.CheckpointCallback):
    """Overrides what its parent declared."""

    def _on_step(self) -> bool:
        return super()._on_step()


def test_which_callbacks_look_at_steps() -> None:
    looking = [Looking(), Own(1, "x"), cb.ConvertCallback(print)]
    not_looking = [
        Trivial(),
        Declared(),
        cb.CheckpointCallback(1, "x"),
        cb.EveryNTimesteps(3, Looking()),
        cb.StopTrainingOnMaxEpisodes(3),
        cb.ProgressBarCallback(),
    ]
    assert all(cb.needs_steps(c) for c in looking)
    assert not any(cb.needs_steps(c) for c in not_looking)


def test_conversion_of_callbacks() -> None:
    seen: list[Any] = []
    made = cb.convert([Looking(), lambda local, world: seen.append(local), [Trivial()]])
    assert [type(leaf).__name__ for leaf in cb.leaves(made)] == ["Looking", "ConvertCallback", "Trivial"]
    assert cb.leaves(cb.convert(None)) == []
    with pytest.raises(ConfigError, match="not a int"):
        cb.convert(3)


class FakeModel:
    """As much of a model as a callback needs."""

    def __init__(self, n_envs: int = 1) -> None:
        self.num_timesteps = 0
        self.n_envs = n_envs
        self.logger: Any = types.SimpleNamespace(name_to_value={})

    def step(self, callback: cb.BaseCallback, calls: int) -> bool:
        self.num_timesteps += calls * self.n_envs
        return callback.on_steps(calls)


def test_periods_at_any_stride() -> None:
    class Every(cb.BaseCallback):
        per_step = False
        hits: ClassVar[list[int]] = []

        def _on_step(self) -> bool:
            if self.passed(10):
                self.hits.append(self.n_calls)
            return True

    model, every = FakeModel(), Every()
    every.init_callback(model)
    for calls in (1, 8, 1, 7, 3, 25, 1):
        model.step(every, calls)
    assert every.hits == [10, 20, 45]


def test_every_n_timesteps() -> None:
    counted: list[int] = []
    inner = cb.ConvertCallback(lambda local, world: counted.append(event.num_timesteps))
    event = cb.EveryNTimesteps(100, inner)
    model = FakeModel(n_envs=4)
    event.init_callback(model)
    event.on_training_start({}, {})
    assert event.calls_until_due() == 25
    for _ in range(9):
        model.step(event, 10)
    assert counted == [120, 240, 360]


def test_stop_on_no_improvement_and_threshold() -> None:
    stop = cb.StopTrainingOnNoModelImprovement(max_no_improvement_evals=2, min_evals=1)
    best = cb.StopTrainingOnRewardThreshold(10.0)
    parent = cb.EvalCallback("CartPole-v1", callback_after_eval=stop, callback_on_new_best=best)
    stop.model = best.model = FakeModel()
    going = []
    for parent.best_mean_reward in (1, 1, 1, 2, 2, 2, 2):
        going.append(stop.on_step())
    assert going == [True] * 6 + [False]
    parent.best_mean_reward = 9.9
    assert best.on_step()
    parent.best_mean_reward = 10.0
    assert not best.on_step()
    lonely = cb.StopTrainingOnRewardThreshold(1.0)
    lonely.model = FakeModel()
    with pytest.raises(ConfigError, match="callback_on_new_best=it"):
        lonely.on_step()


def test_evaluating_on_the_training_environment_is_refused() -> None:
    env = gym.make("CartPole-v1")
    model = A2C("MlpPolicy", env, run_dir=False)
    with pytest.raises(ConfigError, match="Make a second one"):
        model.learn(10, callback=cb.EvalCallback(env))


# -- logger --------------------------------------------------------------------------------------------------


class Kept:
    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []

    def write(self, step: int, seconds: float, values: Any, seed: int = 0) -> None:
        self.rows.append((step, dict(values)))

    def close(self) -> None:
        pass


def test_logger(tmp_path: Path) -> None:
    model = A2C("MlpPolicy", "CartPole-v1")
    kept, shown, board = Kept(), Kept(), TensorBoardSink(tmp_path)
    written: list[str] = []
    board.write = lambda step, seconds, values, seed=0: written.extend(values)  # type: ignore[method-assign]
    sinks = [Shifted(kept, 100), Shifted(board, 100)]
    model.session = types.SimpleNamespace(  # type: ignore[assignment]
        sinks=sinks, displays=[shown], progress=Progress(), last={"train/loss": 3.0}, steps=5
    )
    log = model.logger
    log.record("mine/a", np.float32(1.5))
    log.record("mine/b", 2, exclude="tensorboard")
    log.record("mine/c", 3, exclude=("stdout",))
    for number in (1.0, 2.0, 6.0):
        log.record_mean("mine/mean", number)
    assert log.name_to_value == {
        "train/loss": 3.0,
        "mine/a": 1.5,
        "mine/b": 2.0,
        "mine/c": 3.0,
        "mine/mean": 3.0,
    }
    log.dump(step=5)
    assert kept.rows == [(105, {"mine/a": 1.5, "mine/b": 2.0, "mine/c": 3.0, "mine/mean": 3.0})]
    assert written == ["mine/a", "mine/c", "mine/mean"]
    assert shown.rows == [(5, {"mine/a": 1.5, "mine/b": 2.0, "mine/mean": 3.0})]
    log.dump()
    assert len(kept.rows) == 1
    with pytest.raises(ConfigError, match="takes a number, not a list"):
        log.record("mine/video", [1, 2])


# -- evaluation ----------------------------------------------------------------------------------------------


class AlwaysRight:
    """A model of someone else's, with SB3's predict."""

    def predict(
        self, obs: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> Any:
        return np.ones(len(obs), int), None


def test_evaluation_of_any_model() -> None:
    env = make_vec_env("CartPole-v1", n_envs=3, seed=0)
    seen: list[Any] = []
    rewards, lengths = evaluate_policy(
        AlwaysRight(),
        env,
        n_eval_episodes=7,
        return_episode_rewards=True,
        callback=lambda local, world: seen.append((local["i"], local["done"])),
    )
    assert rewards == lengths
    assert len(rewards) == 7
    assert sum(done for _, done in seen) == 7
    assert [sum(d for i, d in seen if i == row) for row in range(3)] == [2, 2, 3]
    mean, _ = evaluate_policy(AlwaysRight(), gym.make("CartPole-v1"), n_eval_episodes=3)
    assert 8 <= mean <= 11
    with pytest.raises(AssertionError, match="not above the threshold"):
        evaluate_policy(AlwaysRight(), env, 2, reward_threshold=100.0)


def test_compiled_and_stepped_evaluation_agree() -> None:
    """On an environment whose episodes are all the same."""
    model = A2C("MlpPolicy", "probe/discounting", run_dir=False, seed=0)
    fast = evaluate_policy(model, model.get_env(), 4, return_episode_rewards=True)
    slow = evaluate_policy(model, model.get_env(), 4, return_episode_rewards=True, callback=lambda a, b: None)
    assert fast == slow


# -- monitor -------------------------------------------------------------------------------------------------


def episode(env: Any, action: int = 0) -> dict[str, Any]:
    env.reset(seed=0)
    while True:
        _, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            return dict(info)


def test_monitor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = Monitor(gym.make("CartPole-v1"), str(tmp_path / "a"), allow_early_resets=False)
    info = episode(env)
    assert info["episode"]["r"] == info["episode"]["l"] == env.get_episode_rewards()[0]
    with pytest.raises(ConfigError, match="stepped after its episode ended"):
        env.step(0)
    env.reset()
    with pytest.raises(ConfigError, match="before its episode ended"):
        env.reset()
    env.close()
    lines = (tmp_path / "a.monitor.csv").read_text().splitlines()
    assert json.loads(lines[0][1:])["env_id"] == "CartPole-v1"
    assert lines[1] == "r,l,t"
    assert len(lines) == 3
    again = Monitor(gym.make("CartPole-v1"), str(tmp_path / "a"), override_existing=False)
    episode(again, 1)
    again.close()
    assert get_monitor_files(str(tmp_path)) == [str(tmp_path / "a.monitor.csv")]
    results = read_results(str(tmp_path))
    assert sorted(results["l"]) == sorted([info["episode"]["l"], again.get_episode_lengths()[0]])
    assert env.get_total_steps() + again.get_total_steps() == results["l"].sum()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match="pip install pandas"):
        load_results(str(tmp_path))
    monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(DataFrame=dict))
    assert set(load_results(str(tmp_path))) == {"r", "l", "t"}
    with pytest.raises(UnknownName, match="no monitor files"):
        read_results(str(tmp_path / "nothing"))


# -- the rest ------------------------------------------------------------------------------------------------


class Broken(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 0.0, False, {}


def test_check_env() -> None:
    env = gym.make("CartPole-v1", render_mode="rgb_array")
    check_env(env, warn=False, skip_render_check=False)
    env.reset()  # it is still open
    env.close()
    with pytest.raises(EnvironmentFailure, match="four"):
        check_env(Broken())


def test_utilities() -> None:
    utils.set_random_seed(7)
    first = (random.random(), np.random.rand())  # noqa: NPY002
    utils.set_random_seed(7)
    assert first == (random.random(), np.random.rand())  # noqa: NPY002
    line = utils.get_linear_fn(1.0, 0.5, 0.5)
    assert [line(1.0), line(0.75), line(0.5), line(0.0)] == [1.0, 0.75, 0.5, 0.5]
    assert utils.constant_fn(3.0)(0.2) == utils.get_schedule_fn(3)(0.9) == 3.0
    assert utils.get_schedule_fn(line) is line
    assert utils.safe_mean([1, 3]) == 2
    assert np.isnan(utils.safe_mean([]))


def test_make_vec_env(tmp_path: Path) -> None:
    compiled = make_vec_env("CartPole-v1", n_envs=2, seed=1)
    assert compiled.made_from == "CartPole-v1"
    wrapped = make_vec_env(
        "CartPole-v1",
        2,
        start_index=3,
        monitor_dir=str(tmp_path),
        wrapper_class=gym.wrappers.ClipReward,
        wrapper_kwargs={"max_reward": 0.5},
    )
    assert isinstance(wrapped, DummyVecEnv)
    assert wrapped.env_is_wrapped(Monitor) == [True, True]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["3.monitor.csv", "4.monitor.csv"]
    wrapped.reset()
    assert wrapped.step([0, 1])[1].tolist() == [0.5, 0.5]
    env = wrapped.envs[0]
    assert is_wrapped(env, Monitor)
    assert isinstance(unwrap_wrapper(env, Monitor), Monitor)
    assert unwrap_wrapper(env, DummyVecEnv) is None
    wrapped.close()
    longer = make_vec_env("CartPole-v1", env_kwargs={"sutton_barto_reward": True})
    assert longer.get_attr("_sutton_barto_reward") == [True]
    assert longer.render_mode == "rgb_array"
    with pytest.raises(UnknownName, match="CartPole-v1"):
        make_vec_env("CartPol-v1")
    assert make_vec_env(lambda: gym.make("CartPole-v1"), n_envs=2).num_envs == 2
