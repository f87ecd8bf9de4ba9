"""Reads what Weights & Biases wrote offline: `wandb/offline-run-…/run-….wandb`, without its service.

The file is a log of blocks of 32 KiB; a record is one or several checksummed chunks and holds a protobuf
message, for which the package's own definitions are used.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from sparring.errors import CheckpointError, missing_extra

HEAD = struct.Struct("<4sHB")
IDENTITY = (b":W&B", 0xBEE1)
CHUNK = struct.Struct("<IHB")
BLOCK = 32 * 1024
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
ALIASES = {
    "charts/episodic_return": "rollout/ep_rew_mean",
    "charts/episodic_length": "rollout/ep_len_mean",
    "charts/learning_rate": "train/learning_rate",
    "charts/SPS": "time/fps",
    "losses/approx_kl": "train/approx_kl",
    "losses/clipfrac": "train/clip_fraction",
    "losses/explained_variance": "train/explained_variance",
    "losses/value_loss": "train/value_loss",
    "losses/policy_loss": "train/policy_gradient_loss",
}
"""CleanRL's names in ours; SB3's are ours already."""


class Logged(NamedTuple):
    """An offline run: its name, settings, and numbers by step."""

    name: str
    config: dict[str, Any]
    records: list[tuple[int, int, dict[str, float]]]
    finished: bool


def find_file(folder: Path) -> Path | None:
    """The one `.wandb` file of a run's folder; None where there is none."""
    if folder.is_file() and folder.suffix == ".wandb":
        return folder
    found = sorted(folder.glob("run-*.wandb")) if folder.is_dir() else []
    return found[0] if found else None


def read(path: Path) -> Logged:
    """Everything a run logged; a file whose end was cut off gives what is whole."""
    try:
        from wandb.proto import wandb_internal_pb2
    except ImportError as error:
        raise missing_extra("wandb", "wandb") from error
    name, finished = path.stem.removeprefix("run-"), False
    config: dict[str, Any] = {}
    records: list[tuple[int, int, dict[str, float]]] = []
    for data in chunks(path):
        record = wandb_internal_pb2.Record()
        try:
            record.ParseFromString(data)
        except Exception as error:
            raise CheckpointError(f"{str(path)!r} holds a record that is no W&B message: {error}") from error
        kind = record.WhichOneof("record_type")
        if kind == "run":
            name = record.run.display_name or record.run.run_id or name
            config |= _config(record.run.config.update)
        elif kind == "config":
            config |= _config(record.config.update)
        elif kind == "history":
            values = _numbers(record.history.item)
            step = int(values.pop("global_step", values.get("_step", record.history.step.num)))
            records.append((step, 0, {ALIASES.get(k, k): v for k, v in values.items() if k[:1] != "_"}))
        elif kind == "exit":
            finished = record.exit.exit_code == 0
    return Logged(name, config, sorted(records, key=lambda r: r[0]), finished)


def chunks(path: Path) -> Iterator[bytes]:
    """The records of the log, put together; stops at an end that was cut off, refuses what is damaged."""
    data = path.read_bytes()
    if len(data) < HEAD.size or HEAD.unpack_from(data)[:2] != IDENTITY:
        raise CheckpointError(f"{str(path)!r} is not a file of W&B.")
    at, parts = HEAD.size, b""
    while at + CHUNK.size <= len(data):
        left = BLOCK - at % BLOCK
        if left < CHUNK.size:
            at += left
            continue
        check, length, kind = CHUNK.unpack_from(data, at)
        body = data[at + CHUNK.size : at + CHUNK.size + length]
        if len(body) < length or kind == 0:
            return
        if zlib.crc32(body, zlib.crc32(bytes([kind]))) != check:
            raise CheckpointError(f"{str(path)!r} is damaged at byte {at}: a checksum is wrong.")
        parts = body if kind in (FULL, FIRST) else parts + body
        if kind in (FULL, LAST):
            yield parts
        at += CHUNK.size + length


def _config(items: Any) -> dict[str, Any]:
    found = {}
    for item in items:
        key = item.key or ".".join(item.nested_key)
        if key and key != "_wandb":
            found[key] = _value(item.value_json)
    return found


def _numbers(items: Any) -> dict[str, float]:
    found = {}
    for item in items:
        value = _value(item.value_json)
        if value in ("NaN", "Infinity", "-Infinity"):
            value = float(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            found[item.key or "/".join(item.nested_key)] = float(value)
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return math.nan if text == "NaN" else None
