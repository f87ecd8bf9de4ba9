"""DQN's loss is its definition, and its target network and exploration keep SB3's schedule."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import quick
from jax.flatten_util import ravel_pytree
from replayed import BRANCHES, CHOICE, N, as64, batch, dense, learner, mlp, returns, start

from sparring.algos.dqn import loss
from sparring.envs.probes import ManyBits
from sparring.errors import ConfigError, SpaceMismatch
from sparring.ops.priorities import importance
from sparring.replay import offpolicy
from sparring.types import Behaviour, Transition, View

GAMMA = 0.9
BOTH = {"CHOICE": CHOICE, "BRANCHES": BRANCHES}


def table(net: Any, obs: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    """Q of every option, [N, D, W]; -∞ where there is none."""
    latent = mlp(net.body, obs)
    values = dense(net.advantage, latent).reshape(len(obs), len(sizes), max(sizes))
    for branch, size in enumerate(sizes):
        if net.value is not None:
            mean = values[:, branch, :size].mean(axis=1, keepdims=True)
            values[:, branch] += dense(net.value, latent) - mean
        values[:, branch, size:] = -np.inf
    return values


def only(values: np.ndarray, legal: np.ndarray | None, sizes: tuple[int, ...]) -> np.ndarray:
    """The values with -∞ for what a mask over all branches in a row forbids."""
    if legal is None:
        return values
    values, starts = values.copy(), np.cumsum([0, *sizes[:-1]])
    for branch, (first, size) in enumerate(zip(starts, sizes, strict=True)):
        values[:, branch, :size] = np.where(legal[:, first : first + size], values[:, branch, :size], -np.inf)
    return values


def compressed(x: np.ndarray) -> np.ndarray:
    """Pohlen et al. (2018), proposition A.2, with ε = 0.001."""
    return np.sign(x) * (np.sqrt(np.abs(x) + 1.0) - 1.0) + 1e-3 * x


def opened(y: np.ndarray) -> np.ndarray:
    """The x whose compression is y, by bisection."""
    low, high = np.full(y.shape, -1e3), np.full(y.shape, 1e3)
    for _ in range(80):
        middle = (low + high) / 2
        below = compressed(middle) < y
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return low


def slow_loss(algo: Any, state: Any, data: Any, weight: Any) -> tuple[float, np.ndarray]:
    """The loss and each window's error, written out in float64."""
    c, sizes = algo.config, state.nets.sizes
    total, factor, last = returns(data, GAMMA)
    rows = np.arange(N)
    after = data.next_obs[rows, last]
    legal = None if data.next_legal is None else data.next_legal[rows, last]
    ahead = only(table(state.target, after, sizes), legal, sizes)
    choice = only(table(state.nets, after, sizes), legal, sizes) if c.double else ahead
    best = np.take_along_axis(ahead, choice.argmax(-1)[..., None], -1)[..., 0].mean(-1)
    y = total + factor * (opened(best) if c.value_rescale else best)
    y = compressed(y) if c.value_rescale else y
    taken = data.action[:, 0].reshape(N, -1, 1)
    error = np.take_along_axis(table(state.nets, data.obs[:, 0], sizes), taken, -1)[..., 0] - y[:, None]
    half = 0.5 * error**2
    each = half if c.loss == "mse" else np.where(np.abs(error) > 1.0, np.abs(error) - 0.5, half)
    return float((each.mean(1) * weight).mean()), np.abs(error).mean(1)


CASES: dict[str, tuple[str, bool, dict[str, Any]]] = {
    "plain": ("CHOICE", False, {}),
    "double with a mask": ("CHOICE", True, {"double": True}),
    "dueling by squares": ("CHOICE", False, {"dueling": True, "loss": "mse"}),
    "n steps in a compressed scale": ("CHOICE", True, {"n_steps": 3, "value_rescale": True}),
    "branches": ("BRANCHES", False, {"n_steps": 2}),
    "everything": (
        "BRANCHES",
        True,
        {"double": True, "dueling": True, "n_steps": 3, "prioritized": True, "priority_beta": 0.7},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_loss_is_its_definition(case):
    spaces, masks, settings = CASES[case]
    spec = replace(BOTH[spaces], masks_actions=masks)
    algo = learner("dqn", spec, gamma=GAMMA, net_arch=(8, 6), **settings)
    state, sampled = start(algo), batch(algo)

    @quick
    def fast(state: Any, sampled: Any) -> Any:
        lesson = offpolicy.lesson(algo.config, None, None, spec.observation, sampled.data)
        weight = offpolicy.weight(algo.config, sampled)
        return loss(state.nets, state.target, algo.config, lesson, weight)

    total, (error, metrics) = fast(state, sampled)
    weight = importance(sampled.weight, 0.7) if algo.config.prioritized else np.ones(N)
    wanted, errors = slow_loss(algo, state, as64(sampled.data), as64(jnp.asarray(weight)))
    assert float(total) == pytest.approx(wanted, rel=1e-4)
    assert float(metrics["train/loss"]) == float(total)
    np.testing.assert_allclose(error, errors, rtol=1e-4, atol=1e-5)


def test_the_target_gets_no_gradient_and_the_online_network_chooses_without_one():
    algo = learner("dqn", CHOICE, double=True, net_arch=(8,))
    state, sampled = start(algo), batch(algo)
    ended = sampled.data._replace(terminated=jnp.ones_like(sampled.data.terminated))

    @quick
    def slope(nets: Any, target: Any, data: Any) -> Any:
        lesson = offpolicy.lesson(algo.config, None, None, CHOICE.observation, data)
        return jax.grad(lambda *both: loss(*both, algo.config, lesson, None)[0], argnums=(0, 1))(nets, target)

    np.testing.assert_array_equal(ravel_pytree(slope(state.nets, state.target, sampled.data)[1])[0], 0.0)
    # Where nothing follows, shifting next observations changes no gradient of the online network either.
    moved = ended._replace(next_obs=ended.next_obs + 1.0)
    one, other = (ravel_pytree(slope(state.nets, state.target, d)[0])[0] for d in (ended, moved))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", ["dqn", "pqn"])
def test_branches_share_a_value_and_their_advantages_have_mean_zero_over_the_options_that_exist(name):
    algo = learner(name, BRANCHES, **({"layer_norm": False} if name == "pqn" else {}))
    assert start(learner(name, CHOICE)).nets.value is None
    nets = start(algo).nets
    obs = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)), jnp.float32)
    got = np.asarray(nets(obs))
    value = dense(nets.value, mlp(nets.body, np.asarray(obs, np.float64)))
    for branch, size in enumerate(nets.sizes):
        np.testing.assert_allclose(got[:, branch, :size].mean(-1), value[:, 0], rtol=1e-4, atol=1e-5)
        assert (got[:, branch, size:] < -1e6).all()


@pytest.mark.parametrize(("interval", "tau"), [(24, 1.0), (7, 0.5), (2, 0.25), (1000, 1.0)])
def test_the_target_moves_as_often_as_sb3s_between_updates(interval, tau):
    """SB3 moves it inside the rollout, every max(interval // envs, 1) steps; updates come after rollouts."""
    algo = learner("dqn", CHOICE, target_update_interval=interval, tau=tau, train_freq=5)
    state = start(algo)
    rollout = Transition(*(jnp.zeros((5, 2)) for _ in range(7)))
    absorb = quick(algo.absorb)
    one, theirs, calls = state.nets.advantage.bias, np.asarray(state.target.advantage.bias, np.float64), 5
    for i in range(12):
        state = absorb(state._replace(nets=jax.tree.map(lambda x, i=i: x * 0 + i, state.nets)), rollout)
        for _ in range(5):
            calls += 1
            if calls % max(interval // 2, 1) == 0:
                theirs = tau * i + (1 - tau) * theirs
        np.testing.assert_allclose(state.target.advantage.bias, theirs, rtol=1e-5, err_msg=f"{i}")
    assert one.shape == theirs.shape


def test_exploration_is_random_at_first_then_falls_and_can_be_chosen_per_row():
    algo = learner("dqn", CHOICE, learning_starts=40, train_freq=4, exploration_initial_eps=0.8)
    rate = quick(algo._epsilon)
    assert [float(rate(jnp.int32(i))) for i in (0, 4)] == [1.0, 1.0]  # 4 × 8 transitions are fewer than 40
    assert float(rate(jnp.int32(5))) == pytest.approx(0.8 + 0.5 * (0.05 - 0.8))
    assert float(rate(jnp.int32(50))) == pytest.approx(0.05)
    weights = algo.policy(start(algo))._replace(epsilon=jnp.float32(0.3))
    rows = 4000
    view = View(jnp.ones((rows, 3)), jnp.broadcast_to(jnp.array([True, False, True, True]), (rows, 4)))
    act = quick(algo.act)

    def share(behaviour: Behaviour) -> np.ndarray:
        return np.bincount(act(weights, algo.carry(rows), view, behaviour, jax.random.key(1))[0], minlength=4)

    best = int(share(Behaviour(greedy=jnp.ones(rows, bool))).argmax())
    wanted = np.where(np.arange(4) == best, 0.7, 0.0) + np.array([0.1, 0.0, 0.1, 0.1])
    np.testing.assert_allclose(share(Behaviour()) / rows, wanted, atol=0.03)
    np.testing.assert_allclose(
        share(Behaviour(epsilon=jnp.ones(rows))) / rows, np.array([1, 0, 1, 1]) / 3, atol=0.03
    )
    q = np.asarray(weights.nets(jnp.ones((1, 3))))[0, 0]
    hot = np.where([True, False, True, True], np.exp(q / 0.5 - q.max() / 0.5), 0.0)
    drawn = share(Behaviour(temperature=jnp.full(rows, 0.5))) / rows
    np.testing.assert_allclose(drawn, hot / hot.sum(), atol=0.03)


def test_spaces_and_sizes_that_cannot_be_are_refused():
    with pytest.raises(SpaceMismatch, match=r"DQN chooses among options.*MultiBinary"):
        learner("dqn", ManyBits().spec).check()
    with pytest.raises(SpaceMismatch, match="action_bins=5"):
        learner("dqn", replace(CHOICE, action=CHOICE.observation)).check()
    for bad in ({"target_update_interval": 0}, {"train_freq": 0}, {"gradient_steps": 0}, {"n_steps": 0}):
        with pytest.raises(ConfigError, match="at least 1"):
            learner("dqn", CHOICE, **bad).check()
    with pytest.raises(ConfigError, match="cannot be negative"):
        learner("dqn", CHOICE, burn_in=-1).check()
    assert learner("dqn", CHOICE).check() == []
    assert learner("dqn", CHOICE, gradient_steps=-1, train_freq=4).plan.updates == 8


def test_noisy_layers_are_their_mean_when_greedy_and_one_draw_for_all_rows_otherwise():
    algo = learner("dqn", CHOICE, exploration="noisy", learning_starts=0)
    weights = algo.policy(start(algo))
    obs = jnp.asarray(np.random.default_rng(0).normal(size=(1, 3)), jnp.float32)
    view = View(jnp.broadcast_to(obs, (50, 3)))
    act = quick(partial(algo.act))
    greedy = act(weights, algo.carry(50), view, Behaviour(greedy=jnp.ones(50, bool)), jax.random.key(0))[0]
    best = table(weights.nets, np.asarray(obs, np.float64), (4,))[0, 0].argmax()
    np.testing.assert_array_equal(greedy, best)
    each = [
        np.asarray(act(weights, algo.carry(50), view, Behaviour(), jax.random.key(i))[0]) for i in range(20)
    ]
    assert all(len(set(actions)) == 1 for actions in each)
    assert len({actions[0] for actions in each}) > 1
    mixed = Behaviour(greedy=jnp.arange(50) % 2 == 0)
    for i, actions in enumerate(each):
        some = np.asarray(act(weights, algo.carry(50), view, mixed, jax.random.key(i))[0])
        np.testing.assert_array_equal(some[::2], best)
        np.testing.assert_array_equal(some[1::2], actions[1::2])
