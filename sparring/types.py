"""The records that flow between environment, actor, replay, algorithm and driver.

Axis words are global: T time, B rows, N sampled batch, L sequence, A actions, K arms, D features, M seeds.
There is no `done`: truncation bootstraps from `next_obs`, termination does not.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from jaxtyping import Bool, Float, Int

from sparring.spaces import EnvSpec

Obs: TypeAlias = Any  # a tree of arrays; jaxtyping's PyTree would import jax into every environment worker
Action: TypeAlias = Any
Key: TypeAlias = Any
Metrics: TypeAlias = dict[str, Any]


class TimeStep(NamedTuple):
    """What an environment hands to the actor after one step of all its rows."""

    obs: Obs
    """To act on now, after auto-reset."""
    reward: Float[Any, " B"]
    terminated: Bool[Any, " B"]
    truncated: Bool[Any, " B"]
    next_obs: Obs
    """What the action led to, before auto-reset: bootstrap from this."""
    active: Bool[Any, " B"] | None = None
    """Rows that ask for a decision now; None means all."""
    legal: Bool[Any, "B A"] | None = None
    """Legal actions for `obs`."""
    lost: Bool[Any, " B"] | None = None
    """Rows whose step has no outcome (a worker died, a vector environment spent it on a reset)."""
    info: Any = None
    """Numbers that a JAX environment tells about itself, by name, each [B]."""
    reference: Int[Any, " B"] | None = None
    """The numbers of `obs`, where the environment has them (`EnvSpec.refers`)."""
    next_reference: Int[Any, " B"] | None = None
    """The numbers of `next_obs`."""
    next_legal: Bool[Any, "B A"] | None = None
    """Legal actions for `next_obs`: what a truncation bootstraps from. None where nobody says."""


class View(NamedTuple):
    """What the actor hands to `act`."""

    obs: Obs
    legal: Bool[Any, "B A"] | None = None
    first: Bool[Any, " B"] | None = None
    """The row starts an episode: reset its core."""


class Transition(NamedTuple):
    """One decision and its outcome; leading axes [T, B] in a rollout, [N] or [N, L] in a replay batch.

    `mask` is False where there is no decision. A masked entry with `truncated` set says that the row's
    episode was lost there: nothing may be learned across it and its return does not count.
    """

    obs: Obs
    action: Action
    reward: Any
    terminated: Any
    truncated: Any
    next_obs: Obs
    extras: Any
    """The algorithm's own NamedTuple: log-probability, stored core state …"""
    first: Any = None
    legal: Any = None
    next_legal: Any = None
    elapsed: Any = None
    """Environment steps since the row's previous decision; None means 1 everywhere."""
    mask: Any = None
    point: Any = None
    """where in the space of behaviours the row acted, [T, B, C]; None without a controller"""
    core: Any = None
    """State of the core before the first step of a rollout, [B, …] without a time axis."""
    info: Any = None
    """Numbers that the environment told; counted with the episodes, never replayed."""


class Batch(NamedTuple):
    """What a replay hands to `update`: data, where it came from, and how likely it was.

    `weight` is N·P(i), of which `ops.priorities.importance` makes weights; None under uniform sampling.
    """

    data: Transition
    index: Any = None
    weight: Any = None


class Report(NamedTuple):
    """What an update says: scalar metrics by SB3's names, and new priorities for the sampled index."""

    metrics: Metrics
    priority: Any = None


class Behaviour(NamedTuple):
    """How each row acts, as chosen by a bandit, a controller or an evaluator; None is the algorithm's own."""

    greedy: Bool[Any, " B"] | None = None
    """Rows that take the mode instead of a sample."""
    temperature: Float[Any, " B"] | None = None
    epsilon: Float[Any, " B"] | None = None
    sharpness: Float[Any, "B P"] | None = None
    """1 / temperature of every policy of a mixture"""
    mixture: Float[Any, "B P"] | None = None
    """weight of every policy of a mixture"""
    noise: Float[Any, " B"] | None = None
    """factor on exploration noise"""
    head: Int[Any, " B"] | None = None
    """the head to act by; with `greedy` alone, an algorithm of several heads acts by their sum"""


class Plan(NamedTuple):
    """One iteration as data: collect `rollout` steps of every row, then `updates` sampled updates."""

    rollout: int
    updates: int = 1


class ActorState(NamedTuple):
    """What the actor carries between steps."""

    obs: Obs
    first: Bool[Any, " B"]
    carry: Any
    legal: Bool[Any, "B A"] | None = None
    control: Any = None
    """`bandit.control.Control`: each row's behaviour, and the bandit that chose it; None without one"""


class Memory(NamedTuple):
    """A replay's state. A loop of updates carries `live` alone, so `data` may be as large as it likes."""

    data: Any
    """written by `add`, never by `feedback`"""
    live: Any = ()
    """what `feedback` changes: priorities"""


@runtime_checkable
class Replay(Protocol):
    """Data between collecting and learning: pure functions over an explicit state."""

    def init(self, example: Transition) -> Memory: ...
    def add(self, memory: Memory, rollout: Transition) -> Memory: ...
    def ready(self, memory: Memory) -> Any:
        """Whether there is enough to learn from; True itself when there always is."""
        ...

    def sample(self, memory: Memory, key: Key) -> Batch: ...
    def feedback(self, memory: Memory, batch: Batch, report: Report) -> Any:
        """The memory's `live` part after an update."""
        ...

    def settle(self, memory: Memory) -> Memory:
        """What is kept until the next iteration, of the structure that `init` returns."""
        ...


@runtime_checkable
class Algorithm(Protocol):
    """One learning rule as pure functions; it sees no environment, loop, clock, logger or file.

    An algorithm is a frozen dataclass registered as a pytree: floats of its config are traced, the rest
    is static, so the same compiled program serves every learning rate.
    """

    spec: EnvSpec
    config: Any
    plan: Plan
    replay: Replay

    def init(self, key: Key) -> Any: ...
    def policy(self, state: Any) -> Any: ...
    def carry(self, rows: int) -> Any: ...
    def act(
        self, policy: Any, carry: Any, view: View, behaviour: Behaviour, key: Key
    ) -> tuple[Action, Any, Any]: ...
    def update(self, state: Any, batch: Batch, key: Key) -> tuple[Any, Report]: ...
    def absorb(self, state: Any, rollout: Transition) -> Any: ...
