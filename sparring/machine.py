"""What the machine lets this process use, and what it does to others."""

from __future__ import annotations

import os
import signal
from multiprocessing.process import BaseProcess


def usable_cores() -> int:
    """Processors that this process may run on, which may be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def end_of(process: BaseProcess) -> str:
    """How a process that hung up ended, in words that follow its name."""
    process.join(1.0)
    code = process.exitcode
    if code is None:
        return "closed its pipe but lives on"
    if code >= 0:
        return f"died with exit code {code}"
    known = {number.value: number.name for number in signal.Signals}
    return f"was killed by {known.get(-code, f'signal {-code}')}"
