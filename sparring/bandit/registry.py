"""Selectors by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

from sparring.bandit.api import Selector
from sparring.bandit.regions import Regions
from sparring.bandit.simple import Fixed, Ladder, Uniform
from sparring.bandit.space import Space
from sparring.bandit.thompson import Thompson
from sparring.bandit.tiles import Tiles
from sparring.bandit.ucb import SlidingWindowUCB
from sparring.errors import ConfigError, nearest

SELECTORS: dict[str, Callable[..., Selector]] = {
    "thompson": Thompson,
    "sw_ucb": SlidingWindowUCB,
    "gdi_tiles": Tiles,
    "gdi_tiles_faithful": partial(Tiles, mode="faithful"),
    "lbc_regions": Regions,
    "uniform": Uniform,
    "fixed": Fixed,
    "ladder": Ladder,
}


def make(name: str, space: Space, **options: Any) -> Selector:
    """The selector of this name over a space, with its own options."""
    if name not in SELECTORS:
        raise ConfigError(
            f"There is no selector {name!r}; there are {', '.join(SELECTORS)}.{nearest(name, SELECTORS)}"
        )
    known = defaults(name)
    for option in options:
        if option not in known:
            has = f"its options are {', '.join(known)}" if known else "it has no options"
            raise ConfigError(
                f"The selector {name!r} has no option {option!r}; {has}.{nearest(option, known)}"
            )
    return SELECTORS[name](space, **options)


def defaults(name: str) -> dict[str, Any]:
    """The options that a selector takes besides its space, less those that its name has settled."""
    selector: Any = SELECTORS[name]
    settled: dict[str, Any] = {}
    if isinstance(selector, partial):
        selector, settled = selector.func, selector.keywords
    return {field.name: field.default for field in fields(selector) if field.name not in ("space", *settled)}
