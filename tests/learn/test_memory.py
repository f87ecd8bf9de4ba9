"""Every algorithm with every core learns to repeat what it saw four steps ago; without a core none can."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from conftest import STEERERS, agent, quick, train

from sparring import actor
from sparring.config import Linear
from sparring.envs import batched
from sparring.envs.memory import RepeatPrevious, RepeatPreviousContinuous
from sparring.nets.cores import NAMES
from sparring.types import Behaviour

pytestmark = pytest.mark.slow

K, LENGTH, ROWS, EPISODES = 4, 16, 16, 64
RIGHT, CHANCE = 0.4, -0.5
"""What is asked (seven of ten actions right), and what no policy without memory exceeds."""
CORE: dict[str, Any] = {
    "core_size": 32,
    "learning_rate": 0.01,
    "gamma": 0.5,
    "reward_scale": float(LENGTH - K),
}
TRANSFORMER = {"core_size": 16, "core_heads": 2, "core_window": 8, "learning_rate": 0.003}
ON_POLICY = {**CORE, "pi": (), "vf": (), "n_steps": LENGTH, "ent_coef": 0.03, "ortho_init": False}
REPLAY = {
    **CORE,
    "buffer_size": 8000,
    "learning_starts": 500,
    "batch_size": 32,
    "train_freq": 4,
    "gradient_steps": 1,
    "sequence_length": 10,
    "burn_in": 4,
}
GDI: dict[str, Any] = {
    "net_arch": (),
    "warmup": 1,
    "weight_decay": 0.0,
    "shaping": ("none",),
    "target_temperature": 0.1,
}
LEARNERS: dict[str, tuple[dict[str, Any], int, int]] = {
    "ppo": ({**ON_POLICY, "batch_size": 128, "n_epochs": 4}, 160, 120),
    "a2c": ({**ON_POLICY, "use_rms_prop": False}, 600, 240),
    "reinforce": (ON_POLICY, 600, 240),
    "dqn": ({**REPLAY, "net_arch": (), "target_update_interval": 100}, 480, 400),
    "pqn": ({**CORE, "net_arch": (), "n_steps": LENGTH, "batch_size": 128, "n_epochs": 4}, 120, 80),
    "gdi": ({**REPLAY, **GDI}, 480, 480),
    "sac": ({**REPLAY, "pi": (16,), "qf": (16,), "tau": 0.05, "ent_coef": 0.1}, 480, 480),
    "td3": ({**REPLAY, "pi": (16,), "qf": (32,), "tau": 0.05}, 480, 480),
    "crossq": ({**REPLAY, "pi": (16,), "qf": (32,), "renorm_momentum": 0.9, "ent_coef": 0.05}, 480, 480),
}
"""Settings, and iterations with other cores and with a transformer."""


@partial(quick, static_argnums=(0, 3))
def learned(env: Any, algo: Any, key: Any, iterations: int) -> Any:
    """The mean return of greedy episodes after training."""
    weights = algo.policy(train(algo, env, key, iterations).learner.train)
    behaviour = Behaviour(greedy=jnp.ones(EPISODES, bool))
    world, timestep = batched.reset(env, jax.random.key(1), EPISODES)

    def step(now: Any, key: Any) -> tuple[Any, Any]:
        state, world = now
        act_key, env_key = jax.random.split(key)
        action, _, carry = actor.act(algo, weights, state, behaviour, act_key)
        world, timestep = batched.step(env, world, action, env_key)
        return (actor.observe(state, carry, timestep), world), timestep.reward

    keys = jax.random.split(jax.random.key(2), LENGTH)
    return jnp.sum(jax.lax.scan(step, (actor.start(algo, timestep), world), keys)[1]) / EPISODES


def score(name: str, core: str) -> float:
    settings, others, transformers = LEARNERS[name]
    iterations = transformers if core == "transformer" else others
    if core == "transformer":
        settings = settings | TRANSFORMER
        if name == "crossq":  # renormalised, its features have no scale that would slow late steps down
            settings["learning_rate"] = Linear(0.003)
    env = (RepeatPreviousContinuous if name in STEERERS else RepeatPrevious)(K, LENGTH)
    algo = agent(name, env, ROWS, float(iterations), **settings, core=core)
    return float(learned(env, algo, jax.random.key(0), iterations))


EVERY = os.environ.get("SPARRING_MEMORY") == "1"
ALSO = [("dqn", "gru"), ("sac", "gru"), ("gdi", "s5")]
PAIRS = [
    pytest.param(
        name,
        core,
        marks=[] if EVERY or name == "ppo" or (name, core) in ALSO else pytest.mark.exhaustive,
    )
    for name in LEARNERS
    for core in NAMES
]
"""All of them take five minutes on one core: `make memory`, and `make exhaustive` among others."""


@pytest.mark.parametrize(("name", "core"), PAIRS)
def test_every_core_remembers_what_was_seen_four_steps_ago(name, core):
    assert score(name, core) > RIGHT


@pytest.mark.parametrize("name", ["ppo", "td3"])
def test_without_a_core_the_task_cannot_be_learned(name):
    assert score(name, "none") < CHANCE + 0.15
