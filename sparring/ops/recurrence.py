"""Linear recurrences in time, x_t = driven_t + factor_t · x_{t-1}: one after the other, or all at once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Inexact


def parallel(
    factor: Inexact[Array, "T ..."], driven: Inexact[Array, "T ..."], reverse: bool = False
) -> Inexact[Array, "T ..."]:
    """By an associative scan (Blelloch 1990): (a, b) stands for x ↦ a x + b, and (a, b) then (a', b') is
    (a' a, a' b + b'). A factor of 0 starts anew."""

    def then(one: tuple[Array, Array], other: tuple[Array, Array]) -> tuple[Array, Array]:
        return other[0] * one[0], other[0] * one[1] + other[1]

    states: Array
    _, states = jax.lax.associative_scan(then, (factor, driven), reverse=reverse)
    return states


def sequential(
    factor: Inexact[Array, "T ..."], driven: Inexact[Array, "T ..."], reverse: bool = False
) -> Inexact[Array, "T ..."]:
    """The same, step by step."""

    def one(before: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        factor_t, driven_t = now
        state = driven_t + factor_t * before
        return state, state

    return jax.lax.scan(one, jnp.zeros_like(driven[0]), (factor, driven), reverse=reverse)[1]


def backwards(factor: Inexact[Array, "T ..."], driven: Inexact[Array, "T ..."]) -> Inexact[Array, "T ..."]:
    """x_t = driven_t + factor_t · x_{t+1} with nothing after the end.

    An accelerator starts some kernels for every step of a loop, which takes longer than all the arithmetic;
    a CPU is quicker with the loop, and compiles it sooner.
    """
    run = sequential if jax.default_backend() == "cpu" else parallel
    return run(factor, driven, reverse=True)
