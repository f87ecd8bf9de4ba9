"""PPO's arithmetic equals a plain derivation, and its minibatches stop when they should."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import agent, experience, quick
from jax.flatten_util import ravel_pytree

from sparring.algos.ppo import PPO, Sample, gradient, loss
from sparring.envs.probes import Multiply
from sparring.errors import ConfigError
from sparring.ops import optim
from sparring.ops.minibatch import epochs
from sparring.types import Batch

T, B = 7, 3
N = T * B


def ppo(**settings: Any) -> PPO:
    plain = {"n_steps": T, "batch_size": N, "n_epochs": 1, "ortho_init": False}
    return agent("ppo", Multiply(), B, **{**plain, **settings})


@cache
def start() -> tuple[Any, Any]:
    algo = ppo()
    state = quick(algo.init)(jax.random.key(0))
    return state, experience(algo, state)


@quick
def update(algo: PPO, state: Any, data: Any, key: Any) -> Any:
    return algo.update(state, Batch(data), key)


def run(algo: PPO, seed: int = 1) -> tuple[Any, dict[str, Any]]:
    state, data = start()
    state, report = update(algo, state, data, jax.random.key(seed))
    return state, jax.tree.map(np.asarray, report.metrics)


def test_a_fresh_sample_has_ratio_one():
    _, metrics = run(ppo())
    assert metrics["train/approx_kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["train/clip_fraction"] == 0.0
    assert metrics["train/policy_gradient_loss"] == pytest.approx(0.0, abs=1e-6)  # standardised advantages


def minibatch(seed: int = 3) -> tuple[Sample, jax.Array]:
    """Samples whose old policy and values differ from the networks'."""
    random, (_, data) = np.random.default_rng(seed), start()
    flat = jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), data)
    numbers = [jnp.asarray(random.normal(size=N), jnp.float32) for _ in range(3)]
    old = flat.extras.log_prob + 0.5 * numbers[0]
    return Sample(flat.obs, None, flat.action, old, numbers[1], numbers[2]), jnp.asarray(
        random.normal(size=N), jnp.float32
    )


def plain_loss(
    nets: Any, samples: Sample, returns: jax.Array, clip_vf: float | None, standardised: bool
) -> jax.Array:
    """Schulman et al. (2017), equations 7 and 9, from the bare weight matrices."""

    def mlp(body: Any, last: Any) -> jax.Array:
        hidden = jnp.tanh(samples.obs @ body.layers[0].weight + body.layers[0].bias)
        return hidden @ last.weight + last.bias

    logits = mlp(nets.actor.body, nets.actor.head.dense)
    log_p = logits - jnp.log(jnp.sum(jnp.exp(logits), axis=1, keepdims=True))
    ratio = jnp.exp(log_p[jnp.arange(N), samples.action] - samples.log_prob)
    a = samples.advantage
    if standardised:
        a = (a - a.mean()) / (a.std() + 1e-8)
    surrogate = jnp.minimum(ratio * a, jnp.clip(ratio, 0.8, 1.2) * a).mean()
    value = mlp(nets.critic.body, nets.critic.value)[:, 0]
    if clip_vf is not None:
        value = samples.value + jnp.clip(value - samples.value, -clip_vf, clip_vf)
    entropy = -(jnp.exp(log_p) * log_p).sum(1).mean()
    return -surrogate + 0.7 * ((returns - value) ** 2).mean() - 0.03 * entropy


score = quick(jax.value_and_grad(loss, has_aux=True))


@pytest.mark.parametrize(
    ("kind", "clip_vf", "copies"), [("minibatch", 0.3, 1), ("false", None, 1), ("minibatch", 0.3, 24)]
)
def test_loss_and_gradient_are_the_papers(kind, clip_vf, copies):
    """Also of a minibatch so large that it is computed in parts: copies of a small one change nothing."""
    (state, _), (samples, returns) = start(), minibatch()
    c = ppo(vf_coef=0.7, ent_coef=0.03, clip_range_vf=clip_vf, normalize_advantage=kind).config
    plain = partial(
        plain_loss, samples=samples, returns=returns, clip_vf=clip_vf, standardised=kind == "minibatch"
    )
    many = jax.tree.map(lambda x: jnp.concatenate([x] * copies), (samples, returns))
    slope, metrics = quick(gradient)(state.nets, c, None, *many, None)
    want, wanted = quick(jax.value_and_grad(plain))(state.nets)
    assert float(metrics["train/loss"]) == pytest.approx(float(want), rel=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), slope, wanted)


def test_a_value_outside_its_clip_range_gets_no_gradient():
    (state, _), (samples, returns) = start(), minibatch()
    c = ppo(clip_range_vf=1e-6, vf_coef=1.0, normalize_advantage="false").config
    far = samples._replace(value=samples.value + 100.0)
    _, slope = score(state.nets, c, None, far, returns, None)
    np.testing.assert_array_equal(ravel_pytree(slope.critic)[0], 0.0)


def test_clip_fraction_counts_ratios_outside_the_range():
    (state, _), (samples, returns) = start(), minibatch()
    for shift, fraction in ((0.0, 0.0), (0.3, 1.0), (-0.3, 1.0)):
        near = samples._replace(log_prob=start()[1].extras.log_prob.reshape(-1) + shift)
        (_, metrics), _ = score(state.nets, ppo().config, None, near, returns, None)
        assert float(metrics["train/clip_fraction"]) == fraction
        assert float(metrics["train/approx_kl"]) == pytest.approx(np.exp(-shift) - 1 + shift, abs=1e-5)


def test_target_kl_stops_before_the_step_that_went_too_far():
    once, _ = run(ppo(learning_rate=0.1))
    stopped, _ = run(ppo(learning_rate=0.1, n_epochs=5, target_kl=1e-5))
    free, _ = run(ppo(learning_rate=0.1, n_epochs=5, target_kl=1e5))
    assert int(stopped.optimiser.count) == 1
    assert int(free.optimiser.count) == 5
    np.testing.assert_allclose(
        ravel_pytree(stopped.nets)[0], ravel_pytree(once.nets)[0], rtol=1e-5, atol=1e-7
    )


@pytest.mark.slow
def test_minibatches_that_do_not_divide_are_a_plain_loop_over_their_transitions():
    batch_size, (state, _), key = 8, start(), jax.random.key(1)
    algo = ppo(batch_size=batch_size, learning_rate=0.01)
    got, _ = run(algo)
    assert int(got.optimiser.count) == -(-N // batch_size)
    c = algo.config
    samples, returns, _ = quick(algo._targets)(c, state, start()[1])
    plan = epochs(key, 1, N, batch_size)
    flat, unravel = ravel_pytree(state.nets)
    rule, optimiser = optim.transform("adam", c.adam_eps), state.optimiser
    step = quick(partial(optim.apply, rule))
    for i, index in enumerate(plan.index[0]):
        chosen = index if plan.valid is None else index[np.asarray(plan.valid[0, i])]
        part = jax.tree.map(lambda x, chosen=chosen: x[chosen], (samples, returns))
        slope, _ = quick(gradient)(unravel(flat), c, None, *part, None)
        flat, optimiser, _ = step(flat, optimiser, ravel_pytree(slope)[0], c.learning_rate, c.max_grad_norm)
    np.testing.assert_allclose(ravel_pytree(got.nets)[0], flat, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_advantages_standardised_over_the_rollout_are_those_of_one_minibatch():
    one, other = (run(ppo(normalize_advantage=kind))[0].nets for kind in ("minibatch", "batch"))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), one, other)


def test_sizes_are_checked_and_a_fitting_one_is_proposed():
    assert ppo(batch_size=7).check() == []
    assert ppo(batch_size=1000).check() == []
    (warning,) = ppo(batch_size=8).check()
    assert "21 is not a multiple of batch_size = 8" in warning
    assert "has 5 transitions" in warning
    assert "batch_size=7 would fit" in warning
    for bad in ({"n_steps": 0}, {"batch_size": 0}, {"n_epochs": 0}):
        with pytest.raises(ConfigError, match="at least 1"):
            ppo(**bad).check()
    with pytest.raises(ConfigError, match="n_steps=2"):
        agent("ppo", Multiply(), 1, n_steps=1).check()
