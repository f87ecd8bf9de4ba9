"""V-trace and Retrace: the reference's numbers, and the recursions against the sums they stand for."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from conftest import quick
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.ops.traces import retrace, vtrace

REWARD = jnp.float32([1.0, 0.0, -1.0])
DISCOUNT = jnp.float32([0.9, 0.9, 0.0])
VALUE = jnp.float32([0.5, 0.2, -0.1])
RATIO = jnp.float32([2.0, 0.5, 1.0])
Q = jnp.float32([0.6, 0.1, -0.3])


def both(next_value: list[float], goes_on: list[bool]) -> tuple[list[float], list[float], list[float]]:
    follows, on = jnp.float32(next_value), jnp.asarray(goes_on)
    made = vtrace(REWARD, DISCOUNT, VALUE, follows, on, RATIO, 1.05, 1.05)
    target = retrace(REWARD, DISCOUNT, Q, follows, on, RATIO, 1.05, 0.95)
    return np.asarray(made.target).tolist(), np.asarray(made.advantage).tolist(), np.asarray(target).tolist()


def test_numbers_of_an_episode_that_terminates() -> None:
    v, advantage, q = both([0.2, -0.1, 0.0], [True, True, False])
    assert v == pytest.approx([0.69425, -0.35, -1.0], abs=1e-6)
    assert advantage == pytest.approx([0.185, -1.1, -0.9], abs=1e-6)
    assert q == pytest.approx([0.84291625, -0.6885, -1.0], abs=1e-6)


def test_numbers_of_an_episode_that_is_truncated() -> None:
    v, advantage, q = both([0.2, 0.4, 0.0], [True, False, False])
    assert v == pytest.approx([1.2896, 0.28, -1.0], abs=1e-6)
    assert advantage == pytest.approx([0.752, 0.16, -0.9], abs=1e-6)
    assert q == pytest.approx([1.29115, 0.36, -1.0], abs=1e-6)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**31), steps=st.sampled_from((1, 2, 5, 9)), trace=st.floats(0.0, 1.0))
def test_the_recursions_equal_the_sums(seed: int, steps: int, trace: float) -> None:
    """Both corrections are sums of errors, weighted by products of γ and c, cut where an episode ends."""
    rng = np.random.default_rng(seed)
    reward, value, follows, q = rng.normal(size=(4, steps))
    discount = rng.uniform(0.0, 1.0, steps) * (rng.uniform(size=steps) < 0.8)
    goes_on = (rng.uniform(size=steps) < 0.8) & (discount > 0) & (np.arange(steps) < steps - 1)
    follows = np.where(goes_on, np.append(value[1:], 0.0), follows)
    ratio = rng.uniform(0.0, 3.0, steps)
    rho, c = np.minimum(1.05, ratio), trace * np.minimum(1.05, ratio)
    v_sum, robust_sum, q_sum = value.copy(), value.copy(), np.zeros(steps)
    for s in range(steps):
        weight = 1.0
        for t in range(s, steps):
            v_sum[s] += weight * rho[t] * (reward[t] + discount[t] * follows[t] - value[t])
            robust_sum[s] += weight * rho[t] * (reward[t] + discount[t] * follows[t] - q[t])
            weight *= discount[t] * c[t]
            if not goes_on[t]:
                break
        q_sum[s] = q[s]
        weight = 1.0
        for t in range(s, steps):
            q_sum[s] += weight * (reward[t] + discount[t] * follows[t] - q[t])
            if not goes_on[t]:
                break
            weight *= discount[t] * c[t + 1]
    arrays = [jnp.float32(x) for x in (reward, discount, value, follows)]
    on, ratios = jnp.asarray(goes_on), jnp.float32(ratio)
    made = quick(vtrace)(*arrays, on, ratios, 1.05, 1.05, trace)
    assert np.asarray(made.target) == pytest.approx(v_sum, abs=1e-4)
    robust = quick(vtrace)(*arrays, on, ratios, 1.05, 1.05, trace, jnp.float32(q))
    assert np.asarray(robust.target) == pytest.approx(robust_sum, abs=1e-4)
    target = quick(retrace)(arrays[0], arrays[1], jnp.float32(q), arrays[3], on, ratios, 1.05, trace)
    assert np.asarray(target) == pytest.approx(q_sum, abs=1e-4)


def test_only_the_doubly_robust_trace_keeps_the_value_of_the_target_policy() -> None:
    """One state, two actions that earn 1 and 0, a target policy that is even, and a behaviour that takes the
    first nine times of ten. With Q right, V = ½ is where the doubly robust trace stays on average; V-trace,
    whose ratio of the second action is clipped, goes to the value of a policy nearer to the behaviour."""
    earned, mu = np.float32([1.0, 0.0]), np.array([0.9, 0.1])
    zeros, on = jnp.zeros(2), jnp.zeros(2, bool)
    ratio = jnp.float32(0.5 / mu)

    def pull(value: float, *baseline: jnp.ndarray) -> float:
        made = vtrace(
            jnp.asarray(earned), zeros, jnp.full(2, value), zeros, on, ratio, 1.0, 1.0, 1.0, *baseline
        )
        return float(mu @ (np.asarray(made.target) - value))

    assert pull(0.5, jnp.asarray(earned)) == pytest.approx(0.0, abs=1e-7)
    assert pull(0.5) > 0.1
    assert pull(0.5 / 0.6) == pytest.approx(0.0, abs=1e-6)  # min(μ, π) = (0.5, 0.1), made a policy
