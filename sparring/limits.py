"""When the settings of agents and algorithms mean something, whoever has them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any, NamedTuple

from sparring.config import Cosine, Exponential, Linear, Piecewise, Schedule
from sparring.errors import ConfigError
from sparring.ranges import COUNT, DECAY, ENDLESS, NOT_NEGATIVE, POSITIVE, PROBABILITY, Range

EXPLORATION = ("exploration_fraction", "exploration_initial_eps", "exploration_final_eps")
RANGES = {
    **dict.fromkeys(("gamma", "tau", "priority_beta", "q_lambda", "gae_lambda"), PROBABILITY),
    **dict.fromkeys(("exploration_initial_eps", "exploration_final_eps"), PROBABILITY),
    **dict.fromkeys(("exploration_fraction", "renorm_momentum", "priority_eta"), PROBABILITY),
    **dict.fromkeys(("learning_rate", "priority_alpha"), NOT_NEGATIVE),
    **dict.fromkeys(("adam_eps", "rms_prop_eps", "weight_decay"), NOT_NEGATIVE),
    **dict.fromkeys(("clip_range", "clip_range_vf", "max_grad_norm", "target_kl"), Range(0.0, math.inf)),
    **dict.fromkeys(("v_trace", "q_trace"), PROBABILITY),
    **dict.fromkeys(("v_coef", "q_coef", "pi_coef"), NOT_NEGATIVE),
    "warmup": Range(0, whole=True),
    **dict.fromkeys(("adam_b1", "adam_b2"), DECAY),
    **dict.fromkeys(("rho_bar", "c_bar", "target_temperature"), POSITIVE),
    **dict.fromkeys(("clip_obs", "clip_reward"), ENDLESS),
    **dict.fromkeys(("noise_std", "noise_theta", "noise_dt"), NOT_NEGATIVE),
    **dict.fromkeys(("target_policy_noise", "target_noise_clip"), NOT_NEGATIVE),
    "ent_coef_init": Range(1e-30),
    "renorm_warm_up": Range(0.0, math.inf),
    **dict.fromkeys(("net_arch", "pi", "vf", "qf"), COUNT),
    **dict.fromkeys(("core_size", "core_layers", "core_heads", "core_window", "frame_stack"), COUNT),
    "fourier": Range(0, whole=True),
}


class Reader(NamedTuple):
    """What must be set for some settings to be read."""

    names: tuple[str, ...]
    reads: Callable[[Any], bool]
    needed: str


READERS = (
    Reader(("core_size", "core_layers"), lambda c: c.core != "none", "a core"),
    Reader(("core_heads", "core_window"), lambda c: c.core == "transformer", "core='transformer'"),
    Reader(("clip_obs",), lambda c: c.normalize_obs, "normalize_obs=True"),
    Reader(("clip_reward",), lambda c: c.normalize_reward, "normalize_reward=True"),
    Reader(("action_grid",), lambda c: bool(c.action_bins), "action_bins"),
    Reader(("sde_sample_freq",), lambda c: c.use_sde, "use_sde=True"),
    Reader(("noise_std", "noise_mean"), lambda c: c.noise != "none", "noise"),
    Reader(("noise_theta", "noise_dt"), lambda c: c.noise == "ou", "noise='ou'"),
)


SEQUENCES = Reader(("sequence_length",), lambda c: c.core != "none", "a core")
"""For those whose batches are sequences only where there is a core."""


def unread(config: Any, readers: Iterable[Reader] = READERS) -> list[str]:
    """Warnings about settings that were given and that nothing reads."""
    return [
        f"Nothing reads {', '.join(told)} without {needed}."
        for names, reads, needed in readers
        if (told := given(config, names)) and not reads(config)
    ]


def given(config: Any, names: Iterable[str]) -> list[str]:
    """Those of these settings that are not their defaults, as `name=value`."""
    default = {f.name: f.default for f in fields(config)}
    changed = [n for n in names if n in default and getattr(config, n) != default[n]]
    return [f"{n}={getattr(config, n)!r}" for n in changed]


def check_ranges(config: Any, **more: Range) -> None:
    """Refuses numbers that are out of bounds, those that a schedule goes through among them."""
    for name, span in (RANGES | more).items():
        value = getattr(config, name, None)
        if not all(span.holds(number) for number in _numbers(value)):
            several = isinstance(value, tuple) and not isinstance(value, Schedule)
            shown = f"{value:g}" if isinstance(value, float) else value
            raise ConfigError(f"{name} must {'hold numbers, each' if several else 'be'} {span}, got {shown}.")


def _numbers(value: Any) -> Iterable[float]:
    """A number, those of a list, or the outermost that a schedule reaches; nothing of anything else."""
    match value:
        case Piecewise():
            found: tuple[Any, ...] = value.value
        case Linear() | Cosine() | Exponential():
            found = (value.start, value.end)
        case tuple():
            found = value
        case _:
            found = (value,)
    return (x for x in found if isinstance(x, (int, float)) and not isinstance(x, bool))
