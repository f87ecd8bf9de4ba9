"""Heads: a latent vector becomes a distribution over what the agent samples, and a sample an action.

The agent may sample in another space than the environment's: bins instead of a Box, an unsquashed vector
instead of a bounded one. `Codec` is that translation; it is part of the policy and saved with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from sparring.errors import ConfigError, SpaceMismatch
from sparring.nets.layers import Dense
from sparring.ops.distributions import (
    ILLEGAL,
    Bernoulli,
    Categorical,
    Distribution,
    Gaussian,
    MultiCategorical,
    TanhGaussian,
    mask_logits,
)
from sparring.ops.keys import normal, several
from sparring.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space

JOINT_LIMIT = 4096
LOG_STD_RANGE = (-20.0, 2.0)


@dataclass(frozen=True)
class Codec:
    """What the agent samples (`inner`) and how a sample becomes the environment's action."""

    space: Space
    inner: Space
    squash: bool = False

    @property
    def identity(self) -> bool:
        """Whether a sample already is the action."""
        return self.inner == self.space and not isinstance(self.space, Box)

    def decode(self, sample: Array) -> Array:
        """The environment's action: clipped, rescaled or looked up so that it lies within the bounds."""
        if not isinstance(self.space, Box):
            return sample
        low, high = (jnp.asarray(b.reshape(-1), jnp.float32) for b in self.space.bounds())
        match self.inner:
            case Box() if self.squash:
                return unit_to_bounds(self.space, jnp.tanh(sample))
            case Box():
                flat = jnp.clip(sample, low, high)
            case MultiDiscrete(sizes):
                flat = jnp.asarray(self._bins(sizes))[np.arange(len(sizes)), sample]
            case Discrete():
                flat = jnp.asarray(self._grid())[sample]
            case _:
                raise AssertionError(self.inner)
        return flat.reshape((*flat.shape[:-1], *self.space.shape))

    def _bins(self, sizes: tuple[int, ...]) -> np.ndarray:
        """The value of every bin, [A, widest]: a table, so that the ends are the bounds exactly."""
        assert isinstance(self.space, Box)
        low, high = (b.reshape(-1) for b in self.space.bounds())
        rows = [np.linspace(a, b, n) for a, b, n in zip(low, high, sizes, strict=True)]
        return np.stack([np.pad(row, (0, max(sizes) - len(row))) for row in rows]).astype(np.float32)

    def _grid(self) -> np.ndarray:
        """All points of the joint grid, [n, A]."""
        assert isinstance(self.space, Box)
        assert isinstance(self.inner, Discrete)
        low, high = (b.reshape(-1) for b in self.space.bounds())
        bins = round(self.inner.n ** (1.0 / self.space.size))
        axes = [np.linspace(a, b, bins) for a, b in zip(low, high, strict=True)]
        mesh = np.meshgrid(*axes, indexing="ij")
        return np.stack([m.reshape(-1) for m in mesh], axis=-1).astype(np.float32)


def unit_to_bounds(space: Box, unit: Float[Array, "*N A"]) -> Array:
    """Numbers in [-1, 1] as actions within the bounds."""
    low, high = (jnp.asarray(b.reshape(-1), jnp.float32) for b in space.bounds())
    flat = jnp.clip(low + 0.5 * (unit + 1.0) * (high - low), low, high)
    return flat.reshape((*flat.shape[:-1], *space.shape))


def bounds_to_unit(space: Box, action: Array) -> Float[Array, "*N A"]:
    """Actions within the bounds as numbers in [-1, 1]."""
    low, high = (jnp.asarray(b.reshape(-1), jnp.float32) for b in space.bounds())
    flat = action.reshape((*action.shape[: action.ndim - len(space.shape)], -1))
    wide = high > low  # a number with one value is always in the middle
    return jnp.where(
        wide, jnp.clip(2.0 * (flat - low) / jnp.where(wide, high - low, 1.0) - 1.0, -1.0, 1.0), 0.0
    )


def codec(
    space: Space,
    bins: tuple[int, ...] = (),
    grid: Literal["per_dimension", "joint"] = "per_dimension",
    squash: bool = False,
) -> Codec:
    """The codec for an action space; bins turn a bounded Box into choices."""
    if isinstance(space, Dict):
        raise SpaceMismatch("Dict actions are not supported; flatten them into a Box or MultiDiscrete.")
    if not isinstance(space, Box):
        if bins:
            raise ConfigError(f"action_bins needs a Box action space, this one is {space}.")
        if squash:
            raise ConfigError(f"squash needs a Box action space, this one is {space}.")
        return Codec(space, space)
    if (bins or squash) and not space.bounded:
        raise SpaceMismatch(
            "action_bins and squash need a Box whose bounds are finite; this one is unbounded."
        )
    if not bins:
        return Codec(space, Box((space.size,)), squash)
    sizes = bins * space.size if len(bins) == 1 else bins
    if len(sizes) != space.size or min(sizes) < 2:
        raise ConfigError(
            f"action_bins must be one number or {space.size} numbers, each at least 2; got {bins}."
        )
    if grid == "per_dimension":
        return Codec(space, MultiDiscrete(sizes))
    if len(set(sizes)) > 1:
        raise ConfigError(f"A joint grid takes the same number of bins in every dimension, got {bins}.")
    if math.prod(sizes) > JOINT_LIMIT:
        most = int(JOINT_LIMIT ** (1.0 / space.size) + 1e-9)
        fewer = f"at most {most} bins, or " if most >= 2 else ""
        raise ConfigError(
            f"A joint grid of {sizes[0]} bins in {space.size} dimensions has {math.prod(sizes):,} actions, "
            f"more than {JOINT_LIMIT:,}. Use {fewer}action_grid='per_dimension'."
        )
    return Codec(space, Discrete(math.prod(sizes)))


class Head(eqx.Module):
    """The last layer of a policy for the codec's inner space."""

    dense: Dense
    log_std: Array | Dense | None
    codec: Codec = eqx.field(static=True)
    sde: bool = eqx.field(static=True)
    sde_trains_features: bool = eqx.field(static=True)
    """whether exploration trains what it is a function of: SB3's SAC does it, its PPO does not"""

    def __init__(
        self,
        key: Any,
        inputs: int,
        codec: Codec,
        gain: float | None,
        log_std_init: float = 0.0,
        log_std: Literal["free", "state"] = "free",
        sde: bool = False,
    ):
        self.codec = codec
        self.sde = sde
        self.sde_trains_features = log_std == "state"
        mean_key, std_key = several(key, 2)
        self.log_std = None
        match codec.inner:
            case Discrete(n) | MultiBinary(n):
                outputs = n
            case MultiDiscrete(sizes):
                outputs = len(sizes) * max(sizes)
            case Box():
                outputs = codec.inner.size
                if sde:
                    self.log_std = jnp.full((inputs, outputs), log_std_init, jnp.float32)
                elif log_std == "state":
                    self.log_std = Dense(std_key, inputs, outputs, gain)
                    if log_std_init:
                        around = jnp.full(outputs, log_std_init, jnp.float32)
                        self.log_std = eqx.tree_at(lambda d: d.bias, self.log_std, around)
                else:
                    self.log_std = jnp.full((outputs,), log_std_init, jnp.float32)
            case Dict():
                raise SpaceMismatch("Dict actions are not supported.")
        if sde and not isinstance(codec.inner, Box):
            raise ConfigError("use_sde needs a Box action space without action_bins.")
        self.dense = Dense(mean_key, inputs, outputs, gain)

    def __call__(self, latent: Float[Array, "*N I"], legal: Array | None = None) -> Distribution:
        """The distribution of a sample for each latent vector."""
        out = self.dense(latent)
        match self.codec.inner:
            case Discrete():
                return Categorical(mask_logits(out, legal))
            case MultiBinary():
                return Bernoulli(mask_logits(out, legal))
            case MultiDiscrete(sizes):
                return MultiCategorical(_branch(out, sizes, legal))
            case _:
                gaussian = Gaussian(out, self._log_std(latent, out), legal)
                return TanhGaussian(gaussian) if self.codec.squash else gaussian

    def logits(self, latent: Float[Array, "*N I"]) -> tuple[Array, Bool[Array, "branches options"]]:
        """What choices are drawn by, [*N, branches, options], and which of them are no padding."""
        out = self.dense(latent)
        match self.codec.inner:
            case MultiBinary(n):
                sizes: tuple[int, ...] = (2,) * n
                out = jnp.stack([jnp.zeros_like(out), out], axis=-1)
            case MultiDiscrete(found):
                sizes = found
            case _:
                sizes = (out.shape[-1],)
        return out.reshape((*latent.shape[:-1], len(sizes), max(sizes))), branches(sizes, None)

    def _log_std(self, latent: Array, mean: Array) -> Array:
        if isinstance(self.log_std, Dense):
            return jnp.clip(self.log_std(latent), *LOG_STD_RANGE)
        assert self.log_std is not None
        if not self.sde:
            return jnp.broadcast_to(self.log_std, mean.shape)
        # gSDE (Raffin et al. 2022): σ² = Σ_j latent_j² σ_j².
        features = latent if self.sde_trains_features else jax.lax.stop_gradient(latent)
        return 0.5 * jnp.log(jnp.square(features) @ jnp.exp(2.0 * self.log_std) + 1e-6)

    def noise_matrix(self, key: Any, rows: int) -> Float[Array, "B I A"]:
        """gSDE's exploration matrix of each row; it stays fixed for `sde_sample_freq` steps."""
        assert isinstance(self.log_std, jax.Array)
        return normal(key, (rows, *self.log_std.shape)) * jnp.exp(self.log_std)


def _branch(logits: Array, sizes: tuple[int, ...], legal: Array | None) -> Array:
    """[..., branches·widest] as [..., branches, widest] with the padding and illegal options out of reach."""
    table = logits.reshape((*logits.shape[:-1], len(sizes), max(sizes)))
    return jnp.where(branches(sizes, legal), table, ILLEGAL)


def branches(sizes: tuple[int, ...], legal: Array | None) -> Array:
    """Which of [..., branches, widest] options exist and are legal; a mask lists all branches' in a row."""
    widest = max(sizes)
    exists = jnp.asarray(np.arange(widest)[None, :] < np.asarray(sizes)[:, None])
    if legal is None:
        return exists
    starts = np.cumsum([0, *sizes[:-1]])
    index = np.minimum(starts[:, None] + np.arange(widest)[None, :], sum(sizes) - 1)
    return exists & legal[..., index]
