"""What holds for the update of every algorithm: padding changes nothing, and nothing is aliased."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import ACTOR_CRITICS, agent, differences, experience, quick

from sparring.envs.probes import MultiplyContinuous
from sparring.types import Algorithm, Batch

T, B = 7, 3
MASK = np.arange(T)[:, None] < np.array([7, 4, 0])


@cache
def setting(name: str) -> tuple[Any, Any, Any, Any]:
    algo = agent(
        name, MultiplyContinuous(), B, n_steps=T, normalize_obs=True, normalize_reward=True, ortho_init=False
    )
    state = quick(algo.init)(jax.random.key(0))

    def iteration(state: Any, data: Any) -> Any:
        new, report = algo.update(state, Batch(data), jax.random.key(1))
        return algo.absorb(new, data), report.metrics

    data = experience(algo, state)._replace(mask=jnp.asarray(MASK))
    last = np.array([6, 3, 0])
    ends = data.truncated.at[last, np.arange(B)].set(jnp.array([True, True, False]))
    return algo, state, data._replace(truncated=ends), quick(iteration)


def filled(x: jax.Array, junk: float) -> jax.Array:
    mask = jnp.asarray(MASK).reshape(T, B, *(1,) * (x.ndim - 2))
    return jnp.where(mask, x, jnp.asarray(junk, x.dtype))


@pytest.mark.parametrize("junk", [0.0, -3.5, 1e6, np.nan, np.inf])
@pytest.mark.parametrize("field", ["obs", "next_obs", "reward", "action", "log_prob", "sample"])
@pytest.mark.parametrize("name", ACTOR_CRITICS)
def test_what_lies_in_the_padding_changes_no_bit(name, field, junk):
    _, state, data, iteration = setting(name)
    if field in ("log_prob", "sample"):
        dirty = data._replace(
            extras=data.extras._replace(**{field: filled(getattr(data.extras, field), junk)})
        )
    else:
        dirty = data._replace(**{field: filled(getattr(data, field), junk)})
    assert differences(iteration(state, data), iteration(state, dirty)) == []


@pytest.mark.parametrize("name", ACTOR_CRITICS)
def test_a_rollout_without_a_decision_changes_only_the_iteration(name):
    _, state, data, iteration = setting(name)
    empty = data._replace(
        mask=jnp.zeros((T, B), bool), truncated=jnp.zeros((T, B), bool), terminated=jnp.zeros((T, B), bool)
    )
    after, _ = iteration(state, empty)
    assert differences(after, state) == [".iteration"]


@pytest.mark.parametrize("name", ACTOR_CRITICS)
def test_one_iteration_trains_networks_optimiser_and_statistics(name):
    algo, state, data, iteration = setting(name)
    after, metrics = iteration(state, data)
    for part in ("nets", "optimiser", "moments", "rewards", "iteration"):
        assert differences(getattr(after, part), getattr(state, part)) != [], part
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((after, metrics)))
    assert float(after.moments.count) == MASK.sum()
    assert isinstance(algo, Algorithm)


@pytest.mark.parametrize("name", ACTOR_CRITICS)
def test_no_two_leaves_of_a_fresh_state_share_memory(name):
    """A donated buffer may appear only once."""
    _, state, _, _ = setting(name)
    places = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize("name", ACTOR_CRITICS)
def test_acting_needs_no_critic_and_no_optimiser(name):
    algo, state, _, _ = setting(name)
    sizes = [sum(x.size for x in jax.tree.leaves(t)) for t in (algo.policy(state), state)]
    assert sizes[0] < sizes[1] / 2
