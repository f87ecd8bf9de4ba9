"""Several host runs side by side behind the interface of one driver: `seeds=M` outside JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparring.drivers.host import Host, Situation
from sparring.types import ActorState


class Several:
    """Host drivers with different seeds, advanced in turn."""

    def __init__(self, drivers: Sequence[Host]) -> None:
        self.drivers = tuple(drivers)
        self.seeds = tuple(d.seeds[0] for d in self.drivers)

    @property
    def algo(self) -> Any:
        return self.drivers[0].algo

    @property
    def rows(self) -> int:
        return self.drivers[0].rows

    @property
    def iteration(self) -> int:
        return self.drivers[0].iteration

    @property
    def seconds(self) -> dict[str, float]:
        """The sum over the drivers: they take turns."""
        kinds = self.drivers[0].seconds
        return {kind: sum(d.seconds[kind] for d in self.drivers) for kind in kinds}

    @property
    def compile_seconds(self) -> float:
        return self.drivers[0].compile_seconds

    @property
    def steps_per_iteration(self) -> int:
        return self.drivers[0].steps_per_iteration

    @property
    def replay_bytes(self) -> int:
        return sum(d.replay_bytes for d in self.drivers)

    def advance(self, iterations: int) -> list[dict[str, np.ndarray]]:
        return [d.advance(iterations)[0] for d in self.drivers]

    def reschedule(self, horizon: float) -> None:
        for driver in self.drivers:
            driver.reschedule(horizon)

    def state(self, index: int = 0) -> Situation:
        return self.drivers[index].state()

    def acting(self, index: int = 0) -> ActorState:
        return self.drivers[index].acting()

    def restore(self, situation: Situation, iteration: int, index: int = 0) -> None:
        self.drivers[index].restore(situation, iteration)

    def world(self, index: int = 0) -> dict[str, np.ndarray] | None:
        return self.drivers[index].world()

    def restore_world(self, snapshot: dict[str, np.ndarray], index: int = 0) -> None:
        self.drivers[index].restore_world(snapshot)

    def train_state(self, index: int = 0) -> Any:
        return self.drivers[index].train_state()

    def events(self) -> list[str]:
        return [f"seed {d.seeds[0]}: {e}" for d in self.drivers for e in d.events()]

    def close(self) -> None:
        for driver in self.drivers:
            driver.close()
