"""A run's metrics for others: replayed from SQLite into a table or a tracker."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from sparring.errors import StorageError, missing_extra
from sparring.metrics import sqlite, trackers
from sparring.metrics.sqlite import StoredAlert
from sparring.runs.directory import RunDirectory
from sparring.runs.durable import replace_file, temporary

COLUMNS = ("seed", "step", "seconds", "name", "value")


def alerts(run: RunDirectory) -> list[StoredAlert]:
    """What the health rules said, by onset; empty where they kept nothing."""
    return (sqlite.alerts(run.metrics) or []) if run.metrics.is_file() else []


def write_csv(run: RunDirectory, path: Path) -> int:
    """One line per point; returns how many."""
    count = 0

    def lines() -> Iterator[bytes]:
        nonlocal count
        yield (",".join(COLUMNS) + "\n").encode()
        for record in sqlite.written(run.metrics):
            text = io.StringIO()
            rows = [(record.seed, record.step, record.seconds, n, v) for n, v in record.values.items()]
            csv.writer(text, lineterminator="\n").writerows(rows)
            count += len(rows)
            yield text.getvalue().encode()

    replace_file(path, lines())
    return count


def write_parquet(run: RunDirectory, path: Path) -> int:
    """The same table with typed columns; returns how many points."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise missing_extra("pyarrow", "parquet") from error
    rows = [
        (record.seed, record.step, record.seconds, name, value)
        for record in sqlite.written(run.metrics)
        for name, value in record.values.items()
    ]
    kinds = (pa.int64(), pa.int64(), pa.float64(), pa.string(), pa.float64())
    columns = list(zip(*rows, strict=True)) or [()] * len(COLUMNS)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    draft = temporary(path)
    try:
        parquet.write_table(pa.table(dict(zip(COLUMNS, arrays, strict=True))), draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return len(rows)


def replay(run: RunDirectory, tracker: str, folder: Path) -> int:
    """Every record of a run into a tracker that never saw it; returns how many points."""
    if tracker == "tensorboard" and any(folder.glob("**/events.*")):
        raise StorageError(
            f"{str(folder)!r} holds TensorBoard files already, and two runs in one folder cannot be told "
            "apart. Choose another folder with -o."
        )
    sink = trackers.make(tracker, folder, run.name, run.path)
    if hasattr(sink, "describe"):
        sink.describe(run.read_config())
    count = 0
    try:
        for record in sqlite.written(run.metrics):
            sink.write(*record)
            count += len(record.values)
        if hasattr(sink, "alert"):
            for alert in alerts(run):
                sink.alert(alert.onset, alert.name, alert.evidence, alert.level, alert.seed)
    finally:
        sink.close()
    return count
