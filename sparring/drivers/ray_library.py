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


def losses() -> tuple[type[Exception], ...]:
    """What Ray raises where an actor is gone, or what it answered went with its node before it was fetched.

    What an actor itself raised is none of these.
    """
    found = library().exceptions
    return (found.RayActorError, found.ObjectLostError, found.NodeDiedError)


def end(actor: Any) -> None:
    """Ends an actor; one that has gone with its node, or whose cluster has, is at its end already."""
    ray = library()
    with contextlib.suppress(ray.exceptions.RayError):
        ray.kill(actor)
