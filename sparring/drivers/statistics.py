"""What a rollout looked like, in a few numbers: rewards, actions, observations and how episodes ended."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from sparring.ops.returns import masked_mean
from sparring.ops.statistics import Moments, normalise, variance
from sparring.spaces import Box, Discrete, EnvSpec
from sparring.types import Metrics, Transition

LEAST = 32
"""Decisions of a rollout below which its statistics say nothing."""
NEAR = 0.01
"""Share of an action's range that counts as its edge."""
MOST_OPTIONS = 64


def statistics(
    spec: EnvSpec, rollout: Transition, moments: Moments | None = None, clip: Any = None
) -> Metrics:
    """Scalars of a rollout [T, B, …]; none for a short one.

    Observations are looked at as the network sees them: normalised by `moments` and clipped, where they are.
    """
    if rollout.reward.size < LEAST:
        return {}
    mask, reward = rollout.mask, rollout.reward
    mean = masked_mean(reward, mask)
    ended = masked_mean((rollout.terminated | rollout.truncated).astype(jnp.float32), mask)
    terminated = masked_mean(rollout.terminated.astype(jnp.float32), mask)
    found = {
        "stats/reward_mean": mean,
        "stats/reward_std": jnp.sqrt(masked_mean(jnp.square(reward - mean), mask)),
        "stats/reward_nonzero": masked_mean((reward != 0.0).astype(jnp.float32), mask),
        "stats/terminated_share": jnp.where(ended > 0.0, terminated / jnp.maximum(ended, 1e-9), -1.0),
    }
    return found | _actions(spec, rollout) | _observations(spec, rollout, moments, clip)


def _actions(spec: EnvSpec, rollout: Transition) -> Metrics:
    space, action = spec.action, rollout.action
    if isinstance(space, Box) and space.bounded:
        low, high = (jnp.asarray(bound, jnp.float32) for bound in space.bounds())
        edge = NEAR * (high - low)
        at_edge = (action <= low + edge) | (action >= high - edge)
        lead = (*action.shape[:2], -1)
        return {
            "stats/action_saturation": masked_mean(
                jnp.mean(at_edge.reshape(lead), axis=-1, dtype=jnp.float32), rollout.mask
            )
        }
    if isinstance(space, Discrete) and space.n <= MOST_OPTIONS:
        shares = [
            masked_mean((action == option).astype(jnp.float32), rollout.mask) for option in range(space.n)
        ]
        return {"stats/action_top_share": jnp.max(jnp.stack(shares))}
    return {}


def _observations(spec: EnvSpec, rollout: Transition, moments: Moments | None, clip: Any) -> Metrics:
    space = spec.observation
    if not isinstance(space, Box) or space.is_image or rollout.mask is not None:
        return {}
    flat, found = rollout.obs.astype(jnp.float32), {}
    if moments is not None and moments.mean:
        flat = normalise(moments, {"": flat}, clip)[""]
        found["stats/obs_clipped"] = jnp.mean((jnp.abs(flat) >= clip).astype(jnp.float32))
    elif space.dtype == "uint8":
        flat = flat / 255.0
    flat = flat.reshape(-1, space.size)
    spread = jnp.std(flat, axis=0)
    return found | {
        "stats/obs_std_min": jnp.min(spread),
        "stats/obs_std_max": jnp.max(spread),
        "stats/obs_abs_max": jnp.max(jnp.abs(flat)),
    }


def of_normaliser(train: Any) -> Metrics:
    """The deviation by which rewards are divided, where they are: of the discounted return."""
    stats = getattr(train, "rewards", None)
    return {} if stats is None else {"stats/return_std": jnp.sqrt(variance(stats.moments))}
