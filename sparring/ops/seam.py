"""The boundary that keeps a block's rounding the same in every driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax
from jax.experimental.xla_metadata import set_xla_metadata

P = ParamSpec("P")
R = TypeVar("R")


def block(function: Callable[P, R]) -> Callable[P, R]:
    """The function as a call that XLA compiles apart from its surroundings, on the CPU.

    Inlined, a multiply at the end of one block and an add at the start of the next become one rounding,
    and how the compiler contracts the inside of a block depends on what it is fused with; then the fused
    and host drivers drift apart. `optimization_barrier` does not stop that, and clipping the outputs to the
    finite range stops only the first kind. A call that stays a call stops both, and compiles faster.
    Accelerators do not promise bit equality and inline everything.
    """

    def outside(*args: P.args, **kwargs: P.kwargs) -> R:
        if jax.default_backend() != "cpu":
            return function(*args, **kwargs)

        def inside(*leaves: object) -> R:
            call_args, call_kwargs = jax.tree.unflatten(tree, leaves)
            with set_xla_metadata(inlineable=None):
                return function(*call_args, **call_kwargs)

        leaves, tree = jax.tree.flatten((args, kwargs))
        with set_xla_metadata(inlineable="false"):
            return jax.jit(inside)(*leaves)

    return outside
