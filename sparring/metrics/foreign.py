"""Strings that came from outside: names of metrics that users and environments chose, messages, folders.

They are data. Whoever shows them cleans them first, and a report for a model puts them inside a fence.
"""

from __future__ import annotations

from sparring.metrics.registry import meaning


def clean(text: str, limit: int = 80) -> str:
    """A foreign string as one short line of plain characters: nothing can look like markup or a new line."""
    kept = "".join(c if c.isascii() and c.isprintable() and c not in "<>`\\" else "?" for c in text)
    return kept if len(kept) <= limit else kept[: limit - 1] + "~"


def is_foreign(name: str) -> bool:
    """Whether a metric's name is not one of the system's own."""
    return name.startswith("env/") or not meaning(name)
