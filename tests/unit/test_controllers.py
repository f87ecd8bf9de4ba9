"""Bandits that choose how each algorithm's rows explore."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import agent, differences, quick, train

from sparring import actor
from sparring.bandit.settings import coordinate
from sparring.drivers.fused import Fused
from sparring.drivers.host import Host
from sparring.envs.batched import JaxHost
from sparring.envs.classic.cartpole import CartPole
from sparring.envs.classic.pendulum import Pendulum
from sparring.errors import ConfigError
from sparring.nets.sight import Stored
from sparring.ops.returns import n_step
from sparring.replay.offpolicy import shortened
from sparring.types import ActorState, Transition

ROWS = 4
ENVS = {"ppo": CartPole, "dqn": CartPole, "pqn": CartPole, "gdi": CartPole, "sac": Pendulum, "td3": Pendulum}
COORDINATES = {
    "ppo": ("temperature", "ent_coef"),
    "dqn": ("epsilon",),
    "pqn": ("epsilon", "q_lambda"),
    "gdi": ("inverse_tau_1", "inverse_tau_2", "epsilon"),
    "sac": ("temperature",),
    "td3": ("noise",),
}


def made(name: str, **settings: Any) -> Any:
    return agent(name, ENVS[name](), ROWS, **{"controller": "thompson", **settings})


@pytest.mark.parametrize("name", COORDINATES)
def test_what_may_be_chosen(name: str) -> None:
    assert made(name).space.names == COORDINATES[name]


@pytest.mark.parametrize("name", ["ppo", pytest.param("dqn", marks=pytest.mark.slow)])
def test_an_index_lasts_for_an_episode(name: str) -> None:
    """Rows change their point exactly where an episode starts, and the bandit hears of each that ended."""
    chosen = {} if name == "ppo" else {"learning_starts": 0}  # random actions are nobody's choice
    driver = Fused(made(name, **chosen), CartPole(), ROWS, (0,))
    state, _, rollout = driver_rollout(driver, 60)
    points, first = np.asarray(rollout.point), np.asarray(rollout.first)
    changed = (points[1:] != points[:-1]).any(axis=-1)
    assert changed.any()
    assert np.array_equal(changed, first[1:])
    over = np.asarray(rollout.terminated | rollout.truncated)
    assert int(state.control.state.pool.held) == over.sum()


def test_random_actions_are_nobodys_choice() -> None:
    """While a replay fills, actions are random whatever a bandit chose: it is told nothing of such episodes,
    also of one that the end of this warm-up falls into. Both drivers agree."""
    settings = {"learning_starts": 200, "train_freq": 10, "controller_space": ("epsilon:0.01:0.1:3",)}
    fused = Fused(made("dqn", **settings), CartPole(), ROWS, (0,))
    host = Host(made("dqn", **settings), JaxHost(CartPole(), ROWS), 0)
    held = []
    for _ in range(20):
        fused.advance(1)
        host.advance(1)
        now = fused.acting().control
        held.append((int(now.state.pool.held), np.isnan(np.asarray(now.total)).any()))
        assert differences(now, host.acting().control) == []
    assert [count for count, _ in held[:5]] == [0] * 5  # 200 steps of 4 rows
    assert held[4][1]
    assert held[-1][0] > 0
    assert not held[-1][1]


def driver_rollout(driver: Fused, steps: int) -> Any:
    """A rollout that is longer than the plan's, with the driver's own collecting."""
    from dataclasses import replace

    from sparring.drivers import fused

    long = {"n_steps": steps} if hasattr(driver.algo.config, "n_epochs") else {"train_freq": steps}
    algo = replace(driver.algo, config=replace(driver.algo.config, **long))
    return quick(lambda w: fused.collect(algo, driver.env, w, jax.random.key(3), jnp.int32(0)))(
        driver.worlds[0]
    )


def test_points_become_behaviour() -> None:
    point = jnp.float32([[0.5], [0.0]])
    assert np.asarray(made("dqn").behaviour(point).epsilon).tolist() == [0.5, 0.0]
    assert np.asarray(made("td3").behaviour(point).noise).tolist() == [0.5, 0.0]


def test_an_epsilon_of_0_is_greedy_and_of_1_is_random() -> None:
    algo = made("dqn", learning_starts=0)
    rows = 400
    weights = algo.policy(algo.init(jax.random.key(0)))
    state = ActorState(jnp.ones((rows, 4)), jnp.ones(rows, bool), algo.carry(rows))
    share = {}
    for epsilon in (0.0, 1.0):
        behaviour = actor.behaviour(algo, jnp.full((rows, 1), epsilon))
        action = np.asarray(actor.act(algo, weights, state, behaviour, jax.random.key(1))[0])
        share[epsilon] = max(np.mean(action == 0), np.mean(action == 1))
    assert share[0.0] == 1.0
    assert share[1.0] < 0.6


def test_no_noise_is_td3s_mean() -> None:
    algo = made("td3", noise="normal", learning_starts=0)
    weights = algo.policy(algo.init(jax.random.key(0)))
    state = ActorState(jnp.ones((2, 3)), jnp.ones(2, bool), algo.carry(2))
    behaviour = actor.behaviour(algo, jnp.float32([[0.0], [3.0]]))
    greedy = actor.act(algo, weights, state, behaviour._replace(greedy=jnp.ones(2, bool)), jax.random.key(1))[
        0
    ]
    noisy = actor.act(algo, weights, state, behaviour, jax.random.key(1))[0]
    assert float(noisy[0, 0]) == float(greedy[0, 0])
    assert float(noisy[1, 0]) != float(greedy[1, 0])


def test_a_chosen_number_of_steps_ends_the_window() -> None:
    """n steps of a longer window: their rewards, then the value with γ^n."""
    data = Transition(*[None] * 7)._replace(
        terminated=jnp.zeros((3, 3), bool), truncated=jnp.zeros((3, 3), bool)
    )
    cut = shortened(data, jnp.float32([[1.0] * 3, [2.0] * 3, [3.0] * 3]))
    made = n_step(jnp.ones((3, 3)), cut.terminated, cut.truncated, 0.5)
    assert np.asarray(made.reward).tolist() == [1.0, 1.5, 1.75]
    assert np.asarray(made.discount).tolist() == [0.5, 0.25, 0.125]


def test_each_row_of_pqn_has_the_trace_that_was_chosen_for_its_episode() -> None:
    """Rows with λ of 0, 0.5 and 1 get the returns of PQN with that λ; None chosen leaves the setting."""
    algo, traces, steps = made("pqn", gamma=0.9), (0.0, 0.5, 1.0, 0.5), 8
    state = quick(algo.init)(jax.random.key(0))
    random = np.random.default_rng(0)
    obs = jnp.asarray(random.normal(size=(steps + 1, ROWS, 4)), jnp.float32)
    ended = jnp.asarray(random.random((steps, ROWS)) < 0.2)
    rollout = Transition(
        obs[:-1],
        jnp.zeros((steps, ROWS), jnp.int32),
        jnp.asarray(random.normal(size=(steps, ROWS)), jnp.float32),
        ended,
        jnp.zeros_like(ended),
        obs[1:],
        Stored(),
    )

    @quick
    def returns(algo: Any, point: Any) -> Any:
        return algo._targets(algo.config, state, rollout._replace(point=point))[1].reshape(steps, ROWS)

    point = jnp.broadcast_to(jnp.asarray([[0.1, trace] for trace in traces]), (steps, ROWS, 2))
    got = np.asarray(returns(algo, point))
    for row, trace in enumerate(traces):
        alone = made("pqn", gamma=0.9, controller="none", q_lambda=trace)
        assert got[:, row] == pytest.approx(np.asarray(returns(alone, None))[:, row], abs=1e-6)
    assert np.abs(got[:, 0] - np.asarray(returns(alone, None))[:, 0]).max() > 0.05
    epsilon = made("pqn", gamma=0.9, q_lambda=0.5, controller_space=("epsilon:0.1:0.5:2",))
    assert np.asarray(returns(epsilon, point[..., :1])) == pytest.approx(np.asarray(returns(alone, None)))


def test_pqn_learns_with_a_chosen_trace() -> None:
    world = quick(lambda algo, key: train(algo, CartPole(), key, 2))(made("pqn"), jax.random.key(0))
    assert int(world.learner.train.iteration) == 2
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(world.learner.train.nets))


@pytest.mark.parametrize("text", ["q_lambda:0:1.5:3", "q_lambda=-0.1|0.5"])
def test_a_trace_lies_between_0_and_1(text: str) -> None:
    with pytest.raises(ConfigError, match="between 0 and 1"):
        made("pqn", controller_space=(text,)).check()


def test_a_fixed_index_acts_by_it() -> None:
    algo = made("gdi", controller="fixed", controller_index=(3.0, 7.0, 0.25))
    control = algo.controller.start(jax.random.key(0), ROWS)
    assert np.asarray(control.choice.point).tolist() == [[3.0, 7.0, 0.25]] * ROWS
    again = algo.controller.turn(control, jnp.ones(ROWS), jnp.ones(ROWS, bool), None, jax.random.key(1))
    assert np.asarray(again.choice.point).tolist() == [[3.0, 7.0, 0.25]] * ROWS


@pytest.mark.parametrize("name", ["gdi", "ppo"])
def test_each_task_has_its_own_bandit(name: str) -> None:
    """Returns of the rows of one task leave the other's bandit as it was."""
    controller = made(name, controller_scope="task", controller_tasks=(0, 1, 1, 0)).controller
    control = controller.start(jax.random.key(0), ROWS)
    ended = jnp.array([False, True, True, False])
    turned = controller.turn(control, jnp.ones(ROWS), ended, None, jax.random.key(1))
    assert np.asarray(turned.state.pool.held).tolist() == [0, 2]


def test_sharpness_stays_in_its_range() -> None:
    point = made("gdi", sharpness_range=(3.0, 4.0)).controller.start(jax.random.key(0), 50).choice.point
    assert float(point[:, :2].min()) >= 3.0
    assert float(point[:, :2].max()) <= 4.0


def test_coordinates_in_words() -> None:
    assert coordinate("n_step=1|3|5").values == (1.0, 3.0, 5.0)
    assert coordinate("epsilon:0.1:0.4:3").edges == pytest.approx((0.1, 0.2, 0.3, 0.4))
    assert coordinate("epsilon:0.01:1:2:log").edges == pytest.approx((0.01, 0.1, 1.0))
    for wrong in ("epsilon", "epsilon:a:b:3", "epsilon:0:1:3:lin", "n_step="):
        with pytest.raises(ConfigError, match="Examples"):
            coordinate(wrong)


def test_options_of_the_selector() -> None:
    assert made("dqn").controller.selector.pool == 32
    selector = made("dqn", controller_options=("pool=70", "floor=0.2")).controller.selector
    assert (selector.pool, selector.floor, selector.memory) == (70, 0.2, 500)


@pytest.mark.parametrize(("settings", "cells"), [
    ({}, 26), ({"variant": "lbc", "policies": 3}, 48), ({"index_cells": (3, 2)}, 8),
])  # fmt: skip
def test_the_memory_has_room_for_every_cell(settings: dict[str, Any], cells: int) -> None:
    """At least 20 episodes for each cell of all coordinates, as `thompson` asks."""
    algo = made("gdi", **settings)
    assert sum(algo.space.cells) == cells
    assert algo.controller.selector.memory == max(500, 20 * cells)


def test_options_of_several_numbers() -> None:
    options = ("widths=2|5", "rates=0.1", "members=3")
    selector = made("dqn", controller="gdi_tiles", controller_options=options).controller.selector
    assert (selector.widths, selector.rates, selector.members) == ((2, 5), (0.1,), 3)
    assert selector.width.tolist() == [2, 5, 2]


@pytest.mark.parametrize(("text", "example"), [
    ("widths=", "'widths=2|3|4'"),
    ("widths=2,3", "'widths=2|3|4'"),
    ("widths=2.5", "whole numbers.*'widths=2|3|4'"),
    ("members=2|3", "one number.*'members=7'"),
    ("bonus=much", "'bonus=1.0'"),
])  # fmt: skip
def test_an_option_in_the_wrong_form_is_refused_with_an_example(text: str, example: str) -> None:
    with pytest.raises(ConfigError, match=example.replace("|", r"\|")):
        made("dqn", controller="gdi_tiles", controller_options=(text,)).check()


@pytest.mark.parametrize(("settings", "words"), [
    ({"controller_options": ("pool",)}, "Example"),
    ({"controller_options": ("pol=3",)}, "no option 'pol'"),
    ({"controller_space": ("temperature:1:2:3",)}, "Known: epsilon, n_step"),
    ({"controller_space": ("n_step=1|3",)}, "at most n_steps = 1"),
    ({"controller": "fixed"}, "controller_index with 1"),
    ({"controller_tasks": (0, 0, 1, 1)}, "no other scope has tasks"),
    ({"controller_scope": "task"}, "task of every row"),
])  # fmt: skip
def test_impossible_choices_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        made("dqn", **settings).check()
