"""The façade: constructors, learning in parts, acting, saving and loading."""

from __future__ import annotations

import inspect
import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache.compilation_cache import reset_cache

import sparring
from sparring import A2C, PPO, REINFORCE
from sparring.common.callbacks import BaseCallback
from sparring.common.vec_env import VecNormalize, as_vec_env
from sparring.errors import CheckpointError, ConfigError, SpaceMismatch
from sparring.model import Agent, iteration_of

TINY: dict[str, Any] = {
    "n_steps": 16,
    "batch_size": 16,
    "n_epochs": 1,
    "policy_kwargs": {"net_arch": [8], "ortho_init": False},
    "seed": 3,
    "run_dir": False,
}

SB3 = {
    PPO: (
        "policy env learning_rate=0.0003 n_steps=2048 batch_size=64 n_epochs=10 gamma=0.99 gae_lambda=0.95 "
        "clip_range=0.2 clip_range_vf=None normalize_advantage=True ent_coef=0.0 vf_coef=0.5 "
        "max_grad_norm=0.5 use_sde=False sde_sample_freq=-1 rollout_buffer_class=None "
        "rollout_buffer_kwargs=None target_kl=None stats_window_size=100 tensorboard_log=None "
        "policy_kwargs=None verbose=0 seed=None device=auto _init_setup_model=True"
    ),
    A2C: (
        "policy env learning_rate=0.0007 n_steps=5 gamma=0.99 gae_lambda=1.0 ent_coef=0.0 vf_coef=0.5 "
        "max_grad_norm=0.5 rms_prop_eps=1e-05 use_rms_prop=True use_sde=False sde_sample_freq=-1 "
        "rollout_buffer_class=None rollout_buffer_kwargs=None normalize_advantage=False "
        "stats_window_size=100 tensorboard_log=None policy_kwargs=None verbose=0 seed=None device=auto "
        "_init_setup_model=True"
    ),
}
"""The signatures of Stable-Baselines3 2.9.2."""


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Many models here are the same program: it is compiled once and read from disk after that."""
    wanted = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("programs")),
        "jax_persistent_cache_min_compile_time_secs": 0.2,
    }
    before = {name: getattr(jax.config, name) for name in wanted}
    for values in (wanted, before):
        for name, value in values.items():
            jax.config.update(name, value)
        reset_cache()
        if values is wanted:
            yield


@pytest.fixture(scope="module")
def trained() -> PPO:
    """An agent that has learned a little, with normalised observations and rewards."""
    return PPO("MlpPolicy", "CartPole-v1", n_envs=2, normalize_obs=True, normalize_reward=True, **TINY).learn(
        64
    )


@pytest.fixture
def saved(trained: PPO, tmp_path: Path) -> Path:
    trained.save(tmp_path / "agent")
    return tmp_path / "agent.zip"


# -- names and constructors ----------------------------------------------------------------------------------


def test_public_names() -> None:
    assert sorted(sparring.__all__) == [
        "A2C",
        "Agent",
        "CrossQ",
        "DQN",
        "GDI",
        "PPO",
        "PQN",
        "REINFORCE",
        "Run",
        "SAC",
        "SparringError",
        "TD3",
        "__version__",
        "evaluate_policy",
        "make",
    ]
    for name in sparring.__all__:
        assert getattr(sparring, name) is not None
    assert set(sparring.__all__) <= set(dir(sparring))
    assert not hasattr(sparring, "nothing")


def test_importing_is_light() -> None:
    code = (
        "import sys, sparring, sparring.common; assert not {'jax', 'gymnasium', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_missing_algorithms_say_so() -> None:
    with pytest.raises(ImportError, match=r"sparring has no DDPG: TD3.*Available: A2C, CrossQ, DQN, GDI"):
        exec("from sparring import DDPG")


@pytest.mark.parametrize("cls", SB3)
def test_constructors_are_sb3s(cls: Any) -> None:
    def shown(p: inspect.Parameter) -> str:
        return p.name if p.default is inspect.Parameter.empty else f"{p.name}={p.default}"

    parameters = [p for p in inspect.signature(cls).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert " ".join(shown(p) for p in parameters) == SB3[cls]


@pytest.mark.parametrize("cls", [PPO, A2C, REINFORCE])
def test_defaults_equal_those_of_the_configuration(cls: Any) -> None:
    model = cls("MlpPolicy", "CartPole-v1")
    assert model.config == type(model.config)()


def test_arguments_reach_the_configuration() -> None:
    model = PPO(
        "MlpPolicy", "CartPole-v1", lambda left: 1e-3 * left, 8, normalize_advantage=False, frame_stack=2
    )
    assert model.config.n_steps == 8
    assert model.config.normalize_advantage == "false"
    assert model.frame_stack == 2
    assert model.learning_rate.at(0.5) == pytest.approx(5e-4)
    with pytest.raises(ConfigError, match=r"no setting 'batchsize'.*'batch_size'"):
        PPO("MlpPolicy", "CartPole-v1", batchsize=3)
    with pytest.raises(ConfigError, match="rollout_buffer_class"):
        PPO("MlpPolicy", "CartPole-v1", rollout_buffer_class=dict)
    with pytest.raises(AttributeError, match="no attribute 'replay_buffer'"):
        _ = model.replay_buffer


def test_a_batch_that_does_not_fit_is_mentioned(capsys: pytest.CaptureFixture[str]) -> None:
    PPO("MlpPolicy", "CartPole-v1", n_steps=10, batch_size=4)
    assert "batch_size=2 would fit" in capsys.readouterr().out


# -- learning ------------------------------------------------------------------------------------------------


def test_counting_goes_on_or_starts_again(trained: PPO, saved: Path) -> None:
    model = PPO.load(saved, env="CartPole-v1", run_dir=False)
    assert (model.num_timesteps, model.n_envs) == (64, 2)
    model.learn(32, reset_num_timesteps=False)
    assert (model.num_timesteps, iteration_of(model.train_state())) == (96, 3)
    driver = model._driver
    model.learn(20, reset_num_timesteps=False)  # a whole iteration, as in SB3
    assert (model.num_timesteps, model._driver is driver) == (128, True)
    before = model.get_parameters()
    model.learn(32)
    assert (model.num_timesteps, iteration_of(model.train_state())) == (32, 1)
    after = model.get_parameters()
    assert after["moments/count"] == before["moments/count"] + 32  # learned things were kept


@pytest.mark.slow
def test_learning_in_two_parts_equals_learning_at_once() -> None:
    whole, parts = (
        A2C("MlpPolicy", "CartPole-v1", seed=1, run_dir=False, n_envs=2, pi=[8]) for _ in range(2)
    )
    whole.learn(80)
    parts.learn(40).learn(40, reset_num_timesteps=False)
    assert all(np.array_equal(a, parts.get_parameters()[name]) for name, a in whole.get_parameters().items())


def test_stopping_in_the_middle_of_a_rollout() -> None:
    class Stop(BaseCallback):
        def _on_step(self) -> bool:
            return self.n_calls < 21

    model = PPO("MlpPolicy", gym.make("CartPole-v1"), **TINY)
    model.learn(100, callback=Stop())
    assert model.num_timesteps == 21
    assert iteration_of(model.train_state()) == 1
    model.learn(32, reset_num_timesteps=False)
    assert model.num_timesteps == 53


def test_environment_used_by_someone_else() -> None:
    env = gym.make("CartPole-v1")
    model = PPO("MlpPolicy", env, **TINY)
    model.learn(32)
    driver = model._driver
    model.get_env().reset()
    model.learn(32, reset_num_timesteps=False)  # begins with new episodes
    assert model.num_timesteps == 64
    assert model._driver is not driver

    class Meddle(BaseCallback):
        def _on_step(self) -> bool:
            self.training_env.reset()
            return True

    with pytest.raises(ConfigError, match="environment of its own"):
        model.learn(32, callback=Meddle())


def test_a_setting_changed_later_is_used(trained: PPO, saved: Path) -> None:
    model = PPO.load(saved, env="CartPole-v1", run_dir=False)
    model.learning_rate = 0.0
    before = model.get_parameters()
    model.learn(32, reset_num_timesteps=False)
    assert model.learning_rate == 0.0
    assert all(
        np.array_equal(x, before[n]) for n, x in model.get_parameters().items() if n.startswith("nets")
    )
    with pytest.raises(ConfigError, match="n_epochs must be a whole number"):
        model.n_epochs = "many"


def test_run_folders(saved: Path, tmp_path: Path) -> None:
    model = PPO.load(saved, env="CartPole-v1", run_dir=tmp_path / "run", verbose=0)
    model.learn(32)
    run = model.run
    assert run is not None
    assert run.read_status().state == "finished"
    assert run.read_config()["env"] == "CartPole-v1"
    assert Agent.load(run.last).spec == model.spec
    model.learn(32, reset_num_timesteps=False)
    assert model.run is run
    model.learn(32)
    assert model.run is not None
    assert model.run.path == tmp_path / "run-2"


def test_no_environment(saved: Path) -> None:
    model = PPO.load(saved)
    assert model.get_env() is None
    with pytest.raises(ConfigError, match="set_env"):
        model.learn(10)


# -- acting --------------------------------------------------------------------------------------------------


def test_predict_shapes(trained: PPO) -> None:
    one, state = trained.predict(np.zeros(4), deterministic=True)
    assert (one.shape, one.dtype.kind, state) == ((), "i", None)
    many, _ = trained.predict(np.zeros((5, 4)))
    assert many.shape == (5,)
    assert trained.action_space.contains(one)
    with pytest.raises(SpaceMismatch, match="shape \\(3,\\) does not fit"):
        trained.predict(np.zeros((1, 3)))


def test_predict_explores_and_repeats(trained: PPO, saved: Path) -> None:
    obs = np.zeros((64, 4), np.float32)
    model = PPO.load(saved)
    first, second = model.predict(obs)[0], model.predict(obs)[0]
    assert 0 < first.mean() < 1
    assert not np.array_equal(first, second)
    assert np.array_equal(PPO.load(saved).predict(obs)[0], first)


def test_predict_with_memory() -> None:
    model = PPO("MlpPolicy", "CartPole-v1", frame_stack=3, **TINY)
    obs = np.ones((2, 4), np.float32)
    _, state = model.predict(obs)
    _, state = model.predict(2 * obs, state=state, episode_start=np.array([False, True]))
    assert state.frames[:, :, 0].tolist() == [[1, 1, 2], [2, 2, 2]]
    _, state = model.predict(obs, episode_start=np.array([False, True]))
    assert state.frames[:, :, 0].tolist() == [[1, 1, 1], [1, 1, 1]], "who has no state begins"


def test_predict_dict_observations() -> None:
    model = A2C("MultiInputPolicy", "probe/dict", run_dir=False)
    obs = model.get_env().reset()
    assert isinstance(obs, dict)
    assert model.predict(obs)[0].shape == (1,)
    assert model.predict({name: part[0] for name, part in obs.items()})[0].shape == ()
    with pytest.raises(SpaceMismatch, match="give it a dict"):
        model.predict(np.zeros(3))


def test_policy_is_kept_while_learning_goes_on(saved: Path) -> None:
    model = PPO.load(saved, env="CartPole-v1", run_dir=False)
    agent, obs = model.agent(), np.random.default_rng(0).normal(size=(32, 4))
    before = agent.predict(obs, deterministic=True)[0]
    model.learn(64)
    assert np.array_equal(agent.predict(obs, deterministic=True)[0], before)


# -- saving --------------------------------------------------------------------------------------------------


def test_saved_acts_as_trained_in_a_fresh_process(trained: PPO, saved: Path, tmp_path: Path) -> None:
    obs = np.random.default_rng(1).normal(size=(40, 4)).astype(np.float32)
    np.save(tmp_path / "obs.npy", obs)
    code = """
import sys, numpy as np
from sparring import PPO
from sparring.types import View, Behaviour
folder = sys.argv[1]
model = PPO.load(f"{folder}/agent")
obs = np.load(f"{folder}/obs.npy")
agent = model.agent()
def log_prob(x):
    import jax
    return np.asarray(agent.algo.act(agent.weights, agent.algo.carry(len(x)), View(x),
        Behaviour(greedy=np.ones(len(x), bool)), jax.random.key(0))[1].log_prob)
np.savez(f"{folder}/out.npz", sampled=model.predict(obs)[0], greedy=model.predict(obs, deterministic=True)[0],
    whole=log_prob(obs), rows=np.concatenate([log_prob(obs[i:i + 8]) for i in range(0, 40, 8)]))
"""
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        check=True,
        timeout=120,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    out = np.load(tmp_path / "out.npz")
    fresh = PPO.load(saved)
    fresh._train = trained.train_state()  # the trained weights themselves, and a counter of calls at zero
    assert np.array_equal(out["sampled"], fresh.predict(obs)[0])
    assert np.array_equal(out["greedy"], trained.predict(obs, deterministic=True)[0])
    assert np.allclose(out["whole"], out["rows"], atol=1e-5)


def test_parameters(trained: PPO) -> None:
    model = PPO("MlpPolicy", "CartPole-v1", n_envs=2, normalize_obs=True, normalize_reward=True, **TINY)
    theirs = trained.get_parameters()
    model.set_parameters(theirs)
    assert all(np.array_equal(x, model.get_parameters()[name]) for name, x in theirs.items())
    name = next(n for n in theirs if n.endswith("weight"))
    model.set_parameters({name: np.zeros_like(theirs[name])}, exact_match=False)
    assert not model.get_parameters()[name].any()
    with pytest.raises(CheckpointError, match="expected but not in the file"):
        model.set_parameters({name: theirs[name]})


def test_parameters_from_a_file_while_training(trained: PPO, saved: Path) -> None:
    model = PPO.load(saved, env="CartPole-v1", run_dir=False)
    model.learn(32)
    model.set_parameters(saved)
    assert all(np.array_equal(x, model.get_parameters()[n]) for n, x in trained.get_parameters().items())


def test_load_takes_other_settings(saved: Path) -> None:
    custom = {"learning_rate": 0.0, "lr_schedule": lambda _: 0.0, "clip_range": lambda _: 0.1}
    model = PPO.load(saved, custom_objects=custom, n_epochs=3, verbose=1)
    assert (model.learning_rate, model.n_epochs, model.verbose, model.seed) == (0.0, 3, 1, 3)
    assert model.clip_range.at(0.3) == pytest.approx(0.1)
    with pytest.raises(ConfigError, match="no setting 'n_epoch'"):
        PPO.load(saved, n_epoch=3)


def test_loading_what_cannot_be_loaded(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds a PPO agent; load it with PPO\.load, not A2C\.load"):
        A2C.load(saved)
    with pytest.raises(CheckpointError, match="There is no saved agent"):
        PPO.load(tmp_path / "nothing")
    body = bytearray(saved.read_bytes())
    body[len(body) // 2] ^= 1
    (tmp_path / "bent.zip").write_bytes(body)
    with pytest.raises(CheckpointError):
        PPO.load(tmp_path / "bent")
    with zipfile.ZipFile(tmp_path / "theirs.zip", "w") as archive:
        archive.writestr("_stable_baselines3_version", "2.9.2")
    with pytest.raises(CheckpointError, match="was saved by Stable-Baselines3"):
        PPO.load(tmp_path / "theirs")
    with pytest.raises(ConfigError, match="from a path, not a BytesIO"):
        PPO.load(io.BytesIO())  # type: ignore[arg-type]


def test_environments_with_other_spaces_are_refused(saved: Path) -> None:
    with pytest.raises(SpaceMismatch, match="trained on CartPole-v1 with observations"):
        PPO.load(saved, env="MountainCar-v0")
    model = PPO.load(saved)
    with pytest.raises(SpaceMismatch):
        model.set_env("Pendulum-v1")
    model.set_env(as_vec_env("CartPole-v1", 3))  # another number of rows is fine
    assert model.n_envs == 3
    assert model.train_state().rewards.running.shape == (3,)


# -- VecNormalize --------------------------------------------------------------------------------------------


def test_statistics_travel_with_vec_normalize(trained: PPO, tmp_path: Path) -> None:
    wrapped = VecNormalize(as_vec_env("CartPole-v1", 2))
    wrapped.bind(trained)
    obs = 0.1 * np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    rms = wrapped.obs_rms
    assert rms.count == 64
    assert np.allclose(
        wrapped.normalize_obs(obs), np.clip((obs - rms.mean) / np.sqrt(rms.var + 1e-8), -10, 10)
    )
    assert np.allclose(wrapped.unnormalize_obs(wrapped.normalize_obs(obs)), obs, atol=1e-5)
    assert np.allclose(wrapped.unnormalize_reward(wrapped.normalize_reward(np.ones(2))), 1)
    # predict knows a normalised observation, and refuses a part of one
    greedy = trained.predict(obs, deterministic=True)[0]
    assert np.array_equal(greedy, trained.predict(wrapped.normalize_obs(obs), deterministic=True)[0])
    with pytest.raises(ConfigError, match="normalise it again"):
        trained.predict(wrapped.normalize_obs(obs)[0])
    wrapped.save(tmp_path / "stats.pkl")
    loaded = VecNormalize.load(tmp_path / "stats.pkl", as_vec_env("CartPole-v1", 2))
    assert np.array_equal(loaded.obs_rms.mean, rms.mean)
    model = PPO("MlpPolicy", loaded, **TINY)  # a new agent starts from them
    assert (model.config.normalize_obs, model.config.normalize_reward) == (True, True)
    assert np.array_equal(model.normalisation()["obs/.m2"], trained.normalisation()["obs/.m2"])
    with pytest.raises(CheckpointError, match="do not fit"):
        VecNormalize.load(tmp_path / "stats.pkl", as_vec_env("MountainCar-v0", 2))
    (tmp_path / "pickle.pkl").write_bytes(b"\x80\x04N.")
    with pytest.raises(CheckpointError, match="no VecNormalize that sparring saved"):
        VecNormalize.load(tmp_path / "pickle.pkl", as_vec_env("CartPole-v1", 2))


def test_vec_normalize_that_cannot_be_honoured(saved: Path) -> None:
    venv = as_vec_env("CartPole-v1", 2)
    with pytest.raises(ConfigError, match="epsilon is fixed"):
        VecNormalize(venv, epsilon=1e-3)
    with pytest.raises(ConfigError, match="training = True"):
        PPO.load(saved, env=VecNormalize(venv, training=False)).learn(10)
    plain = PPO("MlpPolicy", "CartPole-v1", n_envs=2, **TINY)
    with pytest.raises(ConfigError, match="made without normalize_obs"):
        plain.set_env(VecNormalize(venv))
    with pytest.raises(ConfigError, match="twice"):
        PPO("MlpPolicy", VecNormalize(VecNormalize(venv)))
