"""Every test runs on the CPU, with shapes, dtypes and random keys checked."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from beartype import BeartypeConf, beartype
from beartype.roar import BeartypeDecorHintException
from hypothesis import settings
from jaxtyping import install_import_hook

from sparring.drivers.platform import keep_programs

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_debug_key_reuse", True)

# What one process of the tests compiled, the next ones load.
cache = Path(__file__).parents[1] / ".cache"
os.environ.setdefault("SPARRING_CACHE_DIR", str(cache))
keep_programs()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)

settings.register_profile("ci", deadline=None, max_examples=30, derandomize=True)
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


PURE = ["sparring.ops", "sparring.nets", "sparring.replay", "sparring.bandit", "sparring.algos"]
install_import_hook(PURE, "conftest.checked")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of slow.txt took half a second or more; `make check` leaves them out.

    Those of exhaustive.txt, each with a shorter one like it, wait for `make exhaustive`.
    """
    for name in ("slow", "exhaustive"):
        listed = set((Path(__file__).parent / f"{name}.txt").read_text().split())
        for item in items:
            if {item.nodeid, item.nodeid.partition("[")[0]} & listed:
                item.add_marker(name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Any:
    """Where everything is installed (SPARRING_NO_SKIPS), a skipped test is a failure."""
    report = yield
    if report.skipped and os.environ.get("SPARRING_NO_SKIPS") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, and here nothing may be: {report.longrepr}"
    return report


ALGORITHMS = {
    "ppo": "sparring.algos.ppo:PPO",
    "a2c": "sparring.algos.a2c:A2C",
    "reinforce": "sparring.algos.reinforce:REINFORCE",
    "dqn": "sparring.algos.dqn:DQN",
    "pqn": "sparring.algos.pqn:PQN",
    "gdi": "sparring.algos.gdi:GDI",
    "sac": "sparring.algos.sac:SAC",
    "td3": "sparring.algos.td3:TD3",
    "crossq": "sparring.algos.crossq:CrossQ",
}
"""Every test that holds for all algorithms walks this list."""

EVERY_TIME = ("ppo",)
"""Whose settings `make test` tries; those of the others wait for `make exhaustive`."""
ACTOR_CRITICS = ("ppo", "a2c", "reinforce")
"""They have a distribution over every kind of action, and learn from the rollout they collected."""
CHOOSERS = ("dqn", "pqn", "gdi")
"""They choose among options: a Box needs action_bins, and bits they refuse."""
STEERERS = ("td3", "crossq")
"""They act with bounded numbers alone: discrete environments are not for them."""
REPLAYERS = ("dqn", "gdi", "sac", "td3", "crossq")
"""They learn from what a replay kept."""

REPLAY: dict[str, Any] = {
    "buffer_size": 96,  # a few iterations, so that the oldest is overwritten
    "learning_starts": 20,
    "batch_size": 8,
    "train_freq": 4,
    "gradient_steps": 2,
}
MEMORY: dict[str, Any] = {"sequence_length": 4, "burn_in": 2, "core_size": 4}
"""What comes with a core."""
TINY: dict[str, dict[str, Any]] = {
    "ppo": {"pi": (8,), "vf": (8,), "n_steps": 8, "batch_size": 8, "n_epochs": 2},
    "a2c": {"pi": (8,), "vf": (8,), "n_steps": 8},
    "reinforce": {"pi": (8,), "vf": (8,), "n_steps": 8},
    "dqn": {**REPLAY, "net_arch": (8,), "target_update_interval": 24},
    "pqn": {"net_arch": (8,), "n_steps": 8, "batch_size": 8, "n_epochs": 2},
    "gdi": {**REPLAY, "sequence_length": 4, "net_arch": (8,), "warmup": 2},
    "sac": {**REPLAY, "pi": (8,), "qf": (8,)},
    "td3": {**REPLAY, "pi": (8,), "qf": (8,)},
    "crossq": {**REPLAY, "pi": (8,), "qf": (8,)},
}


def algorithm(name: str) -> Any:
    """The class of an algorithm."""
    module, _, cls = ALGORITHMS[name].partition(":")
    return getattr(importlib.import_module(module), cls)


def agent(name: str, env: Any, rows: int, horizon: float = 100.0, **settings: Any) -> Any:
    """An algorithm with tiny networks for rows of an environment."""
    cls, core = algorithm(name), settings.get("core", "none")
    memory = MEMORY if name in REPLAYERS and core != "none" else {}
    if memory and name == "gdi":
        memory = {**memory, "burn_in": 0}
    if memory and core == "transformer":
        memory = {**memory, "core_heads": 2, "core_window": 4}
    return cls(replace(env.spec, rows=rows), cls.Config(**{**TINY[name], **memory, **settings}), horizon)


QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
"""Half the time to compile of the first alone; with optimisation the second takes forever."""


def quick(function: Callable[..., Any], **options: Any) -> Any:
    """The function compiled without optimisation, for programs that run once or twice."""
    return jax.jit(function, compiler_options=QUICK, **options)


def made_up(shapes: Any, seed: int = 0) -> Any:
    """Arrays of these shapes with random numbers, without compiling an initialiser."""
    random = np.random.default_rng(seed)
    return jax.tree.map(lambda s: jax.device_put(random.normal(0, 0.5, s.shape).astype(s.dtype)), shapes)


def experience(algo: Any, state: Any, steps: int = 7, seed: int = 0) -> Any:
    """A made-up rollout of Box observations with the log-probabilities of the networks that acted."""
    import jax.numpy as jnp

    from sparring.nets import policy
    from sparring.spaces import event_shape
    from sparring.types import Transition

    random, rows = np.random.default_rng(seed), algo.spec.rows
    shape = (steps, rows)
    obs = random.normal(size=(*shape, *event_shape(algo.spec.observation))).astype(np.float32)
    codec = policy.action_codec(algo.spec, algo.config)

    @quick
    def decide(state: Any, obs: Any) -> Any:
        chosen, _ = policy.evaluate(algo.config, state.nets, state.moments, obs, None)
        sample = chosen.sample(jax.random.key(seed))
        extras = policy.Choice(chosen.log_prob(sample), None if codec.identity else sample)
        return codec.decode(sample), extras

    action, extras = decide(state, jnp.asarray(obs))
    ended = random.random(shape) < 0.3
    terminated = ended & (random.random(shape) < 0.5)
    fresh = random.normal(size=obs.shape).astype(np.float32)
    follows = np.concatenate([obs[1:], fresh[-1:]])
    made = Transition(
        obs=obs,
        action=action,
        reward=random.normal(size=shape).astype(np.float32),
        terminated=terminated,
        truncated=ended & ~terminated,
        next_obs=np.where(ended.reshape(*shape, *(1,) * (obs.ndim - 2)), fresh, follows),
        extras=extras,
        first=np.concatenate([np.ones((1, rows), bool), ended[:-1]]),
    )
    return jax.tree.map(jnp.asarray, made)


def train(algo: Any, env: Any, key: Any, iterations: int = 2) -> Any:
    """The fused driver's world after some iterations, as one pure function to trace or to compile."""
    from sparring import actor
    from sparring.drivers import fused
    from sparring.drivers.loop import Learner
    from sparring.envs import batched
    from sparring.ops import keys

    rows = algo.spec.rows
    env_state, timestep = batched.reset(env, keys.once(key, keys.RESET), rows)
    blank = Learner(algo.init(keys.once(key, keys.INIT)), None, None)
    world = fused.World(blank, actor.start(algo, timestep, key), env_state)
    example = jax.eval_shape(lambda: fused.collect(algo, env, world, key, 0)[2])
    learner = Learner(blank.train, algo.replay.init(example), actor.start_episodes(rows, 4))
    start = world._replace(learner=learner)
    return jax.lax.fori_loop(0, iterations, lambda i, w: fused.iterate(algo, env, w, key, i)[0], start)


def differences(one: Any, other: Any) -> list[str]:
    """Paths of the leaves in which two trees are not equal bit for bit."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    pairs = zip(jax.tree_util.tree_leaves_with_path(one), jax.tree.leaves(other), strict=True)
    return [jax.tree_util.keystr(path) for (path, a), b in pairs if not same(a, b)]


def same(a: Any, b: Any) -> bool:
    """Whether two arrays agree in shape, dtype and every bit (NaN equals NaN)."""
    a, b = np.asarray(a), np.asarray(b)
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def as_numpy(tree: Any) -> Any:
    """A copy that no later call can touch."""
    return jax.tree.map(np.array, tree)
