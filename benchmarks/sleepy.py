"""An environment that costs two milliseconds a step and no processor time, like a simulator elsewhere."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np


class Sleepy(gymnasium.Env):
    """Two actions, one of them right; an episode has 25 steps."""

    def __init__(self, milliseconds: float = 2.0) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._seconds = milliseconds / 1000
        self._steps = 0

    def _look(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        self._seen = self._look()
        return self._seen, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        time.sleep(self._seconds)
        reward = float(int(action) == int(self._seen[0] > 0))
        self._steps += 1
        self._seen = self._look()
        return self._seen, reward, self._steps >= 25, False, {}
