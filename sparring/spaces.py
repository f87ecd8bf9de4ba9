"""Spaces and the environment's specification: plain, hashable, JSON-serialisable, no jax."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from sparring.errors import SpaceMismatch

Bound: TypeAlias = float | tuple[float, ...]


@dataclass(frozen=True)
class Discrete:
    """One choice out of n; Gymnasium's `start` offset is added by the adapter, never seen here."""

    n: int


@dataclass(frozen=True)
class MultiDiscrete:
    """One choice per branch: branch i has sizes[i] options."""

    sizes: tuple[int, ...]


@dataclass(frozen=True)
class MultiBinary:
    """n independent bits."""

    n: int


@dataclass(frozen=True)
class Box:
    """An array of numbers; a bound is one number for all entries or one per entry, in C order."""

    shape: tuple[int, ...]
    low: Bound = -math.inf
    high: Bound = math.inf
    dtype: str = "float32"

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def is_image(self) -> bool:
        """Whether entries are pixels: bytes in two or three dimensions, large enough to convolve."""
        return self.dtype == "uint8" and len(self.shape) in (2, 3) and sorted(self.shape)[-2] >= 36

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper bound as arrays of this space's shape."""

        def full(bound: Bound) -> np.ndarray:
            return np.broadcast_to(np.asarray(bound, np.float64).reshape(-1), (self.size,)).reshape(
                self.shape
            )

        return full(self.low), full(self.high)

    @property
    def bounded(self) -> bool:
        low, high = self.bounds()
        return bool(np.isfinite(low).all() and np.isfinite(high).all())


@dataclass(frozen=True)
class Dict:
    """Named parts of an observation, sorted by name."""

    parts: tuple[tuple[str, Space], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(sorted(self.parts)))


Space: TypeAlias = Discrete | MultiDiscrete | MultiBinary | Box | Dict


@dataclass(frozen=True)
class EnvSpec:
    """Everything an agent may know about its environment before the first step."""

    id: str
    observation: Space
    action: Space
    rows: int = 1
    """Seats times environment copies: the batch axis B of everything that flows."""
    seats: int = 1
    time_limit: int | None = None
    """Steps after which an episode is truncated; None when the environment has no limit of its own."""
    reward_threshold: float | None = None
    masks_actions: bool = False
    """Whether the environment says which actions are legal."""
    refers: bool = False
    """Whether a number stands for every observation, from which the environment makes it again."""


def parts(space: Space) -> tuple[tuple[str, Space], ...]:
    """The named leaves of a space; a single space has one leaf with the empty name."""
    return space.parts if isinstance(space, Dict) else (("", space),)


def shows_images(space: Space) -> bool:
    """Whether any part of an observation is an image."""
    return any(isinstance(part, Box) and part.is_image for _, part in parts(space))


def event_shape(space: Space) -> tuple[int, ...]:
    """The shape of one array that belongs to the space."""
    match space:
        case Discrete():
            return ()
        case MultiDiscrete(sizes):
            return (len(sizes),)
        case MultiBinary(n):
            return (n,)
        case Box(shape):
            return shape
        case Dict():
            raise SpaceMismatch("A Dict space has no single shape; use `zeros` for a tree of arrays.")


def dtype_of(space: Space) -> np.dtype[Any]:
    """The dtype in which arrays of the space travel: float32, the image's bytes, or int32."""
    match space:
        case Box(dtype="uint8"):
            return np.dtype(np.uint8)
        case Box():
            return np.dtype(np.float32)
        case _:
            return np.dtype(np.int32)


def zeros(space: Space, batch: tuple[int, ...] = ()) -> Any:
    """An all-zero member of the space with leading batch axes; a dict of arrays for a Dict."""
    if isinstance(space, Dict):
        return {name: zeros(part, batch) for name, part in space.parts}
    return np.zeros(batch + event_shape(space), dtype_of(space))


def legal_size(space: Space) -> int:
    """Length of an action mask: options for Discrete, all branches' options, bits, or dimensions."""
    match space:
        case Discrete(n) | MultiBinary(n):
            return n
        case MultiDiscrete(sizes):
            return sum(sizes)
        case Box():
            return space.size
        case Dict():
            raise SpaceMismatch("Dict actions are not supported; flatten them in the environment.")


def to_json(space: Space) -> dict[str, Any]:
    """A JSON object that `from_json` reads back to an equal space."""
    match space:
        case Discrete(n):
            return {"type": "Discrete", "n": n}
        case MultiDiscrete(sizes):
            return {"type": "MultiDiscrete", "sizes": list(sizes)}
        case MultiBinary(n):
            return {"type": "MultiBinary", "n": n}
        case Box(shape, low, high, dtype):
            return {
                "type": "Box",
                "shape": list(shape),
                "low": _bound_to_json(low),
                "high": _bound_to_json(high),
                "dtype": dtype,
            }
        case Dict(parts):
            return {"type": "Dict", "parts": {name: to_json(part) for name, part in parts}}


def from_json(data: dict[str, Any]) -> Space:
    """The space a JSON object describes; anything else is an error that names what was found."""
    match data:
        case {"type": "Discrete", "n": int(n)}:
            return Discrete(n)
        case {"type": "MultiDiscrete", "sizes": list(sizes)}:
            return MultiDiscrete(tuple(int(s) for s in sizes))
        case {"type": "MultiBinary", "n": int(n)}:
            return MultiBinary(n)
        case {"type": "Box", "shape": list(shape), "low": low, "high": high, "dtype": str(dtype)}:
            return Box(tuple(int(s) for s in shape), _bound_from_json(low), _bound_from_json(high), dtype)
        case {"type": "Dict", "parts": dict(parts)}:
            return Dict(tuple((str(name), from_json(part)) for name, part in parts.items()))
    raise SpaceMismatch(f"Not a description of a space: {data!r}")


def spec_to_json(spec: EnvSpec) -> dict[str, Any]:
    """A JSON object that `spec_from_json` reads back to an equal specification."""
    return {
        "id": spec.id,
        "observation": to_json(spec.observation),
        "action": to_json(spec.action),
        "rows": spec.rows,
        "seats": spec.seats,
        "time_limit": spec.time_limit,
        "reward_threshold": spec.reward_threshold,
        "masks_actions": spec.masks_actions,
        "refers": spec.refers,
    }


def spec_from_json(data: dict[str, Any]) -> EnvSpec:
    """The specification a JSON object describes."""
    try:
        return EnvSpec(
            id=str(data["id"]),
            observation=from_json(data["observation"]),
            action=from_json(data["action"]),
            rows=int(data["rows"]),
            seats=int(data["seats"]),
            time_limit=None if data["time_limit"] is None else int(data["time_limit"]),
            reward_threshold=None if data["reward_threshold"] is None else float(data["reward_threshold"]),
            masks_actions=bool(data["masks_actions"]),
            refers=bool(data.get("refers", False)),  # not in what was saved before there were any
        )
    except (KeyError, TypeError, ValueError) as error:
        raise SpaceMismatch(f"Not a description of an environment: {error}") from error


def describe(space: Space) -> str:
    """A short text for error messages."""
    match space:
        case Box(shape, _, _, dtype):
            return f"Box{list(shape)} {dtype}"
        case Dict(parts):
            return "Dict(" + ", ".join(f"{name}: {describe(part)}" for name, part in parts) + ")"
        case _:
            return str(space)


def _bound_to_json(bound: Bound) -> Any:
    return [_number(b) for b in bound] if isinstance(bound, tuple) else _number(bound)


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)  # JSON has no infinity


def _bound_from_json(bound: Any) -> Bound:
    return tuple(float(b) for b in bound) if isinstance(bound, list) else float(bound)
