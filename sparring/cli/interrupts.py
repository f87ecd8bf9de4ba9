"""Signals before training begins, when there is nothing to save yet."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ABORTED = 130


@contextmanager
def until_ready() -> Iterator[Callable[[], None]]:
    """Ctrl-C and SIGTERM end the process at once, until the function that this yields is called.

    An exception would not do: raised while jax compiles, it can be swallowed by a callback of its own.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return

    def leave(number: int, frame: FrameType | None) -> None:
        sys.stderr.write("Stopped before training began; there is nothing to resume.\n")
        sys.stderr.flush()
        os._exit(ABORTED)

    before = {kind: signal.signal(kind, leave) for kind in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        while before:
            signal.signal(*before.popitem())

    try:
        yield restore
    finally:
        restore()
