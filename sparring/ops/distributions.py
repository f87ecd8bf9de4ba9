"""Action distributions as small records of arrays, each with sample, mode, log_prob and entropy.

`legal` masks are applied when a distribution is made: an illegal option gets a logit so low that its
probability is exactly zero in float32, and stays finite so that nothing turns into NaN.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array

from sparring.ops.keys import gumbel, normal, uniform

ILLEGAL = -1e9
LOG_2PI = math.log(2.0 * math.pi)


class Distribution(Protocol):
    """What every head hands out."""

    def sample(self, key: Any) -> Array: ...
    def mode(self) -> Array: ...
    def log_prob(self, action: Array) -> Array: ...
    def entropy(self) -> Array: ...
    def tempered(self, temperature: Array) -> Self: ...


def drawn(key: Any, logits: Array) -> Array:
    """A draw from the softmax over the last axis: the largest of logits plus Gumbel noise."""
    return jnp.argmax(logits + gumbel(key, logits.shape), axis=-1).astype(jnp.int32)


class Categorical(NamedTuple):
    """One choice out of A; `logits` is [..., A]."""

    logits: Array

    def sample(self, key: Any) -> Array:
        return drawn(key, self.logits)

    def mode(self) -> Array:
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)

    def log_prob(self, action: Array) -> Array:
        # A one-hot product: its gradient is a product too, where a gather's would be a slow scatter.
        chosen = jax.nn.one_hot(action, self.logits.shape[-1], dtype=self.logits.dtype)
        return jnp.sum(jax.nn.log_softmax(self.logits) * chosen, axis=-1)

    def entropy(self) -> Array:
        log_p = jax.nn.log_softmax(self.logits)
        return -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)

    def tempered(self, temperature: Array) -> Categorical:
        return Categorical(self.logits / temperature[..., None])


class MultiCategorical(NamedTuple):
    """One choice per branch; `logits` is [..., branches, widest], padded with ILLEGAL."""

    logits: Array

    def sample(self, key: Any) -> Array:
        return drawn(key, self.logits)

    def mode(self) -> Array:
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)

    def log_prob(self, action: Array) -> Array:
        return jnp.sum(Categorical(self.logits).log_prob(action), axis=-1)

    def entropy(self) -> Array:
        return jnp.sum(Categorical(self.logits).entropy(), axis=-1)

    def tempered(self, temperature: Array) -> MultiCategorical:
        return MultiCategorical(self.logits / temperature[..., None, None])


class Bernoulli(NamedTuple):
    """Independent bits; `logits` is [..., n]."""

    logits: Array

    def sample(self, key: Any) -> Array:
        return (uniform(key, self.logits.shape) < jax.nn.sigmoid(self.logits)).astype(jnp.int32)

    def mode(self) -> Array:
        return (self.logits > 0).astype(jnp.int32)

    def log_prob(self, action: Array) -> Array:
        signed = jnp.where(action == 1, self.logits, -self.logits)
        return jnp.sum(jax.nn.log_sigmoid(signed), axis=-1)

    def entropy(self) -> Array:
        p = jax.nn.sigmoid(self.logits)
        terms = p * jax.nn.log_sigmoid(self.logits) + (1 - p) * jax.nn.log_sigmoid(-self.logits)
        return -jnp.sum(terms, axis=-1)

    def tempered(self, temperature: Array) -> Bernoulli:
        return Bernoulli(self.logits / temperature[..., None])


class Gaussian(NamedTuple):
    """Independent normals; `mean` and `log_std` are [..., A]; dimensions that are not legal stay at 0."""

    mean: Array
    log_std: Array
    legal: Array | None = None

    def _kept(self, x: Array) -> Array:
        return x if self.legal is None else jnp.where(self.legal, x, 0.0)

    def sample(self, key: Any) -> Array:
        noise = normal(key, self.mean.shape)
        return self._kept(self.mean + jnp.exp(self.log_std) * noise)

    def mode(self) -> Array:
        return self._kept(self.mean)

    def log_prob(self, action: Array) -> Array:
        z = (action - self.mean) * jnp.exp(-self.log_std)
        return jnp.sum(self._kept(-0.5 * (z * z + LOG_2PI) - self.log_std), axis=-1)

    def entropy(self) -> Array:
        each = 0.5 * (1.0 + LOG_2PI) + jnp.broadcast_to(self.log_std, self.mean.shape)
        return jnp.sum(self._kept(each), axis=-1)

    def tempered(self, temperature: Array) -> Gaussian:
        return self._replace(log_std=self.log_std + jnp.log(temperature)[..., None])


class TanhGaussian(NamedTuple):
    """A Gaussian squashed to (-1, 1); actions are the *unsquashed* samples, so log_prob never inverts tanh.

    log p(tanh u) = log p(u) - Σ log(1 - tanh² u), in the stable form 2 (log 2 - u - softplus(-2u)).
    """

    base: Gaussian

    def sample(self, key: Any) -> Array:
        return self.base.sample(key)

    def mode(self) -> Array:
        return self.base.mode()

    def log_prob(self, action: Array) -> Array:
        slope = 2.0 * (math.log(2.0) - action - jax.nn.softplus(-2.0 * action))
        return self.base.log_prob(action) - jnp.sum(self.base._kept(slope), axis=-1)

    def entropy(self) -> Array:
        """No closed form: a one-sample estimate at the mode, E ≈ H(base) + Σ log(1 - tanh² mean)."""
        u = self.base.mean
        slope = 2.0 * (math.log(2.0) - u - jax.nn.softplus(-2.0 * u))
        return self.base.entropy() + jnp.sum(self.base._kept(slope), axis=-1)

    def tempered(self, temperature: Array) -> TanhGaussian:
        return TanhGaussian(self.base.tempered(temperature))


def mask_logits(logits: Array, legal: Array | None) -> Array:
    """Logits with illegal options pushed out of reach."""
    return logits if legal is None else jnp.where(legal, logits, ILLEGAL)
