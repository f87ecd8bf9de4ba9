"""Sealed JSON: one canonical spelling and its own SHA-256, so that any changed bit is seen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from sparring.errors import CheckpointError

SEAL = "sha256"


def seal(content: Mapping[str, Any]) -> bytes:
    """The canonical bytes of a JSON object with its checksum added."""
    try:
        digest = hashlib.sha256(_canonical(content)).hexdigest()
        return _canonical({**content, SEAL: digest})
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"Cannot be saved as JSON: {error}. Give plain finite numbers, texts, lists and mappings."
        ) from error


def unseal(data: bytes, name: str) -> dict[str, Any]:
    """The object in sealed bytes; an error that starts with `name` when a single bit differs."""
    try:
        content = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{name} is corrupt: it is not JSON ({error}).") from error
    if not isinstance(content, dict) or SEAL not in content:
        raise CheckpointError(f"{name} is corrupt or not written by sparring: it carries no checksum.")
    del content[SEAL]
    try:
        intact = seal(content) == data  # byte for byte: content, checksum and spelling
    except CheckpointError:
        intact = False
    if not intact:
        raise CheckpointError(f"{name} is corrupt: its checksum does not match.")
    return content


def _canonical(content: Mapping[str, Any]) -> bytes:
    text = json.dumps(content, sort_keys=True, indent=1, ensure_ascii=True, allow_nan=False)
    return text.encode("ascii") + b"\n"
