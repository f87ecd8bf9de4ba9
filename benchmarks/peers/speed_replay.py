"""Speed of peers' replay buffers at 10^6 transitions of Hopper's shapes, on one core, as one JSON line.

    python benchmarks/peers/speed_replay.py [--capacity N] [--repeats N]

Medians in microseconds of one call each on a full buffer: SB3's `ReplayBuffer`, whose samples are torch
tensors, and cpprb's `PrioritizedReplayBuffer`, whose samples are numpy arrays. The names are those of
`benchmarks/speed_replay.py`. cpprb seems to put part of an update off until the next sample, which takes
longer after one: `per_sample_update_256` is what to compare.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from cpprb import PrioritizedReplayBuffer
from gymnasium.spaces import Box
from stable_baselines3.common.buffers import ReplayBuffer

OBS, ACTION, BATCH = 11, 3, 256
FILL = 10_000  # transitions that are added at a time to fill a buffer


def transitions(count: int) -> dict[str, np.ndarray]:
    """So many steps of one environment, by cpprb's names."""
    random = np.random.default_rng(0)
    return {
        "obs": random.normal(size=(count, OBS)).astype(np.float32),
        "act": random.normal(size=(count, ACTION)).astype(np.float32),
        "rew": random.normal(size=count).astype(np.float32),
        "next_obs": random.normal(size=(count, OBS)).astype(np.float32),
        "done": np.zeros(count, np.float32),
    }


def median(call: Callable[[], Any], repeats: int) -> float:
    """Microseconds of the call."""
    for _ in range(10):
        call()
    seconds = []
    for _ in range(repeats):
        begun = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begun)
    return round(1e6 * float(np.median(seconds)), 1)


def sb3(capacity: int, repeats: int) -> dict[str, float]:
    """Uniform replay of SB3."""
    buffer = ReplayBuffer(
        capacity, Box(-np.inf, np.inf, (OBS,), np.float32), Box(-1, 1, (ACTION,), np.float32), device="cpu"
    )
    step = transitions(1)
    infos: list[dict[str, Any]] = [{}]

    def add() -> None:
        buffer.add(step["obs"], step["next_obs"], step["act"], step["rew"], step["done"], infos)

    for _ in range(capacity):
        add()
    assert buffer.full
    return {"add_one": median(add, repeats), "sample_256": median(lambda: buffer.sample(BATCH), repeats)}


def cpprb(capacity: int, repeats: int) -> dict[str, float]:
    """Prioritised replay of cpprb."""
    shapes = {"obs": OBS, "act": ACTION, "rew": 1, "next_obs": OBS, "done": 1}
    buffer = PrioritizedReplayBuffer(capacity, {name: {"shape": shape} for name, shape in shapes.items()})
    random = np.random.default_rng(1)
    part = transitions(FILL)
    for first in range(0, capacity, FILL):
        buffer.add(**part)
        buffer.update_priorities(np.arange(first, first + FILL), np.abs(random.normal(size=FILL)))
    assert buffer.get_stored_size() == capacity
    one, many = ({name: value[:count] for name, value in part.items()} for count in (1, BATCH))
    priorities = np.abs(random.normal(size=BATCH))
    batches = [buffer.sample(BATCH)["indexes"] for _ in range(64)]
    turn = iter(range(10 + repeats))

    def sample_and_update() -> None:
        buffer.update_priorities(buffer.sample(BATCH)["indexes"], priorities)

    return {
        "per_add_one": median(lambda: buffer.add(**one), repeats),
        "per_add_256": median(lambda: buffer.add(**many), repeats),
        "per_sample_256": median(lambda: buffer.sample(BATCH), repeats),
        "per_update_256": median(
            lambda: buffer.update_priorities(batches[next(turn) % len(batches)], priorities), repeats
        ),
        "per_sample_update_256": median(sample_and_update, repeats),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--capacity", type=int, default=1_000_000, help="transitions held, a multiple of 10,000"
    )
    parser.add_argument("--repeats", type=int, default=2000, help="calls of each kind")
    args = parser.parse_args()
    if args.capacity % FILL:
        parser.error(f"--capacity must be a multiple of {FILL}")
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    packages = ("stable-baselines3", "cpprb", "torch", "numpy")
    line = {
        "capacity": args.capacity,
        "sb3": sb3(args.capacity, args.repeats),
        "cpprb": cpprb(args.capacity, args.repeats),
        "versions": {name: version(name) for name in packages} | {"python": platform.python_version()},
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
