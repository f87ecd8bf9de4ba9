"""The seam between a run and whatever keeps or shows its numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable


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


class Tracker(Sink, Protocol):
    """A sink that also takes what is not a number. Use one through `Apart`, which never blocks or raises."""

    def describe(self, facts: Mapping[str, Any]) -> None:
        """The settings of the run."""
        ...

    def alert(self, step: int, title: str, text: str, level: str = "warning", seed: int = 0) -> None:
        """Something that a person should look at; the level is `info`, `warning` or `error`."""
        ...

    def video(self, step: int, path: Path, seed: int = 0) -> None:
        """A film of the agent as it was at a step."""
        ...

    def model(self, step: int, folder: Path, seed: int = 0) -> None:
        """An agent's artefact: the best one so far."""
        ...


class Tee:
    """Hands every record to several sinks, in order; all of them get it, also when one of them fails."""

    def __init__(self, sinks: Iterable[Sink]) -> None:
        self.sinks = tuple(sinks)

    def write(self, step: int, seconds: float, values: Mapping[str, float], seed: int = 0) -> None:
        self._each(lambda sink: sink.write(step, seconds, values, seed))

    def close(self) -> None:
        """Closes all sinks, then raises what failed."""
        self._each(lambda sink: sink.close())

    def _each(self, call: Callable[[Sink], None]) -> None:
        failures: list[Exception] = []
        for sink in self.sinks:
            try:
                call(sink)
            except Exception as error:  # noqa: BLE001 - the other sinks come first
                failures.append(error)
        if failures:
            raise failures[0]
