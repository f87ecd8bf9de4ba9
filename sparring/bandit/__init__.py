"""Behaviour control: bandits that choose how each row acts, as pure functions over an explicit state."""

from __future__ import annotations

from sparring.bandit.api import Choice, Selector
from sparring.bandit.control import Control, Controller
from sparring.bandit.registry import SELECTORS, make
from sparring.bandit.space import Coordinate, Space

__all__ = ["SELECTORS", "Choice", "Control", "Controller", "Coordinate", "Selector", "Space", "make"]
