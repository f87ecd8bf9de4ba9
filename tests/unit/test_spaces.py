"""Spaces and specifications survive JSON and refuse what is not one."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.errors import SpaceMismatch
from sparring.spaces import (
    Box,
    Dict,
    Discrete,
    EnvSpec,
    MultiBinary,
    MultiDiscrete,
    describe,
    dtype_of,
    event_shape,
    from_json,
    legal_size,
    spec_from_json,
    spec_to_json,
    to_json,
    zeros,
)

COUNT = st.integers(1, 50)
NUMBER = st.floats(allow_nan=False)


@st.composite
def boxes(draw):
    shape = tuple(draw(st.lists(st.integers(1, 4), max_size=3)))
    size = math.prod(shape)
    bound = NUMBER | st.lists(NUMBER, min_size=size, max_size=size).map(tuple)
    return Box(shape, draw(bound), draw(bound), draw(st.sampled_from(["float32", "uint8", "int32"])))


LEAVES = (
    COUNT.map(Discrete)
    | st.lists(COUNT, min_size=1, max_size=4).map(lambda s: MultiDiscrete(tuple(s)))
    | COUNT.map(MultiBinary)
    | boxes()
)
DICTS = st.dictionaries(st.text(max_size=5), LEAVES, min_size=1, max_size=3).map(
    lambda d: Dict(tuple(d.items()))
)
SPACES = LEAVES | DICTS
SPECS = st.builds(
    EnvSpec,
    id=st.text(max_size=10),
    observation=SPACES,
    action=LEAVES,
    rows=COUNT,
    seats=COUNT,
    time_limit=st.none() | COUNT,
    reward_threshold=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    masks_actions=st.booleans(),
)


@given(SPACES)
def test_a_space_survives_json_text(space):
    text = json.dumps(to_json(space), allow_nan=False)
    assert from_json(json.loads(text)) == space
    assert hash(from_json(json.loads(text))) == hash(space)


@given(SPECS)
def test_a_specification_survives_json_text(spec):
    assert spec_from_json(json.loads(json.dumps(spec_to_json(spec), allow_nan=False))) == spec


@given(DICTS)
def test_the_order_of_a_dicts_parts_does_not_matter(space):
    assert Dict(tuple(reversed(space.parts))) == space
    assert list(zeros(space)) == sorted(name for name, _ in space.parts)


@given(LEAVES, st.lists(st.integers(1, 3), max_size=2))
def test_zeros_have_shape_and_dtype_of_the_space(space, batch):
    made = zeros(space, tuple(batch))
    assert made.shape == (*batch, *event_shape(space))
    assert made.dtype == dtype_of(space)
    assert not made.any()


@pytest.mark.parametrize(
    ("space", "size"),
    [(Discrete(4), 4), (MultiDiscrete((2, 3)), 5), (MultiBinary(3), 3), (Box((2, 3)), 6)],
    ids=str,
)
def test_a_mask_has_one_entry_per_option(space, size):
    assert legal_size(space) == size


def test_bounds_are_broadcast_in_c_order():
    low, high = Box((2, 2), -1.0, (1.0, 2.0, 3.0, 4.0)).bounds()
    np.testing.assert_array_equal(low, -np.ones((2, 2)))
    np.testing.assert_array_equal(high, [[1.0, 2.0], [3.0, 4.0]])
    assert Box((1,), 0.0, 1.0).bounded
    assert not Box((2,), 0.0, (1.0, math.inf)).bounded


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"type": "Sphere"},
        {"type": "Discrete"},
        {"type": "Discrete", "n": "three"},
        {"type": "Box", "shape": 3},
    ],
    ids=str,
)
def test_what_is_no_space_is_refused(data):
    with pytest.raises(SpaceMismatch, match="Not a description"):
        from_json(data)


@pytest.mark.parametrize("missing", ["id", "observation", "rows", "masks_actions"])
def test_what_is_no_specification_is_refused(missing):
    data = spec_to_json(EnvSpec("t", Box((1,)), Discrete(2)))
    del data[missing]
    with pytest.raises(SpaceMismatch, match=missing):
        spec_from_json(data)


def test_dict_actions_and_shapes_of_dicts_are_refused():
    space = Dict((("a", Discrete(2)),))
    with pytest.raises(SpaceMismatch, match="Dict"):
        legal_size(space)
    with pytest.raises(SpaceMismatch, match="Dict"):
        event_shape(space)


def test_descriptions_are_short():
    assert describe(Box((84, 84, 3), 0, 255, "uint8")) == "Box[84, 84, 3] uint8"
    assert (
        describe(Dict((("b", Discrete(2)), ("a", Box((1,)))))) == "Dict(a: Box[1] float32, b: Discrete(n=2))"
    )
