"""Gymnasium's spaces, actions and observations in our words."""

from __future__ import annotations

from typing import Any

import gymnasium.spaces as gs
import numpy as np
import pytest

from sparring import spaces
from sparring.envs.classic.acrobot import Acrobot
from sparring.envs.classic.cartpole import CartPole
from sparring.envs.classic.mountain_car import MountainCar, MountainCarContinuous
from sparring.envs.classic.pendulum import Pendulum
from sparring.envs.gym_spaces import (
    action_batcher,
    action_space,
    action_splitter,
    by_hand,
    converter,
    observation_space,
    stacker,
)
from sparring.envs.gymnasium import GymRows
from sparring.envs.source import GymId
from sparring.errors import SpaceMismatch

SPACES: list[tuple[Any, spaces.Space]] = [
    (gs.Discrete(3), spaces.Discrete(3)),
    (gs.Discrete(3, start=5), spaces.Discrete(3)),
    (gs.MultiDiscrete([2, 3]), spaces.MultiDiscrete((2, 3))),
    (gs.MultiDiscrete([[2, 3], [4, 5]]), spaces.MultiDiscrete((2, 3, 4, 5))),
    (gs.MultiDiscrete([2, 3], start=[1, -1]), spaces.MultiDiscrete((2, 3))),
    (gs.MultiBinary(4), spaces.MultiBinary(4)),
    (gs.MultiBinary([2, 2]), spaces.MultiBinary(4)),
    (gs.Box(-1, 1, (2, 3)), spaces.Box((2, 3), -1.0, 1.0)),
    (gs.Box(0, 255, (4, 4, 3), np.uint8), spaces.Box((4, 4, 3), 0.0, 255.0, "uint8")),
    (
        gs.Box(np.array([0.0, -1.0]), np.array([1.0, 2.0]), dtype=np.float64),
        spaces.Box((2,), (0.0, -1.0), (1.0, 2.0)),
    ),
]


@pytest.mark.parametrize(("theirs", "ours"), SPACES, ids=str)
def test_spaces_are_translated(theirs: Any, ours: spaces.Space) -> None:
    assert observation_space(theirs) == ours
    assert action_space(theirs) == ours


def test_what_predict_has_otherwise_than_the_environment_is_told() -> None:
    box, plain = gs.Box(0, 1, (1,)), gs.Dict({"a": gs.Box(0, 1, (2, 3)), "b": gs.Discrete(2)})
    for observation, action in ((box, gs.Discrete(3)), (plain, gs.MultiDiscrete([2, 3])), (box, box)):
        assert by_hand(observation, action) == []
    assert by_hand(box, gs.Discrete(3, start=5)) == ["its actions begin at [5], predict's at 0: add it"]
    (told,) = by_hand(box, gs.MultiDiscrete([[2, 3], [3, 2]]))
    assert "shape (2, 2)" in told
    (told,) = by_hand(gs.Discrete(3, start=5), gs.Discrete(2))
    assert "its observation begins at [5], predict's at 0: subtract it" in told
    (told,) = by_hand(gs.Tuple([box, gs.Dict({"x": box})]), gs.Discrete(2))
    assert "one flat dict: 0, 1/x" in told


def test_nested_parts_become_one_dict_with_paths() -> None:
    space = gs.Dict(
        {"b": gs.Dict({"x": gs.Discrete(2), "y": gs.Box(0, 1, (1,))}), "a": gs.Tuple([gs.Discrete(3)])}
    )
    assert observation_space(space) == spaces.Dict(
        (("a/0", spaces.Discrete(3)), ("b/x", spaces.Discrete(2)), ("b/y", spaces.Box((1,), 0.0, 1.0)))
    )
    rows = [
        {"b": {"x": 1, "y": np.array([0.5])}, "a": (2,)},
        {"b": {"x": 0, "y": np.array([0.25])}, "a": (1,)},
    ]
    stacked = stacker(space)(rows)
    assert sorted(stacked) == ["a/0", "b/x", "b/y"]
    assert stacked["a/0"].tolist() == [2, 1]
    assert stacked["b/y"].tolist() == [[0.5], [0.25]]


def test_a_tuple_becomes_a_dict_of_numbers() -> None:
    assert observation_space(gs.Tuple([gs.Discrete(2), gs.Discrete(3)])) == spaces.Dict(
        (("0", spaces.Discrete(2)), ("1", spaces.Discrete(3)))
    )


@pytest.mark.parametrize(
    "space", [gs.Text(5), gs.Sequence(gs.Discrete(2)), gs.Graph(gs.Discrete(2), None)], ids=str
)
def test_other_spaces_are_refused_by_name(space: Any) -> None:
    with pytest.raises(SpaceMismatch, match=type(space).__name__):
        observation_space(space)


def test_actions_with_several_parts_are_refused() -> None:
    with pytest.raises(SpaceMismatch, match="ActionWrapper"):
        action_space(gs.Dict({"a": gs.Discrete(2)}))


@pytest.mark.parametrize(("theirs", "ours"), SPACES, ids=str)
def test_actions_arrive_in_the_environments_space(theirs: Any, ours: spaces.Space) -> None:
    if isinstance(ours, spaces.Box) and ours.dtype == "uint8":
        return  # images are no actions
    batch = spaces.zeros(ours, (3,))
    batch[:] = 1 if not isinstance(ours, spaces.Box) else 0.5
    for action in action_splitter(theirs)(batch):
        assert theirs.contains(action)
    vector = action_batcher(theirs)(batch)
    assert vector.dtype == theirs.dtype
    assert vector.shape == (3, *theirs.shape)
    assert all(theirs.contains(theirs.dtype.type(row) if theirs.shape == () else row) for row in vector)
    assert not np.shares_memory(vector, batch)


@pytest.mark.parametrize(("theirs", "ours"), SPACES, ids=str)
def test_observations_arrive_in_our_dtypes(theirs: Any, ours: spaces.Space) -> None:
    theirs.seed(0)
    samples = [theirs.sample() for _ in range(5)]
    for batch in (stacker(theirs)(samples), converter(theirs)(np.stack(samples))):
        assert batch.dtype == spaces.dtype_of(ours)
        assert batch.shape == (5, *spaces.event_shape(ours))
        if isinstance(ours, spaces.Discrete):
            assert batch.min() >= 0
            assert batch.max() < ours.n


@pytest.mark.parametrize(
    "env",
    [CartPole(), MountainCar(), MountainCarContinuous(), Acrobot(), Pendulum()],
    ids=lambda e: e.spec.id,
)
def test_the_jax_environments_have_gymnasiums_spec(env: Any) -> None:
    assert GymRows([GymId(env.spec.id)]).spec == env.spec
