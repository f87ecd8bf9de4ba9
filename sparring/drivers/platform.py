"""What jax must be told before its backend starts."""

from __future__ import annotations

import os
from typing import Any

import jax

from sparring.errors import ConfigError

# Programs that run once: compiling them well would cost more than running them badly.
ONCE: dict[str, Any] = {"xla_backend_optimization_level": 0}


def once_options() -> dict[str, Any] | None:
    """Compiler options for a program that runs once; only the CPU backend gains from them."""
    return ONCE if jax.default_backend() == "cpu" else None


def prepare(device: str = "auto") -> None:
    """Chooses the device and makes small CPU calls synchronous, which halves the cost of acting.

    Without effect on settings that jax has already fixed by starting its backend.
    """
    if device not in ("auto", "cpu", "cuda", "gpu", "tpu"):
        raise ConfigError(f"device must be auto, cpu or cuda, got {device!r}.")
    if device == "cpu":
        jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    if device in ("cuda", "gpu") and jax.default_backend() == "cpu":
        raise ConfigError(
            "device='cuda' was asked for, but jax sees no GPU. Install it with: pip install 'sparring[cuda]', "
            "or use device='cpu'."
        )


def visible_cores() -> int:
    """Cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
