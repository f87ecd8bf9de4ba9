"""GDI: the dueling structure, the mixture that acts, and what one update learns from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import quick

from sparring.algos import gdi
from sparring.algos.gdi import GDI, GDIConfig
from sparring.envs import registry
from sparring.errors import ConfigError
from sparring.nets import policies
from sparring.nets.policies import Judged
from sparring.types import Behaviour, View

ROWS = 3


def made(**settings: Any) -> GDI:
    env = registry.make("CartPole-v1", n_envs=ROWS)
    return GDI(replace(env.spec, rows=ROWS), GDIConfig(**{"net_arch": (16,), **settings}), 10.0)


def judged(advantage: Any, value: Any) -> Judged:
    """One head and one branch."""
    return Judged(jnp.float32([value]), jnp.float32(advantage)[None, None])


def test_casa_by_numbers() -> None:
    heads = judged([1.0, 0.0, -1.0], 0.5)
    log_pi = policies.log_policy(heads.advantage, jnp.ones(1))
    assert np.exp(log_pi)[0, 0] == pytest.approx([0.6652, 0.2447, 0.0900], abs=1e-4)
    q = [float(policies.q_of(heads, log_pi, jnp.int32([a]))[0]) for a in range(3)]
    assert q == pytest.approx([0.9248, -0.0752, -1.0752], abs=1e-4)
    assert float(np.exp(log_pi)[0, 0] @ np.asarray(q)) == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize("sizes", [(4,), (3, 2)])
def test_the_policy_expects_v_of_q(sizes: tuple[int, ...]) -> None:
    """E_π Q = V to 1e-6 over all joint choices, for one branch and for several."""
    rng = np.random.default_rng(0)
    table = np.full((2, len(sizes), max(sizes)), policies.ILLEGAL, np.float32)
    for d, size in enumerate(sizes):
        table[:, d, :size] = rng.normal(size=(2, size))
    heads = Judged(jnp.float32([0.3, -2.0]), jnp.asarray(table))
    log_pi = policies.log_policy(heads.advantage, jnp.full(2, 2.0))
    mean = np.zeros(2)
    for joint in np.ndindex(*sizes):
        choice = jnp.int32(joint)
        mean += np.exp(policies.taken(log_pi, choice)) * np.asarray(policies.q_of(heads, log_pi, choice))
    assert mean == pytest.approx([0.3, -2.0], abs=1e-6)


def test_q_and_policy_move_the_same_logits_the_same_way() -> None:
    """dQ(a)/dA = τ · d log π(a)/dA, and neither touches V."""
    tau = 0.5
    advantage = jnp.float32(np.random.default_rng(1).normal(size=(1, 2, 3)))
    choice = jnp.int32([2, 0])

    def q(a: Any, v: Any) -> Any:
        log_pi = policies.log_policy(a, jnp.full(1, 1.0 / tau))
        return policies.q_of(Judged(v, a), log_pi, choice)[0]

    def log_p(a: Any) -> Any:
        return policies.taken(policies.log_policy(a, jnp.full(1, 1.0 / tau)), choice)[0]

    by_q, by_v = jax.grad(q, (0, 1))(advantage, jnp.ones(1))
    assert np.asarray(by_q) == pytest.approx(tau * np.asarray(jax.grad(log_p)(advantage)), abs=1e-6)
    assert float(by_v[0]) == 0.0


@pytest.mark.parametrize(("reward", "first", "second"), [
    (1.0, 1.386, 0.190), (-1.0, -0.693, -0.190), (100.0, 9.230, 2.270), (-100.0, -4.615, -2.270),
])  # fmt: skip
def test_shaped_rewards_by_numbers(reward: float, first: float, second: float) -> None:
    seen = gdi.shaped(GDIConfig(), jnp.float32(reward), 2)
    assert np.asarray(seen) == pytest.approx([first, second], abs=1e-3)


def test_what_is_stored_is_the_mixture_that_acted() -> None:
    algo = made()
    state = algo.init(jax.random.key(0))
    nets = jax.tree.map(lambda x: x * 3.0, state.nets)  # far from uniform
    weights = algo.policy(state._replace(nets=nets))
    obs = jnp.float32(np.random.default_rng(2).normal(size=(ROWS, 4)))
    behaviour = algo.behaviour(jnp.float32([[3.0, 9.0, 0.2], [0.0, 0.0, 0.7], [50.0, 1.0, 1.0]]))
    action, extras, _ = algo.act(weights, algo.carry(ROWS), View(obs), behaviour, jax.random.key(1))
    heads = weights.nets(weights.nets.trunk.torso(obs)).advantage[:, :, 0]

    def soft(x: Any) -> Any:
        e = np.exp(x - x.max())
        return e / e.sum()

    for row, (one, two, epsilon) in enumerate([(3.0, 9.0, 0.2), (0.0, 0.0, 0.7), (50.0, 1.0, 1.0)]):
        mu = epsilon * soft(np.asarray(heads[row, 0]) * one) + (1 - epsilon) * soft(
            np.asarray(heads[row, 1]) * two
        )
        assert np.exp(extras.log_mu[row]) == pytest.approx(mu[int(action[row])], abs=1e-5)


def test_greedy_by_head_or_by_the_sum() -> None:
    table = jnp.float32([[[[3.0, 0.0, 2.0]], [[0.0, 3.0, 2.0]]]])
    heads = Judged(jnp.zeros((1, 2)), table)
    assert int(gdi.greedy(heads, jnp.int32([0]))[0, 0]) == 0
    assert int(gdi.greedy(heads, jnp.int32([1]))[0, 0]) == 1
    assert int(gdi.greedy(heads, None)[0, 0]) == 2


def test_an_uniform_behaviour_is_uniform_over_what_is_legal() -> None:
    advantage = jnp.float32([[[5.0, policies.ILLEGAL, -3.0]]])
    assert np.exp(policies.log_policy(advantage, jnp.zeros(1)))[0, 0] == pytest.approx([0.5, 0.0, 0.5])


@pytest.mark.parametrize(("variant", "heads", "names"), [
    ("h3", 2, ("inverse_tau_1", "inverse_tau_2", "epsilon")),
    ("i3", 1, ("inverse_tau_1", "inverse_tau_2", "epsilon")),
    ("lbc", 3, ("inverse_tau_1", "inverse_tau_2", "inverse_tau_3", "omega_1", "omega_2", "omega_3")),
])  # fmt: skip
def test_variants(variant: str, heads: int, names: tuple[str, ...]) -> None:
    algo = made(variant=variant, policies=3 if variant == "lbc" else 2)
    assert (algo.heads, algo.space.names) == (heads, names)
    state = algo.init(jax.random.key(0))
    assert state.nets.heads == heads
    point = algo.controller.start(jax.random.key(1), ROWS).choice.point
    behaviour = algo.behaviour(point)
    assert np.asarray(behaviour.mixture).sum(axis=1) == pytest.approx(np.ones(ROWS), abs=1e-6)
    _, extras, _ = algo.act(
        algo.policy(state), algo.carry(ROWS), View(jnp.zeros((ROWS, 4))), behaviour, jax.random.key(2)
    )
    assert (np.exp(np.asarray(extras.log_mu)) > 0.2).all()  # it starts near uniform over two actions


def test_no_gradient_of_the_target_reaches_v_from_q() -> None:
    """With only the Q-loss on, the value head does not move."""
    algo = made(v_coef=0.0, pi_coef=0.0, weight_decay=0.0, learning_rate=1e-3, warmup=1)
    state = quick(algo.init)(jax.random.key(0))
    new, _ = quick(algo.update)(state, one_batch(algo, state, length=6), jax.random.key(3))
    assert np.array_equal(new.nets.value.weight, state.nets.value.weight)
    assert not np.array_equal(new.nets.advantage.weight, state.nets.advantage.weight)


def test_a_short_episode_is_learned_from() -> None:
    """An episode of 5 steps in sequences of 20 counts 5 steps, not none."""
    algo = made(sequence_length=20)
    state = quick(algo.init)(jax.random.key(0))
    batch = one_batch(algo, state, length=5)
    assert int(batch.data.mask.sum()) == 5 * batch.data.mask.shape[0]
    _, report = quick(algo.update)(state, batch, jax.random.key(3))
    assert float(report.metrics["train/q_loss_1"]) > 0


def one_batch(algo: GDI, state: Any, length: int) -> Any:
    """Sequences of episodes of so many steps, through the replay."""
    from sparring.types import Transition

    steps = length * 4
    key = jax.random.key(5)
    obs = jax.random.normal(key, (steps + 1, ROWS, 4))
    view, key = View(obs[0]), jax.random.key(6)
    acting = quick(lambda state: algo.act(algo.policy(state), algo.carry(ROWS), view, Behaviour(), key))
    _, extras, _ = acting(state)
    ends = jnp.broadcast_to((jnp.arange(steps) % length == length - 1)[:, None], (steps, ROWS))
    rollout = Transition(
        obs[:-1],
        jnp.zeros((steps, ROWS), jnp.int32),
        jnp.ones((steps, ROWS)),
        ends,
        jnp.zeros_like(ends),
        obs[1:],
        jax.tree.map(lambda x: jnp.broadcast_to(x, (steps, *x.shape)), extras),
        first=jnp.roll(ends, 1, axis=0).at[0].set(True),
    )
    replay = algo.replay
    return quick(lambda data: replay.sample(replay.add(replay.init(data), data), jax.random.key(7)))(rollout)


@pytest.mark.parametrize(("settings", "words"), [
    ({"shaping": ("optimistc",)}, "optimistic"),
    ({"policies": 3}, "lbc"),
    ({"variant": "lbc", "policies": 3, "gammas": (0.9,)}, "3 heads"),
    ({"sharpness_log": True}, "sharpness_range"),
    ({"controller": "fixed"}, "inverse_tau_1"),
])  # fmt: skip
def test_impossible_settings(settings: dict[str, Any], words: str) -> None:
    algo = made(**settings)
    with pytest.raises(ConfigError, match=words):
        algo.check()
