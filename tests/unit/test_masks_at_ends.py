"""Masks where an episode is cut, in `predict`, in evaluation, and in the entropy that SAC keeps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparring import DQN, PPO, SAC, actor
from sparring.common.callbacks import EvalCallback
from sparring.common.evaluation import evaluate_policy
from sparring.envs import batched, registry
from sparring.envs.api import Outcome
from sparring.errors import SpaceMismatch
from sparring.spaces import Box, Discrete, EnvSpec


class Place(NamedTuple):
    x: Any
    t: Any


@dataclass(frozen=True)
class Few:
    """Of `options` actions the first `free` are legal; every step costs 1, or the first pays 1."""

    options: int = 4
    free: int = 1
    pays: bool = False
    limit: int = 2

    @property
    def spec(self) -> EnvSpec:
        action = Discrete(self.options)
        return EnvSpec("Few", Box((2,), -1.0, 1.0), action, time_limit=self.limit, masks_actions=True)

    def reset(self, key: Any) -> Place:
        return Place(jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0), jnp.int32(0))

    def observe(self, state: Place) -> Any:
        return state.x

    def legal(self, state: Place) -> Any:
        return jnp.arange(self.options) < self.free

    def step(self, state: Place, action: Any, key: Any) -> tuple[Place, Outcome]:
        reward = jnp.where(action == 0, 1.0, 0.0) if self.pays else jnp.float32(-1.0)
        after = self.reset(key)._replace(t=state.t + 1)
        return after, Outcome(reward, jnp.zeros((), bool), jnp.zeros((), bool))


class Counted(gym.Env):
    """Legal is what is not t mod 3, and the episode is cut after 4 steps; anything else is an error."""

    observation_space = gym.spaces.Box(0, 10, (1,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def action_masks(self):
        return np.arange(3) != self.t % 3

    def step(self, action):
        if not self.action_masks()[action]:
            raise ValueError(f"illegal {action}")
        self.t += 1
        return np.full(1, self.t, np.float32), 1.0, False, self.t >= 4, {}


SMALL: dict[str, Any] = {
    "learning_starts": 100,
    "batch_size": 64,
    "train_freq": 4,
    "gradient_steps": 4,
    "buffer_size": 4000,
    "run_dir": False,
    "seed": 0,
}


def test_a_truncation_bootstraps_from_what_is_legal_there():
    """Every step costs 1 and nothing ends: Q of the one legal option is -1 / (1 - 0.9)."""
    model = DQN(
        "MlpPolicy",
        Few(),
        gamma=0.9,
        net_arch=(32,),
        learning_rate=3e-3,
        target_update_interval=100,
        **SMALL,
    )
    model.learn(8000)
    assert model.session.last["train/q_mean"] == pytest.approx(-10.0, abs=0.5)


@dataclass(frozen=True)
class Turning(Few):
    """Legal is the option whose number is the step's."""

    limit: int = 3

    def legal(self, state: Place) -> Any:
        return jnp.arange(self.options) == state.t


def recorded(timestep: Any, rows: int) -> np.ndarray:
    state = actor.ActorState(timestep.obs, np.zeros(rows, bool), (), None)
    return np.asarray(actor.transition(state, np.zeros(rows, np.int32), None, timestep).next_legal)


def test_masks_of_the_last_state_in_jax():
    env = Turning()
    state, _ = batched.reset(env, jax.random.key(0), 2)
    for t in range(3):
        state, step = batched.step(env, state, jnp.zeros(2, jnp.int32), jax.random.key(t))
        assert (recorded(step, 2).argmax(axis=1) == t + 1).all()
        assert (recorded(step, 2).sum(axis=1) == 1).all()
    assert np.asarray(step.truncated).all()
    assert (np.asarray(step.legal).argmax(axis=1) == 0).all()


@pytest.mark.parametrize("backend", ["inline", "workers"])
def test_masks_of_the_last_state_in_gymnasium(backend):
    rows = registry.make([Counted] * 2, n_envs=2, backend=backend)
    try:
        step = rows.reset(0)
        for t in range(1, 5):
            step = rows.step(step.legal.argmax(axis=1))
            assert (recorded(step, 2) == (np.arange(3) != t % 3)).all()
        assert step.truncated.all()
        assert (step.legal == (np.arange(3) != 0)).all()
        ended = step._replace(terminated=step.truncated, truncated=~step.truncated)
        assert recorded(ended, 2).all()
    finally:
        rows.close()


def test_predict_keeps_to_masks():
    model = PPO("MlpPolicy", Counted(), n_steps=8, batch_size=8, run_dir=False, seed=0)
    obs = np.zeros((6, 1), np.float32)
    masks = np.eye(3, dtype=bool)[[0, 1, 2, 0, 1, 2]]
    for deterministic in (True, False):
        action, _ = model.predict(obs, deterministic=deterministic, action_masks=masks)
        assert action.tolist() == [0, 1, 2, 0, 1, 2]
    action, _ = model.predict(obs[0], action_masks=[False, False, True])
    assert int(action) == 2
    with pytest.raises(SpaceMismatch, match="one entry per option"):
        model.predict(obs, action_masks=[True, True])
    with pytest.raises(SpaceMismatch, match="leave them out"):
        PPO("MlpPolicy", "CartPole-v1", run_dir=False).predict(np.zeros(4), action_masks=[True, True])


def test_evaluation_with_a_callback_keeps_to_masks():
    model = DQN("MlpPolicy", Counted(), net_arch=(8,), **SMALL)
    seen: list[Any] = []
    model.learn(120, callback=EvalCallback(Counted(), n_eval_episodes=2, eval_freq=40))
    rewards, _ = evaluate_policy(
        model, Counted(), 3, callback=lambda here, _: seen.append(here["reward"]), return_episode_rewards=True
    )
    assert rewards == [4.0] * 3
    assert len(seen) == 12


def test_the_entropy_that_sac_keeps_is_of_what_is_legal():
    """Two of ten options are legal: a goal of 0.89 log 10 is out of reach, and its weight would explode."""
    model = SAC(
        "MlpPolicy", replace(Few(), options=10, free=2, pays=True, limit=8), pi=(32,), qf=(32,),
        learning_rate=1e-3, **SMALL,
    )  # fmt: skip
    model.learn(6000)
    last = model.session.last
    assert last["train/ent_coef"] < 2.0
    assert last["train/entropy"] == pytest.approx(0.89 * np.log(2.0), abs=0.12)
