"""What holds for every learner from replay: padding changes nothing, nothing is aliased, priorities fit."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import REPLAYERS, differences, made_up, quick
from replayed import CHOICE, NUMBERS, ROWS, batch, learner, start

from sparring.algos.gdi import Acted
from sparring.config import Linear
from sparring.drivers import loop
from sparring.errors import ConfigError
from sparring.replay.size import check_fits
from sparring.types import Algorithm, Batch, Replay

BURN_IN, LENGTH, N = 2, 4, 6
STEPS = BURN_IN + LENGTH
BEGIN = np.array([0, 0, 1, 2, 0, 2])
END = np.array([6, 4, 6, 3, 5, 6])
STARTS = np.array([True, False, True, True, False, True])
"""Sequences in which the episode starts; the others go on from a stored state."""
MASK = (np.arange(STEPS) >= BEGIN[:, None]) & (np.arange(STEPS) < END[:, None])
NETWORKS = {
    "dqn": ("nets", "target"),
    "gdi": ("nets",),
    "sac": ("actor", "critic", "target"),
    "td3": ("actor", "critic", "actor_target", "critic_target"),
    "crossq": ("actor", "critic"),
}
ONLINE = {
    "dqn": ("nets",),
    "gdi": ("nets",),
    "sac": ("actor", "critic"),
    "td3": ("critic",),
    "crossq": ("actor", "critic"),
}
CHOOSING = ("dqn", "gdi")
"""One network chooses and judges; the others have critics apart."""


def spec(name: str) -> Any:
    return CHOICE if name in CHOOSING else NUMBERS


@cache
def setting(name: str) -> tuple[Any, Any, Batch, Any]:
    """Agent with a core and priorities, state, sequences with padding on both sides, and its update."""
    settings = {"core": "gru", "burn_in": BURN_IN, "prioritized": True, "normalize_reward": True}
    if name != "gdi":
        settings["n_steps"] = 2
    if name in ("td3", "crossq"):
        settings["policy_delay"] = 1
    algo = learner(name, spec(name), batch_size=N, **settings)
    made = batch(algo, steps=STEPS, count=N)
    if name == "gdi":
        log_mu = jnp.asarray(np.random.default_rng(5).uniform(-2.0, -0.1, (N, STEPS)), jnp.float32)
        made = made._replace(data=made.data._replace(extras=Acted(log_mu)))
    last = np.arange(STEPS) == END[:, None] - 1
    data = made.data._replace(
        mask=jnp.asarray(MASK),
        first=jnp.asarray((np.arange(STEPS) == BEGIN[:, None]) & STARTS[:, None]),
        terminated=made.data.terminated & last,
        truncated=made.data.truncated & last,
        core=made_up(jax.eval_shape(lambda: algo.carry(N).core), 4),
    )
    rewards = jax.tree.map(jnp.ones_like, quick(algo.init)(jax.random.key(0)).rewards)
    state = start(algo)._replace(rewards=rewards)
    return algo, state, made._replace(data=data), quick(algo.update)


@pytest.mark.parametrize("name", REPLAYERS)
def test_what_lies_in_the_padding_of_a_sequence_changes_no_bit(name):
    algo, state, sampled, update = setting(name)
    last = jnp.int32(algo.plan.updates - 1)
    state = state._replace(
        updates=last, iteration=jnp.int32(algo.horizon) - 1
    )  # when networks are looked into

    def filled(x: Any, junk: float) -> Any:
        valid = jnp.asarray(MASK).reshape(N, STEPS, *(1,) * (x.ndim - 2))
        return jnp.where(valid, x, jnp.asarray(junk, x.dtype))

    after, report = update(state, sampled, jax.random.key(1))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((after, report.metrics)))
    for junk in (0.0, -3.5, 1e4):
        kept = {f: filled(getattr(sampled.data, f), junk) for f in ("obs", "next_obs", "reward", "action")}
        flags = {f: getattr(sampled.data, f) | ~jnp.asarray(MASK) for f in ("terminated", "truncated")}
        if name in CHOOSING:
            kept["action"] = filled(sampled.data.action, 3)
        if name == "gdi":
            kept["extras"] = Acted(filled(sampled.data.extras.log_mu, -min(abs(junk), 7.0)))
        for part in (kept, flags):
            dirty = sampled._replace(data=sampled.data._replace(**part))
            again, told = update(state, dirty, jax.random.key(1))
            assert differences(again, after) == []
            assert differences(told.metrics, report.metrics) == []


@pytest.mark.parametrize("name", REPLAYERS)
def test_a_sequence_reports_an_error_for_every_step_of_its_block(name):
    algo, state, sampled, update = setting(name)
    _, report = update(state, sampled, jax.random.key(1))
    heads = (2,) if name == "gdi" else ()
    assert report.priority.shape == (N, LENGTH, *heads)
    assert (np.asarray(report.priority)[MASK[:, BURN_IN:]] > 0).all()
    assert isinstance(algo, Algorithm)
    assert isinstance(algo.replay, Replay)


@pytest.mark.parametrize("name", REPLAYERS)
def test_weights_of_a_prioritised_batch_scale_what_is_learned(name):
    _, state, sampled, update = setting(name)
    loss = "train/loss" if name in CHOOSING else "train/critic_loss"

    def total(weight: Any) -> float:
        return float(update(state, sampled._replace(weight=weight), jax.random.key(1))[1].metrics[loss])

    same, skewed = total(jnp.full(N, 3.0)), total(jnp.array([1e-6, *[1.0] * (N - 1)]))
    assert total(jnp.ones(N)) == pytest.approx(same, rel=1e-6)  # only ratios matter
    assert skewed != pytest.approx(same, rel=1e-3)


@pytest.mark.parametrize("name", REPLAYERS)
def test_one_update_trains_every_online_network_with_its_core(name):
    algo, state, sampled, update = setting(name)
    after, _ = update(state, sampled, jax.random.key(1))
    for part in ONLINE[name]:
        moved = differences(getattr(after, part), getattr(state, part))
        assert moved, part
    trunk = after.nets.trunk if name in CHOOSING else after.critic.trunk
    before = state.nets.trunk if name in CHOOSING else state.critic.trunk
    assert len(differences(trunk.core, before.core)) == len(jax.tree.leaves(trunk.core))
    assert int(after.updates) == 1
    assert set(NETWORKS[name]) <= set(state._fields)
    assert name in CHOOSING or state.actor.trunk is None  # a core is the critics'
    assert algo.config.core == "gru"


@pytest.mark.parametrize("name", REPLAYERS)
def test_no_two_leaves_of_a_fresh_state_share_memory(name):
    """A donated buffer may appear only once."""
    algo = learner(name, spec(name), normalize_obs=True)
    state = quick(algo.init)(jax.random.key(0))
    places = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)]
    assert len(set(places)) == len(places)
    for target, online in (("target", "nets"), ("target", "critic"), ("critic_target", "critic")):
        if hasattr(state, target) and hasattr(state, online):
            assert differences(getattr(state, target), getattr(state, online)) == []


@pytest.mark.parametrize("name", REPLAYERS)
def test_acting_needs_no_critic_and_no_optimiser(name):
    algo = learner(name, spec(name))
    state = jax.eval_shape(algo.init, jax.random.key(0))
    sizes = [sum(x.size for x in jax.tree.leaves(t)) for t in (jax.eval_shape(algo.policy, state), state)]
    assert sizes[0] < sizes[1] / 2


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("dqn", {"gamma": 1.5}),
        ("dqn", {"exploration_final_eps": 2.0}),
        ("sac", {"ent_coef_init": 0.0}),
        ("sac", {"tau": -0.1}),
        ("td3", {"noise_std": -1.0}),
        ("crossq", {"learning_rate": -1.0}),
    ],
)
def test_values_that_mean_nothing_are_refused_by_name(name, settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        learner(name, spec(name), **settings).check()


def test_memory_is_asked_for_all_seeds_together():
    check_fits(10, 25, "memory", 5)
    with pytest.raises(ConfigError, match="buffer_size=5 in 3 copies takes 30 bytes of memory, but 25 bytes"):
        check_fits(30, 25, "memory", 5, 3)


def test_priorities_follow_the_schedules_of_their_exponent_and_of_the_largest_error():
    settings = {"core": "gru", "burn_in": 0, "sequence_length": 4, "prioritized": True, "learning_starts": 0}
    updates = quick(lambda *given: loop.updates(*given)[1].tree.levels)

    def masses(iteration: int, alpha: Any, eta: Any) -> list[np.ndarray]:
        algo = learner("dqn", CHOICE, **settings, priority_alpha=alpha, priority_eta=eta)
        rollout = batch(algo, steps=ROWS, count=8).data
        carry = jax.tree.map(lambda x: jnp.zeros((8, *x.shape)), algo.carry(ROWS).core)
        rollout = rollout._replace(extras=rollout.extras._replace(core=carry))
        train = start(algo)._replace(iteration=jnp.int32(iteration))
        memory = algo.replay.add(algo.replay.init(rollout), rollout)
        return [np.asarray(level) for level in updates(algo, train, memory, jax.random.key(0))]

    changing = Linear(1.0, 0.5), Linear(1.0, 0.0)
    for iteration, constant in ((0, (1.0, 1.0)), (100, (0.5, 0.0))):
        for got, expected in zip(masses(iteration, *changing), masses(iteration, *constant), strict=True):
            np.testing.assert_array_equal(got, expected)
    assert not np.array_equal(masses(0, *changing)[-1], masses(100, *changing)[-1])
