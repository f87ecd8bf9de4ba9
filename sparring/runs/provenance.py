"""Where a result came from: versions, hardware and flags that decide whether numbers repeat bit for bit."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from sparring.machine import usable_cores

PACKAGES = ("sparring", "jax", "jaxlib", "numpy")

EXACT = {
    "sparring": "sparring version",
    "jax": "jax version",
    "jaxlib": "jaxlib version",
    "device": "device kind",
    "cpu": "processor",
    "cores": "number of visible cores",
    "xla_flags": "XLA_FLAGS",
    "x64": "64-bit mode of jax",
}
"""What must be equal for a resumed run to repeat the uninterrupted one bit for bit."""


def provenance() -> dict[str, Any]:
    """The versions, hardware and flags of this process."""
    import jax

    return {
        **{package: _version(package) for package in PACKAGES},
        "python": platform.python_version(),
        "platform": f"{platform.system()}-{platform.machine()}",
        "device": device(),
        "cpu": processor(),
        "cores": usable_cores(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "x64": bool(jax.config.read("jax_enable_x64")),
    }


def device() -> str:
    """What jax computes on: `cpu`, or a GPU's name."""
    import jax

    return str(jax.devices()[0].device_kind)


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """One sentence for each difference because of which numbers may not repeat bit for bit."""
    return [
        f"The {meaning} was {saved.get(key)!r} and is now {now.get(key)!r}."
        for key, meaning in EXACT.items()
        if saved.get(key) != now.get(key)
    ]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # a checkout that was never installed
        return "unknown"


def processor(field: str = "model name") -> str:
    """What the system tells of the processor: its name, or another field such as its flags."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith(field):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
