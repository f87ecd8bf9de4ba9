"""Our spaces in Gymnasium's words."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparring.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space


def gym_space(space: Space) -> Any:
    """The Gymnasium space whose members are what our environments return and take."""
    import gymnasium.spaces as gs

    match space:
        case Discrete(n):
            return gs.Discrete(n)
        case MultiDiscrete(sizes):
            return gs.MultiDiscrete(np.array(sizes))
        case MultiBinary(n):
            return gs.MultiBinary(n)
        case Box():
            dtype = np.uint8 if space.dtype == "uint8" else np.float32
            low, high = (np.asarray(bound, dtype) for bound in space.bounds())
            return gs.Box(low, high, space.shape, dtype)
        case Dict(parts):
            return gs.Dict({name: gym_space(part) for name, part in parts})
