"""S5: stacked diagonal state spaces (Smith et al. 2023), with resets inside a sequence (Lu et al. 2023)."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Complex, Float

from sparring.errors import ConfigError
from sparring.nets.layers import Dense, matmul
from sparring.ops import recurrence as linear
from sparring.ops.keys import normal, several, uniform_pair
from sparring.ops.seam import block

SLOWEST = -1e-4
"""Bound of Re(Λ): whatever an optimiser does, a state decays."""
STEP_RANGE = (1e-3, 1e-1)
"""Initial range of the step sizes Δ."""


@lru_cache
def hippo(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and eigenvectors of HiPPO-LegS's normal part, one of each conjugate pair: [P], [2P, P].

    A + p pᵀ = -I/2 + K with A of HiPPO-LegS, p_n = √(n + 1/2) and a skew-symmetric K (Gu et al. 2022): the
    real parts are -1/2 and the imaginary ones the eigenvalues of the Hermitian -iK.
    """
    n = np.arange(size)
    root = np.sqrt(2.0 * n + 1.0)
    legs = -np.tril(np.outer(root, root), -1) - np.diag(n + 1.0)
    normal_part = legs + 0.5 * np.outer(root, root)
    decay = np.diag(normal_part).mean()
    turns, vectors = np.linalg.eigh(-1j * (normal_part - decay * np.eye(size)))
    return decay + 1j * turns[: size // 2], vectors[:, : size // 2]


def parallel(
    decay: Complex[Array, " P"],
    x: Complex[Array, "B P"],
    keep: Bool[Array, "T B"],
    driven: Complex[Array, "T B P"],
    reverse: bool = False,
) -> Complex[Array, "T B P"]:
    """All states of x ← decay · keep_t · x + driven_t at once."""
    each = jnp.where(keep[..., None], decay, 0.0)
    begin = -1 if reverse else 0
    driven = driven.at[begin].add(each[begin] * x)
    return linear.parallel(each, driven, reverse)


def sequential(
    decay: Complex[Array, " P"],
    x: Complex[Array, "B P"],
    keep: Bool[Array, "T B"],
    driven: Complex[Array, "T B P"],
    reverse: bool = False,
) -> Complex[Array, "T B P"]:
    """The same states one after the other."""

    def one(x: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        keep_t, driven_t = now
        x = decay * jnp.where(keep_t[:, None], x, 0.0) + driven_t
        return x, x

    states: Array
    _, states = jax.lax.scan(one, x, (keep, driven), reverse=reverse)
    return states


@jax.custom_vjp
def recurrence(
    decay: Complex[Array, " P"],
    x: Complex[Array, "B P"],
    keep: Bool[Array, "T B"],
    driven: Complex[Array, "T B P"],
) -> Complex[Array, "T B P"]:
    """All states of x ← decay · keep_t · x + driven_t.

    The gradient is the same recurrence backwards, which takes two thirds of the time that differentiating
    through a scan does. On a CPU the parallel form is three times slower and takes seven times longer to
    compile, so there the states follow one another.
    """
    return _states(decay, x, keep, driven)


def _states(decay: Array, x: Array, keep: Array, driven: Array, reverse: bool = False) -> Array:
    run = sequential if jax.default_backend() == "cpu" else parallel
    return run(decay, x, keep, driven, reverse)


def _recurrence_forward(decay: Array, x: Array, keep: Array, driven: Array) -> tuple[Array, Any]:
    states = _states(decay, x, keep, driven)
    return states, (decay, x, keep, states)


def _recurrence_backward(kept: Any, gradient: Array) -> tuple[Array, Array, None, Array]:
    decay, x, keep, states = kept
    later = jnp.concatenate([keep[1:], jnp.zeros_like(keep[:1])])
    through = _states(decay, jnp.zeros_like(x), later, gradient, reverse=True)
    before = jnp.concatenate([x[None], states[:-1]])
    to_decay = jnp.sum(jnp.where(keep[..., None], through * before, 0.0), axis=(0, 1))
    to_x = jnp.where(keep[0][:, None], decay * through[0], 0.0)
    return to_decay, to_x, None, through


recurrence.defvjp(_recurrence_forward, _recurrence_backward)


class S5Layer(eqx.Module):
    """x' = Λ x + B u, y = 2 Re(C x) + D u sampled with a step Δ; then u + W g · σ(V g) with g = gelu(y).

    Of every conjugate pair of states one is kept. Complex parameters are stored in two real parts.
    """

    lambda_re: Float[Array, " P"]
    lambda_im: Float[Array, " P"]
    b_re: Float[Array, "P H"]
    b_im: Float[Array, "P H"]
    c_re: Float[Array, "H P"]
    c_im: Float[Array, "H P"]
    d: Float[Array, " H"]
    log_step: Float[Array, " P"]
    mix: Dense

    def __init__(self, key: Any, size: int):
        """B̃ = Vᴴ B and C̃ = C V of LeCun-normal B and C, D standard normal, log Δ uniform."""
        b_key, c_key, d_key, step_key, mix_key = several(key, 5)
        eigenvalues, vectors = hippo(size)
        scale = 1.0 / math.sqrt(size)
        v_re, v_im = (jnp.asarray(part, jnp.float32) for part in (vectors.real, vectors.imag))
        b = scale * normal(b_key, (size, size))
        c_re, c_im = scale * normal(c_key, (2, size, size))
        low, high = (math.log(bound) for bound in STEP_RANGE)
        self.lambda_re = jnp.asarray(eigenvalues.real, jnp.float32)
        self.lambda_im = jnp.asarray(eigenvalues.imag, jnp.float32)
        self.b_re, self.b_im = v_re.T @ b, -v_im.T @ b
        self.c_re, self.c_im = c_re @ v_re - c_im @ v_im, c_re @ v_im + c_im @ v_re
        self.d = normal(d_key, (size,))
        self.log_step = low + (high - low) * uniform_pair(step_key, size // 2)[:, 0]
        self.mix = Dense(mix_key, size, 2 * size, None)

    def discrete(self) -> tuple[Complex[Array, " P"], Complex[Array, "P H"]]:
        """Λ̄ = exp(ΛΔ) and B̄ = Λ⁻¹ (Λ̄ - 1) B̃: the input is held during a step (zero-order hold).

        A block of its own: inlined, complex powers and quotients round differently in every program.
        """
        return block(_held)(self.lambda_re, self.lambda_im, self.log_step, self.b_re, self.b_im)

    def __call__(
        self, state: Float[Array, "B S"], u: Float[Array, "T B H"], first: Bool[Array, "T B"]
    ) -> tuple[Float[Array, "T B H"], Float[Array, "B S"]]:
        decay, b = self.discrete()
        driven = _complex(matmul(u, jnp.concatenate([b.real, b.imag]).T))
        states = _real(recurrence(decay, _complex(state), ~first, driven))
        y = matmul(states, 2.0 * jnp.concatenate([self.c_re, -self.c_im], axis=1).T) + self.d * u
        value, gate = jnp.split(self.mix(jax.nn.gelu(y)), 2, axis=-1)
        return u + value * jax.nn.sigmoid(gate), states[-1]


def _held(
    lambda_re: Float[Array, " P"],
    lambda_im: Float[Array, " P"],
    log_step: Float[Array, " P"],
    b_re: Float[Array, "P H"],
    b_im: Float[Array, "P H"],
) -> tuple[Complex[Array, " P"], Complex[Array, "P H"]]:
    eigenvalue = jax.lax.complex(jnp.minimum(lambda_re, SLOWEST), lambda_im)
    exponent = eigenvalue * jnp.exp(log_step)
    b = jax.lax.complex(b_re, b_im)
    return jnp.exp(exponent), (jnp.expm1(exponent) / eigenvalue)[:, None] * b


def _complex(x: Float[Array, "*N S"]) -> Complex[Array, "*N P"]:
    """Real parts and then imaginary parts as complex numbers."""
    re, im = jnp.split(x, 2, axis=-1)
    return jax.lax.complex(re, im)


def _real(x: Complex[Array, "*N P"]) -> Float[Array, "*N S"]:
    """The real parts and then the imaginary parts."""
    return jnp.concatenate([x.real, x.imag], axis=-1)


class S5(eqx.Module):
    """An encoder and stacked S5 layers; the state is, per layer and row, real and imaginary parts in turn."""

    encoder: Dense
    layers: tuple[S5Layer, ...]
    outputs: int = eqx.field(static=True)

    def __init__(self, key: Any, inputs: int, size: int, layers: int):
        if size % 2:
            raise ConfigError(f"An S5 core keeps its states in conjugate pairs; make its size {size} even.")
        keys = several(key, layers + 1)
        self.encoder = Dense(keys[0], inputs, size, None)
        self.layers = tuple(S5Layer(keys[i + 1], size) for i in range(layers))
        self.outputs = size

    def start(self, rows: int) -> tuple[Float[Array, "B S"], ...]:
        return tuple(jnp.zeros((rows, self.outputs)) for _ in self.layers)

    def step(
        self, state: tuple[Float[Array, "B S"], ...], x: Float[Array, "B F"], first: Bool[Array, " B"]
    ) -> tuple[Float[Array, "B H"], tuple[Float[Array, "B S"], ...]]:
        outputs, state = self.unroll(state, x[None], first[None])
        return outputs[0], state

    def unroll(
        self, state: tuple[Float[Array, "B S"], ...], x: Float[Array, "T B F"], first: Bool[Array, "T B"]
    ) -> tuple[Float[Array, "T B H"], tuple[Float[Array, "B S"], ...]]:
        u, after = self.encoder(x), []
        for layer, before in zip(self.layers, state, strict=True):
            u, last = layer(before, u, first)
            after.append(last)
        return u, tuple(after)
