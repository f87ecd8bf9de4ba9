"""Every core remembers its own episode and nothing else, and computes what its papers define."""

from __future__ import annotations

from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from conftest import quick
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend.core import jaxprs_in_params
from jax.flatten_util import ravel_pytree

from sparring.errors import ConfigError
from sparring.nets.cores import NAMES, Core, core, follow, s5
from sparring.nets.cores.transformer import Transformer
from sparring.ops.keys import normal, several

INPUTS, SIZE, LAYERS, HEADS, WINDOW, ROWS = 3, 4, 2, 2, 6, 3
LENGTHS = (1, 5, 8, 13)  # for a window of 6: less than a chunk, and three chunks of which the last is padded
CLOSE = {"rtol": 1e-5, "atol": 1e-5}

by_core = pytest.mark.parametrize("name", NAMES)


@cache
def made(name: str, seed: int = 0) -> Any:
    """A core with random numbers in every parameter that starts as a constant."""
    build = quick(lambda key: core(name, key, INPUTS, SIZE, LAYERS, HEADS, WINDOW))
    random = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: leaf + jnp.asarray(random.normal(0, 0.2, leaf.shape), jnp.float32),
        build(jax.random.key(seed)),
    )


step = quick(lambda net, state, x, first: net.step(state, x, first))
unroll = quick(lambda net, state, x, first: net.unroll(state, x, first))


def inputs(seed: int, steps: int, chance: float = 0.2) -> tuple[Any, Any]:
    """A random sequence and where its episodes start."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(steps, ROWS, INPUTS)).astype(np.float32)
    return jnp.asarray(x), jnp.asarray(random.random((steps, ROWS)) < chance)


@cache
def used(name: str) -> Any:
    """A state in the middle of an episode."""
    net = made(name)
    return unroll(net, net.start(ROWS), *inputs(1, 5))[1]


def close(one: Any, other: Any) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, **CLOSE)


# -- what every core promises ----------------------------------------------------------------------------


@by_core
@given(seed=st.integers(0, 2**16), steps=st.sampled_from(LENGTHS), fresh=st.booleans())
@settings(max_examples=12)
def test_steps_equal_an_unroll(name, seed, steps, fresh):
    net, (x, first) = made(name), inputs(seed, steps)
    state = begin = net.start(ROWS) if fresh else used(name)
    outputs = []
    for t in range(steps):
        y, state = step(net, state, x[t], first[t])
        outputs.append(y)
    close((jnp.stack(outputs), state), unroll(net, begin, x, first))


@by_core
@given(seed=st.integers(0, 2**16))
@settings(max_examples=6)
def test_two_halves_equal_the_whole(name, seed):
    net, (x, first) = made(name), inputs(seed, 13)
    one, middle = unroll(net, used(name), x[:5], first[:5])
    other, last = unroll(net, middle, x[5:], first[5:])
    close((jnp.concatenate([one, other]), last), unroll(net, used(name), x, first))


@by_core
@given(seed=st.integers(0, 2**16))
@settings(max_examples=6)
def test_a_reset_is_a_fresh_start(name, seed):
    net, (x, first) = made(name), inputs(seed, 8)
    again = first.at[0].set(True)
    close(unroll(net, used(name), x, again), unroll(net, net.start(ROWS), x, first.at[0].set(False)))
    close(step(net, used(name), x[0], again[0]), step(net, net.start(ROWS), x[0], jnp.zeros(ROWS, bool)))


@by_core
def test_an_unroll_that_starts_with_resets_forgets_its_state(name):
    net, (x, first) = made(name), inputs(0, 8)
    first = first.at[0].set(True)
    state = used(name)
    wild = jax.tree.map(lambda leaf: leaf + 1e3 if leaf.dtype == jnp.float32 else ~leaf, state)
    close(unroll(net, state, x, first), unroll(net, wild, x, first))


@cache
def reach(name: str) -> Any:
    """A jitted gradient of one step's output in one row with respect to all inputs and all parameters."""

    def chosen(net: Any, x: Any, first: Any, t: Any, row: Any) -> Any:
        y, _ = net.unroll(net.start(ROWS), x, first)
        return jnp.sum(jnp.sin(y[t, row]))

    return quick(jax.grad(chosen, argnums=(0, 1)))


@by_core
def test_gradients_flow_within_an_episode_and_never_across_a_reset(name):
    x, never = inputs(2, 13, chance=0.0)
    of_net, of_x = reach(name)(made(name), x, never, 11, 1)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((of_net, of_x)))
    assert all(np.abs(of_x[t, 1]).max() > 0 for t in range(3, 12))  # back over eight steps
    assert not of_x[12].any()
    assert not of_x[:, [0, 2]].any()
    first = never.at[7, 1].set(True)
    of_net, of_x = reach(name)(made(name), x, first, 11, 1)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((of_net, of_x)))
    assert not of_x[:7].any()
    assert all(np.abs(of_x[t, 1]).max() > 0 for t in range(7, 12))


@by_core
def test_every_parameter_has_a_gradient(name):
    x, first = inputs(3, 13, chance=0.1)
    of_net, _ = reach(name)(made(name), x, first, 12, 0)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(of_net))


@by_core
def test_a_gradient_through_an_unroll_is_the_one_through_steps(name):
    x, first = inputs(4, 8)

    def loss(net: Any, state: Any, x: Any, parallel: bool) -> Any:
        if parallel:
            y, last = net.unroll(state, x, first)
        else:
            last, y = jax.lax.scan(lambda state, now: net.step(state, *now)[::-1], state, (x, first))
        floats = [leaf for leaf in jax.tree.leaves(last) if leaf.dtype == jnp.float32]
        return jnp.sum(jnp.sin(y)) + sum(jnp.sum(jnp.cos(leaf)) for leaf in floats)

    def gradient(net: Any, state: Any, x: Any, parallel: bool) -> Any:
        moving, fixed = eqx.partition(state, eqx.is_inexact_array)
        return jax.grad(lambda n, s, x: loss(n, eqx.combine(s, fixed), x, parallel), argnums=(0, 1, 2))(
            net, moving, x
        )

    run = quick(gradient, static_argnums=3)
    one, other = (run(made(name), used(name), x, parallel) for parallel in (True, False))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@by_core
def test_rows_do_not_leak(name):
    net, (x, first) = made(name), inputs(5, 8)
    state = used(name)
    changed = jax.tree.map(lambda leaf: leaf.at[0].set(leaf[1]), state)
    y, last = unroll(net, state, x, first)
    other, other_last = unroll(net, changed, x.at[:, 0].add(1.0), first.at[:, 0].set(~first[:, 0]))
    assert not np.allclose(y[:, 0], other[:, 0], atol=1e-3)
    close(y[:, 1:], other[:, 1:])
    close(*(jax.tree.map(lambda leaf: leaf[1:], each) for each in (last, other_last)))


@by_core
def test_follow_is_one_more_step_of_the_same_episode(name):
    net, (x, first), (x_next, _) = made(name), inputs(6, 8), inputs(7, 8)
    got = quick(lambda net, state: follow(net, state, x, first, x_next))(net, used(name))
    state = used(name)
    for t in range(8):
        _, state = step(net, state, x[t], first[t])
        close(got[t], step(net, state, x_next[t], jnp.zeros(ROWS, bool))[0])


@by_core
def test_states_keep_their_shapes_and_dtypes(name):
    net, (x, first) = made(name), inputs(8, 8)
    shapes = jax.eval_shape(lambda: net.start(ROWS))
    assert all(leaf.shape[0] == ROWS for leaf in jax.tree.leaves(shapes))
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} <= {jnp.dtype("float32"), jnp.dtype("bool")}
    assert not any(leaf.any() for leaf in jax.tree.leaves(net.start(ROWS)))
    y, one = jax.eval_shape(net.step, shapes, x[0], first[0])
    outputs, many = jax.eval_shape(net.unroll, shapes, x, first)
    assert one == many == shapes
    assert y.shape == (ROWS, net.outputs)
    assert outputs.shape == (8, ROWS, net.outputs)


@by_core
def test_parameters_are_float32_and_survive_a_flat_vector(name):
    net = made(name)
    assert isinstance(net, Core)
    assert net.outputs == SIZE
    flat, unflatten = ravel_pytree(net)
    assert flat.dtype == jnp.float32
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(net))
    again = unflatten(flat)
    assert jax.tree.structure(again) == jax.tree.structure(net)
    assert all((a == b).all() for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(net), strict=True))


@by_core
def test_cores_are_mapped_over(name):
    """An ensemble is one vmapped core."""
    nets, (x, first) = [made(name, 0), made(name, 1)], inputs(9, 5)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *nets)

    def outputs(net: Any) -> Any:
        return net.unroll(net.start(ROWS), x, first)[0]

    got = quick(jax.vmap(outputs))(stacked)
    for i, net in enumerate(nets):
        close(got[i], unroll(net, net.start(ROWS), x, first)[0])


@by_core
def test_a_key_gives_its_own_core(name):
    build = quick(lambda key: core(name, key, INPUTS, SIZE, LAYERS, HEADS, WINDOW))
    one, again, other = build(jax.random.key(0)), build(jax.random.key(0)), build(jax.random.key(1))
    same = [bool((a == b).all()) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(again), strict=True)]
    assert all(same)
    assert not all((a == b).all() for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))
    x, first = inputs(10, 13)
    assert np.isfinite(unroll(one, one.start(ROWS), x, first)[0]).all()


@pytest.mark.parametrize(
    ("name", "size", "layers", "heads", "window", "message"),
    [
        ("gruu", 4, 1, 1, 2, "'gruu'.*'gru'"),
        ("mamba", 4, 1, 1, 2, "'mamba'.*Known: gru, lstm, transformer, s5"),
        ("gru", 4, 0, 1, 2, "layers of at least 1"),
        ("s5", 5, 1, 1, 2, "size 5 even"),
        ("transformer", 4, 1, 3, 2, "multiple of its heads 3"),
        ("transformer", 4, 1, 2, 1, "window 1 must be 2"),
    ],
)
def test_an_impossible_core_is_refused_with_the_reason(name, size, layers, heads, window, message):
    with pytest.raises(ConfigError, match=message):
        core(name, jax.random.key(0), INPUTS, size, layers, heads, window)


# -- the papers' definitions, in plain numpy ----------------------------------------------------------------


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def doubles(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


def one_row(net: Any, x: Any, first: Any, cell: Any) -> np.ndarray:
    """All outputs of row 0 by a plain loop over layers and time."""
    sequence = [np.asarray(x[t, 0], np.float64) for t in range(len(x))]
    for layer in net.layers:
        h = c = np.zeros(SIZE)
        outputs = []
        for t, u in enumerate(sequence):
            if first[t, 0]:
                h = c = np.zeros(SIZE)
            h, c = cell(layer, u, h, c)
            outputs.append(h)
        sequence = outputs
    return np.stack(sequence)


def gru_cell(layer: Any, u: np.ndarray, h: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    def gate(i: int) -> tuple[np.ndarray, np.ndarray]:
        part = slice(i * SIZE, (i + 1) * SIZE)
        return u @ layer.inputs.weight[:, part] + layer.inputs.bias[part], h @ layer.recurrent[:, part]

    r, z = sigmoid(sum(gate(0))), sigmoid(sum(gate(1)))
    from_input, from_state = gate(2)
    n = np.tanh(from_input + r * (from_state + layer.bias))
    return (1 - z) * n + z * h, c


def lstm_cell(layer: Any, u: np.ndarray, h: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    def gate(i: int) -> np.ndarray:
        part = slice(i * SIZE, (i + 1) * SIZE)
        weight, bias = layer.inputs.weight[:, part], layer.inputs.bias[part]
        return u @ weight + bias + h @ layer.recurrent[:, part]

    c = sigmoid(gate(1)) * c + sigmoid(gate(0)) * np.tanh(gate(2))
    return sigmoid(gate(3)) * np.tanh(c), c


@pytest.mark.parametrize(("name", "cell"), [("gru", gru_cell), ("lstm", lstm_cell)])
def test_gated_recurrences_are_their_definitions(name, cell):
    net, (x, first) = made(name), inputs(11, 13)
    y, _ = unroll(net, net.start(ROWS), x, first)
    np.testing.assert_allclose(y[:, 0], one_row(doubles(net), x, first, cell), **CLOSE)


@pytest.mark.parametrize(("name", "gates"), [("gru", 3), ("lstm", 4)])
def test_gated_recurrences_start_orthogonal_and_remembering(name, gates):
    net = quick(lambda key: core(name, key, INPUTS, SIZE, LAYERS, HEADS, WINDOW))(jax.random.key(0))
    for layer in net.layers:
        for square in np.split(np.asarray(layer.recurrent), gates, axis=1):
            np.testing.assert_allclose(square.T @ square, np.eye(SIZE), atol=1e-5)
        forget = np.zeros((gates, SIZE))
        if name == "lstm":
            forget[1] = 1.0
        np.testing.assert_array_equal(layer.inputs.bias, forget.reshape(-1))


def normed(norm: Any, x: np.ndarray) -> np.ndarray:
    return (x - x.mean()) / np.sqrt(x.var() + 1e-6) * norm.scale + norm.shift


def gated(gate: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    w_r, w_z, w_h = np.split(gate.new, 3, axis=1)
    u_r, u_z = np.split(gate.old, 2, axis=1)
    r, z = sigmoid(y @ w_r + x @ u_r), sigmoid(y @ w_z + x @ u_z - gate.keep)
    return (1 - z) * x + z * np.tanh(y @ w_h + (r * x) @ gate.candidate)


def dense(layer: Any, x: np.ndarray) -> np.ndarray:
    return x @ layer.weight + layer.bias


def attention_row(net: Any, x: Any, first: Any) -> np.ndarray:
    """All outputs of row 0 of a transformer, one query, head and key at a time."""
    width = SIZE // HEADS
    h = [dense(net.embed, np.asarray(u, np.float64)) for u in x[:, 0]]
    for layer in net.layers:
        projected = [dense(layer.queries_keys_values, normed(layer.attention_norm, v)) for v in h]
        after = []
        for t in range(len(h)):
            begin = max([s for s in range(t + 1) if first[s, 0]], default=0)
            seen = []
            for a in range(HEADS):
                head = slice(a * width, (a + 1) * width)
                near = range(max(begin, t - WINDOW + 1), t + 1)
                query = projected[t][:SIZE][head]
                scores = [
                    query @ projected[j][SIZE : 2 * SIZE][head] / np.sqrt(width) + layer.bias[a, t - j]
                    for j in near
                ]
                weights = np.exp(scores) / np.exp(scores).sum()
                seen.append(
                    sum(w * projected[j][2 * SIZE :][head] for w, j in zip(weights, near, strict=True))
                )
            v = gated(layer.attention_gate, h[t], np.maximum(dense(layer.joined, np.concatenate(seen)), 0))
            inner = dense(layer.shown, np.maximum(dense(layer.hidden, normed(layer.hidden_norm, v)), 0))
            after.append(gated(layer.hidden_gate, v, np.maximum(inner, 0)))
        h = after
    return np.stack(h)


@pytest.mark.parametrize("chance", [0.0, 0.2])
def test_banded_attention_is_plain_attention(chance):
    net, (x, first) = made("transformer"), inputs(12, 13, chance)
    y, _ = unroll(net, net.start(ROWS), x, first)
    np.testing.assert_allclose(y[:, 0], attention_row(doubles(net), x, first), **CLOSE)


def test_a_transformer_sees_its_window_once_per_layer_and_no_further():
    x, never = inputs(13, 13, chance=0.0)
    _, of_x = reach("transformer")(made("transformer"), x, never, 12, 0)
    oldest = 12 - LAYERS * (WINDOW - 1)
    assert oldest == 2
    assert not of_x[:oldest].any()
    assert np.abs(of_x[oldest, 0]).max() > 0


def test_a_transformer_starts_near_the_identity():
    net = quick(lambda key: Transformer(key, INPUTS, 32, 1, 2, WINDOW))(jax.random.key(0))
    x, first = inputs(14, 5)
    embedded = net.embed(x)
    y, _ = unroll(net, net.start(ROWS), x, first)
    assert jnp.mean(jnp.square(y - embedded)) < 0.3 * jnp.mean(jnp.square(embedded))


def largest(jaxpr: Any) -> int:
    """Numbers in the largest array that a program holds."""
    sizes = [
        int(np.prod(v.aval.shape)) for eqn in jaxpr.eqns for v in eqn.outvars if hasattr(v.aval, "shape")
    ]
    inner = [largest(sub) for eqn in jaxpr.eqns for sub in jaxprs_in_params(eqn.params)]
    return max([*sizes, *inner], default=0)


def test_a_transformers_memory_grows_with_the_length_not_its_square():
    net = jax.eval_shape(lambda: Transformer(jax.random.key(0), INPUTS, 2, 1, 1, 16))

    def size(steps: int) -> int:
        x, first = jnp.zeros((steps, ROWS, INPUTS)), jnp.zeros((steps, ROWS), bool)
        return largest(jax.make_jaxpr(lambda net: net.unroll(net.start(ROWS), x, first)[0])(net).jaxpr)

    assert size(256) == 2 * size(128)


def test_eigenvalues_are_those_of_hippos_normal_part():
    size = 16
    a = np.zeros((size, size))
    for n in range(size):
        for k in range(size):
            if n > k:
                a[n, k] = -np.sqrt(2 * n + 1) * np.sqrt(2 * k + 1)
            elif n == k:
                a[n, k] = -(n + 1)
    p = np.sqrt(np.arange(size) + 0.5)
    normal_part = a + np.outer(p, p)
    eigenvalues, vectors = s5.hippo(size)
    assert eigenvalues.shape == (size // 2,)
    np.testing.assert_allclose(eigenvalues.real, -0.5, atol=1e-12)
    np.testing.assert_allclose(normal_part @ vectors, vectors * eigenvalues, atol=1e-9)
    np.testing.assert_allclose(vectors.conj().T @ vectors, np.eye(size // 2), atol=1e-9)
    both = np.concatenate([eigenvalues, eigenvalues.conj()])
    np.testing.assert_allclose(np.sort(both.imag), np.sort(np.linalg.eigvals(normal_part).imag), atol=1e-9)
    layer = quick(lambda key: s5.S5Layer(key, size))(jax.random.key(0))
    np.testing.assert_allclose(layer.lambda_re, eigenvalues.real, rtol=1e-6)
    np.testing.assert_allclose(layer.lambda_im, eigenvalues.imag, rtol=1e-6)
    assert (layer.log_step >= np.log(s5.STEP_RANGE[0]) - 1e-5).all()
    assert (layer.log_step <= np.log(s5.STEP_RANGE[1]) + 1e-5).all()


def test_b_and_c_are_drawn_lecun_normal_and_turned_into_the_eigenbasis():
    size, key = 16, jax.random.key(0)
    layer, (_, vectors) = quick(lambda key: s5.S5Layer(key, size))(key), s5.hippo(size)
    b_key, c_key = several(key, 5)[:2]
    b = np.asarray(normal(b_key, (size, size))) / np.sqrt(size)
    c = np.asarray(normal(c_key, (2, size, size))) / np.sqrt(size)
    turned_b, turned_c = vectors.conj().T @ b, (c[0] + 1j * c[1]) @ vectors
    np.testing.assert_allclose(layer.b_re, turned_b.real, **CLOSE)
    np.testing.assert_allclose(layer.b_im, turned_b.imag, **CLOSE)
    np.testing.assert_allclose(layer.c_re, turned_c.real, **CLOSE)
    np.testing.assert_allclose(layer.c_im, turned_c.imag, **CLOSE)


@given(seed=st.integers(0, 2**16), small=st.booleans())
@settings(max_examples=10)
def test_zero_order_hold_is_the_matrix_exponential(seed, small):
    layer = made("s5", 0).layers[0]
    random, states = np.random.default_rng(seed), SIZE // 2
    scale = 1e-3 if small else 3.0
    draw = {
        "lambda_re": -scale * (0.2 + random.random(states)),
        "lambda_im": scale * random.normal(size=states),
        "log_step": np.log(random.uniform(*s5.STEP_RANGE, states)),
    }
    draw = {name: value.astype(np.float32) for name, value in draw.items()}
    layer = eqx.tree_at(
        lambda one: tuple(getattr(one, name) for name in draw), layer, tuple(map(jnp.asarray, draw.values()))
    )
    decay, b = layer.discrete()
    exact = doubles(layer)
    for p in range(states):
        block = np.zeros((1 + SIZE, 1 + SIZE), complex)
        block[0, 0] = exact.lambda_re[p] + 1j * exact.lambda_im[p]
        block[0, 1:] = exact.b_re[p] + 1j * exact.b_im[p]
        held = scipy.linalg.expm(block * np.exp(exact.log_step[p]))
        np.testing.assert_allclose(decay[p], held[0, 0], rtol=1e-5)
        np.testing.assert_allclose(b[p], held[0, 1:], rtol=1e-5, atol=1e-8)


def test_an_unstable_eigenvalue_is_held_back():
    layer = made("s5").layers[0]
    layer = eqx.tree_at(lambda one: one.lambda_re, layer, jnp.array([1.0, -1.0]))
    size = np.abs(np.asarray(layer.discrete()[0]))
    step = np.exp(np.asarray(layer.log_step))
    np.testing.assert_allclose(size, np.exp(np.array([s5.SLOWEST, -1.0]) * step), rtol=1e-6)
    assert (size < 1).all()


def looped(net: Any, x: Any, first: Any) -> np.ndarray:
    """All outputs of row 0 of an S5 core in complex128."""
    sequence = [dense(net.encoder, np.asarray(u, np.float64)) for u in x[:, 0]]
    for layer in net.layers:
        eigenvalue = np.minimum(layer.lambda_re, s5.SLOWEST) + 1j * layer.lambda_im
        decay = np.exp(eigenvalue * np.exp(layer.log_step))
        b = ((decay - 1) / eigenvalue)[:, None] * (layer.b_re + 1j * layer.b_im)
        c = layer.c_re + 1j * layer.c_im
        state, outputs = np.zeros(SIZE // 2, complex), []
        for t, u in enumerate(sequence):
            state = decay * (0 if first[t, 0] else state) + b @ u
            y = 2 * (c @ state).real + layer.d * u
            g = 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
            value, gate = np.split(dense(layer.mix, g), 2)
            outputs.append(u + value * sigmoid(gate))
        sequence = outputs
    return np.stack(sequence)


def test_s5_is_its_definition():
    net, (x, first) = made("s5"), inputs(15, 13)
    y, _ = unroll(net, net.start(ROWS), x, first)
    np.testing.assert_allclose(y[:, 0], looped(doubles(net), x, first), **CLOSE)


def linear(seed: int, steps: int) -> tuple[Any, ...]:
    """Decay, first state, kept steps and drive of a random complex recurrence."""
    random, states = np.random.default_rng(seed), 5

    def numbers(*shape: int) -> np.ndarray:
        return (random.normal(size=shape) + 1j * random.normal(size=shape)).astype(np.complex64)

    decay = (random.random(states) * np.exp(1j * random.normal(size=states))).astype(np.complex64)
    keep = random.random((steps, ROWS)) > 0.2
    return decay, numbers(ROWS, states), keep, numbers(steps, ROWS, states)


@pytest.mark.parametrize("form", [s5.parallel, s5.sequential])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 7, 16])
def test_both_forms_are_the_plain_loop(form, reverse, steps):
    for seed in range(3):
        decay, x, keep, driven = linear(seed, steps)
        state, states = x.astype(complex), np.zeros(driven.shape, complex)
        for t in reversed(range(steps)) if reverse else range(steps):
            state = decay.astype(complex) * np.where(keep[t][:, None], state, 0) + driven[t]
            states[t] = state
        got = quick(form, static_argnums=4)(decay, x, keep, driven, reverse)
        np.testing.assert_allclose(got, states, **CLOSE)


@pytest.mark.parametrize("form", [s5.parallel, s5.sequential])
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_the_recurrences_own_gradient_is_the_automatic_one(form, platform, monkeypatch):
    decay, x, keep, driven = map(jnp.asarray, linear(3, 9))
    weight = np.random.default_rng(0).normal(size=(2, *driven.shape)).astype(np.float32)
    monkeypatch.setattr(s5.jax, "default_backend", lambda: platform)

    def gradient(run: Any) -> Any:
        def loss(decay: Any, x: Any, driven: Any) -> Any:
            states = run(decay, x, keep, driven)
            return jnp.sum(jnp.sin(states.real) * weight[0] + jnp.cos(states.imag) * weight[1])

        return quick(jax.grad(loss, argnums=(0, 1, 2)))(decay, x, driven)

    one, other = gradient(s5.recurrence), gradient(form)
    close(one, other)
