"""Errors that a user can act on: what happened, why, and the fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SparringError(Exception):
    """A mistake or a failure that the user can mend; shown without a traceback by the command line."""

    exit_code = 2


class ConfigError(SparringError):
    """A setting that is unknown, of the wrong type or impossible."""


class NoPlace(ConfigError):
    """A cluster that has no node with what is asked for, as yet."""


class UnknownName(SparringError):
    """An environment, algorithm, run or key that does not exist."""


class MissingExtra(SparringError):
    """An optional dependency that is not installed."""


class SpaceMismatch(SparringError):
    """Spaces that the algorithm or a saved agent cannot work with."""


class EnvironmentFailure(SparringError):
    """An environment that raised, returned garbage, died or broke its contract."""

    exit_code = 3


class LearnerLost(EnvironmentFailure):
    """A learner in a cluster that died; another can go on from the newest checkpoint."""


class CheckpointError(SparringError):
    """A saved file that is missing, corrupt, foreign or of an unknown schema."""

    exit_code = 4


class StorageError(SparringError):
    """A disk that is full, read-only or in use by another process."""

    exit_code = 5


class DivergedError(SparringError):
    """Training met a value that is not finite and stopped at the last good checkpoint."""

    exit_code = 6


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence that offers the known names closest to a mistyped one, or nothing."""
    known = list(known)
    lowered = {k.lower(): k for k in known}
    hits = difflib.get_close_matches(name.lower(), list(lowered), n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(repr(lowered[h]) for h in hits)}?" if hits else ""


def missing_extra(package: str, extra: str) -> MissingExtra:
    """The error for an import that failed because an extra is not installed."""
    return MissingExtra(f"{package!r} is not installed. Install it with: pip install 'sparring[{extra}]'")
