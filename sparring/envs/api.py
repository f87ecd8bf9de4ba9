"""The two environment protocols: pure JAX environments, and host environments that step all rows at once."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from sparring.spaces import EnvSpec
from sparring.types import Action, Key, Obs, TimeStep

MOST_NUMBERS = 32
"""Numbers of an environment that become metrics; further ones are left out or refused."""


class Outcome(NamedTuple):
    """What one step of one JAX environment says, before time limit and auto-reset."""

    reward: Any
    terminated: Any
    truncated: Any


@runtime_checkable
class JaxEnv(Protocol):
    """One environment as pure functions of an explicit state; rows, limits and resets are added outside."""

    @property
    def spec(self) -> EnvSpec: ...
    def reset(self, key: Key) -> Any: ...
    def observe(self, state: Any) -> Obs: ...
    def step(self, state: Any, action: Action, key: Key) -> tuple[Any, Outcome]: ...


@runtime_checkable
class MasksActions(Protocol):
    """A JAX environment that says which actions are legal in a state; its spec sets `masks_actions`."""

    def legal(self, state: Any) -> Any: ...


@runtime_checkable
class TellsInfo(Protocol):
    """A JAX environment with numbers of its own, as `env/…` metrics: those of the state a step led to."""

    def info(self, state: Any) -> dict[str, Any]:
        """Scalars by name; the names never change."""
        ...


class HostEnv(Protocol):
    """All rows of a world outside JAX, stepped together, auto-resetting within the step.

    Every episode of row b starts from a seed that depends on (seed, b, episode) only, so that a run can be
    resumed by replaying the actions of the episodes in progress.
    """

    @property
    def spec(self) -> EnvSpec: ...

    @property
    def may_lose(self) -> bool:
        """Whether a step may come back with `lost` rows."""
        ...

    def reset(self, seed: int) -> TimeStep:
        """Starts all rows; reward is 0 and `next_obs` equals `obs`."""
        ...

    def step(self, action: np.ndarray) -> TimeStep:
        """Steps all rows. The arrays returned are not written to afterwards."""
        ...

    def snapshot(self) -> dict[str, np.ndarray] | None:
        """What `restore` needs to continue exactly; None when this environment cannot."""
        ...

    def restore(self, snapshot: dict[str, np.ndarray], seed: int) -> TimeStep:
        """Continues where the snapshot was taken and returns what `step` last returned to act on."""
        ...

    def render(self) -> np.ndarray | None:
        """An RGB frame of row 0, or None when the environment draws nothing."""
        ...

    def events(self) -> list[str]:
        """What happened since the last call that a user should know: workers replaced, rows lost."""
        ...

    def close(self) -> None: ...


def episode_seed(seed: int, row: int, episode: int) -> int:
    """The seed of one episode of one row: a function of its place, never of call order."""
    return int(np.random.SeedSequence([seed, row, episode]).generate_state(1)[0])
