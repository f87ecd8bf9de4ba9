"""Where a run's time went, and what that says: the time split and a sentence about the bottleneck."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sparring.metrics import sqlite
from sparring.metrics.advice import Commands
from sparring.metrics.health import Advice

WINDOW = "time/split_seconds"
IDLE = "time/device_idle"
COMPUTING = ("act", "update", "fused")
"""Kinds of work that the device does."""
KINDS = ("env", "act", "update", "fused", "transfer", "compile", "evaluation", "checkpoint", "other")
LEAST_SECONDS = 3.0
"""Wall time below which a split says nothing."""
LARGE = 0.4
"""Share of the time that makes a kind the bottleneck."""
NOTICED = 0.2
"""Share of the time that waiting for evaluations or checkpoints may take."""
SHORT_COMPILE = 0.5
"""Share of compilation above which a run is too short for another verdict."""
MOST_ROWS = 64
"""Environments outside JAX beyond which more of them are not proposed."""


class Performance(NamedTuple):
    """What a run spent its time on, and what to do about it."""

    seconds: float
    """wall time that the shares are of"""
    shares: dict[str, float]
    device_idle: float
    bound: str
    """the kind of work that limits the run; `nothing` where no change would help, `unknown` for too little"""
    sentence: str
    command: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "seconds": self.seconds,
            "shares": self.shares,
            "device_idle": self.device_idle,
            "bound": self.bound,
            "sentence": self.sentence,
            "command": self.command,
        }


def shares(spent: Mapping[str, float], wall: float) -> dict[str, float]:
    """Seconds by kind as the metrics `time/…`: shares of the wall time, the rest of which is `other`.

    Clocks of different kinds may overlap a little, so shares are cut where they would exceed the whole.
    """
    whole = max(wall, sum(spent.values()), 1e-9)
    found = {f"time/{kind}": max(seconds, 0.0) / whole for kind, seconds in spent.items()}
    busy = sum(found.get(f"time/{kind}", 0.0) for kind in COMPUTING)
    found["time/other"] = max(1.0 - sum(found.values()), 0.0)
    return {WINDOW: wall, **found, IDLE: max(1.0 - busy, 0.0)}


def total(records: Iterable[tuple[int, int, Mapping[str, float]]]) -> tuple[float, dict[str, float]]:
    """The wall time of all records that have a split, and each kind's share of it; longer ones weigh more."""
    wall = 0.0
    seconds: dict[str, float] = defaultdict(float)
    for _, _, values in records:
        window = values.get(WINDOW, math.nan)
        if not window > 0 or not math.isfinite(window):
            continue
        wall += window
        for kind in KINDS:
            share = values.get(f"time/{kind}", 0.0)
            seconds[kind] += window * share if 0.0 <= share <= 1.0 else 0.0
    return wall, {kind: seconds[kind] / wall for kind in KINDS if seconds[kind] > 0}


def recorded(path: Path) -> list[tuple[int, int, dict[str, float]]]:
    """The time splits in a run's metrics file, as `judge` takes them; the first seed has the run's."""
    rows: dict[int, dict[str, float]] = {}
    for metric in (WINDOW, *(f"time/{kind}" for kind in KINDS)):
        curve = sqlite.read(path, metric)
        for step, value in zip(curve.steps.tolist(), curve.values.tolist(), strict=True):
            rows.setdefault(step, {})[metric] = value
    return [(step, 0, values) for step, values in sorted(rows.items())]


def judge(
    records: Iterable[tuple[int, int, Mapping[str, float]]],
    config: Mapping[str, Any],
    commands: Commands,
    device: str = "",
) -> Performance | None:
    """A verdict on a run's speed; None when it has no time split. `device` is what jax calls it."""
    wall, parts = total(records)
    if not parts:
        return None
    idle = max(1.0 - sum(parts.get(kind, 0.0) for kind in COMPUTING), 0.0)
    if wall < LEAST_SECONDS:
        words = f"The run took {wall:.1f} s: too little to say where time goes."
        return Performance(wall, parts, idle, "unknown", words)
    compiling = parts.get("compile", 0.0)
    if compiling >= SHORT_COMPILE:
        bound, running = "compile", parts
    else:  # what comes once is left out of what goes on
        running = {kind: share / (1.0 - compiling) for kind, share in parts.items() if kind != "compile"}
        bound = _bottleneck(running)
    words, advice = _explain(bound, running, config, _is_accelerator(device))
    waits = 1.0 - sum(running.get(kind, 0.0) for kind in COMPUTING)
    if _is_accelerator(device) and waits >= 0.5 and bound not in ("compile", "nothing", *COMPUTING):
        words = f"The {device} is idle {waits:.0%} of the time. {words}"
    if bound != "compile" and compiling >= 0.05:
        words += f" (Compiling, {compiling:.0%} of all, is left out.)"
    command = next((found for piece in advice if (found := commands.of(piece))), "")
    return Performance(wall, parts, idle, bound, words, command)


def _bottleneck(parts: Mapping[str, float]) -> str:
    """The kind to look at: a wait that is worth noticing before work that is needed."""
    waits = {kind: parts.get(kind, 0.0) for kind in ("evaluation", "checkpoint")}
    worst = max(waits, key=lambda kind: waits[kind])
    if waits[worst] >= NOTICED:
        return worst
    largest = max(parts, key=lambda kind: parts[kind])
    return largest if parts[largest] >= LARGE else "nothing"


def _explain(
    bound: str, parts: Mapping[str, float], config: Mapping[str, Any], accelerated: bool
) -> tuple[str, tuple[Advice, ...]]:
    """A sentence about the bottleneck, and what could be tried, best first."""
    share = f"{parts.get(bound, 0.0):.0%}"
    rows = config.get("n_envs")
    rows = rows if isinstance(rows, int) and rows > 0 else 1
    more = str(min(max(8, 2 * rows), MOST_ROWS))
    wider = (("n_envs", more),) if rows < MOST_ROWS else ()
    match bound:
        case "env":
            few = " with one copy" if rows == 1 else f" with {rows} copies"
            apart = (("backend", "workers"),) if config.get("backend") != "workers" else ()
            how = (
                "step more copies at once, in processes of their own"
                if wider or apart
                else "it must become faster itself; EnvPool or a JAX environment would help"
            )
            settings = (*wider, *apart)
            advice = (Advice(how, "more steps/s", settings),) if settings else ()
            return f"The environment takes {share} of the time{few}: {how}.", advice
        case "act":
            why = "one call for every step serves " + ("one environment" if rows == 1 else f"{rows}")
            return (
                f"Acting takes {share} of the time: {why}. More environments share the cost of a call"
                + (", and for a small network the CPU is quicker than a GPU." if accelerated else "."),
                (Advice("fewer calls per step", "more steps/s", wider),) if wider else (),
            )
        case "update":
            where = "on the accelerator" if accelerated else "on the CPU"
            rest = "" if accelerated else " A GPU (--device cuda) pays for large networks and batches."
            words = f"Learning takes {share} of the time {where}: the run is limited by its updates.{rest}"
            lighter = (
                Advice("fewer gradient steps", "more steps/s", (("n_epochs", "*0.5"),)),
                Advice("fewer gradient steps", "more steps/s", (("gradient_steps", "*0.5"),)),
            )
            return words, tuple(a for a in lighter if _whole_after(config, a))
        case "fused":
            return (
                f"The device is busy {share} of the time with environment, acting and learning in one "
                "program: nothing waits, and only less work per step would be faster.",
                (),
            )
        case "transfer":
            return (
                f"Copying takes {share} of the time: rollouts and replayed batches are large. A replay on "
                "the device saves most of it, where it fits.",
                (Advice("keep the replay on the device", "no copies", (("buffer", "device"),)),),
            )
        case "compile":
            return (
                f"Compiling took {share} of the time. A longer run hides it, and a second run of the same "
                "kind finds its programs on disk.",
                (Advice("look at the compile cache", "a cache in use", verb="sparring doctor"),),
            )
        case "evaluation":
            return (
                f"Training waits {share} of the time for evaluations: let a process of its own make them.",
                (Advice("evaluate beside training", "no waiting", (("evaluation", "background"),)),),
            )
        case "checkpoint":
            return (
                f"Training waits {share} of the time for checkpoints: save less often.",
                (Advice("checkpoint only at the end", "no waiting", (("checkpoint_freq", "-1"),)),),
            )
        case "other":
            return (
                f"{share} of the time goes to neither environment nor networks: callbacks, displays, or a "
                "machine that is shared.",
                (Advice("look at the machine", "no problem", verb="sparring doctor"),),
            )
    return "The time is spread over several kinds of work: there is no single bottleneck.", ()


def _whole_after(config: Mapping[str, Any], advice: Advice) -> bool:
    """Whether halving a count leaves a whole number above zero."""
    value = config.get(advice.settings[0][0])
    return isinstance(value, int) and not isinstance(value, bool) and value >= 2 and value % 2 == 0


def _is_accelerator(device: str) -> bool:
    return bool(device) and device.lower() != "cpu"
