"""The settings by which an algorithm lets a bandit choose how its rows act."""

from __future__ import annotations

from typing import Literal, TypeAlias

from sparring import bandit
from sparring.bandit.control import Controller
from sparring.bandit.space import Space
from sparring.config import configuration
from sparring.errors import ConfigError

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


@configuration
class ControlConfig:
    """Which selector chooses a row's behaviour at the start of each of its episodes."""

    controller: Selection = "none"
    """what chooses how each row explores, by the returns of its episodes; none leaves it to the algorithm"""
    controller_scope: Literal["shared", "row"] = "shared"
    """one bandit for all rows, or one for each"""
    controller_index: tuple[float, ...] = ()
    """the one behaviour of controller='fixed': a number per coordinate"""


def controller_for(config: ControlConfig, space: Space) -> Controller | None:
    """The controller that the settings ask for; None for none."""
    if config.controller == "none":
        return None
    if config.controller != "fixed":
        return Controller(bandit.make(config.controller, space), config.controller_scope)
    if len(config.controller_index) != len(space.coordinates):
        raise ConfigError(
            f"controller='fixed' needs controller_index with {len(space.coordinates)} numbers: "
            f"{', '.join(space.names)}."
        )
    return Controller(bandit.make("fixed", space, point=config.controller_index), config.controller_scope)
