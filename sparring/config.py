"""Configuration: frozen dataclasses that are pytrees, schedules for any scalar, layers with provenance.

A field annotated `Schedulable` is a leaf of the pytree: it is traced, so it may be swept with `vmap` or
changed without recompiling. Every other field is static and must be hashable.
"""

from __future__ import annotations

import ast
import dataclasses
import math
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp

from sparring.errors import ConfigError, nearest

C = TypeVar("C")


class Linear(NamedTuple):
    """From `start` to `end` over the first `fraction` of training, then constant."""

    start: float
    end: float = 0.0
    fraction: float = 1.0

    def at(self, progress: Any) -> Any:
        return self.start + (self.end - self.start) * jnp.minimum(
            progress / jnp.maximum(self.fraction, 1e-9), 1.0
        )


class Cosine(NamedTuple):
    """Half a cosine from `start` to `end`."""

    start: float
    end: float = 0.0

    def at(self, progress: Any) -> Any:
        return self.end + (self.start - self.end) * 0.5 * (
            1.0 + jnp.cos(math.pi * jnp.minimum(progress, 1.0))
        )


class Exponential(NamedTuple):
    """Geometric from `start` to `end`; both positive."""

    start: float
    end: float

    def at(self, progress: Any) -> Any:
        ratio = jnp.log(jnp.asarray(self.end) / self.start)
        return self.start * jnp.exp(ratio * jnp.minimum(progress, 1.0))


class Piecewise(NamedTuple):
    """Straight lines through (progress, value) knots."""

    progress: tuple[float, ...]
    value: tuple[float, ...]

    def __repr__(self) -> str:
        """All knots where they are few, else the ends and how many there are."""
        knots = [f"{p:g}: {v:g}" for p, v in zip(self.progress, self.value, strict=True)]
        shown = knots if len(knots) <= 6 else [knots[0], f"… {len(knots) - 2} more …", knots[-1]]
        return f"Piecewise({', '.join(shown)})"

    def at(self, progress: Any) -> Any:
        return jnp.interp(progress, jnp.asarray(self.progress), jnp.asarray(self.value))


Schedule: TypeAlias = Linear | Cosine | Exponential | Piecewise
if typing.TYPE_CHECKING:
    Schedulable: TypeAlias = Any  # a float, a schedule, or (inside a trace) an array: arithmetic is fine
else:
    Schedulable = float | Schedule
SCHEDULES: dict[str, type[Any]] = {
    "linear": Linear,
    "cosine": Cosine,
    "exponential": Exponential,
    "piecewise": Piecewise,
}


def tabulate(function: Callable[[float], float], knots: int = 257) -> Piecewise:
    """SB3's callable of the *remaining* progress as data: a schedule that can be saved and traced."""
    grid = [i / (knots - 1) for i in range(knots)]
    return Piecewise(tuple(grid), tuple(float(function(1.0 - p)) for p in grid))


@dataclass_transform(frozen_default=True, kw_only_default=True)
def configuration(cls: type[C]) -> type[C]:
    """Makes a frozen keyword-only dataclass whose `Schedulable` fields are the leaves of a pytree."""
    made = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    traced = tuple(
        f.name
        for f in dataclasses.fields(made)  # type: ignore[arg-type]
        if "Schedulable" in str(f.type) or "Linear" in str(f.type)  # as a string or as the evaluated union
    )
    static = tuple(f.name for f in dataclasses.fields(made) if f.name not in traced)  # type: ignore[arg-type]
    jax.tree_util.register_dataclass(made, data_fields=traced, meta_fields=static)
    return made


@dataclass_transform(frozen_default=True)
def algorithm(cls: type[C]) -> type[C]:
    """Makes an algorithm: a frozen dataclass (spec, config, horizon) whose config and horizon are traced.

    `horizon` is the number of iterations after which schedules are at their end.
    """
    made = dataclasses.dataclass(frozen=True)(cls)
    jax.tree_util.register_dataclass(made, data_fields=["config", "horizon"], meta_fields=["spec"])
    return made


def resolve(config: C, progress: Any) -> C:
    """The configuration at a point of training: every schedule replaced by its value."""
    now = {
        f.name: value.at(progress)
        for f in dataclasses.fields(config)  # type: ignore[arg-type]
        if isinstance(value := getattr(config, f.name), Schedule)
    }
    return dataclasses.replace(config, **now) if now else config  # type: ignore[type-var]


def from_mapping(cls: type[C], values: Mapping[str, Any]) -> C:
    """A configuration from plain values, each checked against its field."""
    hints = typing.get_type_hints(cls)
    for key in values:
        if key not in hints:
            raise ConfigError(f"{cls.__name__} has no setting {key!r}.{nearest(key, hints)}")
    return cls(**{key: coerce(value, hints[key], key) for key, value in values.items()})


class Layer(NamedTuple):
    """Settings that came from one place."""

    source: str
    values: Mapping[str, Any]


def merge(layers: Iterable[Layer]) -> tuple[dict[str, Any], dict[str, str]]:
    """Later layers win; returns the values and where each one came from."""
    values: dict[str, Any] = {}
    provenance: dict[str, str] = {}
    for layer in layers:
        for key, value in layer.values.items():
            values[key] = value
            provenance[key] = layer.source
    return values, provenance


def parse_assignment(text: str) -> tuple[str, Any]:
    """`key=value` as given to `--set`; the value is a literal, a schedule or a bare word."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"--set takes key=value, got {text!r}. Example: --set learning_rate=1e-3")
    return key.strip(), literal(value.strip())


def literal(text: str) -> Any:
    """The Python literal a text spells, or the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def load_toml(path: Path) -> dict[str, Any]:
    """The settings of a TOML file."""
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError as error:
        raise ConfigError(f"There is no configuration file {str(path)!r}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{str(path)!r} is not valid TOML: {error}") from error


def coerce(value: Any, hint: Any, key: str) -> Any:
    """The value as its field's type wants it; a clear error otherwise."""
    if hint is Schedulable or hint == Schedulable:
        return _schedulable(value, key)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if type(None) in args and (value is None or value == "none"):
            return None
        options = [a for a in args if a is not type(None)]
        if any(a is Linear for a in options):  # a schedulable, or none, or a list of numbers
            listed = [a for a in options if typing.get_origin(a) is tuple]
            if listed and isinstance(value, (list, tuple)) and not isinstance(value, Schedule):
                return coerce(value, listed[0], key)
            return _schedulable(value, key)
        problems = []
        for option in options:
            try:
                return coerce(value, option, key)
            except ConfigError as error:
                problems.append(str(error))
        raise ConfigError(problems[0])
    if origin is typing.Literal:
        if value is None and "none" in args:  # what `literal` makes of the bare word
            value = "none"
        if isinstance(value, bool) and "false" in args:  # SB3's booleans: off, or the first way of being on
            value = args[0] if value else "false"
        if value not in args:
            raise ConfigError(f"{key} must be one of {', '.join(map(repr, args))}, got {value!r}.")
        return value
    if origin is tuple:
        if isinstance(value, (int, float, str)):
            value = (value,)
        if not isinstance(value, (tuple, list)):
            raise ConfigError(f"{key} must be a list, got {value!r}.")
        return tuple(coerce(v, args[0], key) for v in value)
    if hint is bool:
        if isinstance(value, bool):
            return value
        raise ConfigError(f"{key} must be true or false, got {value!r}.")
    if hint is int:
        number = _number(value)
        if number is not None and math.isfinite(number) and number == int(number):
            return int(number)
        raise ConfigError(f"{key} must be a whole number, got {value!r}.")
    if hint is float:
        number = _number(value)
        if number is None:
            raise ConfigError(f"{key} must be a number, got {value!r}.")
        return number
    if hint is str:
        return str(value)
    return value


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _schedulable(value: Any, key: str) -> Any:
    """A number, a schedule, RL-Zoo's `lin_x`, `linear(a, b)`, a table, or SB3's callable."""
    if isinstance(value, Schedule):
        return value
    if callable(value):
        return tabulate(value)
    if (number := _number(value)) is not None:
        if math.isnan(number):
            raise ConfigError(f"{key} must be a number, got {value!r}.")
        return number
    if isinstance(value, str):
        if value.startswith("lin_") and (number := _number(value[4:])) is not None:
            return Linear(number)
        name, _, rest = value.partition("(")
        if name in SCHEDULES and rest.endswith(")"):
            try:
                return _checked(SCHEDULES[name](*ast.literal_eval(f"({rest[:-1]},)")))
            except (ValueError, SyntaxError, TypeError) as error:
                raise ConfigError(f"{key}: cannot read the schedule {value!r}: {error}") from error
    if isinstance(value, Mapping) and str(value.get("schedule")) in SCHEDULES:
        given = {k: v for k, v in value.items() if k != "schedule"}
        try:
            arguments = {k: tuple(v) if isinstance(v, (list, tuple)) else float(v) for k, v in given.items()}
            return _checked(SCHEDULES[value["schedule"]](**arguments))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{key}: cannot read the schedule {value!r}: {error}") from error
    raise ConfigError(
        f"{key} must be a number or a schedule such as 'lin_1e-3' or 'linear(1e-3, 0)', got {value!r}."
    )


def _checked(schedule: Any) -> Any:
    """The schedule with its numbers as floats; a ValueError when it cannot be followed."""
    made = type(schedule)(*(tuple(map(float, x)) if isinstance(x, tuple) else float(x) for x in schedule))
    match made:
        case Linear(fraction=fraction) if not 0 < fraction <= 1:
            raise ValueError("its fraction must be above 0 and at most 1")
        case Exponential(start, end) if start <= 0 or end <= 0:
            raise ValueError("both ends of an exponential must be above 0")
        case Piecewise(progress, values) if len(progress) != len(values) or list(progress) != sorted(
            progress
        ):
            raise ValueError("it needs as many values as places, and the places in order")
    return made


def to_plain(value: Any) -> Any:
    """A setting as TOML and JSON can hold it; `coerce` reads it back to an equal value."""
    if isinstance(value, Schedule):
        name = next(n for n, kind in SCHEDULES.items() if isinstance(value, kind))
        fields = {
            k: [float(x) for x in v] if isinstance(v, tuple) else float(v) for k, v in value._asdict().items()
        }
        return {"schedule": name, **fields}
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return [to_plain(v) for v in value]
    if isinstance(value, (bool, int, str)):
        return value
    return float(value)


def as_mapping(config: Any) -> dict[str, Any]:
    """All settings of a configuration as plain values."""
    return {f.name: to_plain(getattr(config, f.name)) for f in dataclasses.fields(config)}


def dump_toml(values: Mapping[str, Any], comments: Mapping[str, str] | None = None, table: str = "") -> str:
    """TOML text of nested plain values, with a comment behind each commented key."""
    lines: list[str] = []
    tables: list[str] = []
    for key, value in values.items():
        if isinstance(value, Mapping) and "schedule" not in value:
            inner = {k.partition(".")[2]: c for k, c in (comments or {}).items() if k.startswith(f"{key}.")}
            name = f"{table}.{_toml_key(key)}" if table else _toml_key(key)
            tables.append(f"\n[{name}]\n" + dump_toml(value, inner, name))
        else:
            note = f"  # {' '.join(comments[key].split())}" if comments and key in comments else ""
            lines.append(f"{_toml_key(key)} = {_toml(value)}{note}\n")
    return "".join(lines) + "".join(tables)


def _toml_character(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x20 or code == 0x7F else character


def _toml_key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else _toml(key)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return '"' + "".join(_toml_character(c) for c in value) + '"'
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_toml_key(k)} = {_toml(v)}" for k, v in value.items()) + " }"
    raise ConfigError(f"A value of type {type(value).__name__} cannot be written to TOML: {value!r}")
