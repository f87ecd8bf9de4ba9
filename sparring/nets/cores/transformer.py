"""A gated transformer (GTrXL, Parisotto et al. 2019) that sees the last inputs of its own episode."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from sparring.errors import ConfigError
from sparring.nets.layers import Dense, LayerNorm, matmul
from sparring.ops.keys import several

HIDDEN = 4
"""Width of the hidden layer in sizes of the core (Vaswani et al. 2017)."""
KEEP = 2.0
"""Initial bias of the gates towards what they had (Parisotto et al. 2019, section 3.2)."""


class Gate(eqx.Module):
    """GRU-type gate instead of a residual sum: (1 - z) x + z h, with z small before training.

    r = σ(W_r y + U_r x), z = σ(W_z y + U_z x - b), h = tanh(W_h y + U_h (r x)).
    """

    new: Float[Array, "H G"]
    old: Float[Array, "H R"]
    candidate: Float[Array, "H H"]
    keep: Float[Array, " H"]

    def __init__(self, key: Any, size: int):
        new_key, old_key, candidate_key = several(key, 3)
        self.new = Dense(new_key, size, 3 * size, None).weight
        self.old = Dense(old_key, size, 2 * size, None).weight
        self.candidate = Dense(candidate_key, size, size, None).weight
        self.keep = jnp.full(size, KEEP)

    def __call__(self, x: Float[Array, "*N H"], y: Float[Array, "*N H"]) -> Float[Array, "*N H"]:
        size = x.shape[-1]
        new, old = matmul(y, self.new), matmul(x, self.old)
        reset = jax.nn.sigmoid(new[..., :size] + old[..., :size])
        update = jax.nn.sigmoid(new[..., size : 2 * size] + old[..., size:] - self.keep)
        candidate = jnp.tanh(new[..., 2 * size :] + matmul(reset * x, self.candidate))
        return x + update * (candidate - x)


class Band(NamedTuple):
    """Which keys each query of a sequence may look at, in chunks of queries."""

    distance: Int[Array, "Q K"]
    """steps from a key to a query, within the window"""
    visible: Bool[Array, "B C Q K"]


class TransformerLayer(eqx.Module):
    """Attention and a hidden layer, each on normalised input and behind a gate."""

    attention_norm: LayerNorm
    queries_keys_values: Dense
    bias: Float[Array, "A W"]
    joined: Dense
    attention_gate: Gate
    hidden_norm: LayerNorm
    hidden: Dense
    shown: Dense
    hidden_gate: Gate

    def __init__(self, key: Any, size: int, heads: int, window: int):
        """`bias` is what a head adds to its scores at each distance (Raffel et al. 2020, one bucket each)."""
        keys = several(key, 6)
        self.attention_norm, self.hidden_norm = LayerNorm(size), LayerNorm(size)
        self.queries_keys_values = Dense(keys[0], size, 3 * size, None)
        self.bias = jnp.zeros((heads, window))
        self.joined = Dense(keys[1], size, size, None)
        self.attention_gate = Gate(keys[2], size)
        self.hidden = Dense(keys[3], size, HIDDEN * size, None)
        self.shown = Dense(keys[4], HIDDEN * size, size, None)
        self.hidden_gate = Gate(keys[5], size)

    def __call__(
        self, past: Float[Array, "B W D"], x: Float[Array, "B T H"], band: Band
    ) -> tuple[Float[Array, "B T H"], Float[Array, "B L D"]]:
        """The next layer's input, and keys and values of past and present."""
        size = x.shape[-1]
        projected = self.queries_keys_values(self.attention_norm(x))
        known = jnp.concatenate([past, projected[..., size:]], axis=1)
        seen = attend(projected[..., :size], chunks(known, x.shape[1]), self.bias, band)
        x = self.attention_gate(x, jax.nn.relu(self.joined(seen)))
        inner = self.shown(jax.nn.relu(self.hidden(self.hidden_norm(x))))
        return self.hidden_gate(x, jax.nn.relu(inner)), known


def chunks(known: Shaped[Array, "B L *D"], steps: int) -> Shaped[Array, "B C K *D"]:
    """What each chunk of queries may look at: its own stretch of a sequence and the window before it.

    `known` is a window of the past and `steps` of the present, which are either one chunk or several as long
    as the window; so memory grows with steps × window instead of steps².
    """
    window = known.shape[1] - steps
    if steps <= window:
        return known[:, None]
    blocks = known.reshape((known.shape[0], -1, window, *known.shape[2:]))
    return jnp.concatenate([blocks[:, :-1], blocks[:, 1:]], axis=2)


def attend(
    queries: Float[Array, "B T H"], known: Float[Array, "B C K D"], bias: Float[Array, "A W"], band: Band
) -> Float[Array, "B T H"]:
    """Softmax attention of every head over the visible keys; a query always sees itself."""
    rows, count, length, _ = known.shape
    heads, size = bias.shape[0], queries.shape[-1]
    asked = queries.reshape(rows, count, -1, heads, size // heads)
    keys, values = jnp.moveaxis(known.reshape(rows, count, length, 2, heads, size // heads), 3, 0)
    scores = jnp.einsum("bcqad,bckad->bcaqk", asked, keys) / math.sqrt(size // heads)
    scores = jnp.where(band.visible[:, :, None], scores + bias[:, band.distance], -jnp.inf)
    seen = jnp.einsum("bcaqk,bckad->bcqad", jax.nn.softmax(scores, axis=-1), values)
    return seen.reshape(queries.shape)


class Memory(NamedTuple):
    """Keys and values of the last inputs per layer, oldest first, and which of them belong to the episode."""

    known: tuple[Float[Array, "B V D"], ...]
    valid: Bool[Array, "B V"]


class Transformer(eqx.Module):
    """An embedding and gated layers; every input attends to the last `window` inputs of its episode.

    The input itself is one of them. Through its layers the core sees layers × (window - 1) steps back.
    """

    embed: Dense
    layers: tuple[TransformerLayer, ...]
    outputs: int = eqx.field(static=True)
    window: int = eqx.field(static=True)

    def __init__(self, key: Any, inputs: int, size: int, layers: int, heads: int, window: int):
        if heads < 1 or size % heads:
            raise ConfigError(f"A transformer's size {size} must be a multiple of its heads {heads}.")
        if window < 2:
            raise ConfigError(
                f"A transformer remembers window - 1 inputs; its window {window} must be 2 or more."
            )
        keys = several(key, layers + 1)
        self.embed = Dense(keys[0], inputs, size, None)
        self.layers = tuple(TransformerLayer(keys[i + 1], size, heads, window) for i in range(layers))
        self.outputs = size
        self.window = window

    def start(self, rows: int) -> Memory:
        past = self.window - 1
        known = tuple(jnp.zeros((rows, past, 2 * self.outputs)) for _ in self.layers)
        return Memory(known, jnp.zeros((rows, past), bool))

    def step(
        self, state: Memory, x: Float[Array, "B F"], first: Bool[Array, " B"]
    ) -> tuple[Float[Array, "B H"], Memory]:
        outputs, state = self.unroll(state, x[None], first[None])
        return outputs[0], state

    def unroll(
        self, state: Memory, x: Float[Array, "T B F"], first: Bool[Array, "T B"]
    ) -> tuple[Float[Array, "T B H"], Memory]:
        """Attention within a band: chunks of one window of queries look at two windows of keys."""
        steps, window = first.shape[0], self.window
        extra = -steps % window if steps > window else 0  # after the end: seen by nobody, cut off again
        episode = jnp.cumsum(first, axis=0).T  # 0 is the episode that the state belongs to
        past = jnp.where(state.valid, 0, -1)
        episodes = jnp.concatenate([_padded(past, 1, 0, -1), _padded(episode, 0, extra, -1)], axis=1)
        band = self._band(episodes, steps + extra)
        h = _padded(jnp.swapaxes(self.embed(x), 0, 1), 0, extra)
        valid = episodes[:, steps + 1 : steps + window] == episode[:, -1:]
        known = []
        for layer, before in zip(self.layers, state.known, strict=True):
            h, cached = layer(_padded(before, 1, 0), h, band)
            latest = cached[:, steps + 1 : steps + window]
            known.append(jnp.where(valid[..., None], latest, 0.0))
        return jnp.swapaxes(h[:, :steps], 0, 1), Memory(tuple(known), valid)

    def _band(self, episodes: Int[Array, "B L"], steps: int) -> Band:
        """Each query sees the keys of its own episode that are at most window - 1 steps older."""
        queries = min(steps, self.window)
        distance = jnp.arange(queries)[:, None] + self.window - jnp.arange(queries + self.window)
        near = (distance >= 0) & (distance < self.window)
        asking = episodes[:, self.window :].reshape(episodes.shape[0], -1, queries)
        same = asking[..., None] == chunks(episodes, steps)[:, :, None]
        return Band(jnp.clip(distance, 0, self.window - 1), near & same)


def _padded(x: Array, before: int, after: int, value: float = 0.0) -> Array:
    """The array with so many more steps at either end of its second axis."""
    return jnp.pad(x, [(0, 0), (before, after), *[(0, 0)] * (x.ndim - 2)], constant_values=value)
