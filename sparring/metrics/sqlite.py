"""Metrics in SQLite: the truth about a run, written by one background thread, readable while it trains.

One narrow row per point, clustered by (key, seed, step), so that a curve is one contiguous read. The file is
in WAL mode: a killed process loses at most the last second, never the file.
"""

from __future__ import annotations

import functools
import itertools
import math
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from sparring.errors import StorageError

SCHEMA = 1
FLUSH_SECONDS = 0.5
CAPACITY = 10_000
"""Records that may wait for the writer; beyond that `write` waits too."""
TOGETHER = 150
"""Points that one statement writes: SQLite of before 2020 takes 999 values, two for each point."""

# Added to schema 1 after its first files: readers take a file without it for one without alerts.
_ALERTS = """
CREATE TABLE IF NOT EXISTS alerts (
    rule TEXT NOT NULL, name TEXT NOT NULL, seed INTEGER NOT NULL, onset INTEGER NOT NULL,
    level TEXT NOT NULL, last INTEGER NOT NULL, cleared INTEGER, value REAL, evidence TEXT NOT NULL,
    PRIMARY KEY (rule, name, seed, onset)
) WITHOUT ROWID;
"""
_TABLES = f"""
CREATE TABLE IF NOT EXISTS keys (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS points (
    key INTEGER NOT NULL, seed INTEGER NOT NULL, step INTEGER NOT NULL, time REAL NOT NULL, value REAL,
    PRIMARY KEY (key, seed, step)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS metadata (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
{_ALERTS}
PRAGMA user_version = {SCHEMA};
"""


class Curve(NamedTuple):
    """One metric of one seed, by step."""

    steps: np.ndarray
    times: np.ndarray
    values: np.ndarray


class StoredAlert(NamedTuple):
    """A health rule's alert as the file keeps it."""

    rule: str
    name: str
    seed: int
    onset: int
    level: str
    last: int
    cleared: int | None
    """step at which it was over; None while it lasts"""
    value: float | None
    evidence: str


class _Record(NamedTuple):
    step: int
    seconds: float
    values: Mapping[str, float]
    seed: int


class _Job(NamedTuple):
    """Something the writer must do between two records; `done` is set when it has tried."""

    statements: tuple[tuple[str, tuple[Any, ...]], ...]
    done: threading.Event


class SqliteSink:
    """Writes metrics to a file from a background thread; a full disk is reported by the next call.

    The writer sleeps between flushes, however many records come, and writes a record with one statement: a
    statement a point gives up and takes back the interpreter so often that the thread which trains has to
    wait for its turn, five milliseconds at a time.
    """

    def __init__(
        self, path: Path | str, flush_seconds: float = FLUSH_SECONDS, capacity: int = CAPACITY
    ) -> None:
        self.path = Path(path)
        self._flush_seconds = flush_seconds
        self._capacity = capacity
        self._queue: SimpleQueue[_Record | _Job] = SimpleQueue()  # its put takes no lock that is waited for
        self._stop = threading.Event()
        self._wanted = threading.Event()
        """set when the writer shall not sleep any longer"""
        self._failure: Exception | None = None
        self._keys: dict[str, int] = {}
        try:
            self._connection = _connect(self.path)
        except sqlite3.Error as error:
            raise self._storage_error(error) from error
        self._thread = threading.Thread(target=self._run, name="sparring-metrics", daemon=True)
        self._thread.start()

    def write(self, step: int, seconds: float, values: Mapping[str, float], seed: int = 0) -> None:
        """Queues numbers; raises StorageError when earlier ones could not be written."""
        self._check_open()
        self._raise_failure()
        plain = {name: float(value) for name, value in values.items()}
        self._put(_Record(int(step), float(seconds), plain, int(seed)))

    def truncate_after(self, step: int) -> None:
        """Deletes points and alerts beyond a step: those of steps that a resumed run will take again."""
        self._do(
            ("DELETE FROM points WHERE step > ?", (int(step),)),
            ("DELETE FROM alerts WHERE onset > ?", (int(step),)),
            ("UPDATE alerts SET cleared = NULL WHERE cleared > ?", (int(step),)),
            ("UPDATE alerts SET last = ?1 WHERE last > ?1", (int(step),)),
        )

    def describe(self, metadata: Mapping[str, Any]) -> None:
        """Stores facts about the run beside its metrics."""
        insert = "INSERT OR REPLACE INTO metadata VALUES (?, ?)"
        self._do(*((insert, (str(name), str(value))) for name, value in metadata.items()))

    def flush(self) -> None:
        """Returns when everything written so far is in the file."""
        self._do()

    def close(self) -> None:
        """Writes what is queued and closes the file."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._wanted.set()
        self._thread.join()
        self._connection.close()
        self._raise_failure()

    def _do(self, *statements: tuple[str, tuple[Any, ...]]) -> None:
        self._check_open()
        job = _Job(statements, threading.Event())
        self._put(job)
        self._wanted.set()
        while not job.done.wait(0.2):
            self._raise_failure()
        self._raise_failure()

    def _put(self, item: _Record | _Job) -> None:
        while self._queue.qsize() >= self._capacity:
            self._raise_failure()  # otherwise the writer is only slow: wait for it
            self._wanted.set()
            time.sleep(0.001)
        self._queue.put(item)

    def _check_open(self) -> None:
        if self._stop.is_set():
            raise StorageError(f"The metrics file {str(self.path)!r} is closed.")

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._storage_error(self._failure) from self._failure

    def _storage_error(self, error: Exception) -> StorageError:
        return StorageError(
            f"Metrics could not be written to {str(self.path)!r}: {error}. Free some space or choose another "
            "folder; points already in the file are safe."
        )

    def _run(self) -> None:
        """Lets records gather for a moment, writes them in one transaction; keeps and retries what failed."""
        batch: list[_Record | _Job] = []
        while not self._stop.is_set():
            if self._failure is not None and batch:
                self._stop.wait(self._flush_seconds)
            else:
                self._wanted.wait(self._flush_seconds)
                self._wanted.clear()
                self._take(batch)
            self._flush(batch)
        self._take(batch)
        self._flush(batch)

    def _take(self, batch: list[_Record | _Job]) -> None:
        """Everything that waits now."""
        for _ in range(self._queue.qsize()):
            batch.append(self._queue.get_nowait())

    def _flush(self, batch: list[_Record | _Job]) -> None:
        try:
            if batch:
                with self._connection:
                    for item in batch:
                        self._apply(item)
            self._failure = None
            done = batch[:]
            batch.clear()
        except (sqlite3.Error, OverflowError) as error:
            self._failure = error
            self._keys.clear()  # ids given in the transaction that was rolled back
            done = [item for item in batch if isinstance(item, _Job)]
            batch[:] = [item for item in batch if not isinstance(item, _Job)]
        for item in done:
            if isinstance(item, _Job):
                item.done.set()

    def _apply(self, item: _Record | _Job) -> None:
        if isinstance(item, _Job):
            for statement, arguments in item.statements:
                self._connection.execute(statement, arguments)
            return
        points = iter(item.values.items())
        while some := list(itertools.islice(points, TOGETHER)):
            values = [x for name, value in some for x in (self._key(name), value)]
            self._connection.execute(_insert(len(some)), (item.seed, item.step, item.seconds, *values))

    def _key(self, name: str) -> int:
        if name not in self._keys:
            self._connection.execute("INSERT OR IGNORE INTO keys (name) VALUES (?)", (name,))
            row = self._connection.execute("SELECT id FROM keys WHERE name = ?", (name,)).fetchone()
            self._keys[name] = int(row[0])
        return self._keys[name]


@functools.cache
def _insert(points: int) -> str:
    """The statement for so many points of one seed, step and time."""
    rows = ", ".join(f"(?{4 + 2 * i}, ?1, ?2, ?3, ?{5 + 2 * i})" for i in range(points))
    return f"INSERT OR REPLACE INTO points VALUES {rows}"  # noqa: S608  (numbers of ours)


def read(path: Path | str, name: str, seed: int = 0) -> Curve:
    """One metric of one seed, by step; empty when it was never written. NaN is kept."""
    query = (
        "SELECT step, time, value FROM points WHERE key = (SELECT id FROM keys WHERE name = ?) AND seed = ? "
        "ORDER BY step"
    )
    with _reader(path) as connection:
        rows = connection.execute(query, (name, seed)).fetchall()
    table = np.array(rows, np.float64).reshape(-1, 3)  # SQLite's NULL becomes NaN again
    return Curve(table[:, 0].astype(np.int64), table[:, 1], table[:, 2])


class Record(NamedTuple):
    """Numbers that were written together."""

    step: int
    seconds: float
    values: dict[str, float]
    seed: int


def written(path: Path | str) -> Iterator[Record]:
    """Everything in the file by step, as it can be handed to another sink."""
    query = (
        "SELECT step, time, seed, name, value FROM points JOIN keys ON keys.id = points.key "
        "ORDER BY step, seed, time, name"
    )
    with _reader(path) as connection:
        together = itertools.groupby(connection.execute(query), key=lambda row: row[:3])
        for (step, seconds, seed), rows in together:
            values = {name: math.nan if value is None else value for *_, name, value in rows}
            yield Record(step, seconds, values, seed)


def names(path: Path | str) -> list[str]:
    """The metrics that have at least one point."""
    query = "SELECT name FROM keys WHERE EXISTS (SELECT 1 FROM points WHERE key = id) ORDER BY name"
    with _reader(path) as connection:
        return [row[0] for row in connection.execute(query)]


def seeds(path: Path | str) -> list[int]:
    """The seeds that wrote points."""
    with _reader(path) as connection:
        return [row[0] for row in connection.execute("SELECT DISTINCT seed FROM points ORDER BY seed")]


def last(path: Path | str, name: str, seed: int = 0) -> float | None:
    """The newest value of a metric, or None."""
    values = read(path, name, seed).values
    return float(values[-1]) if len(values) else None


def records(path: Path | str, since: int = 0) -> Iterator[tuple[int, int, dict[str, float]]]:
    """Everything that was written, in order of steps: (step, seed, values by name)."""
    for record in written(path):
        if record.step >= since:
            yield record.step, record.seed, dict(record.values)


def alerts(path: Path | str, most: int = -1) -> list[StoredAlert] | None:
    """The first alerts in a file, by onset, or all; None for a file from before there were any."""
    with _reader(path) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'alerts'").fetchone():
            return None
        fields = ", ".join(StoredAlert._fields)
        query = f"SELECT {fields} FROM alerts ORDER BY onset, rule, name, seed LIMIT ?"  # noqa: S608
        return [StoredAlert(*row) for row in connection.execute(query, (most,))]


def store_alerts(path: Path | str, rows: Iterable[StoredAlert]) -> None:
    """Writes alerts beside the metrics; one that is there already is replaced."""
    places = ", ".join("?" for _ in StoredAlert._fields)
    fields = ", ".join(StoredAlert._fields)
    try:
        connection = _connect(Path(path))
        try:
            with connection:
                connection.executemany(
                    f"INSERT OR REPLACE INTO alerts ({fields}) VALUES ({places})",  # noqa: S608  (names of ours)
                    rows,
                )
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise StorageError(f"Alerts could not be written to {str(path)!r}: {error}.") from error


def metadata(path: Path | str) -> dict[str, str]:
    """The facts stored beside the metrics."""
    with _reader(path) as connection:
        return dict(connection.execute("SELECT name, value FROM metadata ORDER BY name").fetchall())


def _connect(path: Path) -> sqlite3.Connection:
    # Only the writer thread uses the connection once it runs; it is opened here so that errors show at once.
    connection = sqlite3.connect(path, timeout=5.0, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if version > SCHEMA:
            raise StorageError(
                f"{str(path)!r} was written by a newer sparring (metrics schema {version}, this version "
                f"reads {SCHEMA}). Update sparring: pip install -U sparring"
            )
        connection.executescript(_TABLES)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def _reader(path: Path | str) -> Iterator[sqlite3.Connection]:
    file = Path(path)
    if not file.is_file():
        raise StorageError(f"There are no metrics at {str(file)!r}.")
    address = f"{file.absolute().as_uri()}?mode=ro"
    connection = sqlite3.connect(address, uri=True, timeout=5.0)
    try:
        yield connection
    except sqlite3.Error as error:
        raise StorageError(f"The metrics in {str(file)!r} cannot be read: {error}.") from error
    finally:
        connection.close()
