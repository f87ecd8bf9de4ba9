"""What the exporter handed over: nothing is believed before its name, shape and numbers were looked at."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from sparring import spaces
from sparring.errors import CheckpointError, ConfigError, SpaceMismatch
from sparring.runs import tensors
from sparring.spaces import Box, Discrete, EnvSpec, MultiBinary, MultiDiscrete, Space

ABOUT = "export.json"
TENSORS = "export.safetensors"
SIZES = {ABOUT: 4 * 2**20, TENSORS: 2**30}
"""Files that an exporter leaves, and how large they may be."""

ALGORITHMS = ("ppo", "a2c", "dqn", "sac", "td3")
ACTIVATIONS = ("tanh", "relu", "elu", "silu", "leaky_relu", "sigmoid", "identity")
MOST_LAYERS = 32
WIDEST = 1 << 16

Arrays = dict[str, np.ndarray]


class Normalised(NamedTuple):
    """VecNormalize's view of observations."""

    mean: np.ndarray
    variance: np.ndarray
    samples: float
    clip: float
    epsilon: float


class Record(NamedTuple):
    """Decisions of SB3's deterministic policy, and of what a stochastic one is drawn."""

    obs: np.ndarray
    action: np.ndarray
    params: np.ndarray
    reward: np.ndarray | None
    terminated: np.ndarray | None
    truncated: np.ndarray | None
    why: str
    """why the environment was not played there; empty when it was"""


class Handover(NamedTuple):
    """A policy of SB3's in numbers."""

    algorithm: str
    activation: str
    pi: tuple[int, ...]
    weights: Arrays
    """by the exporter's names, as torch keeps them: [outputs, inputs]"""
    use_sde: bool
    sde_sample_freq: int
    exploration_rate: float
    settings: dict[str, int | float]
    normalised: Normalised | None
    record: Record
    timesteps: int
    versions: dict[str, str]


def read(files: Mapping[str, bytes], spec: EnvSpec) -> Handover:
    """The hand-over for an environment; anything that does not fit it is an error that says what."""
    if ABOUT not in files:
        raise CheckpointError(f"The exporter left no {ABOUT}: its output cannot be used.")
    try:
        about = json.loads(files[ABOUT])
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{ABOUT} is not JSON: {error}") from error
    if not isinstance(about, dict) or about.get("schema") != 1:
        raise CheckpointError(f"{ABOUT} is not a description of a model.")
    if "error" in about:
        raise ConfigError(f"The model cannot be imported: {_text(about['error'], 600)}.")
    if TENSORS not in files:
        raise CheckpointError(f"The exporter left no {TENSORS}: its output cannot be used.")
    try:
        return _assemble(about, tensors.decode(files[TENSORS], TENSORS), spec)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"{ABOUT} is not a description of a model: {error!r}") from error


def _assemble(about: dict[str, Any], arrays: Arrays, spec: EnvSpec) -> Handover:
    algorithm = _one_of(about, "algorithm", ALGORITHMS)
    _check_spaces(about, spec)
    pi = tuple(_whole(size, 1, WIDEST) for size in about["pi"])
    if len(pi) > MOST_LAYERS:
        raise CheckpointError(f"A policy of {len(pi)} layers is not believed.")
    sde = bool(about["use_sde"])
    wanted = _shapes(algorithm, spec, pi, sde)
    noted = about["normalised"]
    if noted is not None:
        if not isinstance(spec.observation, Box) or spec.observation.dtype != "float32":
            raise CheckpointError("Statistics of VecNormalize belong to observations of real numbers.")
        shape = spec.observation.shape
        statistics = {"obs.mean": (shape, "float64"), "obs.var": (shape, "float64")}
    else:
        statistics = {}
    played = bool(about["record"]["played"])
    count = len(arrays["record.obs"]) if arrays.get("record.obs", np.zeros(())).ndim else 0
    if not 1 <= count <= 1_000_000:
        raise CheckpointError("The exporter recorded no decisions.")
    recorded = _recorded(algorithm, spec, count, played)
    expected = {name: (shape, "float32") for name, shape in wanted.items()} | statistics | recorded
    _check_arrays(arrays, expected)
    normalised = None
    if noted is not None:
        normalised = Normalised(
            arrays["obs.mean"],
            arrays["obs.var"],
            _number(noted["count"], 0.0, math.inf),
            _number(noted["clip"], 1e-6, 1e9),
            _number(noted["epsilon"], 0.0, 1.0),
        )
        if (normalised.variance < 0).any():
            raise CheckpointError("VecNormalize's variance is negative.")
    settings = {
        _text(name, 40): value
        for name, value in dict(about["settings"]).items()
        if type(value) in (int, float) and math.isfinite(value)
    }
    return Handover(
        algorithm,
        _one_of(about, "activation", ACTIVATIONS),
        pi,
        {name: arrays[name] for name in wanted},
        sde,
        _whole(about["sde_sample_freq"], -1, 1 << 30),
        _number(about["exploration_rate"], 0.0, 1.0),
        settings,
        normalised,
        Record(
            **{name: arrays.get(f"record.{name}") for name in Record._fields[:-1]},  # type: ignore[arg-type]
            why="" if played else _text(about["record"]["why"], 300),
        ),
        _whole(about["timesteps"], 0, 1 << 62),
        {_text(name, 40): _text(version, 40) for name, version in dict(about["versions"]).items()},
    )


def _check_spaces(about: Mapping[str, Any], spec: EnvSpec) -> None:
    """The model's spaces are the environment's, bounds of actions included: actions are scaled by them."""
    for name, ours in (("observation", spec.observation), ("action", spec.action)):
        theirs = spaces.from_json(about[name])
        same = _shape(theirs) == _shape(ours)
        if same and name == "action" and isinstance(theirs, Box) and isinstance(ours, Box):
            same = all(
                np.allclose(a, b, rtol=1e-6) for a, b in zip(theirs.bounds(), ours.bounds(), strict=True)
            )
        if not same:
            raise SpaceMismatch(
                f"The model has {name}s {_described(theirs)}, and {spec.id} has {_described(ours)}. Name "
                "the environment that it was trained on; one that was wrapped (stacked frames, added time) "
                "has to be given with its wrappers, as file.py:name."
            )


def _shape(space: Space) -> Any:
    return (space.shape, space.dtype) if isinstance(space, Box) else space


def _described(space: Space) -> str:
    if not isinstance(space, Box):
        return spaces.describe(space)
    low, high = (b.reshape(-1) for b in space.bounds())
    return f"{spaces.describe(space)} from {low.min():g} to {high.max():g}"


def inputs(space: Space) -> int:
    """Numbers that a policy's first layer gets."""
    match space:
        case Box():
            return space.size
        case Discrete(n) | MultiBinary(n):
            return n
        case MultiDiscrete(sizes):
            return sum(sizes)
        case _:
            raise SpaceMismatch(f"Observations {spaces.describe(space)} cannot be imported from SB3.")


def outputs(space: Space) -> int:
    """Numbers that a policy's last layer gives."""
    return inputs(space)


def _shapes(algorithm: str, spec: EnvSpec, pi: tuple[int, ...], sde: bool) -> dict[str, tuple[int, ...]]:
    """Every tensor of the policy."""
    box = isinstance(spec.action, Box)
    if (algorithm in ("sac", "td3")) != box and algorithm not in ("ppo", "a2c"):
        raise CheckpointError(f"{algorithm.upper()} does not act with {spaces.describe(spec.action)}.")
    if sde and not (box and algorithm in ("ppo", "a2c")):
        raise CheckpointError(f"gSDE of {algorithm.upper()} is not imported.")
    widths, actions = (inputs(spec.observation), *pi), outputs(spec.action)
    found: dict[str, tuple[int, ...]] = {}
    for index, (a, b) in enumerate(zip(widths, pi, strict=False)):
        found |= {f"body.{index}.weight": (b, a), f"body.{index}.bias": (b,)}
    found |= {"head.weight": (actions, widths[-1]), "head.bias": (actions,)}
    if algorithm == "sac":
        found |= {"log_std.weight": (actions, widths[-1]), "log_std.bias": (actions,)}
    elif box and algorithm != "td3":
        found["log_std"] = (widths[-1], actions) if sde else (actions,)
    return found


def _recorded(
    algorithm: str, spec: EnvSpec, count: int, played: bool
) -> dict[str, tuple[tuple[int, ...], str]]:
    """Every array of the recorded decisions."""
    actions = outputs(spec.action)
    params = 2 * actions if isinstance(spec.action, Box) and algorithm != "td3" else actions
    floats = isinstance(spec.observation, Box) and spec.observation.dtype == "float32"
    found: dict[str, tuple[tuple[int, ...], str]] = {
        "record.obs": ((count, *spaces.event_shape(spec.observation)), "float32" if floats else "int32"),
        "record.action": (
            (count, *spaces.event_shape(spec.action)),
            "float32" if isinstance(spec.action, Box) else "int32",
        ),
        "record.params": ((count, params), "float32"),
    }
    if played:
        found["record.reward"] = ((count,), "float32")
        found |= {f"record.{name}": ((count,), "bool") for name in ("terminated", "truncated")}
    return found


def _check_arrays(arrays: Arrays, expected: Mapping[str, tuple[tuple[int, ...], str]]) -> None:
    odd = sorted(set(arrays) ^ set(expected))
    if odd:
        verb = "is missing" if odd[0] in expected else "does not belong there"
        raise CheckpointError(f"{TENSORS}: {_text(odd[0], 60)!r} {verb}.")
    for name, (shape, dtype) in expected.items():
        array = arrays[name]
        if array.shape != shape or array.dtype.name != dtype:
            raise CheckpointError(
                f"{TENSORS}: {name} is {array.dtype.name}{list(array.shape)}, but {dtype}{list(shape)} "
                "belongs to such a policy."
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise CheckpointError(f"{TENSORS}: {name} has numbers that are not finite; the model is broken.")


def _one_of(about: Mapping[str, Any], name: str, known: tuple[str, ...]) -> str:
    if about[name] not in known:
        raise CheckpointError(f"{ABOUT}: {name} is {_text(about[name], 40)!r}; known: {', '.join(known)}.")
    return str(about[name])


def _whole(value: Any, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise CheckpointError(f"{ABOUT}: {_text(value, 40)} is not a whole number from {low} to {high}.")
    return value


def _number(value: Any, low: float, high: float) -> float:
    if type(value) not in (int, float) or not low <= value <= high:
        raise CheckpointError(f"{ABOUT}: {_text(value, 40)} is not a number from {low:g} to {high:g}.")
    return float(value)


def _text(value: Any, most: int) -> str:
    """Words of a stranger, short and without anything that a terminal would obey."""
    return "".join(c for c in str(value) if c.isprintable())[:most]
