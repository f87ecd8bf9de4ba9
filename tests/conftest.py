"""Every test runs on the CPU, with shapes, dtypes and random keys checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from beartype import BeartypeConf, beartype
from beartype.roar import BeartypeDecorHintException
from hypothesis import settings
from jaxtyping import install_import_hook

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_debug_key_reuse", True)

settings.register_profile("ci", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("ci")

TYPES = BeartypeConf(is_pep484_tower=True)


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its annotations enforced; as it is where beartype cannot read them (`Self`).

    A traced configuration holds arrays where a user's holds floats, so constructors are left alone.
    """
    if function.__name__ == "__init__":
        return function
    try:
        return beartype(conf=TYPES)(function)
    except BeartypeDecorHintException:
        return function


PURE = ["sparring.ops", "sparring.nets", "sparring.replay", "sparring.algos"]
install_import_hook(PURE, "conftest.checked")
