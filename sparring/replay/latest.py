"""The newest rollout, handed over as it is: what on-policy algorithms learn from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparring.types import Batch, Key, Report, Transition


@dataclass(frozen=True)
class Latest:
    """Keeps nothing between iterations."""

    def init(self, example: Transition) -> Any:
        return ()

    def add(self, state: Any, rollout: Transition) -> Any:
        return rollout

    def sample(self, state: Any, key: Key) -> Batch:
        return Batch(state)

    def feedback(self, state: Any, batch: Batch, report: Report) -> Any:
        return state

    def settle(self, state: Any) -> Any:
        return ()
