"""Evaluation: one whole episode per row, on seeds that training never uses, deterministic or stochastic."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparring import actor
from sparring.envs import batched
from sparring.envs.api import HostEnv, JaxEnv
from sparring.ops import keys
from sparring.types import ActorState, Algorithm, Behaviour, Key, TimeStep

LONGEST = 100_000
"""Steps after which an episode without a time limit is cut."""
ROWS = 8
"""Copies of a host environment that are evaluated together, at most."""
SEED_OFFSET = 1_000_003
"""Keeps the seeds of evaluation apart from those of training."""


class Evaluation(NamedTuple):
    """Returns and lengths of evaluated episodes."""

    returns: np.ndarray
    lengths: np.ndarray
    deterministic: bool
    shaped: np.ndarray | None = None
    """[N, H]: the same returns as every head is rewarded; None where the algorithm shapes nothing"""

    @property
    def mean(self) -> float:
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        return float(self.returns.std())

    @property
    def ci95(self) -> tuple[float, float]:
        """A normal 95 % interval of the mean over these episodes of this one agent."""
        if len(self.returns) < 2:
            return (self.mean, self.mean)
        half = 1.96 * float(self.returns.std(ddof=1)) / math.sqrt(len(self.returns))
        return (self.mean - half, self.mean + half)

    def as_json(self) -> dict[str, Any]:
        return {
            "mean": self.mean,
            "std": self.std,
            "ci95": list(self.ci95),
            "episodes": len(self.returns),
        }


def evaluate(
    algo: Algorithm,
    weights: Any,
    env: JaxEnv | HostEnv,
    episodes: int,
    seed: int,
    deterministic: bool = True,
    behave: Callable[[int], Behaviour] | None = None,
) -> Evaluation:
    """Episodes of a policy; in a host environment every row plays its fair share of them.

    `behave` says how so many rows act, besides greedily or not.
    """
    key = keys.once(jax.random.key(seed), keys.EVALUATION)
    rows = episodes if isinstance(env, JaxEnv) else env.spec.rows
    behaviour = Behaviour() if behave is None else behave(rows)
    behaviour = behaviour._replace(greedy=np.full(rows, deterministic))  # data: one program serves both kinds
    if isinstance(env, JaxEnv):
        returns, lengths, shaped = jax.tree.map(np.asarray, _play(env, algo, weights, behaviour, key))
        return Evaluation(returns, lengths, deterministic, shaped)
    player = Player(algo, weights, behaviour, key)
    returns, lengths, shaped = _hosted(player, env, episodes, seed + SEED_OFFSET)
    return Evaluation(returns, lengths, deterministic, shaped)


@partial(jax.jit, static_argnums=0)
def _play(
    env: JaxEnv, algo: Algorithm, weights: Any, behaviour: Behaviour, key: Key
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Every row's first episode, all rows together."""
    weights = actor.settled(weights)
    rows = jax.tree.leaves(behaviour)[0].shape[0]
    reset_key, act_key, env_key = (keys.derive(key, tag) for tag in (keys.RESET, keys.ACT, keys.ENV))
    env_state, timestep = batched.reset(env, reset_key, rows)
    longest = env.spec.time_limit or LONGEST

    def going(carry: tuple[Any, ...]) -> jax.Array:
        return jnp.any(carry[3]) & (carry[0] < longest)

    def earned(reward: jax.Array, alive: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        counted = jnp.where(alive, reward, 0.0)
        heads = actor.shaped(algo, weights, counted)
        return counted, None if heads is None else jnp.where(alive[:, None], heads, 0.0)

    def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        t, state, env_state, alive, total, length = carry
        action, _, memory = actor.act(algo, weights, state, behaviour, keys.derive(act_key, t))
        env_state, timestep = batched.step(env, env_state, action, keys.derive(env_key, t))
        total = jax.tree.map(jnp.add, total, earned(timestep.reward, alive))
        length = length + alive
        alive = alive & ~(timestep.terminated | timestep.truncated)
        return t + 1, actor.observe(state, memory, timestep), env_state, alive, total, length

    start = (
        jnp.int32(0),
        actor.start(algo, timestep),
        env_state,
        jnp.ones(rows, bool),
        earned(jnp.zeros(rows), jnp.zeros(rows, bool)),
        jnp.zeros(rows, jnp.int32),
    )
    *_, total, length = jax.lax.while_loop(going, step, start)
    returns, shaped = total
    return returns, length, shaped


class Player:
    """A policy that acts for the rows of a host environment, one jitted call per step."""

    def __init__(self, algo: Algorithm, weights: Any, behaviour: Behaviour, key: Key) -> None:
        self._algo = algo
        self._weights = weights
        self._behaviour = behaviour
        self._key = key
        self._t = 0
        self._carry: Any = None
        self.state: ActorState | None = None
        """what the last decision was made from"""

    def act(self, timestep: TimeStep) -> np.ndarray:
        """Actions for what the environment last said."""
        if self.state is None:
            self.state = actor.start(self._algo, timestep)
        else:
            self.state = actor.observe(self.state, self._carry, timestep)
        action, _, self._carry = _act(
            self._algo, self._weights, self.state, self._behaviour, keys.derive(self._key, self._t)
        )
        self._t += 1
        return np.asarray(action)

    def shaped(self, reward: np.ndarray) -> np.ndarray | None:
        """Rewards as every head sees them; None where the algorithm shapes nothing."""
        heads = actor.shaped(self._algo, self._weights, jnp.asarray(reward, jnp.float32))
        return None if heads is None else np.asarray(heads)


def alone(deterministic: bool) -> Behaviour:
    """The behaviour of a single row."""
    return Behaviour(greedy=np.full(1, deterministic))


@jax.jit
def _act(
    algo: Algorithm, weights: Any, state: ActorState, behaviour: Behaviour, key: Key
) -> tuple[Any, Any, Any]:
    return actor.act(algo, actor.settled(weights), state, behaviour, key)


def _hosted(
    player: Player, env: HostEnv, episodes: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Returns, lengths and shaped returns, row by row."""
    rows = env.spec.rows
    # A fixed share per row: taking whichever episodes end first would favour short ones.
    share = np.array([episodes // rows + (row < episodes % rows) for row in range(rows)])
    timestep = env.reset(seed)
    total, length = np.zeros(rows), np.zeros(rows, int)
    returns: list[list[float]] = [[] for _ in range(rows)]
    lengths: list[list[int]] = [[] for _ in range(rows)]
    rewards: list[np.ndarray] = []
    spans: list[list[slice]] = [[] for _ in range(rows)]
    while any(len(done) < n for done, n in zip(returns, share, strict=True)):
        timestep = env.step(player.act(timestep))
        rewards.append(np.array(timestep.reward))
        over = timestep.terminated | timestep.truncated | (length + 1 >= LONGEST)
        if timestep.lost is not None:
            total[timestep.lost], length[timestep.lost] = 0.0, 0
            over = over & ~timestep.lost
            total, length = total + np.where(timestep.lost, 0.0, timestep.reward), length + ~timestep.lost
        else:
            total, length = total + timestep.reward, length + 1
        for row in np.flatnonzero(over):
            if len(returns[row]) < share[row]:
                returns[row].append(float(total[row]))
                lengths[row].append(int(length[row]))
                spans[row].append(slice(len(rewards) - int(length[row]), len(rewards)))
            total[row], length[row] = 0.0, 0
    shaped = player.shaped(np.stack(rewards))
    if shaped is not None:
        shaped = np.array([shaped[span, row].sum(axis=0) for row in range(rows) for span in spans[row]])
    flat_returns, flat_lengths = ([x for done in each for x in done] for each in (returns, lengths))
    return np.array(flat_returns), np.array(flat_lengths), shaped
