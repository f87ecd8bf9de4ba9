"""Comparing units: their seeds are held against each other, environment by environment.

Scores of different environments are never mixed: each has its own table. Only the probability of improvement,
which has no scale, is averaged over them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from sparring.errors import ConfigError
from sparring.evaluation import statistics as st
from sparring.evaluation.statistics import Band, Interval
from sparring.evaluation.units import Seed, Unit, common_metric, curves, no_value
from sparring.evaluation.verdict import Verdict, judge

FINAL = ("eval/mean_reward", "rollout/ep_rew_mean")
"""What a run is judged by: its last evaluation, or the episodes of training."""
ENOUGH = 5
"""Seeds below which an interval is too narrow."""
THRESHOLDS = 51
"""Points of a performance profile."""

Direction = Literal["higher", "lower"]


class Row(NamedTuple):
    """One unit in one environment."""

    letter: str
    scores: np.ndarray
    seeds: list[str]
    """which seed each score belongs to"""
    iqm: float
    interval: Interval | None
    """None for one seed"""
    improvement: float | None
    """chance to beat the first unit, which has none"""
    improvement_interval: Interval | None
    gap: float | None
    """optimality gap to the target, where one was given"""
    profile: np.ndarray
    """share of seeds above each threshold"""
    profile_band: Band | None


class Table(NamedTuple):
    """All units in one environment."""

    env: str
    rows: list[Row]
    thresholds: np.ndarray


class Comparison(NamedTuple):
    """Everything that `sparring compare` says."""

    metric: str
    direction: Direction
    units: list[Unit]
    tables: list[Table]
    verdicts: list[Verdict]
    differences: dict[str, list[list[Any]]]
    """settings that are not the same everywhere: the values of each unit"""
    notes: list[str]

    def as_json(self) -> dict[str, Any]:
        return {
            "metric": self.metric,
            "better": self.direction,
            "units": {
                u.letter: {"text": u.text, "runs": [str(r.run.path) for r in u.runs]} for u in self.units
            },
            "environments": [_table_json(table) for table in self.tables],
            "verdicts": [verdict.as_json() for verdict in self.verdicts],
            "configuration": {
                name: {unit.letter: part for unit, part in zip(self.units, values, strict=True)}
                for name, values in self.differences.items()
            },
            "notes": self.notes,
        }


def compare(
    groups: Sequence[Unit],
    *,
    metric: str | None = None,
    at: int | None = None,
    direction: Direction = "higher",
    target: float | None = None,
) -> Comparison:
    """Holds every unit against the first one. A score is the last value, or the last up to the step `at`."""
    if len(groups) < 2:
        raise ConfigError("Name two groups of runs or more, for example: sparring compare A B")
    chosen = metric or common_metric(groups, FINAL)
    notes: list[str] = []
    scores = [_scores(unit, chosen, at, notes) for unit in groups]
    for unit, found in zip(groups, scores, strict=True):
        if not found:
            raise no_value(unit, chosen, "" if at is None else f" up to step {at:,}")
    shared = [env for env in scores[0] if all(env in found for found in scores)]
    if not shared:
        spans = "; ".join(f"{u.letter}: {', '.join(s)}" for u, s in zip(groups, scores, strict=True))
        raise ConfigError(
            f"The groups have no environment in common ({spans}). Compare runs of the same one."
        )
    left_out = sorted({env for found in scores for env in found} - set(shared))
    if left_out:
        notes.append(f"Left out, because not every group has it: {', '.join(left_out)}.")
    kept = [{env: found[env] for env in shared} for found in scores]
    tables = [_table(env, groups, [found[env] for found in kept], direction, target) for env in shared]
    verdicts = [
        judge(
            groups[0].letter,
            groups[i].letter,
            [(_values(kept[0][env]), _values(kept[i][env])) for env in shared],
            direction,
            len(groups) - 1,
        )
        for i in range(1, len(groups))
    ]
    notes += _cautions(groups, kept)
    return Comparison(chosen, direction, list(groups), tables, verdicts, differences(groups), notes)


def differences(groups: Sequence[Unit]) -> dict[str, list[list[Any]]]:
    """The settings that differ between units, and each unit's values of them."""
    flat = [[_flat(run.config) for run in unit.runs] for unit in groups]
    names = sorted({name for unit in flat for settings in unit for name in settings})
    found = {}
    for name in names:
        values = [_distinct([settings.get(name) for settings in unit]) for unit in flat]
        if any(value != values[0] for value in values):
            found[name] = values
    return found


class _Score(NamedTuple):
    seed: Seed
    step: int
    value: float


def _scores(unit: Unit, metric: str, at: int | None, notes: list[str]) -> dict[str, list[_Score]]:
    """The score of every seed, by environment; runs without one are noted, not dropped in silence."""
    found: dict[str, list[_Score]] = {}
    for run in unit.runs:
        scored = []
        for seed in curves(run, metric):
            steps, _, values = seed.curve
            upto = len(steps) if at is None else int(np.searchsorted(steps, at, "right"))
            if upto:
                scored.append(_Score(seed, int(steps[upto - 1]), float(values[upto - 1])))
        if (lost := len(run.seeds) - len(scored)) > 0:
            which = f"{lost} of {len(run.seeds)} seeds of {run.run.name} ({run.status.state})"
            notes.append(f"{unit.letter}: {which} without {metric} are left out.")
        if scored:
            found.setdefault(run.env, []).extend(scored)
    return found


def _table(
    env: str,
    groups: Sequence[Unit],
    scores: Sequence[list[_Score]],
    direction: Direction,
    target: float | None,
) -> Table:
    everything = np.concatenate([_values(found) for found in scores])
    margin = 0.05 * np.ptp(everything)  # so that a profile begins at 1 and ends at 0
    thresholds = np.linspace(everything.min() - margin, everything.max() + margin, THRESHOLDS)
    first = _values(scores[0])
    rows = [
        _row(unit.letter, found, first if i else None, thresholds, direction, target)
        for i, (unit, found) in enumerate(zip(groups, scores, strict=True))
    ]
    return Table(env, rows, thresholds)


def _row(
    letter: str,
    scores: list[_Score],
    first: np.ndarray | None,
    thresholds: np.ndarray,
    direction: Direction,
    target: float | None,
) -> Row:
    sign = 1.0 if direction == "higher" else -1.0
    values = _values(scores)
    column = values[:, None]
    several = len(values) > 1

    def above(x: np.ndarray) -> np.ndarray:
        return st.profile(x, thresholds)

    improvement, uncertain = None, None
    if first is not None:
        pair = sign * column, sign * first[:, None]
        improvement = float(st.probability_of_improvement(*pair))
        if several and len(first) > 1:
            uncertain = st.bootstrap(st.probability_of_improvement, *pair).only
    return Row(
        letter,
        values,
        [f"{score.seed.run.run.name}:{score.seed.seed}" for score in scores],
        float(st.iqm(values)),
        st.bootstrap(st.pooled_iqm, column).only if several else None,
        improvement,
        uncertain,
        None if target is None else float(st.optimality_gap(sign * column, sign * target)),
        above(column),
        st.bootstrap(above, column) if several else None,
    )


def _cautions(groups: Sequence[Unit], scores: Sequence[Mapping[str, list[_Score]]]) -> Iterator[str]:
    """What a reader should know before believing the table."""
    fewest = min(len(found) for unit in scores for found in unit.values())
    if fewest == 1:
        yield "One seed has no interval: nobody knows what another seed would have done."
    elif fewest < ENOUGH:
        yield f"With fewer than {ENOUGH} seeds the intervals are narrower than they should be."
    reached = [max(s.step for found in unit.values() for s in found) for unit in scores]
    if min(reached) < 0.95 * max(reached):
        ends = ", ".join(f"{u.letter} at {step:,}" for u, step in zip(groups, reached, strict=True))
        yield f"Scores were taken at different steps ({ends}). For the same: --at {min(reached)}"
    for unit, found in zip(groups, scores, strict=True):
        used = {s.seed.run.run.path: s.seed.run for each in found.values() for s in each}
        open_ends = [run for run in used.values() if run.status.state != "finished"]
        if open_ends:
            names = ", ".join(f"{run.run.name} ({run.status.state})" for run in open_ends)
            yield f"{unit.letter} has runs that did not finish: {names}."
    owners: dict[Path, set[str]] = {}
    for unit in groups:
        for run in unit.runs:
            owners.setdefault(run.run.path.resolve(), set()).add(unit.letter)
    shared = [path.name for path, letters in owners.items() if len(letters) > 1]
    if shared:
        yield f"In more than one group, which makes them look alike: {', '.join(shared)}."


def _values(scores: Sequence[_Score]) -> np.ndarray:
    return np.array([score.value for score in scores])


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by name; seeds and the file's schema are no settings."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            prefix = "env_kwargs." if name == "env_kwargs" else ""
            flat |= {f"{prefix}{key}": part for key, part in value.items()}
        elif name not in ("seeds", "schema"):
            flat[name] = value
    return flat


def _distinct(values: Sequence[Any]) -> list[Any]:
    kept: list[Any] = []
    for value in values:
        if value not in kept:
            kept.append(value)
    return sorted(kept, key=str)


def _table_json(table: Table) -> dict[str, Any]:
    return {
        "env": table.env,
        "thresholds": table.thresholds.tolist(),
        "units": {row.letter: _row_json(row) for row in table.rows},
    }


def _row_json(row: Row) -> dict[str, Any]:
    def bounds(found: Interval | None) -> list[float] | None:
        return None if found is None else [found.low, found.high]

    band = row.profile_band
    return {
        "n": len(row.scores),
        "scores": dict(zip(row.seeds, row.scores.tolist(), strict=True)),
        "iqm": row.iqm,
        "ci95": bounds(row.interval),
        "probability_of_improvement": row.improvement,
        "probability_ci95": bounds(row.improvement_interval),
        "optimality_gap": row.gap,
        "profile": row.profile.tolist(),
        "profile_ci95": None if band is None else [band.low.tolist(), band.high.tolist()],
    }
