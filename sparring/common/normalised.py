"""Observations that are normalised already. Numpy only, because every `predict` looks here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sparring.errors import ConfigError


class Normalised(np.ndarray):
    """A normalised observation that remembers the raw one, so that `predict` does not normalise it again."""

    raw: np.ndarray | None

    def __array_finalize__(self, parent: Any) -> None:
        self.raw = None


def raw_observation(observation: Any) -> Any:
    """The observation as the environment gave it."""
    if isinstance(observation, Mapping):
        return {name: raw_observation(part) for name, part in observation.items()}
    if not isinstance(observation, Normalised):
        return observation
    if observation.raw is None:
        raise ConfigError(
            "This observation is a part of one that VecNormalize.normalize_obs normalised; predict would "
            "normalise it again. Hand the raw observation to predict."
        )
    return observation.raw
