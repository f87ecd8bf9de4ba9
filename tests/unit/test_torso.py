"""An observation of any space, stacked or not, becomes one feature vector of the promised length."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import made_up

from sparring.errors import ConfigError
from sparring.nets import sight
from sparring.nets.layers import ACTIVATIONS, MLP, Dense, NatureCNN, activation
from sparring.nets.policy import PolicyConfig, build
from sparring.nets.torso import Torso, image_shape, width
from sparring.ops import statistics
from sparring.spaces import Box, Dict, Discrete, EnvSpec, MultiBinary, MultiDiscrete, zeros

PIXELS = Box((36, 40, 3), 0, 255, "uint8")
SPACES = {
    "vector": (Box((3,)), 3),
    "scalar": (Box(()), 1),
    "matrix": (Box((2, 3)), 6),
    "discrete": (Discrete(4), 4),
    "multidiscrete": (MultiDiscrete((2, 3)), 5),
    "multibinary": (MultiBinary(3), 3),
    "small bytes": (Box((5,), 0, 255, "uint8"), 5),
    "dict": (Dict((("b", Discrete(4)), ("a", Box((2,))), ("c", MultiBinary(2)))), 8),
}
IMAGES = {
    "HWC": (36, 40, 3),
    "CHW": (3, 36, 40),
    "HW": (36, 40),
}


@pytest.mark.parametrize("frames", [1, 3])
@pytest.mark.parametrize("lead", [(), (2,), (4, 2)], ids=str)
@pytest.mark.parametrize("name", SPACES)
def test_features_have_the_promised_length(name, lead, frames):
    space, features = SPACES[name]
    torso = Torso(jax.random.key(0), space, frames, None)
    obs = zeros(space, (*lead, frames) if frames > 1 else lead)
    assert torso.outputs == frames * features
    assert torso(jax.tree.map(jnp.asarray, obs)).shape == (*lead, frames * features)
    assert width(space) == features


def test_choices_are_one_hot_and_bytes_are_fractions():
    space = Dict((("a", Discrete(3)), ("b", MultiDiscrete((2, 2))), ("c", Box((1,), 0, 255, "uint8"))))
    obs = {"a": jnp.array([2]), "b": jnp.array([[1, 0]]), "c": jnp.array([[51]], jnp.uint8)}
    got = Torso(jax.random.key(0), space, 1, None)(obs)
    np.testing.assert_allclose(got, [[0, 0, 1, 0, 1, 1, 0, 0.2]], rtol=1e-6)


def test_bytes_that_are_no_image_are_normalised_like_numbers():
    ram = Box((2,), 0, 255, "uint8")
    assert sight.normalisable(ram) == ("",)
    assert sight.normalisable(PIXELS) == ()
    seen = jnp.array([[10, 200], [30, 200]], jnp.uint8)
    moments = statistics.absorb(statistics.start({"": seen[0]}), {"": seen})
    shown = sight.normalised(10.0, moments, ram, seen)
    torso = Torso(jax.random.key(0), ram, 1, None)
    np.testing.assert_allclose(torso(shown), [[-1.0, 0.0], [1.0, 0.0]], atol=1e-5)


def test_a_dict_is_joined_in_the_order_of_its_names():
    space = Dict((("z", Box((1,))), ("a", Box((2,)))))
    got = Torso(jax.random.key(0), space, 1, None)({"z": jnp.array([9.0]), "a": jnp.array([1.0, 2.0])})
    np.testing.assert_array_equal(got, [1.0, 2.0, 9.0])


def test_a_stack_of_vectors_is_flattened_oldest_first():
    got = Torso(jax.random.key(0), Box((2,)), 2, None)(jnp.array([[[1.0, 2.0], [3.0, 4.0]]]))
    np.testing.assert_array_equal(got, [[1.0, 2.0, 3.0, 4.0]])


def test_waves_of_the_newest_frame_follow_its_numbers():
    space = Dict((("a", Box((1,))), ("b", Discrete(2))))
    obs = {"a": jnp.array([[[7.0], [0.3]]]), "b": jnp.array([[0, 1]])}
    torso = Torso(jax.random.key(0), space, 2, None, waves=2)
    waves = [np.sin(0.3), np.cos(0.3), np.sin(0.6), np.cos(0.6)]
    np.testing.assert_allclose(torso(obs), [[7.0, 0.3, *waves, 1.0, 0.0, 0.0, 1.0]], rtol=1e-6)
    assert torso.outputs == 10


def test_changes_stand_for_older_frames():
    space = Dict((("a", Box((2,))), ("b", Discrete(2))))
    obs = {"a": jnp.array([[[1.0, 2.0], [4.0, 2.0], [4.5, 3.0]]]), "b": jnp.array([[0, 1, 1]])}
    torso = Torso(jax.random.key(0), space, 3, None, motion=True)
    np.testing.assert_allclose(torso(obs), [[10.0, 0.0, 4.0, 8.0, 4.5, 3.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0]])


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fourier", {"fourier": -1}),
        ("frame_differences", {"frame_differences": True}),
        ("network", {"network": "mine.py:Torso", "fourier": 1}),
    ],
)
def test_what_no_torso_can_show_is_refused(name: str, settings: dict[str, Any]):
    with pytest.raises(ConfigError, match=name):
        build(EnvSpec("x", Box((2,)), Discrete(2)), PolicyConfig(**settings), jax.random.key(0))


@pytest.mark.parametrize(("layout", "channels"), [("HWC", 3), ("CHW", 3), ("HW", 1)])
def test_height_width_and_channels_of_every_layout(layout, channels):
    assert image_shape(Box(IMAGES[layout], 0, 255, "uint8")) == (36, 40, channels)


@pytest.fixture(scope="module")
def torsos():
    def make(shape: tuple[int, ...], frames: int) -> Torso:
        return made_up(
            jax.eval_shape(lambda: Torso(jax.random.key(0), Box(shape, 0, 255, "uint8"), frames, None))
        )

    return {(name, k): make(shape, k) for name, shape in IMAGES.items() for k in (1, 2)}


def test_layouts_of_the_same_image_give_the_same_features(torsos):
    image = np.random.default_rng(0).integers(0, 256, (2, *PIXELS.shape)).astype(np.uint8)
    one = torsos["HWC", 1](jnp.asarray(image))
    other = torsos["CHW", 1](jnp.asarray(np.moveaxis(image, -1, -3)))
    assert one.shape == (2, 512)
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_stack_of_images_becomes_channels_oldest_first(torsos):
    """Two grey frames are one image with two channels."""
    frames = np.random.default_rng(1).integers(0, 256, (2, 2, 36, 40)).astype(np.uint8)
    torso = torsos["HW", 2]
    pixels = jnp.asarray(np.moveaxis(frames, 1, -1)).astype(jnp.float32) / 255.0
    np.testing.assert_allclose(torso(jnp.asarray(frames)), torso.cnns[""](pixels), rtol=1e-5, atol=1e-6)


def test_stacks_of_colour_images_agree_between_layouts(torsos):
    frames = np.random.default_rng(2).integers(0, 256, (1, 2, *PIXELS.shape)).astype(np.uint8)
    one = torsos["HWC", 2](jnp.asarray(frames))
    other = torsos["CHW", 2](jnp.asarray(np.moveaxis(frames, -1, -3)))
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_nature_cnn_has_the_papers_shapes():
    net = jax.eval_shape(lambda: NatureCNN(jax.random.key(0), 84, 84, 4, None))
    assert [c.weight.shape for c in net.convolutions] == [(8, 8, 4, 32), (4, 4, 32, 64), (3, 3, 64, 64)]
    assert [c.stride for c in net.convolutions] == [4, 2, 1]
    assert net.dense.weight.shape == (7 * 7 * 64, 512)


def test_an_image_too_small_to_convolve_is_refused_with_the_way_out():
    with pytest.raises(ConfigError, match=r"36×36.*network='mlp'"):
        jax.eval_shape(lambda: NatureCNN(jax.random.key(0), 20, 20, 3, None))


def test_bytes_that_are_no_image_are_flattened():
    assert not Box((10, 10, 3), 0, 255, "uint8").is_image
    assert not Box((84, 84, 3)).is_image
    assert Torso(jax.random.key(0), PIXELS, 1, None, images=False).outputs == PIXELS.size


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_activation_is_applied_after_every_layer(name):
    net = made_up(jax.eval_shape(lambda: MLP(jax.random.key(0), 2, (3, 4), name, None)))
    x = jnp.array([[0.5, -1.0]])
    first, second = net.layers
    np.testing.assert_allclose(net(x), activation(name)(second(activation(name)(first(x)))), rtol=1e-6)
    assert net.outputs == 4


def test_no_layers_is_the_identity():
    net = MLP(jax.random.key(0), 2, (), "tanh", None)
    x = jnp.array([[0.5, -1.0]])
    np.testing.assert_array_equal(net(x), x)
    assert net.outputs == 2


def test_an_unknown_activation_names_the_nearest():
    with pytest.raises(ConfigError, match=r"'rely'.*'relu'"):
        MLP(jax.random.key(0), 2, (3,), "rely", None)


def test_orthogonal_layers_have_orthogonal_columns_of_their_gain_and_no_bias():
    layer = Dense(jax.random.key(0), 8, 5, 2.0)
    np.testing.assert_allclose(layer.weight.T @ layer.weight, 4.0 * np.eye(5), atol=1e-4)
    np.testing.assert_array_equal(layer.bias, 0.0)


def test_uniform_layers_have_torchs_range():
    layer = Dense(jax.random.key(0), 100, 50, None)
    assert float(jnp.max(jnp.abs(layer.weight))) <= 0.1
    assert float(jnp.max(jnp.abs(layer.bias))) <= 0.1
    assert float(jnp.std(layer.weight)) == pytest.approx(0.1 / np.sqrt(3), rel=0.05)


def start(spec: EnvSpec, config: PolicyConfig, key: jax.Array) -> None:
    jax.eval_shape(lambda: build(spec, config, key))


@pytest.mark.parametrize("network", ["transformer", "cnnn"])
def test_an_unknown_network_is_an_error(network):
    with pytest.raises(ConfigError, match=network):
        start(EnvSpec("t", Box((3,)), Discrete(2)), PolicyConfig(network=network), jax.random.key(0))


def test_a_cnn_for_observations_without_an_image_is_an_error():
    with pytest.raises(ConfigError, match="cnn"):
        start(EnvSpec("t", Box((3,)), Discrete(2)), PolicyConfig(network="cnn"), jax.random.key(0))


def test_every_leaf_of_the_networks_is_a_float_array_and_none_is_shared():
    spec = EnvSpec("t", Dict((("image", PIXELS), ("x", Box((2,))))), Box((2,), -1.0, 1.0))
    for share in (True, False):
        nets = jax.eval_shape(
            lambda share=share: build(spec, PolicyConfig(share_features=share), jax.random.key(0))
        )
        leaves = jax.tree.leaves(nets)
        assert all(leaf.dtype == jnp.float32 for leaf in leaves)
        assert len({id(leaf) for leaf in leaves}) == len(leaves)
        assert (nets.critic.trunk is None) == share
