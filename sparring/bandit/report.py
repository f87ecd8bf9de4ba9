"""What a selector says about itself, under `bandit/…`."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from sparring.bandit import pool as pools
from sparring.bandit.pool import Pool
from sparring.bandit.space import Space


def of_pool(pool: Pool) -> dict[str, Array]:
    """Mean and spread of recent returns."""
    mean, std = pools.moments(pool)
    return {"bandit/pool_mean": mean, "bandit/pool_std": std}


def of_choosing(space: Space, chance: Float[Array, "C K"]) -> dict[str, Array]:
    """With which probability each coordinate's cells are chosen, and how even that is."""
    told = {}
    for c, (name, cells) in enumerate(zip(space.names, space.cells, strict=True)):
        told[f"bandit/probability/{name}"] = chance[c, :cells]
        told[f"bandit/entropy/{name}"] = relative_entropy(chance[c, :cells])
    return told


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


def relative_entropy(chance: Float[Array, " K"]) -> Float[Array, ""]:
    """Entropy of a distribution as a share of the most there can be; 1 where there is nothing to choose."""
    if chance.shape[0] == 1:
        return jnp.ones(())
    entropy = -jnp.where(chance > 0, chance * jnp.log(jnp.maximum(chance, 1e-30)), 0.0).sum()
    return entropy / jnp.log(chance.shape[0])


def signal(mean: Float[Array, " K"], sd: Float[Array, " K"]) -> Float[Array, ""]:
    """How many standard errors lie between the best and the worst cell; below 2 it may all be noise."""
    best, worst = jnp.argmax(mean), jnp.argmin(mean)
    return (mean[best] - mean[worst]) / jnp.sqrt(sd[best] ** 2 + sd[worst] ** 2)
