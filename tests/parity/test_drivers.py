"""fused ≡ host ≡ any chunking ≡ any number of seeds, bit for bit in every leaf."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import ACTOR_CRITICS, REPLAYERS, as_numpy
from parity_cases import LIKE, PAIRS, fused, host, unequal

ITERATIONS = 60
FAST = [("ppo", "normalised")]
HARD = ["normalised", "stack and gSDE"]


def marked(pairs: list[tuple[str, str]]) -> list:
    slow, like = [pytest.mark.slow], [pytest.mark.exhaustive]
    return [pytest.param(*pair, marks=slow * (pair not in FAST) + like * (pair in LIKE)) for pair in pairs]


@pytest.mark.parametrize(("name", "case"), marked(PAIRS))
def test_fused_is_host(name, case):
    inside, outside = fused(name, case, unroll=1), host(name, case)
    rewards = [inside.advance(n)[0]["rollout/ep_rew_mean"] for n in (1, 23, ITERATIONS - 24)]
    metrics = outside.advance(ITERATIONS)[0]
    assert unequal(inside.state(), outside.state()) == []
    np.testing.assert_array_equal(np.concatenate(rewards), metrics["rollout/ep_rew_mean"])
    assert inside.iteration == outside.iteration == int(inside.train_state().iteration) == ITERATIONS
    assert int(outside.state().learner.episodes.finished) > 3
    if name in REPLAYERS:
        assert int(metrics["train/n_updates"][-1]) > 60
    if case in HARD and (name, case) not in FAST and name in ACTOR_CRITICS:
        unrolled = fused(name, case, unroll=4)
        unrolled.advance(ITERATIONS)
        assert unequal(unrolled.state(), outside.state()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ACTOR_CRITICS)
def test_each_of_several_seeds_is_its_single_run(name):
    together = fused(name, "everything", (0, 1, 2))
    together.advance(7)
    together.advance(13)
    states = [as_numpy(together.state(i)) for i in range(3)]
    for seed in (0, 2):
        alone = fused(name, "everything", (seed,))
        alone.advance(20)
        assert unequal(alone.state(), states[seed]) == []
    for other in (1, 2):
        assert any("nets" in path for path in unequal(states[0], states[other]))
