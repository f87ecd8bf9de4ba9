"""Torsos: an observation of any space, stacked or not, becomes one feature vector."""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from sparring.nets.layers import NatureCNN
from sparring.ops.keys import derive
from sparring.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, parts
from sparring.types import Obs

MAGNIFIED, AT_MOST = 8.0, 10.0
"""How much larger a change is shown than what changed, and the largest that is shown."""


class Torso(eqx.Module):
    """Flattens vectors, one-hot encodes choices, and sends images through a NatureCNN; joins all parts.

    With `frames` > 1 every array of an observation has a stack axis before the axes of its space; `motion`
    shows numbers of older frames as what has changed since. Beside the numbers of the newest frame go their
    `waves`: a small difference of a number is a large one of its wave.
    """

    cnns: dict[str, NatureCNN]
    space: Space = eqx.field(static=True)
    frames: int = eqx.field(static=True)
    motion: bool = eqx.field(static=True)
    waves: int = eqx.field(static=True)

    def __init__(
        self,
        key: Any,
        space: Space,
        frames: int,
        gain: float | None,
        images: bool = True,
        motion: bool = False,
        waves: int = 0,
    ):
        """`images=False` flattens images too."""
        self.space = space
        self.frames = frames
        self.motion = motion
        self.waves = waves
        self.cnns = {}
        for index, (name, part) in enumerate(parts(space)):
            if images and isinstance(part, Box) and part.is_image:
                height, width, channels = image_shape(part)
                subkey = derive(key, index)
                self.cnns[name] = NatureCNN(subkey, height, width, channels * frames, gain)

    @property
    def outputs(self) -> int:
        """Length of the feature vector."""
        return sum(
            self.cnns[name].outputs if name in self.cnns else self._width(part)
            for name, part in parts(self.space)
        )

    def _numbers(self, part: Space, flat: Array) -> list[Array]:
        """Flat frames of a leaf as the body gets them."""
        if not isinstance(part, Box):
            return [flat]
        size = width(part)
        shown = _changes(flat, size) if self.motion else flat
        return [shown, *_waves(flat[..., -size:], self.waves)]

    def _width(self, part: Space) -> int:
        return (self.frames + 2 * self.waves * isinstance(part, Box)) * width(part)

    def __call__(self, obs: Obs) -> Float[Array, "*N F"]:
        features = []
        for name, part in parts(self.space):
            x = obs[name] if isinstance(self.space, Dict) else obs
            if name in self.cnns:
                assert isinstance(part, Box)
                features.append(self.cnns[name](_channels_last(part, x, self.frames)))
            else:
                features += self._numbers(part, _flat(part, x, self.frames))
        return features[0] if len(features) == 1 else jnp.concatenate(features, axis=-1)


def _changes(frames: Array, size: int) -> Array:
    """Flat frames [..., k·size], oldest first: the older ones as how far the next is from them, magnified."""
    steps = MAGNIFIED * (frames[..., size:] - frames[..., :-size])
    return jnp.concatenate([jnp.clip(steps, -AT_MOST, AT_MOST), frames[..., -size:]], axis=-1)


def _waves(x: Array, count: int) -> list[Array]:
    """Sines and cosines of every number at frequencies 1, 2, 4, … (Tancik et al. 2020)."""
    return [wave(x * 2.0**octave) for octave in range(count) for wave in (jnp.sin, jnp.cos)]


def width(space: Space) -> int:
    """Features that one frame of a leaf becomes."""
    match space:
        case Box():
            return space.size
        case Discrete(n) | MultiBinary(n):
            return n
        case MultiDiscrete(sizes):
            return sum(sizes)
        case Dict():
            return sum(width(part) for _, part in space.parts)


def image_shape(space: Box) -> tuple[int, int, int]:
    """Height, width and channels of an image that may be HW, HWC or CHW; the smallest end is the channel."""
    if len(space.shape) == 2:
        return (*space.shape, 1)
    a, b, c = space.shape
    return (a, b, c) if c <= a else (b, c, a)


def _channels_last(space: Box, x: Array, frames: int) -> Array:
    """Bytes [..., (k), H, W, C] in any of the layouts as floats [..., H, W, k·C] in [0, 1]."""
    if len(space.shape) == 2:
        x = x[..., None]
    elif space.shape[2] > space.shape[0]:
        x = jnp.moveaxis(x, -3, -1)
    if frames > 1:
        x = jnp.moveaxis(x, -4, -2)
        x = x.reshape((*x.shape[:-2], -1))
    return x.astype(jnp.float32) / 255.0


def _flat(space: Space, x: Array, frames: int) -> Array:
    """One leaf [..., (k), shape] as floats [..., k·width]."""
    inner: int
    match space:
        case Box(dtype="uint8") if x.dtype == jnp.uint8:  # normalised bytes are real numbers already
            y, inner = x.astype(jnp.float32) / 255.0, len(space.shape)
        case Box():
            y, inner = x.astype(jnp.float32), len(space.shape)
        case MultiBinary():
            y, inner = x.astype(jnp.float32), 1
        case Discrete(n):
            y, inner = jax.nn.one_hot(x, n), 1
        case MultiDiscrete(sizes):
            hot = [jax.nn.one_hot(x[..., i], n) for i, n in enumerate(sizes)]
            y, inner = jnp.concatenate(hot, axis=-1), 1
        case Dict():
            raise AssertionError("a Dict has leaves, it is not one")
    inner += int(frames > 1)
    return y.reshape((*y.shape[: y.ndim - inner], math.prod(y.shape[y.ndim - inner :])))
