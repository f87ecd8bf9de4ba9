"""A torso of one's own: what turns an observation into the features that policy and value share.

sparring train ppo CartPole-v1 --set network=examples/my_network.py:Torso
"""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from sparring.nets.layers import Dense
from sparring.spaces import Box, Space


class Torso(eqx.Module):
    """Random Fourier features of a vector, and a learned layer on them.

    Called with (key, observation space, frames); a stack of k frames arrives with an axis of length k before
    the space's own. The number of features is `outputs`. Every array is a weight that is trained and saved.
    """

    frequencies: Dense
    mix: Dense
    space: Space = eqx.field(static=True)
    frames: int = eqx.field(static=True)

    def __init__(self, key: Any, space: Space, frames: int) -> None:
        if not isinstance(space, Box):
            raise TypeError("this torso takes vectors; use network=auto for other observations")
        first, second = jax.random.split(key)
        self.space = space
        self.frames = frames
        self.frequencies = Dense(first, frames * space.size, 32, math.sqrt(2.0))
        self.mix = Dense(second, 64, self.outputs, math.sqrt(2.0))

    @property
    def outputs(self) -> int:
        return 32

    def __call__(self, obs: jax.Array) -> jax.Array:
        axes = len(self.space.shape) + (self.frames > 1)  # type: ignore[union-attr]
        flat = obs.reshape((*obs.shape[: obs.ndim - axes], -1))
        waves = self.frequencies(flat)
        return jnp.tanh(self.mix(jnp.concatenate([jnp.sin(waves), jnp.cos(waves)], axis=-1)))
