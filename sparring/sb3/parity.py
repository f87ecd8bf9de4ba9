"""Whether an imported agent acts as the model did in SB3: the same observations, then the same episodes."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparring import actor
from sparring.envs import registry
from sparring.errors import CheckpointError
from sparring.evaluation.evaluator import Player, alone
from sparring.model import Agent
from sparring.nets import policy, sight, values
from sparring.ops import keys
from sparring.ops.distributions import Bernoulli, Categorical, Gaussian, MultiCategorical, TanhGaussian
from sparring.sb3.handover import Handover, Record
from sparring.spaces import Box, MultiDiscrete, dtype_of
from sparring.types import ActorState, Behaviour

TOLERANCE = 1e-4
"""Largest difference, relative to numbers above 1, up to which two policies are the same one in float32."""


class Parity(NamedTuple):
    """How close an imported agent is to the model, by largest differences (relative above 1)."""

    observations: int
    equal: int
    """decisions that are equal, or for actions that are numbers closer than the tolerance"""
    action: float
    params: float
    """of the parameters of the distribution: logits, mean and log deviation, or values"""


class Replay(NamedTuple):
    """The model's episodes, played again by the imported agent from the same seeds."""

    steps: int
    same: int
    """steps until something differed by more than the tolerance"""
    episodes: int
    obs: float
    reward: float


def on_observations(agent: Agent, given: Handover) -> Parity:
    """Holds the agent against the model's decisions; an agent that acts otherwise is an error."""
    record = given.record
    obs = record.obs.astype(dtype_of(agent.spec.observation))
    action, params = (np.asarray(x) for x in _decide(agent.algo, agent.weights, obs))
    params = _as_recorded(params.reshape(len(obs), -1), agent)
    apart = _distance(action, record.action)
    found = Parity(
        len(obs),
        int((apart <= (TOLERANCE if isinstance(agent.spec.action, Box) else 0)).sum()),
        float(apart.max()),
        float(_distance(params, record.params).max()),
    )
    if found.equal < found.observations or found.params > TOLERANCE:
        raise CheckpointError(
            f"The imported agent does not act as SB3's: {found.equal} of {found.observations} decisions "
            f"agree, actions differ by up to {found.action:.1e}, what they are drawn from by up to "
            f"{found.params:.1e}. "
            "Nothing was kept. Please report it with the model."
        )
    return found


def on_episodes(agent: Agent, record: Record, env: str, seed: int) -> Replay:
    """Plays the model's episodes again in an environment of ours; in a chaotic one roundings grow."""
    assert record.reward is not None
    assert record.terminated is not None
    assert record.truncated is not None
    world = registry.make(env, n_envs=1, backend="inline")
    player = Player(agent.algo, agent.weights, alone(True), keys.once(jax.random.key(seed), keys.EVALUATION))
    obs = reward = 0.0
    same, ended = len(record.obs), 1
    try:
        timestep = world.reset(seed)
        for step in range(len(record.obs)):
            seen = _distance(timestep.obs, record.obs[step : step + 1]).max()
            timestep = world.step(player.act(timestep))
            got = _distance(timestep.reward, record.reward[step : step + 1]).max()
            over = (bool(timestep.terminated[0]), bool(timestep.truncated[0]))
            alike = over == (bool(record.terminated[step]), bool(record.truncated[step]))
            if not alike or max(seen, got) > TOLERANCE:
                same = step
                break
            obs, reward = max(obs, float(seen)), max(reward, float(got))
            ended += any(over) and step + 1 < len(record.obs)
    finally:
        world.close()
    return Replay(len(record.obs), same, ended, obs, reward)


def _distance(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """The largest difference of every row, relative to numbers above 1."""
    a, b = (np.asarray(x, np.float64).reshape(len(x), -1) for x in (ours, theirs))
    return np.max(np.abs(a - b) / np.maximum(np.abs(b), 1.0), axis=1, initial=0.0)


def _as_recorded(params: np.ndarray, agent: Agent) -> np.ndarray:
    """Without the padding that branches of different widths have here."""
    space = agent.spec.action
    if not isinstance(space, MultiDiscrete):
        return params
    kept = [np.arange(n) + branch * max(space.sizes) for branch, n in enumerate(space.sizes)]
    return params[:, np.concatenate(kept)]


@jax.jit
def _decide(algo: Any, weights: Any, obs: Any) -> tuple[Any, Any]:
    """Deterministic actions, and the parameters of the distributions that stochastic ones come from."""
    rows = obs.shape[0]
    state = ActorState(obs, jnp.ones(rows, bool), algo.carry(rows))
    behaviour = Behaviour(greedy=jnp.ones(rows, bool))
    action, _, _ = actor.act(algo, weights, state, behaviour, jax.random.key(0))
    view, inner = actor.view(state), getattr(weights, "policy", weights)
    if isinstance(inner, policy.Weights):
        return action, _params(policy.see(inner, state.carry, view).chosen)
    if isinstance(inner, values.QWeights):
        return action, values.see(inner, state.carry, view).table
    features = sight.look(weights.trunk, weights.clip, weights.moments, state.carry, view)[1]
    return action, jnp.tanh(weights.output(weights.body(features)))


def _params(chosen: Any) -> Any:
    match chosen:
        case Categorical(logits) | MultiCategorical(logits):
            return jax.nn.log_softmax(logits)
        case Bernoulli(logits):
            return logits
        case Gaussian() | TanhGaussian():
            base = chosen.base if isinstance(chosen, TanhGaussian) else chosen
            return jnp.concatenate([base.mean, base.log_std], axis=-1)
    raise AssertionError(chosen)
