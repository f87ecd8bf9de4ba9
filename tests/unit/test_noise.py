"""Noise on actions, one deviation and mean for all dimensions or one for each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import algorithm, quick

from sparring import SAC, TD3, CrossQ
from sparring.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise, VectorizedActionNoise
from sparring.config import Linear, from_mapping, to_plain
from sparring.errors import ConfigError
from sparring.nets import noise
from sparring.nets.noise import NoiseConfig
from sparring.spaces import Box, Discrete, EnvSpec
from sparring.types import Behaviour, View

SPEC = EnvSpec("two", Box((3,), -1.0, 1.0), Box((2,), -2.0, 2.0), rows=4)
STEERERS = ("td3", "sac", "crossq")


def learner(name: str, spec: EnvSpec = SPEC, **settings: Any) -> Any:
    kind = algorithm(name)
    small = {"learning_starts": 0, "pi": (4,), "qf": (4,), "buffer_size": 100}
    return kind(spec, from_mapping(kind.Config, small | settings))


def actions(algo: Any, rows: int = 4000, greedy: bool = False, carry: Any = None) -> tuple[np.ndarray, Any]:
    weights = algo.policy(quick(algo.init)(jax.random.key(0)))
    view = View(jnp.ones((rows, 3)), first=jnp.zeros(rows, bool))
    behaviour = Behaviour(greedy=jnp.ones(rows, bool) if greedy else None)
    carry = algo.carry(rows) if carry is None else carry
    act = quick(type(algo).act)
    action, _, carry = act(algo, weights, carry, view, behaviour, jax.random.key(1))
    return np.asarray(action) / 2.0, carry


def test_gaussian_noise_has_a_deviation_and_a_mean_per_dimension():
    calm, _ = actions(learner("td3", noise="none"))
    got, _ = actions(learner("td3", noise_std=[0.05, 0.2], noise_mean=[0.0, -0.3]))
    np.testing.assert_allclose((got - calm).mean(0), [0.0, -0.3], atol=0.02)
    np.testing.assert_allclose((got - calm).std(0), [0.05, 0.2], rtol=0.05)


def test_a_list_of_the_same_deviation_is_one_deviation():
    assert np.array_equal(
        actions(learner("td3", noise_std=[0.2, 0.2]))[0], actions(learner("td3", noise_std=0.2))[0]
    )


def test_drifting_noise_settles_at_its_mean_and_deviation_of_every_dimension():
    config = NoiseConfig(
        noise="ou", noise_std=(0.1, 0.4), noise_mean=(0.5, -0.5), noise_theta=1.0, noise_dt=0.1
    )
    drift, std = noise.start(config, SPEC, 2000), noise.deviation(config)

    def step(drift: Any, key: Any) -> Any:
        return noise.draw(config, std, None, drift, None, key, drift.shape)[1], None

    drift, _ = jax.lax.scan(step, drift, jax.random.split(jax.random.key(0), 100))
    stationary = np.array([0.1, 0.4]) * np.sqrt(0.1 / (1 - 0.9**2))
    np.testing.assert_allclose(np.mean(drift, 0), [0.5, -0.5], atol=0.03)
    np.testing.assert_allclose(np.std(drift, 0), stationary, rtol=0.06)
    fresh, _ = noise.draw(
        config, jnp.zeros(2), None, drift, jnp.ones(2000, bool), jax.random.key(0), drift.shape
    )
    np.testing.assert_allclose(fresh, np.tile([0.05, -0.05], (2000, 1)), atol=1e-6)


@pytest.mark.parametrize("name", STEERERS)
def test_pull_and_time_step_of_drifting_noise_follow_schedules(name):
    """At either end of a schedule the drift is that of the constant there."""

    def drift(progress: float, **settings: Any) -> np.ndarray:
        algo = learner(name, noise="ou", noise_std=0.2, **settings)
        state = quick(algo.init)(jax.random.key(0))
        weights = algo.policy(state._replace(iteration=jnp.int32(progress * algo.horizon)))
        view = View(jnp.ones((6, 3)), first=jnp.zeros(6, bool))
        carry = algo.carry(6)._replace(noise=jnp.full((6, 2), 0.5))
        after = quick(type(algo).act)(algo, weights, carry, view, Behaviour(), jax.random.key(1))[2]
        return np.asarray(after.noise)

    moving = {"noise_theta": Linear(0.2, 3.0), "noise_dt": Linear(0.01, 0.25)}
    np.testing.assert_allclose(drift(0, **moving), drift(0, noise_theta=0.2, noise_dt=0.01), rtol=1e-6)
    np.testing.assert_allclose(drift(1, **moving), drift(1, noise_theta=3.0, noise_dt=0.25), rtol=1e-6)
    one = drift(1, noise_theta=Linear(0.2, 3.0), noise_dt=0.25)
    np.testing.assert_allclose(one, drift(1, **moving), rtol=1e-6)


@pytest.mark.parametrize("name", ["sac", "crossq"])
def test_noise_is_added_to_a_policy_that_is_random_itself(name):
    base, _ = actions(learner(name))
    noisy, carry = actions(learner(name, noise="ou", noise_std=[0.0, 3.0], noise_dt=0.01))
    np.testing.assert_allclose(noisy[:, 0], base[:, 0], atol=1e-5)
    wanted = np.clip(base[:, 1] + np.asarray(carry.noise)[:, 1], -1.0, 1.0)
    np.testing.assert_allclose(noisy[:, 1], wanted, atol=1e-5)
    assert np.asarray(carry.noise)[:, 1].std() == pytest.approx(0.3, rel=0.1)
    kinds = [actions(learner(name, noise=kind), greedy=True)[0] for kind in ("none", "normal")]
    assert np.array_equal(*kinds)


@pytest.mark.parametrize("name", STEERERS)
def test_sizes_that_do_not_fit_are_refused_with_the_fix(name):
    with pytest.raises(
        ConfigError, match=r"noise_std has 3 numbers, but an action of two has 2\. Give 2, or one"
    ):
        learner(name, noise="normal", noise_std=[0.1, 0.1, 0.1]).check()
    with pytest.raises(ConfigError, match=r"noise_mean has 3 numbers.*noise_mean=0\."):
        learner(name, noise="ou", noise_mean=[0, 0, 0]).check()
    with pytest.raises(ConfigError, match="at least 0"):
        learner(name, noise="normal", noise_std=[0.1, -0.1]).check()
    learner(name, noise="normal", noise_std=[0.1, 0.2], noise_mean=0.1).check()


def test_noise_needs_numbers_and_no_gsde():
    with pytest.raises(ConfigError, match="use_sde explores by itself"):
        learner("sac", noise="normal", use_sde=True).check()
    with pytest.raises(ConfigError, match="actions that are numbers"):
        learner("sac", replace(SPEC, action=Discrete(3)), noise="normal").check()


def test_lists_are_read_from_configurations_and_written_back():
    assert from_mapping(NoiseConfig, {"noise_std": [0.1, 1]}).noise_std == (0.1, 1.0)
    assert from_mapping(NoiseConfig, {"noise_std": "lin_0.5"}).noise_std == Linear(0.5)
    assert to_plain((0.1, 0.2)) == [0.1, 0.2]
    with pytest.raises(ConfigError, match="noise_std must be a number"):
        from_mapping(NoiseConfig, {"noise_std": ["x"]})
    with pytest.raises(ConfigError, match="learning_rate must be a number or a schedule"):
        from_mapping(algorithm("td3").Config, {"learning_rate": [0.1]})


@pytest.mark.parametrize("kind", [TD3, SAC, CrossQ])
def test_sb3s_objects_become_settings(kind):
    given = NormalActionNoise(mean=np.zeros(1), sigma=0.3 * np.ones(1))
    model = kind("MlpPolicy", "Pendulum-v1", action_noise=given, run_dir=False)
    assert (model.noise, model.noise_std, model.noise_mean) == ("normal", (0.3,), (0.0,))
    model.algo().check()
    given = OrnsteinUhlenbeckActionNoise(0.1, 0.3, theta=0.2)
    model = kind("MlpPolicy", "Pendulum-v1", action_noise=VectorizedActionNoise(given, 4), run_dir=False)
    assert (model.noise, model.noise_std, model.noise_mean, model.noise_theta) == ("ou", 0.3, (0.1,), 0.2)


@pytest.mark.parametrize("kind", [TD3, SAC, CrossQ])
def test_noise_by_its_own_settings_is_kept_and_never_said_twice(kind, tmp_path):
    drifting = {"noise": "ou", "noise_std": (0.3,), "run_dir": False}
    model = kind("MlpPolicy", "Pendulum-v1", **drifting)
    assert (model.noise, model.noise_std) == ("ou", (0.3,))
    with pytest.raises(ConfigError, match="noise='ou' and action_noise=NormalActionNoise both"):
        kind("MlpPolicy", "Pendulum-v1", action_noise=NormalActionNoise([0.0], [0.1]), **drifting)
    model.save(tmp_path / "agent")
    assert kind.load(tmp_path / "agent").noise == "ou"
    assert kind.load(tmp_path / "agent", action_noise=None).noise == "none"
    assert kind.load(tmp_path / "agent", action_noise=NormalActionNoise([0.0], [0.1])).noise == "normal"


def test_a_vector_of_the_wrong_size_is_named_by_the_constructor():
    with pytest.raises(ConfigError, match="noise_std has 2 numbers, but an action of Pendulum-v1 has 1"):
        TD3(
            "MlpPolicy", "Pendulum-v1", action_noise=NormalActionNoise(np.zeros(2), np.ones(2)), run_dir=False
        )
