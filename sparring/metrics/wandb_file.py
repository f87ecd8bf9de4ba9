"""Reads the `.wandb` file of an offline run: a LevelDB log of wandb's own protobuf records."""

from __future__ import annotations

import json
import struct
import zlib
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from sparring.errors import CheckpointError, missing_extra

MAGIC = b":W&B"
HEADER = 7
BLOCK = 2**15
FRAME = struct.Struct("<IHB")
"""Checksum, length and kind of a fragment."""
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


class WandbRun(NamedTuple):
    """What an offline run holds."""

    name: str
    config: dict[str, Any]
    history: list[dict[str, Any]]
    """every logged row, in order"""
    alerts: list[tuple[str, str, str]]
    """title, text and level"""
    artifacts: dict[str, list[str]]
    """name → files"""


def read(path: Path | str) -> WandbRun:
    """The run in a `.wandb` file, or in a folder that holds one."""
    file = locate(Path(path))
    try:
        from wandb.proto import wandb_internal_pb2
    except ImportError as error:
        raise missing_extra("wandb", "wandb") from error
    found = WandbRun("", {}, [], [], {})
    for data in records(file):
        record = wandb_internal_pb2.Record.FromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found = found._replace(name=record.run.display_name)
            _update(found.config, record.run.config.update)
        elif kind == "config":
            _update(found.config, record.config.update)
        elif kind == "history":
            found.history.append({_key(item): json.loads(item.value_json) for item in record.history.item})
        elif kind == "alert":
            found.alerts.append((record.alert.title, record.alert.text, record.alert.level))
        elif kind == "artifact":
            found.artifacts[record.artifact.name] = [e.path for e in record.artifact.manifest.contents]
        elif kind == "request" and record.request.WhichOneof("request_type") == "log_artifact":
            made = record.request.log_artifact.artifact
            found.artifacts[made.name] = [e.path for e in made.manifest.contents]
    return found


def ended(path: Path | str) -> bool:
    """Whether wandb wrote all of a run: the last record says how its process ended."""
    from wandb.proto import wandb_internal_pb2

    last = deque(records(Path(path)), maxlen=1)
    return any(wandb_internal_pb2.Record.FromString(r).WhichOneof("record_type") == "exit" for r in last)


def locate(path: Path) -> Path:
    """The one `.wandb` file at or under a path."""
    files = [path] if path.is_file() else sorted(path.glob("**/*.wandb"))
    if len(files) != 1:
        raise CheckpointError(
            f"{str(path)!r} holds {len(files)} `.wandb` files; name the folder of one run: …/offline-run-…"
        )
    return files[0]


def records(file: Path) -> Iterator[bytes]:
    """The records of a log; a torn end, as a killed process leaves it, is where they stop."""
    data = file.read_bytes()
    if data[:4] != MAGIC:
        raise CheckpointError(f"{str(file)!r} is not a W&B run: it does not begin with {MAGIC!r}.")
    position, whole = HEADER, b""
    while position + FRAME.size <= len(data):
        if BLOCK - position % BLOCK < FRAME.size:  # a block's last bytes are padding
            position += BLOCK - position % BLOCK
            continue
        checksum, length, kind = FRAME.unpack_from(data, position)
        body = data[position + FRAME.size : position + FRAME.size + length]
        if kind == 0 or len(body) < length:
            return
        if zlib.crc32(body, zlib.crc32(bytes([kind]))) != checksum:
            raise CheckpointError(f"{str(file)!r} is corrupt: a checksum does not match.")
        position += FRAME.size + length
        whole = body if kind in (FULL, FIRST) else whole + body
        if kind in (FULL, LAST):
            yield whole


def _update(config: dict[str, Any], items: Any) -> None:
    config.update({_key(item): json.loads(item.value_json) for item in items})


def _key(item: Any) -> str:
    return item.key or "/".join(item.nested_key)
