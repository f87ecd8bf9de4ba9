"""SB3's action noise: descriptions that become settings of TD3, SAC and CrossQ."""

from __future__ import annotations

from typing import Any

import numpy as np


class NormalActionNoise:
    """Independent Gaussian noise on actions in [-1, 1]."""

    def __init__(self, mean: Any, sigma: Any, dtype: Any = np.float32) -> None:
        self.mean, self.sigma, self.dtype = np.asarray(mean), np.asarray(sigma), dtype

    def __repr__(self) -> str:
        return f"{type(self).__name__}(mu={self.mean}, sigma={self.sigma})"


class OrnsteinUhlenbeckActionNoise:
    """Noise that drifts within an episode: dx = -θ x dt + σ dW."""

    def __init__(
        self,
        mean: Any,
        sigma: Any,
        theta: float = 0.15,
        dt: float = 1e-2,
        initial_noise: Any = None,
        dtype: Any = np.float32,
    ) -> None:
        if initial_noise is not None and np.any(np.asarray(initial_noise) != 0):
            raise ValueError("initial_noise must be zero: an episode starts without noise.")
        self.mean, self.sigma, self.theta, self.dt = np.asarray(mean), np.asarray(sigma), theta, dt
        self.dtype = dtype

    def __repr__(self) -> str:
        return f"{type(self).__name__}(mu={self.mean}, sigma={self.sigma})"


class VectorizedActionNoise:
    """The same noise in every environment, which is what one description means here anyway."""

    def __init__(self, base_noise: Any, n_envs: int) -> None:
        self.base_noise, self.n_envs = base_noise, n_envs
