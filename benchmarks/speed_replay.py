"""Speed of the replays at 10^6 transitions of Hopper's shapes, on one core. Prints one JSON line.

python benchmarks/speed_replay.py [--capacity N] [--repeats N]

Medians in microseconds of one compiled call each, from numpy in to results ready, with the memory donated
as the host driver does. `…_at_10k` are the same calls on a hundredth of the capacity: were the memory copied,
they would be much faster.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from sparring.drivers.platform import prepare
from sparring.ops.keys import several
from sparring.replay.prioritised import Prioritised
from sparring.replay.ring import Ring
from sparring.types import Batch, Memory, Report, Transition

OBS, ACTION, BATCH = 11, 3, 256
SMALL = 10_000


def transitions(count: int) -> Transition:
    """So many steps of one row, as the host driver hands them over."""
    random = np.random.default_rng(0)
    return Transition(
        obs=random.normal(size=(count, 1, OBS)).astype(np.float32),
        action=random.normal(size=(count, 1, ACTION)).astype(np.float32),
        reward=random.normal(size=(count, 1)).astype(np.float32),
        terminated=np.zeros((count, 1), bool),
        truncated=np.zeros((count, 1), bool),
        next_obs=random.normal(size=(count, 1, OBS)).astype(np.float32),
        extras=(),
        first=np.zeros((count, 1), bool),
    )


def median(call: Callable[[], Any], repeats: int) -> float:
    """Microseconds of the call, results ready."""
    for _ in range(10):
        jax.block_until_ready(call())
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(call())
        seconds.append(time.perf_counter() - began)
    return round(1e6 * float(np.median(seconds)), 1)


class Bench:
    """A full memory and the compiled calls on it."""

    def __init__(self, replay: Ring | Prioritised, part: Transition, repeats: int) -> None:
        self.replay, self.part, self.repeats = replay, part, repeats
        self.memory = self._full()
        self.turn = 0
        keys = several(jax.random.key(0), 64)
        self.keys = [keys[i] for i in range(64)]
        self.errors = np.abs(np.random.default_rng(1).normal(size=(64, BATCH))).astype(np.float32)
        self._add = jax.jit(replay.add, donate_argnums=0)
        self._sample = jax.jit(replay.sample)
        self._update = jax.jit(self._feedback, donate_argnums=0)
        self._both = jax.jit(self._sample_and_feedback, donate_argnums=0)

    def _full(self) -> Memory:
        """Everything written, by one large rollout."""
        memory = self.replay.init(self.part)
        size = memory.data.data.reward.shape[0]
        return jax.jit(self.replay.add, donate_argnums=0)(memory, transitions(size))

    def _next(self) -> int:
        self.turn = (self.turn + 1) % 64
        return self.turn

    def add(self) -> float:
        def call() -> Any:
            self.memory = self._add(self.memory, self.part)
            return self.memory

        return median(call, self.repeats)

    def sample(self) -> float:
        return median(lambda: self._sample(self.memory, self.keys[self._next()]), self.repeats)

    def _feedback(self, live: Any, data: Any, batch: Batch, error: Any) -> Any:
        return self.replay.feedback(Memory(data, live), batch, Report({}, error))

    def update(self) -> float:
        batches = [self._sample(self.memory, key)._replace(data=()) for key in self.keys]

        def call() -> Any:
            i = self._next()
            live = self._update(self.memory.live, self.memory.data, batches[i], self.errors[i])
            self.memory = self.memory._replace(live=live)
            return live

        return median(call, self.repeats)

    def _sample_and_feedback(self, live: Any, data: Any, key: Any, error: Any) -> tuple[Any, Batch]:
        batch = self.replay.sample(Memory(data, live), key)
        return self._feedback(live, data, batch, error), batch

    def sample_update(self) -> float:
        def call() -> Any:
            i = self._next()
            live, batch = self._both(self.memory.live, self.memory.data, self.keys[i], self.errors[i])
            self.memory = self.memory._replace(live=live)
            return live, batch

        return median(call, self.repeats)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--capacity", type=int, default=1_000_000, help="transitions held")
    parser.add_argument("--repeats", type=int, default=2000, help="calls of each kind")
    a = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    prepare("cpu")
    one, many = transitions(1), transitions(BATCH)
    uniform = Bench(Ring(a.capacity, BATCH), one, a.repeats)
    result = {"add_one": uniform.add(), "sample_256": uniform.sample()}
    del uniform
    result["add_256"] = Bench(Ring(a.capacity, BATCH), many, a.repeats).add()
    prioritised = Bench(Prioritised(a.capacity, BATCH), one, a.repeats)
    result["per_add_one"] = prioritised.add()
    result["per_sample_256"] = prioritised.sample()
    result["per_update_256"] = prioritised.update()
    result["per_sample_update_256"] = prioritised.sample_update()
    del prioritised
    result["per_add_256"] = Bench(Prioritised(a.capacity, BATCH), many, a.repeats).add()
    small = Bench(Prioritised(SMALL, BATCH), one, a.repeats)
    result["add_one_at_10k"] = Bench(Ring(SMALL, BATCH), one, a.repeats).add()
    result["per_add_one_at_10k"] = small.add()
    result["per_sample_update_256_at_10k"] = small.sample_update()
    print(json.dumps({"peer": "sparring", "capacity": a.capacity, **result, "jax": jax.__version__}))


if __name__ == "__main__":
    main()
