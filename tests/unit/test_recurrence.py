"""Linear recurrences: both forms are the plain loop, and returns do not depend on the form."""

from __future__ import annotations

from typing import Any

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.ops import recurrence
from sparring.ops.returns import gae, monte_carlo, q_lambda
from sparring.ops.traces import retrace, vtrace

SHAPE = (9, 2)
NUMBERS = hnp.arrays(np.float32, SHAPE, elements=st.floats(-10, 10, width=32))
FACTORS = hnp.arrays(np.float32, SHAPE, elements=st.sampled_from([0.0, 0.25, 0.9, 1.0]))

FORMS = {
    form: jax.jit(getattr(recurrence, form), static_argnames="reverse") for form in ("parallel", "sequential")
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reverse", [False, True])
@given(factor=FACTORS, driven=NUMBERS)
def test_both_forms_are_the_plain_loop(form, reverse, factor, driven):
    state, states = np.zeros(SHAPE[1]), np.zeros(SHAPE)
    for t in reversed(range(len(driven))) if reverse else range(len(driven)):
        state = driven[t] + factor[t].astype(float) * state
        states[t] = state
    got = FORMS[form](factor, driven, reverse=reverse)
    np.testing.assert_allclose(got, states, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_returns_are_the_same_on_an_accelerator_and_need_no_loop_there(seed, monkeypatch):
    random = np.random.default_rng(seed)
    reward, value, next_value, q = map(jnp.asarray, random.normal(size=(4, 33, 3)).astype(np.float32))
    ratio = jnp.asarray(2 * random.random((33, 3)), jnp.float32)
    terminated, truncated, lost = map(jnp.asarray, random.random((3, 33, 3)) < 0.1)
    goes_on = (~terminated & ~truncated).at[-1].set(False)
    discount = jnp.where(terminated, 0.0, 0.99)

    def program() -> Any:
        def found() -> Any:
            return (
                gae(reward, value, next_value, terminated, truncated, 0.99, 0.95, ~lost),
                q_lambda(reward, next_value, terminated, truncated, 0.99, 0.8, ~lost),
                monte_carlo(reward, terminated | truncated, 0.99, ~lost),
                vtrace(reward, discount, value, next_value, goes_on, ratio, 1.05, 1.0),
                retrace(reward, discount, q, next_value, goes_on, ratio, 1.0, 0.95),
            )

        return jax.jit(found).lower()

    here = program()
    monkeypatch.setattr(recurrence.jax, "default_backend", lambda: "gpu")
    there = program()
    assert "while" in here.as_text()
    assert "while" not in there.as_text()
    both = (jax.tree.leaves(lowered.compile()()) for lowered in (here, there))
    for one, other in zip(*both, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
