"""Observations that are windows of known data: the environment names one by a number and makes it again.

Imports no jax: environment workers use the module that asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparring.envs.masks import method_of

REFER, RESOLVE = "observation_reference", "resolve_observations"
"""The methods: the number of the observation returned last; and observations [N, …] of numbers [N]."""


def methods(env: Any) -> tuple[Callable[[], Any], Callable[[np.ndarray], Any]] | None:
    """Both methods of the environment or of one it wraps; None where one is missing."""
    found = [method_of(env, name) for name in (REFER, RESOLVE)]
    return (found[0], found[1]) if all(callable(each) for each in found) else None


def same(made: Any, seen: Any) -> bool:
    """Whether observations are equal bit for bit, type and shape included."""
    made_parts, seen_parts = (x if isinstance(x, dict) else {"": x} for x in (made, seen))
    return made_parts.keys() == seen_parts.keys() and all(
        np.asarray(made_parts[name]).dtype == part.dtype
        and np.asarray(made_parts[name]).shape == part.shape
        and np.asarray(made_parts[name]).tobytes() == np.ascontiguousarray(part).tobytes()
        for name, part in seen_parts.items()
    )
