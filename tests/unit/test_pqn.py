"""PQN: one step of rectified Adam on the distance to Q(λ) returns by the network that acted."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import differences, quick
from replayed import BRANCHES, CHOICE, as64, batch, dense, learner, start

from sparring.errors import ConfigError
from sparring.types import Batch

T, B, GAMMA, TRACE = 7, 2, 0.9, 0.7
SPECS = {"CHOICE": CHOICE, "MASKED": replace(BRANCHES, masks_actions=True)}


@cache
def setting(name: str, **settings: Any) -> tuple[Any, Any, Any]:
    """Agent, state, and a rollout [T, B, …] whose next observations follow unless an episode ends."""
    base = {"gamma": GAMMA, "q_lambda": TRACE, "n_steps": T, "batch_size": T * B, "n_epochs": 1}
    algo = learner("pqn", SPECS[name], **{**base, **settings})
    data = batch(algo, steps=B, count=T).data
    over = (data.terminated | data.truncated)[:-1, :, None]
    ahead = jnp.concatenate([jnp.where(over, data.next_obs[:-1], data.obs[1:]), data.next_obs[-1:]])
    data = data._replace(next_obs=ahead)
    if data.legal is not None:
        legal = jnp.concatenate([jnp.where(over, data.next_legal[:-1], data.legal[1:]), data.next_legal[-1:]])
        data = data._replace(next_legal=legal)
    return algo, start(algo), data


def table(net: Any, obs: np.ndarray, legal: Any = None) -> np.ndarray:
    """Q of every option, [..., D, W], through layers, layer norms and ReLU; -∞ where there is none."""
    sizes = net.sizes
    x = obs
    for layer, norm in zip(net.body.layers, net.body.norms, strict=True):
        x = dense(layer, x)
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        x = np.maximum(x * np.asarray(norm.scale) + np.asarray(norm.shift), 0.0)
    values = dense(net.advantage, x).reshape(*obs.shape[:-1], len(sizes), max(sizes))
    starts = np.cumsum([0, *sizes[:-1]])
    for branch, size in enumerate(sizes):
        if net.value is not None:
            values[..., branch, :] += dense(net.value, x) - values[..., branch, :size].mean(-1, keepdims=True)
        values[..., branch, size:] = -np.inf
        if legal is not None:
            allowed = legal[..., starts[branch] : starts[branch] + size]
            values[..., branch, :size] = np.where(allowed, values[..., branch, :size], -np.inf)
    return values


def targets(net: Any, data: Any) -> np.ndarray:
    """Peng's Q(λ) by its recursion."""
    best = table(net, data.next_obs, data.next_legal).max(-1).mean(-1)
    out, later = np.zeros((T, B)), np.zeros(B)
    for t in reversed(range(T)):
        cut = data.terminated[t] | data.truncated[t] | (t == T - 1)
        ahead = np.where(cut, best[t], (1 - TRACE) * best[t] + TRACE * later)
        later = data.reward[t] + GAMMA * np.where(data.terminated[t], 0.0, ahead)
        out[t] = later
    return out


@pytest.mark.parametrize("name", SPECS)
def test_the_loss_is_half_the_squared_distance_to_q_lambda(name):
    algo, state, data = setting(name)
    after, report = quick(algo.update)(state, Batch(data), jax.random.key(0))
    plain = as64(data)
    taken = plain.action.reshape(T, B, -1, 1)
    q = np.take_along_axis(table(state.nets, plain.obs), taken, -1)[..., 0]
    error = q - targets(state.nets, plain)[..., None]
    metrics = report.metrics
    assert float(metrics["train/loss"]) == pytest.approx(0.5 * (error**2).mean(), rel=1e-4)
    assert float(metrics["train/td_error"]) == pytest.approx(np.abs(error).mean(), rel=1e-4)
    assert differences(after.nets, state.nets) != []
    assert int(metrics["train/n_updates"]) == 1


def test_every_epoch_visits_every_transition_with_the_same_targets():
    """Two epochs in one minibatch each are two updates whose second still aims at the first's returns."""
    algo, state, data = setting("CHOICE", n_epochs=2, learning_rate=0.05)
    after, report = quick(algo.update)(state, Batch(data), jax.random.key(0))
    assert int(after.optimiser.count) == 2
    once, first = quick(replace(algo, config=replace(algo.config, n_epochs=1)).update)(
        state, Batch(data), jax.random.key(0)
    )
    plain = as64(data)
    q = np.take_along_axis(table(once.nets, plain.obs), plain.action[..., None, None], -1)[..., 0, 0]
    second = 0.5 * ((q - targets(state.nets, plain)) ** 2).mean()
    both = (float(first.metrics["train/loss"]) + second) / 2
    assert float(report.metrics["train/loss"]) == pytest.approx(both, rel=1e-4)


def test_what_lies_in_the_padding_changes_no_bit():
    algo, state, data = setting("CHOICE", batch_size=4)
    mask = jnp.asarray(np.arange(T)[:, None] < np.array([7, 4]))
    data = data._replace(mask=mask)
    update = quick(algo.update)
    clean = update(state, Batch(data), jax.random.key(0))
    for field in ("obs", "next_obs", "reward"):
        x = getattr(data, field)
        for junk in (np.nan, 1e6):
            dirty = jnp.where(mask.reshape(T, B, *(1,) * (x.ndim - 2)), x, junk)
            assert (
                differences(clean, update(state, Batch(data._replace(**{field: dirty})), jax.random.key(0)))
                == []
            )
    empty = data._replace(mask=jnp.zeros_like(mask))
    after, _ = update(state, Batch(empty), jax.random.key(0))
    assert differences(after, state) == []


def test_sequences_that_do_not_divide_the_rollout_are_refused():
    with pytest.raises(ConfigError, match=r"n_steps = 8 is not a multiple of sequence_length = 3"):
        learner("pqn", CHOICE, core="gru", sequence_length=3).check()
    assert learner("pqn", CHOICE, core="gru", sequence_length=4).check() == []
    with pytest.raises(ConfigError, match="at least 1"):
        learner("pqn", CHOICE, n_epochs=0).check()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gamma", 1.5),
        ("learning_rate", -1e-3),
        ("exploration_initial_eps", 5.0),
        ("exploration_fraction", -1.0),
        ("q_lambda", 1.5),
        ("sequence_length", -1),
    ],
)
def test_numbers_out_of_bounds_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name} (must be|cannot be negative).* got {value:g}"):
        learner("pqn", CHOICE, **{name: value}).check()
