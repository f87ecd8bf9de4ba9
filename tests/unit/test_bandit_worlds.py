"""The reference's simulations in short form: what choices are worth where the answer is known."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest


@cache
def suite() -> Any:
    path = Path(__file__).parents[2] / "benchmarks" / "bandits.py"
    spec = importlib.util.spec_from_file_location("bandit_suite", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bandit_suite"] = module
    spec.loader.exec_module(module)
    return module


@cache
def last_quarter(name: str, world: str, steps: int = 80) -> float:
    """Worth of the choices of the last quarter of 64 × steps episodes, mean of two seeds."""
    quality = suite().played(name, replace(suite().WORLDS[world], growth=1.0), 2, steps)
    return float(quality[:, -(steps // 4) :].mean())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "least"),
    [("stationary", 0.65), ("drifting", 0.5), ("negative", 0.5), ("noisy", 0.3), ("mixture", 0.75)],
)
def test_the_default_finds_a_good_behaviour_whatever_the_sign_and_noise_of_returns(world, least):
    """Uniform choices are worth 0.08 to 0.16, and 0.43 in the mixture."""
    assert last_quarter("thompson", world) > least
    assert last_quarter("uniform", world) < least / 1.7


@pytest.mark.slow
def test_the_default_does_not_see_the_offset_and_faithful_tiles_fail_with_it():
    assert last_quarter("thompson", "negative") == pytest.approx(
        last_quarter("thompson", "drifting"), abs=0.12
    )
    positive, negative = (last_quarter("gdi_tiles_faithful", world) for world in ("drifting", "negative"))
    assert positive > 3 * negative
    assert last_quarter("gdi_tiles", "negative") > 2 * negative


@pytest.mark.slow
def test_one_good_arm_of_600_is_found():
    found = last_quarter("thompson", "600 in a row")
    assert found > 0.3
    assert last_quarter("uniform", "600 in a row") < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sw_ucb", "gdi_tiles", "lbc_regions"])
@pytest.mark.parametrize("world", ["stationary", "negative"])
def test_every_learner_but_the_faithful_one_beats_uniform(name, world):
    assert last_quarter(name, world) > 1.5 * last_quarter("uniform", world)


def test_worlds_are_worth_between_nothing_and_one():
    bandits = suite()
    points = jnp.asarray(np.random.default_rng(0).random((50, 3)), jnp.float32)
    seed = bandits.jax.random.key(1)
    for t in (0.0, 0.5, 1.0):
        at = bandits.wandering(seed, jnp.float32(t))
        assert ((at >= 0.0) & (at <= 1.0)).all()
        for quality in bandits.QUALITIES:
            worth = quality(points, at, seed)
            assert worth.shape == (50,)
            assert ((worth >= 0.0) & (worth <= 1.0)).all()
