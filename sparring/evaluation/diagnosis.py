"""What is wrong with a run, as one bounded object (schema diagnose/1) for a person, a page or a model.

The object is a pure function of the run's files: the same files give the same object. Strings that came
from outside (names, messages) are data: they are cleaned here and become part of a command only if harmless.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sparring.evaluation.statistics import interval
from sparring.metrics import charts, performance, sqlite, wandb_history
from sparring.metrics.advice import Commands
from sparring.metrics.foreign import clean
from sparring.metrics.health import Alert, Context, Engine, Rule, replay
from sparring.metrics.registry import EPISODIC
from sparring.metrics.rules import EVAL, RETURN, RULES, SAMPLED
from sparring.runs.directory import RunDirectory

SCHEMA = "diagnose/1"
OUTCOMES = frozenset({"R23", "R24", "R26", "R27", "R29"})
"""Rules that see an effect, not its cause."""
SHOWN = (
    EVAL,
    SAMPLED,
    RETURN,
    "rollout/ep_len_mean",
    "train/approx_kl",
    "train/clip_fraction",
    "train/explained_variance",
    "stats/entropy_relative",
    "train/entropy_loss",
    "train/value_loss",
    "train/critic_loss",
    "train/q_mean",
    "train/grad_norm",
    "train/std",
    "train/ent_coef",
)
"""Curves of every diagnosis, where they exist; those of findings come too."""
EVIDENCE = 160
"""Characters of a finding's evidence."""
SUSPECTS = {
    "R01.not_finite": "NaN",
    "R02.kl_high": "too large policy steps",
    "R06.value_scale": "value scale",
    "R08.no_gradient": "missing gradients",
    "R12.obs_scale": "observation scale",
    "R05.entropy_low": "entropy collapse",
}
"""Well-known causes that a finding can exclude."""


class Subject(NamedTuple):
    """A run as the diagnosis sees it."""

    id: str
    algorithm: str
    env: str
    status: str = "unknown"
    message: str = ""
    total: int = 0
    """planned steps of one seed"""
    config: Mapping[str, Any] = {}
    changed: Mapping[str, str] = {}
    """settings that are neither default nor preset, and where they came from"""
    seeds: tuple[int, ...] = (0,)
    records: tuple[tuple[int, int, Mapping[str, float]], ...] = ()
    alerts: tuple[sqlite.StoredAlert, ...] = ()
    wall_seconds: float | None = None
    has_best: bool = False
    facts: Mapping[str, str] = {}
    """what else is known: git, device"""


def subject_of(run: RunDirectory) -> Subject:
    """Reads a run's folder."""
    saved, status = run.read_config(), run.read_status()
    settings, config = dict(saved.get("settings", {})), dict(saved.get("config", {}))
    exists = run.metrics.is_file()
    text = (run.path / "config.toml").read_text(encoding="utf-8")
    origin = dict(re.findall(r"^(\w+) = .*  # (.+)$", text, re.M))
    return Subject(
        run.name,
        str(saved.get("algorithm", status.algo)),
        str(saved.get("env", status.env)),
        status.state,
        status.message,
        int(settings.get("total_timesteps", status.total) or 0),
        {**settings, **config},
        {k: v for k, v in origin.items() if not v.startswith(("default", "preset", "--total"))},
        tuple(int(s) for s in saved.get("seeds", [status.seed])),
        tuple(sqlite.records(run.metrics)) if exists else (),
        tuple(sqlite.alerts(run.metrics) or ()) if exists else (),
        max(status.updated - status.started, 0.0) if status.updated else None,
        run.best.is_dir(),
        sqlite.metadata(run.metrics) if exists else {},
    )


def subject_of_wandb(file: Path) -> Subject:
    """Reads an offline run of Weights & Biases; settings are found under the usual names."""
    logged = wandb_history.read(file)

    def setting(*names: str) -> str:
        return next((str(logged.config[name]) for name in names if logged.config.get(name)), "?")

    total = setting("total_timesteps", "total_steps")
    return Subject(
        logged.name,
        setting("algo", "algorithm", "exp_name").lower(),
        setting("env_id", "env", "env_name", "gym_id"),
        "finished" if logged.finished else "unknown",
        total=int(float(total)) if re.fullmatch(r"[0-9.e+]{1,20}", total) else 0,
        config=logged.config,
        records=tuple(logged.records),
    )


def diagnose(subject: Subject, since: int = 0, target: float | None = None) -> dict[str, Any]:
    """The whole report; every number rounded to four digits."""
    engine = Engine(RULES, Context(subject.algorithm, subject.total, subject.config, target))
    replay(engine, subject.records)
    curves = _curves(subject.records)
    commands = Commands(
        subject.algorithm, subject.env, subject.id, subject.config, subject.total, tuple(subject.changed)
    )
    findings = [f for f in _findings(subject, engine, commands) if f["last_step"] >= since]
    judged = [rule for rule in engine.rules if engine.looks(rule)]
    flagged = {(f["id"], f["name"]) for f in findings}
    passes = [rule for rule in judged if (rule.id, rule.name) not in flagged]
    skipped = [
        {"id": rule.key, "why": engine.skipped(rule)}
        for rule in engine.rules
        if rule not in judged and not engine.foreign(rule)
    ]
    speed = performance.judge(subject.records, subject.config, commands, _kind_of_device(subject))
    report = {
        "schema": SCHEMA,
        "run": _run(subject),
        "progress": _progress(subject, curves, engine),
        "verdict": _verdict(subject, findings, judged, engine),
        "score": _score(subject, curves, target),
        "findings": findings,
        "timeline": _timeline(subject, findings, curves, since),
        "series": _series(curves, findings, since),
        "environment": _environment(curves),
        "performance": None if speed is None else speed.as_json(),
        "config_changed": {clean(k): clean(str(subject.config.get(k))) for k in sorted(subject.changed)},
        "passes": [_pass(rule, engine) for rule in passes],
        "missing": _missing(subject, curves),
        "checks_run": len(judged),
        "checks_skipped": skipped,
        "next": _next(subject, findings, commands, "" if speed is None else speed.command),
    }
    rounded: dict[str, Any] = _rounded(report)
    return rounded


# -- parts of the report ---------------------------------------------------------------------------------

Curves = dict[str, tuple[np.ndarray, np.ndarray]]
"""Each metric's steps and values, the mean over seeds at every step."""


def _curves(records: Iterable[tuple[int, int, Mapping[str, float]]]) -> Curves:
    sums: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for step, _, values in records:
        begun = values.get("rollout/window_episodes", 1.0) > 0
        for name, value in values.items():
            if math.isfinite(value) and (begun or not name.startswith(EPISODIC)):
                sums[name][step].append(value)
    return {
        name: (np.array(list(points), np.int64), np.array([float(np.mean(v)) for v in points.values()]))
        for name, points in sums.items()
    }


def _run(subject: Subject) -> dict[str, Any]:
    return {
        "id": clean(subject.id),
        "algo": clean(subject.algorithm),
        "env": clean(subject.env),
        "status": subject.status,
        "message": clean(subject.message, 300),
        "seeds": len(subject.seeds),
        "git": clean(subject.facts["git"]) if "git" in subject.facts else None,
        "device": clean(subject.facts["device"]) if "device" in subject.facts else None,
        "wall_s": subject.wall_seconds,
    }


def _kind_of_device(subject: Subject) -> str:
    """What a sentence may call the device, whose full name is foreign."""
    name = subject.facts.get("device", "")
    return name.lower() if name.lower() in ("", "cpu") else "accelerator"


def _progress(subject: Subject, curves: Curves, engine: Engine) -> dict[str, Any]:
    step = max((step for step, _, _ in subject.records), default=0)
    clock = curves.get("time/time_elapsed")
    now = None
    if clock is not None and len(clock[0]) > 2:
        last = max(len(clock[0]) // 10, 2)
        lasted = float(clock[1][-1] - clock[1][-last])
        now = float(clock[0][-1] - clock[0][-last]) / lasted if lasted > 0 else None
    mean = _last(curves, "time/fps")
    left, speed = max(subject.total - step, 0), now or mean
    return {
        "step": step,
        "budget": subject.total,
        "frac": min(step / subject.total, 1.0) if subject.total else None,
        "sps_now": now,
        "sps_med": mean,
        "eta_s": left / speed if subject.status == "running" and speed else None,
        "compile_s": _last(curves, "time/compile_seconds"),
        "recompiles_after_warmup": sum(a.rule.key == "R25.recompiled" for a in engine.alerts),
    }


def _verdict(
    subject: Subject, findings: list[dict[str, Any]], judged: list[Rule], engine: Engine
) -> dict[str, Any]:
    alarms = [f for f in findings if f["level"] != "note"]
    lasting = [f for f in alarms if not f["cleared"]]
    if lasting:  # what still hurts may come from an error that is over
        lasting += [f for f in alarms if f["cleared"] and f["level"] == "error"]
    errors = [f for f in lasting if f["level"] == "error"]
    share = len(judged) / max(len(engine.rules), 1)
    primary = min(
        lasting or alarms,
        key=lambda f: (f["id"] in OUTCOMES, f["level"] != "error", f["first_step"], f["id"]),
        default=None,
    )
    distinct = len({f["id"] for f in lasting})
    if subject.status == "failed":
        state, confidence = "failed", 0.95
        line = f"failed at step {max((s for s, _, _ in subject.records), default=0):,}"
    elif not subject.records or (not alarms and len(judged) < 5):
        state, confidence = "inconclusive", 0.5
        line = f"only {len(judged)} checks could be made"
    elif errors or distinct >= 3:
        state, confidence = "unhealthy", min(1 - 0.5 ** (distinct + len(errors)), 0.95)
        line = ""
    elif lasting:
        state, confidence, line = "watch", 0.3 + 0.1 * distinct, ""
    else:
        state, confidence = "healthy", 0.4 + 0.5 * share
        line = f"{len(judged)} checks passed" + (f"; {len(alarms)} alerts are over" if alarms else "")
    if primary is not None:
        said = f"{primary['meaning']} since step {primary['first_step']:,}"
        line = f"{line}; {said}" if line else said
    return {
        "state": state,
        "confidence": confidence,
        "one_line": line,
        "primary": primary["id"] if primary is not None else None,
    }


def _score(subject: Subject, curves: Curves, target: float | None) -> dict[str, Any]:
    name = EVAL if EVAL in curves else RETURN
    finals: dict[int, float] = {}
    for _, seed, values in subject.records:
        if name in values and math.isfinite(values[name]):
            finals[seed] = values[name]
    scores = np.array([finals[seed] for seed in sorted(finals)])
    if not len(scores):
        return {"metric": name, "value": None, "n_seeds": 0}
    found = interval(scores)
    curve = curves[name][1]
    return {
        "metric": name,
        "eval_iqm": found.value,
        "ci95": [found.low, found.high] if len(scores) > 1 else None,
        "n_seeds": len(scores),
        "best": float(curve.max()),
        "first": float(curve[0]),
        "target": target,
        "trend": {"slope_per_1M": _slope(*curves[name])},
    }


def _findings(subject: Subject, engine: Engine, commands: Commands) -> list[dict[str, Any]]:
    """One entry per rule, by onset, over all seeds; what the run itself stored is added where it saw more."""
    rules = {rule.key: rule for rule in RULES}
    groups: dict[str, list[Alert]] = defaultdict(list)
    for alert in engine.alerts:
        groups[alert.rule.key].append(alert)
    seen = {(alert.rule.key, alert.seed) for alert in engine.alerts}
    for kept in subject.alerts:
        rule = rules.get(f"{kept.rule}.{kept.name}")
        if rule is not None and (rule.key, kept.seed) not in seen and kept.level in ("note", "warn", "error"):
            value = math.nan if kept.value is None else kept.value
            groups[rule.key].append(
                Alert(
                    rule,
                    kept.seed,
                    kept.level,  # type: ignore[arg-type]
                    kept.onset,
                    kept.last,
                    value,
                    kept.evidence,
                    value,
                    kept.cleared,
                )
            )
    if "diverged" in subject.message and "R01.not_finite" not in groups:
        step = max((s for s, _, _ in subject.records), default=0)
        words = "the run ended because a number was not finite (see its message)"
        groups["R01.not_finite"] = [Alert(rules["R01.not_finite"], 0, "error", step, step, 1.0, words, 1.0)]
    suspected = {key.partition(".")[0] for key in groups}
    clear = [
        words
        for key, words in SUSPECTS.items()
        if key.partition(".")[0] not in suspected
        and any(r.key == key and engine.looks(r) for r in engine.rules)
    ]
    found = [_finding(rules[key], alerts, clear, commands, seen) for key, alerts in groups.items()]
    return sorted(found, key=lambda f: (f["first_step"], f["id"], f["name"]))


def _finding(
    rule: Rule, alerts: list[Alert], clear: list[str], commands: Commands, seen: Collection[tuple[str, int]]
) -> dict[str, Any]:
    """A rule's alerts as one entry; `seen` are those (rule, seed) that were measured here and now."""
    rank = {"note": 0, "warn": 1, "error": 2}
    worst = max(alerts, key=lambda a: (rank[a.level], -a.onset, -a.seed))
    tries = [
        {"cmd": command, "why": advice.why, "expected": advice.expected}
        for advice in rule.advice_for(worst.worst)
        if (command := commands.of(advice))
    ]
    lasting = [a for a in alerts if a.cleared is None]
    return {
        "id": rule.id,
        "name": rule.name,
        "level": worst.level,
        "meaning": rule.meaning,
        "first_step": min(a.onset for a in alerts),
        "last_step": max(a.last for a in alerts),
        "cleared": not lasting,
        "times": len(alerts),
        "seeds": sorted({a.seed for a in alerts}),
        "metric": (rule.needs or rule.one_of)[0].replace("*", "any"),
        "value": worst.worst,
        "healthy": _range(rule),
        "window": rule.limit.window,
        "evidence": clean(worst.evidence, EVIDENCE),
        "quoted": rule.quotes or (rule.key, worst.seed) not in seen,
        "likely_causes": list(rule.causes),
        "not_caused_by": clear,
        "try": tries,
        "source": rule.limit.source,
        "basis": "published" if rule.limit.basis == "P" else "engineering",
        "confidence": min(0.5 + 0.2 * (worst.level == "error") + 0.2 * (rule.limit.basis == "P"), 0.95),
    }


def _timeline(
    subject: Subject, findings: list[dict[str, Any]], curves: Curves, since: int
) -> list[dict[str, Any]]:
    """What happened, in order: causes come before effects."""
    events = [(f["first_step"], f"{f['id']} {f['name']} ({f['level']})") for f in findings]
    events += [(f["last_step"], f"{f['id']} {f['name']} over") for f in findings if f["cleared"]]
    for name in (EVAL, RETURN):
        if name in curves:
            steps, values = curves[name]
            best = int(np.argmax(values))
            events.append((int(steps[best]), f"best {name} {charts.short(float(values[best]))}"))
            break
    end = max((s for s, _, _ in subject.records), default=0)
    events.append((end, f"status {subject.status}"))
    return [{"step": step, "event": event} for step, event in sorted(events) if step >= since]


def _series(curves: Curves, findings: list[dict[str, Any]], since: int) -> dict[str, Any]:
    wanted = [*SHOWN, *(f["metric"] for f in findings)]
    out = {}
    for name in dict.fromkeys(wanted):
        if name not in curves:
            continue
        steps, values = curves[name]
        steps, values = steps[steps >= since], values[steps >= since]
        if not len(steps):
            continue
        chosen = charts.knots(steps, values)
        means = charts.smooth(values)
        out[name] = {
            "n": len(steps),
            "pts": [[int(steps[i]), float(means[i])] for i in chosen],
            "spark": charts.sparkline(values, 16),
            "min": float(values.min()),
            "max": float(values.max()),
            "last": float(values[-1]),
            "slope_per_1M": _slope(steps, values),
            "changepoints": [int(steps[i]) for i in chosen[1:-1]],
        }
    return out


def _environment(curves: Curves) -> dict[str, Any]:
    """What is known about the environment's behaviour: newest values of its statistics."""
    out: dict[str, Any] = {}
    for name in ("rollout/ep_len_mean", "rollout/episodes", RETURN):
        if name in curves:
            out[name] = _last(curves, name)
    own = [n for n in sorted(curves) if n.startswith(("stats/", "env/"))]
    for name in own[:24]:
        out[clean(name, 40)] = _last(curves, name)
    lengths = curves.get("rollout/ep_len_mean")
    if lengths is not None and len(lengths[1]) >= 10 and float(np.ptp(lengths[1][-10:])) == 0:
        out["note"] = (
            f"all episodes last {lengths[1][-1]:.0f} steps: a time limit, or a task that never fails"
        )
    return out


def _pass(rule: Rule, engine: Engine) -> dict[str, Any]:
    values = [v for seed in engine.steps if math.isfinite(v := engine.value(rule, seed))]
    return {"id": rule.key, "value": float(np.median(values)) if values else None, "healthy": _range(rule)}


def _missing(subject: Subject, curves: Curves) -> list[str]:
    out = []
    if not subject.records:
        out.append("no metrics yet")
    if EVAL not in curves:
        out.append("no evaluation yet: scores are training returns")
    if not any(name.startswith("stats/") for name in curves):
        out.append("no statistics (stats/...): several checks were skipped")
    if len(subject.seeds) < 5:
        out.append(f"only {len(subject.seeds)} of 5 seeds: differences between seeds unknown")
    if not subject.total:
        out.append("planned steps unknown: rules that wait for a share of the run look at once")
    return out


def _next(
    subject: Subject, findings: list[dict[str, Any]], commands: Commands, faster: str = ""
) -> list[str]:
    """At most four commands: what the findings suggest, then looking at the agent, then speed."""
    ordered = sorted(findings, key=lambda f: (f["id"] in OUTCOMES, f["level"] != "error", f["first_step"]))
    wanted = [step["cmd"] for finding in ordered for step in finding["try"][:1]]
    if subject.has_best:
        wanted.append(f"sparring eval {commands.run} --best")
    if subject.status in ("killed", "interrupted", "stopped"):
        wanted.append(f"sparring resume {commands.run}")
    wanted += [faster] if faster.startswith("sparring train") else []
    return list(dict.fromkeys(wanted))[:4]


def _range(rule: Rule) -> list[float | None]:
    low, high = rule.limit.low, rule.limit.high
    return [low if math.isfinite(low) else None, high if math.isfinite(high) else None]


def _last(curves: Curves, name: str) -> float | None:
    return float(curves[name][1][-1]) if name in curves else None


def _slope(steps: np.ndarray, values: np.ndarray) -> float | None:
    """Change per million steps over the last 30 % of the points."""
    count = max(len(steps) * 3 // 10, 3)
    x, y = steps[-count:].astype(np.float64), values[-count:]
    x = x - x.mean()
    squares = float(x @ x)
    return float(x @ y) / squares * 1e6 if len(y) >= 3 and squares > 0 else None


def _rounded(value: Any) -> Any:
    """Numbers with four digits, so that reports are short and equal."""
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(v) for v in value]
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else None
    return value
