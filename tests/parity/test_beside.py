"""Acting on the processor beside a learner on an accelerator is the same acting: weights travel packed."""

from __future__ import annotations

import jax
import pytest
from parity_cases import host, unequal

from sparring.drivers.host import Host

LIKE = [pytest.mark.slow, pytest.mark.exhaustive]


@pytest.mark.parametrize(
    ("name", "case"),
    [
        pytest.param("sac", "masked", marks=pytest.mark.slow),
        pytest.param("ppo", "truncating", marks=LIKE),
        pytest.param("dqn", "rainbow", marks=LIKE),
    ],
)
def test_acting_beside_the_learner_changes_nothing(
    name: str, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = host(name, case)
    monkeypatch.setattr(Host, "_beside", lambda self: jax.devices("cpu")[0])
    beside = host(name, case)
    for driver in (here, beside):
        driver.advance(2)
        driver.reschedule(60.0)
        driver.advance(1)
    assert unequal(here.state(), beside.state()) == []
