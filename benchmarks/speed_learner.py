"""Speed of GDI's learner beside what the device could do: updates of 64 sequences of 80 steps, as JSON.

python benchmarks/speed_learner.py --out learner.json [--cores transformer s5]

An update draws its batch from a replay that was filled by acting, computes V-trace, Retrace and all
gradients, and applies them; a block of updates is one dispatch. The floor of an update is the larger of its
operations over the rate of a large matrix product and its bytes over the rate of a large copy, both as the
compiler counts them for this program and as this device reaches them in this run. How long the device was
busy comes from a trace of its kernels. Needs only jax, equinox, optax and numpy.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from sparring.algos.gdi import GDI, GDIConfig
from sparring.drivers import loop
from sparring.drivers.fused import Fused
from sparring.drivers.platform import prepare
from sparring.envs import registry

FILLED = 4
"""batches that the replay holds at the least before it is timed"""


def seconds(call: Callable[[], Any], repeat: int) -> float:
    """The median time of a call, waited for."""
    jax.block_until_ready(call())
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def ceilings(size: int, copied: int) -> dict[str, float]:
    """Operations per second of a square matrix product, and bytes per second of a copy (read and written)."""
    x = jax.random.normal(jax.random.key(0), (size, size))
    y = jax.random.normal(jax.random.key(1), (copied // 4,))
    multiply, copy = jax.jit(jnp.matmul), jax.jit(lambda y: y + 1.0)
    return {
        "operations_per_second": 2 * size**3 / seconds(lambda: multiply(x, x), 9),
        "bytes_per_second": 2 * y.nbytes / seconds(lambda: copy(y), 9),
    }


def busy(call: Callable[[], Any]) -> float | None:
    """The share of a call's time in which the device ran a kernel; None where the trace shows no kernels."""
    with tempfile.TemporaryDirectory() as place:
        with jax.profiler.trace(place):
            jax.block_until_ready(call())
        files = list(Path(place).rglob("*.trace.json.gz"))
        if not files:
            return None
        events = json.loads(gzip.decompress(files[0].read_bytes()))["traceEvents"]
    names = {
        (e["pid"], e.get("tid")): e["args"]["name"]
        for e in events
        if e.get("name") in ("process_name", "thread_name") and e.get("ph") == "M"
    }
    spans = sorted(
        (e["ts"], e["ts"] + e["dur"])
        for e in events
        if e.get("ph") == "X" and names.get((e["pid"], e["tid"]), "").startswith("Stream")
    )
    if not spans:
        return None
    kernels, end = 0.0, spans[0][0]
    for start, stop in spans:
        kernels += max(stop - max(start, end), 0.0)
        end = max(end, stop)
    return kernels / (end - spans[0][0])


def measure(core: str, a: argparse.Namespace, most: dict[str, float]) -> dict[str, Any]:
    """One core's learner."""
    env = registry.make("MaskedCartPole-v1")
    config = GDIConfig(
        core=core,
        core_size=a.size,
        core_layers=a.layers,
        core_window=a.length,
        net_arch=(a.size, a.size),
        batch_size=a.batch,
        sequence_length=a.length,
        train_freq=a.length,
        gradient_steps=a.updates,
        learning_starts=a.batch * a.length,
        buffer_size=2 * FILLED * a.batch * a.length,
    )
    algo = GDI(replace(env.spec, rows=a.batch), config, 1e6)
    driver = Fused(algo, env, a.batch, (0,))
    driver.advance(FILLED)
    algo, learner = driver.algo, driver.worlds[0].learner
    del driver

    def block(algo: GDI, train: Any, memory: Any, key: Any) -> Any:
        return loop.updates(algo, train, memory, key)[:2]

    key = jax.random.key(0)
    alone = replace(algo, config=replace(config, gradient_steps=1))
    counted = jax.jit(block).lower(alone, learner.train, learner.replay, key).compile().cost_analysis()
    program = jax.jit(block).lower(algo, learner.train, learner.replay, key).compile()

    def call() -> Any:
        """As a learner works: the next block is asked for before the last one ended."""
        train, memory = learner.train, learner.replay
        for number in range(a.blocks):
            train, live = program(algo, train, memory, jax.random.fold_in(key, number))
            memory = memory._replace(live=live)
        return train

    update = seconds(call, a.repeat) / (a.blocks * a.updates)
    operations, moved = counted["flops"], counted["bytes accessed"]
    floor = max(operations / most["operations_per_second"], moved / most["bytes_per_second"])
    return {
        "core": core,
        "seconds_per_update": update,
        "steps_per_second": a.batch * a.length / update,
        "operations": operations,
        "bytes": moved,
        "floor_seconds": floor,
        "of_floor": floor / update,
        "kernels_of_wall": busy(call),
        "parameters": sum(x.size for x in jax.tree.leaves(learner.train.nets)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cores", nargs="+", default=["transformer", "s5"])
    parser.add_argument("--batch", type=int, default=64, help="sequences in an update")
    parser.add_argument("--length", type=int, default=80, help="steps of a sequence")
    parser.add_argument("--size", type=int, nargs="+", default=[256, 1024], help="of core and hidden layers")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--updates", type=int, default=32, help="of a block, which is one dispatch")
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--matrix", type=int, default=8192, help="size of the matrix product")
    a = parser.parse_args()
    prepare()
    device = jax.devices()[0]
    most = ceilings(a.matrix, 2**30 if device.platform != "cpu" else 2**26)
    told: dict[str, Any] = {
        "device": f"{device.platform} {device.device_kind}",
        "versions": {"jax": jax.__version__},
        **{name: getattr(a, name) for name in ("batch", "length", "layers", "updates", "blocks", "repeat")},
        **most,
        "results": [],
    }
    for size in list(a.size):
        a.size = size
        for core in a.cores:
            result = {"size": size, **measure(core, a, most)}
            told["results"].append(result)
            print(json.dumps(result), flush=True)
            a.out.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
