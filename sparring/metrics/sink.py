"""The seam between a run and whatever keeps or shows its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, runtime_checkable


@runtime_checkable
class Sink(Protocol):
    """Takes named numbers at a step; cheap to call, never on the device's hot path."""

    def write(self, step: int, seconds: float, values: Mapping[str, float], seed: int = 0) -> None:
        """Numbers at an environment step, `seconds` after training began; the same name at the same step
        replaces the earlier value."""
        ...

    def close(self) -> None:
        """Keeps everything written so far; calling it twice is fine."""
        ...


class Tee:
    """Hands every record to several sinks, in order."""

    def __init__(self, sinks: Iterable[Sink]) -> None:
        self.sinks = tuple(sinks)

    def write(self, step: int, seconds: float, values: Mapping[str, float], seed: int = 0) -> None:
        for sink in self.sinks:
            sink.write(step, seconds, values, seed)

    def close(self) -> None:
        """Closes all sinks, also when one of them fails; then raises what failed."""
        failures: list[Exception] = []
        for sink in self.sinks:
            try:
                sink.close()
            except Exception as error:  # noqa: BLE001 - the other sinks must be closed first
                failures.append(error)
        if failures:
            raise failures[0]
