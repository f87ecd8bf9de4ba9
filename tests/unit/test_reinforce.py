"""REINFORCE learns from true returns of whole episodes, with or without a baseline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import agent, differences, experience, quick
from jax.flatten_util import ravel_pytree

from sparring.algos.reinforce import REINFORCE, loss
from sparring.drivers import loop
from sparring.envs.probes import Multiply, ObservedAction
from sparring.errors import ConfigError
from sparring.types import Batch

T, B = 7, 3


def reinforce(**settings: Any) -> REINFORCE:
    return agent("reinforce", Multiply(), B, n_steps=T, ortho_init=False, **settings)


def plain_returns(data: Any, gamma: float) -> np.ndarray:
    ended, returns, later = np.asarray(data.terminated | data.truncated), np.zeros((T, B)), np.zeros(B)
    for t in reversed(range(T)):
        later = np.asarray(data.reward[t]) + gamma * np.where(ended[t], 0.0, later)
        returns[t] = later
    return returns


@pytest.mark.parametrize(
    ("baseline", "standardised"), [(True, True), pytest.param(False, False, marks=pytest.mark.slow)]
)
def test_gradient_is_that_of_true_returns(baseline, standardised):
    algo = reinforce(baseline=baseline, normalize_advantage=standardised, ent_coef=0.02, gamma=0.9)
    state = quick(algo.init)(jax.random.key(0))
    data = experience(algo, state)
    mask = np.ones((T, B), bool)
    mask[-2:] = False  # unfinished steps do not count
    data = data._replace(mask=jnp.asarray(mask), truncated=data.truncated.at[-3].set(True))
    returns = plain_returns(data, 0.9)

    def value(nets: Any) -> jax.Array:
        body, last = nets.critic.body.layers[0], nets.critic.value
        return (jnp.tanh(data.obs @ body.weight + body.bias) @ last.weight + last.bias)[..., 0]

    weight = (returns - np.asarray(value(state.nets)) if baseline else returns)[mask]
    if standardised:
        weight = (weight - weight.mean()) / (weight.std() + 1e-8)

    def objective(nets: Any) -> jax.Array:
        body, head = nets.actor.body.layers[0], nets.actor.head.dense
        log_p = jax.nn.log_softmax(jnp.tanh(data.obs @ body.weight + body.bias) @ head.weight + head.bias)[
            mask
        ]
        chosen = jnp.take_along_axis(log_p, data.action[mask][..., None], -1)[..., 0]
        total = -(chosen * weight).mean() + 0.02 * (jnp.exp(log_p) * log_p).sum(-1).mean()
        return total + 0.5 * ((returns - value(nets))[mask] ** 2).mean() if baseline else total

    wanted = ravel_pytree(quick(jax.grad(objective))(state.nets))[0]
    gradient = quick(jax.grad(loss, has_aux=True))
    got, _ = gradient(state.nets, algo.config, None, data, jnp.asarray(returns, jnp.float32))
    np.testing.assert_allclose(ravel_pytree(got)[0], wanted, rtol=1e-3, atol=1e-5)
    new, report = quick(lambda s: algo.update(s, Batch(data), jax.random.key(1)))(state)
    assert float(report.metrics["train/grad_norm"]) == pytest.approx(np.linalg.norm(wanted), rel=1e-3)
    assert int(report.metrics["train/transitions"]) == mask.sum()
    if baseline:
        error = ((returns - np.asarray(value(state.nets)))[mask] ** 2).mean()
        assert float(report.metrics["train/value_loss"]) == pytest.approx(error, rel=1e-4)
    assert differences(new.nets, state.nets) != []


def test_without_a_baseline_there_is_no_critic():
    algo = reinforce(baseline=False)
    assert jax.eval_shape(algo.init, jax.random.key(0)).nets.critic is None


def test_an_episode_across_rollouts_is_learned_from_once_and_whole():
    algo, key = reinforce(), jax.random.key(0)
    state = quick(algo.init)(key)
    none = jnp.zeros((T, B), bool)
    data = experience(algo, state)._replace(terminated=none, truncated=none, first=none)
    ends = data._replace(terminated=none.at[2].set(True))
    learner = loop.start(algo, key, data, 10)
    learn = quick(loop.learn)
    first, waiting = learn(algo, learner, data, key, 0)
    assert int(waiting["train/n_updates"]) == 0
    assert differences(first.train.nets, learner.train.nets) == []
    assert differences(first.train.optimiser, learner.train.optimiser) == []
    second, finished = learn(algo, first, ends, key, 1)
    assert int(finished["train/transitions"]) == (T + 3) * B
    assert differences(second.train.nets, first.train.nets) != []
    _, rest = learn(algo, second, ends, key, 2)
    assert int(rest["train/transitions"]) == (T - 3 + 3) * B


def test_an_environment_without_a_limit_needs_one():
    endless = agent("reinforce", ObservedAction(), B)
    with pytest.raises(ConfigError, match="max_episode_steps"):
        endless.check()
    assert replace(endless, config=replace(endless.config, max_episode_steps=5)).check() == []
    (warning,) = reinforce(max_episode_steps=5).check()
    assert "37" in warning
    with pytest.raises(ConfigError, match="at least 1"):
        agent("reinforce", Multiply(), B, n_steps=0).check()
