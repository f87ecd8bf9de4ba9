"""What jax must be told before its backend starts."""

from __future__ import annotations

import os
import time
from typing import Any

import jax

from sparring.errors import ConfigError

# Programs that run once: compiling them well would cost more than running them badly.
ONCE: dict[str, Any] = {"xla_backend_optimization_level": 0}


def once_options() -> dict[str, Any] | None:
    """Compiler options for a program that runs once; only the CPU backend gains from them."""
    return ONCE if jax.default_backend() == "cpu" else None


ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"


def prepare(device: str = "auto", large: bool = False) -> None:
    """Chooses the device and makes small CPU calls cheap.

    They run synchronously, which halves the cost of acting, and on the calling thread: handing the kernels
    of a small network to a pool costs more than computing them. `large` networks (images) keep the pool.
    Without effect on what jax has already fixed by starting its backend, and on a choice made in XLA_FLAGS.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if not large and "xla_cpu_multi_thread_eigen" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {ONE_THREAD}".strip()
    if device not in ("auto", "cpu", "cuda", "gpu", "tpu"):
        raise ConfigError(f"device must be auto, cpu or cuda, got {device!r}.")
    if device == "cpu":
        jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    if device in ("cuda", "gpu") and jax.default_backend() == "cpu":
        raise ConfigError(
            "device='cuda' was asked for, but jax sees no GPU. Install it with: "
            "pip install 'sparring[cuda]', or use device='cpu'."
        )


_compiling: list[tuple[float, float]] = []
"""When this process traced, lowered or compiled: disjoint intervals in order of time."""


def _note_compilation(event: str, duration_secs: float, **_: str | int) -> None:
    if not event.startswith("/jax/core/compile/"):
        return
    end = time.perf_counter()
    start = end - duration_secs
    while _compiling and _compiling[-1][1] > start:  # an outer trace ends after the inner ones it contains
        start = min(start, _compiling.pop()[0])
    _compiling.append((start, end))


def compile_seconds() -> float:
    """Seconds that this process has spent compiling so far."""
    return sum(end - start for start, end in _compiling)


jax.monitoring.register_event_duration_secs_listener(_note_compilation)
