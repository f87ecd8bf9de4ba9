"""SB3's words for settings of learners from replay in ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from sparring.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise, VectorizedActionNoise
from sparring.errors import ConfigError

Schedule: TypeAlias = float | str | Callable[[float], float]
"""A number, a text such as `lin_3e-4`, or SB3's function of the remaining progress."""


def no_buffers(buffer: Any, kwargs: Mapping[str, Any] | None, memory: bool = False) -> None:
    """Refuses what only makes sense for torch's buffers."""
    if buffer is not None or kwargs:
        raise ConfigError(
            "replay_buffer_class and replay_buffer_kwargs are not available. Priorities are "
            "prioritized=True, several steps of reward n_steps=3, sequences come with a core; leave them out."
        )
    if memory:
        raise ConfigError(
            "optimize_memory_usage is not available; leave it out. buffer='host' keeps every observation "
            "once, and does so for images by itself."
        )


def translated(values: Mapping[str, Any], config: type) -> dict[str, Any]:
    """Settings with SB3's words for them in ours, for an algorithm with that configuration."""
    found, known = dict(values), config.__dataclass_fields__  # type: ignore[attr-defined]
    if "train_freq" in found:
        found["train_freq"] = _steps(found["train_freq"])
    if "action_noise" in found and "noise" in known:
        given = found.pop("action_noise")
        if given is None:
            found.setdefault("noise", "none")
        elif "noise" in found:
            raise ConfigError(
                f"noise={found['noise']!r} and action_noise={type(given).__name__} both say how actions are "
                "disturbed. Leave one of them out."
            )
        else:
            found |= action_noise(given)
    if "ent_coef_init" in known:
        found |= _entropy(found)
    return found


def _steps(value: Any) -> Any:
    """Steps between updates; SB3's pair with a unit is understood when the unit is steps."""
    if not isinstance(value, (tuple, list)):
        return value
    if len(value) != 2 or value[1] != "step":
        raise ConfigError(
            f"train_freq={tuple(value)!r}: updates come every so many steps, not episodes. Use "
            "train_freq=(n, 'step') or a number."
        )
    return value[0]


def action_noise(noise: Any) -> dict[str, Any]:
    """SB3's noise object as settings."""
    if isinstance(noise, VectorizedActionNoise):
        noise = noise.base_noise
    if isinstance(noise, OrnsteinUhlenbeckActionNoise):
        more = {"noise_theta": noise.theta, "noise_dt": noise.dt}
        return {"noise": "ou", **_moments(noise), **more}
    if isinstance(noise, NormalActionNoise):
        return {"noise": "normal", **_moments(noise)}
    raise ConfigError(
        f"action_noise={type(noise).__name__} is not known. Use NormalActionNoise or "
        "OrnsteinUhlenbeckActionNoise from sparring.common.noise, or noise=normal with noise_std=0.1."
    )


def _moments(noise: Any) -> dict[str, Any]:
    """Deviation and mean; a vector has an entry for every dimension of the action, which the agent checks."""
    sigma, mean = np.asarray(noise.sigma, np.float64), np.asarray(noise.mean, np.float64)
    values: dict[str, Any] = {"noise_std": float(sigma) if sigma.ndim == 0 else _listed(sigma)}
    return values | ({"noise_mean": _listed(mean)} if mean.ndim or mean != 0 else {})


def _listed(values: np.ndarray) -> tuple[float, ...]:
    return tuple(float(x) for x in values.reshape(-1))


def _entropy(values: Mapping[str, Any]) -> dict[str, Any]:
    """SB3's `auto` and `auto_0.1` where they stand for the weight of the entropy or its target."""
    found: dict[str, Any] = {}
    if values.get("target_entropy") == "auto":
        found["target_entropy"] = None
    given = values.get("ent_coef")
    if not isinstance(given, str) or not given.startswith("auto"):
        return found
    start = given.partition("_")[2]
    try:
        return found | {"ent_coef": None} | ({"ent_coef_init": float(start)} if start else {})
    except ValueError:
        raise ConfigError(f"ent_coef must be a number, 'auto' or 'auto_0.1', got {given!r}.") from None
