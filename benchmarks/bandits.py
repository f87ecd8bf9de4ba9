"""How good every selector's choices are in worlds where the answer is known.

    python benchmarks/bandits.py [--seeds 20] [--out docs/results/bandits.json]

64 rows finish 16,000 episodes of one step each. What a behaviour is worth lies in [0, 1]; a return is that
plus an offset and noise, times a scale. Writes the JSON file; docs/bandits.md and docs/results/bandits.png
are written from it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sparring.bandit import Controller, Coordinate, Selector, Space, make
from sparring.ops import keys

ROWS, STEPS = 64, 250
GRID = (10, 10, 6)
FINE = (51, 51, 11)
"""GDI's own grid"""


def space(cells: tuple[int, ...]) -> Space:
    return Space(tuple(Coordinate.interval(f"x{i + 1}", 0.0, 1.0, n) for i, n in enumerate(cells)))


def bump(x: jax.Array, at: jax.Array) -> jax.Array:
    return jnp.exp(-0.5 * ((x - at) / 0.25) ** 2)


def still(seed: jax.Array, part: jax.Array) -> jax.Array:
    """An optimum that stays where the seed put it."""
    return 0.1 + 0.8 * keys.uniform(seed, (3,))


def wandering(seed: jax.Array, part: jax.Array) -> jax.Array:
    """An optimum that crosses the range of every coordinate, from where and to where the seed says."""
    u = keys.uniform(seed, (3,))
    return 0.5 + 0.4 * jnp.cos(jnp.pi * (part + 2.0 * jnp.floor(2.0 * u) / 2.0 + 0.25 * u))


def separable(x: jax.Array, at: jax.Array, seed: jax.Array) -> jax.Array:
    return bump(x, at).prod(axis=-1)


def mixture(x: jax.Array, at: jax.Array, seed: jax.Array) -> jax.Array:
    """The third coordinate mixes what the other two are worth."""
    return x[:, 2] * bump(x[:, 0], at[0]) + (1.0 - x[:, 2]) * bump(x[:, 1], at[1])


def needle(x: jax.Array, at: jax.Array, seed: jax.Array) -> jax.Array:
    """One cell of the whole table is good, all others are worth nothing."""
    table = space(GRID) if x.shape[1] == 3 else flat_space()
    good = keys.below(seed, 1, table.size)
    return (table.flat(table.cell_of(x)) == good).astype(jnp.float32)


def flat_space() -> Space:
    return Space((Coordinate.discrete("arm", range(600)),))


@dataclass(frozen=True)
class World:
    """What behaviours are worth, and what is seen of it."""

    text: str
    quality: Callable[..., jax.Array] = separable
    optimum: Callable[..., jax.Array] = wandering
    offset: float = 0.0
    noise: float = 0.5
    growth: float = 100.0
    cells: tuple[int, ...] | None = None
    """the table that all selectors share; None: each has its own"""


WORLDS = {
    "stationary": World("an optimum that stays, returns mostly above 0", optimum=still, growth=1.0),
    "drifting": World("the optimum crosses the range, returns grow a hundredfold"),
    "negative": World("the same, 1.5 lower: nearly all returns below 0", offset=-1.5),
    "noisy": World("the same with three times the noise", offset=-1.5, noise=1.5),
    "noisy, positive": World("three times the noise, not lowered", noise=1.5),
    "mixture": World("drifting; the third coordinate mixes the other two", quality=mixture, offset=-1.5),
    "one of 600": World(
        "one good combination of 10 × 10 × 6 cells", quality=needle, growth=1.0, noise=0.1, cells=GRID
    ),
    "one of 600, flat": World(
        "one good value among 600 of one coordinate", quality=needle, growth=1.0, noise=0.1, cells=(600,)
    ),
}
NAMES = ("thompson", "sw_ucb", "gdi_tiles", "gdi_tiles_faithful", "lbc_regions", "uniform", "fixed", "ladder")


def selector(name: str, world: World, **options: Any) -> Selector:
    cells = world.cells or (FINE if name.startswith("gdi") else GRID)
    table = flat_space() if len(cells) == 1 else space(cells)
    if name == "fixed":
        options["point"] = (299.0,) if len(cells) == 1 else (0.5, 0.5, 0.5)
    return make(name, table, **options)


@partial(jax.jit, static_argnums=(0, 1, 2))
def play(world: World, chooser: Selector, steps: int, seed: jax.Array) -> jax.Array:
    """What the choices of every step were worth on average."""
    controller = Controller(chooser)
    root = jax.random.wrap_key_data(jnp.stack([jnp.uint32(7), seed.astype(jnp.uint32)]))
    hidden = keys.derive(root, 0)
    everyone = jnp.ones(ROWS, bool)

    def step(control: Any, t: jax.Array) -> tuple[Any, jax.Array]:
        part = t / steps
        quality = world.quality(control.choice.point, world.optimum(hidden, part), hidden)
        noise = world.noise * keys.normal(keys.derive(keys.derive(root, 1), t), (ROWS,))
        returns = world.growth**part * (world.offset + quality + noise)
        control = controller.turn(control, returns, everyone, None, keys.derive(keys.derive(root, 2), t))
        return control, quality.mean()

    return jax.lax.scan(step, controller.start(keys.derive(root, 3), ROWS), jnp.arange(steps))[1]


def played(name: str, world: World, seeds: int, steps: int = STEPS, **options: Any) -> np.ndarray:
    """[seeds, steps]"""
    chooser = selector(name, world, **options)
    return np.stack([np.asarray(play(world, chooser, steps, jnp.uint32(s))) for s in range(seeds)])


if __name__ == "__main__":
    import sys, time
    for w in WORLDS:
        for n in NAMES:
            t=time.time()
            q=played(n,WORLDS[w],6)
            print(f"{w:18s} {n:20s} all {q.mean():.3f} last {q[:,-STEPS//4:].mean():.3f} +- {q[:,-STEPS//4:].mean(1).std():.3f}  {time.time()-t:.1f}s", flush=True)
