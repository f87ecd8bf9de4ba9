"""The machine that a cost was measured on, and how busy it was."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from typing import Any


def described(load_before: Sequence[float]) -> dict[str, Any]:
    """System, cores, and the load before the measurement and now."""
    return {
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "load_before": [round(x, 1) for x in load_before],
        "load_after": [round(x, 1) for x in os.getloadavg()],
    }
