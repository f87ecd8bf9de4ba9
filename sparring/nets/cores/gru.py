"""GRU: gated recurrent units (Cho et al. 2014), in the form that applies the reset gate after the product."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from sparring.nets.layers import Dense, orthogonal
from sparring.ops.keys import normal, several


class GRULayer(eqx.Module):
    """h' = (1 - z) n + z h, with gates r, z and candidate n = tanh(W x + b + r (U h + c))."""

    inputs: Dense
    recurrent: Float[Array, "H G"]
    bias: Float[Array, " H"]

    def __init__(self, key: Any, inputs: int, size: int):
        """Torch's uniform input weights without bias, and an orthogonal recurrent matrix per gate."""
        input_key, recurrent_key = several(key, 2)
        dense = Dense(input_key, inputs, 3 * size, None)
        self.inputs = eqx.tree_at(lambda layer: layer.bias, dense, jnp.zeros(3 * size))
        square = jax.vmap(orthogonal)(normal(recurrent_key, (3, size, size)))
        self.recurrent = jnp.concatenate(list(square), axis=1)
        self.bias = jnp.zeros(size)

    def recur(
        self, h: Float[Array, "B H"], projected: Float[Array, "B G"], first: Bool[Array, " B"]
    ) -> Float[Array, "B H"]:
        """The hidden state after one projected input."""
        h = jnp.where(first[:, None], 0.0, h)
        own, size = h @ self.recurrent, h.shape[-1]
        gates = jax.nn.sigmoid(projected[:, : 2 * size] + own[:, : 2 * size])
        reset, update = gates[:, :size], gates[:, size:]
        candidate = jnp.tanh(projected[:, 2 * size :] + reset * (own[:, 2 * size :] + self.bias))
        return candidate + update * (h - candidate)

    def unroll(
        self, h: Float[Array, "B H"], x: Float[Array, "T B F"], first: Bool[Array, "T B"]
    ) -> tuple[Float[Array, "B H"], Float[Array, "T B H"]]:
        """The last hidden state and all of them; one product projects all inputs before the recurrence."""

        def one(h: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
            h = self.recur(h, *now)
            return h, h

        return jax.lax.scan(one, h, (self.inputs(x), first))


class GRU(eqx.Module):
    """Stacked GRU layers; the state is one hidden vector per layer and row."""

    layers: tuple[GRULayer, ...]
    outputs: int = eqx.field(static=True)

    def __init__(self, key: Any, inputs: int, size: int, layers: int):
        each = several(key, layers)
        self.layers = tuple(GRULayer(each[i], inputs if i == 0 else size, size) for i in range(layers))
        self.outputs = size

    def start(self, rows: int) -> tuple[Float[Array, "B H"], ...]:
        return tuple(jnp.zeros((rows, self.outputs)) for _ in self.layers)

    def step(
        self, state: tuple[Float[Array, "B H"], ...], x: Float[Array, "B F"], first: Bool[Array, " B"]
    ) -> tuple[Float[Array, "B H"], tuple[Float[Array, "B H"], ...]]:
        after = []
        for layer, h in zip(self.layers, state, strict=True):
            x = layer.recur(h, layer.inputs(x), first)
            after.append(x)
        return x, tuple(after)

    def unroll(
        self, state: tuple[Float[Array, "B H"], ...], x: Float[Array, "T B F"], first: Bool[Array, "T B"]
    ) -> tuple[Float[Array, "T B H"], tuple[Float[Array, "B H"], ...]]:
        after = []
        for layer, h in zip(self.layers, state, strict=True):
            last, x = layer.unroll(h, x, first)
            after.append(last)
        return x, tuple(after)
