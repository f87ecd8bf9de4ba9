"""Dense and convolutional layers with SB3's initialisations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from sparring.errors import ConfigError, nearest
from sparring.ops.keys import normal, several, uniform_pair

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "elu": jax.nn.elu,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "leaky_relu": jax.nn.leaky_relu,
    "sigmoid": jax.nn.sigmoid,
    "identity": lambda x: x,
}


def activation(name: str) -> Callable[[Array], Array]:
    """The activation of that name."""
    if name not in ACTIVATIONS:
        raise ConfigError(f"There is no activation {name!r}.{nearest(name, ACTIVATIONS)}")
    return ACTIVATIONS[name]


def orthogonal(matrix: Float[Array, "I O"]) -> Float[Array, "I O"]:
    """Orthonormal columns or rows, whichever there are fewer of; uniform over them for a normal matrix."""
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    q, r = jnp.linalg.qr(tall)
    q = q * jnp.where(jnp.diagonal(r) < 0, -1.0, 1.0)  # makes the decomposition unique
    return q if tall is matrix else q.T


class Dense(eqx.Module):
    """x @ weight + bias over the last axis."""

    weight: Float[Array, "I O"]
    bias: Float[Array, " O"]

    def __init__(self, key: Any, inputs: int, outputs: int, gain: float | None):
        """Orthogonal with that gain and no bias, or torch's default uniform when the gain is None."""
        if gain is None:
            limit = 1.0 / math.sqrt(max(inputs, 1))
            drawn = limit * (2.0 * uniform_pair(key, (inputs + 1) * outputs)[:, 0] - 1.0)
            self.weight = drawn[:-outputs].reshape(inputs, outputs)
            self.bias = drawn[-outputs:]
        else:
            self.weight = gain * orthogonal(normal(key, (inputs, outputs)))
            self.bias = jnp.zeros(outputs)

    def __call__(self, x: Float[Array, "*N I"]) -> Float[Array, "*N O"]:
        return matmul(x, self.weight) + self.bias


@jax.custom_vjp
def matmul(x: Float[Array, "*N I"], weight: Float[Array, "I O"]) -> Float[Array, "*N O"]:
    """x @ weight, with a gradient that is quick for few outputs.

    Contracting the rows of a wide and a narrow matrix is XLA's slowest dot on a CPU; turning the narrow one
    first is six times faster.
    """
    return x @ weight


def _matmul_forward(x: Array, weight: Array) -> tuple[Array, tuple[Array, Array]]:
    return x @ weight, (x, weight)


def _matmul_backward(kept: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    x, weight = kept
    inputs, outputs = weight.shape
    rows, up = x.reshape(-1, inputs), gradient.reshape(-1, outputs)
    if 4 * outputs <= inputs and jax.default_backend() == "cpu":
        turned = jax.lax.optimization_barrier(up.T)
        down = jax.lax.optimization_barrier(turned @ rows).T
    else:
        down = rows.T @ up
    return gradient @ weight.T, down


matmul.defvjp(_matmul_forward, _matmul_backward)


class MLP(eqx.Module):
    """Dense layers, each followed by the activation; with no layers, the identity."""

    layers: tuple[Dense, ...]
    activation: str = eqx.field(static=True)
    outputs: int = eqx.field(static=True)

    def __init__(self, key: Any, inputs: int, sizes: tuple[int, ...], name: str, gain: float | None):
        each = several(key, max(len(sizes), 1))
        widths = (inputs, *sizes)
        self.layers = tuple(
            Dense(k, a, b, gain) for k, a, b in zip(each, widths[:-1], widths[1:], strict=len(sizes) > 0)
        )
        activation(name)  # an unknown name fails here, not inside a trace
        self.activation = name
        self.outputs = widths[-1]

    def __call__(self, x: Float[Array, "*N I"]) -> Float[Array, "*N O"]:
        function = activation(self.activation)
        for layer in self.layers:
            x = function(layer(x))
        return x


class Conv(eqx.Module):
    """A valid convolution over NHWC images."""

    weight: Float[Array, "H W I O"]
    bias: Float[Array, " O"]
    stride: int = eqx.field(static=True)

    def __init__(self, key: Any, inputs: int, outputs: int, size: int, stride: int, gain: float | None):
        fan_in = size * size * inputs
        flat = Dense(key, fan_in, outputs, gain)
        self.weight = flat.weight.reshape(size, size, inputs, outputs)
        self.bias = flat.bias
        self.stride = stride

    def __call__(self, x: Float[Array, "N H W I"]) -> Float[Array, "N h w O"]:
        strides = (self.stride, self.stride)
        y = jax.lax.conv_general_dilated(
            x, self.weight, strides, "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return y + self.bias


class NatureCNN(eqx.Module):
    """The torso of Mnih et al. (2015): 32 of 8×8/4, 64 of 4×4/2, 64 of 3×3/1, then 512, all ReLU."""

    convolutions: tuple[Conv, ...]
    dense: Dense

    def __init__(self, key: Any, height: int, width: int, channels: int, gain: float | None):
        keys = several(key, 4)
        layers = []
        for k, (outputs, size, stride) in zip(keys[:3], ((32, 8, 4), (64, 4, 2), (64, 3, 1)), strict=True):
            if min(height, width) < size:
                raise ConfigError(
                    f"NatureCNN needs images of at least 36×36 pixels; this one shrinks to {height}×{width} "
                    f"before a {size}×{size} kernel. Resize the image or set network='mlp'."
                )
            layers.append(Conv(k, channels, outputs, size, stride, gain))
            height, width, channels = (height - size) // stride + 1, (width - size) // stride + 1, outputs
        self.convolutions = tuple(layers)
        self.dense = Dense(keys[3], height * width * channels, 512, gain)

    @property
    def outputs(self) -> int:
        return 512

    def __call__(self, image: Float[Array, "*N H W C"]) -> Float[Array, "*N F"]:
        lead = image.shape[:-3]
        x = image.reshape((-1, *image.shape[-3:]))
        for layer in self.convolutions:
            x = jax.nn.relu(layer(x))
        x = jax.nn.relu(self.dense(x.reshape(x.shape[0], -1)))
        return x.reshape((*lead, -1))
