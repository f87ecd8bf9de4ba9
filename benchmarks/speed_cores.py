"""Speed of the cores: seconds of one training step by length of the sequence, as JSON and as a picture.

A step is a core's `unroll` over [L, rows, size], a mean-square loss, and its gradient for parameters and
inputs. The cores take turns, so that whatever else the machine does falls on all of them; the median counts.

python benchmarks/speed_cores.py --out cores.json
python benchmarks/speed_cores.py --plot cores.png cores-cpu.json cores-gpu.json

Needs only jax, equinox and numpy; the picture needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from sparring.nets.cores import NAMES, Core, core
from sparring.ops.keys import normal, several, uniform_pair

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
ENDS = 0.01
"""Share of the steps that start an episode."""


def training_step(net: Core, rows: int) -> Callable[..., Any]:
    """The jitted loss and gradient of a core."""

    def loss(net: Core, x: Any, first: Any, target: Any) -> Any:
        outputs, _ = net.unroll(net.start(rows), x, first)
        return jnp.mean(jnp.square(outputs - target))

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))


def seconds(function: Callable[..., Any], *operands: Any) -> float:
    """Seconds of one call, waited for."""
    began = time.perf_counter()
    jax.block_until_ready(function(*operands))
    return time.perf_counter() - began


def measure(nets: dict[str, Core], length: int, rows: int, size: int, repeat: int) -> list[dict[str, Any]]:
    """Times of all cores at one length; a core that does not fit into memory is left out with the reason."""
    x_key, target_key, first_key = several(jax.random.key(length), 3)
    shape = (length, rows, size)
    first = uniform_pair(first_key, length * rows)[:, 0].reshape(length, rows) < ENDS
    data = (normal(x_key, shape), first, normal(target_key, shape))
    steps = {name: training_step(net, rows) for name, net in nets.items()}
    results: dict[str, dict[str, Any]] = {name: {"core": name, "length": length} for name in nets}
    for name, step in steps.items():
        try:
            results[name]["first_call_seconds"] = seconds(step, nets[name], *data)
        except jax.errors.JaxRuntimeError as error:
            results[name]["error"] = str(error).splitlines()[0]
    able = [name for name in nets if "error" not in results[name]]
    times: dict[str, list[float]] = {name: [] for name in able}
    for _ in range(repeat):
        for name in able:
            times[name].append(seconds(steps[name], nets[name], *data))
    for name in able:
        results[name] |= {"seconds": statistics.median(times[name]), "seconds_all": times[name]}
    return list(results.values())


def table(results: Sequence[dict[str, Any]]) -> str:
    """Milliseconds by length and core, and how many times faster S5 is than the GRU."""
    names = list(dict.fromkeys(result["core"] for result in results))
    found = {(result["length"], result["core"]): result.get("seconds") for result in results}
    lines = ["length  " + "".join(f"{name:>13}" for name in names) + f"{'gru / s5':>13}"]
    for length in dict.fromkeys(result["length"] for result in results):
        cells = [found.get((length, name)) for name in names]
        gru, s5 = found.get((length, "gru")), found.get((length, "s5"))
        shown = "".join(f"{'-':>13}" if cell is None else f"{1e3 * cell:>10.2f} ms" for cell in cells)
        lines.append(f"{length:<8}{shown}" + (f"{gru / s5:>13.2f}" if gru and s5 else f"{'-':>13}"))
    return "\n".join(lines)


def plot(target: Path, sources: Sequence[Path]) -> None:
    """A picture of one or several results, side by side on the same scale."""
    try:
        import matplotlib as mpl
    except ImportError:
        sys.exit("The picture needs matplotlib, which is not installed: pip install matplotlib")
    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, len(sources), sharey=True, squeeze=False, figsize=(5.5 * len(sources), 4.2), layout="constrained"
    )
    for axis, source in zip(axes[0], sources, strict=True):
        told = json.loads(source.read_text())
        for name in dict.fromkeys(result["core"] for result in told["results"]):
            timed = [r for r in told["results"] if r["core"] == name and "seconds" in r]
            axis.plot(
                [r["length"] for r in timed], [1e3 * r["seconds"] for r in timed], marker="o", label=name
            )
        lengths = sorted({r["length"] for r in told["results"]})
        axis.set_xscale("log", base=2)
        axis.set_xticks(lengths, [str(length) for length in lengths])
        axis.set_yscale("log")
        axis.set_xlabel("length of the sequence")
        axis.set_title(f"{told['device']}, {told['rows']} rows, size {told['size']}", fontsize=10)
        axis.grid(True, which="both", alpha=0.3)
        axis.legend()
    axes[0][0].set_ylabel("one training step [ms]")
    figure.savefig(target, dpi=150)
    print(f"drawn: {target}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", nargs="*", type=Path, help="JSON files to draw")
    parser.add_argument("--out", type=Path, help="measure, and write this JSON file")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the results into this PNG file")
    parser.add_argument("--cores", nargs="+", choices=NAMES, default=["s5", "gru", "lstm", "transformer"])
    parser.add_argument("--lengths", nargs="+", type=int, default=list(LENGTHS))
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=11)
    a = parser.parse_args()
    if a.out is None and not (a.plot and a.results):
        parser.error("say where to write with --out, or what to draw with --plot FILE and results")
    if a.out is not None:
        device = jax.devices()[0]
        key = jax.random.key(0)
        nets = {
            name: jax.jit(
                lambda key, name=name: core(name, key, a.size, a.size, a.layers, a.heads, a.window)
            )(key)
            for name in a.cores
        }
        told: dict[str, Any] = {
            "case": "cores",
            "device": f"{device.platform} {device.device_kind}",
            "versions": {"jax": jax.__version__},
            **{name: getattr(a, name) for name in ("rows", "size", "layers", "heads", "window", "repeat")},
            "results": [],
        }
        for length in a.lengths:
            told["results"] += measure(nets, length, a.rows, a.size, a.repeat)
            a.out.write_text(
                json.dumps(told, indent=1) + "\n"
            )  # a long run that is stopped has told something
            print(f"length {length} done", file=sys.stderr)
        print(table(told["results"]))
    if a.plot is not None:
        plot(a.plot, [*([a.out] if a.out else []), *a.results])


if __name__ == "__main__":
    main()
