"""Rows of one JAX environment: batching, time limit and auto-reset as pure functions, and a host's view."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparring.envs.api import MOST_NUMBERS, JaxEnv, MasksActions, Outcome, TellsInfo
from sparring.errors import EnvironmentFailure
from sparring.ops import keys
from sparring.spaces import EnvSpec
from sparring.types import Action, Key, TimeStep

STEP_TAG, RESET_TAG = 0, 1


class BatchedState(NamedTuple):
    """The environment's own state and the steps since reset, per row."""

    env: Any
    elapsed: Any


def _legal(env: JaxEnv, state: Any) -> Any:
    if not env.spec.masks_actions:
        return None
    if not isinstance(env, MasksActions):
        raise EnvironmentFailure(
            f"{env.spec.id!r} sets masks_actions in its spec but has no `legal(state)`; add the method."
        )
    return jax.vmap(env.legal)(state)


def _info(env: JaxEnv, state: Any) -> Any:
    """What the environment tells about its state, as floats; None when it tells nothing."""
    inner = env.env if isinstance(env, WithTimeLimit) else env
    if not isinstance(inner, TellsInfo):
        return None
    told = jax.vmap(inner.info)(state)
    if len(told) > MOST_NUMBERS:
        raise EnvironmentFailure(
            f"{env.spec.id!r} tells {len(told)} numbers in `info(state)`; leave at most {MOST_NUMBERS}."
        )
    return {name: jnp.asarray(value, jnp.float32) for name, value in told.items()}


def reset(env: JaxEnv, key: Key, rows: int) -> tuple[BatchedState, TimeStep]:
    """Starts all rows; reward is 0 and `next_obs` equals `obs`."""
    state = jax.vmap(env.reset)(keys.several(key, rows))
    obs = jax.vmap(env.observe)(state)
    none = jnp.zeros(rows, bool)
    still = jnp.zeros(rows)
    legal = _legal(env, state)
    time_step = TimeStep(obs, still, none, none, obs, legal=legal, info=_info(env, state), next_legal=legal)
    return BatchedState(state, jnp.zeros(rows, jnp.int32)), time_step


def step(env: JaxEnv, state: BatchedState, action: Action, key: Key) -> tuple[BatchedState, TimeStep]:
    """Steps all rows, cuts them at the time limit, and starts the ended ones afresh."""
    rows = state.elapsed.shape[0]
    step_keys = keys.several(keys.derive(key, STEP_TAG), rows)
    reset_key = keys.derive(key, RESET_TAG)
    after, outcome = jax.vmap(env.step)(state.env, action, step_keys)
    elapsed = state.elapsed + 1
    cut = outcome.truncated
    if env.spec.time_limit is not None:
        cut = cut | (elapsed >= env.spec.time_limit)
    truncated = cut & ~outcome.terminated
    ended = outcome.terminated | truncated
    next_obs = jax.vmap(env.observe)(after)

    def start_again() -> tuple[Any, Any]:
        fresh = jax.vmap(env.reset)(keys.several(reset_key, rows))
        choose = partial(_where_row, ended)
        return jax.tree.map(choose, fresh, after), jax.tree.map(
            choose, jax.vmap(env.observe)(fresh), next_obs
        )

    # Most steps end no row; the branch saves them the random numbers of a reset.
    current, obs = jax.lax.cond(ended.any(), start_again, lambda: (after, next_obs))
    time_step = TimeStep(
        obs=obs,
        reward=outcome.reward.astype(jnp.result_type(float)),
        terminated=outcome.terminated,
        truncated=truncated,
        next_obs=next_obs,
        legal=_legal(env, current),
        info=_info(env, after),
        next_legal=_legal(env, after),
    )
    return BatchedState(current, jnp.where(ended, 0, elapsed)), time_step


def _where_row(row: Any, yes: Any, no: Any) -> Any:
    return jnp.where(row.reshape(row.shape + (1,) * (yes.ndim - 1)), yes, no)


@partial(jax.jit, static_argnums=(0, 2))
def start(env: JaxEnv, key: Key, rows: int) -> tuple[BatchedState, TimeStep]:
    """`reset` as the one compiled block that every driver begins with."""
    return reset(env, key, rows)


@partial(jax.jit, static_argnums=0)
def advance(env: JaxEnv, state: BatchedState, action: Action, key: Key) -> tuple[BatchedState, TimeStep]:
    """`step` as a compiled block."""
    return step(env, state, action, key)


@dataclasses.dataclass(frozen=True)
class WithTimeLimit:
    """A JAX environment with another time limit."""

    env: JaxEnv
    time_limit: int | None

    @property
    def spec(self) -> EnvSpec:
        return dataclasses.replace(self.env.spec, time_limit=self.time_limit)

    def reset(self, key: Key) -> Any:
        return self.env.reset(key)

    def observe(self, state: Any) -> Any:
        return self.env.observe(state)

    def step(self, state: Any, action: Action, key: Key) -> tuple[Any, Outcome]:
        return self.env.step(state, action, key)

    def legal(self, state: Any) -> Any:
        """Legal actions; asked for only when the environment's spec says that it has them."""
        return self.env.legal(state)  # type: ignore[attr-defined]


class JaxHost:
    """Rows of a JAX environment behind the host protocol: every step is one jitted call.

    A driver that owns the keys calls `start` and `advance`; `reset` and `step` derive them from a seed and
    a step count, for everyone else.
    """

    backend_reason = "a JAX environment is stepped by one compiled call"

    may_lose = False

    def __init__(self, env: JaxEnv, rows: int) -> None:
        if rows < 1:
            raise EnvironmentFailure(f"An environment needs at least one row, not {rows}; set n_envs >= 1.")
        self.env = env
        self.rows = rows
        self.state: BatchedState | None = None
        self._spec = dataclasses.replace(env.spec, rows=rows)
        self._key: Key = None
        self._steps = 0
        self._last: TimeStep | None = None
        self._drawing: Any = None

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    def start(self, key: Key) -> TimeStep:
        """Starts all rows from the caller's key."""
        self.state, time_step = start(self.env, key, self.rows)
        return self._host(time_step)

    def advance(self, action: Action, key: Key) -> TimeStep:
        """Steps all rows with the caller's key."""
        self.state, time_step = advance(self.env, self._started(), action, key)
        return self._host(time_step)

    def reset(self, seed: int) -> TimeStep:
        self._key = jax.random.key(seed)
        self._steps = 0
        return self.start(keys.derive(self._key, 0))

    def step(self, action: np.ndarray) -> TimeStep:
        self._started()
        self._steps += 1
        return self.advance(action, keys.derive(self._key, self._steps))

    def snapshot(self) -> dict[str, np.ndarray]:
        leaves = jax.tree.leaves((self._started(), self._last))
        return {
            "steps": np.array(self._steps, np.int64),
            **{f"leaf.{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)},
        }

    def restore(self, snapshot: dict[str, np.ndarray], seed: int) -> TimeStep:
        self.reset(seed)
        like, shape = jax.tree.flatten((self.state, self._last))
        leaves = [snapshot.get(f"leaf.{i}") for i in range(len(like))]
        if any(
            leaf is None or leaf.shape != old.shape or leaf.dtype != old.dtype
            for leaf, old in zip(leaves, like, strict=True)
        ):
            raise EnvironmentFailure(
                f"The saved state does not belong to {self._spec.id!r} with {self.rows} rows; resume with "
                "the environment and n_envs of the run."
            )
        state, last = jax.tree.unflatten(shape, leaves)
        self.state, self._steps = state, int(snapshot["steps"])
        return self._host(last)

    def render(self) -> np.ndarray | None:
        """A frame of row 0, drawn by the environment's own `draw(state)` or by Gymnasium."""
        row = jax.tree.map(lambda leaf: np.asarray(leaf[0]), self._started().env)
        env = self.env.env if isinstance(self.env, WithTimeLimit) else self.env
        draw = getattr(env, "draw", None)
        if draw is not None:
            return np.asarray(draw(row))
        if not type(env).__module__.startswith("sparring.envs.classic."):
            return None
        if self._drawing is None:
            from sparring.envs.classic.drawing import Drawing

            self._drawing = Drawing(self._spec.id)
        return np.asarray(self._drawing.frame(row))

    def events(self) -> list[str]:
        return []

    def close(self) -> None:
        if self._drawing is not None:
            self._drawing.close()
            self._drawing = None

    def _host(self, time_step: TimeStep) -> TimeStep:
        self._last = jax.tree.map(np.asarray, time_step)
        return self._last

    def _started(self) -> BatchedState:
        if self.state is None:
            raise EnvironmentFailure(
                f"{self._spec.id!r} was stepped before it was reset; call `reset` first."
            )
        return self.state
