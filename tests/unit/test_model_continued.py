"""A model that learns on keeps its replay and its bandit, as it keeps its weights."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from conftest import differences

from sparring import DQN, GDI, SAC
from sparring.common.callbacks import BaseCallback
from sparring.drivers.fused import Fused
from sparring.drivers.host import Host


class Looks(BaseCallback):
    """Looks at every step, so that Python steps the environment."""

    per_step = True

    def _on_step(self) -> bool:
        return True


def small(**settings: Any) -> DQN:
    values = {"buffer_size": 1000, "learning_starts": 40, "train_freq": 4, "batch_size": 8, "net_arch": (8,)}
    return DQN("MlpPolicy", "CartPole-v1", seed=0, verbose=0, run_dir=False, **{**values, **settings})


def written(model: Any) -> int:
    memory = model._driver.replayed()
    store = getattr(memory.data, "store", memory.data)
    return int(store.written.sum())


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
