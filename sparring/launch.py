"""Launching runs: settings from presets, files and flags become a run folder that trains and resumes."""

from __future__ import annotations

import dataclasses
import tomllib
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from sparring.background import BackgroundEvaluator, Stage
from sparring.common.words import translated
from sparring.config import Layer, as_mapping, coerce, from_mapping, load_toml, merge
from sparring.envs import registry
from sparring.errors import CheckpointError, ConfigError, LearnerLost, NoPlace, nearest
from sparring.evaluation.evaluator import ROWS
from sparring.machine import usable_cores
from sparring.metrics import trackers
from sparring.metrics.alerts import parse_policy
from sparring.metrics.apart import Apart
from sparring.metrics.sink import Sink, Tee
from sparring.metrics.sqlite import SqliteSink
from sparring.model import Assembly, algorithm_class, assemble, save_agent
from sparring.reference import is_reference
from sparring.replay.offpolicy import too_short
from sparring.replay.size import told
from sparring.runs import checkpoint, directory, provenance
from sparring.runs.directory import RunDirectory
from sparring.session import Result, Session, Settings, watch

LEARNERS_LOST = 5
"""Learners of a cluster that die in a row without a new checkpoint between, after which the run stops."""

Display = Callable[[Settings, int], list[Sink]]
"""Makes what shows a run, given its settings and the steps it starts at."""


class Plan(NamedTuple):
    """A run before it starts: what to train, on what, and where every value came from."""

    algorithm: str
    env: str
    seeds: tuple[int, ...]
    settings: Settings
    config: Any
    env_kwargs: dict[str, Any]
    provenance: dict[str, str]
    preset: bool
    """whether a tuned preset of the environment was used"""


class Outcome(NamedTuple):
    """A run and what came of it."""

    run: RunDirectory
    result: Result

    def as_json(self) -> dict[str, Any]:
        result = self.result
        out: dict[str, Any] = {
            "run": str(self.run.path),
            "outcome": result.outcome,
            "steps": result.steps,
            "seconds": result.seconds,
            "steps_per_second": result.steps_per_second,
            "compile_seconds": result.compile_seconds,
        }
        if result.evaluations:
            out["eval"] = result.evaluations[0].as_json()
            if len(result.evaluations) > 1:
                out["eval_by_seed"] = [e.as_json() for e in result.evaluations]
        return out


def preset(algorithm: str, env: str) -> dict[str, Any]:
    """The tuned settings of an algorithm on an environment; empty when there are none."""
    if is_reference(algorithm):
        return {}
    file = resources.files("sparring") / "presets" / f"{algorithm.lower()}.toml"
    if not file.is_file():
        return {}
    known = tomllib.loads(file.read_text())
    return dict(known.get(env.removeprefix("gym:").removeprefix("envpool:"), {}))


def plan(
    algorithm: str,
    env: str,
    seeds: tuple[int, ...] = (0,),
    *,
    file: Path | None = None,
    values: Mapping[str, Any] | None = None,
    use_preset: bool = True,
) -> Plan:
    """Layers defaults, preset, file and given values; an unknown key is an error with the nearest match."""
    cls = algorithm_class(algorithm)
    tuned = preset(algorithm, env) if use_preset else {}
    layers = [Layer(f"preset {algorithm}/{env}", tuned)]
    if file is not None:
        layers.append(Layer(str(file), load_toml(file)))
    layers.append(Layer("--set", values or {}))
    merged, origin = merge(layer._replace(values=translated(layer.values, cls.Config)) for layer in layers)
    if merged.pop("normalize", False):  # RL-Zoo's word for both
        for name in ("normalize_obs", "normalize_reward"):
            merged.setdefault(name, True)
            origin.setdefault(name, origin["normalize"])
    kwargs = merged.pop("env_kwargs", {})
    if not isinstance(kwargs, Mapping):
        raise ConfigError(
            f"env_kwargs must be a table of the environment's arguments, got {kwargs!r}. Example: "
            """--set 'env_kwargs={"g": 9.0}'."""
        )
    ours = typing.get_type_hints(Settings)
    theirs = typing.get_type_hints(cls.Config)
    for key in merged:
        if key not in ours and key not in theirs:
            raise ConfigError(
                f"Neither {cls.__name__} nor a run has a setting {key!r}.{nearest(key, [*ours, *theirs])} "
                f"See: sparring config show {algorithm} {env}"
            )
    settings = from_mapping(Settings, {k: v for k, v in merged.items() if k in ours})
    config = from_mapping(cls.Config, {k: v for k, v in merged.items() if k in theirs})
    provenance = {
        f.name: origin.get(f.name, "default")
        for f in (*dataclasses.fields(settings), *dataclasses.fields(config))
    }
    return Plan(algorithm, env, seeds, settings, config, dict(kwargs), provenance, bool(tuned))


def train(
    plan: Plan,
    *,
    run_dir: Path | None = None,
    device: str = "auto",
    display: Display | None = None,
    say: Callable[[str], None] = print,
    tensorboard: Path | None = None,
    track: Sequence[str] = (),
) -> Outcome:
    """Starts a run in a new folder and trains it to its end; `track` names trackers."""
    # Before the folder exists, so that bad settings leave nothing behind.
    trackers.check(track if tensorboard is None else (*track, "tensorboard"))
    parts = _assemble(plan, device, say)
    total = plan.settings.total_timesteps
    name = Path(plan.algorithm.partition(":")[0]).stem
    try:
        run = directory.create(name, plan.env, plan.seeds[0], path=run_dir, total=total)
    except BaseException:
        _close(parts)
        raise
    with run:
        kept = facts(plan)
        run.write_config(
            kept,
            {
                **{f"settings.{k}": v for k, v in plan.provenance.items()},
                **{f"config.{k}": v for k, v in plan.provenance.items()},
            },
        )
        start_trackers = partial(trackers.start, track, run.path, kept, say, tensorboard)
        return _to_the_end(run, plan, parts, device, display, say, start_trackers, again=False)


def facts(plan: Plan) -> dict[str, Any]:
    """The plan as a run's `config.toml` and trackers keep it."""
    return {
        "schema": 1,
        "algorithm": plan.algorithm,
        "env": plan.env,
        "seeds": list(plan.seeds),
        "settings": as_mapping(plan.settings),
        "config": as_mapping(plan.config),
        "env_kwargs": plan.env_kwargs,
    }


def read_plan(run: RunDirectory, trust_code: bool = False) -> Plan:
    """The plan that a run's folder holds; code from inside the folder itself is never run."""
    saved = run.read_config()
    try:
        algorithm, env = str(saved["algorithm"]), str(saved["env"])
        seeds = tuple(int(s) for s in saved["seeds"])
        settings, values, kwargs = saved["settings"], saved["config"], saved.get("env_kwargs", {})
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{run.path / 'config.toml'} is not a run's configuration: {error}") from error
    for reference in (algorithm, env, str(values.get("network", ""))):
        if is_reference(reference) and not trust_code:
            place = Path(reference.rpartition(":")[0]).resolve()
            if place.is_relative_to(run.path.resolve()):
                raise ConfigError(
                    f"{run.path} names code that lies inside the run itself ({place.name}). Look at the "
                    "file, and if you trust it add --trust-code."
                )
    cls = algorithm_class(algorithm)
    config = from_mapping(cls.Config, values)
    return Plan(algorithm, env, seeds, from_mapping(Settings, settings), config, dict(kwargs), {}, False)


def resume(
    run: RunDirectory,
    *,
    total_timesteps: int | None = None,
    device: str = "auto",
    display: Display | None = None,
    say: Callable[[str], None] = print,
    trust_code: bool = False,
    track: Sequence[str] = (),
) -> Outcome:
    """Continues a run exactly where its newest good checkpoint was taken."""
    trackers.check(track)
    saved = read_plan(run, trust_code)
    if saved.env.startswith("object:"):
        raise CheckpointError(
            f"{run.path} was trained on an environment object ({saved.env.removeprefix('object:')}), which a "
            "run folder cannot rebuild. Resume it in Python: load the agent with env=… and call learn with "
            "reset_num_timesteps=False."
        )
    if total_timesteps is not None:
        total = coerce(total_timesteps, int, "total_timesteps")
        saved = saved._replace(settings=dataclasses.replace(saved.settings, total_timesteps=total))
    with run:
        parts = _assemble(saved, device, say)
        start_trackers = partial(trackers.start, track, run.path, facts(saved), say)
        return _to_the_end(run, saved, parts, device, display, say, start_trackers, again=True)


def _in_background(plan: Plan) -> bool:
    """Whether a process of its own evaluates: unless told otherwise, where an environment steps in Python."""
    chosen = plan.settings.evaluation
    return chosen == "background" or (chosen == "auto" and not registry.is_jax(plan.env))


class Players(NamedTuple):
    """Who evaluates and who films beside training, where somebody does; it may be the same."""

    evaluator: BackgroundEvaluator | None
    filmer: BackgroundEvaluator | None

    def close(self) -> None:
        for player in self:
            if player is not None:
                player.close()


def _players(plan: Plan, settings: Settings, say: Callable[[str], None]) -> Players:
    """A process beside training, and for evaluation, where there is a cluster, an actor in it."""
    evaluates, films = _in_background(plan), settings.video_freq > 0
    episodes = settings.n_eval_episodes
    rows = min(episodes, ROWS)
    stage = Stage(plan.env, plan.env_kwargs, settings.time_limit, rows, episodes, trusted=True)
    beside = BackgroundEvaluator(stage, say)
    if evaluates and settings.driver == "cluster":
        from sparring.remote_evaluator import ClusterEvaluator

        return Players(ClusterEvaluator(stage, say), beside if films else None)
    return Players(beside if evaluates else None, beside if films else None)


def _assemble(plan: Plan, device: str, say: Callable[[str], None]) -> Assembly:
    parse_policy(plan.settings.on_alert)
    if plan.settings.video_freq < 0 or plan.settings.video_grid < 1:
        raise ConfigError("video_freq must be 0 (no films) or above, video_grid at least 1.")
    parts = assemble(
        algorithm_class(plan.algorithm),
        plan.env,
        plan.settings,
        plan.config,
        plan.seeds,
        env_kwargs=plan.env_kwargs,
        eval_env=False if _in_background(plan) else None,
        device=device,
        alone=True,
    )
    for warning in [*parts.warnings, *too_short(plan.config, plan.settings.total_timesteps)]:
        say(f"Warning: {warning}")
    if hasattr(plan.config, "buffer_size") and not plan.settings.replay_shards:  # those lie elsewhere
        say(told(parts.driver, plan.config))
    return parts


def _close(parts: Assembly) -> None:
    parts.driver.close()
    if parts.eval_env is not None and hasattr(parts.eval_env, "close"):
        parts.eval_env.close()


def _to_the_end(
    run: RunDirectory,
    plan: Plan,
    parts: Assembly | None,
    device: str,
    display: Display | None,
    say: Callable[[str], None],
    start_trackers: Callable[[], Sequence[Sink]],
    again: bool,
) -> Outcome:
    """Runs, with another learner from the newest checkpoint on whenever one in a cluster has died."""
    lost, reached = 0, checkpoint.listing(run.checkpoints)
    while True:
        try:
            parts = parts or _assemble(plan, device, say)
            return _run(run, plan, parts, display, say, start_trackers(), again)
        except LearnerLost as error:
            before, reached = reached, checkpoint.listing(run.checkpoints)
            lost = lost + 1 if reached == before else 1
            if lost >= LEARNERS_LOST:
                raise
            say(f"{error} Doing that now.")
            parts, again = None, True
        except NoPlace as error:
            if not lost:
                raise
            say(f"{error} Waiting for a node that joins.")


def _run(
    run: RunDirectory,
    plan: Plan,
    parts: Assembly,
    display: Display | None,
    say: Callable[[str], None],
    extra: Sequence[Sink],
    again: bool,
) -> Outcome:
    driver = parts.driver
    health = watch(
        run,
        plan.algorithm,
        {**as_mapping(plan.settings), **as_mapping(plan.config)},
        on_alert=plan.settings.on_alert,
        say=say,
        total=plan.settings.total_timesteps,
        target=parts.spec.reward_threshold,
        trackers=[sink for sink in extra if isinstance(sink, Apart)],
        env=plan.env,
    )
    stored = SqliteSink(run.metrics)
    # Closed in this order: what the rules find at the end still reaches the trackers.
    sinks: list[Sink] = [stored, health, *extra]

    def keep(folder: Path, index: int, full: bool) -> None:
        lasting = folder.parent != run.snapshots  # training does not wait for the disk for the others
        save_agent(folder, driver.algo, driver.train_state(index), plan.algorithm, full, sync=lasting)

    players = _players(plan, parts.settings, say)
    session = Session(
        driver,
        parts.settings,
        parts.eval_env,
        run,
        sinks,
        save_agent=keep,
        metadata={"env": plan.env},
        say=say,
        evaluator=players.evaluator,
        filmer=players.filmer,
    )
    try:
        try:
            if again and not session.restore():
                say("There is no checkpoint yet: starting from the beginning.")
            health.catch_up()
            stored.describe({"device": provenance.device(), "cores": usable_cores()})
        except BaseException:
            Tee(sinks).close()
            raise
        session.displays.extend(display(parts.settings, session.steps) if display is not None else [])
        return Outcome(run, session.run())
    finally:
        players.close()
        _close(parts)
