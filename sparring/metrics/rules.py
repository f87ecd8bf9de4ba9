"""The health rules R01 to R30: thresholds in one table, what each rule measures, and what to do about it.

Ids and directions are those of the literature named in the table; engineering numbers (basis E) are
calibrated by `benchmarks/faultbench.py`. `stats/…` metrics come from the statistics of the running algorithm.
"""

from __future__ import annotations

import math

import numpy as np

from sparring.metrics.charts import short
from sparring.metrics.foreign import clean, is_foreign
from sparring.metrics.health import ANY, Advice, Limit, Reading, Rule, Series, Window

RETURN = "rollout/ep_rew_mean"
LENGTH = "rollout/ep_len_mean"
FINISHED = "rollout/episodes"
EVAL = "eval/mean_reward"
SAMPLED = "eval/stochastic_mean_reward"
LOSSES = ("train/value_loss", "train/critic_loss")
VALUES = ("stats/value_target_max", *LOSSES)
SIGNIFICANT = 2.0
"""Standard errors by which a bandit's best arm must stand out to be known as better."""
CLOSED = 0.05
"""Share of its largest value below which a clip range is as good as zero."""
SEVERAL = 3
"""Episodes that must have ended for a mean length that stands still to say that all are alike."""
HEADS = r"train/entropy_\d+"
COMPONENTS = r"env/.*reward.*_sum"
WAITS = r"time/(transfer|evaluation|checkpoint|other)"
GRADIENTS = ("train/grad_norm", "train/critic_grad_norm", "train/actor_grad_norm")

THRESHOLDS: dict[str, Limit] = {
    "R01.not_finite": Limit(high=0, error_high=0, patience=1, basis="P", source="SB3 VecCheckNan"),
    "R02.kl_high": Limit(high=0.025, error_high=0.2, window=10, patience=5, source="37-details, Spinning Up"),
    "R02.kl_huge": Limit(high=1.0, error_high=1.0, window=1, patience=1, source="Schulman: 10 is too much"),
    "R02.kl_spike": Limit(high=20.0, window=50, patience=2, source="Spinning Up: stop at 1.5x the target"),
    "R02.kl_negative": Limit(low=-1e-4, error_low=-1e-4, window=5, basis="P", source="Jones"),
    "R02.kl_low": Limit(low=1e-5, window=20, patience=10, source="Jones"),
    "R03.clip_high": Limit(high=0.3, error_high=0.7, window=10, patience=5, source="Sample Factory"),
    "R03.clip_zero": Limit(low=1e-6, window=20, patience=10, source="SB3 sample log 0.243"),
    "R04.critic_worse_than_constant": Limit(
        low=-0.5, window=10, patience=10, basis="P", source="SB3 logger: below 0 is worse than nothing"
    ),
    "R04.critic_flat": Limit(low=0.02, window=20, patience=20, source="SB3 issue 2240"),
    "R05.entropy_high": Limit(high=0.98, window=10, patience=10, source="Jones; SB3 issue 2240"),
    "R05.entropy_low": Limit(low=0.05, error_low=0.005, window=10, patience=5, source="Jones"),
    "R05.entropy_wild": Limit(high=0.3, window=30, patience=10, source="Jones: wild means learning rate"),
    "R05.std_range": Limit(low=0.01, high=5.0, error_high=20.0, window=5, patience=5, source="Jones"),
    "R06.value_scale": Limit(high=1000.0, error_high=20_000.0, window=5, patience=5, source="Jones: ideal 3"),
    "R06.value_loss_jump": Limit(high=20.0, window=100, patience=3, source="own"),
    "R06.short_horizon": Limit(low=3.0, window=1, patience=3, source="own"),
    "R07.advantage_bias": Limit(high=1.5, window=20, patience=10, source="Jones: 0.1"),
    "R07.advantage_scale": Limit(high=1000.0, error_high=20_000.0, window=5, patience=5, source="Jones: 10"),
    "R08.clipped_hard": Limit(high=2000.0, error_high=50_000.0, window=20, patience=5, source="37-details"),
    "R08.no_gradient": Limit(low=1e-6, error_low=1e-6, window=10, patience=5, source="own"),
    "R09.update_size": Limit(low=1e-6, high=0.2, error_high=1.0, window=10, patience=5, source="Jones 1e-3"),
    "R10.dead_units": Limit(high=0.75, error_high=0.95, window=5, patience=5, source="Sokar 2023"),
    "R11.feature_rank": Limit(window=5, source="Kumar 2021; no cut-off tells healthy from faulty runs"),
    "R12.obs_clipped": Limit(high=0.01, window=5, patience=5, source="SB3 VecNormalize clip 10"),
    "R12.obs_constant": Limit(low=1e-6, window=5, patience=5, source="own"),
    "R12.obs_scale": Limit(high=50.0, error_high=1000.0, window=5, patience=5, source="Schulman: clip 10"),
    "R13.normaliser_drift": Limit(high=10.0, window=20, patience=5, source="Schulman: rescale, do not shift"),
    "R14.saturated": Limit(high=0.7, window=10, patience=5, source="SB3 tips, SB3 issue 722"),
    "R15.q_bound": Limit(high=1.2, error_high=2.0, window=5, patience=5, source="r_max / (1 - gamma)"),
    "R15.q_implausible": Limit(high=3.0, error_high=30.0, window=5, patience=5, source="CleanRL dqn"),
    "R16.twins_disagree": Limit(high=0.5, window=20, patience=10, source="own"),
    "R17.alpha_range": Limit(low=1e-4, high=10.0, window=5, patience=10, source="CleanRL sac"),
    "R17.entropy_gap": Limit(high=0.5, window=10, patience=10, source="CleanRL sac; 50 % off its target"),
    "R18.priority_ess": Limit(low=0.1, error_low=0.01, window=5, patience=5, source="PER's definition"),
    "R19.replay": Limit(window=5, source="Jones: staleness; no cut-off is known"),
    "R20.bandit_collapse": Limit(low=0.1, window=10, patience=5, source="own"),
    "R21.tiny_episodes": Limit(low=2.5, window=20, patience=5, basis="P", source="Jones"),
    "R21.limit_is_terminal": Limit(high=0.5, window=10, patience=3, basis="P", source="SB3 time limits"),
    "R22.no_reward": Limit(low=1e-9, window=5, patience=3, source="Schulman"),
    "R22.one_component": Limit(high=0.95, window=10, patience=10, source="own"),
    "R23.greedy_gap": Limit(low=-2.0, window=1, patience=2, source="SB3 tips; 2 pooled SE"),
    "R23.train_eval_gap": Limit(high=2.0, window=1, patience=2, source="SB3 tips; 2 pooled SE"),
    "R24.collapse": Limit(low=0.3, error_low=0.05, window=5, patience=10, source="own"),
    "R24.eval_collapse": Limit(low=0.3, window=1, patience=3, source="own"),
    "R24.worse_than_start": Limit(low=-4.0, window=5, patience=5, source="own"),
    "R25.slow": Limit(low=0.5, window=60, patience=10, source="Jones: decay is accumulating state"),
    "R25.recompiled": Limit(high=1.0, window=1, patience=1, source="own"),
    "R25.waiting": Limit(high=0.3, window=10, patience=5, source="Jones: blocking input or output"),
    "R26.outlier_seed": Limit(low=-3.0, high=3.0, window=1, source="Spinning Up, rliable"),
    "R27.still_improving": Limit(high=0.0, window=1, source="own"),
    "R28.policy_lag": Limit(high=2.0, window=20, patience=5, source="Sample Factory"),
    "R28.lag_large": Limit(high=10.0, window=20, patience=5, source="own: two waiting chunks make 3"),
    "R29.no_progress": Limit(low=3.0, window=10, patience=5, source="own"),
    "R30.saturated_heads": Limit(low=0.01, window=10, patience=5, source="GDI: saturated logits"),
    "R30.no_correction": Limit(high=0.9, window=10, patience=5, source="GDI: ratio = 1 everywhere"),
}
"""Every threshold, its basis (P published, E engineering) and where it comes from."""


# -- measures --------------------------------------------------------------------------------------------


def _middle(values: np.ndarray) -> float:
    """The median, cheaply."""
    return float(np.partition(values, len(values) // 2)[len(values) // 2])


def _median_of(name: str, words: str, least: int = 0, after: float = 0.0):  # type: ignore[no-untyped-def]
    """A measure: the median of a metric's window, once a share of the run is done."""

    def measure(window: Window) -> Reading | None:
        values = window.values(name, least=least)
        if values is None or window.progress < after:
            return None
        value = _middle(values)
        return Reading(value, f"{words} {short(value)} (median of {len(values)})")

    return measure


def _not_finite(window: Window) -> Reading | None:
    """The number of metrics that are not finite; one of the system's own is named before a foreign one."""
    bad = [name for name, value in window.record.items() if not math.isfinite(value)]
    if not bad:
        return Reading(0.0, "all finite")
    first = min(bad, key=is_foreign)
    return Reading(float(len(bad)), f"{clean(first)} is {window.record[first]}")


def _still_learning(window: Window) -> bool:
    """Whether the learning rate is still above a fifth of its largest value."""
    rate = window.series("train/learning_rate")
    return rate is None or rate.values(1)[0] > 0.2 * rate.high


def _gains(window: Window) -> bool:
    """Whether the return rose over the last 20 points by more than a part of its early noise."""
    returns, values = window.series(RETURN), window.values(RETURN, 20)
    if returns is None or values is None:
        return True
    return float(values[10:].sum() - values[:10].sum()) > 5.0 * returns.noise


def _has_risen(window: Window) -> bool:
    """Whether the return was ever well above its first values."""
    returns = window.series(RETURN)
    return returns is not None and returns.high > returns.start + 5.0 * returns.noise


def _kl_huge(window: Window) -> Reading | None:
    value = window.last("train/approx_kl")
    return None if value is None else Reading(value, f"approx_kl {short(value)} in one update")


def _thrown_off(window: Window) -> bool:
    """Whether a single update once moved the policy so far that its later stillness is a consequence."""
    kl = window.series("train/approx_kl")
    return kl is not None and kl.high > 0.5


def _kl_spike(window: Window) -> Reading | None:
    values = window.values("train/approx_kl", least=20)
    if values is None or window.progress < 0.1:
        return None
    now, usual = float(values[-1]), _middle(values)
    if now < 0.05 or usual <= 0:
        return Reading(1.0, f"approx_kl {short(now)}")
    return Reading(now / usual, f"approx_kl {short(now)} against a median of {short(usual)}")


def _kl_low(window: Window) -> Reading | None:
    values = window.values("train/approx_kl")
    if values is None or not _still_learning(window) or _thrown_off(window):
        return None
    if _gains(window) or _has_risen(window):
        return None
    value = _middle(values)
    return Reading(value, f"approx_kl {short(value)} and the return does not rise")


def _clip_high(window: Window) -> Reading | None:
    """The share of clipped samples, unless a schedule has closed the range: then every change is clipped."""
    allowed, now = window.series("train/clip_range"), window.last("train/clip_range")
    if allowed is not None and now is not None and now < CLOSED * allowed.high:
        return None
    return _median_of("train/clip_fraction", "clip_fraction")(window)


def _clip_zero(window: Window) -> Reading | None:
    values = window.values("train/clip_fraction")
    if values is None or window.progress < 0.3 or not _still_learning(window) or _thrown_off(window):
        return None
    if _gains(window) or _has_risen(window):
        return None
    value = float(values.max())
    return Reading(value, f"clip_fraction at most {short(value)} in {len(values)}")


def _critic_flat(window: Window) -> Reading | None:
    values = window.values("train/explained_variance")
    if values is None or window.progress < 0.4 or _gains(window) or _has_risen(window):
        return None
    value = float(np.abs(values).max())
    return Reading(value, f"|explained_variance| at most {short(value)} in {len(values)} points")


def _at_target(window: Window) -> bool:
    """Whether the return reached what is known to be enough."""
    value, target = window.last(RETURN), window.context.target
    return value is not None and target is not None and value >= target


def _entropy_low(window: Window) -> Reading | None:
    values = window.values("stats/entropy_relative")
    returns = window.series(RETURN)
    if values is None or returns is None or _at_target(window):
        return None
    value = _middle(values)
    now, span = float(returns.values(1)[0]), returns.high - returns.low
    short_of_best = span > 0 and now < returns.high - 0.2 * span
    if window.progress > 0.3 and not short_of_best and span > 0.2 * abs(returns.low):
        return None  # it has learned and holds what it learned: certainty is no fault
    return Reading(value, f"relative entropy {short(value)} while the return is {short(now)}")


def _entropy_high(window: Window) -> Reading | None:
    values = window.values("stats/entropy_relative")
    if values is None or window.progress < 0.25 or _at_target(window):
        return None
    value = _middle(values)
    return Reading(value, f"relative entropy {short(value)} after {window.progress:.0%} of the run")


def _entropy_wild(window: Window) -> Reading | None:
    values = window.values("stats/entropy_relative")
    if values is None:
        return None
    x = np.arange(len(values)) - (len(values) - 1) / 2
    mean = float(values.mean())
    rest = values - mean - x * (float(x @ values) / float(x @ x))
    variation = float(np.sqrt((rest @ rest) / len(rest))) / max(abs(mean), 0.05)
    return Reading(variation, f"relative entropy varies by {variation:.0%} around its trend")


def _value_scale(window: Window) -> Reading | None:
    target = window.values("stats/value_target_max")
    if target is not None:
        value = _middle(target)
        return Reading(value, f"value targets up to {short(value)}")
    for name in LOSSES:
        loss = window.values(name)
        if loss is not None:
            value = math.sqrt(max(_middle(loss), 0.0))
            return Reading(value, f"root of {name} {short(value)}, in units of value")
    return None


def _value_loss_jump(window: Window) -> Reading | None:
    name = next((n for n in LOSSES if window.series(n) is not None), LOSSES[0])
    values = window.values(name, least=40)
    if values is None or window.progress < 0.2:
        return None
    usual, now = _middle(values), float(values[-3:].min())
    if usual <= 0:
        return None
    return Reading(now / usual, f"{name} {short(now)} for 3 points, {now / usual:.0f} times its median")


def _short_horizon(window: Window) -> Reading | None:
    gamma, length = window.context.number("gamma"), window.last(LENGTH)
    if gamma is None or gamma >= 1 or length is None or length < 10:
        return None
    horizon = 1 / (1 - gamma)
    return Reading(horizon, f"gamma {gamma:g} looks {horizon:.1f} steps ahead, episodes last {length:.0f}")


def _clipped_hard(window: Window) -> Reading | None:
    bound = window.context.number("max_grad_norm")
    for name in GRADIENTS:
        values = window.values(name)
        if values is not None and bound:
            norm = _middle(values)
            return Reading(norm / bound, f"{name} {short(norm)}, clipped to {bound:g}")
    return None


def _no_gradient(window: Window) -> Reading | None:
    found = [(name, values) for name in GRADIENTS if (values := window.values(name)) is not None]
    if not found:
        return None
    name, norm = min(((name, _middle(values)) for name, values in found), key=lambda pair: pair[1])
    return Reading(norm, f"{name} {short(norm)}")


def _update_size(window: Window) -> Reading | None:
    values = window.values("stats/update_size")
    if values is None or not _still_learning(window):
        return None
    value = _middle(values)
    return Reading(value, f"an iteration moves the parameters by {short(value)} of their norm")


def _advantage_bias(window: Window) -> Reading | None:
    """|mean| over deviation, in a run that has learned nothing: a solved task has no deviation either."""
    values = window.values("stats/advantage_bias")
    if values is None or window.progress < 0.4 or _gains(window) or _has_risen(window):
        return None
    value = _middle(values)
    return Reading(value, f"|mean| of the advantages {short(value)} times their deviation")


def _normaliser_drift(window: Window) -> Reading | None:
    values = window.values("stats/return_std")
    if values is None or window.progress < 0.1:
        return None
    low, high = float(values.min()), float(values.max())
    words = f"the returns' deviation went from {short(low)} to {short(high)} in {len(values)} points"
    return Reading(high / max(low, 1e-9), words)


def _replay(window: Window) -> Reading | None:
    """What the replay hands out, in words; there is no range that every task should keep."""
    ended, rewarded = window.values("stats/replay_terminated"), window.values("stats/replay_reward_nonzero")
    if ended is None or rewarded is None:
        return None
    words = f"{_middle(ended):.1%} of replayed steps terminate, {_middle(rewarded):.1%} have a reward"
    updates, size = window.last("train/n_updates"), window.context.number("batch_size")
    ratio = updates * size / max(window.step, 1) if updates and size else 0.0
    return Reading(ratio, f"{words}; each step is replayed {ratio:.1f} times" if ratio else words)


def _bandit_collapse(window: Window) -> Reading | None:
    """How evenly a selector itself would choose, while no arm is known to be better."""
    spread, signal = window.values("bandit/undecided"), window.values("bandit/snr")
    if spread is None or signal is None:
        return None
    value, known = _middle(spread), _middle(signal)
    words = f"relative entropy of what is chosen {short(value)}, the best stands out by {short(known)} errors"
    return Reading(value if known < SIGNIFICANT else 1.0, words)


def _q_bound(window: Window) -> Reading | None:
    """|Q| over what the largest reward ever replayed, for ever, would be worth; soft values count entropy."""
    q, reward = window.values("stats/q_abs_max"), window.series("stats/replay_reward_max")
    gamma = window.context.number("gamma")
    if (
        q is None
        or reward is None
        or gamma is None
        or gamma >= 1
        or window.context.config.get("value_rescale")
    ):
        return None
    bonus = abs((window.last("train/ent_coef") or 0.0) * (window.last("train/entropy") or 0.0))
    most = (reward.high + bonus) / (1 - gamma)
    if reward.high <= 0:
        return None
    value = _middle(q)
    return Reading(value / most, f"largest |Q| {short(value)}, rewards allow {short(most)}")


def _q_implausible(window: Window) -> Reading | None:
    """|Q| against what returns allow: the largest return, or the mean reward for ever, discounted."""
    q, returns, length = window.values("train/q_mean"), window.series(RETURN), window.last(LENGTH)
    gamma = window.context.number("gamma")
    if q is None or returns is None or not length or gamma is None or gamma >= 1:
        return None
    largest = max(abs(returns.low), abs(returns.high))
    reach = max(largest, largest / length / (1 - gamma), 1e-9)
    value = abs(_middle(q))
    return Reading(value / reach, f"|Q| {short(value)}, returns allow about {short(reach)}")


def _tiny_episodes(window: Window) -> Reading | None:
    values = window.values(LENGTH)
    if values is None or _gains(window) or _at_target(window):
        return None
    return Reading(float(values.max()), f"episodes last {short(float(values.max()))} steps")


def _limit_is_terminal(window: Window) -> Reading | None:
    share, lengths = window.values("stats/terminated_share"), window.values(LENGTH)
    if share is None or lengths is None:
        return None
    share = share[share >= 0]  # -1: no episode ended
    finished = window.values(FINISHED)
    if not len(share) or (finished is not None and finished[-1] - finished[0] < SEVERAL):
        return None  # too few have ended for a mean that stands still to say anything
    constant = float(np.ptp(lengths)) < 1e-6 * max(float(lengths.max()), 1.0) and lengths[-1] > 2
    words = f"all episodes last {lengths[-1]:.0f} steps and {share[-1]:.0%} of them end as terminated"
    return Reading(float(share.mean()) if constant else 0.0, words)


def _no_reward(window: Window) -> Reading | None:
    series = window.series("stats/reward_nonzero")
    if series is None or window.progress < 0.1:
        return None
    return Reading(series.high, f"share of rewards that are not zero: at most {short(series.high)}")


def _pooled_error(window: Window) -> float:
    """Standard error of the difference of two evaluations, or what nobody would call a difference: a part of
    the range of returns, and a twentieth of the score."""
    deviations = [window.last("eval/std_reward"), window.last("eval/stochastic_std_reward")]
    episodes = window.last("eval/episodes")
    known = [d for d in deviations if d is not None]
    returns = window.series(RETURN)
    span = 0.0 if returns is None else returns.high - returns.low
    error = math.sqrt(sum(d * d for d in known) / episodes) if known and episodes else 0.0
    score = max(abs(window.last(name) or 0.0) for name in (EVAL, SAMPLED))
    return max(error, 0.2 * span, 0.05 * score, 1e-9)


def _greedy_gap(window: Window) -> Reading | None:
    greedy, sampled = window.last(EVAL), window.last(SAMPLED)
    if greedy is None or sampled is None or window.progress < 0.3:
        return None
    words = f"deterministic {short(greedy)}, stochastic {short(sampled)}"
    return Reading((greedy - sampled) / _pooled_error(window), words)


def _train_eval_gap(window: Window) -> Reading | None:
    sampled, training = window.last(SAMPLED), window.values(RETURN, 3)
    if sampled is None or training is None or window.progress < 0.3:
        return None
    gap = (float(training.min()) - sampled) / _pooled_error(window)
    return Reading(gap, f"training {short(float(training[-1]))}, stochastic evaluation {short(sampled)}")


def _collapse(window: Window) -> Reading | None:
    """Where the return stands between its first values (0) and its best (1)."""
    returns = window.series(RETURN)
    values = window.values(RETURN)
    if returns is None or values is None or returns.count < 15:
        return None
    base = returns.start
    gain = returns.high - base
    if gain <= max(2.0 * base, -0.5 * base, 5.0 * returns.noise):
        return None  # too little was learned to speak of losing it
    now = _middle(values)
    share = (now - base) / gain
    return Reading(share, f"return {short(now)}, best {short(returns.high)}, first {short(base)}")


def _worse_than_start(window: Window) -> Reading | None:
    returns, values = window.series(RETURN), window.values(RETURN)
    if returns is None or values is None or returns.count < 15 or window.progress < 0.2:
        return None
    now = _middle(values)
    return Reading(
        (now - returns.start) / returns.noise, f"return {short(now)}, first {short(returns.start)}"
    )


def _no_progress(window: Window) -> Reading | None:
    """How many times its early noise the return has risen, late in the run."""
    returns, values = window.series(RETURN), window.values(RETURN)
    if (
        returns is None
        or values is None
        or returns.count < 20
        or window.progress < 0.75
        or _at_target(window)
    ):
        return None
    now = _lately(window, returns)
    now = _middle(values) if now is None else now
    words = f"return {short(now)} after {window.progress:.0%} of the run, first {short(returns.start)}"
    return Reading((max(now, returns.high) - returns.start) / returns.noise, words)


def _lately(window: Window, returns: Series) -> float | None:
    """The mean return of the episodes of the run's second half, while the mean that is recorded is one over
    all episodes and hides them; else None."""
    ended, held = window.record.get(FINISHED), window.record.get("rollout/window_episodes")
    finished = window.series(FINISHED)
    if ended is None or held is None or ended > held or finished is None:
        return None
    steps, means = returns.steps(), returns.values()
    half = int(np.searchsorted(steps, (steps[0] + steps[-1]) / 2))
    at = int(np.searchsorted(finished.steps(), steps[half]))
    before = float(finished.values()[min(at, len(finished.values()) - 1)])
    if ended - before < SEVERAL:
        return None
    return float((ended * means[-1] - before * means[half]) / (ended - before))


def _slow(window: Window) -> Reading | None:
    clock = window.series("time/time_elapsed")
    if clock is None or clock.count < 2 * window.limit.window:
        return None
    times, steps = clock.values(), clock.steps()
    recent = len(times) - window.limit.window
    lasted, before = float(times[-1] - times[recent]), float(times[recent] - times[0])
    if lasted < 5.0 or before < 5.0:
        return None
    now, usual = (steps[-1] - steps[recent]) / lasted, (steps[recent] - steps[0]) / before
    return Reading(float(now / usual), f"{short(float(now))} steps/s, before {short(float(usual))}")


def _recompiled(window: Window) -> Reading | None:
    compiled = window.series("time/compile_seconds")
    if compiled is None or compiled.count < 20 or window.progress < 0.4:
        return None
    values, steps = compiled.values(), compiled.steps()
    at = int(np.searchsorted(steps, 0.3 * window.step))
    grown = float(values[-1] - values[at])
    return Reading(grown, f"{grown:.1f} s of compiling after step {int(steps[at]):,}")


def _outlier_seed(window: Window) -> Reading | None:
    name = EVAL if window.series(EVAL) is not None else RETURN
    lasts = {seed: float(h[name].values(1)[0]) for seed, h in window.others.items() if name in h}
    mine = window.last(name)
    if mine is None or len(lasts) < 5:
        return None
    scores = np.array(list(lasts.values()))
    middle = float(np.median(scores))
    spread = 1.4826 * float(np.median(np.abs(scores - middle)))
    spread = max(spread, 0.05 * abs(middle), 1e-9)
    return Reading(
        (mine - middle) / spread, f"{name} {short(mine)}, median of {len(lasts)} seeds {short(middle)}"
    )


def _still_improving(window: Window) -> Reading | None:
    """Lower end of the slope's 95 % interval over the last 30 % of the returns, times the span in steps."""
    returns = window.series(RETURN)
    if returns is None or returns.count < 30 or _at_target(window):
        return None
    count = max(returns.count * 3 // 10, 10)
    y, x = returns.values(count), returns.steps(count).astype(np.float64)
    every = max(len(y) // 10, 1)  # neighbouring windows share episodes: about ten are independent
    x, y = x[::every], y[::every]
    centred = x - x.mean()
    squares = float(centred @ centred)
    if len(y) < 5 or squares <= 0:
        return None
    slope = float(centred @ y) / squares
    rest = y - y.mean() - slope * centred
    error = math.sqrt(float(rest @ rest) / (len(y) - 2) / squares)
    span = float(x[-1] - x[0])
    low = (slope - 2.0 * error) * span
    noise = 0.05 * (returns.high - returns.low)
    return Reading(low - noise, f"return rises by {short(slope * span)} over the last {short(span)} steps")


def _saturated_heads(window: Window) -> Reading | None:
    """Entropy of the most decided head, in nats."""
    heads = {name: _middle(values) for name, values in window.family(HEADS).items()}
    if not heads:
        return None
    name = min(heads, key=lambda each: heads[each])
    return Reading(heads[name], f"entropy of head {name.rpartition('_')[2]} {short(heads[name])} nats")


def _policy_lag(window: Window) -> Reading | None:
    values = window.values("async/staleness", 4 * window.limit.window, least=2 * window.limit.window)
    if values is None:
        return None
    half = len(values) // 2
    before, now = float(values[:half].mean()), float(values[half:].mean())
    return Reading(now / max(before, 1.0), f"policy lag {short(now)} updates, before {short(before)}")


def _lag_large(window: Window) -> Reading | None:
    """Policy lag in iterations: updates between acting and learning over the updates of an iteration."""
    lag = window.values("async/staleness")
    updates, iterations = window.values("train/n_updates"), window.values("time/iterations")
    if lag is None or updates is None or iterations is None or updates[0] <= 0:
        return None  # before learning begins, nothing that acts can be old
    learned, passed = float(updates[-1] - updates[0]), float(iterations[-1] - iterations[0])
    if learned <= 0 or passed <= 0:
        return None
    value = _middle(lag) * passed / learned
    return Reading(value, f"actors act with weights that are {short(value)} iterations old")


def _entropy_gap(window: Window) -> Reading | None:
    """Distance of the entropy from the target that was set, as a share of it, while its weight is learned."""
    values, target = window.values("train/entropy"), window.context.number("target_entropy")
    if values is None or not target or window.progress < 0.5 or window.context.number("ent_coef") is not None:
        return None
    value = _middle(values)
    return Reading(abs(value - target) / abs(target), f"entropy {short(value)}, its target {short(target)}")


def _one_component(window: Window) -> Reading | None:
    """Share of the largest part of the reward, in a run that has learned nothing."""
    sizes = {name: abs(_middle(values)) for name, values in window.family(COMPONENTS).items()}
    whole = sum(sizes.values())
    if len(sizes) < 2 or whole <= 0 or window.progress < 0.25 or _at_target(window):
        return None
    if _gains(window) or _has_risen(window):
        return None
    name = max(sizes, key=lambda each: sizes[each])
    share = sizes[name] / whole
    return Reading(share, f"{clean(name)} is {share:.1%} of the {len(sizes)} parts of the reward")


def _waiting(window: Window) -> Reading | None:
    """Share of the time in which neither the environment nor the networks did anything."""
    seconds = window.values("time/split_seconds")
    if seconds is None or float(seconds.sum()) < 10.0:
        return None
    waits = {name: values for name, values in window.family(WAITS).items() if len(values) == len(seconds)}
    parts = {name: float(values @ seconds) / float(seconds.sum()) for name, values in waits.items()}
    if not parts:
        return None
    most = max(parts, key=lambda each: parts[each])
    return Reading(sum(parts.values()), f"{sum(parts.values()):.0%} of the time, most of it {most}")


def _eval_collapse(window: Window) -> Reading | None:
    """Where the evaluation stands between the beginning (0) and the best that is sure: two standard errors
    below an earlier mean (1)."""
    means, spreads = window.series(EVAL), window.series("eval/std_reward")
    episodes, returns = window.last("eval/episodes"), window.series(RETURN)
    if means is None or spreads is None or not episodes or means.count < 5 or means.count != spreads.count:
        return None
    values = means.values()
    best = float((values - 2.0 * spreads.values() / math.sqrt(episodes)).max())
    base = float(values[0]) if returns is None else min(float(values[0]), returns.start)
    noise = 0.05 * abs(base) if returns is None else returns.noise
    if best - base <= max(2.0 * base, -0.5 * base, 5.0 * noise):
        return None  # too little was learned to speak of losing it
    now = float(values[-1])
    words = f"evaluation {short(now)}, best surely above {short(best)}, first {short(base)}"
    return Reading((now - base) / (best - base), words)


# -- rules -----------------------------------------------------------------------------------------------

LOWER_RATE = Advice("smaller steps", "approx_kl below 0.02", (("learning_rate", "*0.3"),))
HIGHER_RATE = Advice("larger steps", "the return moves", (("learning_rate", "*3"),))
NORMALISE = Advice(
    "scale what the network sees and learns",
    "value loss and gradients shrink",
    (("normalize_obs", "true"), ("normalize_reward", "true")),
)
CHECK_ENV = Advice("look at the environment itself", "no error", verb="sparring check-env {env}")
CHECK_ALGO = Advice("test the algorithm on known answers", "all pass", verb="sparring check-algo {algorithm}")
MORE = Advice(
    "give it more steps", "the return keeps rising", verb="sparring resume {run} --total-timesteps {more}"
)
LESS_CLIPPING = Advice("let gradients pass", "grad_norm near the bound", (("max_grad_norm", ">=0.5"),))
MORE_ENTROPY = (
    Advice("stronger entropy bonus", "the policy stays undecided for longer", (("ent_coef", ">=0.01"),)),
    Advice("stronger entropy bonus", "the policy stays undecided for longer", (("ent_coef", "*3"),)),
)
FRESHER_ACTORS = (
    Advice("fewer actors, so that the learner keeps up", "async/staleness falls", (("actors", "//"),)),
    Advice(
        "newer weights for the actors",
        "async/staleness falls",
        (("actor_pull", "//"), ("learner_push", "1")),
    ),
)
EXPLORE_ARMS = tuple(
    Advice(
        why,
        "bandit/snr above 2, or bandit/undecided above 0.2",
        (("controller_options", option),),
        given=(("controller", selector),),
    )
    for selector, why, option in (
        ("thompson", "every arm is tried now and then", "floor=0.3"),
        ("thompson", "a longer memory tells luck from skill", "memory=1500"),
        ("sw_ucb", "every arm is tried now and then", "epsilon=0.3"),
        ("gdi_tiles", "a larger bonus for arms that are little known", "bonus=3"),
        ("gdi_tiles_faithful", "a larger bonus for arms that are little known", "bonus=3"),
        ("lbc_regions", "a softer choice", "temperature=0.3"),
    )
)
"""One or two for each selector, by the settings that it has."""


def _rule(
    key: str,
    needs: tuple[str, ...],
    measure: object,
    meaning: str,
    causes: tuple[str, ...],
    *advice: Advice,
    **more: object,
) -> Rule:
    identity, _, name = key.partition(".")
    return Rule(identity, name, needs, measure, THRESHOLDS[key], meaning, causes, advice, **more)  # type: ignore[arg-type]


RULES: tuple[Rule, ...] = (
    _rule(
        "R01.not_finite",
        (ANY,),
        _not_finite,
        "a number is NaN or infinite",
        ("the environment emits it", "learning rate or reward scale too large", "log or division of zero"),
        CHECK_ENV,
        LOWER_RATE,
        level="error",
        quotes=True,
    ),
    _rule(
        "R02.kl_high",
        ("train/approx_kl",),
        _median_of("train/approx_kl", "approx_kl"),
        "each update moves the policy too far",
        ("learning rate too high", "too many epochs", "acting weights are stale"),
        LOWER_RATE,
        Advice("stop an update that goes too far", "approx_kl below 0.03", (("target_kl", "0.02"),)),
    ),
    _rule(
        "R02.kl_huge",
        ("train/approx_kl",),
        _kl_huge,
        "one update threw the policy far away",
        ("learning rate far too high", "log-probabilities computed wrongly"),
        Advice("much smaller steps", "approx_kl below 0.02", (("learning_rate", "*0.03"),)),
        level="error",
    ),
    _rule(
        "R02.kl_spike",
        ("train/approx_kl",),
        _kl_spike,
        "single updates move the policy very far",
        ("outliers in the advantage", "learning rate too high"),
        Advice("stop an update that goes too far", "no spikes", (("target_kl", "0.02"),)),
    ),
    _rule(
        "R02.kl_negative",
        ("train/approx_kl",),
        _median_of("train/approx_kl", "approx_kl"),
        "a KL divergence cannot be negative",
        ("log-probabilities are computed wrongly",),
        CHECK_ALGO,
        level="error",
    ),
    _rule(
        "R02.kl_low",
        ("train/approx_kl", RETURN),
        _kl_low,
        "the policy hardly moves and does not improve",
        ("learning rate too low", "gradients clipped to nothing", "no signal in the advantage"),
        HIGHER_RATE,
    ),
    _rule(
        "R03.clip_high",
        ("train/clip_fraction",),
        _clip_high,
        "most samples are clipped",
        ("learning rate too high", "too many epochs", "acting weights are stale"),
        LOWER_RATE,
    ),
    _rule(
        "R03.clip_zero",
        ("train/clip_fraction", RETURN),
        _clip_zero,
        "no sample is ever clipped and the return does not rise",
        ("learning rate too low", "ratio not recomputed"),
        HIGHER_RATE,
    ),
    _rule(
        "R04.critic_worse_than_constant",
        ("train/explained_variance",),
        _median_of("train/explained_variance", "explained_variance", after=0.3),
        "the critic predicts worse than a constant",
        ("rewards or observations not scaled", "critic overfits", "wrong bootstrapping"),
        NORMALISE,
    ),
    _rule(
        "R04.critic_flat",
        ("train/explained_variance", RETURN),
        _critic_flat,
        "the critic learns nothing",
        ("rewards not scaled", "episode ends not seen", "learning rate too low"),
        NORMALISE,
    ),
    _rule(
        "R05.entropy_high",
        ("stats/entropy_relative",),
        _entropy_high,
        "the policy is still uniform: it does not learn",
        ("ent_coef too high", "learning rate too low", "no signal in the reward"),
        Advice("weaker entropy bonus", "relative entropy below 0.9", (("ent_coef", "*0.1"),)),
    ),
    _rule(
        "R05.entropy_low",
        ("stats/entropy_relative", RETURN),
        _entropy_low,
        "the policy became certain before it was good",
        ("ent_coef too low", "rewards much larger than the entropy bonus", "initial weights too large"),
        *MORE_ENTROPY,
    ),
    _rule(
        "R05.entropy_wild",
        ("stats/entropy_relative",),
        _entropy_wild,
        "the policy's entropy jumps",
        ("learning rate too high",),
        LOWER_RATE,
    ),
    _rule(
        "R05.std_range",
        ("train/std",),
        _median_of("train/std", "standard deviation of the policy"),
        "the policy's noise vanished or exploded",
        ("ent_coef too low or too high", "log_std_init", "actions not scaled"),
        *(advice._replace(side="low") for advice in MORE_ENTROPY),
        Advice(
            "no entropy bonus",
            "std between 0.05 and 2",
            (("ent_coef", "0.0"), ("log_std_init", "0.0")),
            side="high",
        ),
    ),
    _rule(
        "R06.value_scale",
        (),
        _value_scale,
        "values are too large for the critic",
        ("rewards not scaled", "gamma too close to 1"),
        Advice("scale rewards", "value targets below 10", (("normalize_reward", "true"),)),
        one_of=VALUES,
    ),
    _rule(
        "R06.value_loss_jump",
        (),
        _value_loss_jump,
        "the value loss jumped and stayed",
        ("the policy changed abruptly", "outliers in the reward", "learning rate too high"),
        LOWER_RATE,
        level="error",
        one_of=LOSSES,
    ),
    _rule(
        "R06.short_horizon",
        (LENGTH,),
        _short_horizon,
        "the discount forgets everything after a few steps",
        ("gamma too small",),
        Advice("look further ahead", "the return rises", (("gamma", "0.99"),)),
        config=("gamma",),
    ),
    _rule(
        "R07.advantage_bias",
        ("stats/advantage_bias", RETURN),
        _advantage_bias,
        "the critic is off by a constant: advantages all point one way",
        ("advantages computed wrongly", "episode ends not seen", "critic too slow for its targets"),
        CHECK_ALGO,
        NORMALISE,
    ),
    _rule(
        "R07.advantage_scale",
        ("stats/advantage_max",),
        _median_of("stats/advantage_max", "largest advantage"),
        "advantages are far too large",
        ("rewards not scaled", "gamma too close to 1"),
        Advice("scale rewards", "advantages below 10", (("normalize_reward", "true"),)),
    ),
    _rule(
        "R08.clipped_hard",
        (),
        _clipped_hard,
        "gradients are clipped to almost nothing",
        ("max_grad_norm too small", "rewards or losses not scaled"),
        LESS_CLIPPING,
        NORMALISE,
        config=("max_grad_norm",),
        one_of=GRADIENTS,
    ),
    _rule(
        "R08.no_gradient",
        (),
        _no_gradient,
        "no gradient arrives",
        ("dead network", "detached graph", "no reward", "all samples masked"),
        CHECK_ALGO,
        level="error",
        one_of=GRADIENTS,
    ),
    _rule(
        "R09.update_size",
        ("stats/update_size",),
        _update_size,
        "parameters move too much or not at all",
        ("learning rate too high or too low", "gradients clipped to nothing"),
        LOWER_RATE._replace(side="high"),
        LESS_CLIPPING._replace(side="low"),
        HIGHER_RATE._replace(side="low"),
    ),
    _rule(
        "R10.dead_units",
        ("stats/dead_units",),
        _median_of("stats/dead_units", "share of hidden units that are never active"),
        "hidden units are dead (a description, not by itself a cause)",
        ("bad initialisation", "learning rate too high", "replay ratio too high"),
        LOWER_RATE,
        Advice("units that cannot die", "dead units near 0", (("activation", "tanh"),)),
    ),
    _rule(
        "R11.feature_rank",
        ("stats/feature_rank",),
        _median_of("stats/feature_rank", "rank of the features as a share of their width"),
        "how much the features span (a description, not by itself a cause)",
        ("dead or saturated units", "learning rate too high", "replay ratio too high"),
        LOWER_RATE,
        level="note",
    ),
    _rule(
        "R12.obs_clipped",
        ("stats/obs_clipped",),
        _median_of("stats/obs_clipped", "share of normalised observations at the clip"),
        "observations are cut off by the normaliser",
        ("outliers", "a distribution that shifts", "statistics from too little data"),
        CHECK_ENV,
    ),
    _rule(
        "R12.obs_constant",
        ("stats/obs_std_min",),
        _median_of("stats/obs_std_min", "smallest standard deviation of an observation"),
        "a part of the observation never changes",
        ("a feature that is constant", "observations overwritten"),
        CHECK_ENV,
    ),
    _rule(
        "R12.obs_scale",
        ("stats/obs_abs_max",),
        _median_of("stats/obs_abs_max", "largest observation the network sees"),
        "observations are too large for the network",
        ("observations not normalised",),
        Advice("normalise observations", "below 10", (("normalize_obs", "true"),)),
    ),
    _rule(
        "R13.normaliser_drift",
        ("stats/return_std",),
        _normaliser_drift,
        "the scale of rewards changes under the critic",
        ("returns grow fast", "statistics started on too little data"),
        Advice(
            "a fixed scale", "value loss steady", (("normalize_reward", "false"), ("reward_scale", "0.1"))
        ),
    ),
    _rule(
        "R14.saturated",
        ("stats/action_saturation",),
        _median_of("stats/action_saturation", "share of actions at their bounds", after=0.1),
        "most actions lie at their bounds",
        ("noise larger than the action space", "action space not scaled", "Gaussian with clipping"),
        Advice("less noise", "below 0.3", (("log_std_init", "-1.0"),)),
        CHECK_ENV,
    ),
    _rule(
        "R15.q_bound",
        ("stats/q_abs_max", "stats/replay_reward_max"),
        _q_bound,
        "Q is larger than any return can be",
        ("max bias", "target network too fast", "terminations not masked"),
        Advice("smaller steps", "ratio below 1", (("learning_rate", "*0.3"),)),
        config=("gamma",),
    ),
    _rule(
        "R15.q_implausible",
        ("train/q_mean", RETURN),
        _q_implausible,
        "Q is far larger than the returns seen",
        ("max bias", "target network too fast", "terminations not masked", "learning rate too high"),
        LOWER_RATE,
        config=("gamma",),
    ),
    _rule(
        "R16.twins_disagree",
        ("stats/q_disagreement",),
        _median_of("stats/q_disagreement", "distance of the two critics over the spread of Q", after=0.2),
        "the two critics disagree",
        ("too little data per update", "critic's learning rate"),
        LOWER_RATE,
    ),
    _rule(
        "R17.alpha_range",
        ("train/ent_coef",),
        _median_of("train/ent_coef", "ent_coef", after=0.3),
        "the learned weight of the entropy left its range",
        ("wrong target entropy", "reward scale"),
        Advice("fixed weight", "stays", (("ent_coef", "0.1"),)),
        algorithms=frozenset({"sac", "crossq"}),
    ),
    _rule(
        "R17.entropy_gap",
        ("train/entropy", "train/ent_coef_loss"),
        _entropy_gap,
        "the entropy is far from the target that was set for it",
        ("target_entropy does not fit the action space", "reward scale", "learning rate of its weight"),
        Advice("the usual target", "entropy near it", (("target_entropy", "none"),)),
        config=("target_entropy",),
        algorithms=frozenset({"sac", "crossq"}),
    ),
    _rule(
        "R18.priority_ess",
        ("stats/priority_ess",),
        _median_of("stats/priority_ess", "effective share of the replay"),
        "the replay draws the same few transitions",
        ("priority_alpha too high", "outliers in the TD error", "stale priorities"),
        Advice("flatter priorities", "above 0.3", (("priority_alpha", "0.6"),)),
    ),
    _rule(
        "R19.replay",
        ("stats/replay_terminated", "stats/replay_reward_nonzero"),
        _replay,
        "what the replay hands out",
        ("buffer too large", "collecting too slow", "sparse reward"),
        CHECK_ENV,
        level="note",
    ),
    _rule(
        "R20.bandit_collapse",
        ("bandit/undecided", "bandit/snr"),
        _bandit_collapse,
        "the bandit settled on an arm that is not known to be better",
        ("window too short", "exploration bonus too small for the scale of returns"),
        *EXPLORE_ARMS,
    ),
    _rule(
        "R21.tiny_episodes",
        (LENGTH, RETURN),
        _tiny_episodes,
        "episodes end at once",
        ("the environment terminates in its first step",),
        CHECK_ENV,
    ),
    _rule(
        "R21.limit_is_terminal",
        ("stats/terminated_share", LENGTH),
        _limit_is_terminal,
        "a time limit is treated as the end of the task",
        ("truncation reported as termination: values stop there instead of bootstrapping",),
        CHECK_ENV,
    ),
    _rule(
        "R22.no_reward",
        ("stats/reward_nonzero",),
        _no_reward,
        "no reward was ever seen",
        ("exploration does not reach it", "the reward is always zero"),
        Advice("explore more", "some rewards", (("ent_coef", ">=0.01"),)),
        CHECK_ENV,
    ),
    _rule(
        "R22.one_component",
        (RETURN,),
        _one_component,
        "one part of the reward drowns the others, and the return does not rise",
        ("parts of the reward differ in scale",),
        CHECK_ENV,
        level="note",
        family=COMPONENTS,
        quotes=True,
    ),
    _rule(
        "R23.greedy_gap",
        (EVAL, SAMPLED),
        _greedy_gap,
        "the policy is much worse without its noise",
        ("it relies on randomness", "not converged"),
        Advice("compare both", "equal", verb="sparring eval {run} --stochastic"),
    ),
    _rule(
        "R23.train_eval_gap",
        (SAMPLED, RETURN),
        _train_eval_gap,
        "evaluation is much worse than training",
        ("wrappers or normalisation differ in evaluation",),
        Advice("score it again", "as in training", verb="sparring eval {run} --stochastic"),
    ),
    _rule(
        "R24.collapse",
        (RETURN,),
        _collapse,
        "the return fell far below its best",
        ("learning rate too high late", "loss of plasticity", "too many epochs"),
        Advice("keep the best agent", "as before", verb="sparring eval {run} --best"),
        LOWER_RATE,
    ),
    _rule(
        "R24.eval_collapse",
        (EVAL, "eval/std_reward", "eval/episodes"),
        _eval_collapse,
        "evaluations fell far below what the agent surely could",
        ("learning rate too high late", "loss of plasticity", "too many epochs"),
        Advice("keep the best agent", "as before", verb="sparring eval {run} --best"),
        LOWER_RATE,
    ),
    _rule(
        "R24.worse_than_start",
        (RETURN,),
        _worse_than_start,
        "the agent became worse than it began",
        ("sign of the advantage or loss", "reward is minimised", "learning rate too high"),
        CHECK_ALGO,
        LOWER_RATE,
    ),
    _rule(
        "R25.slow",
        ("time/time_elapsed",),
        _slow,
        "training became slower",
        ("state that accumulates", "the machine is shared", "blocking input or output"),
        Advice("look at the machine", "no problem", verb="sparring doctor"),
        level="note",
    ),
    _rule(
        "R25.recompiled",
        ("time/compile_seconds",),
        _recompiled,
        "programs are compiled again late in the run",
        ("shapes that change",),
        Advice("look at the machine", "no problem", verb="sparring doctor"),
        level="note",
    ),
    _rule(
        "R25.waiting",
        ("time/split_seconds", "time/other"),
        _waiting,
        "much time goes to neither environment nor networks",
        ("evaluations or checkpoints in the way", "copies to and from the device", "slow callbacks"),
        Advice("look at the machine", "no problem", verb="sparring doctor"),
        level="note",
        family=WAITS,
    ),
    _rule(
        "R26.outlier_seed",
        (RETURN,),
        _outlier_seed,
        "a seed is far from the others",
        ("luck of the initialisation or of exploration",),
        Advice("more seeds", "a stable median", verb="sparring train {algorithm} {env} --seeds 10"),
        scope="end",
    ),
    _rule(
        "R27.still_improving",
        (RETURN,),
        _still_improving,
        "the return still rises at the end",
        ("the budget is too small",),
        MORE,
        level="note",
        scope="end",
    ),
    _rule(
        "R28.policy_lag",
        ("async/staleness",),
        _policy_lag,
        "acting falls further behind learning",
        ("the learner is slower than the actors", "a queue that grows"),
        *FRESHER_ACTORS,
    ),
    _rule(
        "R28.lag_large",
        ("async/staleness", "train/n_updates", "time/iterations"),
        _lag_large,
        "actors act with weights that are far too old",
        ("the learner is slower than the actors", "learner_push or actor_pull too large"),
        *FRESHER_ACTORS,
    ),
    _rule(
        "R29.no_progress",
        (RETURN,),
        _no_progress,
        "the return has not risen",
        ("learning rate too low or too high", "no signal in the reward", "a bug in the algorithm"),
        CHECK_ALGO,
        CHECK_ENV,
    ),
    _rule(
        "R30.saturated_heads",
        ("train/entropy_1",),
        _saturated_heads,
        "a head is certain of everything, so temperatures no longer make a difference",
        ("target_temperature too low for the scale of rewards", "reward_scale too large"),
        Advice("softer policies", "train/entropy_1 above 0.05", (("target_temperature", "*3"),)),
        family=HEADS,
    ),
    _rule(
        "R30.no_correction",
        ("train/ratio_one",),
        _median_of("train/ratio_one", "share of steps at which behaviour and target policy agree"),
        "all behaviours act alike, so the bandit has nothing to choose",
        ("saturated policies", "a space of behaviours that is one point"),
        Advice("softer policies", "train/ratio_one below 0.6", (("target_temperature", "*3"),)),
    ),
)


def known_names() -> set[str]:
    """What a policy of alerts may name: ids and keys."""
    return {rule.id for rule in RULES} | {rule.key for rule in RULES}
