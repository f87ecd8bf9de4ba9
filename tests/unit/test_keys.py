"""Randomness is a function of seed, iteration, step and consumer."""

from __future__ import annotations

import jax
import jax.numpy as jnp
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


def words(key: jax.Array) -> np.ndarray:
    return np.asarray(jax.random.key_data(key)).reshape(-1, 2).astype(np.uint64)


def joined(key: jax.Array) -> np.ndarray:
    pairs = words(key)
    return pairs[:, 0] << np.uint64(32) | pairs[:, 1]


def test_derived_keys_never_meet():
    """Of one key for a million data, of a million keys for one datum, and of neighbours in both."""
    key = jax.random.key(3)
    assert len(np.unique(joined(keys.several(key, 1_000_000)))) == 1_000_000
    many = keys.several(jax.random.key(4), 1_000_000)
    assert len(np.unique(joined(keys.derive(many, 7)))) == 1_000_000
    seeds = jax.vmap(jax.random.key)(jnp.arange(1000))
    grid = keys.derive(seeds[:, None], jnp.arange(1000))
    assert len(np.unique(joined(grid))) == 1_000_000


def test_one_flipped_bit_flips_every_bit_of_the_derived_key_half_of_the_time():
    draws = 4096
    source = keys.several(jax.random.key(0), draws)
    before = joined(keys.derive(source, 5))
    for word, bit in [(0, 0), (0, 31), (1, 0), (1, 17), (1, 31)]:
        changed = (
            jax.random.key_data(source)
            .at[:, word]
            .set(jax.random.key_data(source)[:, word] ^ jnp.uint32(1 << bit))
        )
        flips = before ^ joined(keys.derive(jax.random.wrap_key_data(changed), 5))
        share = [(flips >> np.uint64(i) & np.uint64(1)).mean() for i in range(64)]
        assert np.abs(np.array(share) - 0.5).max() < 5 * 0.5 / np.sqrt(draws)
    flips = before ^ joined(keys.derive(source, 4))  # and so does a bit of the datum
    assert abs(np.unpackbits(flips.view(np.uint8)).mean() - 0.5) < 0.01


def test_numbers_of_neighbouring_keys_are_independent_and_normal():
    one, other = (np.asarray(keys.normal(k, (100_000,))) for k in keys.several(jax.random.key(1), 2))
    assert stats.kstest(one, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.015
    assert abs(np.corrcoef(one[1:], one[:-1])[0, 1]) < 0.015
    pair = np.asarray(keys.uniform_pair(jax.random.key(2), 100_000))
    assert pair.min() > 0
    assert pair.max() < 1
    for column in pair.T:
        assert stats.kstest(column, "uniform").pvalue > 1e-3
    drawn = np.asarray(jax.vmap(jax.random.bits)(keys.several(jax.random.key(6), 65_536)))
    assert stats.chisquare(np.bincount(drawn & 255, minlength=256)).pvalue > 1e-4


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


def test_whole_numbers_are_uniform_below_any_limit():
    for limit in (1, 7, 1000):
        drawn = np.asarray(keys.below(jax.random.key(limit), 100_000, jnp.int32(limit)))
        counts = np.bincount(drawn, minlength=limit)
        assert len(counts) == limit
        assert limit == 1 or stats.chisquare(counts).pvalue > 1e-4


def test_gumbel_noise_draws_from_the_softmax():
    logits = jnp.log(jnp.array([0.1, 0.2, 0.7]))
    drawn = jnp.argmax(logits + keys.gumbel(jax.random.key(0), (100_000, 3)), axis=-1)
    assert stats.chisquare(np.bincount(drawn), 100_000 * np.array([0.1, 0.2, 0.7])).pvalue > 1e-4
    assert np.isfinite(np.asarray(keys.gumbel(jax.random.key(1), (1_000_000,)))).all()
