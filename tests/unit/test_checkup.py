"""A look inside networks finds what was put there, as often as a run can keep."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparring.metrics.registry import OF_UPDATES, SPARSE, SPREAD, meaning
from sparring.nets import checkup
from sparring.session import POINTS, measured

random = np.random.default_rng(0)


def test_units_that_are_silent_or_saturated_are_dead() -> None:
    x = np.abs(random.normal(size=(50, 10))).astype(np.float32)
    x[:, :2] = 0.0
    assert float(checkup.dead_share([[jnp.asarray(x)]], "relu")) == pytest.approx(0.2)
    y = np.tanh(random.normal(size=(50, 8))).astype(np.float32)
    y[:, 0] = np.where(np.arange(50) % 2, 0.999, -0.999)
    assert float(checkup.dead_share([[jnp.asarray(y)]], "tanh")) == pytest.approx(1 / 8)
    assert float(checkup.dead_share([[jnp.asarray(y)]], "relu")) == 0.0
    assert float(checkup.dead_share([[jnp.asarray(x)], [jnp.asarray(y)]], "tanh")) == pytest.approx(3 / 18)


@pytest.mark.parametrize("shape", [(50, 20), (20, 50)])
def test_the_rank_is_that_of_the_singular_values(shape: tuple[int, int]) -> None:
    few = (random.normal(size=(shape[0], 5)) @ random.normal(size=(5, shape[1]))).astype(np.float32)
    assert float(checkup.rank_share([jnp.asarray(few)])) == pytest.approx(5 / min(shape))
    full = random.normal(size=shape).astype(np.float32)
    assert float(checkup.rank_share([jnp.asarray(full)])) == 1.0
    assert float(checkup.rank_share([jnp.asarray(full), jnp.asarray(few)])) == pytest.approx(5 / min(shape))


def test_the_size_of_an_update_is_relative_to_all_parameters() -> None:
    before = {"a": jnp.array([3.0, 0.0]), "b": jnp.array([[4.0]])}
    after = {"a": jnp.array([3.0, 0.3]), "b": jnp.array([[4.4]])}
    moved = checkup.difference(before, after)
    found = checkup.look(jnp.bool_(True), after, lambda: moved, lambda _: [])
    assert float(found["stats/update_size"]) == pytest.approx(0.5 / (3.0**2 + 0.3**2 + 4.4**2) ** 0.5)


@pytest.mark.parametrize("total", [1, 7, 156, 199, 400, 1999, 2000, 5000, 123_457, 1_000_000])
def test_looks_fall_on_iterations_that_are_kept(total: int) -> None:
    iterations = np.arange(total)
    each = jax.vmap(lambda i: checkup.due(i, jnp.float32(total)))
    due = np.asarray(each(jnp.asarray(iterations, jnp.int32)))
    stride = max(total // POINTS, 1)
    assert np.all((iterations[due] + 1) % stride == 0)
    assert min(total, checkup.LOOKS) <= due.sum() <= 2 * checkup.LOOKS + 1


def test_what_was_not_looked_at_is_left_out() -> None:
    assert frozenset(checkup.NAMES) <= SPARSE
    assert checkup.KEPT == POINTS
    values = {"stats/update_size": float("nan"), "train/n_updates": 3.0, "stats/q_abs_max": 1.0}
    assert measured(values) == {"train/n_updates": 3.0, "stats/q_abs_max": 1.0}
    filling = {"train/n_updates": 0.0, "rollout/episodes": 2.0, **dict.fromkeys(OF_UPDATES, 0.0)}
    assert measured(filling) == {"rollout/episodes": 2.0}
    early = {"rollout/window_episodes": 0.0, "rollout/ep_rew_mean": 0.0, "rollout/ep_len_mean": 0.0}
    assert measured(early) == {"rollout/window_episodes": 0.0}
    assert measured(early | {"rollout/window_episodes": 1.0})["rollout/ep_rew_mean"] == 0.0


def test_a_look_that_is_not_due_is_nan() -> None:
    params = jnp.ones(3)
    for when in (True, False):
        hidden = [[jnp.ones((4, 2))]]
        found = checkup.look(jnp.bool_(when), 2 * params, lambda: params, lambda _, h=hidden: h, "relu")
        assert set(found) == set(checkup.NAMES)
        assert not when or float(found["stats/param_norm"]) == pytest.approx(12**0.5)
        assert not when or float(found["stats/update_size"]) == pytest.approx(0.5)
        assert all(bool(jnp.isnan(x)) != when for x in found.values())


@pytest.mark.parametrize("count", [1, 2, 37, 5000])
def test_a_spread_is_numpys(count: int) -> None:
    x, mask = random.normal(size=count).astype(np.float32), np.ones(count, bool)
    if count == 37:
        mask = random.random(count) < 0.5
        x[~mask] = np.nan
    found = checkup.spread("x", jnp.asarray(x), jnp.asarray(mask) if count == 37 else None)
    kept = x[mask]
    assert list(found) == [f"x_{what}" for what in SPREAD]
    assert float(found["x_min"]) == kept.min()
    assert float(found["x_max"]) == kept.max()
    thinned = kept if count <= checkup.THINNED else x[:: -(-count // checkup.THINNED)]
    for what, share in list(checkup.QUANTILES.items())[1:-1]:
        assert float(found[f"x_{what}"]) == pytest.approx(np.quantile(thinned, share), rel=1e-4, abs=1e-5)


def test_nothing_has_no_spread_and_every_spread_has_a_meaning() -> None:
    found = checkup.targets(jnp.ones(3), jnp.ones(3), jnp.zeros(3, bool))
    assert all(bool(jnp.isnan(x)) for x in found.values())
    assert set(found) < SPARSE
    assert all(meaning(name) for name in SPARSE)
    assert meaning("stats/obs_12_std") == meaning("stats/obs_<i>_std")
