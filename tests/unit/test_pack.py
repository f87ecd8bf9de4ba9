"""Arrays survive being packed."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sparring.ops.pack import Unpack, pack

KINDS = (jnp.float32, jnp.int32, jnp.bool_)


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.lists(st.integers(0, 3), max_size=3)), max_size=6))
def test_unpack_is_the_inverse_of_pack(wanted: list[tuple[type, list[int]]]) -> None:
    draw = np.random.default_rng(0)
    arrays = [jnp.asarray(draw.integers(0, 2, shape), kind) for kind, shape in wanted]
    packed = pack(arrays)
    assert len(packed) == len({x.dtype for x in arrays})
    for before, after in zip(arrays, Unpack(arrays)(packed), strict=True):
        assert before.dtype == after.dtype
        np.testing.assert_array_equal(before, after)


def test_many_that_were_stacked_are_taken_apart_at_once() -> None:
    trees = [[jnp.float32(i), jnp.int32(-i), jnp.arange(6.0).reshape(2, 3) + i] for i in range(4)]
    packed = [np.stack(kind) for kind in zip(*map(pack, trees), strict=True)]
    for place, found in enumerate(Unpack(trees[0])(packed)):
        np.testing.assert_array_equal(found, np.stack([tree[place] for tree in trees]))
    one, two, _ = Unpack(trees[0])(pack(trees[2]))
    assert (type(one), type(two)) == (np.float32, np.int32)
