"""Ray, where it is installed."""

from __future__ import annotations

import contextlib
from typing import Any

from sparring.errors import MissingExtra


def library() -> Any:
    """Ray itself."""
    try:
        import ray
    except ImportError as error:
        raise MissingExtra(
            "driver=cluster needs Ray. Install it with: pip install 'sparring[cluster]', or use driver=async."
        ) from error
    return ray


def end(actor: Any) -> None:
    """Ends an actor; one that has gone with its node, or whose cluster has, is at its end already."""
    ray = library()
    with contextlib.suppress(ray.exceptions.RayError):
        ray.kill(actor)
