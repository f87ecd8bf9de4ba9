"""What a rollout looked like, in a few numbers: rewards, actions, observations and how episodes ended.

Where rollouts are too short to say anything and there is a replay, the sampled batch says it instead.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from sparring.actor import Episodes
from sparring.config import Schedule
from sparring.metrics.registry import MOST_ENTRIES, MOST_SHARES
from sparring.nets import checkup
from sparring.ops.returns import masked_mean
from sparring.ops.seam import block
from sparring.ops.statistics import Moments, normalise, variance
from sparring.replay import offpolicy
from sparring.spaces import Box, Discrete, EnvSpec, Space
from sparring.types import Algorithm, Batch, Metrics, Transition

LEAST = 32
"""Decisions of a rollout or a batch below which its statistics say nothing."""
NEAR = 0.01
"""Share of an action's range that counts as its edge."""
MOST_OPTIONS = 64


def of_rollout(algo: Algorithm, train: Any, rollout: Transition) -> Metrics:
    """Scalars of a rollout [T, B, …], looked at with the normaliser of `train`, and now and then details."""
    found = statistics(algo.spec, rollout, *_normaliser(algo, train))
    if not found:
        return {}
    return found | _now_and_then(algo, train, lambda: details(algo.spec, rollout))


def of_episodes(algo: Algorithm, train: Any, episodes: Episodes) -> Metrics:
    """How the returns of the episodes in the window are spread, now and then."""
    window = episodes.window_return
    there = jnp.arange(window.shape[0]) < episodes.finished
    return _now_and_then(algo, train, lambda: checkup.spread("rollout/ep_returns", window, there))


def _now_and_then(algo: Algorithm, train: Any, measured: Callable[[], Metrics]) -> Metrics:
    """What is found when it is time to look; nothing for an algorithm that does not count its iterations."""
    iteration, horizon = getattr(train, "iteration", None), getattr(algo, "horizon", None)
    if iteration is None or horizon is None:
        return {}
    return checkup.looked(checkup.due(iteration, horizon), measured)


def of_batch(algo: Algorithm, train: Any, batch: Batch) -> Metrics:
    """The same of the steps that an update learned from; nothing where the rollouts have it.

    Of a window of n steps the first counts, of a sequence all that are there after the burn-in. An iteration
    is as short as its rollout, so they are looked at only as often as the networks; else they are NaN.
    """
    long = algo.plan.rollout * algo.spec.rows >= LEAST
    if long or not hasattr(algo.config, "buffer_size") or not hasattr(train, "updates"):
        return {}
    burn_in = getattr(algo.replay, "burn_in", None)
    part = slice(0, 1) if burn_in is None else slice(burn_in, None)
    data = batch.data
    seen = data.obs if _is_flat(algo.spec.observation) else None
    kept = (seen, data.action, data.reward, data.terminated, data.truncated, data.mask)
    obs, action, reward, terminated, truncated, mask = jax.tree.map(lambda x: x[:, part], kept)
    steps = Transition(obs, action, reward, terminated, truncated, None, None, mask=mask)
    scaling = _normaliser(algo, train)
    when = offpolicy.due(train, algo.plan.updates, algo.horizon)  # type: ignore[attr-defined]
    return checkup.looked(when, lambda: block(partial(_both, algo.spec))(steps, *scaling))


def _both(spec: EnvSpec, steps: Transition, moments: Moments | None, clip: Any) -> Metrics:
    """Scalars of steps, and the details beside them."""
    found = statistics(spec, steps, moments, clip)
    return found | details(spec, steps) if found else {}


def _normaliser(algo: Algorithm, train: Any) -> tuple[Any, Any]:
    """What observations were normalised by, and the bound of it; None for an agent that has none."""
    moments = getattr(train, "moments", None)
    bound = getattr(algo.config, "clip_obs", None)
    if moments is None or bound is None:
        return None, None
    if isinstance(bound, Schedule):
        bound = bound.at(train.iteration / algo.horizon)  # type: ignore[attr-defined]
    return moments, bound


def statistics(
    spec: EnvSpec, rollout: Transition, moments: Moments | None = None, clip: Any = None
) -> Metrics:
    """Scalars of steps with two leading axes; none of a few.

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
        return {"stats/action_top_share": jnp.max(jnp.stack(_shares(space, rollout)))}
    return {}


def details(spec: EnvSpec, rollout: Transition) -> Metrics:
    """How rewards are spread, the share of each option, and each entry of a small raw observation."""
    found = checkup.spread("stats/rewards", rollout.reward, rollout.mask)
    space = spec.action
    if isinstance(space, Discrete) and space.n <= MOST_SHARES:
        shares = _shares(space, rollout)
        found |= {f"stats/action_share_{option}": share for option, share in enumerate(shares)}
    if not _is_flat(spec.observation) or spec.observation.size > MOST_ENTRIES:
        return found
    flat = rollout.obs.astype(jnp.float32).reshape(-1, spec.observation.size)
    mask = jnp.ones((flat.shape[0], 1), bool) if rollout.mask is None else rollout.mask.reshape(-1, 1)
    columns = {
        "min": jnp.min(flat, axis=0, where=mask, initial=jnp.inf),
        "mean": jnp.mean(flat, axis=0, where=mask),
        "max": jnp.max(flat, axis=0, where=mask, initial=-jnp.inf),
        "std": jnp.std(flat, axis=0, where=mask),
    }
    entries = range(spec.observation.size)
    return found | {f"stats/obs_{i}_{what}": x[i] for i in entries for what, x in columns.items()}


def _shares(space: Discrete, rollout: Transition) -> list[Array]:
    """How often each option was chosen, as a share."""
    chosen = [rollout.action == option for option in range(space.n)]
    return [masked_mean(each.astype(jnp.float32), rollout.mask) for each in chosen]


def _observations(spec: EnvSpec, rollout: Transition, moments: Moments | None, clip: Any) -> Metrics:
    space = spec.observation
    if not _is_flat(space):
        return {}
    flat, found = rollout.obs.astype(jnp.float32), {}
    mask = None if rollout.mask is None else rollout.mask.reshape(-1, 1)
    if moments is not None and moments.mean:
        flat = normalise(moments, {"": flat}, clip)[""]
    elif space.dtype == "uint8":
        flat = flat / 255.0
    flat = flat.reshape(-1, space.size)
    if moments is not None and moments.mean:
        clipped = jnp.mean((jnp.abs(flat) >= clip).astype(jnp.float32), axis=1, keepdims=True)
        found["stats/obs_clipped"] = masked_mean(clipped, mask)
    spread = deviation(flat, mask)
    if space.dtype != "uint8":  # of a console's memory some bytes never change
        found["stats/obs_std_min"] = jnp.min(spread)
    if mask is not None:
        flat = jnp.where(mask, flat, 0.0)
    return found | {
        "stats/obs_std_max": jnp.max(spread),
        "stats/obs_abs_max": jnp.max(jnp.abs(flat)),
    }


def _is_flat(space: Space) -> TypeGuard[Box]:
    return isinstance(space, Box) and not space.is_image


def deviation(x: Float[Array, "N D"], mask: Bool[Array, "N 1"] | None) -> Float[Array, " D"]:
    """Standard deviation of each column over the rows that count; NaN of none."""
    return jnp.std(x, axis=0) if mask is None else jnp.std(x, axis=0, where=mask)


def of_normaliser(train: Any) -> Metrics:
    """The deviation by which rewards are divided, where they are: of the discounted return."""
    stats = getattr(train, "rewards", None)
    return {} if stats is None else {"stats/return_std": jnp.sqrt(variance(stats.moments))}
