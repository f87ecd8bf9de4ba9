"""What the policy sees, remembers and normalises."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import made_up

from sparring.nets import policy, sight
from sparring.nets.policy import Behaviour, Choice, PolicyConfig, Weights
from sparring.ops import statistics
from sparring.spaces import Box, Dict, Discrete, EnvSpec
from sparring.types import Transition, View

T, B = 7, 3
PLAIN = PolicyConfig(pi=(4,), vf=(4,), ortho_init=False)
SPEC = EnvSpec("t", Box((2,)), Discrete(3), rows=B)


def build(*args: Any) -> Any:
    return made_up(jax.eval_shape(lambda: policy.build(*args)))


def rollout(frames: int = 1, mask: np.ndarray | None = None, seed: int = 0, **changes: Any) -> Transition:
    """Random observations; `next_obs` continues an episode unless it was cut."""
    random = np.random.default_rng(seed)
    obs = random.normal(size=(T, B, 2)).astype(np.float32)
    ended = random.random((T, B)) < 0.3
    terminated = ended & (random.random((T, B)) < 0.5)
    fresh = random.normal(size=(T, B, 2)).astype(np.float32)
    next_obs = np.where(ended[..., None], fresh, np.concatenate([obs[1:], fresh[-1:]]))
    stacked = None
    if frames > 1:
        history = np.repeat(obs[:1, :, None], frames, axis=2)
        stacks = [history[0]]
        for t in range(1, T):
            pushed = np.concatenate([stacks[-1][:, 1:], obs[t][:, None]], axis=1)
            full = np.repeat(obs[t][:, None], frames, axis=1)
            stacks.append(np.where(ended[t - 1][:, None, None], full, pushed))
        stacked = np.stack(stacks)
    made = Transition(
        obs=obs,
        action=random.integers(0, 3, (T, B)).astype(np.int32),
        reward=random.normal(size=(T, B)).astype(np.float32),
        terminated=terminated,
        truncated=ended & ~terminated,
        next_obs=next_obs,
        extras=Choice(np.zeros((T, B), np.float32), None, stacked),
        mask=mask,
    )
    return jax.tree.map(jnp.asarray, made._replace(**changes))


def test_a_stack_pushes_the_newest_last_and_a_first_observation_fills_it():
    frames = jnp.arange(12.0).reshape(2, 3, 2)
    obs = jnp.array([[100.0, 101.0], [200.0, 201.0]])
    got = np.asarray(sight.stack(frames, obs, jnp.array([False, True])))
    np.testing.assert_array_equal(got[0], [[2, 3], [4, 5], [100, 101]])
    np.testing.assert_array_equal(got[1], [[200, 201]] * 3)


def test_acting_carries_the_stack_from_step_to_step():
    config = replace(PLAIN, frame_stack=3)
    weights = Weights(build(SPEC, config, jax.random.key(0)).actor, None)
    carry, seen = policy.start_carry(SPEC, config, B), []
    for t in range(4):
        view = View(jnp.full((B, 2), float(t)), None, jnp.array([t == 0, t in (0, 2), t == 0]))
        _, choice, carry = policy.act(config, weights, carry, view, Behaviour(), jax.random.key(t), T)
        seen.append(np.asarray(choice.frames)[:, :, 0])
    np.testing.assert_array_equal(seen[3][0], [1, 2, 3])
    np.testing.assert_array_equal(seen[3][1], [2, 2, 3])
    np.testing.assert_array_equal(seen[0][0], [0, 0, 0])


def test_what_is_seen_next_is_the_stack_pushed_by_the_observation_before_reset():
    data = rollout(frames=3)
    got = np.asarray(sight.seen_next(data))
    np.testing.assert_array_equal(got[:, :, :2], np.asarray(data.extras.frames)[:, :, 1:])
    np.testing.assert_array_equal(got[:, :, 2], data.next_obs)
    plain = rollout()
    assert sight.seen(plain) is plain.obs
    assert sight.seen_next(plain) is plain.next_obs


MASKS = {
    "none": None,
    "all": np.ones((T, B), bool),
    "padded": np.arange(T)[:, None] < np.array([7, 4, 1]),
    "holes": np.random.default_rng(1).random((T, B)) < 0.6,
}


@pytest.mark.parametrize("frames", [1, 3])
@pytest.mark.parametrize("name", MASKS)
def test_next_values_are_the_network_at_the_next_observation(name, frames):
    config, mask = replace(PLAIN, frame_stack=frames), MASKS[name]
    nets = build(SPEC, config, jax.random.key(0))
    data = rollout(frames, mask)
    if mask is not None:  # what lies in the padding is not the next observation of anything
        junk = jnp.where(jnp.asarray(mask)[..., None], data.obs, 1e3)
        data = data._replace(obs=junk)
        if frames > 1:
            shown = jnp.where(jnp.asarray(mask)[..., None, None], data.extras.frames, 1e3)
            data = data._replace(extras=data.extras._replace(frames=shown))
    got = np.asarray(policy.valued(config, nets, None, data).next_value)
    direct = np.asarray(policy.value(config, nets, None, sight.seen_next(data)))
    counts = ~np.asarray(data.terminated) & (np.ones((T, B), bool) if mask is None else mask)
    np.testing.assert_allclose(got[counts], direct[counts], rtol=1e-5, atol=1e-6)
    assert np.asarray(data.truncated)[counts].any()


def test_next_values_without_a_cut_need_the_network_only_at_the_end():
    none = jnp.zeros((T, B), bool)
    data = rollout(truncated=none, terminated=none)
    data = data._replace(next_obs=jnp.concatenate([data.obs[1:], data.next_obs[-1:]]))
    nets = build(SPEC, PLAIN, jax.random.key(0))
    values, got, _ = policy.valued(PLAIN, nets, None, data)
    np.testing.assert_array_equal(got[:-1], values[1:])
    np.testing.assert_allclose(got, policy.value(PLAIN, nets, None, data.next_obs), rtol=1e-5, atol=1e-6)


NORMALISED = replace(
    PLAIN, normalize_reward=True, normalize_obs=True, reward_scale=0.5, clip_reward=1.5, clip_obs=1.0
)


@pytest.mark.parametrize("name", MASKS)
def test_reward_statistics_are_those_of_a_plain_loop_over_discounted_returns(name):
    gamma, mask = 0.9, MASKS[name]
    stats, running, totals = sight.start_rewards(SPEC, NORMALISED), np.zeros(B), []
    for part in range(3):
        data = rollout(mask=mask, seed=part)
        stats = sight.absorb_rewards(stats, NORMALISED, gamma, data)
        ended = np.asarray(data.terminated | data.truncated)
        for t in range(T):
            for b in range(B):
                if mask is None or mask[t, b]:
                    running[b] = running[b] * gamma + 0.5 * float(data.reward[t, b])
                    totals.append(running[b])
                if ended[t, b]:
                    running[b] = 0.0
    assert float(stats.moments.count) == len(totals)
    assert float(statistics.variance(stats.moments)) == pytest.approx(np.var(totals), rel=1e-3)
    np.testing.assert_allclose(stats.running, running, rtol=1e-4, atol=1e-5)
    scaled = sight.scaled_reward(stats, NORMALISED, data.reward)
    wanted = np.clip(0.5 * np.asarray(data.reward) / np.sqrt(np.var(totals) + 1e-8), -1.5, 1.5)
    np.testing.assert_allclose(scaled, wanted, rtol=1e-3, atol=1e-5)
    assert np.isclose(np.abs(wanted).max(), 1.5)


def test_rewards_are_scaled_even_when_they_are_not_normalised():
    config = replace(PLAIN, reward_scale=0.25)
    assert sight.start_rewards(SPEC, config) is None
    np.testing.assert_allclose(sight.scaled_reward(None, config, jnp.array([4.0, -100.0])), [1.0, -25.0])


def test_masked_rewards_may_be_nan():
    mask = MASKS["holes"]
    data = rollout(mask=mask)
    junk = data._replace(reward=jnp.where(jnp.asarray(mask), data.reward, jnp.nan))
    start = sight.start_rewards(SPEC, NORMALISED)
    clean, dirty = (sight.absorb_rewards(start, NORMALISED, 0.9, d) for d in (data, junk))
    jax.tree.map(np.testing.assert_array_equal, clean, dirty)


def test_observations_are_normalised_with_what_was_seen_and_clipped():
    data, moments = rollout(), sight.start_moments(SPEC, NORMALISED)
    moments = sight.absorb_obs(moments, SPEC, data)
    flat = np.asarray(data.obs).reshape(-1, 2)
    wanted = np.clip((flat - flat.mean(0)) / np.sqrt(flat.var(0) + 1e-8), -1.0, 1.0)
    got = sight.normalised(NORMALISED.clip_obs, moments, SPEC.observation, data.obs)
    np.testing.assert_allclose(np.asarray(got).reshape(-1, 2), wanted, rtol=1e-3, atol=1e-4)
    assert sight.normalised(PLAIN.clip_obs, None, SPEC.observation, data.obs) is data.obs


def test_only_real_numbers_of_a_dict_are_normalised():
    space = Dict((("a", Box((2,))), ("b", Discrete(3)), ("c", Box((36, 36, 1), 0, 255, "uint8"))))
    assert sight.normalisable(space) == ("a",)
    spec = replace(SPEC, observation=space)
    obs = {
        "a": jnp.full((T, B, 2), 3.0),
        "b": jnp.ones((T, B), jnp.int32),
        "c": jnp.full((T, B, 36, 36, 1), 9, jnp.uint8),
    }
    moments = sight.absorb_obs(sight.start_moments(spec, NORMALISED), spec, rollout(obs=obs))
    seen = sight.normalised(NORMALISED.clip_obs, moments, space, obs)
    np.testing.assert_allclose(seen["a"], 0.0, atol=1e-3)
    assert seen["b"] is obs["b"]
    assert seen["c"] is obs["c"]
    assert sight.start_moments(replace(SPEC, observation=Discrete(3)), NORMALISED) is None


def test_a_stack_is_normalised_frame_by_frame():
    data = rollout(frames=3)
    moments = sight.absorb_obs(sight.start_moments(SPEC, NORMALISED), SPEC, data)
    whole = sight.normalised(NORMALISED.clip_obs, moments, SPEC.observation, data.extras.frames)
    single = sight.normalised(NORMALISED.clip_obs, moments, SPEC.observation, data.extras.frames[:, :, 1])
    np.testing.assert_array_equal(whole[:, :, 1], single)


SDE = replace(PLAIN, use_sde=True)
CONTINUOUS = EnvSpec("t", Box((2,)), Box((2,), -1.0, 1.0), rows=B)


@pytest.mark.parametrize(("freq", "redraws"), [(-1, [0, 5]), (2, [0, 2, 4, 6]), (1, [0, 1, 2, 3, 4, 5, 6])])
def test_gsde_draws_its_noise_every_so_many_steps_or_once_per_rollout(freq, redraws):
    config, length = replace(SDE, sde_sample_freq=freq), 5
    weights = Weights(build(CONTINUOUS, config, jax.random.key(0)).actor, None)
    act = jax.jit(
        lambda carry, key: policy.act(
            config, weights, carry, View(jnp.ones((B, 2))), Behaviour(), key, length
        )
    )
    carry, changed = policy.start_carry(CONTINUOUS, config, B), []
    for t in range(7):
        before = carry.noise
        _, _, carry = act(carry, jax.random.key(t))
        if not np.array_equal(before, carry.noise):
            changed.append(t)
    assert changed == redraws
    assert len(np.unique(np.asarray(carry.noise)[:, 0, 0])) == B


def test_a_policy_without_hidden_layers_can_use_gsde():
    config = replace(SDE, pi=())
    weights = Weights(build(CONTINUOUS, config, jax.random.key(0)).actor, None)
    carry = policy.start_carry(CONTINUOUS, config, B)
    action, _, _ = policy.act(
        config, weights, carry, View(jnp.ones((B, 2))), Behaviour(), jax.random.key(1), T
    )
    assert action.shape == (B, 2)


@pytest.mark.parametrize("share", [True, False])
def test_evaluate_and_value_agree(share):
    config = replace(PLAIN, share_features=share)
    nets = build(SPEC, config, jax.random.key(0))
    obs = rollout().obs
    _, together = policy.evaluate(config, nets, None, obs, None)
    np.testing.assert_array_equal(together, policy.value(config, nets, None, obs))
