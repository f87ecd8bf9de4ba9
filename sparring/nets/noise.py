"""Exploration noise on actions in [-1, 1]: Gaussian, or Ornstein-Uhlenbeck's that drifts within an episode.

x' = x + θ (μ - x) dt + σ √dt ε with ε ~ N(0, 1), x = 0 where an episode begins; Gaussian noise is μ + σ ε.
Mean μ and deviation σ are one number for all dimensions of an action, or one for each.
"""

from __future__ import annotations

from typing import Any, Literal

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from sparring.config import Schedulable, Schedule, configuration
from sparring.errors import ConfigError
from sparring.nets.heads import bounds_to_unit, unit_to_bounds
from sparring.ops.keys import normal
from sparring.spaces import Box, EnvSpec
from sparring.types import Key, View


@configuration
class NoiseConfig:
    """Settings of action noise; SB3's action_noise objects become these."""

    noise: Literal["none", "normal", "ou"] = "none"
    """exploration: none, Gaussian, or Ornstein-Uhlenbeck noise that drifts within an episode"""
    noise_std: Schedulable | tuple[float, ...] = 0.1
    """deviation of the exploration noise, for actions in [-1, 1]; a list has one for every dimension"""
    noise_mean: tuple[float, ...] = ()
    """mean of the exploration noise; empty is 0, a list has one for every dimension"""
    noise_theta: Schedulable = 0.15
    """pull of Ornstein-Uhlenbeck noise towards its mean"""
    noise_dt: Schedulable = 1e-2
    """time step of Ornstein-Uhlenbeck noise"""


def check(c: NoiseConfig, spec: EnvSpec) -> None:
    """Refuses noise that does not fit the actions."""
    if c.noise == "none":
        return
    also: Any = c
    if getattr(also, "use_sde", False):
        raise ConfigError(f"use_sde explores by itself: leave it out, or noise={c.noise!r}.")
    if not isinstance(spec.action, Box) or getattr(also, "action_bins", None):
        raise ConfigError(f"noise={c.noise!r} is for actions that are numbers. Leave it out for {spec.id}.")
    size, one = spec.action.size, {"noise_std": "0.1", "noise_mean": "0"}
    for name in ("noise_std", "noise_mean"):
        given = getattr(c, name)
        if _listed(given) and len(given) not in (0, 1, size):
            raise ConfigError(
                f"{name} has {len(given)} numbers, but an action of {spec.id} has {size}. Give {size}, or "
                f"one for all: {name}={one[name]}."
            )
    deviations = c.noise_std if _listed(c.noise_std) else ()
    if c.noise_std == () or any(not x >= 0.0 for x in deviations):
        raise ConfigError(f"noise_std must be one number or more of at least 0, got {list(c.noise_std)}.")


def start(c: NoiseConfig, spec: EnvSpec, rows: int) -> Float[Array, "B A"] | None:
    """What the noise remembers before the first step."""
    return jnp.zeros((rows, spec.action.size)) if c.noise == "ou" and isinstance(spec.action, Box) else None


def deviation(c: NoiseConfig) -> Float[Array, "*A"]:
    """σ of a configuration without schedules."""
    return jnp.asarray(c.noise_std, jnp.float32)


def sway(c: NoiseConfig, now: NoiseConfig) -> Float[Array, " 2"] | None:
    """θ and dt of this moment where a schedule moves one of them; else the settings themselves say them."""
    moved = c.noise == "ou" and isinstance(c.noise_theta, Schedule) | isinstance(c.noise_dt, Schedule)
    return jnp.stack([jnp.float32(now.noise_theta), jnp.float32(now.noise_dt)]) if moved else None


def draw(
    c: NoiseConfig,
    std: Float[Array, "*A"],
    sway: Float[Array, " 2"] | None,
    drift: Float[Array, "B A"] | None,
    first: Bool[Array, " B"] | None,
    key: Key,
    shape: tuple[int, ...],
) -> tuple[Float[Array, "B A"], Float[Array, "B A"] | None]:
    """The noise of one step, and what it remembers after it."""
    noise = std * normal(key, shape)
    mean = jnp.asarray(c.noise_mean, jnp.float32) if any(c.noise_mean) else None
    if drift is None:
        return (noise if mean is None else mean + noise), None
    if first is not None:
        drift = jnp.where(first[:, None], 0.0, drift)
    pull = drift if mean is None else drift - mean
    theta, dt = (c.noise_theta, c.noise_dt) if sway is None else sway
    drift = drift - theta * dt * pull + jnp.sqrt(dt) * noise
    return drift, drift


def added(
    c: NoiseConfig,
    space: Box,
    std: Float[Array, "*A"],
    sway: Float[Array, " 2"] | None,
    drift: Float[Array, "B A"] | None,
    view: View,
    greedy: Bool[Array, " B"] | None,
    key: Key,
    action: Array,
) -> tuple[Array, Float[Array, "B A"] | None]:
    """Actions within the bounds with noise added where they are not to be greedy, and what it remembers."""
    unit = bounds_to_unit(space, action)
    shift, drift = draw(c, std, sway, drift, view.first, key, unit.shape)
    noisy = unit_to_bounds(space, jnp.clip(unit + shift, -1.0, 1.0))
    if greedy is None:
        return noisy, drift
    return jnp.where(greedy.reshape((-1,) + (1,) * (action.ndim - 1)), action, noisy), drift


def _listed(value: Any) -> bool:
    """Whether it is a list of numbers and no schedule, which is a tuple too."""
    return type(value) is tuple
