"""What a selector says about itself, under `bandit/…`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from sparring.bandit import pool as pools
from sparring.bandit.pool import Pool
from sparring.bandit.space import Space


def of_pool(pool: Pool) -> dict[str, Array]:
    """Mean and spread of recent returns."""
    mean, std = pools.moments(pool)
    return {"bandit/pool_mean": mean, "bandit/pool_std": std}


def of_choosing(
    space: Space, chance: Float[Array, "C K"], undecided: list[Float[Array, ""]] | None = None
) -> dict[str, Array]:
    """With which probability each coordinate's cells are chosen, and how even that is.

    `undecided` is how even it is but for what the selector spreads in any case; None where that is nothing.
    """
    even = evenness(space, chance)
    told = {}
    for c, (name, cells) in enumerate(zip(space.names, space.cells, strict=True)):
        told[f"bandit/probability/{name}"] = chance[c, :cells]
        told[f"bandit/entropy/{name}"] = even[c]
        told[f"bandit/undecided/{name}"] = (even if undecided is None else undecided)[c]
    return told


def evenness(space: Space, chance: Float[Array, "C K"]) -> list[Float[Array, ""]]:
    """How evenly the cells of each coordinate are chosen: 0 one cell, 1 uniform."""
    return [relative_entropy(chance[c, :cells]) for c, cells in enumerate(space.cells)]


def evenness_of_members(slabs: list[Float[Array, "M _"]], parts: Int[Array, "M C"]) -> list[Float[Array, ""]]:
    """How evenly a member chooses among the parts into which it cuts each coordinate, on average."""
    return [relative_entropy(slab, parts[:, c]).mean() for c, slab in enumerate(slabs)]


def of_cells(
    space: Space, mean: Float[Array, "C K"], sd: Float[Array, "C K"], pulls: Float[Array, "C K"]
) -> dict[str, Array]:
    """What is believed of each coordinate's cells, from how many pulls, and whether it is more than noise."""
    told = {}
    for c, (name, cells) in enumerate(zip(space.names, space.cells, strict=True)):
        told[f"bandit/mean/{name}"] = mean[c, :cells]
        told[f"bandit/sd/{name}"] = sd[c, :cells]
        told[f"bandit/pulls/{name}"] = pulls[c, :cells]
        told[f"bandit/signal/{name}"] = signal(mean[c, :cells], sd[c, :cells])
    return told


def marginals(space: Space, cell: Array, weight: Float[Array, " N"]) -> Float[Array, "C K"]:
    """The weight that falls on each coordinate's cells when each row of cells [N, C] has its own."""
    table = jnp.zeros(space.exists.shape)
    return table.at[jnp.arange(len(space.cells)), cell].add(weight[:, None])


def relative_entropy(chance: Float[Array, "*M K"], count: Any = None) -> Float[Array, "*M"]:
    """Entropy of a distribution as a share of the most there can be; 1 where there is nothing to choose.

    `count` is how many of the K there are, where not all.
    """
    count = chance.shape[-1] if count is None else count
    entropy = -jnp.where(chance > 0, chance * jnp.log(jnp.maximum(chance, 1e-30)), 0.0).sum(axis=-1)
    return jnp.where(count > 1, entropy / jnp.log(jnp.maximum(count, 2)), 1.0)


def signal(mean: Float[Array, " K"], sd: Float[Array, " K"]) -> Float[Array, ""]:
    """How many standard errors lie between the best and the worst cell; below 2 it may all be noise."""
    best, worst = jnp.argmax(mean), jnp.argmin(mean)
    return (mean[best] - mean[worst]) / jnp.sqrt(sd[best] ** 2 + sd[worst] ** 2)
