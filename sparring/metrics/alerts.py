"""Alerts while an agent learns: the health rules as a sink that says, stores and posts.

    HealthSink(run.metrics, "ppo", config, total=100_000, env="CartPole-v1", say=print, on_stop=stop)

`on_stop` is called, in the training thread, with the alert of a rule whose policy is `stop`. Rules that judge
a run as a whole never call it: there is nothing left to stop.
"""

from __future__ import annotations

import json
import queue
import threading
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import urlsplit

from sparring.errors import ConfigError, StorageError, nearest
from sparring.metrics import sqlite
from sparring.metrics.advice import Commands
from sparring.metrics.health import Alert, Change, Context, Engine
from sparring.metrics.rules import RULES, known_names

POLICIES = ("show", "stop", "ignore")
POST_SECONDS = 5.0
"""How long a webhook may take."""
WAITING = 100
"""Messages that may wait for a webhook; more are dropped."""

T = TypeVar("T")


class TakesAlerts(Protocol):
    """A tracker that shows alerts; it never waits and never raises (`metrics.apart.Apart`)."""

    def alert(self, step: int, title: str, text: str, level: str = "warning", seed: int = 0) -> None: ...


class HealthSink:
    """Feeds every record to the health rules; says, stores and passes on what they find. Never waits."""

    def __init__(
        self,
        path: Path | str | None,
        algo: str,
        config: Mapping[str, Any],
        *,
        total: int = 0,
        target: float | None = None,
        say: Callable[[str], None] = print,
        on_stop: Callable[[Alert], None] | None = None,
        on_alert: Mapping[str, str] | None = None,
        webhook: str = "",
        trackers: Sequence[TakesAlerts] = (),
        env: str = "",
        run: str = "",
        post_seconds: float = POST_SECONDS,
    ) -> None:
        self.policy = check_policy(on_alert or {})
        ignored = {name for name, what in self.policy.items() if what == "ignore"}
        self.engine = Engine(RULES, Context(algo, total, dict(config), target), ignored)
        self._path = None if path is None else Path(path)
        self._say = say
        self._on_stop = on_stop
        self._run = run or ("" if self._path is None else self._path.parent.name)
        self._commands = Commands(algo, env, self._run, config, total)
        self._trackers = tuple(trackers)
        self._broken = False
        self._closed = False
        self._store = None if self._path is None else _Background(self._keep, "sparring-alerts")
        self._post = _Background(_Webhook(webhook, post_seconds), "sparring-webhook") if webhook else None

    @property
    def alerts(self) -> list[Alert]:
        """All alerts so far, by the order in which they were raised."""
        return self.engine.alerts

    def write(self, step: int, seconds: float, values: Mapping[str, float], seed: int = 0) -> None:
        if self._broken:
            return
        try:
            changes = self.engine.feed(int(step), values, int(seed))
        except Exception as error:  # noqa: BLE001  (a faulty rule must not end a training)
            self._broken = True
            self._say(f"Warning: the health rules stopped at step {step:,}: {type(error).__name__}: {error}")
            return
        for change in changes:
            self._tell(change)

    def catch_up(self) -> None:
        """Shows the rules what a resumed run wrote before, without raising its alerts again."""
        if self._path is not None and self._path.is_file():
            for step, seed, values in sqlite.records(self._path):
                self.engine.feed(step, values, seed)

    def close(self) -> None:
        """Judges the run as a whole and stores what still lasts; waits for a webhook only a moment."""
        if self._closed:
            return
        self._closed = True
        if not self._broken:
            for change in self.engine.finish():
                self._tell(change, aloud=change.alert.level != "note")
        if self._store is not None:
            self._store.put(list(map(stored, self.alerts)))
            self._store.close()
        if self._post is not None:
            self._post.close(POST_SECONDS)
        for part in (self._store, self._post):
            if part is not None and part.failures:
                lost = f" ({part.failures} messages)" if part.failures > 1 else ""
                self._say(f"Warning: {part.last_failure}{lost}")

    def _tell(self, change: Change, aloud: bool = True) -> None:
        alert = change.alert
        if self._store is not None:
            self._store.put([stored(alert)])
        if change.kind == "cleared":
            return
        if aloud and alert.level != "note":
            command = self._commands.first(alert.rule, alert.value)
            self._say(f"{alert.line()} ({alert.rule.meaning}). Try: {command or 'sparring diagnose last'}")
            if self._post is not None:
                self._post.put(message(alert, self._run, command))
            for tracker in self._trackers:
                words = message(alert, self._run, command)["text"]
                level = "error" if alert.level == "error" else "warning"
                tracker.alert(alert.onset, f"{alert.rule.id} {alert.rule.name}", words, level, alert.seed)
        rule = alert.rule
        wants_stop = "stop" in (self.policy.get(rule.key), self.policy.get(rule.id))
        if self._on_stop is not None and wants_stop and rule.scope != "end":
            self._on_stop(alert)

    def _keep(self, rows: list[sqlite.StoredAlert]) -> None:
        assert self._path is not None
        sqlite.store_alerts(self._path, rows)


def check_policy(given: Mapping[str, str]) -> dict[str, str]:
    """What to do on a rule's alert, verified: ids (R02) or keys (R02.kl_high) to show, stop or ignore."""
    known = known_names()
    for name, what in given.items():
        if name not in known:
            raise ConfigError(f"on_alert names no health rule: {name!r}.{nearest(name, known)}")
        if what not in POLICIES:
            raise ConfigError(f"on_alert for {name} is {what!r}; it can be {', '.join(POLICIES)}.")
    return dict(given)


def parse_policy(text: str) -> dict[str, str]:
    """`R01=stop R14.saturated=ignore` as a policy; commas do as well."""
    pairs = [part.partition("=") for part in text.replace(",", " ").split()]
    return check_policy({name: what for name, _, what in pairs})


def stored(alert: Alert) -> sqlite.StoredAlert:
    """An alert as the run's file keeps it."""
    rule = alert.rule
    return sqlite.StoredAlert(
        rule.id,
        rule.name,
        alert.seed,
        alert.onset,
        alert.level,
        alert.last,
        alert.cleared,
        alert.worst,
        alert.evidence,
    )


def message(alert: Alert, run: str, command: str = "") -> dict[str, Any]:
    """What a webhook gets; `text` and `content` are what chat services show."""
    words = f"{run}: {alert.line()}. {alert.rule.meaning}; likely: {', '.join(alert.rule.causes)}"
    if command:
        words += f". Try: {command}"
    return {
        "text": words,
        "content": words,
        "run": run,
        "rule": alert.rule.id,
        "name": alert.rule.name,
        "level": alert.level,
        "step": alert.onset,
        "seed": alert.seed,
        "evidence": alert.evidence,
        "causes": list(alert.rule.causes),
        "try": command,
    }


class _Webhook:
    """Posts a message as JSON."""

    def __init__(self, address: str, seconds: float) -> None:
        if urlsplit(address).scheme not in ("http", "https") or not urlsplit(address).netloc:
            raise ConfigError("The webhook must be an http or https address.")
        self._address = address
        self._seconds = seconds

    def __call__(self, content: dict[str, Any]) -> None:
        request = urllib.request.Request(  # noqa: S310  (the scheme was checked)
            self._address,
            json.dumps(content).encode(),
            {"Content-Type": "application/json", "User-Agent": "sparring"},
        )
        try:
            with urllib.request.urlopen(request, timeout=self._seconds):  # noqa: S310
                pass
        except OSError as error:  # the address may hold a secret: it is not shown
            raise StorageError(f"The webhook did not take an alert: {error}.") from error


class _Background(Generic[T]):
    """Does jobs one after the other in a thread; counts what failed and what found no room."""

    def __init__(self, work: Callable[[T], None], name: str) -> None:
        self._work = work
        self._queue: queue.Queue[T | None] = queue.Queue(WAITING)
        self.failures = 0
        self.last_failure = ""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, job: T) -> None:
        try:
            self._queue.put_nowait(job)
        except queue.Full:
            self._fail(f"{self._thread.name} was too slow and lost an alert")

    def close(self, seconds: float | None = None) -> None:
        """Finishes what waits, for at most so long."""
        try:
            self._queue.put(None, timeout=seconds)
        except queue.Full:
            self._fail(f"{self._thread.name} was too slow and lost an alert")
        self._thread.join(seconds)

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            try:
                self._work(job)
            except Exception as error:  # noqa: BLE001  (reported when the run ends)
                self._fail(str(error))

    def _fail(self, words: str) -> None:
        self.failures += 1
        self.last_failure = words
