"""Writing that survives a kill or a power cut: whole files, synced, renamed into place."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

TEMPORARY = ".tmp-"


class FileRecord(NamedTuple):
    """Size and SHA-256 of one file."""

    size: int
    sha256: str


def write_file(path: Path, chunks: Iterable[bytes | memoryview], sync: bool = True) -> FileRecord:
    """Writes a new file and syncs it to the disk; the record describes the bytes that were meant."""
    digest = hashlib.sha256()
    size = 0
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags, 0o666)
    try:
        for chunk in chunks:
            digest.update(chunk)
            rest = memoryview(chunk)
            size += len(rest)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return FileRecord(size, digest.hexdigest())


def record_file(path: Path) -> FileRecord:
    """Size and SHA-256 of a file as it is now."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return FileRecord(file.tell(), digest.hexdigest())


def sync_folder(path: Path) -> None:
    """Makes names that were created or renamed in a folder durable, where the system can."""
    if os.name == "nt":  # a folder cannot be opened for syncing there
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def temporary(path: Path) -> Path:
    """A fresh name beside `path` that readers ignore."""
    return path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}-{time.monotonic_ns()}")


def replace_file(path: Path, chunks: Iterable[bytes | memoryview]) -> FileRecord:
    """Writes a file under a temporary name and renames it over `path`: old or new, never half."""
    draft = temporary(path)
    try:
        record = write_file(draft, chunks)
        os.replace(draft, path)
    except BaseException:
        discard(draft)
        raise
    sync_folder(path.parent)
    return record


def discard(path: Path) -> None:
    """Deletes a draft after a failure, if it can: what failed before is what the user must hear about."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def remove_folder(path: Path) -> None:
    """Deletes a folder; its name disappears in one step, so no reader sees half of it."""
    doomed = temporary(path)
    os.rename(path, doomed)
    shutil.rmtree(doomed)


def sweep(folder: Path) -> None:
    """Deletes what a killed writer left behind in a folder that only this process writes to."""
    for leftover in folder.glob(f"{TEMPORARY}*"):
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()
