"""Settings of learners from replay that were once not what they say."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import agent

from sparring.drivers import loop
from sparring.drivers.fused import Fused
from sparring.envs.classic.cartpole import CartPole
from sparring.envs.classic.pendulum import Pendulum
from sparring.errors import ConfigError
from sparring.nets.heads import Head, codec


@pytest.mark.parametrize("name", ["dqn", "pqn"])
def test_exploration_that_takes_no_time_to_fall(name: str) -> None:
    algo: Any = agent(name, CartPole(), 2, exploration_fraction=0.0, exploration_final_eps=0.1)
    rates = [float(algo._epsilon(jnp.int32(i))) for i in (0, 1000)]
    assert np.isfinite(rates).all()
    assert rates[1] == pytest.approx(0.1)


def test_a_replay_in_the_hosts_memory_leaves_no_choice_of_steps() -> None:
    """It keeps what followed the last step of a window only, so a shorter one has nothing to go on from."""
    settings = {"controller": "thompson", "n_steps": 3}
    assert agent("dqn", CartPole(), 2, **settings).space.names == ("epsilon", "n_step")
    assert agent("dqn", CartPole(), 2, **settings, buffer="host").space.names == ("epsilon",)
    chosen = agent("dqn", CartPole(), 2, **settings, buffer="host", controller_space=("n_step=1|3",))
    with pytest.raises(ConfigError, match="buffer=device"):
        chosen.check()


@pytest.mark.parametrize(("log_std", "trains"), [("state", True), ("free", False)])
def test_whether_exploration_trains_its_features(log_std: Any, trains: bool) -> None:
    """SB3 lets gSDE of SAC reach the features and keeps that of PPO away from them."""
    head = Head(jax.random.key(0), 4, codec(Pendulum().spec.action), None, -1.0, log_std, sde=True)
    gradient = jax.grad(lambda latent: head(latent).entropy().sum())(jnp.ones((3, 4)))
    assert bool((gradient != 0).any()) == trains


def test_the_memory_of_earlier_seeds_is_not_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    algo: Any = agent("dqn", CartPole(), 2)
    asked: list[int] = []
    monkeypatch.setattr(loop, "check_fits", lambda needed, *_: asked.append(needed))
    Fused(algo, CartPole(), 2, (0, 1, 2))
    assert asked == [3 * asked[-1], 2 * asked[-1], asked[-1]]


def test_sequences_must_not_leave_steps_out() -> None:
    with pytest.raises(ConfigError, match="between 0 and sequence_length = 3"):
        agent("dqn", CartPole(), 2, core="gru", sequence_length=3, sequence_stride=4).check()
    overlapping: Any = agent("dqn", CartPole(), 2, core="gru", sequence_length=4, sequence_stride=2)
    assert overlapping.replay.every == 2
