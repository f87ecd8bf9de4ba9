"""What a report knows of a run: read from its folder, of which nothing is taken on trust."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sparring.errors import CheckpointError, ConfigError, StorageError
from sparring.evaluation.statistics import Interval, iqm
from sparring.evaluation.statistics import interval as seed_interval
from sparring.metrics import performance, sqlite
from sparring.metrics.advice import Commands
from sparring.metrics.registry import meaning
from sparring.metrics.sqlite import Curve
from sparring.runs import sealed
from sparring.runs.artefact import AGENT, AGENT_LIMIT
from sparring.runs.checkpoint import MANIFEST, listing
from sparring.runs.directory import CONFIG, RunDirectory, Status
from sparring.web.curves import Band, align, summarise, thin

MOST_POINTS = 500
"""Points of one curve."""
ALL_POINTS = 45_000
"""Points of all curves together, at some 35 bytes each, so that a page stays below two megabytes."""
MOST_METRICS = 120
MOST_ALERTS = 200
MOST_SEED_LINES = 10
SEED_POINTS = 120
LONGEST_TEXT = 2_000
"""Characters of a value that somebody else wrote."""

HEADLINES = ("rollout/ep_rew_mean", "eval/mean_reward", "eval/stochastic_mean_reward")
EVALUATIONS = {"deterministic": "eval/mean_reward", "stochastic": "eval/stochastic_mean_reward"}
FRESH = {"best, fresh episodes": "eval/best_fresh_reward", "last, fresh episodes": "eval/last_fresh_reward"}
GROUPS = {
    "return": "Return",
    "losses": "Losses",
    "training": "Training",
    "distributions": "Distributions",
    "stats": "Statistics",
    "rollout": "Episodes",
    "eval": "Evaluation",
    "env": "Environment",
    "bandit": "Bandit",
    "async": "Actors and learner",
    "other": "Other metrics",
    "time": "Time",
}
CELL = re.compile(r"bandit/(probability|mean|return)/(.+)/(\d{2,4})")
"""A number of one cell of a bandit's coordinate: a row of a map, not a chart of its own."""
MAP_BYTES = 1 << 20
MOST_MAPS = 10
"""Of a run: three coordinates make three pairs."""
MOST_COLUMNS = 80
MOST_SQUARES = 8_000
"""Of one map: one with many cells has fewer columns."""
_QUANTILE = re.compile(r"(.+)[_/](min|max|mean|median|p\d{1,2})")
LEVELS = ("error", "warn", "note")


class Setting(NamedTuple):
    """A resolved setting and where it came from; no source for facts such as the environment."""

    key: str
    value: str
    source: str


class Alert(NamedTuple):
    """Something a health rule saw, from its onset to when it was last seen."""

    rule: str
    level: str
    onset: int
    last: int
    seed: int
    evidence: str
    onset_time: float
    last_time: float


class Score(NamedTuple):
    """An evaluation of all seeds: one mean return each."""

    kind: str
    which: str
    step: int
    by_seed: tuple[float, ...]
    interval: Interval | None
    """IQM over the seeds; None for one seed"""
    evaluations: int
    """how many there were to choose from"""


class Facts(NamedTuple):
    """A run, apart from its curves."""

    label: str
    folder: Path
    algorithm: str
    env: str
    seeds: tuple[int, ...]
    state: str
    steps: int
    goal: int
    message: str
    started: float
    seconds: float | None
    """spent training"""
    settings: tuple[Setting, ...]
    machine: dict[str, str]
    scores: tuple[Score, ...]
    alerts: tuple[Alert, ...] | None
    """None when the run kept none, which is not the same as being well"""
    speed: str = ""
    """where its time went, in a sentence; empty when it was not recorded"""


class Series(NamedTuple):
    """One run's curve of a metric; `seeds` are the curves behind it and `fan` the pairs of quantiles around
    it, where they are shown."""

    run: int
    band: Band
    seeds: tuple[Curve, ...] = ()
    fan: tuple[tuple[np.ndarray, np.ndarray], ...] = ()


class Metric(NamedTuple):
    """A metric and its curves in all runs."""

    name: str
    group: str
    meaning: str
    series: tuple[Series, ...]


class Choices(NamedTuple):
    """With which probability a bandit chose each cell of a coordinate, or what it expects of the cell, over a
    run's first seed."""

    run: int
    kind: str
    """`probability` or `mean`"""
    coordinate: str
    steps: np.ndarray
    values: np.ndarray
    """[cells, steps]"""


class IndexMap(NamedTuple):
    """What an agent earned all over the space of behaviours: by cells of one or two coordinates."""

    run: int
    names: tuple[str, ...]
    values: np.ndarray
    episodes: int


class Story(NamedTuple):
    """Everything a report tells."""

    runs: tuple[Facts, ...]
    metrics: tuple[Metric, ...]
    left_out: int
    """metrics there was no room for"""
    choices: tuple[Choices, ...] = ()
    indices: tuple[IndexMap, ...] = ()


def gather(runs: Sequence[RunDirectory]) -> Story:
    """The facts and curves of some runs, bounded in size however long they trained."""
    tables = [read_curves(run.metrics) for run in runs]
    told = {name for table in tables for name in table}
    names = sorted((name for name in told if CELL.fullmatch(name) is None), key=_order)
    kept = names[:MOST_METRICS]
    curves = sum(name in table for table in tables for name in kept)
    limit = max(min(MOST_POINTS, ALL_POINTS // max(curves, 1)), 12)
    metrics: dict[str, Metric] = {}
    for name in kept:
        part = group(name, names)
        base = _QUANTILE.fullmatch(name)
        if part == "distributions" and base is not None:
            if base[1] not in metrics:
                shown = tuple(_fans(tables, family(base[1], names), limit))
                metrics[base[1]] = Metric(_clip(base[1], 200), part, _spread_of(base[1], names), shown)
        else:
            shown = tuple(_series(tables, name, limit))
            metrics[name] = Metric(_clip(name, 200), part, meaning(name).replace("`", ""), shown)
    facts = [_facts(run, label, t) for run, label, t in zip(runs, labels(runs), tables, strict=True)]
    chosen = [choices for index, table in enumerate(tables) for choices in _choices(index, table)]
    shown_metrics = tuple(m for m in metrics.values() if m.series)
    maps = [found for index, run in enumerate(runs) for found in _index_maps(index, run.behaviours)]
    return Story(tuple(facts), shown_metrics, len(names) - len(kept), tuple(chosen), tuple(maps))


def _index_maps(run: int, path: Path) -> list[IndexMap]:
    """What `sparring behaviours` left; nothing of a file that is not its own."""
    try:
        if path.stat().st_size > MAP_BYTES:
            return []
        told = json.loads(path.read_text(encoding="utf-8"))
        maps = []
        for each in told["maps"][:MOST_MAPS]:
            values = np.atleast_2d(np.array(each["means"], float))
            names = tuple(_clip(str(name), 80) for name in each["names"])
            if values.ndim != 2 or not values.size or len(names) not in (1, 2):
                return []
            maps.append(IndexMap(run, names, values, int(told["episodes"])))
        return maps
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return []


def _choices(run: int, table: Mapping[str, list[Curve]]) -> Iterable[Choices]:
    """What the bandit of a run chose, by coordinate, and how good it took each cell to be."""
    cells: dict[tuple[str, str], dict[int, Curve]] = {}
    for name, seeds in table.items():
        match = CELL.fullmatch(name)
        if match is not None and seeds:
            cells.setdefault((match[1], match[2]), {})[int(match[3])] = seeds[0]
    for kind, coordinate in sorted(cells, key=lambda each: (each[0] != "probability", each[1])):
        curves = [curve for _, curve in sorted(cells[kind, coordinate].items(), key=lambda cell: cell[0])]
        length = min(len(curve.steps) for curve in curves)
        most = min(length, MOST_COLUMNS, max(MOST_SQUARES // len(curves), 1))
        places = np.unique(np.linspace(0, length - 1, most).astype(int))
        values = np.nan_to_num(np.stack([curve.values[places] for curve in curves]))
        yield Choices(run, kind, _clip(coordinate, 80), curves[0].steps[places], values)


def labels(runs: Sequence[RunDirectory]) -> list[str]:
    """A short name for every run; where two are equal, with the folder they lie in."""
    names = [run.path.resolve().name for run in runs]
    parents = [run.path.resolve().parent.name for run in runs]
    return [
        _clip(name if names.count(name) == 1 else f"{parent}/{name}", 120)
        for name, parent in zip(names, parents, strict=True)
    ]


def group(name: str, names: Iterable[str]) -> str:
    """The part of the page a metric belongs to."""
    if name in HEADLINES:
        return "return"
    if is_quantile(name, names):
        return "distributions"
    head, _, rest = name.partition("/")
    if head == "train":
        return "losses" if "loss" in rest else "training"
    return head if head in GROUPS else "other"


def is_quantile(name: str, names: Iterable[str]) -> bool:
    """Whether a metric is one of several numbers that describe a distribution: `x_min`, `x_p50`, `x_max` …"""
    match = _QUANTILE.fullmatch(name)
    return match is not None and _has_fan(family(match[1], names))


def family(base: str, names: Iterable[str]) -> dict[str, str]:
    """The metrics that describe the distribution of `base`, by what each one is."""
    found = ((_QUANTILE.fullmatch(name), name) for name in names)
    return {match[2]: name for match, name in found if match is not None and match[1] == base}


def _has_fan(members: Iterable[str]) -> bool:
    """Whether there is a middle, and something on both sides of it."""
    return {-1, 0, 1} <= {int(np.sign(_place(what) - 50)) for what in members}


def _order(name: str) -> tuple[int, int, str]:
    """Return, losses and training first: what is left out when there are too many comes last."""
    place = HEADLINES.index(name) if name in HEADLINES else len(HEADLINES)
    return list(GROUPS).index(group(name, ())), place, name


# -- curves ------------------------------------------------------------------------------------------------


def read_curves(path: Path) -> dict[str, list[Curve]]:
    """The curves of every metric, one per seed that wrote it; nothing when the run has no metrics yet."""
    if not path.is_file():
        return {}
    try:
        seeds = sqlite.seeds(path)
        curves = {name: [sqlite.read(path, name, s) for s in seeds] for name in sqlite.names(path)}
    except (ValueError, TypeError, OverflowError) as error:  # SQLite keeps whatever it is given
        raise StorageError(f"The metrics in {str(path)!r} are not numbers: {error}.") from error
    return {name: [_finite_times(c) for c in found if len(c.steps)] for name, found in curves.items()}


def _finite_times(curve: Curve) -> Curve:
    return curve._replace(times=np.nan_to_num(curve.times, nan=0.0, posinf=0.0, neginf=0.0))


def _series(tables: Sequence[dict[str, list[Curve]]], name: str, limit: int) -> Iterable[Series]:
    for run, table in enumerate(tables):
        if name not in table:
            continue
        curves = table[name]
        shown = curves if name in HEADLINES and 1 < len(curves) <= MOST_SEED_LINES else []
        band = summarise(curves, limit)
        if len(band.steps):
            yield Series(run, band, tuple(_thinned(curve) for curve in shown))


def _fans(
    tables: Sequence[dict[str, list[Curve]]], members: Mapping[str, str], limit: int
) -> Iterable[Series]:
    """A distribution by step: its middle and the pairs of quantiles around it, outermost first."""
    for run, table in enumerate(tables):
        lines = {what: _middle(table[name]) for what, name in members.items() if name in table}
        order = sorted(lines, key=_place)
        below = [what for what in order if _place(what) < 50]
        above = [what for what in reversed(order) if _place(what) > 50]
        if not _has_fan(lines):
            continue
        centre = next(what for what in ("p50", "median", "mean") if what in lines)
        steps, times, values = align([lines[what] for what in order])
        kept = thin(values[:, order.index(centre)], limit)
        column = dict(zip(order, values[kept].T, strict=True))
        pairs = tuple((column[low], column[high]) for low, high in zip(below, above, strict=False))
        if len(kept):
            seeds = max(len(table[name]) for name in members.values() if name in table)
            yield Series(run, Band(steps[kept], times[kept], column[centre], None, None, seeds), (), pairs)


def _middle(curves: Sequence[Curve]) -> Curve:
    steps, times, values = align(curves)
    return Curve(steps, times, iqm(values))


def _place(what: str) -> int:
    """Where a number stands in a distribution, in percent."""
    return {"min": -1, "max": 101, "mean": 50, "median": 50}.get(what) or int(what.removeprefix("p"))


def _spread_of(base: str, names: Iterable[str]) -> str:
    return "Its distribution by step: " + ", ".join(sorted(family(base, names), key=_place)) + "."


def _thinned(curve: Curve) -> Curve:
    steps, times, values = align([curve])
    kept = thin(values[:, 0], SEED_POINTS)
    return Curve(steps[kept], times[kept], values[kept, 0])


# -- facts -------------------------------------------------------------------------------------------------


def _facts(run: RunDirectory, label: str, curves: Mapping[str, list[Curve]]) -> Facts:
    status = run.read_status()
    config = run.read_config() if (run.path / CONFIG).is_file() else {}
    given = config.get("seeds")
    seeds = tuple(map(_whole, given)) if isinstance(given, list) and given else (_whole(status.seed),)
    elapsed = [float(c.times[-1]) for found in curves.values() for c in found]
    hardware = machine(run)
    return Facts(
        label=label,
        folder=run.path,
        algorithm=_clip(config.get("algorithm", status.algo)),
        env=_clip(config.get("env", status.env)),
        seeds=seeds,
        state=status.state,
        steps=_whole(status.steps),
        goal=_whole(status.total),
        message=_clip(status.message),
        started=_number(status.started) or 0.0,
        seconds=max(elapsed, default=None),
        settings=tuple(settings(config, _comments(run.path / CONFIG))),
        machine=hardware,
        scores=tuple(scores(curves)),
        alerts=read_alerts(run.metrics, seeds, curves),
        speed=speed(run.name, status, config, curves, hardware.get("device", "")),
    )


def speed(
    name: str, status: Status, config: Mapping[str, Any], curves: Mapping[str, list[Curve]], device: str
) -> str:
    """What the time split says, with the command to try."""
    rows: dict[int, dict[str, float]] = {}
    for metric in (performance.WINDOW, *(f"time/{kind}" for kind in performance.KINDS)):
        for curve in curves.get(metric, [])[:1]:
            for step, value in zip(curve.steps.tolist(), curve.values.tolist(), strict=True):
                rows.setdefault(step, {})[metric] = value
    sections = (config.get(part, {}) for part in ("settings", "config"))
    known = {key: value for part in sections if isinstance(part, Mapping) for key, value in part.items()}
    commands = Commands(status.algo, status.env, name, known, _whole(status.total))
    found = performance.judge([(step, 0, values) for step, values in rows.items()], known, commands, device)
    if found is None:
        return ""
    return f"{found.sentence} Try: {found.command}" if found.command else found.sentence


def settings(config: Mapping[str, Any], sources: Mapping[str, str], table: str = "") -> Iterable[Setting]:
    """Every value of a configuration with its source; a schedule is one value."""
    for key, value in config.items():
        name = f"{table}{key}"
        if isinstance(value, Mapping) and "schedule" not in value:
            yield from settings(value, sources, f"{name}.")
        else:
            yield Setting(_clip(name), _clip(plain(value)), _clip(sources.get(name, "")))


def plain(value: Any) -> str:
    """A value as a person writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        parts = ", ".join(f"{key} {plain(part)}" for key, part in value.items() if key != "schedule")
        return f"{value['schedule']}: {parts}" if "schedule" in value else parts
    if isinstance(value, list):
        return "[" + ", ".join(map(plain, value)) + "]"
    return str(value)


def _comments(path: Path) -> dict[str, str]:
    """The comment behind every setting of a file: where the value came from."""
    found: dict[str, str] = {}
    if not path.is_file():
        return found
    table = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            table = line.strip("[] ") + "."
            continue
        parts = line.split("  # ")
        for split in range(1, len(parts)):  # the mark may also stand inside a text
            key = _single_key("  # ".join(parts[:split]))
            if key is not None:
                found[f"{table}{key}"] = "  # ".join(parts[split:])
                break
    return found


def _single_key(line: str) -> str | None:
    try:
        return next(iter(tomllib.loads(line)), None)
    except tomllib.TOMLDecodeError:
        return None


def machine(run: RunDirectory) -> dict[str, str]:
    """The versions and hardware that a run's agent or newest checkpoint names; empty when there is none."""
    places = [run.last / AGENT, run.best / AGENT, *(p / MANIFEST for p in listing(run.checkpoints))]
    for place in places:
        try:
            if place.is_file() and place.stat().st_size <= AGENT_LIMIT:
                found = sealed.unseal(place.read_bytes(), place.name).get("provenance")
                if isinstance(found, dict):
                    return {_clip(key): _clip(plain(value)) for key, value in sorted(found.items())}
        except (OSError, CheckpointError):
            continue  # an older place may be intact
    return {}


def scores(curves: Mapping[str, list[Curve]]) -> Iterable[Score]:
    """The best and the final evaluation of both kinds, best by the mean over all seeds; then what the agents
    that were kept earn on fresh episodes."""
    for kind, name in EVALUATIONS.items():
        if not curves.get(name):
            continue
        steps, _, values = align(curves[name])
        finite = np.isfinite(values).all(-1)
        steps, values = steps[finite], values[finite]
        if not len(steps):
            continue
        for which, at in (("best", int(values.mean(-1).argmax())), ("final", len(steps) - 1)):
            by_seed = tuple(float(value) for value in values[at])
            spread = seed_interval(values[at]) if len(by_seed) > 1 else None
            yield Score(kind, which, int(steps[at]), by_seed, spread, len(steps))
    for which, name in FRESH.items():
        for curve in curves.get(name, [])[:1]:  # one agent is kept, whatever the number of seeds
            if len(curve.values) and np.isfinite(curve.values[-1]):
                yield Score("deterministic", which, int(curve.steps[-1]), (float(curve.values[-1]),), None, 1)


def read_alerts(
    path: Path, seeds: Sequence[int], curves: Mapping[str, list[Curve]]
) -> tuple[Alert, ...] | None:
    """What the health rules saw, in order of onset; None when the file has no table of alerts."""
    found = sqlite.alerts(path, MOST_ALERTS) if path.is_file() else None
    if found is None:
        return None
    clock = _clock(curves)
    return tuple(_alert(stored, seeds, clock) for stored in found)


def _alert(stored: sqlite.StoredAlert, seeds: Sequence[int], clock: Callable[[int], float]) -> Alert:
    """An alert as the page shows it, whatever a file may hold; the file counts seeds from zero."""
    onset = _whole(stored.onset)
    last = max(onset, _whole(stored.last))
    index = _whole(stored.seed)
    return Alert(
        rule=_clip(" ".join(str(part) for part in (stored.rule, stored.name) if part), 120),
        level=stored.level if stored.level in LEVELS else "warn",
        onset=onset,
        last=last,
        seed=seeds[index] if 0 <= index < len(seeds) else index,
        evidence=_clip(stored.evidence),
        onset_time=clock(onset),
        last_time=clock(last),
    )


def _clock(curves: Mapping[str, list[Curve]]) -> Callable[[int], float]:
    """Seconds of training at a step, from the longest curve."""
    longest = max((c for found in curves.values() for c in found), key=lambda c: len(c.steps), default=None)
    if longest is None:
        return lambda step: 0.0
    steps, times, _ = align([longest])
    return lambda step: float(np.interp(step, steps, times))


def find_all(names: Iterable[str], most: int) -> list[RunDirectory]:
    """The runs of these names, each once."""
    from sparring.runs import directory

    found = {run.path.resolve(): run for run in map(directory.find, names)}
    if len(found) > most:
        raise ConfigError(
            f"A report shows at most {most} runs, so that they can be told apart; {len(found)} were given. "
            "Name fewer of them."
        )
    return list(found.values())


def _number(value: Any) -> float | None:
    """A finite number, or None for anything else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value) if math.isfinite(value) else None
        except OverflowError:
            return None
    return None


def _whole(value: Any) -> int:
    return int(_number(value) or 0)


def _clip(value: Any, longest: int = LONGEST_TEXT) -> str:
    """A text of bounded length."""
    found = "" if value is None else str(value)
    return found if len(found) <= longest else f"{found[: longest - 1]}…"
