"""One process at a time: an advisory lock on a file that the system releases when its holder dies."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from sparring.errors import StorageError

_ATTEMPTS = 6
_PAUSE_SECONDS = 0.05
_FAR = 2**30
"""Where Windows locks a byte: beyond the process number, which others must be able to read."""

if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int) -> bool:
        os.lseek(descriptor, _FAR, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _unlock(descriptor: int) -> None:
        os.lseek(descriptor, _FAR, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _try_lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


class Lock:
    """The right to write to a run; held until `release` or the end of the process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Takes the lock, or says at once which process has it; harmless when it is held already."""
        if self._descriptor is not None:
            return
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        # A few attempts: `is_held` of another process takes the lock for a blink.
        for attempt in range(_ATTEMPTS):
            if _try_lock(descriptor):
                break
            if attempt == _ATTEMPTS - 1:
                os.close(descriptor)
                raise StorageError(
                    f"{str(self.path.parent)!r} is in use by process {holder(self.path)}. Wait for it or "
                    "stop it, or choose another folder with --run-dir."
                )
            time.sleep(_PAUSE_SECONDS)
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        self._descriptor = descriptor

    def release(self) -> None:
        """Gives the lock back; harmless when it is not held."""
        if self._descriptor is not None:
            _unlock(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None


def is_held(path: Path) -> bool:
    """Whether a living process holds the lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:  # never locked, or not ours to look at
        return False
    try:
        if not _try_lock(descriptor):
            return True
        _unlock(descriptor)
        return False
    finally:
        os.close(descriptor)


def holder(path: Path) -> str:
    """The number of the process that took the lock last, or a question mark."""
    try:
        return path.read_text().strip() or "?"
    except OSError:
        return "?"
