"""A model that learns on keeps its replay and its bandit, as it keeps its weights."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import jax
import numpy as np
import pytest
from conftest import differences

from sparring import DQN, GDI, SAC
from sparring.common.callbacks import BaseCallback
from sparring.drivers.fused import Fused
from sparring.drivers.host import Host
from sparring.errors import CheckpointError, ConfigError


class Looks(BaseCallback):
    """Looks at every step, so that Python steps the environment."""

    per_step = True

    def _on_step(self) -> bool:
        return True


def small(**settings: Any) -> DQN:
    values = {"buffer_size": 1000, "learning_starts": 40, "train_freq": 4, "batch_size": 8, "net_arch": (8,)}
    env = settings.pop("env", "CartPole-v1")
    return DQN("MlpPolicy", env, seed=0, verbose=0, run_dir=False, **{**values, **settings})


def store_of(driver: Any) -> Any:
    data = driver.replayed().data
    return getattr(data, "store", data)


def written(model: Any) -> int:
    return int(store_of(model._driver).written.sum())


def check_rows(driver: Any) -> None:
    """Every step that counts as written is, and leads to the next one of its row or ends an episode."""
    store = store_of(driver)
    obs, follows = (np.asarray(x) for x in (store.data.obs, store.data.next_obs))
    over = np.asarray(store.data.terminated | store.data.truncated)
    for row, count in enumerate(np.asarray(store.written)):
        held = np.arange(max(count - len(obs), 0), count) % len(obs)
        assert obs[held, row].any(axis=1).all(), "nobody wrote it"
        assert not obs[count:, row].any()
        leads = (follows[held[:-1], row] == obs[held[1:], row]).all(axis=1)
        assert (leads | over[held[:-1], row]).all()


def unequal(**settings: Any) -> DQN:
    """A model whose two rows have written different numbers of steps."""
    values = {"buffer_size": 2000, "learning_starts": 40, "train_freq": 4, "batch_size": 8, "net_arch": (8,)}
    world = gym.vector.SyncVectorEnv(
        [partial(gym.make, "CartPole-v1", max_episode_steps=limit) for limit in (500, 5)]
    )
    model = DQN("MlpPolicy", world, seed=0, run_dir=False, **{**values, **settings}).learn(400)
    first, second = store_of(model._driver).written
    assert first != second
    return model


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"prioritized": True}, {"core": "gru", "core_size": 4}], ids=str)
def test_a_second_learn_goes_on_with_what_was_replayed(settings):
    model = small(**settings).learn(200)
    held = jax.tree.map(np.array, model._driver.replayed())
    model.forget_driver()
    driver = model.driver(host=False, fresh=True)
    assert not differences(held, driver.replayed()), "nothing has been added yet"
    model.learn(100)
    assert written(model) == 300
    model.learning_rate = 1e-3
    model.learn(100, reset_num_timesteps=False)
    assert written(model) == 400
    model.set_env("CartPole-v1")
    model.learn(100, reset_num_timesteps=False)
    assert written(model) == 500


@pytest.mark.slow
def test_a_replay_goes_with_a_model_from_compiled_to_stepped_environments():
    model = small().learn(200)
    assert isinstance(model._driver, Fused)
    model.learn(100, callback=Looks(), reset_num_timesteps=False)
    assert isinstance(model._driver, Host)
    assert written(model) == 300


@pytest.mark.slow
def test_the_episode_that_was_left_ends_in_the_replay_without_a_death():
    model = small(n_steps=3).learn(200)
    model.learn(100)
    store = model._driver.replayed().data
    last = 199
    ended, cut = (np.asarray(x)[last, 0] for x in (store.data.terminated, store.data.truncated))
    assert ended != cut, "a window of three steps must not lead from one episode into another"


@pytest.mark.slow
def test_a_replay_of_another_layout_begins_anew_and_says_so(capsys):
    model = small().learn(200)
    model.buffer_size = 2000
    model.learn(100, reset_num_timesteps=False)
    assert written(model) == 100
    assert "replay begins anew" in capsys.readouterr().out


@pytest.mark.slow
def test_a_replay_that_has_no_room_beside_a_new_one_begins_anew(capsys, monkeypatch):
    model = small().learn(200)
    monkeypatch.setattr("sparring.model.free_bytes", lambda: 1000)
    model.learn(100)
    assert written(model) == 100
    assert "no room for the old one" in capsys.readouterr().out


@pytest.mark.slow
def test_a_replay_in_the_hosts_memory_is_kept_too():
    settings = {"buffer": "host", "buffer_size": 500, "learning_starts": 40, "batch_size": 8}
    model = SAC(
        "MlpPolicy", "gym:Pendulum-v1", pi=(8,), qf=(8,), seed=0, verbose=0, run_dir=False, **settings
    )
    model.learn(60)
    model.learn(60)
    assert int(model._driver.replayed()["written"].sum()) == 120


@pytest.mark.slow
def test_what_a_bandit_knows_is_saved_loaded_and_kept(tmp_path):
    model = GDI("MlpPolicy", "CartPole-v1", n_envs=4, seed=0, verbose=0, run_dir=False, net_arch=(8,))
    model.learn(1280)
    knows = model.bandit_state()
    assert int(knows.pool.held) > 10
    model.save(tmp_path / "agent")
    again = GDI.load(tmp_path / "agent", env="CartPole-v1", run_dir=False)
    assert not differences(knows, again.bandit_state())
    for each in (model, again):
        each.learning_rate = 1e-4
        each.learn(640, reset_num_timesteps=False)
        assert each.bandit_state().pulls.sum() > knows.pulls.sum()
    other = GDI.load(tmp_path / "agent", env="CartPole-v1", run_dir=False, controller="uniform")
    assert not jax.tree.leaves(other.bandit_state())


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"prioritized": True}, {"core": "gru", "core_size": 4}], ids=str)
def test_rows_that_wrote_unequally_go_on_one_by_one(settings):
    model = unequal(**settings)
    before = written(model)
    model.set_env("gym:CartPole-v1")
    model.learn(200, reset_num_timesteps=False)
    assert written(model) == before + 200
    check_rows(model._driver)
    assert np.isfinite(model.session.last["train/loss"])


@pytest.mark.slow
def test_a_compiled_environment_begins_anew_after_rows_that_wrote_unequally(capsys):
    model = unequal()
    model.set_env("CartPole-v1")
    model.learn(200, reset_num_timesteps=False)
    check_rows(model._driver)
    assert written(model) == 200
    assert "replay begins anew" in capsys.readouterr().out


@pytest.mark.slow
def test_a_file_that_does_not_fit_behind_is_refused_and_changes_nothing(tmp_path):
    unequal().save_replay_buffer(tmp_path / "replay")
    other = small(buffer_size=2000, n_envs=2).learn(40)
    with pytest.raises(ConfigError, match="cannot be gone on with"):
        other.load_replay_buffer(tmp_path / "replay")
    assert written(other) == 40
    other.learn(40, reset_num_timesteps=False)
    check_rows(other._driver)


@pytest.mark.slow
@pytest.mark.parametrize(("env", "kept"), [("CartPole-v1", 0), ("gym:CartPole-v1", 204)])
def test_a_longer_rollout_after_an_odd_number_of_short_ones(env, kept):
    model = small(env=env, train_freq=4, buffer_size=400).learn(204)
    model.train_freq = 8
    model.learn(240, reset_num_timesteps=False)
    check_rows(model._driver)
    assert written(model) == kept + 240


def test_a_restored_state_whose_rows_wrote_unequally_is_written_by_rows_or_refused():
    driver: Any = small(env="gym:CartPole-v1", n_envs=2).driver(host=False, fresh=True)
    situation = driver.state()
    replay = situation.learner.replay
    ragged = replay._replace(data=replay.data._replace(written=np.array([5, 8], np.int32)))
    driver.restore(situation._replace(learner=situation.learner._replace(replay=ragged)), 3)
    driver.advance(1)
    obs = np.asarray(store_of(driver).data.obs)
    assert obs[5:9, 0].any(axis=1).all()
    assert obs[8:12, 1].any(axis=1).all()
    assert not obs[9:, 0].any()

    fused: Any = small(n_envs=2).driver(host=False, fresh=True)
    world = fused.state()
    with pytest.raises(CheckpointError, match="rows"):
        fused.restore(world._replace(learner=world.learner._replace(replay=ragged)), 3)


@pytest.mark.slow
@pytest.mark.parametrize("env", ["CartPole-v1", "gym:CartPole-v1"])
def test_a_loaded_replay_does_not_lead_on_into_the_episode_of_now(env, tmp_path):
    model = small(env=env, learning_starts=1000).learn(204)
    model.save_replay_buffer(tmp_path / "replay")
    store = store_of(model._driver)
    assert not (store.data.terminated | store.data.truncated)[203, 0], "an episode is going on"
    model.load_replay_buffer(tmp_path / "replay")
    model.learn(20, reset_num_timesteps=False)
    assert written(model) == 224
    check_rows(model._driver)
    assert store_of(model._driver).data.truncated[203, 0]
