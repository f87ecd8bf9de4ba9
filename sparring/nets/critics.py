"""Values of continuous actions, and the actors that go with them: trunk → features ⊕ action → bodies → Q."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from sparring.errors import ConfigError, SpaceMismatch
from sparring.nets import sight
from sparring.nets.layers import MLP, Dense
from sparring.nets.sight import AgentConfig, Trunk
from sparring.ops.keys import several
from sparring.spaces import Box, EnvSpec, MultiBinary, describe
from sparring.types import Key, Obs


class Q(eqx.Module):
    """One value network on features and, where actions are numbers, an action."""

    body: MLP
    output: Dense

    def __init__(self, key: Key, inputs: int, sizes: tuple[int, ...], activation: str, outputs: int = 1):
        body_key, output_key = several(key, 2)
        self.body = MLP(body_key, inputs, sizes, activation, None)
        self.output = Dense(output_key, self.body.outputs, outputs, None)

    def __call__(self, x: Float[Array, "*N I"]) -> Float[Array, "*N O"]:
        return self.output(self.body(x))


class Critics(eqx.Module):
    """Some independent value networks on one trunk; the least of them is the cautious estimate."""

    trunk: Trunk
    each: tuple[Q, ...]

    def __call__(self, features: Float[Array, "*N F"], action: Float[Array, "*N A"]) -> Float[Array, "C ..."]:
        """Q(s, a) of every network."""
        x = jnp.concatenate([features, action], axis=-1)
        return jnp.stack([q(x)[..., 0] for q in self.each])


class Pilot(eqx.Module):
    """What an actor has beside the trunk: its own, or None when it looks through the critics'."""

    trunk: Trunk | None
    body: MLP
    output: Any


def critics(
    spec: EnvSpec,
    config: AgentConfig,
    key: Key,
    sizes: tuple[int, ...],
    count: int,
    inputs: int,
    outputs: int = 1,
) -> Critics:
    """Freshly initialised critics for actions of that many numbers."""
    trunk_key, *keys = several(key, count + 1)
    trunk = sight.trunk(spec, config, trunk_key, None)
    width = trunk.outputs + inputs
    return Critics(trunk, tuple(Q(k, width, sizes, config.activation, outputs) for k in keys))


def hidden(actor: Any, critic: Any, shown: Obs) -> list[list[Array]]:
    """What hidden layers make of normalised observations, each by itself: actor and critics.

    Critics that take an action are shown the middle of the action space.
    """
    features = sight.alone(critic.trunk, shown)
    own = features if actor.trunk is None else sight.alone(actor.trunk, shown)
    found = [actor.body.hidden(own)]
    for q in critic.each:
        if not q.body.layers:
            found.append([])
            continue
        width = q.body.layers[0].weight.shape[0]
        action = jnp.zeros((features.shape[0], width - features.shape[-1]))
        found.append(q.body.hidden(jnp.concatenate([features, action], axis=-1)))
    return found


def own_trunk(spec: EnvSpec, config: AgentConfig, key: Key, share: bool) -> Trunk | None:
    """The actor's trunk; None when it shares the critics', as it must with a core."""
    return None if share or config.core != "none" else sight.trunk(spec, config, key, None)


def bounded(spec: EnvSpec, name: str) -> Box:
    """The action space of an algorithm for bounded numbers; others are refused."""
    space = spec.action
    if not isinstance(space, Box):
        instead = "PPO or A2C" if isinstance(space, MultiBinary) else "DQN, PQN, PPO or discrete SAC"
        raise SpaceMismatch(
            f"{name} acts with numbers, and {spec.id} has actions {describe(space)}. Use {instead}."
        )
    if not space.bounded:
        raise SpaceMismatch(f"{name} needs actions with finite bounds; those of {spec.id} are unbounded.")
    if spec.masks_actions:
        raise ConfigError(f"{name} cannot mask dimensions of a Box, and {spec.id} does. Use PPO or A2C.")
    return space
