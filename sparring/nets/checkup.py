"""A look inside the networks, about 200 times in a run: size of parameters and of an update, dead units, rank
of the features, and how what was learned from is spread.

Between looks the numbers are NaN, which drivers and sessions take for "not measured".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from sparring.ops.optim import norm_of
from sparring.types import Metrics

KEPT = 2000
"""Iterations of a run whose metrics a session keeps, at most."""
LOOKS = 200
"""Looks in a run, about."""
SAMPLES = 128
"""Observations that a look is made with, at most."""
DORMANT = 0.025
"""Share of its layer's mean activation below which a unit is dormant (Sokar et al. 2023)."""
SATURATED = 0.99
"""Share of its range beyond which a bounded unit passes hardly any gradient."""
SMALL = 0.01
"""Singular values below this share of the largest do not count for the rank (Kumar et al. 2021)."""
NAMES = ("stats/update_size", "stats/param_norm", "stats/dead_units", "stats/feature_rank")
THINNED = 2048
"""Values of which quantiles are taken, at most; smallest and largest are of all."""
QUANTILES = {"min": 0.0, "p5": 0.05, "p50": 0.5, "p95": 0.95, "max": 1.0}

Layers = Sequence[Sequence[Array]]
"""Of each network, what its hidden layers put out, [N, O]."""


def stride(horizon: Any) -> Any:
    """Iterations between those that a session keeps."""
    return jnp.maximum(jnp.floor(horizon / KEPT), 1.0)


def kept(iteration: Any, horizon: Any) -> Bool[Array, ""]:
    """Whether a session keeps the metrics of the iteration of this number."""
    return (iteration + 1) % stride(horizon).astype(jnp.int32) == 0


def due(iteration: Any, horizon: Any) -> Bool[Array, ""]:
    """Whether the iteration of this number is one to look at: one of those that a session keeps."""
    between = stride(horizon)
    every = between * jnp.maximum(jnp.floor(horizon / (between * LOOKS)), 1.0)
    return (iteration + 1) % every.astype(jnp.int32) == 0


def looked(when: Bool[Array, ""], measured: Callable[[], Metrics]) -> Metrics:
    """The scalars that `measured` finds, or NaN when it is not the time to look.

    They leave the choice as one array: each by itself would be a copy of its own in every iteration.
    """
    names = list(jax.eval_shape(measured))
    if not names:
        return {}

    def together() -> Float[Array, " K"]:
        found = measured()
        return jnp.stack([found[name] for name in names])

    found = jax.lax.cond(when, together, lambda: jnp.full(len(names), jnp.nan))
    return dict(zip(names, found, strict=True))


def look(
    when: Bool[Array, ""],
    nets: Any,
    moved: Callable[[], Any],
    layers: Callable[[Any], Layers],
    bounded: str = "",
    spreads: Callable[[], Metrics] = dict,
) -> Metrics:
    """The numbers of parameters after an update, or NaN; `moved` is what it added to them, `layers` what
    hidden layers make of something with them.

    Without hidden layers the sizes are all there is. `bounded` names the activation; `spreads` adds what it
    finds.
    """

    def measured() -> Metrics:
        hidden, norm = layers(nets), norm_of(nets)
        size = norm_of(moved()) / jnp.maximum(norm, 1e-6)
        found = {"stats/update_size": size, "stats/param_norm": norm, **spreads()}
        if any(hidden):
            found["stats/dead_units"] = dead_share(hidden, bounded)
        # Eigenvalues are slow on an accelerator, where several seeds would look in every iteration.
        if any(hidden) and jax.default_backend() == "cpu":
            found["stats/feature_rank"] = rank_share([net[-1] for net in hidden if net])
        return found

    return looked(when, measured)


def spread(name: str, x: Array, mask: Array | None = None) -> Metrics:
    """Smallest, largest and some quantiles of the values that count, as numpy interpolates; NaN of none."""
    flat = x.astype(jnp.float32).reshape(-1)
    flat = flat if mask is None else jnp.where(mask.reshape(-1), flat, jnp.inf)
    some = flat[:: -(-flat.shape[0] // THINNED)]
    ordered = jnp.sort(some)
    count: Any = some.shape[0] if mask is None else jnp.sum(ordered < jnp.inf)
    place = np.array(list(QUANTILES.values()), np.float32) * jnp.maximum(count - 1, 0)
    below, above = (edge(place).astype(jnp.int32) for edge in (jnp.floor, jnp.ceil))
    values = ordered[below] + (place - below) * (ordered[above] - ordered[below])
    found = dict(zip(QUANTILES, values, strict=True))
    if some.shape != flat.shape:
        most = jnp.max(flat if mask is None else jnp.where(flat < jnp.inf, flat, -jnp.inf))
        found |= {"min": jnp.min(flat), "max": most}
    return {f"{name}_{what}": jnp.where(count > 0, value, jnp.nan) for what, value in found.items()}


def targets(returns: Array, advantage: Array | None, mask: Array | None) -> Metrics:
    """How value targets and, before they are standardised, advantages are spread."""
    found = spread("stats/value_targets", returns, mask)
    return found if advantage is None else found | spread("stats/advantages", advantage, mask)


def difference(before: Any, after: Any) -> Any:
    """What was added to every number of a tree."""
    return jax.tree.map(jnp.subtract, after, before)


def dead_share(hidden: Layers, activation: str = "") -> Float[Array, ""]:
    """Share of hidden units that are dormant or, where the activation has bounds, saturated throughout."""
    dead, units = jnp.zeros(()), 0
    for x in (layer for net in hidden for layer in net):
        size = jnp.mean(jnp.abs(x), axis=0)
        bad = size <= DORMANT * jnp.mean(size)
        if activation in ("tanh", "sigmoid"):
            centred = x if activation == "tanh" else 2.0 * x - 1.0
            bad = bad | jnp.all(jnp.abs(centred) > SATURATED, axis=0)
        dead, units = dead + jnp.sum(bad), units + x.shape[-1]
    return dead / units


def rank_share(features: Sequence[Float[Array, "N _"]]) -> Float[Array, ""]:
    """The least rank of the networks' features, as a share of the largest that these samples allow."""
    return jnp.min(jnp.stack([_rank(x) for x in features]))


def _rank(x: Float[Array, "N O"]) -> Float[Array, ""]:
    small = x.T if x.shape[1] < x.shape[0] else x
    values = jnp.linalg.eigvalsh(small @ small.T)  # squares of the singular values
    return jnp.mean((values > SMALL**2 * jnp.maximum(values[-1], 1e-12)).astype(jnp.float32))


def sampled(obs: Any, axes: int) -> Any:
    """A few observations, spread evenly over the leading axes."""

    def some(x: Array) -> Array:
        flat = x.reshape((-1, *x.shape[axes:]))
        return flat[:: -(-flat.shape[0] // SAMPLES)]

    return jax.tree.map(some, obs)
