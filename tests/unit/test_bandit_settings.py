"""Settings of a controller: what a coordinate cannot be, and what nothing would read."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import agent

from sparring.bandit.settings import BOUNDS, coordinate
from sparring.config import from_mapping
from sparring.envs.classic.cartpole import CartPole
from sparring.envs.classic.pendulum import Pendulum
from sparring.errors import ConfigError

ENVS = {
    "ppo": CartPole,
    "dqn": CartPole,
    "pqn": CartPole,
    "gdi": CartPole,
    "sac": Pendulum,
    "td3": Pendulum,
    "crossq": Pendulum,
}
ROWS = 2


def made(name: str, **settings: Any) -> Any:
    return agent(name, ENVS[name](), ROWS, **{"controller": "uniform", **settings})


def fixed(name: str, *index: float, space: tuple[str, ...] = (), **settings: Any) -> Any:
    return made(name, controller="fixed", controller_index=index, controller_space=space, **settings)


@pytest.mark.parametrize("name", ENVS)
def test_whatever_an_algorithm_offers_has_bounds_and_keeps_to_them(name: str) -> None:
    settings: list[dict[str, Any]] = [{}]
    if name == "gdi":
        settings += [{"variant": "lbc", "policies": 3}, {"variant": "i3"}]
    for given in settings:
        algo = made(name, **given)
        for text in algo.coordinates:
            assert coordinate(text).name.rstrip("_0123456789") in BOUNDS
        named = made(name, **given, controller_space=algo.coordinates)
        assert named.space.names == tuple(coordinate(text).name for text in algo.coordinates)


@pytest.mark.parametrize(("name", "space", "words"), [
    ("gdi", "epsilon:0:3:6", "epsilon = 1.5, which must be between 0 and 1"),
    ("gdi", "epsilon:-1:1:2", "epsilon = -1, which must be between 0 and 1"),
    ("gdi", "inverse_tau_1:-5:50:4", "inverse_tau_1 = -5, which must be at least 0"),
    ("dqn", "epsilon=0.1|1.1", "epsilon = 1.1, which must be between 0 and 1. Example: 'epsilon:0.01:0.6"),
    ("dqn", "n_step=0|1", "n_step = 0, which must be whole and at least 1"),
    ("dqn", "n_step=1|1.5", "n_step = 1.5, which must be whole and at least 1"),
    ("dqn", "n_step:1:3:2", "n_step into cells from 1 to 3, .* 'n_step=1.3.5'"),
    ("pqn", "q_lambda:0:2:2", "q_lambda = 2, which must be between 0 and 1"),
    ("ppo", "temperature:0:2:4", "temperature = 0, which must be above 0"),
    ("ppo", "ent_coef=-0.1|0.1", "ent_coef = -0.1, which must be at least 0"),
    ("sac", "temperature=-1", "temperature = -1, which must be above 0"),
    ("crossq", "temperature=0|1", "temperature = 0, which must be above 0"),
    ("td3", "noise:-1:1:2", "noise = -1, which must be at least 0"),
])  # fmt: skip
def test_a_space_beyond_what_a_coordinate_can_be_is_refused(name: str, space: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"controller_space .*{words}"):
        _ = made(name, controller_space=(space,)).controller


@pytest.mark.parametrize(("name", "index", "words"), [
    ("gdi", (10.0, 10.0, 2.0), "epsilon = 2, which must be between 0 and 1. The order is inverse_tau_1"),
    ("gdi", (-1.0, 10.0, 0.5), "inverse_tau_1 = -1, which must be at least 0"),
    ("gdi", (1.0, float("inf"), 0.5), "inverse_tau_2 = inf, which must be at least 0"),
    ("dqn", (float("nan"),), "epsilon = nan, which must be between 0 and 1"),
    ("sac", (0.0,), "temperature = 0, which must be above 0"),
    ("td3", (-0.5,), "noise = -0.5, which must be at least 0"),
])  # fmt: skip
def test_an_index_that_a_behaviour_cannot_be_is_refused(
    name: str, index: tuple[float, ...], words: str
) -> None:
    with pytest.raises(ConfigError, match=f"controller_index has {words}"):
        _ = fixed(name, *index).controller


def test_weights_of_a_mixture_lie_between_0_and_1() -> None:
    lbc = {"variant": "lbc", "policies": 2}
    with pytest.raises(ConfigError, match="omega_2 = -1, which must be between 0 and 1"):
        _ = fixed("gdi", 1.0, 1.0, 0.5, -1.0, **lbc).controller


def test_an_index_at_the_ends_of_its_bounds_or_outside_the_space_is_taken() -> None:
    """What a bandit would choose from is no bound of a fixed index."""
    algo = fixed("gdi", 0.0, 900.0, 1.0)
    assert algo.check() is not None
    point = algo.controller.start(jax.random.key(0), ROWS).choice.point
    assert np.asarray(point).tolist() == [[0.0, 900.0, 1.0]] * ROWS
    assert np.asarray(algo.behaviour(jnp.asarray(point)).mixture).tolist() == [[1.0, 0.0]] * ROWS
    assert fixed("ppo", 0.3, space=("temperature:0.5:2:3",)).controller is not None


@pytest.mark.parametrize("name", ["gdi", "dqn", "td3"])
def test_settings_that_the_controller_does_not_read_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is for controller='fixed', but controller = 'uniform'"):
        _ = made(name, controller_index=(0.5,)).controller
    with pytest.raises(ConfigError, match=r"has no options, but controller_options = \('pool=3',"):
        _ = fixed(name, 0.5, controller_options=("pool=3",)).controller


@pytest.mark.parametrize("name", ENVS)
def test_settings_of_no_controller_are_warned_about(name: str) -> None:
    """As warnings, so that controller=none goes on top of a preset that has them."""
    assert made(name, controller="none").unread() == []
    assert made(name, controller_space=made(name).coordinates[:1]).unread() == []
    for field, value in (
        ("controller_options", ("pool=5",)),
        ("controller_space", ("epsilon:0.1:0.2:2",)),
        ("controller_index", (0.5,)),
        ("controller_tasks", (0, 1)),
        ("controller_scope", "row"),
    ):
        config = from_mapping(type(made(name)).Config, {"controller": "none", field: value})
        algo = made(name, controller="none", **{field: getattr(config, field)})
        (warning,) = algo.unread()
        assert f"Nothing reads {field}={value!r} with controller='none'" in warning
        assert algo.controller is None


def test_selectors_in_training_rank_against_the_latest_of_the_rows_they_serve() -> None:
    def pool(controller: str, rows: int = 64, **settings: Any) -> int:
        algo = agent("gdi", CartPole(), rows, controller=controller, **settings)
        return algo.controller.selector.pool

    tasks = tuple(row % 4 // 3 for row in range(64))  # 48 rows of one task, 16 of the other
    for name in ("thompson", "gdi_tiles", "lbc_regions"):
        assert pool(name) == 128
        assert pool(name, 4) == 32
        assert pool(name, controller_scope="row") == 32
        assert pool(name, controller_scope="task", controller_tasks=tasks) == 96
        assert pool(name, controller_options=("pool=2000",)) == 2000
    assert pool("gdi_tiles_faithful") == 2000  # learns from raw returns
