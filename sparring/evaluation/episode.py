"""An episode of a trained agent, one step at a time, and what the agent thinks on the way."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from sparring import actor
from sparring.evaluation.evaluator import SEED_OFFSET, Player, alone
from sparring.nets import policy, values
from sparring.ops import keys
from sparring.ops.distributions import Categorical
from sparring.types import ActorState


class Performer(NamedTuple):
    """An agent that acts; its training state, where it is at hand, also knows what a state is worth."""

    algo: Any
    weights: Any
    train: Any = None


class Thought(NamedTuple):
    """What an agent makes of a state; a field is None where the agent has no such thing."""

    value: float | None = None
    """V(s), or the best Q(s, a)"""
    chances: np.ndarray | None = None
    """how likely each of its choices is"""
    scores: np.ndarray | None = None
    """Q(s, a) of each choice"""


class Episode:
    """One episode in row 0 of a host environment: `decide`, then `advance`, until it is over.

    The seed decides everything, so the same one gives the same episode again.
    """

    def __init__(self, performer: Performer, env: Any, seed: int, deterministic: bool = True) -> None:
        key = keys.once(jax.random.key(seed), keys.EVALUATION)
        self.performer = performer
        self.env = env
        self.seed = seed
        self.player = Player(performer.algo, performer.weights, alone(deterministic), key)
        self.timestep = env.reset(seed + SEED_OFFSET)
        self.action: Any = None
        self.step = 0
        self.reward = 0.0
        self.total = 0.0
        self.over = False

    def decide(self) -> Any:
        """The next action."""
        self.action = self.player.act(self.timestep)
        return self.action[0]

    def think(self) -> Thought:
        """What the agent made of the state in which it last decided."""
        algo, weights, train = self.performer
        if not _knows_values(algo, train):
            train = None
        found = _think(algo, weights, train, self.player.state)
        value, chances, scores = jax.tree.map(lambda x: np.asarray(x)[0], found)
        return Thought(None if value is None else float(value), chances, scores)

    def advance(self) -> None:
        """Takes the action."""
        self.timestep = self.env.step(self.action)
        self.step += 1
        self.reward = float(self.timestep.reward[0])
        self.total += self.reward
        self.over = bool(self.timestep.terminated[0] | self.timestep.truncated[0])


def _knows_values(algo: Any, train: Any) -> bool:
    """Whether the algorithm can tell what one observation by itself is worth."""
    if train is None or not hasattr(algo, "value"):
        return False
    if getattr(algo.config, "core", "none") != "none":
        return False  # the value hangs on what came before, too
    return getattr(getattr(train, "nets", None), "critic", True) is not None


@jax.jit
def _think(algo: Any, weights: Any, train: Any, state: ActorState) -> tuple[Any, Any, Any]:
    value = chances = scores = frames = None
    inner = getattr(weights, "policy", weights)
    if isinstance(inner, policy.Weights):
        frames, _, chosen, _ = policy.see(inner, state.carry, actor.view(state))
        if isinstance(chosen, Categorical):
            chances = jax.nn.softmax(chosen.logits)
    elif isinstance(inner, values.QWeights):
        frames, table, _ = values.see(inner, state.carry, actor.view(state))
        value = values.best(table)
        if table.shape[1] == 1:
            scores = table[:, 0]
    if value is None and train is not None:
        value = algo.value(train, state.obs if frames is None else frames)
    return value, chances, scores
