"""Cores: what an agent remembers between the observations of an episode.

A core sits between torso and heads. It is an Equinox module whose every leaf is a float32 array; sequences
are time-major, and an episode may start at any step of any row.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from sparring.errors import ConfigError, nearest
from sparring.nets.cores.gru import GRU
from sparring.nets.cores.lstm import LSTM
from sparring.nets.cores.s5 import S5
from sparring.nets.cores.transformer import Transformer
from sparring.types import Key

State: TypeAlias = Any
"""A tree of arrays whose leading axis is rows; all zeros before the first input of an episode."""

NAMES = ("gru", "lstm", "transformer", "s5")


@runtime_checkable
class Core(Protocol):
    """Features of one step and a state become features that know the episode so far."""

    @property
    def outputs(self) -> int:
        """Length of the feature vector that the core hands on."""
        ...

    def start(self, rows: int) -> State:
        """The state of a fresh episode in every row."""
        ...

    def step(
        self, state: State, x: Float[Array, "B F"], first: Bool[Array, " B"]
    ) -> tuple[Float[Array, "B O"], State]:
        """One input per row; rows with `first` forget everything before they see it."""
        ...

    def unroll(
        self, state: State, x: Float[Array, "T B F"], first: Bool[Array, "T B"]
    ) -> tuple[Float[Array, "T B O"], State]:
        """T steps at once, in parallel where the core can; equal to as many calls of `step`."""
        ...


def core(name: str, key: Key, inputs: int, size: int, layers: int, heads: int, window: int) -> Core:
    """A freshly initialised core; only the transformer has `heads` and a `window` of inputs that it sees."""
    if min(inputs, size, layers) < 1:
        raise ConfigError(
            f"A core needs inputs, size and layers of at least 1, not {inputs}, {size}, {layers}."
        )
    match name:
        case "gru":
            return GRU(key, inputs, size, layers)
        case "lstm":
            return LSTM(key, inputs, size, layers)
        case "transformer":
            return Transformer(key, inputs, size, layers, heads, window)
        case "s5":
            return S5(key, inputs, size, layers)
    raise ConfigError(f"There is no core {name!r}.{nearest(name, NAMES)} Known: {', '.join(NAMES)}.")


def follow(
    core: Core,
    state: State,
    x: Float[Array, "T B F"],
    first: Bool[Array, "T B"],
    x_next: Float[Array, "T B F"],
) -> Float[Array, "T B O"]:
    """What the core would put out after each step if `x_next` were the next input of the same episode.

    The side step leaves the state alone. It is the bootstrap of an episode that was cut: the observation that
    the last action led to is never an input of the sequence itself.
    """

    def one(state: State, now: tuple[Array, Array, Array]) -> tuple[State, Array]:
        x_t, first_t, next_t = now
        _, state = core.step(state, x_t, first_t)
        output, _ = core.step(state, next_t, jnp.zeros_like(first_t))
        return state, output

    _, outputs = jax.lax.scan(one, state, (x, first, x_next))
    return outputs
