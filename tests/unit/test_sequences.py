"""Sequences of one episode each: what a core sees, and n-step targets, against loops over steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import made_up, quick

from sparring.nets import sequences, sight
from sparring.nets.cores import NAMES, core
from sparring.nets.sight import Stored, Trunk
from sparring.nets.torso import Torso
from sparring.spaces import Box
from sparring.types import Transition

BURN_IN, LENGTH, N = 3, 5, 40
STEPS = BURN_IN + LENGTH


class Piece(NamedTuple):
    """A stored sequence: the valid steps from `begin` to `end`, of an episode that starts there or before."""

    begin: int
    end: int
    first: bool
    terminated: bool
    truncated: bool


def pieces(seed: int) -> list[Piece]:
    """As a replay makes them: the block begins at the burn-in's end, and ends with its episode or full."""
    random = np.random.default_rng(seed)
    made = []
    for _ in range(N):
        first = bool(random.integers(0, 2))
        begin = int(random.integers(0, BURN_IN + 1)) if first else 0
        end = int(random.integers(BURN_IN + 1, STEPS + 1))
        over = end < STEPS or bool(random.integers(0, 2))
        terminated = over and bool(random.integers(0, 2))
        made.append(Piece(begin, end, first, terminated, over and not terminated))
    return made


def stored(seed: int) -> tuple[list[Piece], Transition]:
    """Sequences [N, S, …] with garbage outside the valid steps."""
    random, parts = np.random.default_rng(seed), pieces(seed)
    obs = random.normal(size=(N, STEPS, 2)).astype(np.float32)
    follows = random.normal(size=(N, STEPS, 2)).astype(np.float32)
    flags = {name: random.random((N, STEPS)) < 0.5 for name in ("first", "terminated", "truncated")}
    mask = np.zeros((N, STEPS), bool)
    for i, p in enumerate(parts):
        mask[i, p.begin : p.end] = True
        follows[i, p.begin : p.end - 1] = obs[i, p.begin + 1 : p.end]
        for flag in flags.values():
            flag[i, p.begin : p.end] = False
        flags["first"][i, p.begin] = p.first
        flags["terminated"][i, p.end - 1], flags["truncated"][i, p.end - 1] = p.terminated, p.truncated
    reward = random.normal(size=(N, STEPS)).astype(np.float32)
    made = Transition(
        obs, np.zeros((N, STEPS)), reward, extras=Stored(), next_obs=follows, mask=mask, **flags
    )
    return parts, jax.tree.map(jnp.asarray, made)


@pytest.mark.parametrize("seed", range(3))
def test_every_valid_step_is_followed_by_what_followed_it(seed):
    parts, data = stored(seed)
    got = sequences.prepared(data, data.obs, data.next_obs)
    assert got.obs.shape == (STEPS + 1, N, 2)
    assert got.data.reward.shape == (STEPS, N)
    for i, p in enumerate(parts):
        for t in range(p.begin, p.end):
            np.testing.assert_array_equal(got.obs[t, i], data.obs[i, t])
            np.testing.assert_array_equal(got.obs[t + 1, i], data.next_obs[i, t])
        starts = [t for t in range(STEPS + 1) if got.first[t, i]]
        assert starts == ([p.begin] if p.first else [])


@pytest.mark.parametrize("n", [1, 3, 7])
def test_targets_are_n_steps_of_reward_and_then_the_value(n):
    parts, data = stored(5)
    steps = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1)[BURN_IN:], data._replace(extras=None))
    value = np.random.default_rng(9).normal(size=(LENGTH, N)).astype(np.float32)
    got = quick(lambda s, v: sequences.bootstrapped(s.reward, v, s, 0.9, n))(steps, jnp.asarray(value))
    for i, p in enumerate(parts):
        for t in range(BURN_IN, p.end):
            last = min(t + n, p.end) - 1
            total = sum(0.9 ** (k - t) * float(data.reward[i, k]) for k in range(t, last + 1))
            if not (last == p.end - 1 and p.terminated):
                total += 0.9 ** (last - t + 1) * float(value[last - BURN_IN, i])
            assert float(got[t - BURN_IN, i]) == pytest.approx(total, rel=1e-4, abs=1e-4)


def test_decisions_that_lasted_longer_are_discounted_more():
    parts, data = stored(6)
    elapsed = np.random.default_rng(1).integers(1, 4, (N, STEPS))
    steps = jax.tree.map(
        lambda x: jnp.swapaxes(x, 0, 1)[BURN_IN:],
        data._replace(extras=None, elapsed=jnp.asarray(elapsed)),
    )
    value = jnp.ones((LENGTH, N))
    got = quick(lambda s, v: sequences.bootstrapped(s.reward, v, s, 0.9, 2))(steps, value)
    for i, p in enumerate(parts):
        t = p.end - 1
        lasted = 0.0 if p.terminated else 0.9 ** float(elapsed[i, t])
        assert float(got[t - BURN_IN, i]) == pytest.approx(float(data.reward[i, t]) + lasted, rel=1e-4)


def trunk(name: str) -> Trunk:
    def make() -> Trunk:
        key = jax.random.key(0)
        return Trunk(Torso(key, Box((2,)), 1, None), core(name, key, 2, 4, 1, 2, 3))

    return made_up(jax.eval_shape(make))


@pytest.mark.parametrize("name", NAMES)
def test_features_after_the_burn_in_are_those_of_acting_step_by_step(name):
    """From the state that was met at the first step, garbage before an episode's start notwithstanding."""
    _, data = stored(7)
    got = sequences.prepared(data, data.obs, data.next_obs)
    net = trunk(name)
    memory = made_up(jax.eval_shape(lambda: net.start(N)), 3)
    memory = jax.tree.map(lambda x: x != 0 if x.dtype == bool else x, memory)

    @quick
    def both(net: Trunk, memory: Any) -> tuple[Any, Any]:
        fast = sequences.unrolled(net, memory, got.obs, got.first, BURN_IN)
        state, slow = memory, []
        for t in range(STEPS + 1):
            output, state = net.step(state, got.obs[t], got.first[t])
            slow.append(output)
        return fast, jnp.stack(slow[BURN_IN:])

    fast, slow = both(net, memory)
    assert fast.shape == (LENGTH + 1, N, 4)
    np.testing.assert_allclose(fast, slow, rtol=1e-4, atol=1e-5)


def test_the_burn_in_gets_no_gradient():
    _, data = stored(8)
    got = sequences.prepared(data, data.obs, data.next_obs)
    net = trunk("gru")
    memory = net.start(N)

    def total(obs: Any, burn_in: int) -> Any:
        return jnp.sum(sequences.unrolled(net, memory, obs, got.first, burn_in)[-1] ** 2)

    slopes = {b: np.abs(quick(jax.grad(lambda o, b=b: total(o, b)))(got.obs)) for b in (0, BURN_IN)}
    assert slopes[BURN_IN][:BURN_IN].max() == 0.0
    assert slopes[BURN_IN][BURN_IN:].max() > 0.0
    assert slopes[0][:BURN_IN].max() > 0.0


@pytest.mark.parametrize("length", [2, 3, 6])
def test_a_core_in_parts_hands_on_its_state_and_tells_where_each_part_began(length):
    net, random = trunk("lstm").core, np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=(6, 3, 2)), jnp.float32)
    first = jnp.asarray(random.random((6, 3)) < 0.3)
    memory = made_up(jax.eval_shape(lambda: net.start(3)), 2)
    outputs, starts, end = quick(lambda m: sight.unroll_in_parts(net, m, x, first, length))(memory)
    whole, last = quick(lambda m: net.unroll(m, x, first))(memory)
    np.testing.assert_allclose(outputs, whole, rtol=1e-5, atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), end, last)
    for part in range(6 // length):
        state = memory
        if part:
            state = quick(lambda m, n=part * length: net.unroll(m, x[:n], first[:n]))(memory)[1]
        jax.tree.map(
            lambda a, b, part=part: np.testing.assert_allclose(a[part], b, rtol=1e-5, atol=1e-6),
            starts,
            state,
        )
