"""Environments of a user's own, for the tests: built by `file.py:name`, also in worker processes."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Parts(gym.Env):
    """A nested Dict observation, a Discrete with an offset and an image; Discrete actions from 5."""

    observation_space = spaces.Dict(
        {
            "state": spaces.Dict({"speed": spaces.Box(-10, 10, (2,), np.float64)}),
            "mode": spaces.Discrete(3, start=2),
            "image": spaces.Box(0, 255, (4, 4, 1), np.uint8),
        }
    )
    action_space = spaces.Discrete(3, start=5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.speed = self.np_random.normal(size=2)
        return self._obs(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.speed = self.speed * 0.9 + 0.1 * (action - 6) + self.np_random.normal(size=2) * 0.1
        ended = bool(self.np_random.random() < 0.05)
        return self._obs(), float(self.speed.sum()), ended, False, {"action": int(action)}

    def _obs(self) -> Any:
        image = np.full((4, 4, 1), abs(self.speed[0]) * 10 % 255, np.uint8)
        return {
            "state": {"speed": self.speed.copy()},
            "mode": np.int64(2 + (self.speed[0] > 0)),
            "image": image,
        }


OK, RAISE, KILL, SEGFAULT, EXIT, HANG, NAN = range(7)


class Faulty(gym.Env):
    """Counts steps and fails in the way its action names."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Discrete(7)

    def __init__(self, always_fails: bool = False, first_reset: int = OK, marker: str = "") -> None:
        self.always_fails = always_fails
        self.first_reset = first_reset
        self.marker = marker

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if self.first_reset != OK and not os.path.exists(self.marker):
            open(self.marker, "w").close()
            self._fail(self.first_reset)
        self.t = 0
        self.luck = self.np_random.random()
        return self._obs(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self._fail(RAISE if self.always_fails else action)
        obs = self._obs() * (np.nan if action == NAN else 1)
        return obs, 1.0, False, False, {"t": self.t, "name": "not a number"}

    def _fail(self, how: int) -> None:
        if how == RAISE:
            raise RuntimeError("broken on purpose")
        if how == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        if how == SEGFAULT:
            ctypes.string_at(0)
        if how == EXIT:
            os._exit(7)
        if how == HANG:
            time.sleep(3600)

    def _obs(self) -> np.ndarray:
        return np.array([self.t, self.luck, "jax" in sys.modules], np.float32)


class KeepsState(gym.Env):
    """An environment whose state survives reset, as BipedalWalker's does."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.total = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return np.array([self.total], np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.total += 1.0 + action
        return np.array([self.total], np.float32), 1.0, self.t >= 5, False, {}


class Masked(gym.Env):
    """Says which actions are legal, by the name that sb3-contrib uses."""

    observation_space = spaces.Box(0, 10, (1,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def action_masks(self) -> np.ndarray:
        return np.arange(3) != self.t % 3

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return np.full(1, self.t, np.float32), 0.0, self.t >= 4, False, {}
