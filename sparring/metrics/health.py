"""Health of a run: rules that look at windows of its metrics, and the engine that feeds them.

A rule measures one number from a window and holds it against a healthy range. The engine raises an alert when
the number was outside for several looks in a row and clears it when it was well inside for longer. The same
engine runs while an agent learns and over a finished run's file, so both find the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from sparring.metrics.registry import EPISODIC

KEPT = 512
"""Points of a metric that windows can see; at most twice as many are stored."""
HEAD = 8
"""First points of a metric, kept for comparison."""
FAMILY = 64
"""Metrics that a rule's pattern may add for one seed."""
EPISODES = 20
"""Finished episodes below which their mean is not believed."""
MARGIN = 0.1
"""How far inside its healthy range, as a share of the bound, a value must be to clear an alert."""

Level = Literal["note", "warn", "error"]
"""A note is an observation, not an alarm."""
Scope = Literal["live", "end"]
Side = Literal["low", "high"]


class Limit(NamedTuple):
    """A healthy range, the range beyond which it is an error, and how patient to be."""

    low: float = -math.inf
    high: float = math.inf
    error_low: float = -math.inf
    error_high: float = math.inf
    window: int = 10
    """points that one look sees"""
    patience: int = 3
    """looks in a row that must be bad before an alert"""
    basis: Literal["P", "E"] = "E"
    """published, or an engineering default that benchmarks/faultbench.py calibrates"""
    source: str = ""

    def contains(self, value: float, margin: float = 0.0) -> bool:
        low = self.low + margin * abs(self.low) if math.isfinite(self.low) else self.low
        high = self.high - margin * abs(self.high) if math.isfinite(self.high) else self.high
        return low <= value <= high if low <= high else self.low <= value <= self.high

    def crossed(self, value: float) -> Side | None:
        """Which bound a value is beyond; None when it is inside, or no number."""
        if value < self.low:
            return "low"
        return "high" if value > self.high else None

    def is_error(self, value: float) -> bool:
        return not self.error_low <= value <= self.error_high


class Reading(NamedTuple):
    """What a rule measured, and the numbers behind it in words."""

    value: float
    evidence: str


class Advice(NamedTuple):
    """One thing to try: settings to change, as factors of or values for the run's own, or another verb."""

    why: str
    expected: str
    settings: tuple[tuple[str, str], ...] = ()
    """(name, value); a value `*0.3` multiplies the run's own, `>=0.5` raises a smaller one to it, `//` takes
    the largest proper divisor of a whole number"""
    verb: str = ""
    """another command than a new training, `{run}` and `{env}` filled in"""
    side: Side | None = None
    """the bound whose crossing it answers; None: both"""
    given: tuple[tuple[str, str], ...] = ()
    """settings that the run must have for it to make sense"""


@dataclass(frozen=True)
class Rule:
    """One check: what it needs, what it measures, and what a bad value means."""

    id: str
    name: str
    needs: tuple[str, ...]
    """metrics without which it cannot look"""
    measure: Callable[[Window], Reading | None]
    """the number to hold against the limit; None while it cannot be judged"""
    limit: Limit
    meaning: str
    causes: tuple[str, ...]
    advice: tuple[Advice, ...]
    level: Level = "warn"
    """of an alert that is not an error"""
    one_of: tuple[str, ...] = ()
    """metrics of which it needs at least one"""
    family: str = ""
    """a pattern of further metrics that it looks at, however many there are"""
    algorithms: frozenset[str] | None = None
    """None: every algorithm that writes the metrics"""
    config: tuple[str, ...] = ()
    """settings it must know"""
    scope: Scope = "live"
    quotes: bool = False
    """whether its evidence holds names that others chose: reports show it as data"""

    @property
    def key(self) -> str:
        return f"{self.id}.{self.name}"

    def advice_for(self, value: float) -> tuple[Advice, ...]:
        """What helps against a value, by the bound that it crossed; everything when that is not known."""
        side = self.limit.crossed(value)
        return tuple(a for a in self.advice if side is None or a.side in (None, side))

    @property
    def triggers(self) -> frozenset[str]:
        """Metrics whose arrival makes it look."""
        return frozenset(self.needs[:1] or self.one_of)


@dataclass(frozen=True)
class Context:
    """What is known about a run besides its numbers."""

    algorithm: str = ""
    total: int = 0
    """environment steps of one seed that were planned; 0 when unknown"""
    config: Mapping[str, Any] = field(default_factory=dict)
    target: float | None = None
    """the return at which the task counts as solved"""

    def number(self, name: str) -> float | None:
        """A setting as a number; None when it is absent or no plain number."""
        value = self.config.get(name)
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    @property
    def known(self) -> set[str]:
        return {name for name in self.config if self.number(name) is not None}


class Series:
    """The newest points of one metric in contiguous arrays, its first points and its extremes."""

    __slots__ = ("_end", "_first", "_head", "_steps", "_values", "count", "high", "low")

    def __init__(self) -> None:
        self._steps = np.empty(64, np.int64)
        self._values = np.empty(64, np.float64)
        self._end = 0
        self.count = 0
        self._head: list[float] = []
        self._first: tuple[float, float] | None = None
        """their median and spread, once somebody has asked; few do, and it is dear at every point"""
        self.low = math.inf
        self.high = -math.inf

    def append(self, step: int, value: float) -> None:
        if self._end == len(self._values):
            self._make_room()
        self._steps[self._end] = step
        self._values[self._end] = value
        self._end += 1
        self.count += 1
        if len(self._head) < HEAD:
            self._head.append(value)
            self._first = None
        self.low = min(self.low, value)
        self.high = max(self.high, value)

    @property
    def start(self) -> float:
        """Median of the first points; NaN before them."""
        return self._beginning()[0]

    @property
    def noise(self) -> float:
        """Spread of the first points, at least a twentieth of their median."""
        return self._beginning()[1]

    def _beginning(self) -> tuple[float, float]:
        if self._first is None:
            if not self._head:
                return math.nan, math.nan
            start = float(np.median(self._head))
            self._first = start, max(float(np.std(self._head)), 0.05 * abs(start), 1e-9)
        return self._first

    def _make_room(self) -> None:
        """Grows up to a bound, then forgets the older half: constant time per point on average."""
        if len(self._values) < 2 * KEPT:
            self._steps = np.concatenate([self._steps, np.empty_like(self._steps)])
            self._values = np.concatenate([self._values, np.empty_like(self._values)])
            return
        self._steps[:KEPT] = self._steps[self._end - KEPT : self._end]
        self._values[:KEPT] = self._values[self._end - KEPT : self._end]
        self._end = KEPT

    def values(self, count: int = KEPT) -> np.ndarray:
        return self._values[max(self._end - count, 0) : self._end]

    def steps(self, count: int = KEPT) -> np.ndarray:
        return self._steps[max(self._end - count, 0) : self._end]


class Window:
    """What a rule may look at: the history of one seed, the context, and the other seeds' history."""

    def __init__(
        self,
        history: Mapping[str, Series],
        context: Context,
        step: int,
        record: Mapping[str, float],
        others: Mapping[int, Mapping[str, Series]],
    ) -> None:
        self.history = history
        self.context = context
        self.limit = Limit()
        """of the rule that looks"""
        self.step = step
        self.record = record
        self.others = others

    @property
    def progress(self) -> float:
        """Share of the planned steps that is done; 1 when no plan is known."""
        return min(self.step / self.context.total, 1.0) if self.context.total else 1.0

    def values(self, name: str, count: int = 0, least: int = 0) -> np.ndarray | None:
        """The last `count` values (the limit's window by default), or None when there are too few."""
        series = self.history.get(name)
        count = count or self.limit.window
        if series is None or series.count < (least or count):
            return None
        return series.values(count)

    def family(self, pattern: str, count: int = 0) -> dict[str, np.ndarray]:
        """The last values of every metric whose whole name matches, where there are enough."""
        names = [name for name in self.history if re.fullmatch(pattern, name)]
        found = ((name, self.values(name, count)) for name in names)
        return {name: values for name, values in found if values is not None}

    def series(self, name: str) -> Series | None:
        return self.history.get(name)

    def last(self, name: str) -> float | None:
        series = self.history.get(name)
        return float(series.values(1)[0]) if series is not None and series.count else None


@dataclass
class Alert:
    """A rule that was violated, from its onset to the last time it was."""

    rule: Rule
    seed: int
    level: Level
    onset: int
    last: int
    value: float
    evidence: str
    worst: float
    cleared: int | None = None
    """step at which it was over; None while it lasts"""

    def line(self) -> str:
        """One line for a person."""
        return f"{self.level}: {self.rule.id} {self.rule.name} at step {self.onset:,}: {self.evidence}"


class Change(NamedTuple):
    """Something that happened to an alert."""

    kind: Literal["raised", "worse", "cleared"]
    alert: Alert


@dataclass
class _Watch:
    """Where one rule is for one seed."""

    bad: int = 0
    good: int = 0
    first_bad: int = 0
    looks: int = 0
    value: float = math.nan
    alert: Alert | None = None


class Engine:
    """Feeds records to rules and keeps their alerts; bounded in memory, cheap per record."""

    def __init__(
        self, rules: Sequence[Rule], context: Context, ignored: Collection[str] = frozenset()
    ) -> None:
        self.context = context
        self.rules = [
            rule
            for rule in rules
            if (rule.algorithms is None or context.algorithm in rule.algorithms)
            and not {rule.id, rule.key} & set(ignored)
        ]
        self.alerts: list[Alert] = []
        """all of them, in the order in which they were raised"""
        self.steps: dict[int, int] = {}
        """the newest step of every seed"""
        known = context.known
        self._live = [
            (rule, rule.triggers)
            for rule in self.rules
            if rule.scope == "live" and known.issuperset(rule.config)
        ]
        self._wanted = ALWAYS.union(*(rule.needs + rule.one_of for rule in self.rules))
        families = sorted({rule.family for rule in self.rules if rule.family})
        self._families = re.compile("|".join(f"(?:{each})" for each in families)) if families else None
        self._is_relative: dict[str, bool] = {}
        self._history: dict[int, dict[str, Series]] = {}
        self._watches: dict[tuple[int, str], _Watch] = {}

    def feed(self, step: int, values: Mapping[str, float], seed: int = 0) -> list[Change]:
        """Takes one record; returns the alerts that were raised, became worse or were cleared by it."""
        history = self._history.setdefault(seed, {})
        self.steps[seed] = max(step, self.steps.get(seed, 0))
        for name in [*self._wanted.intersection(values), *self._relatives(history, values)]:
            if name.startswith(EPISODIC) and values.get("rollout/window_episodes", EPISODES) < EPISODES:
                continue  # a mean over few episodes, or a placeholder before the first has ended
            value = values[name]
            if math.isfinite(value):
                series = history.get(name)
                if series is None:
                    series = history[name] = Series()
                series.append(step, value)
        changes = []
        window = Window(history, self.context, step, values, self._history)
        for rule, triggers in self._live:
            if ANY in triggers or not triggers.isdisjoint(values):
                change = self._look(rule, seed, window)
                if change is not None:
                    changes.append(change)
        return changes

    def _relatives(self, history: Mapping[str, Series], values: Mapping[str, float]) -> list[str]:
        """Names in a record that the pattern of a rule asks for; few enough of them to stay bounded."""
        if self._families is None:
            return []
        found = []
        room = FAMILY - len(history.keys() - self._wanted)
        for name in values:
            known = self._is_relative.get(name)
            if known is None:
                if len(self._is_relative) >= 64 * FAMILY:
                    self._is_relative.clear()
                known = self._families.fullmatch(name) is not None and name not in self._wanted
                self._is_relative[name] = known
            if known and (name in history or room > 0):
                room -= name not in history
                found.append(name)
        return found

    def finish(self) -> list[Change]:
        """Looks once with the rules that judge a run as a whole."""
        changes = []
        known = self.context.known
        for rule in self.rules:
            if rule.scope == "end" and known.issuperset(rule.config):
                for seed, step in sorted(self.steps.items()):
                    if all(name in self._history[seed] for name in rule.needs):
                        window = Window(self._history[seed], self.context, step, {}, self._history)
                        change = self._look(rule, seed, window)
                        if change is not None:
                            changes.append(change)
        return changes

    def looks(self, rule: Rule) -> int:
        """How often a rule could judge, over all seeds."""
        return sum(w.looks for (_, key), w in self._watches.items() if key == rule.key)

    def value(self, rule: Rule, seed: int) -> float:
        """What a rule measured last; NaN when it never did."""
        watch = self._watches.get((seed, rule.key))
        return math.nan if watch is None else watch.value

    def skipped(self, rule: Rule) -> str:
        """Why a rule never judged this run; empty when it did."""
        if self.looks(rule):
            return ""
        if unknown := [name for name in rule.config if name not in self.context.known]:
            return f"setting {', '.join(unknown)} is not known or is none"
        seen = {name for history in self._history.values() for name in history}
        if absent := [name for name in rule.needs if name not in seen and name != ANY]:
            few = f" over at least {EPISODES} episodes" if any(n.startswith(EPISODIC) for n in absent) else ""
            return f"no {', '.join(absent)}{few}"
        if rule.one_of and not seen.intersection(rule.one_of):
            return f"no {' or '.join(rule.one_of)}"
        if rule.family and not any(re.fullmatch(rule.family, name) for name in seen):
            return f"no {rule.family}"
        return "too few points, or its conditions never held"

    def foreign(self, rule: Rule) -> bool:
        """Whether a rule is about what this algorithm never reports, though it reports other things."""
        seen = {name for history in self._history.values() for name in history}
        absent = [name for name in rule.needs if name not in seen]
        if not absent and rule.one_of and not seen.intersection(rule.one_of):
            absent = list(rule.one_of)
        trained = any(name.startswith("train/") for name in seen)
        return trained and any(name.startswith("train/") for name in absent)

    def history(self, seed: int) -> Mapping[str, Series]:
        return self._history.get(seed, {})

    def _look(self, rule: Rule, seed: int, window: Window) -> Change | None:
        window.limit = rule.limit
        reading = rule.measure(window)
        watch = self._watches.get((seed, rule.key))
        if watch is None:
            watch = self._watches[seed, rule.key] = _Watch()
        if reading is None:
            watch.bad = watch.good = 0
            return None
        watch.looks += 1
        watch.value = reading.value
        return self._judge(watch, rule, seed, window.step, reading)

    def _judge(self, watch: _Watch, rule: Rule, seed: int, step: int, reading: Reading) -> Change | None:
        value, limit = reading.value, rule.limit
        if not limit.contains(value):
            watch.good = 0
            if not watch.bad:
                watch.first_bad = step
            watch.bad += 1
            if watch.alert is not None:
                return self._continue(watch.alert, step, reading)
            if watch.bad < (1 if rule.scope == "end" else limit.patience):
                return None
            level: Level = "error" if limit.is_error(value) else rule.level
            alert = Alert(rule, seed, level, watch.first_bad, step, value, reading.evidence, value)
            watch.alert = alert
            self.alerts.append(alert)
            return Change("raised", alert)
        watch.bad = 0
        if watch.alert is None:
            return None
        watch.good = watch.good + 1 if limit.contains(value, MARGIN) else 0
        if watch.good < 2 * limit.patience:
            return None
        watch.alert.cleared = step
        alert, watch.alert, watch.good = watch.alert, None, 0
        return Change("cleared", alert)

    @staticmethod
    def _continue(alert: Alert, step: int, reading: Reading) -> Change | None:
        """An alert that lasts: it may become an error."""
        limit = alert.rule.limit
        alert.last, alert.value = step, reading.value
        if _excess(limit, reading.value) > _excess(limit, alert.worst):
            alert.worst, alert.evidence = reading.value, reading.evidence
        if alert.level != "error" and limit.is_error(reading.value):
            alert.level = "error"
            return Change("worse", alert)
        return None


ANY = "*"
"""The need of a rule that looks at every record."""
ALWAYS = frozenset(
    {
        "rollout/ep_rew_mean",
        "rollout/episodes",
        "rollout/ep_len_mean",
        "train/clip_range",
        "train/learning_rate",
        "train/n_updates",
        "train/ent_coef",
        "train/entropy",
        "stats/entropy_relative",
        "eval/std_reward",
        "eval/stochastic_std_reward",
        "eval/episodes",
        "eval/mean_reward",
    }
)
"""Metrics that several rules look at beside their own."""


def replay(engine: Engine, records: Iterable[tuple[int, int, Mapping[str, float]]]) -> list[Change]:
    """Feeds (step, seed, values) of a finished run, then judges it as a whole."""
    changes = [change for step, seed, values in records for change in engine.feed(step, values, seed)]
    return changes + engine.finish()


def _excess(limit: Limit, value: float) -> float:
    """How far a value is outside a range."""
    return max(limit.low - value, value - limit.high, 0.0)
