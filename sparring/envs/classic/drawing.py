"""Frames of the classic environments, drawn by Gymnasium's own renderers from our states."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparring.errors import missing_extra


class Drawing:
    """One Gymnasium environment that is set to a state and asked for a picture; it is never stepped."""

    def __init__(self, env_id: str) -> None:
        try:
            import gymnasium
            import pygame  # noqa: F401  (Gymnasium's renderer needs it and would fail later)
        except ImportError as error:
            raise missing_extra(error.name or "pygame", "classic") from error
        # pygame exists as pygame and as pygame-ce; both serve.
        self._env = gymnasium.make(env_id, render_mode="rgb_array")
        self._env.reset(seed=0)

    def frame(self, state: Any) -> np.ndarray:
        """An RGB picture of one row's state; our states list their fields in Gymnasium's order."""
        self._env.unwrapped.state = np.array([float(value) for value in state])
        return np.asarray(self._env.render())

    def close(self) -> None:
        self._env.close()
