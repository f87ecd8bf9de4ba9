"""A replay in the host's memory gives the learner what one on the device gives, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from conftest import agent, as_numpy, differences

from sparring.algos.dqn import DQN, DQNConfig
from sparring.drivers.host import Host
from sparring.envs import registry
from sparring.errors import ConfigError

pytestmark = pytest.mark.slow
TINY = {"net_arch": (8,), "buffer_size": 120, "learning_starts": 20, "train_freq": 4, "gradient_steps": 2}


def driver(**settings: Any) -> Host:
    env = registry.make("gym:CartPole-v1", n_envs=2)
    config = DQNConfig(**{**TINY, "batch_size": 8, "target_update_interval": 30, **settings})
    return Host(DQN(env.spec, config, 100.0), env, 0)


@pytest.mark.parametrize(("n_steps", "frame_stack"), [(1, 1), (3, 2)])
def test_the_learner_cannot_tell_where_its_replay_is(n_steps, frame_stack, tmp_path):
    settings = {"n_steps": n_steps, "frame_stack": frame_stack}
    device = driver(buffer="device", **settings)
    host = driver(buffer="host", buffer_folder=str(tmp_path), **settings)
    for one in (device, host):
        metrics = one.advance(60)[0]
        assert int(metrics["train/n_updates"][-1]) > 100
    assert differences(device.train_state(), host.train_state()) == []
    assert jax.tree.leaves(host.learner.replay) == []


def test_a_run_with_a_replay_on_the_host_is_resumed_exactly():
    run, other = driver(buffer="host"), driver(buffer="host")
    run.advance(40)
    state, world = as_numpy(run.state()), as_numpy(run.world())
    run.advance(10)
    other.restore(state, 40)
    other.restore_world(world)
    other.advance(10)
    assert differences(run.state(), other.state()) == []
    assert differences(run.world(), other.world()) == []


def test_a_replay_larger_than_memory_is_refused_with_a_size_that_fits():
    with pytest.raises(
        ConfigError, match=r"buffer_size=10000000000000 takes .* Use a buffer_size of at most"
    ):
        driver(buffer="device", buffer_size=10**13)
    with pytest.raises(ConfigError, match=r"buffer_size=10000000000000 takes .* of memory"):
        driver(buffer="host", buffer_size=10**13)


def test_two_drivers_in_one_folder_have_files_of_their_own(tmp_path):
    folder = tmp_path / "new" / "frames"
    alone, one = driver(buffer="host"), driver(buffer="host", buffer_folder=str(folder))
    other = driver(buffer="host", buffer_folder=str(folder))
    for turn in (alone, one, other, one, other):
        turn.advance(30)
    alone.advance(30)
    assert differences(alone.train_state(), one.train_state()) == []
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line]
    assert len(mapped) == 2 * len(one._ring._frames)
    assert list(folder.iterdir()) == [], "nothing that a kill could leave behind"


def test_a_folder_that_cannot_be_used_and_a_disk_that_is_too_small_are_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"buffer_folder=.* cannot be used"):
        driver(buffer="host", buffer_folder=str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"takes .* of (memory|the disk)"):
        driver(buffer="host", buffer_folder=str(tmp_path), buffer_size=10**11)


@pytest.mark.parametrize(("name", "env"), [
    ("sac", "Pendulum-v1"), ("gdi", "CartPole-v1"), ("ppo", "CartPole-v1")
])  # fmt: skip
def test_what_acts_is_what_was_learned_and_stands_once_in_memory(name, env):
    world = registry.make(env, n_envs=4)
    made = Host(agent(name, world, 4), registry.host(world, 4), 0)
    before = [np.array(x) for x in made.weights()]
    made.advance(12)
    acting, kept = made.weights(), {id(x) for x in jax.tree.leaves(made.train_state())}
    policy = jax.tree.leaves(made.algo.policy(made.train_state()))
    for one, other in zip(acting, policy, strict=True):
        np.testing.assert_array_equal(one, other)
    assert any((one != other).any() for one, other in zip(before, acting, strict=True))
    large = [x for x in acting if x.size > 8]
    assert large
    assert all(id(x) in kept for x in large)
