"""How much memory a replay takes, and whether there is that much."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jax

from sparring.errors import ConfigError
from sparring.types import Replay, Transition

MEMINFO = Path("/proc/meminfo")
CGROUPS = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
"""folder, limit and use of memory, in the second and the first version of control groups"""


def replay_bytes(replay: Replay, example: Transition) -> int:
    """Bytes of a replay's memory for rollouts like the example, nothing being allocated."""
    return bytes_of(jax.eval_shape(replay.init, example))


def bytes_of(arrays: Any) -> int:
    """Bytes of all arrays of a tree, or of arrays of such shapes."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(arrays))


def same_layout(one: Any, other: Any) -> bool:
    """Whether two trees of arrays differ in nothing but their numbers."""

    def shapes(tree: Any) -> Any:
        return jax.tree.map(lambda x: (tuple(x.shape), str(x.dtype)), tree)

    return bool(shapes(one) == shapes(other))


def told(driver: Any, config: Any) -> str:
    """A sentence about the replay of a driver for whoever starts a run."""
    place = "in files" if getattr(config, "buffer_folder", "") else "taken now"
    copies, held = len(driver.seeds), _capacity(driver, config)
    seeds, together = (f" for each of {copies} seeds", " together") if copies > 1 else ("", "")
    more = ""
    if held > config.buffer_size:
        asked = f"buffer_size={config.buffer_size:,}"
        more = f" (more than {asked}: every row needs room for two rollouts or more)"
    taken = f"{_readable(driver.replay_bytes)}{together}, {place}; it does not grow."
    return f"Replay: up to {held:,} steps{more}{seeds}, {taken}"


def _capacity(driver: Any, config: Any) -> int:
    """Steps that the replay of a driver has room for: whole rollouts, and a few at least."""
    algo = driver.algo
    if not hasattr(algo.replay, "steps"):
        return int(config.buffer_size)
    rollout = int(algo.plan.rollout)
    rows = driver.steps_per_iteration // rollout
    return int(algo.replay.steps(rollout, rows)) * rows


def check_fits(needed: int, free: int | None, what: str, buffer_size: int, copies: int = 1) -> None:
    """Refuses a buffer that takes more than is free; None, not knowing, lets everything pass.

    `needed` is for all copies, those of other seeds and those that a program makes.
    """
    if free is None or needed <= free:
        return
    fits = buffer_size * free // needed
    seeds = f" in {copies} copies" if copies > 1 else ""
    raise ConfigError(
        f"buffer_size={buffer_size}{seeds} takes {_readable(needed)} of {what}, but {_readable(free)} are "
        "free. "
        + (f"Use a buffer_size of at most {fits}." if fits > 0 else "Not even one transition would fit.")
    )


def free_bytes() -> int | None:
    """Bytes of memory that this process may still take; None where the system does not say."""
    known = (_available(MEMINFO), *(_left(*group) for group in CGROUPS))
    return min((x for x in known if x is not None), default=None)


def _available(meminfo: Path) -> int | None:
    """What the kernel says is available without swapping."""
    for line in _lines(meminfo):
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None


def _left(folder: Path, limit: str, use: str) -> int | None:
    """What a control group leaves, its idle file cache included; None without a limit."""
    allowed, used = _lines(folder / limit), _lines(folder / use)
    if not allowed or not used or not allowed[0].strip().isdigit():
        return None
    idle = [int(x.split()[1]) for x in _lines(folder / "memory.stat") if x.startswith("inactive_file ")]
    return max(int(allowed[0]) - int(used[0]) + sum(idle), 0)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _readable(count: int) -> str:
    """Bytes with a unit, and exactly."""
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.2f} {unit} ({count} bytes)"
    return f"{count} bytes"
