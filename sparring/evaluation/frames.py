"""Pictures of JAX-native environments, which have a state but no renderer of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

CLASSIC = frozenset(
    {"CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1", "Pendulum-v1"}
)


def renderer(env_id: str) -> Callable[[Any], np.ndarray] | None:
    """A function from one row's state to an RGB frame, or None when nothing can draw the environment."""
    if env_id not in CLASSIC:
        return None
    from sparring.envs.classic.drawing import Drawing

    return Drawing(env_id).frame
