"""Numbers in infos become metrics by episode: of host environments, vector ones and JAX ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import agent
from gymnasium import spaces

from sparring.drivers.fused import Fused
from sparring.drivers.host import Host
from sparring.envs.api import MOST_NUMBERS
from sparring.envs.batched import JaxHost, WithTimeLimit
from sparring.envs.classic.cartpole import CartPole
from sparring.envs.gymnasium import GymRows
from sparring.envs.infos import InfoTally
from sparring.errors import EnvironmentFailure
from sparring.session import measured
from sparring.types import TimeStep


def after(ended: list[bool], lost: list[bool] | None = None) -> TimeStep:
    over, none = np.array(ended), np.zeros(len(ended), bool)
    return TimeStep(None, none * 1.0, over, none, None, lost=None if lost is None else np.array(lost))


def test_each_episode_has_a_sum_a_mean_and_a_last_value() -> None:
    tally = InfoTally(2)
    tally.add([{"x": 1, "word": "a", "array": np.ones(3)}, {"x": 10.0}], after([False, False]))
    assert tally.metrics() == {}
    tally.add([{"x": 3.0, "won": True}, {}], after([True, False]))
    tally.add([{"x": 100.0}, {"x": np.float32(20)}], after([False, True]))
    found = tally.metrics()
    assert found == pytest.approx(
        {
            "env/x_sum": (4 + 30) / 2,
            "env/x_mean": (2 + 15) / 2,
            "env/x_last": (3 + 20) / 2,
            "env/won_sum": 1,
            "env/won_mean": 1,
            "env/won_last": 1,
        }
    )
    tally.add(({}, {}), after([False, False]))
    assert tally.metrics() == found  # nothing ended since


def test_a_lost_episode_and_a_number_that_is_not_finite_do_not_count() -> None:
    tally = InfoTally(2)
    tally.add([{"x": 5.0}, {"x": 7.0}], after([False, False]))
    tally.add([{"x": 5.0}, {"x": 7.0}], after([False, False], [True, False]))
    tally.add([{"x": 1.0}, {"x": np.nan}], after([True, True]))
    assert tally.metrics()["env/x_sum"] == pytest.approx((1 + 14) / 2)
    tally.add([{"x": 1.0}, {"x": 1.0}], after([False, False]))
    tally.forget(np.array([True, False]))
    tally.add([{"x": 2.0}, {"x": 2.0}], after([True, True]))
    assert tally.metrics()["env/x_sum"] == pytest.approx((2 + 3) / 2)


def test_the_number_of_names_is_bounded_and_said_once() -> None:
    tally = InfoTally(1)
    for _ in range(2):
        tally.add(
            [{f"n{i}": 1.0 for i in range(MOST_NUMBERS + 5)} | {"TimeLimit.truncated": True}], after([True])
        )
    assert len(tally.metrics()) == 3 * MOST_NUMBERS
    (news,) = tally.events()
    assert str(MOST_NUMBERS) in news
    assert tally.events() == []


def test_a_vector_environment_tells_arrays_and_the_infos_of_what_ended() -> None:
    tally = InfoTally(2)
    told = {"x": np.array([1.0, 9.0]), "_x": np.array([True, False]), "names": np.array(["a", "b"])}
    tally.add(told, after([False, False]))
    final = {"x": np.array([0.0, 4.0]), "_x": np.array([False, True])}
    tally.add({"x": np.array([2.0, 50.0]), "final_info": final}, after([False, True]))
    assert tally.metrics() == pytest.approx({"env/x_sum": 4, "env/x_mean": 4, "env/x_last": 4})
    tally.add({"x": np.array([6.0, 1.0])}, after([True, False]))
    assert tally.metrics() == pytest.approx({"env/x_sum": 9, "env/x_mean": 3, "env/x_last": 6})


class Counting(gymnasium.Env):
    """Three steps; its info counts them, in one dict that it hands out again and again."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.now = {"t": 0}
        return np.zeros(2, np.float32), self.now

    def step(self, action: int) -> Any:
        self.now["t"] += 1
        return np.zeros(2, np.float32), 1.0, self.now["t"] == 3, False, self.now


def test_a_host_driver_reports_them() -> None:
    rows = GymRows([Counting, Counting], label="Counting")
    algo = agent("ppo", replace_rows(rows), 2, 4.0, n_steps=4, batch_size=4, n_epochs=1)
    driver = Host(algo, rows, 0, window=5)
    (trace,) = driver.advance(2)
    assert trace["env/t_sum"].tolist() == [6, 6]
    assert trace["env/t_mean"].tolist() == [2, 2]
    assert trace["env/t_last"].tolist() == [3, 3]
    driver.close()


def replace_rows(rows: GymRows) -> Any:
    """Something with the specification of one row."""

    @dataclass(frozen=True)
    class One:
        spec: Any

    return One(replace(rows.spec, rows=1))


@dataclass(frozen=True)
class Telling(CartPole):
    """A CartPole that tells where its cart is."""

    count: int = 2

    def info(self, state: Any) -> dict[str, Any]:
        return {f"x{i}": i + state.x for i in range(self.count)}


def test_a_jax_environment_tells_the_same_in_both_drivers() -> None:
    world, rows = WithTimeLimit(Telling(), 9), 3
    settings = {"n_steps": 8, "batch_size": 12, "n_epochs": 2}
    inside = Fused(agent("ppo", world, rows, 5.0, **settings), world, rows, (0,), window=10)
    outside = Host(agent("ppo", world, rows, 5.0, **settings), JaxHost(world, rows), 0, window=10)
    positions: list[np.ndarray] = []
    ended: list[np.ndarray] = []

    def look(timestep: TimeStep, driver: Any) -> None:
        positions.append(np.asarray(timestep.next_obs)[:, 0])
        ended.append(np.asarray(timestep.terminated | timestep.truncated))

    outside.on_step = look
    traces = inside.advance(5)[0], outside.advance(5)[0]
    for one, other in zip(
        jax.tree.leaves(inside.state().learner), jax.tree.leaves(outside.state().learner), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    names = {f"env/x{i}_{kind}" for i in range(2) for kind in ("sum", "mean", "last")}
    assert names <= set(traces[0])
    for name in names:
        np.testing.assert_array_equal(traces[0][name], traces[1][name])
    x, over = np.stack(positions), np.stack(ended)
    sums = []
    for row in range(rows):
        ends = np.flatnonzero(over[:, row])
        for begin, end in zip([0, *(ends + 1)], ends, strict=False):
            if end >= 32:  # of the last rollout
                sums.append(x[begin : end + 1, row].sum())
    assert traces[0]["env/x0_sum"][-1] == pytest.approx(np.mean(sums), rel=1e-4)


def test_what_was_not_told_yet_is_no_number_and_too_many_names_are_refused() -> None:
    world = Telling()
    algo = agent("ppo", world, 2, 5.0, n_steps=2, batch_size=4, n_epochs=1)
    (trace,) = Fused(algo, world, 2, (0,), window=4).advance(1)
    values = {name: float(x[0]) for name, x in trace.items()}
    assert np.isnan(values["env/x0_sum"])
    assert not any(name.startswith("env/") for name in measured(values))
    with pytest.raises(EnvironmentFailure, match=f"at most {MOST_NUMBERS}"):
        JaxHost(Telling(count=40), 1).start(jax.random.key(0))
    assert jnp.isfinite(values["stats/update_size"])
