"""Heads hand out the right distribution for every space, and codecs only actions within the bounds."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import made_up, quick
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from sparring.errors import ConfigError, SpaceMismatch
from sparring.nets.heads import JOINT_LIMIT, Codec, Head, codec
from sparring.nets.policy import Behaviour, PolicyConfig, Weights, act, build, start_carry
from sparring.ops.distributions import Bernoulli, Categorical, Gaussian, MultiCategorical, TanhGaussian
from sparring.spaces import Box, Dict, Discrete, EnvSpec, MultiBinary, MultiDiscrete, legal_size
from sparring.types import View

BOX = Box((2,), (-2.0, 0.0), (1.0, 10.0))
NUMBER = st.floats(-100, 100, width=32, allow_subnormal=False)


@st.composite
def bounds(draw):
    low, high = sorted((draw(NUMBER), draw(NUMBER)))
    return (low, high) if high - low > 0.01 else (low, low + 1.0)


def within(space: Box, action: jax.Array) -> bool:
    low, high = (b.astype(np.float32) for b in space.bounds())
    return bool((np.asarray(action) >= low).all() and (np.asarray(action) <= high).all())


@given(bounds(), st.lists(st.floats(allow_nan=False, width=32), min_size=3, max_size=3))
def test_clipped_actions_are_within_the_bounds(limits, sample):
    space = Box((3,), *limits)
    action = codec(space).decode(jnp.array([sample]))
    assert action.shape == (1, 3)
    assert within(space, action)


@given(bounds(), st.lists(st.floats(allow_nan=False, width=32), min_size=3, max_size=3))
def test_squashed_actions_are_within_the_bounds(limits, sample):
    space = Box((3,), *limits)
    assert within(space, codec(space, squash=True).decode(jnp.array([sample])))


@given(bounds(), st.integers(2, 64))
def test_bins_are_within_the_bounds_and_their_ends_are_the_bounds(limits, bins):
    space = Box((1,), *limits)
    made = codec(space, (bins,))
    assert made.inner == MultiDiscrete((bins,))
    actions = np.asarray(made.decode(jnp.minimum(jnp.arange(64), bins - 1)[:, None]))[:bins, 0]
    assert within(space, actions)
    assert (np.diff(actions) > 0).all()
    assert actions[0] == np.float32(limits[0])
    assert actions[-1] == np.float32(limits[1])


@given(bounds(), st.integers(2, 16))
def test_a_joint_grid_reaches_every_corner_within_the_bounds(limits, bins):
    space = Box((2,), *limits)
    made = codec(space, (bins,), "joint")
    assert made.inner == Discrete(bins**2)
    actions = np.asarray(made.decode(jnp.minimum(jnp.arange(256), bins**2 - 1)))[: bins**2]
    assert within(space, actions)
    assert len(np.unique(actions, axis=0)) == bins**2
    np.testing.assert_array_equal(actions[0], np.float32([limits[0]] * 2))
    np.testing.assert_array_equal(actions[-1], np.float32([limits[1]] * 2))


def test_bins_may_differ_per_dimension_and_keep_the_shape():
    space = Box((2, 1), -1.0, 1.0)
    made = codec(space, (2, 5))
    assert made.inner == MultiDiscrete((2, 5))
    np.testing.assert_allclose(made.decode(jnp.array([[1, 2]])), [[[1.0], [0.0]]])


def test_squash_maps_the_middle_and_the_ends():
    made = codec(BOX, squash=True)
    got = made.decode(jnp.array([[0.0, 0.0], [50.0, 50.0], [-50.0, -50.0]]))
    np.testing.assert_allclose(got, [[-0.5, 5.0], [1.0, 10.0], [-2.0, 0.0]], atol=1e-6)


@pytest.mark.parametrize("space", [Discrete(3), MultiDiscrete((2, 3)), MultiBinary(4)])
def test_choices_need_no_translation(space):
    made = codec(space)
    assert made.identity
    sample = jnp.ones((2, 3), jnp.int32)
    assert made.decode(sample) is sample


def test_a_joint_grid_that_is_too_large_is_refused_with_the_largest_that_fits():
    with pytest.raises(
        ConfigError, match=r"17 bins in 3 dimensions has 4,913 actions.*4,096.*at most 16 bins"
    ):
        codec(Box((3,), -1.0, 1.0), (17,), "joint")
    assert codec(Box((3,), -1.0, 1.0), (16,), "joint").inner == Discrete(JOINT_LIMIT)


@pytest.mark.parametrize("dimensions", [2, 4, 7, 12, 20])
def test_the_proposed_size_of_a_joint_grid_works(dimensions):
    """Where no number of bins fits, only the other grid is offered."""
    space = Box((dimensions,), -1.0, 1.0)
    with pytest.raises(ConfigError) as caught:
        codec(space, (100,), "joint")
    words = str(caught.value).split()
    if "most" in words:
        most = int(words[words.index("most") + 1])
        assert isinstance(codec(space, (most,), "joint").inner, Discrete)
    assert "per_dimension" in str(caught.value)


@pytest.mark.parametrize(
    ("space", "settings", "error", "text"),
    [
        (Discrete(2), {"bins": (3,)}, ConfigError, "action_bins needs a Box"),
        (Discrete(2), {"squash": True}, ConfigError, "squash needs a Box"),
        (Box((2,)), {"bins": (3,)}, SpaceMismatch, "finite"),
        (Box((2,)), {"squash": True}, SpaceMismatch, "finite"),
        (BOX, {"bins": (3, 3, 3)}, ConfigError, "one number or 2 numbers"),
        (BOX, {"bins": (1,)}, ConfigError, "at least 2"),
        (BOX, {"bins": (3, 4), "grid": "joint"}, ConfigError, "same number of bins"),
        (Dict((("a", BOX),)), {}, SpaceMismatch, "Dict"),
    ],
)
def test_impossible_codecs_are_refused_with_the_reason(space, settings, error, text):
    with pytest.raises(error, match=text):
        codec(space, **settings)


def head(space, inputs: int = 5, **settings) -> Head:
    made = space if isinstance(space, Codec) else codec(space)
    if settings:
        return Head(jax.random.key(0), inputs, made, None, **settings)
    return made_up(jax.eval_shape(lambda: Head(jax.random.key(0), inputs, made, None)))


LATENT = jax.random.normal(jax.random.key(9), (4, 5))


@pytest.mark.parametrize(
    ("space", "kind"),
    [
        (Discrete(3), Categorical),
        (MultiDiscrete((2, 3)), MultiCategorical),
        (MultiBinary(4), Bernoulli),
        (BOX, Gaussian),
        (codec(BOX, squash=True), TanhGaussian),
        (codec(BOX, (3,)), MultiCategorical),
        (codec(BOX, (3,), "joint"), Categorical),
    ],
)
def test_every_space_has_its_distribution(space, kind):
    chosen = head(space)(LATENT)
    assert isinstance(chosen, kind)
    assert chosen.log_prob(chosen.sample(jax.random.key(1))).shape == (4,)
    assert chosen.entropy().shape == (4,)


@pytest.mark.parametrize("space", [Discrete(3), MultiDiscrete((2, 3)), MultiBinary(4), BOX], ids=str)
def test_masks_have_the_length_that_the_space_promises(space):
    legal = jnp.ones((4, legal_size(space)), bool)
    free, masked = head(space)(LATENT), head(space)(LATENT, legal)
    sample = free.sample(jax.random.key(1))
    np.testing.assert_allclose(free.log_prob(sample), masked.log_prob(sample), rtol=1e-6)


def test_a_branch_mask_rules_out_its_own_options_only():
    sizes = (2, 3, 4)
    legal = np.ones(9, bool)
    legal[[0, 3, 5, 8]] = False  # branch 0: option 0; branch 1: option 1; branch 2: options 0 and 3
    chosen = head(MultiDiscrete(sizes))(LATENT, jnp.broadcast_to(jnp.asarray(legal), (4, 9)))
    p = special.softmax(np.asarray(chosen.logits), axis=-1)
    assert p.shape == (4, 3, 4)
    possible = np.array([[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 1, 0]], bool)
    assert (p[:, possible] > 0).all()
    assert (p[:, ~possible] == 0).all()
    np.testing.assert_allclose(p.sum(-1), 1.0, rtol=1e-5)


def test_branches_shorter_than_the_widest_never_sample_their_padding():
    chosen = head(MultiDiscrete((2, 5)))(jnp.broadcast_to(LATENT[:1], (5000, 5)))
    assert np.asarray(chosen.sample(jax.random.key(2)))[:, 0].max() == 1


def test_a_masked_dimension_of_a_box_stays_at_zero():
    chosen = head(BOX)(LATENT, jnp.tile(jnp.array([True, False]), (4, 1)))
    sample = chosen.sample(jax.random.key(3))
    assert (sample[:, 1] == 0).all()
    assert (sample[:, 0] != 0).all()


def test_log_std_is_free_or_depends_on_the_state():
    free, state = head(BOX, log_std_init=-0.5), head(BOX, log_std="state", log_std_init=-0.5)
    np.testing.assert_allclose(free(LATENT).log_std, -0.5)
    assert np.ptp(np.asarray(state(LATENT).log_std), axis=0).min() > 0
    np.testing.assert_allclose(state(jnp.zeros((1, 5))).log_std, -0.5)


def test_a_state_dependent_log_std_is_bounded():
    extreme = head(BOX, log_std="state")(1e6 * LATENT).log_std
    assert float(jnp.max(extreme)) == 2.0
    assert float(jnp.min(extreme)) == -20.0


def test_gsde_deviation_is_that_of_latent_times_noise():
    made = head(BOX, sde=True, log_std_init=-0.3)
    latent = LATENT[:1]
    noise = made.noise_matrix(jax.random.key(4), 20_000)
    drawn = np.asarray(jnp.einsum("i,bia->ba", latent[0], noise))
    deviation = np.exp(np.asarray(made(latent).log_std[0]))
    np.testing.assert_allclose(drawn.std(0), deviation, rtol=0.03)
    np.testing.assert_allclose(drawn.mean(0), 0.0, atol=0.05)


def test_gsde_does_not_train_the_features_through_the_deviation():
    made = head(BOX, sde=True)
    slope = jax.grad(lambda latent: jnp.sum(made(latent).log_std))(LATENT)
    np.testing.assert_array_equal(slope, 0.0)


@pytest.mark.parametrize("space", [Discrete(2), codec(BOX, (3,))], ids=["discrete", "bins"])
def test_gsde_needs_continuous_actions(space):
    with pytest.raises(ConfigError, match="use_sde needs a Box"):
        head(space, sde=True)


PLAIN = {"pi": (8,), "vf": (8,), "ortho_init": False}
SPEC = EnvSpec("t", Box((3,)), BOX, rows=6)


@cache
def networks(config: PolicyConfig, spec: EnvSpec):
    return made_up(jax.eval_shape(lambda: build(spec, config, jax.random.key(0))))


quick_act = quick(act, static_argnums=6)


def decide(config: PolicyConfig, spec: EnvSpec = SPEC, legal=None, behaviour: Behaviour | None = None):
    nets = networks(config, spec)
    view = View(jax.random.normal(jax.random.key(1), (spec.rows, 3)), legal)
    carry = start_carry(spec, config, spec.rows)
    weights = Weights(nets.actor, None)
    return quick_act(config, weights, carry, view, behaviour or Behaviour(), jax.random.key(2), 4)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"squash": True},
        {"action_bins": (5,)},
        {"action_bins": (5,), "action_grid": "joint"},
        {"use_sde": True},
    ],
    ids=str,
)
def test_what_the_environment_gets_is_within_its_bounds(settings):
    action, choice, _ = decide(PolicyConfig(**PLAIN, log_std_init=2.0, **settings))
    assert action.shape == (6, 2)
    assert within(BOX, action)
    assert np.isfinite(choice.log_prob).all()


@pytest.mark.parametrize("settings", [{}, {"squash": True}, {"use_sde": True}], ids=str)
def test_masked_dimensions_are_drawn_as_zero_whatever_the_noise(settings):
    legal = jnp.tile(jnp.array([True, False]), (6, 1))
    _, choice, _ = decide(PolicyConfig(**PLAIN, **settings), legal=legal)
    np.testing.assert_array_equal(choice.sample[:, 1], 0.0)


@pytest.mark.parametrize("grid", ["per_dimension", "joint"])
def test_a_mask_of_dimensions_is_not_taken_for_a_mask_of_bins(grid):
    """With every dimension legal, every bin is; a masked dimension must not silently rule out other bins."""
    config = PolicyConfig(**PLAIN, action_bins=(3,), action_grid=grid)
    free, _, _ = decide(config)
    try:
        masked, _, _ = decide(
            config, replace(SPEC, masks_actions=True), jnp.tile(jnp.array([True, False]), (6, 1))
        )
    except (ConfigError, SpaceMismatch):
        return
    np.testing.assert_array_equal(masked[:, 0], free[:, 0])


def test_greedy_rows_take_the_mode_and_the_others_a_sample():
    config = PolicyConfig(**PLAIN)
    greedy = jnp.array([True, False] * 3)
    action, _, _ = decide(config, behaviour=Behaviour(greedy=greedy))
    every, _, _ = decide(config, behaviour=Behaviour(greedy=jnp.ones(6, bool)))
    none, _, _ = decide(config)
    np.testing.assert_array_equal(action, np.where(np.asarray(greedy)[:, None], every, none))
    assert not np.array_equal(every, none)


def test_temperature_scales_the_noise_around_the_mode():
    config = PolicyConfig(**PLAIN, log_std_init=-3.0)
    mode = decide(config, behaviour=Behaviour(greedy=jnp.ones(6, bool)))[1].sample
    warm, cold = (
        decide(config, behaviour=Behaviour(temperature=jnp.full(6, t)))[1].sample for t in (1.0, 0.5)
    )
    np.testing.assert_allclose((cold - mode) * 2.0, warm - mode, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("space", [Discrete(3), codec(BOX, (3,)).inner], ids=str)
def test_gsde_without_a_box_is_a_clear_error_from_the_first_call(space):
    config = PolicyConfig(**PLAIN, use_sde=True)
    with pytest.raises(ConfigError, match="use_sde"):
        start_carry(replace(SPEC, action=space), config, 2)


def test_log_prob_of_a_decision_is_that_of_what_was_drawn():
    for settings in ({}, {"squash": True}, {"action_bins": (4,)}):
        config = PolicyConfig(**PLAIN, **settings)
        _, choice, _ = decide(config)
        chosen = networks(config, SPEC).actor(jax.random.normal(jax.random.key(1), (6, 3)), None)
        np.testing.assert_allclose(choice.log_prob, chosen.log_prob(choice.sample), rtol=1e-5)
        assert math.isfinite(float(choice.log_prob.sum()))
