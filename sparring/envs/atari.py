"""Atari consoles that begin an episode from a seed without reading their cartridge again, and late if asked.

`reset(seed=…)` of ale_py loads the ROM anew, which takes as long as some 300 steps, and every episode of ours
has a seed. What loading with another seed changes is one random generator in the console's saved state: the
state after the first loading is restored instead, with that generator replaced. Imports no jax.
"""

from __future__ import annotations

import importlib
import struct
from typing import Any

import gymnasium
import numpy as np

CLOCK = -1
"""the seed that ale_py takes from the clock"""
HEADER = 24
LENGTH = struct.Struct("<I")
WORDS = 624
MOST_NOOPS = 30
"""frames without input before an episode, at most"""


def quicken(env: Any) -> None:
    """Makes seeded resets of an Atari environment quick; any other environment is left as it is."""
    console = getattr(env, "unwrapped", None)
    if hasattr(console, "ale") and hasattr(console, "load_game"):
        console.load_game = Cartridge(console)  # type: ignore[union-attr]


class Cartridge:
    """Stands in for `load_game`: loads once, then restores what that led to with the generator of a seed."""

    def __init__(self, console: Any) -> None:
        self._console, self._load = console, console.load_game
        self._loaded: bytes | None = None
        """the state after loading, up to its random generator; None where it is not as expected"""
        self._rest = b""

    def __call__(self) -> None:
        ale = self._console.ale
        seed = ale.getInt("random_seed")
        if self._loaded is None or seed == CLOCK:
            self._load()
            self._keep(ale.cloneState(include_rng=True).serialize(), seed)
            return
        ale.restoreState(importlib.import_module("ale_py").ALEState(self._with(seed)))

    def _keep(self, state: bytes, seed: int) -> None:
        """Remembers a state if building it from its seed gives the same bytes."""
        numbers = generator(seed)
        at = state.rfind(LENGTH.pack(len(numbers)) + numbers)
        if at < HEADER:
            return
        self._loaded, self._rest = state[:at], state[at + LENGTH.size + len(numbers) :]
        if self._with(seed) != state:
            self._loaded = None

    def _with(self, seed: int) -> bytes:
        """The state after loading with a seed: header, length, console (its end: length, generator), rest."""
        assert self._loaded is not None
        numbers = generator(seed)
        console = self._loaded[HEADER + LENGTH.size :] + LENGTH.pack(len(numbers)) + numbers
        return self._loaded[:HEADER] + LENGTH.pack(len(console)) + console + self._rest


def generator(seed: int) -> bytes:
    """C++'s mt19937 after seeding, in the words that its stream operator writes."""
    drawn = np.random.MT19937()
    drawn._legacy_seeding(seed % 2**32)
    return b" ".join(b"%d" % word for word in drawn.state["state"]["key"]) + b" %d" % WORDS


class LateStart(gymnasium.Wrapper):
    """An Atari game whose episodes begin after 1 to 30 frames without input, as many as its seed says."""

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        _, info = self.env.reset(**kwargs)
        console: Any = self.env.unwrapped
        for _ in range(int(console.np_random.integers(1, MOST_NOOPS + 1))):
            console.ale.act(0)
        return console.ale.getRAM(), info
