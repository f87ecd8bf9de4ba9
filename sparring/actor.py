"""The actor: policy × behaviour × episode bookkeeping, as pure blocks that every driver shares.

Drivers call `act` and the environment's step as blocks (`ops.seam`), so that they round the same whether they
are compiled alone (host driver) or inside one large program (fused driver).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from sparring.bandit.control import Controller
from sparring.ops import keys
from sparring.ops.seam import block
from sparring.types import Action, ActorState, Algorithm, Behaviour, Key, Metrics, TimeStep, Transition, View


def start(algo: Algorithm, timestep: TimeStep, key: Key | None = None) -> ActorState:
    """The actor's state before its first decision; with a key, a controller may choose behaviours."""
    rows = timestep.reward.shape[0]
    controller = None if key is None else controller_of(algo)
    control = None if controller is None else controller.start(keys.once(key, keys.BANDIT), rows)
    return ActorState(timestep.obs, jnp.ones(rows, bool), algo.carry(rows), timestep.legal, control)


def controller_of(algo: Algorithm) -> Controller | None:
    """What chooses the behaviours of rows; None when the algorithm's own exploration does."""
    return getattr(algo, "controller", None)


def behaviour(algo: Any, point: Float[Array, "B C"] | None) -> Behaviour:
    """How rows act at the points that a controller chose."""
    if point is None:
        return Behaviour()
    chosen: Behaviour = algo.behaviour(point)
    return chosen


def point(state: ActorState) -> Any:
    """The points that the controller chose; None without one."""
    return None if state.control is None else state.control.choice.point


def act(
    algo: Algorithm, weights: Any, state: ActorState, behaviour: Behaviour, key: Key
) -> tuple[Action, Any, Any]:
    """One decision per row: action, extras, carry."""
    return algo.act(weights, state.carry, view(state), behaviour, key)


def credited(weights: Any, reward: Float[Array, " B"]) -> Float[Array, " B"]:
    """The reward as a controller is told it: NaN, which no selector counts, where actions are random whatever
    it chose."""
    random = getattr(weights, "random", None)
    return reward if random is None else jnp.where(random, jnp.nan, reward)


def settled(weights: Any) -> Any:
    """The weights for acting outside training, where nothing warms up."""
    if getattr(weights, "random", None) is None:
        return weights
    return weights._replace(random=jnp.zeros((), bool))


def control_metrics(algo: Algorithm, control: Any) -> Metrics:
    """What the controller says of itself, one number per name; nothing without one.

    Tables over cells become a number per cell, `…/00`, `…/01` …, for a map over time.
    """
    controller = controller_of(algo)
    if controller is None:
        return {}
    told = controller.report(control)
    metrics = {name: value for name, value in told.items() if value.ndim == 0}
    for name, value in told.items():
        if value.ndim == 1 and name.startswith(("bandit/probability/", "bandit/mean/", "bandit/return/")):
            metrics |= {f"{name}/{cell:02d}": value[cell] for cell in range(value.shape[0])}
    return metrics | _narrowest(metrics)


def _narrowest(metrics: Metrics) -> Metrics:
    """Evenness of the choice where it is least even, of what the selector decides where it is most decided,
    and how much stands behind that."""

    def each(kind: str) -> dict[str, Array]:
        start = f"bandit/{kind}/"
        return {name.removeprefix(start): metrics[name] for name in metrics if name.startswith(start)}

    even, undecided, signal = each("entropy"), each("undecided"), each("signal")
    if not undecided:
        return {}
    least = jnp.stack(list(undecided.values()))
    found = {"bandit/entropy": jnp.min(jnp.stack(list(even.values()))), "bandit/undecided": jnp.min(least)}
    if undecided.keys() <= signal.keys():
        found["bandit/snr"] = jnp.stack([signal[name] for name in undecided])[jnp.argmin(least)]
    return found


def view(state: ActorState) -> View:
    """What the policy is shown; where episodes start matters only to one that remembers."""
    remembers = bool(jax.tree.leaves(state.carry))
    return View(state.obs, state.legal, state.first if remembers else None)


def observe(state: ActorState, carry: Any, timestep: TimeStep) -> ActorState:
    """The actor's state after the world answered."""
    return ActorState(timestep.obs, ended(timestep), carry, timestep.legal, state.control)


def ended(timestep: TimeStep) -> Array:
    """Rows whose next observation starts an episode."""
    over = timestep.terminated | timestep.truncated
    return over if timestep.lost is None else over | timestep.lost


def transition(state: ActorState, action: Action, extras: Any, timestep: TimeStep) -> Transition:
    """The record of one step of all rows."""
    lost = timestep.lost
    return Transition(
        obs=state.obs,
        action=action,
        reward=timestep.reward,
        terminated=timestep.terminated,
        truncated=timestep.truncated if lost is None else timestep.truncated | lost,
        next_obs=timestep.next_obs,
        extras=extras,
        first=state.first,
        legal=state.legal,
        next_legal=_next_legal(timestep),
        mask=None if lost is None else ~lost,
        point=point(state),
        info=timestep.info,
    )


def _next_legal(timestep: TimeStep) -> Any:
    """What may be done at `next_obs`, never nothing: anything where nobody says and where nothing follows."""
    told = timestep.next_legal
    if told is not None:
        free = timestep.terminated if timestep.lost is None else timestep.terminated | timestep.lost
        return told | (free | ~told.any(axis=-1))[:, None]
    return None if timestep.legal is None else timestep.legal | ended(timestep)[:, None]


def begun(rollout: Transition, carry: Any) -> Transition:
    """The rollout with the state of the core that it began with, where there is a core."""
    return rollout._replace(core=getattr(carry, "core", None))


class Told(NamedTuple):
    """Numbers that an environment tells, by name: of episodes in progress, and of those that ended last."""

    total: dict[str, Float[Array, " B"]]
    ended: dict[str, Float[Array, "3"]]
    """mean over the episodes that ended in the newest rollout with any: sum, mean and last value of each;
    NaN before the first"""


class Shaped(NamedTuple):
    """Returns as every head was rewarded: of episodes in progress, and of the last W that ended."""

    total: Float[Array, "B H"]
    window: Float[Array, "W H"]


class Episodes(NamedTuple):
    """Returns and lengths: of the episodes in progress, and of the last W that ended."""

    total: Float[Array, " B"]
    length: Int[Array, " B"]
    window_return: Float[Array, " W"]
    window_length: Int[Array, " W"]
    finished: Int[Array, ""]
    """Episodes that ended so far; the window is full from W on."""
    told: Told | None = None
    """where the environment tells numbers"""
    shaped: Shaped | None = None
    """where the algorithm shapes rewards"""


def shaped(algo: Any, weights: Any, reward: Float[Array, "*N"]) -> Float[Array, "*N H"] | None:
    """The reward as every head of the algorithm sees it; None for one that shapes nothing."""
    return algo.shaped(weights, reward) if hasattr(algo, "shaped") else None


def start_episodes(rows: int, window: int, info: Any = None, heads: int = 0) -> Episodes:
    """No episode has ended; `info` has the names of what the environment tells, `heads` see rewards of
    their own."""
    told = None
    if info is not None:
        told = Told({n: jnp.zeros(rows) for n in info}, {n: jnp.full(3, jnp.nan) for n in info})
    return Episodes(
        jnp.zeros(rows),
        jnp.zeros(rows, jnp.int32),
        jnp.zeros(window),
        jnp.zeros(window, jnp.int32),
        jnp.zeros((), jnp.int32),
        told,
        Shaped(jnp.zeros((rows, heads)), jnp.zeros((window, heads))) if heads else None,
    )


def forget(episodes: Episodes, lost: Any) -> Episodes:
    """Without the episodes in progress of some rows."""

    def without(x: Array) -> Array:
        return jnp.where(lost, jnp.zeros_like(x), x)

    told = episodes.told
    told = None if told is None else told._replace(total={n: without(x) for n, x in told.total.items()})
    heads = episodes.shaped
    if heads is not None:
        heads = heads._replace(total=jnp.where(lost[:, None], 0.0, heads.total))
    return episodes._replace(
        total=without(episodes.total), length=without(episodes.length), told=told, shaped=heads
    )


def _count_told(told: Told, info: Any, over: Array, mask: Array, lengths: Array) -> Told:
    """What was told after a rollout; `lengths` [T, B] are the steps of each episode so far."""
    counts = over & mask
    some = jnp.maximum(jnp.sum(counts), 1)

    def mean(x: Array) -> Array:
        return jnp.sum(jnp.where(counts, x, 0.0)) / some

    total, totals = _running(told.total, {n: info[n] for n in told.total}, over, mask)
    ended = {}
    for n, x in totals.items():
        new = jnp.stack([mean(x), mean(x / jnp.maximum(lengths, 1)), mean(info[n])])
        ended[n] = jnp.where(jnp.any(counts), new, told.ended[n])
    return Told(total, ended)


def told_means(episodes: Episodes) -> dict[str, Array]:
    """What the environment told, as metrics."""
    ended = {} if episodes.told is None else episodes.told.ended
    kinds = ("sum", "mean", "last")
    return {f"env/{name}_{kind}": x[i] for name, x in ended.items() for i, kind in enumerate(kinds)}


def _running(total: Any, earned: Any, over: Array, mask: Array) -> tuple[Any, Any]:
    """Sums over the episodes in progress, [B, …], of what each step [T, B, …] earned: after the rollout, and
    after every step of it, before an end sets them to zero."""

    def where(flag: Array, x: Array, y: Array) -> Array:
        return jnp.where(flag.reshape(flag.shape + (1,) * (x.ndim - 1)), x, y)

    def step(total: Any, now: tuple[Any, Array, Array]) -> tuple[Any, Any]:
        earned_t, over_t, mask_t = now
        total = jax.tree.map(lambda a, x: a + where(mask_t, x, jnp.zeros_like(x)), total, earned_t)
        return jax.tree.map(lambda a: where(over_t, jnp.zeros_like(a), a), total), total

    return jax.lax.scan(step, total, (earned, over, mask))


def count_episodes(
    episodes: Episodes, rollout: Transition, rewards: Float[Array, "T B H"] | None = None
) -> Episodes:
    """The bookkeeping after a rollout; an episode that was lost leaves no trace in the window.

    `rewards` are those that each head sees, where the algorithm shapes them.
    """
    over = rollout.terminated | rollout.truncated
    mask = jnp.ones_like(over) if rollout.mask is None else rollout.mask
    steps = jnp.ones_like(over, jnp.int32) if rollout.elapsed is None else rollout.elapsed.astype(jnp.int32)

    heads = episodes.shaped
    before = (episodes.total, episodes.length, None if heads is None else heads.total)
    earned = (rollout.reward, steps, None if heads is None else rewards)
    (total, length, by_head), (totals, lengths, by_heads) = _running(before, earned, over, mask)
    # Ended rows take the next places of the ring in order of time; of more than fit, the last ones.
    counts = (over & mask).reshape(-1)
    rank = jnp.cumsum(counts, dtype=jnp.int32)
    window = episodes.window_return.shape[0]
    told = episodes.told
    if told is not None:
        told = block(_count_told)(told, rollout.info, over, mask, lengths)
    fits = counts & (rank > rank[-1] - window)
    place = jnp.where(fits, (episodes.finished + rank - 1) % window, window)
    if heads is not None:
        ended = by_heads.reshape(-1, by_heads.shape[-1])
        heads = Shaped(by_head, heads.window.at[place].set(ended, mode="drop"))
    return Episodes(
        total,
        length,
        episodes.window_return.at[place].set(totals.reshape(-1), mode="drop"),
        episodes.window_length.at[place].set(lengths.reshape(-1), mode="drop"),
        episodes.finished + rank[-1],
        told,
        heads,
    )


def window_mean(episodes: Episodes) -> tuple[Array, Array, Array]:
    """Mean return and length of the episodes in the window, and how many there are."""
    count = jnp.minimum(episodes.finished, episodes.window_return.shape[0])
    return _mean(episodes.window_return, count), _mean(episodes.window_length, count), count


def _mean(window: Array, count: Array) -> Array:
    """The mean over the first `count` entries of a window; 0 for none."""
    kept = (jnp.arange(window.shape[0]) < count).reshape(-1, *(1,) * (window.ndim - 1))
    return jnp.sum(jnp.where(kept, window, 0), axis=0) / jnp.maximum(count, 1)


def shaped_means(episodes: Episodes) -> dict[str, Array]:
    """Mean return of the same episodes as every head was rewarded, as metrics."""
    if episodes.shaped is None:
        return {}
    window = episodes.shaped.window
    mean = _mean(window, jnp.minimum(episodes.finished, window.shape[0]))
    return {f"rollout/shaped_rew_mean_{head + 1}": mean[head] for head in range(window.shape[1])}
