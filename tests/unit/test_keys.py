"""Randomness is a function of seed, iteration, step and consumer."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy import stats

from sparring.ops import keys

TAGS = [keys.INIT, keys.ACT, keys.ENV, keys.UPDATE, keys.BANDIT, keys.EVALUATION, keys.RESET, keys.EPISODE]


def bits(key: jax.Array) -> tuple[int, ...]:
    return tuple(np.asarray(jax.random.key_data(key)).reshape(-1).tolist())


def test_every_consumer_iteration_step_and_seed_has_its_own_key():
    drawn = []
    for seed in (0, 1):
        key = jax.random.key(seed)
        for tag in TAGS:
            drawn.append(bits(keys.once(key, tag)))
            for iteration in (0, 1):
                drawn += [bits(k) for k in keys.per_step(key, iteration, (tag,), 3)[0]]
                drawn.append(bits(keys.consumer(key, iteration, tag)))
    assert len(set(drawn)) == len(drawn)


def test_tags_are_distinct():
    assert len(set(TAGS)) == len(TAGS)


def test_a_steps_key_does_not_depend_on_how_many_are_drawn_or_in_which_program():
    key = jax.random.key(5)
    few, many = keys.per_step(key, 9, (keys.ACT,), 2)[0], keys.per_step(key, 9, (keys.ACT,), 7)[0]
    traced = jax.jit(keys.per_step, static_argnums=(2, 3))(key, 9, (keys.ACT,), 7)[0]
    assert bits(few) == bits(many[:2])
    assert bits(traced) == bits(many)


@pytest.mark.parametrize("n", [1, 2, 3, 17, 256, 1000, 2**16 + 3])
def test_permutation_is_a_permutation(n):
    order = np.asarray(keys.permutation(jax.random.key(n), n))
    np.testing.assert_array_equal(np.sort(order), np.arange(n))


def orders(key: jax.Array, draws: int, n: int) -> np.ndarray:
    many = jax.jit(lambda key: jax.vmap(lambda k: keys.permutation(k, n))(jax.random.split(key, draws)))
    return np.asarray(many(key))


def test_every_entry_is_equally_likely_in_every_place():
    order = orders(jax.random.key(0), 10_000, 5)
    for place in range(5):
        assert stats.chisquare(np.bincount(order[:, place], minlength=5)).pvalue > 1e-4


def test_all_permutations_of_four_are_equally_likely():
    order = orders(jax.random.key(1), 12_000, 4)
    _, counts = np.unique(order @ np.array([64, 16, 4, 1]), return_counts=True)
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 1e-4
