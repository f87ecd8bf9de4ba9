"""Randomness as a function of (seed, iteration, t, consumer), never of call order."""

from __future__ import annotations

import math
from functools import partial
from typing import Final

import jax
import jax.numpy as jnp

from sparring.types import Key

# One tag per consumer keeps their streams apart.
INIT: Final = 0
ACT: Final = 1
ENV: Final = 2
UPDATE: Final = 3
BANDIT: Final = 4
EVALUATION: Final = 5
RESET: Final = 6
EPISODE: Final = 7


@jax.jit
def derive(key: Key, data: jax.Array | int) -> Key:
    """The key of (key, data); an array of data gives as many keys.

    What `jax.random.fold_in` does with Threefry this does with a Feistel network of six rounds, whose round
    function is Murmur3's finaliser and into which the data enter after the second: one small kernel instead
    of a loop, at every place where a program needs a new key. It is one-to-one in the data for a key and in
    the key for a datum. Random numbers themselves come from Threefry, as before.
    """
    left, right = jnp.moveaxis(jax.random.key_data(key), -1, 0)
    left, right = _rounds(left, right, (0x9E3779B9, 0x3C6EF372))
    left, right = jnp.broadcast_arrays(left, right ^ jnp.asarray(data).astype(jnp.uint32))
    left, right = _rounds(left, right, (0xDAA66D2B, 0x78DDE6E4, 0x1715609D, 0xB54CDA56))
    return jax.random.wrap_key_data(jnp.stack([left, right], axis=-1))


def _rounds(left: jax.Array, right: jax.Array, constants: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Rounds of the network; the constants are multiples of the golden ratio, as in Weyl sequences."""
    for constant in constants:
        left, right = right, left ^ _mixed(right + jnp.uint32(constant))
    return left, right


def _mixed(word: jax.Array) -> jax.Array:
    """Murmur3's 32-bit finaliser (public domain, Austin Appleby)."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * jnp.uint32(0xC2B2AE35)
    return word ^ (word >> 16)


def several(key: Key, count: int) -> Key:
    """As many keys of one."""
    return derive(key, jnp.arange(count))


def uniform_pair(key: Key, count: int) -> jax.Array:
    """Two independent numbers in (0, 1] per place, [count, 2], straight from derived keys.

    Compiles in a third of the time of `jax.random.uniform` and is one kernel where that is a loop over many:
    for initial weights, of which a program draws many shapes once, and for acting, where kernels cost.
    """
    words = jax.random.key_data(several(key, count))
    return (words >> 8).astype(jnp.float32) * 2.0**-24 + 2.0**-25


def uniform(key: Key, shape: tuple[int, ...]) -> jax.Array:
    """Numbers in (0, 1]; see `uniform_pair`."""
    return uniform_pair(key, math.prod(shape))[:, 0].reshape(shape)


def normal(key: Key, shape: tuple[int, ...]) -> jax.Array:
    """Standard normal numbers by Box and Muller's transform of `uniform_pair`."""
    u = uniform_pair(key, math.prod(shape))
    return (jnp.sqrt(-2.0 * jnp.log(u[:, 0])) * jnp.cos(2.0 * jnp.pi * u[:, 1])).reshape(shape)


def below(key: Key, count: int, limit: jax.Array | int) -> jax.Array:
    """As many whole numbers in [0, limit), straight from derived keys.

    None is likelier than another by more than limit / 2^32 of its probability.
    """
    words = jax.random.key_data(several(key, count))[:, 0]
    return (words % jnp.asarray(limit).astype(jnp.uint32)).astype(jnp.int32)


def gumbel(key: Key, shape: tuple[int, ...]) -> jax.Array:
    """Standard Gumbel numbers: the largest of logits + these is a draw from their softmax."""
    return -jnp.log(-jnp.log(uniform(key, shape) * (1.0 - 2.0**-24)))


def consumer(key: Key, iteration: jax.Array | int, tag: int) -> Key:
    """The key of one consumer in one iteration."""
    return derive(derive(key, iteration), tag)


def per_step(key: Key, iteration: jax.Array | int, tags: tuple[int, ...], steps: int) -> Key:
    """The keys of some consumers for every step of an iteration: [len(tags), T]."""
    each = derive(derive(key, iteration), jnp.asarray(tags))
    return derive(each[:, None], jnp.arange(steps))


@partial(jax.jit, static_argnums=1)
def once(key: Key, tag: int) -> Key:
    """The key of something that happens once in a run, apart from all iterations."""
    return derive(derive(key, jnp.uint32(2**32 - 1)), tag)


def permutation(key: Key, n: int) -> jax.Array:
    """A random order of range(n) by one sort of packed words.

    The low bits hold the index and the high bits are random: eight times faster than
    `jax.random.permutation` for 4096. With b random bits left, two entries tie with probability 2^-b and
    then keep their order, so more than 2^16 entries take the exact path.
    """
    bits = max(n - 1, 1).bit_length()
    if bits > 16:
        return jax.random.permutation(key, n)
    words = (jax.random.bits(key, (n,)) << bits) | jnp.arange(n, dtype=jnp.uint32)
    return (jnp.sort(words) & jnp.uint32(2**bits - 1)).astype(jnp.int32)
