"""Every algorithm learns the known answer of every probe environment."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import agent, quick, train

from sparring import actor
from sparring.envs import probes
from sparring.types import ActorState, Behaviour

pytestmark = pytest.mark.slow

ROWS, DRAWS = 16, 500
LEARNERS: dict[str, tuple[str, dict[str, Any], int]] = {
    "ppo": ("ppo", {"n_steps": 8, "batch_size": 64, "n_epochs": 4, "learning_rate": 0.01}, 200),
    "a2c": ("a2c", {"n_steps": 8, "learning_rate": 0.01}, 400),
    "reinforce": ("reinforce", {"n_steps": 8, "learning_rate": 0.01, "max_episode_steps": 8}, 500),
    "reinforce without baseline": (
        "reinforce",
        {"n_steps": 8, "learning_rate": 0.01, "max_episode_steps": 8, "baseline": False},
        500,
    ),
}
CRITICS = [name for name in LEARNERS if name != "reinforce without baseline"]
BOOTSTRAPPERS = ["ppo", "a2c"]


def learn(name: str, env: Any, seed: int = 0, **settings: Any) -> tuple[Any, Any]:
    """The algorithm and its state after training on a probe."""
    kind, own, iterations = LEARNERS[name]
    algo = agent(kind, env, ROWS, float(iterations), **{"pi": (16,), "vf": (16,), **own, **settings})
    program = quick(partial(train, env=env, iterations=iterations))
    return algo, program(algo, key=jax.random.key(seed)).learner.train


def drawn(algo: Any, state: Any, obs: Any, legal: Any = None, greedy: bool = False) -> np.ndarray:
    """Actions of many rows that all see the same observation."""
    many = jax.tree.map(lambda x: jnp.repeat(jnp.asarray(x)[None], DRAWS, axis=0), (obs, legal))
    seat = ActorState(many[0], jnp.ones(DRAWS, bool), algo.carry(DRAWS), many[1])
    behaviour = Behaviour(greedy=jnp.full(DRAWS, greedy))
    act = quick(actor.act)
    return np.asarray(act(algo, algo.policy(state), seat, behaviour, jax.random.key(1))[0])


def sign(x: float) -> np.ndarray:
    return np.array([x], np.float32)


def values(algo: Any, state: Any, *obs: float) -> np.ndarray:
    return np.asarray(algo.value(state, jnp.array(obs)[:, None]))


@pytest.mark.parametrize("name", CRITICS)
def test_constant_value(name):
    np.testing.assert_allclose(values(*learn(name, probes.ConstantValue()), 0.0), [1.0], atol=0.1)


@pytest.mark.parametrize("name", CRITICS)
def test_observed_value(name):
    np.testing.assert_allclose(values(*learn(name, probes.ObservedValue()), -1.0, 1.0), [-1.0, 1.0], atol=0.1)


@pytest.mark.parametrize("name", CRITICS)
def test_discounting(name):
    got = values(*learn(name, probes.Discounting(), gamma=0.5), 0.0, 1.0)
    np.testing.assert_allclose(got, [0.5, 1.0], atol=0.1)


@pytest.mark.parametrize("name", BOOTSTRAPPERS)
def test_truncation_bootstraps(name):
    np.testing.assert_allclose(values(*learn(name, probes.Truncation(), gamma=0.8), 0.0), [5.0], atol=0.25)


def test_reinforce_learns_the_return_of_the_cut_episode():
    """Monte-Carlo returns bootstrap from nothing: the mean of (1 - γ^k) / (1 - γ) over the five steps."""
    got = values(*learn("reinforce", probes.Truncation(), gamma=0.8), 0.0)
    np.testing.assert_allclose(got, [np.mean([(1 - 0.8**k) / 0.2 for k in range(1, 6)])], atol=0.25)


@pytest.mark.parametrize("name", LEARNERS)
def test_action_reward(name):
    assert (drawn(*learn(name, probes.ActionReward()), sign(0.0)) == 1).mean() > 0.9


@pytest.mark.parametrize("name", LEARNERS)
def test_observed_action(name):
    agent_and_state = learn(name, probes.ObservedAction())
    assert (drawn(*agent_and_state, sign(1.0)) == 1).mean() > 0.9
    assert (drawn(*agent_and_state, sign(-1.0)) == 0).mean() > 0.9


@pytest.mark.parametrize("name", CRITICS)
def test_masked(name):
    agent_and_state = learn(name, probes.Masked(), gamma=0.5)
    for context in range(4):
        state = probes.Context(jnp.int32(context), jnp.int32(0))
        env = probes.Masked()
        actions = drawn(*agent_and_state, env.observe(state), env.legal(state))
        assert set(np.unique(actions)) <= {context, (context + 1) % 4}
        assert (actions == (context + 1) % 4).mean() > 0.9


@pytest.mark.parametrize("name", CRITICS)
def test_multidiscrete(name):
    agent_and_state = learn(name, probes.ManyChoices())
    assert (drawn(*agent_and_state, sign(1.0)) == [1, 2, 3]).all(axis=1).mean() > 0.9
    assert (drawn(*agent_and_state, sign(-1.0)) == 0).all(axis=1).mean() > 0.9


@pytest.mark.parametrize("name", CRITICS)
def test_multibinary(name):
    agent_and_state = learn(name, probes.ManyBits())
    for signs in ([1.0, 1.0, 1.0], [1.0, -1.0, 1.0], [-1.0, -1.0, 1.0], [-1.0, -1.0, -1.0]):
        bits = drawn(*agent_and_state, np.array(signs, np.float32))
        assert (bits == (np.array(signs) > 0)).all(axis=1).mean() > 0.9


@pytest.mark.parametrize("name", CRITICS)
def test_dict(name):
    # An exclusive or has local optima; these settings find the way out for 23 of 24 seeds.
    careful = {"learning_rate": 3e-3, "ent_coef": 0.1, "pi": (32, 32), "vf": (32,)}
    agent_and_state = learn(name, probes.DictObservation(), **careful)
    for value in (-1.0, 1.0):
        for switch in (0, 1):
            actions = drawn(*agent_and_state, {"sign": sign(value), "switch": np.int32(switch)})
            assert (actions == ((value > 0) ^ (switch == 1))).mean() > 0.9


CONTINUOUS = {
    "clipped": {"log_std_init": -1.0},
    "squashed": {"log_std_init": -1.0, "squash": True},
    "gSDE": {"log_std_init": -2.0, "use_sde": True, "sde_sample_freq": 1},
}


@pytest.mark.parametrize("name", LEARNERS)
def test_continuous_action(name):
    algo, state = learn(name, probes.ActionRewardContinuous(), **CONTINUOUS["clipped"])
    assert abs(float(drawn(algo, state, sign(0.0), greedy=True)[0, 0]) - 0.5) < 0.15


@pytest.mark.parametrize(
    ("name", "kind"), [(n, "clipped") for n in CRITICS] + [("ppo", "squashed"), ("ppo", "gSDE")]
)
def test_observed_continuous_action(name, kind):
    algo, state = learn(name, probes.ObservedActionContinuous(), **CONTINUOUS[kind])
    for value in (-1.0, 1.0):
        assert abs(float(drawn(algo, state, sign(value), greedy=True)[0, 0]) - 0.5 * value) < 0.15


def test_a_discretised_action_finds_the_best_bin():
    algo, state = learn("ppo", probes.ObservedActionContinuous(), action_bins=(9,))
    for value in (-1.0, 1.0):
        assert float(drawn(algo, state, sign(value), greedy=True)[0, 0]) == 0.5 * value


@pytest.mark.parametrize("name", ["ppo", "reinforce"])
def test_normalised_observations_and_rewards_keep_the_answer(name):
    settings = {"normalize_obs": True, "normalize_reward": True, "frame_stack": 2}
    algo, state = learn(name, probes.ObservedAction(), **settings)
    assert (drawn(algo, state, sign(1.0)) == 1).mean() > 0.9
    assert (drawn(algo, state, sign(-1.0)) == 0).mean() > 0.9
