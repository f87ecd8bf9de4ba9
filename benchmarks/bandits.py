"""How good every selector's choices are in worlds where the answer is known.

    python benchmarks/bandits.py [--seeds 10] [--out docs/results/bandits.json]

64 rows finish 16,000 episodes of one step each. What a behaviour is worth lies in [0, 1]; a return is that
plus an offset and noise, times a scale. Writes the JSON file; the tables in docs/bandits.md and the picture
docs/results/bandits.png are written from it (with --only-page alone).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sparring.bandit import Control, Controller, Coordinate, Selector, Space, make
from sparring.bandit.registry import SELECTORS
from sparring.bandit.settings import contemporaries
from sparring.evaluation.statistics import interval
from sparring.ops import keys

ROOT = Path(__file__).resolve().parents[1]
ROWS, STEPS = 64, 250
BEGIN, END = "<!-- suite begins -->", "<!-- suite ends -->"
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
    quality: int = 0
    """which of `QUALITIES`"""
    drifts: bool = True
    offset: float = 0.0
    noise: float = 0.5
    growth: float = 100.0
    """how much larger returns are at the end than at the beginning"""
    cells: tuple[int, ...] | None = None
    """the table that all selectors share; None: GDI's have its fine grid, the others 10 × 10 × 6"""
    main: bool = True
    """one of the five of the target"""


QUALITIES = (separable, mixture, needle)
WORLDS = {
    "stationary": World("the optimum stays, returns mostly above 0", drifts=False, growth=1.0),
    "drifting": World("the optimum crosses the range, returns grow a hundredfold"),
    "negative": World("drifting, 1.5 lower: nearly all returns below 0", offset=-1.5),
    "noisy": World("negative, with three times the noise", offset=-1.5, noise=1.5),
    "one of 600": World(
        "one good combination of 10 × 10 × 6 cells", quality=2, growth=1.0, noise=0.1, cells=GRID
    ),
    "noisy, positive": World("drifting, with three times the noise", noise=1.5, main=False),
    "mixture": World("negative; the third coordinate mixes the other two", 1, offset=-1.5, main=False),
    "600 in a row": World(
        "one good value among 600 of a single coordinate", 2, growth=1.0, noise=0.1, cells=(600,), main=False
    ),
}
TRAINING = "thompson_in_training"
"""The default as algorithms make it, which remembers and ranks against fewer episodes."""
NAMES = ("thompson", TRAINING, *(name for name in SELECTORS if name != "thompson"))
CONTROLS = ("uniform", "fixed", "ladder")


def selector(name: str, world: World, **options: Any) -> Selector:
    cells = world.cells or (FINE if name.startswith("gdi") else GRID)
    table = flat_space() if len(cells) == 1 else space(cells)
    if name == "sw_ucb" and world.cells:
        options = {"arms": 600, **options}  # where 600 arms are the question, it gets them all
    if name == "fixed":
        options["point"] = (299.0,) if len(cells) == 1 else (0.5, 0.5, 0.5)
    if name == TRAINING:
        name, told = "thompson", contemporaries("thompson", table, ROWS)
        options = {option: int(number) for option, number in told.items()} | options
    return make(name, table, **options)


@partial(jax.jit, static_argnums=(0, 1))
def play(chooser: Selector, steps: int, world: dict[str, Any], seeds: jax.Array) -> jax.Array:
    """What the choices of every seed and step were worth on average, [seeds, steps]."""
    controller = Controller(chooser)
    everyone = jnp.ones(ROWS, bool)
    one_axis = len(chooser.space.names) == 1

    def run(seed: jax.Array) -> jax.Array:
        root = jax.random.wrap_key_data(jnp.stack([jnp.uint32(7), seed]))
        hidden = keys.derive(root, 0)

        def step(control: Control, t: jax.Array) -> tuple[Control, jax.Array]:
            part = t / steps
            at = jnp.where(world["drifts"], wandering(hidden, part), still(hidden, part))
            if one_axis:
                quality = needle(control.choice.point, at, hidden)
            else:
                quality = jax.lax.switch(world["quality"], QUALITIES, control.choice.point, at, hidden)
            noise = world["noise"] * keys.normal(keys.derive(keys.derive(root, 1), t), (ROWS,))
            returns = world["growth"] ** part * (world["offset"] + quality + noise)
            key = keys.derive(keys.derive(root, 2), t)
            return controller.turn(control, returns, everyone, None, key), quality.mean()

        return jax.lax.scan(step, controller.start(keys.derive(root, 3), ROWS), jnp.arange(steps))[1]

    return jax.lax.map(run, seeds)


def played(name: str, world: World, seeds: int, steps: int = STEPS, **options: Any) -> np.ndarray:
    numbers = {
        "quality": jnp.int32(world.quality),
        "drifts": jnp.bool_(world.drifts),
        **{k: jnp.float32(getattr(world, k)) for k in ("offset", "noise", "growth")},
    }
    return np.asarray(
        play(selector(name, world, **options), steps, numbers, jnp.arange(seeds, dtype=jnp.uint32))
    )


def measured(seeds: int, names: Sequence[str], found: dict[str, Any]) -> dict[str, Any]:
    """For every world and selector: quality of all episodes and of the last quarter by seed, and a curve."""
    for world_name, world in WORLDS.items():
        kept = found.get(world_name, {}).get("selectors", {})
        found[world_name] = {"text": world.text, "main": world.main, "selectors": kept}
        for name in names:
            quality = played(name, world, seeds)
            last = quality[:, -(STEPS // 4) :].mean(axis=1)
            blocks = quality.mean(axis=0).reshape(50, -1).mean(axis=1)
            found[world_name]["selectors"][name] = {
                "all": quality.mean(axis=1).round(5).tolist(),
                "last": last.round(5).tolist(),
                "curve": blocks.round(4).tolist(),
            }
            print(f"{world_name:16} {name:19} {quality.mean():.3f} {last.mean():.3f}", flush=True)
    return {"rows": ROWS, "episodes": ROWS * STEPS, "seeds": seeds, "worlds": found}


def table(result: dict[str, Any]) -> str:
    """Quality of the last quarter and regret of all episodes, worlds by selectors, in Markdown."""
    worlds = result["worlds"]
    lines = [
        f"{result['episodes']:,} episodes on {result['rows']} rows, {result['seeds']} seeds. IQM over "
        "the seeds of what the choices of the last quarter of the episodes were worth (0 to 1), with its "
        "95 % interval; bold is the best, *slanted* is below uniform.",
        "",
        "| world | " + " | ".join(f"`{name}`" for name in NAMES) + " |",
        "|---|" + "---|" * len(NAMES),
    ]
    for world_name, world in worlds.items():
        seen = {name: interval(np.asarray(world["selectors"][name]["last"])) for name in NAMES}
        best = max(seen, key=lambda name: seen[name].value)
        cells = []
        for name, found in seen.items():
            mark = "**" if name == best else "*" if found.value < seen["uniform"].value else ""
            cells.append(f"{mark}{found.value:.3f}{mark} [{found.low:.3f}, {found.high:.3f}]")
        lines.append(f"| {world_name}{'' if world['main'] else ' °'} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "Regret: what an episode lost against the best point, mean over all episodes and seeds.",
        "",
    ]
    lines += ["| world | " + " | ".join(f"`{name}`" for name in NAMES) + " |", "|---|" + "---|" * len(NAMES)]
    for world_name, world in worlds.items():
        regrets = [1.0 - float(np.mean(world["selectors"][name]["all"])) for name in NAMES]
        lines.append(f"| {world_name} | " + " | ".join(f"{regret:.3f}" for regret in regrets) + " |")
    lines += ["", *(f"- **{name}**: {world['text']}." for name, world in worlds.items())]
    lines += ["", "° not one of the five worlds that the target names.", "", *verdict(worlds)]
    return "\n".join(lines)


def verdict(worlds: dict[str, Any]) -> list[str]:
    """How far the default is from the best of each world, and which selectors are below uniform."""
    lines = ["The default against the best of each world (last quarter, IQM), and who is below uniform:", ""]
    for world_name, world in worlds.items():
        seen = {name: interval(np.asarray(world["selectors"][name]["last"])) for name in NAMES}
        value = {name: found.value for name, found in seen.items()}
        others = [value[name] for name in NAMES if name != TRAINING]
        best = max((name for name in NAMES if name != TRAINING), key=lambda name: value[name])
        gap, trained = (100.0 * (1.0 - value[name] / max(others)) for name in ("thompson", TRAINING))
        below = [
            f"`{n}`{'' if seen[n].high < value['uniform'] else ' (inside its interval)'}"
            for n in NAMES
            if n not in CONTROLS and value[n] < value["uniform"]
        ]
        place = "is the best" if best == "thompson" else f"{gap:.1f} % below `{best}`"
        as_trained = (
            f"with training's options {abs(trained):.1f} % {'below' if trained > 0 else 'above'} the best"
        )
        lines.append(f"- {world_name}: {place}; {as_trained}; below uniform: {', '.join(below) or 'none'}")
    return lines


def draw(result: dict[str, Any], out: Path) -> None:
    """Quality over the episodes, one panel per world."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    worlds = result["worlds"]
    figure, axes = plt.subplots(2, 4, figsize=(16, 7), sharex=True, constrained_layout=True)
    looks = {
        "thompson": ("#1b6ca8", "-"),
        TRAINING: ("#1b6ca8", "--"),
        "sw_ucb": ("#e08214", "-"),
        "gdi_tiles": ("#2a9d5c", "-"),
        "gdi_tiles_faithful": ("#2a9d5c", ":"),
        "lbc_regions": ("#9b4dca", "-"),
        "uniform": ("black", "-"),
        "fixed": ("grey", "--"),
        "ladder": ("grey", ":"),
    }
    for axis, (world_name, world) in zip(axes.flat, worlds.items(), strict=True):
        for name in NAMES:
            curve = world["selectors"][name]["curve"]
            x = (np.arange(len(curve)) + 0.5) / len(curve) * result["episodes"] / 1000
            axis.plot(x, curve, color=looks[name][0], linestyle=looks[name][1], label=name, linewidth=1.6)
        axis.set_title(world_name)
        axis.set_ylim(-0.02, 1.0)
        axis.grid(alpha=0.25)
    for axis in axes[:, 0]:
        axis.set_ylabel("worth of the choices")
    for axis in axes[1]:
        axis.set_xlabel("thousand episodes")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=len(NAMES))
    figure.savefig(out, dpi=110)


def rewrite(page: Path, text: str) -> None:
    """Puts the text between the page's markers."""
    before, rest = page.read_text().split(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "bandits.json")
    parser.add_argument(
        "--selector", action="append", choices=NAMES, help="only these, into the file there is"
    )
    parser.add_argument(
        "--only-page", action="store_true", help="write page and picture of the file that is there"
    )
    a = parser.parse_args()
    if not a.only_page:
        before = json.loads(a.out.read_text()) if a.selector else {"worlds": {}}
        if a.selector and before["seeds"] != a.seeds:
            parser.error(
                f"the file holds {before['seeds']} seeds: give --seeds {before['seeds']} to add to it"
            )
        result = measured(a.seeds, a.selector or NAMES, before["worlds"])
        a.out.write_text(json.dumps(result) + "\n")
    result = json.loads(a.out.read_text())
    draw(result, a.out.with_suffix(".png"))
    rewrite(ROOT / "docs" / "bandits.md", table(result))


if __name__ == "__main__":
    main()
