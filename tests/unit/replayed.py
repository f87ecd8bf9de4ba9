"""Made-up batches as a replay hands them over, and networks in plain numpy, for the tests of updates."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from conftest import agent, quick

from sparring.nets.sight import Stored
from sparring.spaces import Box, Discrete, EnvSpec, MultiDiscrete
from sparring.types import Batch, Transition

ROWS, N = 2, 12
"""Environments, and transitions (or sequences) in a batch."""
CHOICE = EnvSpec("choice", Box((3,)), Discrete(4))
BRANCHES = EnvSpec("branches", Box((3,)), MultiDiscrete((2, 4, 3)))
NUMBERS = EnvSpec("numbers", Box((3,)), Box((2,), (-2.0, 0.0), (2.0, 1.0)))


class Spaces:
    """Anything with a specification is an environment, as far as an agent is concerned."""

    def __init__(self, spec: EnvSpec):
        self.spec = spec


def learner(name: str, spec: EnvSpec, **settings: Any) -> Any:
    """An algorithm with tiny networks for these spaces."""
    plain = {"batch_size": N} if name != "pqn" else {}
    return agent(name, Spaces(spec), ROWS, **{**plain, **settings})


def start(algo: Any, seed: int = 0) -> Any:
    """A train state with random networks and a fresh optimiser; renormalisation has 50 updates behind it."""
    fresh = quick(algo.init)(jax.random.key(0))
    random = np.random.default_rng(seed)

    def drawn(path: Any, x: Any) -> Any:
        made = jnp.asarray(random.normal(0, 0.5, x.shape), jnp.float32)
        name = jax.tree_util.keystr(path)
        if name.endswith(".updates"):
            return jnp.full_like(made, 50.0)
        return jnp.abs(made) + 0.3 if name.endswith(".variance") else made

    names = ("nets", "target", "actor", "critic", "actor_target", "critic_target")
    networks = {n: getattr(fresh, n) for n in names if hasattr(fresh, n)}
    return fresh._replace(**jax.tree_util.tree_map_with_path(drawn, networks))


def batch(algo: Any, seed: int = 0, steps: int | None = None, count: int = N) -> Batch:
    """Windows [N, n, …] of random steps, some of which end episodes; masks where the spaces have them."""
    random = np.random.default_rng(seed)
    shape = (count, steps or algo.config.n_steps)
    match algo.spec.action:
        case Discrete(n):
            action, options = random.integers(0, n, shape), n
        case MultiDiscrete(sizes):
            action, options = random.integers(0, sizes, (*shape, len(sizes))), sum(sizes)
        case Box() as space:
            low, high = space.bounds()
            action, options = random.uniform(low, high, (*shape, *space.shape)).astype(np.float32), 0

    def legal() -> Any:
        if not algo.spec.masks_actions:
            return None
        allowed = random.random((*shape, options)) < 0.6
        firsts = np.cumsum([0, *getattr(algo.spec.action, "sizes", (options,))[:-1]])
        allowed[..., firsts] = True  # every branch has an option
        return allowed

    ended = random.random(shape) < 0.4
    terminated = ended & (random.random(shape) < 0.5)
    made = Transition(
        obs=random.normal(size=(*shape, 3)).astype(np.float32),
        action=action.astype(np.int32) if options else action,
        reward=random.normal(size=shape).astype(np.float32),
        terminated=terminated,
        truncated=ended & ~terminated,
        next_obs=random.normal(size=(*shape, 3)).astype(np.float32),
        extras=Stored(),
        legal=legal(),
        next_legal=legal(),
    )
    weight = random.uniform(0.2, 2.0, count).astype(np.float32)
    return jax.tree.map(jnp.asarray, Batch(made, np.arange(count), weight))


def as64(tree: Any) -> Any:
    """Every float as a numpy float64."""
    return jax.tree.map(
        lambda x: np.asarray(x, np.float64) if x.dtype == jnp.float32 else np.asarray(x), tree
    )


def dense(layer: Any, x: np.ndarray) -> np.ndarray:
    return x @ np.asarray(layer.weight, np.float64) + np.asarray(layer.bias, np.float64)


def mlp(body: Any, x: np.ndarray) -> np.ndarray:
    """Layers and ReLU."""
    for layer in body.layers:
        x = np.maximum(dense(layer, x), 0.0)
    return x


def critic_values(critics: Any, obs: np.ndarray, action: np.ndarray) -> np.ndarray:
    """Q of every critic, [C, N]."""
    x = np.concatenate([obs, action], axis=-1)
    return np.stack([dense(q.output, mlp(q.body, x))[:, 0] for q in critics.each])


def unit(action: np.ndarray) -> np.ndarray:
    """Actions of NUMBERS in [-1, 1]."""
    low, high = (b.astype(np.float64) for b in NUMBERS.action.bounds())
    return 2.0 * (action - low) / (high - low) - 1.0


def returns(data: Any, gamma: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of every window: the discounted rewards of its first episode, the factor on what follows, its place."""
    count, steps = data.reward.shape
    total, factor, last = np.zeros(count), np.ones(count), np.zeros(count, int)
    for i in range(count):
        for k in range(steps):
            total[i] += factor[i] * float(data.reward[i, k])
            factor[i] *= gamma
            last[i] = k
            if data.terminated[i, k]:
                factor[i] = 0.0
            if data.terminated[i, k] or data.truncated[i, k]:
                break
    return total, factor, last


def adam(gradient: np.ndarray, learning_rate: float, eps: float) -> np.ndarray:
    """The first step of Adam."""
    return -learning_rate * gradient / (np.abs(gradient) + eps)
