"""The versioned weight slot: a learner publishes, actors pull what is newer than what they have.

Weights are flat {name: array} mappings. One slot for each distance: threads share memory, processes share a
block of it, and machines or patient processes share files. Nothing that is pulled can run.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import struct
import threading
from collections.abc import Mapping
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from sparring.errors import CheckpointError
from sparring.runs import durable, tensors

Weights: TypeAlias = Mapping[str, np.ndarray]

KEPT = 3
"""Versions of which files are kept: a reader may be at the one before the last."""
_NAME = re.compile(r"(\d{12,})-([0-9a-f]{64})\.safetensors")


class Slot(Protocol):
    """Where the newest weights lie; versions only rise."""

    def publish(self, version: int, weights: Weights) -> None: ...
    def pull(self, newer_than: int) -> tuple[int, Weights] | None:
        """The newest weights and their version; None when there are none newer than that."""
        ...

    def close(self) -> None: ...


class MemorySlot:
    """Weights for threads of one process; they are handed over as they are, so nobody may write to them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: tuple[int, Weights] | None = None

    def publish(self, version: int, weights: Weights) -> None:
        with self._lock:
            if self._newest is None or version > self._newest[0]:
                self._newest = (version, dict(weights))

    def pull(self, newer_than: int) -> tuple[int, Weights] | None:
        with self._lock:
            newest = self._newest
        return newest if newest is not None and newest[0] > newer_than else None

    def close(self) -> None:
        """Nothing to release."""


class _Head(NamedTuple):
    """What stands before the weights in one half of a shared block."""

    version: int
    size: int
    digest: bytes


_HEAD = struct.Struct("<qq32s")
_NONE = -1


class SharedSlot:
    """Weights for processes of one machine: a block of shared memory with two halves, written in turn.

    Neither side waits for the other. A reader that is overtaken twice while it copies, or finds what a killed
    writer left, sees that the checksum does not match, and comes again.
    """

    def __init__(self, size: int, name: str | None = None) -> None:
        """Makes a block for weights of up to `size` bytes, or with a name opens one."""
        self._half = -(-(_HEAD.size + size) // 64) * 64
        self._size = size
        self._memory = SharedMemory(name=name, create=name is None, size=2 * self._half)
        self._owner = name is None
        if self._owner:
            for half in range(2):
                _HEAD.pack_into(self._bytes, half * self._half, _NONE, 0, b"")

    def __reduce__(self) -> tuple[type[SharedSlot], tuple[int, str]]:
        """Another process opens the same block."""
        return SharedSlot, (self._size, self._memory.name)

    def publish(self, version: int, weights: Weights) -> None:
        heads = [self._head(half) for half in range(2)]
        if version <= max(head.version for head in heads):
            return
        half = 0 if heads[0].version <= heads[1].version else 1
        data = b"".join(tensors.encode(weights))
        if len(data) > self._half - _HEAD.size:
            raise ValueError(f"weights of {len(data)} bytes do not fit into a slot of {self._size}")
        at = half * self._half
        _HEAD.pack_into(self._bytes, at, _NONE, 0, b"")  # what is here is not whole
        self._bytes[at + _HEAD.size : at + _HEAD.size + len(data)] = data
        _HEAD.pack_into(self._bytes, at, version, len(data), hashlib.sha256(data).digest())

    def pull(self, newer_than: int) -> tuple[int, Weights] | None:
        for head, half in sorted(((self._head(half), half) for half in range(2)), reverse=True):
            if head.version <= newer_than or not 0 < head.size <= self._half - _HEAD.size:
                continue
            at = half * self._half + _HEAD.size
            data = bytes(self._bytes[at : at + head.size])
            if hashlib.sha256(data).digest() == head.digest:
                return head.version, tensors.decode(data, f"weights {head.version}")
        return None

    def close(self) -> None:
        """Lets go of the memory; whoever made it also removes it."""
        self._memory.close()
        if self._owner:
            self._owner = False
            with contextlib.suppress(FileNotFoundError):
                self._memory.unlink()

    @property
    def _bytes(self) -> memoryview:
        assert self._memory.buf is not None, "the slot is closed"
        return self._memory.buf

    def _head(self, half: int) -> _Head:
        return _Head(*_HEAD.unpack_from(self._bytes, half * self._half))


class FileSlot:
    """Weights as files `VERSION-SHA256.safetensors` of a folder, each published by one rename.

    A name holds the checksum of its content: a file that is torn, damaged or not ours is passed over.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def publish(self, version: int, weights: Weights) -> None:
        if any(version <= known for known, _ in self._listing()):
            return
        chunks = list(tensors.encode(weights))
        digest = hashlib.sha256()
        for chunk in chunks:
            digest.update(chunk)
        durable.replace_file(self.folder / f"{version:012d}-{digest.hexdigest()}.safetensors", chunks)
        for _, path in self._listing()[KEPT:]:
            path.unlink(missing_ok=True)

    def pull(self, newer_than: int) -> tuple[int, Weights] | None:
        for version, path in self._listing():
            if version <= newer_than:
                return None
            with contextlib.suppress(FileNotFoundError, CheckpointError):  # overtaken, or not weights at all
                data = path.read_bytes()
                if hashlib.sha256(data).hexdigest() == path.stem.partition("-")[2]:
                    return version, tensors.decode(data, path.name)
        return None

    def close(self) -> None:
        """The files belong to whoever made the folder."""

    def _listing(self) -> list[tuple[int, Path]]:
        """Versions and files of this slot, newest first."""
        found = ((_NAME.fullmatch(name), name) for name in os.listdir(self.folder))
        return sorted(((int(m[1]), self.folder / name) for m, name in found if m is not None), reverse=True)
