"""Health rules: when they alert, when they stay quiet, what they say when they cannot look."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.metrics.charts import short
from sparring.metrics.health import (
    EPISODES,
    FAMILY,
    HEAD,
    KEPT,
    Context,
    Engine,
    Limit,
    Reading,
    Rule,
    Series,
    Window,
    replay,
)
from sparring.metrics.rules import RULES, THRESHOLDS

TOTAL = 100_000
CONFIG: dict[str, Any] = {"gamma": 0.99, "max_grad_norm": 0.5, "learning_rate": 3e-4}
RNG = np.random.default_rng(0)


def healthy(i: int) -> dict[str, float]:
    """A record of a run that goes well, i from 0 to 99."""
    noise = float(RNG.standard_normal())
    return {
        "rollout/ep_rew_mean": 20 + 4 * i + noise,
        "rollout/ep_len_mean": 20 + 4 * i + noise,
        "rollout/window_episodes": 100.0,
        "train/approx_kl": 0.008 + 0.001 * noise,
        "train/clip_fraction": 0.1 + 0.01 * noise,
        "train/explained_variance": min(0.01 * i, 0.9),
        "train/value_loss": 5.0 + noise,
        "train/grad_norm": 1.0 + 0.1 * noise,
        "train/learning_rate": 3e-4,
        "stats/entropy_relative": 0.95 - 0.006 * i,
        "stats/update_size": 0.005,
        "stats/dead_units": 0.01,
        "stats/obs_clipped": 0.0,
        "stats/obs_std_min": 0.5,
        "stats/obs_abs_max": 4.0,
        "stats/action_saturation": 0.1,
        "stats/reward_nonzero": 1.0,
        "stats/terminated_share": 0.9,
        "stats/advantage_bias": 0.1,
        "stats/advantage_max": 4.0,
        "stats/feature_rank": 0.5,
        "stats/return_std": 2.0 + 0.01 * i,
        "stats/q_abs_max": 50.0,
        "stats/replay_reward_max": 1.0,
        "stats/replay_reward_nonzero": 0.2,
        "stats/replay_terminated": 0.01,
        "bandit/undecided": 0.05,
        "bandit/snr": 9.0,
        "stats/q_disagreement": 0.1,
        "stats/priority_ess": 0.6,
        "async/staleness": 1.0,
        "train/entropy_1": 0.4,
        "train/entropy_2": 0.4,
        "train/ratio_one": 0.1,
        "stats/value_target_max": 9.0,
    }


Edit = Mapping[str, float | Callable[[int], float]]


def engine_after(edit: Edit | None = None, algorithm: str = "ppo", **context: Any) -> Engine:
    engine = Engine(RULES, Context(algorithm, TOTAL, {**CONFIG, **context}))
    records = []
    for i in range(100):
        values = healthy(i)
        for name, change in (edit or {}).items():
            values[name] = change(i) if callable(change) else change
        records.append(((i + 1) * TOTAL // 100, 0, values))
    replay(engine, records)
    return engine


def alarms(engine: Engine) -> set[str]:
    return {alert.rule.key for alert in engine.alerts if alert.level != "note"}


def test_a_healthy_run_raises_nothing_but_that_it_still_improves() -> None:
    engine = engine_after()
    assert alarms(engine) == set()
    assert {alert.rule.key for alert in engine.alerts} == {"R27.still_improving"}


def test_a_mean_length_that_stands_still_because_nothing_ended_says_nothing() -> None:
    fault = {"rollout/ep_len_mean": 200.0, "stats/terminated_share": 1.0}
    for per_record, raised in ((0.1, False), (1.0, True)):
        engine = engine_after({**fault, "rollout/episodes": lambda i, per=per_record: 50.0 + per * i})
        assert ("R21.limit_is_terminal" in alarms(engine)) == raised


def test_a_mean_over_all_episodes_does_not_hide_that_the_late_ones_are_good() -> None:
    """A window as long as the run: one episode per record, bad ones that vary, then good ones."""
    returns = [-1600.0 if i < 40 and i % 2 else -900.0 if i < 40 else -1250.0 for i in range(70)] + [
        -150.0
    ] * 30
    means = [float(np.mean(returns[: i + 1])) for i in range(100)]
    edit: Edit = {
        "rollout/ep_rew_mean": lambda i: means[i],
        "rollout/episodes": lambda i: i + 1.0,
        "rollout/window_episodes": lambda i: i + 1.0,
    }
    assert "R29.no_progress" not in alarms(engine_after(edit))
    assert "R29.no_progress" in alarms(engine_after({**edit, "rollout/window_episodes": 50.0}))


def test_a_clip_range_that_closes_at_the_end_is_no_alarm() -> None:
    closing: Edit = {
        "train/clip_range": lambda i: 0.1 if i < 70 else 0.001,
        "train/clip_fraction": lambda i: 0.2 if i < 70 else 0.9,
    }
    assert "R03.clip_high" not in alarms(engine_after(closing))
    assert "R03.clip_high" in alarms(engine_after({**closing, "train/clip_fraction": 0.9}))


FLAT = {"rollout/ep_rew_mean": lambda i: 20.0 + (i % 3), "rollout/ep_len_mean": lambda i: 20.0 + (i % 3)}
LEARNING: Edit = {"train/n_updates": lambda i: 8.0 * (i + 1), "time/iterations": lambda i: i + 1.0}
FAULTS: dict[str, Edit] = {
    "R01.not_finite": {"train/value_loss": lambda i: math.nan if i == 50 else 5.0},
    "R02.kl_high": {"train/approx_kl": 0.3},
    "R02.kl_huge": {"train/approx_kl": lambda i: 5.0 if i == 0 else 0.008},
    "R02.kl_spike": {"train/approx_kl": lambda i: 0.2 if i in (50, 51, 52) else 0.008},
    "R02.kl_negative": {"train/approx_kl": -0.01},
    "R02.kl_low": {**FLAT, "train/approx_kl": 1e-7},
    "R03.clip_high": {"train/clip_fraction": 0.8},
    "R03.clip_zero": {**FLAT, "train/clip_fraction": 0.0},
    "R04.critic_worse_than_constant": {"train/explained_variance": -0.6},
    "R04.critic_flat": {**FLAT, "train/explained_variance": 1e-4},
    "R05.entropy_high": {"stats/entropy_relative": 0.999},
    "R05.entropy_low": {**FLAT, "stats/entropy_relative": lambda i: max(0.9 - 0.05 * i, 0.001)},
    "R05.entropy_wild": {"stats/entropy_relative": lambda i: 0.9 if i % 2 else 0.2},
    "R05.std_range": {"train/std": lambda i: 1.5**i},
    "R06.value_scale": {"stats/value_target_max": 50_000.0},
    "R06.value_loss_jump": {"train/value_loss": lambda i: 5.0 if i < 70 else 5000.0},
    "R07.advantage_bias": {**FLAT, "stats/advantage_bias": 3.0},
    "R07.advantage_scale": {"stats/advantage_max": 5000.0},
    "R08.clipped_hard": {"train/grad_norm": 5e4},
    "R08.no_gradient": {"train/grad_norm": 0.0},
    "R09.update_size": {"stats/update_size": 2.0},
    "R10.dead_units": {"stats/dead_units": 0.9},
    "R12.obs_clipped": {"stats/obs_clipped": 0.2},
    "R12.obs_constant": {"stats/obs_std_min": 0.0},
    "R12.obs_scale": {"stats/obs_abs_max": 5000.0},
    "R13.normaliser_drift": {"stats/return_std": lambda i: 2.0 if i < 50 else 2.0 * 1.3 ** min(i - 50, 20)},
    "R14.saturated": {"stats/action_saturation": 0.9},
    "R15.q_bound": {"stats/q_abs_max": 300.0},
    "R15.q_implausible": {"train/q_mean": lambda i: 1.5**i},
    "R16.twins_disagree": {"stats/q_disagreement": 0.9},
    "R18.priority_ess": {"stats/priority_ess": 0.003},
    "R20.bandit_collapse": {"bandit/snr": 0.5},
    "R21.tiny_episodes": {"rollout/ep_len_mean": 1.0, "rollout/ep_rew_mean": 1.0},
    "R21.limit_is_terminal": {"rollout/ep_len_mean": 200.0, "stats/terminated_share": 1.0},
    "R22.no_reward": {"stats/reward_nonzero": 0.0},
    "R23.greedy_gap": {"eval/mean_reward": 10.0, "eval/stochastic_mean_reward": 400.0},
    "R23.train_eval_gap": {"eval/stochastic_mean_reward": 10.0},
    "R24.collapse": {"rollout/ep_rew_mean": lambda i: 20 + 4 * i if i < 60 else 30.0},
    "R24.worse_than_start": {"rollout/ep_rew_mean": lambda i: 20.0 + (i % 2) if i < 10 else 9.0},
    "R24.eval_collapse": {
        "eval/mean_reward": lambda i: 20.0 + 4 * i if i < 60 else 30.0,
        "eval/std_reward": 10.0,
        "eval/episodes": 10.0,
    },
    "R28.lag_large": {**LEARNING, "async/staleness": 20.0 * 8},
    "R28.policy_lag": {"async/staleness": lambda i: 1.1**i},
    "R30.saturated_heads": {"train/entropy_2": lambda i: 0.4 * 0.9**i},
    "R30.no_correction": {"train/ratio_one": lambda i: 1 - 0.9**i},
    "R29.no_progress": {"rollout/ep_rew_mean": lambda i: 20.0 + (i % 3)},
}


@pytest.mark.parametrize("key", FAULTS)
def test_each_rule_sees_its_fault(key: str) -> None:
    assert key in alarms(engine_after(FAULTS[key]))


def test_rules_that_look_at_settings() -> None:
    assert "R06.short_horizon" in alarms(engine_after(gamma=0.1))
    assert "R17.alpha_range" in alarms(engine_after({"train/ent_coef": 1e-6}, "sac"))
    assert "R17.alpha_range" not in alarms(engine_after({"train/ent_coef": 1e-6}, "ppo"))


def test_every_head_is_looked_at() -> None:
    heads = {f"train/entropy_{head}": 0.4 for head in range(1, 13)}
    assert "R30.saturated_heads" not in alarms(engine_after({**heads, "train/entropy_loss": 0.0}))
    engine = engine_after({**heads, "train/entropy_11": 0.001})
    (alert,) = (alert for alert in engine.alerts if alert.rule.id == "R30")
    assert alert.evidence.startswith("entropy of head 11")


def test_a_pattern_cannot_fill_the_memory() -> None:
    engine = engine_after({f"train/entropy_{head}": 0.4 for head in range(1, 2000)})
    assert len(engine.history(0)) <= len(engine._wanted) + FAMILY


def test_a_lag_is_judged_in_iterations_and_only_once_learning_has_begun() -> None:
    usual: Edit = {**LEARNING, "async/staleness": 3.0 * 8}
    assert "R28.lag_large" not in alarms(engine_after(usual))
    old = {**LEARNING, "async/staleness": lambda i: 8.0 * i if i < 50 else 24.0}
    waits = {**old, "train/n_updates": lambda i: max(8.0 * (i - 50), 0.0)}
    assert "R28.lag_large" not in alarms(engine_after(waits))
    assert "R28.lag_large" in alarms(engine_after(old))


def test_an_entropy_far_from_its_target_is_seen_where_a_target_was_set() -> None:
    def found(entropy: float, algorithm: str = "sac", **config: Any) -> bool:
        edit = {"train/entropy": entropy, "train/ent_coef": 0.1, "train/ent_coef_loss": 0.0}
        return "R17.entropy_gap" in alarms(engine_after(edit, algorithm, **config))

    assert found(-1.0, target_entropy=-3.0, ent_coef="auto")
    assert found(-5.0, "crossq", target_entropy=-3.0, ent_coef="auto")
    assert not found(-2.5, target_entropy=-3.0, ent_coef="auto")
    assert not found(-1.0, target_entropy=-3.0, ent_coef=0.1)
    assert not found(-1.0, target_entropy=None, ent_coef="auto")
    assert not found(-1.0, "ppo", target_entropy=-3.0)


def notes(engine: Engine) -> set[str]:
    return {alert.rule.key for alert in engine.alerts if alert.level == "note"}


def test_one_part_of_the_reward_that_drowns_the_others_is_noted_in_a_run_that_does_not_learn() -> None:
    parts = {"env/reward_run_sum": 0.5, "env/reward_ctrl_sum": -400.0, "env/height_sum": 9e9}
    engine = engine_after({**FLAT, **parts})
    assert "R22.one_component" in notes(engine)
    assert "env/reward_ctrl_sum is 99.9%" in next(a.evidence for a in engine.alerts if a.rule.id == "R22")
    assert "R22.one_component" not in notes(engine_after(parts))  # it learns all the same
    assert "R22.one_component" not in notes(engine_after({**FLAT, **parts, "env/reward_run_sum": 60.0}))
    alone = engine_after({**FLAT, "env/reward_run_sum": 1.0})
    assert "R22.one_component" not in notes(alone)
    none = engine_after(FLAT)
    rule = next(rule for rule in RULES if rule.key == "R22.one_component")
    assert none.skipped(rule) == "no env/.*reward.*_sum"


def test_time_that_goes_nowhere_is_noted() -> None:
    split = {"time/split_seconds": 2.0, "time/fused": 0.5, "time/evaluation": 0.4, "time/other": 0.1}
    engine = engine_after(split)
    assert "R25.waiting" in notes(engine)
    assert "50% of the time, most of it time/evaluation" in {alert.evidence for alert in engine.alerts}
    assert alarms(engine) == set()
    busy = {**split, "time/fused": 0.8, "time/evaluation": 0.1}
    assert "R25.waiting" not in notes(engine_after(busy))
    assert "R25.waiting" not in notes(engine_after({**split, "time/split_seconds": 0.1}))


def test_evaluations_that_are_merely_noisy_or_recover_are_no_collapse() -> None:
    def found(mean: Callable[[int], float], std: float) -> bool:
        edit = {"eval/mean_reward": mean, "eval/std_reward": std, "eval/episodes": 10.0}
        return "R24.eval_collapse" in alarms(engine_after(edit))

    assert found(lambda i: 400.0 if 20 <= i < 60 else 30.0, 10.0)
    assert not found(lambda i: 400.0 if i == 20 else 30.0, 900.0)  # a lucky evaluation is not sure
    assert not found(lambda i: 30.0 if i in (0, 40, 41, 60) else 400.0, 10.0)
    assert not found(lambda i: 400.0 if i else 20.0, 10.0)


def test_throughput_rules_are_notes() -> None:
    engine = Engine(RULES, Context("ppo", TOTAL, CONFIG))
    clock = [float(i) if i < 90 else 90.0 + 5.0 * (i - 90) for i in range(200)]
    replay(engine, [((i + 1) * 1000, 0, {"time/time_elapsed": now}) for i, now in enumerate(clock)])
    assert [alert.rule.key for alert in engine.alerts] == ["R25.slow"]
    compiled = engine_after({"time/compile_seconds": lambda i: 5.0 if i < 60 else 30.0})
    assert "R25.recompiled" in {alert.rule.key for alert in compiled.alerts}
    assert alarms(compiled) == set()


def test_an_outlier_among_seeds_is_named_and_fewer_than_five_are_inconclusive() -> None:
    def run(seeds: int) -> Engine:
        engine = Engine(RULES, Context("ppo", TOTAL, CONFIG))
        records = [
            ((i + 1) * 1000, seed, {**healthy(i), **({"rollout/ep_rew_mean": 21.0} if seed == 2 else {})})
            for i in range(100)
            for seed in range(seeds)
        ]
        replay(engine, records)
        return engine

    assert [a.seed for a in run(6).alerts if a.rule.id == "R26"] == [2]
    few = run(3)
    rule = next(rule for rule in RULES if rule.id == "R26")
    assert few.skipped(rule)


def test_every_rule_is_reached_by_a_test_has_a_threshold_and_says_what_to_do() -> None:
    tested = set(FAULTS) | {"R06.short_horizon", "R17.alpha_range", "R25.slow", "R25.recompiled"}
    tested |= {"R17.entropy_gap", "R22.one_component", "R25.waiting"}
    tested |= {"R11.feature_rank", "R19.replay", "R26.outlier_seed", "R27.still_improving"}
    assert {rule.key for rule in RULES} == tested == set(THRESHOLDS)
    for rule in RULES:
        assert rule.causes, rule.key
        assert rule.advice, rule.key
        assert rule.meaning, rule.key
        assert rule.limit.source, rule.key
    assert {rule.id for rule in RULES} >= {f"R{n:02d}" for n in range(1, 30)}


def test_the_replay_is_described_and_never_judged() -> None:
    engine = engine_after({"train/n_updates": lambda i: 100.0 * (i + 1)}, batch_size=64)
    rule = next(rule for rule in RULES if rule.id == "R19")
    assert engine.value(rule, 0) == pytest.approx(6.4)
    assert engine.looks(rule) > 0
    assert rule.limit.contains(1e9)


def test_values_above_the_bound_of_compressed_or_soft_returns_are_fine() -> None:
    large: Edit = {"stats/q_abs_max": 300.0}
    assert "R15.q_bound" in alarms(engine_after(large, "dqn"))
    assert "R15.q_bound" not in alarms(engine_after(large, "dqn", value_rescale=True))
    soft = {**large, "train/ent_coef": 1.0, "train/entropy": 3.0}
    assert "R15.q_bound" not in alarms(engine_after(soft, "sac"))


def test_a_rule_without_its_metric_says_so() -> None:
    engine = Engine(RULES, Context("ppo", TOTAL, {}))
    replay(engine, [(step, 0, {"rollout/ep_rew_mean": float(step)}) for step in range(0, 100_000, 1000)])
    why = {rule.key: engine.skipped(rule) for rule in engine.rules}
    assert why["R02.kl_high"] == "no train/approx_kl"
    assert why["R08.clipped_hard"] == "setting max_grad_norm is not known or is none"
    assert why["R06.value_scale"] == "no stats/value_target_max or train/value_loss or train/critic_loss"
    assert why["R24.collapse"] == ""


def limited(limit: Limit) -> Rule:
    def measure(window: Window) -> Reading | None:
        value = window.last("x")
        return None if value is None else Reading(value, f"x {value}")

    return Rule("X01", "x", ("x",), measure, limit, "", (), ())


def feed(engine: Engine, values: list[float]) -> list[tuple[int, str]]:
    found = []
    for step, value in enumerate(values):
        found += [(step, change.kind) for change in engine.feed(step, {"x": value})]
    return found


def test_an_alert_needs_several_bad_looks_in_a_row_and_its_onset_is_the_first() -> None:
    engine = Engine([limited(Limit(high=1.0, patience=3))], Context())
    assert feed(engine, [0, 2, 2, 0, 2, 2]) == []
    assert feed(engine, [2, 2, 2]) == [(0, "raised")]  # the fourth, fifth in a row raise nothing more
    engine = Engine([limited(Limit(high=1.0, patience=3))], Context())
    assert feed(engine, [0, 2, 2, 2, 2]) == [(3, "raised")]
    assert engine.alerts[0].onset == 1
    assert engine.alerts[0].last == 4


def test_an_alert_is_cleared_only_well_inside_the_range() -> None:
    engine = Engine([limited(Limit(high=1.0, patience=2))], Context())
    assert feed(engine, [2, 2, 0.95, 0.95, 0.95, 0.95, 0.95, 0.95]) == [(1, "raised")]
    assert feed(engine, [0.5] * 4) == [(3, "cleared")]
    assert engine.alerts[0].cleared == 3
    assert feed(engine, [2, 2]) == [(1, "raised")]
    assert len(engine.alerts) == 2


def test_an_alert_can_become_an_error() -> None:
    engine = Engine([limited(Limit(high=1.0, error_high=10.0, patience=1))], Context())
    assert feed(engine, [2, 20, 30]) == [(0, "raised"), (1, "worse")]
    assert engine.alerts[0].level == "error"
    assert engine.alerts[0].worst == 30


def test_returns_of_few_episodes_are_not_believed() -> None:
    engine = Engine(RULES, Context())
    engine.feed(0, {"rollout/ep_rew_mean": 0.0, "rollout/window_episodes": 0.0})
    engine.feed(1, {"rollout/ep_rew_mean": 9.0, "rollout/window_episodes": EPISODES - 1.0})
    assert "rollout/ep_rew_mean" not in engine.history(0)
    engine.feed(2, {"rollout/ep_rew_mean": 9.0, "rollout/window_episodes": EPISODES})
    assert engine.history(0)["rollout/ep_rew_mean"].count == 1


def test_history_is_bounded_and_keeps_the_newest() -> None:
    series = Series()
    for i in range(5000):
        series.append(i, float(i))
    assert series.values(3).tolist() == [4997, 4998, 4999]
    assert series.steps(2).tolist() == [4998, 4999]
    assert len(series.values()) == KEPT
    assert (series.low, series.high, series.count) == (0, 4999, 5000)
    assert series._values.nbytes <= 2 * KEPT * 8


def test_a_record_costs_less_than_a_millisecond() -> None:
    engine = Engine(RULES, Context("ppo", TOTAL, CONFIG))
    rows = [healthy(i % 100) for i in range(400)]
    began = time.process_time()
    for step, values in enumerate(rows):
        engine.feed(step, values)
    assert (time.process_time() - began) / len(rows) < 1e-3


def test_the_page_lists_every_rule_with_its_range() -> None:
    page = (Path(__file__).parents[2] / "docs" / "health.md").read_text()
    rows = dict(re.findall(r"^\| (R\d\d\.\w+) \| .* \| (.+?) \| [PE] \|", page, re.M))
    assert rows == {rule.key: healthy_range(rule.limit) for rule in RULES}


def healthy_range(limit: Limit) -> str:
    if math.isinf(limit.low) and math.isinf(limit.high):
        return "any"
    if math.isinf(limit.low):
        return f"≤ {short(limit.high)}"
    return f"≥ {short(limit.low)}" if math.isinf(limit.high) else f"{short(limit.low)} to {short(limit.high)}"


def test_the_beginning_of_a_series_is_that_of_its_first_points() -> None:
    series = Series()
    assert math.isnan(series.start)
    assert math.isnan(series.noise)
    first = [3.0, 1.0, 2.0, 10.0, 4.0, 5.0, 7.0, 6.0]
    assert len(first) == HEAD
    for count, value in enumerate(first, 1):
        series.append(count, value)
        assert series.start == np.median(first[:count])
        assert series.noise == max(np.std(first[:count]), 0.05 * series.start)
    beginning = series.start, series.noise
    series.append(9, 1000.0)
    assert (series.start, series.noise) == beginning
