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
