"""A2C is one step of RMSProp (or Adam) on the n-step policy gradient."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import agent, experience, quick
from jax.flatten_util import ravel_pytree

from sparring.algos.a2c import A2C
from sparring.envs.probes import Multiply
from sparring.errors import ConfigError
from sparring.types import Batch

T, B = 7, 3


def a2c(**settings: Any) -> A2C:
    return agent("a2c", Multiply(), B, n_steps=T, ortho_init=False, **settings)


@cache
def start() -> tuple[Any, Any]:
    algo = a2c()
    state = quick(algo.init)(jax.random.key(0))
    return state, experience(algo, state)


def run(algo: A2C) -> tuple[Any, dict[str, Any]]:
    state, data = start()
    state = state._replace(optimiser=algo._rule().init(ravel_pytree(state.nets)[0]))
    state, report = quick(lambda a, s: a.update(s, Batch(data), jax.random.key(1)))(algo, state)
    return state, jax.tree.map(np.asarray, report.metrics)


def value(nets: Any, obs: jax.Array) -> jax.Array:
    body, last = nets.critic.body.layers[0], nets.critic.value
    return (jnp.tanh(obs @ body.weight + body.bias) @ last.weight + last.bias)[..., 0]


def plain_gradient(nets: Any, data: Any, gamma: float, standardised: bool) -> jax.Array:
    """Mnih et al. (2016), algorithm S3, from the bare weight matrices; returns end at the rollout's end."""
    values, after = np.asarray(value(nets, data.obs)), np.asarray(value(nets, data.next_obs))
    returns, later = np.zeros((T, B)), after[-1]
    for t in reversed(range(T)):
        follow = np.where(np.asarray(data.truncated[t]), after[t], later)
        later = np.asarray(data.reward[t]) + gamma * np.where(np.asarray(data.terminated[t]), 0.0, follow)
        returns[t] = later
    advantage = returns - values
    if standardised:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)

    def objective(nets: Any) -> jax.Array:
        body, head = nets.actor.body.layers[0], nets.actor.head.dense
        logits = jnp.tanh(data.obs @ body.weight + body.bias) @ head.weight + head.bias
        log_p = jax.nn.log_softmax(logits)
        chosen = jnp.take_along_axis(log_p, data.action[..., None], -1)[..., 0]
        entropy = -(jnp.exp(log_p) * log_p).sum(-1).mean()
        return (
            -(chosen * advantage).mean()
            + 0.5 * ((returns - value(nets, data.obs)) ** 2).mean()
            - 0.02 * entropy
        )

    return ravel_pytree(quick(jax.grad(objective))(nets))[0]


@pytest.mark.parametrize(
    ("rms", "standardised"), [(True, False), pytest.param(False, True, marks=pytest.mark.slow)]
)
def test_one_update_is_one_step_on_the_papers_gradient(rms, standardised):
    algo = a2c(use_rms_prop=rms, max_grad_norm=None, ent_coef=0.02, normalize_advantage=standardised)
    got, metrics = run(algo)
    state, data = start()
    g = np.asarray(plain_gradient(state.nets, data, 0.99, standardised), np.float64)
    step = g / (np.sqrt(0.01 * g * g) + 1e-5) if rms else g / (np.abs(g) + 1e-5)
    moved = np.asarray(ravel_pytree(got.nets)[0] - ravel_pytree(state.nets)[0])
    np.testing.assert_allclose(moved, -7e-4 * step, rtol=2e-2, atol=2e-6)
    assert metrics["train/grad_norm"] == pytest.approx(np.linalg.norm(g), rel=1e-3)
    assert metrics["train/n_updates"] == 1


def test_impossible_sizes_are_refused():
    with pytest.raises(ConfigError, match="at least 1"):
        agent("a2c", Multiply(), 2, n_steps=0).check()
    with pytest.raises(ConfigError, match="n_steps=2"):
        agent("a2c", Multiply(), 1, n_steps=1, normalize_advantage=True).check()
    assert a2c().check() == []
