"""The last few observations of every row as one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sparring.common.vec_env.base import Answer, VecEnv, VecEnvWrapper
from sparring.errors import ConfigError


class VecFrameStack(VecEnvWrapper):
    """Stacks observations along the channels (images) or the last axis; an episode starts with zeros.

    The policy then sees the stack. To stack inside the agent instead, so that a loaded agent needs no
    wrapper, pass frame_stack=n to the algorithm.
    """

    def __init__(
        self, venv: VecEnv, n_stack: int, channels_order: str | Mapping[str, str | None] | None = None
    ) -> None:
        import gymnasium.spaces as gs

        space = venv.observation_space
        stacks: Any
        if isinstance(space, gs.Dict):
            orders = (
                channels_order
                if isinstance(channels_order, Mapping)
                else dict.fromkeys(space, channels_order)
            )
            stacks = {n: _Stack(part, venv.num_envs, n_stack, orders.get(n)) for n, part in space.items()}
            stacked: Any = gs.Dict({name: stack.space for name, stack in stacks.items()})
        else:
            if isinstance(channels_order, Mapping):
                raise ConfigError("channels_order is a dict only where observations are; give one word.")
            stacks = _Stack(space, venv.num_envs, n_stack, channels_order)
            stacked = stacks.space
        super().__init__(venv, stacked)
        self._stacks = stacks

    def reset(self) -> Any:
        obs = self.venv.reset()
        return self._each(lambda stack, part: stack.reset(part), obs)

    def step_wait(self) -> Answer:
        obs, rewards, dones, infos = self.venv.step_wait()
        for row in np.flatnonzero(dones).tolist():
            last = infos[row].get("terminal_observation")
            if last is not None:
                infos[row]["terminal_observation"] = self._each(
                    lambda s, part, i=row: s.ending(i, part), last
                )
        return self._each(lambda stack, part: stack.push(part, dones), obs), rewards, dones, infos

    def _each(self, do: Any, obs: Any) -> Any:
        if isinstance(self._stacks, dict):
            return {name: do(stack, obs[name]) for name, stack in self._stacks.items()}
        return do(self._stacks, obs)


class _Stack:
    """The stack of one array: [rows, …], newest last along one axis."""

    def __init__(self, space: Any, rows: int, count: int, order: str | None) -> None:
        import gymnasium.spaces as gs

        if not isinstance(space, gs.Box):
            raise ConfigError(f"VecFrameStack stacks Box observations, not {space}.")
        if order not in (None, "first", "last"):
            raise ConfigError(f"channels_order must be 'first', 'last' or None, got {order!r}.")
        first = order == "first" if order is not None else _is_channels_first(space)
        self.axis = 0 if first else -1  # of one observation
        low, high = (np.repeat(bound, count, axis=self.axis) for bound in (space.low, space.high))
        self.space = gs.Box(low, high, dtype=space.dtype)
        self._width = space.shape[self.axis]
        self._now = np.zeros((rows, *low.shape), space.dtype)

    def reset(self, obs: np.ndarray) -> np.ndarray:
        return self.push(obs, np.ones(len(self._now), bool))

    def push(self, obs: np.ndarray, dones: np.ndarray) -> np.ndarray:
        """The stack with the newest observation; a row that was reset forgets the others."""
        axis = self._batch_axis
        old = np.where(np.reshape(dones, (-1,) + (1,) * (self._now.ndim - 1)), 0, self._now)
        self._now = np.concatenate([self._later(old, axis), obs], axis).astype(self._now.dtype)
        return self._now

    def ending(self, row: int, last: np.ndarray) -> np.ndarray:
        """The stack that one row's last observation would have made."""
        return np.concatenate([self._later(self._now[row], self.axis), last], self.axis)

    @property
    def _batch_axis(self) -> int:
        return 1 if self.axis == 0 else -1

    def _later(self, stacked: np.ndarray, axis: int) -> np.ndarray:
        """All but the oldest observation."""
        keep = [slice(None)] * stacked.ndim
        keep[axis] = slice(self._width, None)
        return stacked[tuple(keep)]


def _is_channels_first(space: Any) -> bool:
    """Whether a space is an image whose channels, its smallest axis, come first."""
    return len(space.shape) == 3 and space.dtype == np.uint8 and int(np.argmin(space.shape)) == 0
