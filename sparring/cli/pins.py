"""Installed packages whose versions do not fit together: what somebody requires and nobody has."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from importlib import metadata
from typing import NamedTuple


class Unmet(NamedTuple):
    """A requirement that the installed packages do not meet."""

    by: str
    needs: str
    """the requirement as the package states it"""
    has: str
    """the version that is there; empty when there is none"""

    @property
    def text(self) -> str:
        return (
            f"{self.by} needs {self.needs}, and {self.has or 'it'} is {'' if self.has else 'not '}installed"
        )


def unmet(package: str, extras: Collection[str] = ()) -> Iterator[Unmet]:
    """The unmet requirements of a package with some of its extras, and of everything that they require."""
    from packaging.requirements import InvalidRequirement, Requirement

    waiting: list[tuple[str, frozenset[str]]] = [(package, frozenset(extras))]
    seen: set[tuple[str, frozenset[str]]] = set()
    said: set[tuple[str, str]] = set()
    while waiting:
        name, wanted = waiting.pop(0)
        if (normal(name), wanted) in seen:
            continue
        seen.add((normal(name), wanted))
        try:
            lines = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        for line in lines:
            try:
                need = Requirement(line)
            except InvalidRequirement:
                continue  # an old package's own way of writing
            if not _applies(need, wanted):
                continue
            has = installed(need.name)
            if (has is None or not need.specifier.contains(has, prereleases=True)) and (
                name,
                line,
            ) not in said:
                said.add((name, line))
                yield Unmet(name, f"{need.name}{need.specifier}", has or "")
            waiting.append((need.name, frozenset(need.extras)))


def _applies(need: object, extras: Collection[str]) -> bool:
    """Whether a requirement counts here, with these extras."""
    marker = getattr(need, "marker", None)
    if marker is None:
        return True
    return any(marker.evaluate({"extra": extra}) for extra in (extras or ("",)))


def installed(package: str) -> str | None:
    """The version of an installed package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
