"""The newest rollout, handed over as it is: what on-policy algorithms learn from."""

from __future__ import annotations

from dataclasses import dataclass

from sparring.types import Batch, Key, Memory, Report, Transition


@dataclass(frozen=True)
class Latest:
    """Keeps nothing between iterations."""

    def init(self, example: Transition) -> Memory:
        return Memory(())

    def add(self, memory: Memory, rollout: Transition) -> Memory:
        return Memory(rollout)

    def ready(self, memory: Memory) -> bool:
        return True

    def sample(self, memory: Memory, key: Key) -> Batch:
        return Batch(memory.data)

    def feedback(self, memory: Memory, batch: Batch, report: Report) -> tuple[()]:
        return ()

    def settle(self, memory: Memory) -> Memory:
        return Memory(())
