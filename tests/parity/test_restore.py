"""A restored run continues as if it had never stopped, and every piece of state is needed for that."""

from __future__ import annotations

from typing import Any

import jax
import pytest
from conftest import ACTOR_CRITICS, as_numpy
from parity_cases import fused, host, unequal

SAVED, MORE = 5, 8
DRIVERS = {"fused": fused, "host": host}
CASE = "everything"
RUNS = [(name, driver) for name in ACTOR_CRITICS for driver in DRIVERS]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=RUNS, ids="-".join)
def story(request) -> dict[str, Any]:
    """A run's beginning, middle and end, and a second driver to continue it with."""
    name, kind = request.param
    driver = DRIVERS[kind](name, CASE)
    start = as_numpy(driver.state())
    driver.advance(SAVED)
    saved = as_numpy(driver.state())
    driver.advance(MORE)
    return {
        "start": start,
        "saved": saved,
        "end": as_numpy(driver.state()),
        "other": DRIVERS[kind](name, CASE),
    }


def continued(story: dict[str, Any], state: Any, iteration: int = SAVED) -> list[str]:
    """Where a run continued from a state ends apart from the uninterrupted one."""
    story["other"].restore(state, iteration)
    story["other"].advance(MORE)
    return unequal(story["other"].state(), story["end"])


def test_a_restored_run_is_the_uninterrupted_one_and_restoring_twice_works(story):
    for _ in range(2):
        assert continued(story, story["saved"]) == []


REPLAYING = [
    ("dqn", "rainbow", "fused"),
    ("dqn", "recurrent", "host"),
    ("sac", "stack and gSDE", "host"),
    ("td3", "drifting", "fused"),
    pytest.param("crossq", "stack and gSDE", "fused", marks=pytest.mark.exhaustive),
]


@pytest.mark.parametrize(("name", "case", "kind"), REPLAYING)
def test_a_replay_goes_on_where_it_was(name, case, kind):
    run, other = DRIVERS[kind](name, case), DRIVERS[kind](name, case)
    run.advance(20)
    saved = as_numpy(run.state())
    run.advance(20)
    other.restore(saved, 20)
    other.advance(20)
    assert unequal(run.state(), other.state()) == []


PIECES = [
    "learner.train.nets",
    "learner.train.optimiser",
    "learner.train.moments",
    "learner.train.rewards",
    "learner.train.iteration",
    "learner.replay",
    "learner.episodes",
    "actor.obs",
    "actor.first",
    "actor.carry.frames",
    "actor.carry.noise",
    "actor.carry.age",
    "env.env",
    "env.elapsed",
]


def piece(state: Any, path: str) -> Any:
    for name in path.split("."):
        state = getattr(state, name)
    return state


def put(state: Any, path: str, value: Any) -> Any:
    name, _, rest = path.partition(".")
    inner = put(getattr(state, name), rest, value) if rest else value
    return state._replace(**{name: inner})


@pytest.mark.parametrize("path", PIECES)
def test_without_any_one_piece_of_state_the_run_goes_elsewhere(story, path):
    if path == "learner.replay" and not jax.tree.leaves(piece(story["saved"], path)):
        assert jax.tree.leaves(piece(story["saved"], path)) == []
        return
    forgot = put(story["saved"], path, piece(story["start"], path))
    assert unequal(forgot, story["saved"]) != []
    assert continued(story, forgot) != []


def test_the_iteration_decides_the_random_numbers(story):
    assert continued(story, story["saved"], SAVED + 1) != []


def test_the_pieces_are_all_there_is(story):
    blank = story["saved"]
    for path in PIECES:
        blank = put(blank, path, None)
    assert jax.tree.leaves(blank) == []
