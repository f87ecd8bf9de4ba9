"""Torsos from a user's own file, named `file.py:Name`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparring.errors import ConfigError
from sparring.reference import load


def custom_torso(reference: str) -> Callable[..., Any]:
    """A factory (key, observation space, frames) → module with `outputs` and `__call__(obs)`."""
    factory = load(reference)
    if not callable(factory):
        raise ConfigError(f"network={reference!r} must name a class or function that builds a torso.")
    made: Callable[..., Any] = factory
    return made
