"""Ray, where it is installed."""

from __future__ import annotations

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
