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
from sparring.ops.minibatch import shared_rows


@jax.custom_vjp
def relu(x: Array) -> Array:
    """max(x, 0), whose gradient needs the output alone: what comes before it need not be kept."""
    return jnp.maximum(x, 0.0)


def _relu_forward(x: Array) -> tuple[Array, Array]:
    y = jnp.maximum(x, 0.0)
    return y, y


def _relu_backward(y: Array, gradient: Array) -> tuple[Array]:
    return (jnp.where(y > 0.0, gradient, 0.0),)


relu.defvjp(_relu_forward, _relu_backward)

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "relu": relu,
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
    if outputs == 1:  # an outer product, which fuses with what comes after it
        return gradient * weight[:, 0], down
    return gradient @ weight.T, down


matmul.defvjp(_matmul_forward, _matmul_backward)


class Noisy(eqx.Module):
    """A dense layer with learned, factorised Gaussian noise (Fortunato et al. 2018, arXiv 1706.10295).

    w = μ + σ f(ε_in) f(ε_out)ᵀ with f(x) = sgn(x) √|x|; without a draw it is its mean.
    """

    weight: Float[Array, "I O"]
    bias: Float[Array, " O"]
    weight_noise: Float[Array, "I O"]
    bias_noise: Float[Array, " O"]

    def __init__(self, key: Any, inputs: int, outputs: int, scale: float = 0.5):
        mean = Dense(key, inputs, outputs, None)
        self.weight, self.bias = mean.weight, mean.bias
        level = scale / math.sqrt(max(inputs, 1))
        self.weight_noise = jnp.full((inputs, outputs), level)
        self.bias_noise = jnp.full(outputs, level)

    def drawn(self, key: Any) -> Noisy:
        """The layer with its noise drawn: one whose mean is the draw."""
        inputs, outputs = self.weight.shape
        noise = normal(key, (inputs + outputs,))
        noise = jnp.sign(noise) * jnp.sqrt(jnp.abs(noise))
        weight = self.weight + self.weight_noise * noise[:inputs, None] * noise[inputs:]
        bias = self.bias + self.bias_noise * noise[inputs:]
        return eqx.tree_at(lambda layer: (layer.weight, layer.bias), self, (weight, bias))

    def __call__(self, x: Float[Array, "*N I"]) -> Float[Array, "*N O"]:
        return matmul(x, self.weight) + self.bias


def draw_noise(net: Any, key: Any) -> Any:
    """A network whose noisy layers are drawn."""
    layers, tree = jax.tree.flatten(net, is_leaf=lambda x: isinstance(x, Noisy))
    each = iter(several(key, max(sum(isinstance(x, Noisy) for x in layers), 1)))
    drawn = [x.drawn(next(each)) if isinstance(x, Noisy) else x for x in layers]
    return jax.tree.unflatten(tree, drawn)


class LayerNorm(eqx.Module):
    """Zero mean and unit deviation over the last axis, then a learned scale and shift (Ba et al. 2016)."""

    scale: Float[Array, " O"]
    shift: Float[Array, " O"]

    def __init__(self, size: int):
        self.scale, self.shift = jnp.ones(size), jnp.zeros(size)

    def __call__(self, x: Float[Array, "*N O"]) -> Float[Array, "*N O"]:
        centred = x - jnp.mean(x, axis=-1, keepdims=True)
        spread = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
        return centred * jax.lax.rsqrt(spread + 1e-6) * self.scale + self.shift


class MLP(eqx.Module):
    """Layers, each followed by the activation; with no layers, the identity.

    Layers may be noisy, and a layer norm may come before every activation.
    """

    layers: tuple[Any, ...]
    norms: tuple[LayerNorm, ...]
    activation: str = eqx.field(static=True)
    outputs: int = eqx.field(static=True)

    def __init__(
        self,
        key: Any,
        inputs: int,
        sizes: tuple[int, ...],
        name: str,
        gain: float | None,
        noisy: bool = False,
        norm: bool = False,
    ):
        each = several(key, max(len(sizes), 1))
        widths = (inputs, *sizes)
        shapes = zip(each, widths[:-1], widths[1:], strict=len(sizes) > 0)
        self.layers = tuple(Noisy(k, a, b) if noisy else Dense(k, a, b, gain) for k, a, b in shapes)
        self.norms = tuple(LayerNorm(size) for size in sizes) if norm else ()
        activation(name)  # an unknown name fails here, not inside a trace
        self.activation = name
        self.outputs = widths[-1]

    def __call__(self, x: Float[Array, "*N I"]) -> Float[Array, "*N O"]:
        return self.hidden(x)[-1] if self.layers else x

    def filled(self, x: Float[Array, "*N I"]) -> Float[Array, "*M I"]:
        """The rows of a batch and, on a CPU, a few of zeros where cores then share the largest product."""
        most = max((layer.weight.size for layer in self.layers), default=0)
        if x.ndim != 2 or jax.default_backend() != "cpu":
            return x
        more = shared_rows(x.shape[0], most) - x.shape[0]
        return jnp.concatenate([x, jnp.zeros((more, x.shape[1]), x.dtype)]) if more else x

    def hidden(self, x: Float[Array, "*N I"]) -> list[Array]:
        """What every layer puts out."""
        function, outputs = activation(self.activation), []
        for index, layer in enumerate(self.layers):
            x = layer(x)
            x = function(self.norms[index](x) if self.norms else x)
            outputs.append(x)
        return outputs


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
