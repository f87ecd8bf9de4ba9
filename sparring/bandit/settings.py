"""The settings by which an algorithm lets a bandit choose how each of its rows acts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, ClassVar, Literal, TypeAlias

from jaxtyping import Array, Float

from sparring import bandit
from sparring.bandit.control import Controller
from sparring.bandit.registry import defaults
from sparring.bandit.space import Coordinate, Space
from sparring.config import configuration
from sparring.errors import ConfigError, nearest
from sparring.limits import given
from sparring.ranges import COUNT, NOT_NEGATIVE, POSITIVE, PROBABILITY, Range
from sparring.spaces import EnvSpec
from sparring.types import Behaviour

Selection: TypeAlias = Literal[
    "none",
    "thompson",
    "sw_ucb",
    "gdi_tiles",
    "gdi_tiles_faithful",
    "lbc_regions",
    "uniform",
    "fixed",
    "ladder",
]

BOUNDS = {
    "epsilon": PROBABILITY,
    "q_lambda": PROBABILITY,
    "omega": PROBABILITY,
    "inverse_tau": NOT_NEGATIVE,
    "temperature": POSITIVE,
    "noise": NOT_NEGATIVE,
    "ent_coef": NOT_NEGATIVE,
    "n_step": COUNT,
    "gamma_index": COUNT,
}
"""What a coordinate of an algorithm can be, by its name without the number of a policy."""
RANKING = ("thompson", "gdi_tiles", "lbc_regions")
"""Selectors that learn from the ranks of returns among recent ones."""


@configuration
class ControlConfig:
    """Which selector chooses a row's behaviour at the start of each of its episodes."""

    controller: Selection = "none"
    """what chooses how each row explores, by the returns of its episodes; none leaves it to the algorithm"""
    controller_space: tuple[str, ...] = ()
    """what to choose: `name:low:high:cells`, also with `:log`, or `name=value|value`; empty: all there is"""
    controller_scope: Literal["shared", "row", "task"] = "shared"
    """one bandit for all rows, one for each row, or one for each task"""
    controller_tasks: tuple[int, ...] = ()
    """the task that each row plays, counted from 0; with controller_scope='task'"""
    controller_options: tuple[str, ...] = ()
    """settings of the selector as `name=value`, such as `memory=500`; several numbers: `widths=2|3|4`"""
    controller_index: tuple[float, ...] = ()
    """the one behaviour of controller='fixed': a number per coordinate"""


def coordinate(text: str) -> Coordinate:
    """What a text of `controller_space` means."""
    name, discrete, values = text.partition("=")
    try:
        if discrete:
            return Coordinate.discrete(name.strip(), [float(value) for value in values.split("|")])
        name, low, high, cells, *log = text.split(":")
        if log and log != ["log"]:
            raise ValueError(f"{log[0]!r} is not 'log'")
        return Coordinate.interval(name.strip(), float(low), float(high), int(cells), log=bool(log))
    except ValueError as error:
        raise ConfigError(
            f"controller_space has {text!r}, which is no coordinate ({error}). Examples: "
            "'epsilon:0.01:0.5:6:log', 'n_step=1|3|5'."
        ) from error


def bounds(name: str) -> Range:
    """What a coordinate of this name can be."""
    return BOUNDS.get(re.sub(r"_\d+$", "", name), Range())


def check_bounds(each: Coordinate, example: str) -> None:
    """Refuses a coordinate from which a bandit may choose what it cannot be."""
    span, numbers = bounds(each.name), each.edges or each.values
    if span.whole and each.edges:
        raise ConfigError(
            f"controller_space cuts {each.name} into cells from {numbers[0]:g} to {numbers[-1]:g}, but it "
            f"must be {span}. Name its values. Example: {example!r}."
        )
    for number in numbers:
        if not span.holds(number):
            raise ConfigError(
                f"controller_space lets a bandit choose {each.name} = {number:g}, which must be {span}. "
                f"Example: {example!r}."
            )


def contemporaries(name: str, space: Space, rows: int) -> dict[str, float]:
    """Options of selectors in training, where returns rise, if so many rows share one.

    Against old ones every new episode ranks high, and whatever was chosen lately looks good: only the latest
    are ranked against, about two of every row. `memory` keeps to `thompson`'s rule of 20 episodes for every
    cell.
    """
    options: dict[str, float] = {}
    if name in RANKING:
        options["pool"] = max(32, 2 * rows)
    if name == "thompson":
        options["memory"] = max(500, 20 * sum(space.cells))
    return options


def sharing(config: ControlConfig, rows: int) -> int:
    """How many of the rows have one bandit in common; of several tasks the most."""
    if config.controller_scope == "row":
        return 1
    return max(Counter(config.controller_tasks).values(), default=rows)


def option(text: str, known: dict[str, Any]) -> tuple[str, Any]:
    """A setting of a selector with these options: `name=number`, or `name=number|number` where it takes
    several; whole numbers stay whole."""
    name, _, value = (part.strip() for part in text.partition("="))
    default = known.get(name, 0.0)
    several = isinstance(default, tuple)
    if isinstance(default, bool):
        value, default = {"true": "1", "false": "0"}.get(value.lower(), value), int(default)
    example = (
        f"{name}={'|'.join(map(str, default)) if several else default}" if name in known else "memory=500"
    )
    try:
        numbers = tuple(_number(part, whole=_whole(default)) for part in value.split("|"))
        if len(numbers) > 1 and not several:
            raise ValueError("it takes one number")
    except ValueError as error:
        raise ConfigError(f"controller_options has {text!r} ({error}). Example: {example!r}.") from error
    return name, numbers if several else numbers[0]


def _whole(default: Any) -> bool:
    """Whether an option with this default counts something."""
    first = default[0] if isinstance(default, tuple) and default else default
    return isinstance(first, int) and not isinstance(first, bool)


def _number(text: str, whole: bool) -> float:
    number = float(text)
    if whole and not number.is_integer():
        raise ValueError("it takes whole numbers")
    return int(number) if number.is_integer() else number


def controller_for(config: ControlConfig, space: Space, rows: int) -> Controller | None:
    """The controller that the settings ask for; None for none."""
    if config.controller == "none":
        return None
    scope, tasks = config.controller_scope, config.controller_tasks
    if config.controller != "fixed":
        if config.controller_index:
            raise ConfigError(
                f"controller_index = {config.controller_index} is for controller='fixed', but controller = "
                f"{config.controller!r} chooses by itself. Use controller='fixed', or controller_index=[]."
            )
        known = defaults(config.controller)
        options = contemporaries(config.controller, space, sharing(config, rows))
        options |= dict(option(text, known) for text in config.controller_options)
        return Controller(bandit.make(config.controller, space, **options), scope, tasks)
    if config.controller_options:
        raise ConfigError(
            f"controller='fixed' has no options, but controller_options = {config.controller_options}. "
            "Its behaviour is controller_index; set controller_options=[]."
        )
    if len(config.controller_index) != len(space.coordinates):
        raise ConfigError(
            f"controller='fixed' needs controller_index with {len(space.coordinates)} numbers: "
            f"{', '.join(space.names)}."
        )
    for name, number in zip(space.names, config.controller_index, strict=True):
        if not bounds(name).holds(number):
            raise ConfigError(
                f"controller_index has {name} = {number:g}, which must be {bounds(name)}. The order is "
                f"{', '.join(space.names)}."
            )
    return Controller(bandit.make("fixed", space, point=config.controller_index), scope, tasks)


class Controlled:
    """What an algorithm inherits to let a bandit choose its rows' behaviour."""

    spec: EnvSpec
    config: Any
    coordinates: ClassVar[tuple[str, ...]]
    """what may be chosen, as in `controller_space`, with the range that is the default"""
    replaced: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """settings that nothing reads while a controller chooses a coordinate"""

    @property
    def space(self) -> Space:
        """The behaviours to choose from."""
        known = {coordinate(text).name: text for text in self.coordinates}
        chosen = [coordinate(text) for text in self.config.controller_space or self._default(known)]
        for each in chosen:
            if each.name not in known:
                raise ConfigError(
                    f"{type(self).__name__} has no {each.name!r} for a bandit to choose."
                    f"{nearest(each.name, known)} Known: {', '.join(known)}."
                )
            check_bounds(each, known[each.name])
        return Space(tuple(chosen))

    def _default(self, known: dict[str, str]) -> Iterable[str]:
        return known.values()

    @property
    def controller(self) -> Controller | None:
        if self.config.controller == "none":
            return None
        return controller_for(self.config, self.space, self.spec.rows)

    @property
    def chosen(self) -> tuple[str, ...]:
        """Names of what a controller chooses."""
        return () if self.config.controller == "none" else self.space.names

    def unread(self) -> list[str]:
        """Warnings, for `check`, about settings of a controller where there is none, and about those that one
        takes the place of; refuses one that cannot be made."""
        if self.config.controller != "none":
            controller_for(self.config, self.space, self.spec.rows)
            return [
                f"The controller chooses {chosen} in the place of {', '.join(told)}."
                for chosen, names in self.replaced.items()
                if chosen in self.chosen and (told := given(self.config, names))
            ]
        told = given(self.config, (f.name for f in fields(ControlConfig) if f.name != "controller"))
        if not told:
            return []
        return [
            f"Nothing reads {', '.join(told)} with controller='none'. Choose a controller, or leave them out."
        ]

    def behaviour(self, point: Float[Array, "B C"]) -> Behaviour:
        """How rows act at these points; coordinates that only learning reads are left out."""
        names = self.space.names
        acted = {name: point[:, c] for c, name in enumerate(names) if name in Behaviour._fields}
        return Behaviour(**acted)

    def along(self, name: str, point: Any) -> Any:
        """One coordinate of points [..., C]; None when nothing chose it."""
        if point is None or name not in self.chosen:
            return None
        return point[..., self.space.names.index(name)]
