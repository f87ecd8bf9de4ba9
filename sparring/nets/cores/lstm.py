"""LSTM: long short-term memory (Hochreiter and Schmidhuber 1997) with forget gates (Gers et al. 2000)."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from sparring.nets.layers import Dense, orthogonal
from sparring.ops.keys import normal, several


class Memory(NamedTuple):
    """Hidden vector and cell of one layer."""

    hidden: Float[Array, "B H"]
    cell: Float[Array, "B H"]


class LSTMLayer(eqx.Module):
    """c' = f c + i g and h' = o tanh(c'), with gates i, f, o and candidate g of W x + U h + b."""

    inputs: Dense
    recurrent: Float[Array, "H G"]

    def __init__(self, key: Any, inputs: int, size: int):
        """Torch's uniform input weights, an orthogonal recurrent matrix per gate, forget bias 1, others 0.

        The bias lets an untrained cell remember (Jozefowicz et al. 2015).
        """
        input_key, recurrent_key = several(key, 2)
        dense = Dense(input_key, inputs, 4 * size, None)
        bias = jnp.zeros(4 * size).at[size : 2 * size].set(1.0)
        self.inputs = eqx.tree_at(lambda layer: layer.bias, dense, bias)
        square = jax.vmap(orthogonal)(normal(recurrent_key, (4, size, size)))
        self.recurrent = jnp.concatenate(list(square), axis=1)

    def recur(self, memory: Memory, projected: Float[Array, "B G"], first: Bool[Array, " B"]) -> Memory:
        """The memory after one projected input."""
        hidden = jnp.where(first[:, None], 0.0, memory.hidden)
        cell = jnp.where(first[:, None], 0.0, memory.cell)
        write, forget, candidate, read = jnp.split(projected + hidden @ self.recurrent, 4, axis=-1)
        cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(write) * jnp.tanh(candidate)
        return Memory(jax.nn.sigmoid(read) * jnp.tanh(cell), cell)

    def unroll(
        self, memory: Memory, x: Float[Array, "T B F"], first: Bool[Array, "T B"]
    ) -> tuple[Memory, Float[Array, "T B H"]]:
        """The last memory and all hidden vectors; one product projects all inputs before the recurrence."""

        def one(memory: Memory, now: tuple[Array, Array]) -> tuple[Memory, Array]:
            memory = self.recur(memory, *now)
            return memory, memory.hidden

        return jax.lax.scan(one, memory, (self.inputs(x), first))


class LSTM(eqx.Module):
    """Stacked LSTM layers; the state is one memory per layer."""

    layers: tuple[LSTMLayer, ...]
    outputs: int = eqx.field(static=True)

    def __init__(self, key: Any, inputs: int, size: int, layers: int):
        each = several(key, layers)
        self.layers = tuple(LSTMLayer(each[i], inputs if i == 0 else size, size) for i in range(layers))
        self.outputs = size

    def start(self, rows: int) -> tuple[Memory, ...]:
        shape = (rows, self.outputs)
        return tuple(Memory(jnp.zeros(shape), jnp.zeros(shape)) for _ in self.layers)

    def step(
        self, state: tuple[Memory, ...], x: Float[Array, "B F"], first: Bool[Array, " B"]
    ) -> tuple[Float[Array, "B H"], tuple[Memory, ...]]:
        after = []
        for layer, memory in zip(self.layers, state, strict=True):
            after.append(layer.recur(memory, layer.inputs(x), first))
            x = after[-1].hidden
        return x, tuple(after)

    def unroll(
        self, state: tuple[Memory, ...], x: Float[Array, "T B F"], first: Bool[Array, "T B"]
    ) -> tuple[Float[Array, "T B H"], tuple[Memory, ...]]:
        after = []
        for layer, memory in zip(self.layers, state, strict=True):
            last, x = layer.unroll(memory, x, first)
            after.append(last)
        return x, tuple(after)
