"""Sweeps: Optuna searches settings on local storage; a trial is a run over several seeds.

A trial's score is the lower end of the interval over its seeds, so that luck with one seed does not win. The
best trials may be trained again on fresh seeds: what they lose there is the luck in their being chosen.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sparring import launch
from sparring.config import dump_toml, load_toml
from sparring.errors import ConfigError, DivergedError, StorageError, missing_extra, nearest
from sparring.evaluation.statistics import Interval, interval
from sparring.runs.durable import replace_file
from sparring.session import Stop

FRESH = 10_000
"""How far the seeds of promoted trials are from those of the sweep."""
KEYS = ("choices", "low", "high", "log", "step")
JOURNAL = "study.log"


class Range(NamedTuple):
    """One setting's values: choices, or numbers from low to high."""

    choices: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    step: float | None = None

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def first(self) -> Any:
        """A value that is in the range."""
        return self.choices[0] if self.choices else self.low

    def suggest(self, trial: Any, name: str) -> Any:
        if self.choices:
            # By position: Optuna's journal holds plain values only, and a choice may be a list.
            return self.choices[trial.suggest_categorical(name, list(range(len(self.choices))))]
        if self.whole:
            return trial.suggest_int(name, self.low, self.high, step=int(self.step or 1), log=self.log)
        return trial.suggest_float(name, self.low, self.high, step=self.step, log=self.log)


Space = Mapping[str, Range]


class Trial(NamedTuple):
    """What one choice of settings achieved on the seeds of the sweep."""

    number: int
    values: dict[str, Any]
    score: Interval


class Promoted(NamedTuple):
    """A trial of the best, and what it achieved on seeds that the sweep never saw."""

    trial: Trial
    fresh: Interval
    run: Path

    @property
    def shrinkage(self) -> float:
        """What is lost of the score for which the trial was chosen."""
        return self.trial.score.value - self.fresh.value


class Outcome(NamedTuple):
    """A sweep's finished trials, best first, and the promoted ones, best on fresh seeds first."""

    trials: list[Trial]
    pruned: int
    promoted: list[Promoted]
    interrupted: bool


@dataclasses.dataclass
class Task:
    """What is trained in every trial."""

    algorithm: str
    env: str
    space: Space
    folder: Path
    seeds: tuple[int, ...]
    values: Mapping[str, Any]
    file: Path | None = None
    use_preset: bool = True
    device: str = "auto"

    def plan(self, chosen: Mapping[str, Any], seeds: tuple[int, ...]) -> launch.Plan:
        return launch.plan(
            self.algorithm,
            self.env,
            seeds,
            file=self.file,
            values={**self.values, **chosen},
            use_preset=self.use_preset,
        )


def read_space(path: Path) -> dict[str, Range]:
    """The ranges in a TOML file: a table per setting, with `choices`, or `low` and `high`."""
    space: dict[str, Range] = {}
    for name, given in load_toml(path).items():
        if not isinstance(given, dict):
            raise ConfigError(
                f"{path}: {name} must be a table, such as [{name}] with low and high, or choices."
            )
        for key in given:
            if key not in KEYS:
                raise ConfigError(f"{path}: [{name}] has no {key!r}.{nearest(key, KEYS)}")
        space[name] = _range(f"{path}: [{name}]", given)
    if not space:
        raise ConfigError(f"{path} names no setting. Add a table, such as [learning_rate] with low and high.")
    return space


def _range(where: str, given: Mapping[str, Any]) -> Range:
    if "choices" in given:
        choices = given["choices"]
        if not isinstance(choices, list) or not choices or len(given) > 1:
            raise ConfigError(f"{where} needs `choices` as a list that is not empty, and nothing beside it.")
        return Range(choices=tuple(choices))
    numbers = [given.get("low"), given.get("high")]
    if not all(isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x) for x in numbers):
        raise ConfigError(f"{where} needs `low` and `high` as numbers, or `choices`.")
    found = Range(**given)
    if not found.low < found.high or (found.log and found.low <= 0):
        raise ConfigError(f"{where}: low must be below high, and above 0 with log = true.")
    if found.step is not None and (found.log or not found.step > 0):
        raise ConfigError(f"{where}: step must be above 0, and cannot go with log = true.")
    return found


def sweep(task: Task, trials: int, *, promote: int = 0, seed: int = 0, say: Callable[[str], None]) -> Outcome:
    """Runs trials until there are that many, those of an earlier sweep in the same folder included."""
    optuna = _optuna()
    task.plan(
        {name: given.first() for name, given in task.space.items()}, task.seeds
    )  # unknown names show here
    study = _study(optuna, task, seed)
    interrupted = False

    def objective(trial: Any) -> float:
        nonlocal interrupted
        chosen = {name: given.suggest(trial, name) for name, given in task.space.items()}
        watch = Watch(trial, len(task.seeds))
        folder = task.folder / f"trial-{trial.number:04d}"
        try:
            done = launch.train(
                task.plan(chosen, task.seeds),
                run_dir=folder,
                device=task.device,
                display=lambda settings, steps: [watch],
                say=lambda text: None,
            )
        except DivergedError as error:
            say(f"trial {trial.number}: diverged with {spelled(chosen)}")
            raise optuna.TrialPruned(str(error)) from error
        if done.result.outcome == "interrupted":
            interrupted = True
            study.stop()
            raise Interrupted
        if watch.pruned and done.result.outcome == "stopped":  # after the last evaluation there is no point
            say(f"trial {trial.number}: pruned at step {watch.step:,} with {spelled(chosen)}")
            raise optuna.TrialPruned()
        score = _score(done.result)
        trial.set_user_attr("interval", list(score))
        say(f"trial {trial.number}: {score.low:.2f} (mean {score.value:.2f}) with {spelled(chosen)}")
        return score.low

    states = optuna.trial.TrialState
    left = trials - len(study.get_trials(states=(states.COMPLETE, states.PRUNED)))
    if left > 0:
        study.optimize(objective, n_trials=left, catch=(Interrupted,))
    finished = _finished(optuna, study, task.space)
    promoted = [] if interrupted else _promote(task, finished[:promote], say)
    if finished:
        best = promoted[0].trial if promoted else finished[0]
        replace_file(task.folder / "best.toml", [dump_toml(best.values).encode()])
    pruned = len(study.get_trials(states=(states.PRUNED,)))
    return Outcome(finished, pruned, promoted, interrupted)


class Interrupted(Exception):
    """A trial that Ctrl-C ended: it does not count."""


class Watch:
    """Tells Optuna of every evaluation of all seeds, and ends a run that it gives up."""

    def __init__(self, trial: Any, seeds: int) -> None:
        self.pruned = False
        self.step = 0
        self._trial = trial
        self._seeds = seeds
        self._scores: dict[int, float] = {}

    def write(self, step: int, seconds: float, values: Mapping[str, float], seed: int = 0) -> None:
        if "eval/mean_reward" not in values or self.pruned:
            return
        if step != self.step:
            self._scores.clear()
        elif len(self._scores) == self._seeds:  # a run's last evaluation is done again at its end
            return
        self.step = step
        self._scores[seed] = values["eval/mean_reward"]
        if len(self._scores) == self._seeds:
            self._trial.report(interval(np.array(list(self._scores.values()))).low, step)
            if self._trial.should_prune():
                self.pruned = True
                raise Stop

    def close(self) -> None:
        pass


def _promote(task: Task, winners: list[Trial], say: Callable[[str], None]) -> list[Promoted]:
    """The winners trained again, each on seeds of which the sweep saw none."""
    seeds = tuple(seed + FRESH for seed in task.seeds)
    promoted = []
    for trial in winners:
        path = _unused(task.folder / f"promoted-{trial.number:04d}")
        plan = task.plan(trial.values, seeds)
        try:
            done = launch.train(plan, run_dir=path, device=task.device, say=lambda text: None)
        except DivergedError:
            say(f"trial {trial.number}: diverged on fresh seeds")
            continue
        if done.result.outcome == "interrupted":
            break
        fresh = _score(done.result)
        promoted.append(Promoted(trial, fresh, path))
        say(f"trial {trial.number} on fresh seeds: {fresh.low:.2f} (mean {fresh.value:.2f})")
    return sorted(promoted, key=lambda p: p.fresh.low, reverse=True)


def _study(optuna: Any, task: Task, seed: int) -> Any:
    """The study in the sweep's folder: a new one, or the one that was begun there for the same ranges."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        task.folder.mkdir(parents=True, exist_ok=True)
        study = optuna.create_study(
            study_name="sweep",
            storage=JournalStorage(JournalFileBackend(str(task.folder / JOURNAL))),
            sampler=optuna.samplers.TPESampler(seed=seed),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=5),
            direction="maximize",
            load_if_exists=True,
        )
    except OSError as error:
        raise StorageError(f"{str(task.folder)!r} cannot be written: {error.strerror or error}.") from error
    about = {
        "algorithm": task.algorithm,
        "env": task.env,
        "seeds": list(task.seeds),
        "space": {
            name: [list(x) if isinstance(x, tuple) else x for x in given]
            for name, given in task.space.items()
        },
    }
    known = study.user_attrs.get("sweep")
    if known is None:
        study.set_user_attr("sweep", about)
    elif known != about:
        different = [key for key in about if known.get(key) != about[key]]
        raise ConfigError(
            f"{task.folder} holds a sweep with another {' and another '.join(different)}. Choose another "
            "folder with --run-dir."
        )
    return study


def _finished(optuna: Any, study: Any, space: Space) -> list[Trial]:
    """Trials that came to their end, best first."""
    done = study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))
    found = []
    for trial in done:
        values = {
            name: given.choices[trial.params[name]] if given.choices else trial.params[name]
            for name, given in space.items()
        }
        found.append(Trial(trial.number, values, Interval(*trial.user_attrs["interval"])))
    return sorted(found, key=lambda trial: trial.score.low, reverse=True)


def _score(result: Any) -> Interval:
    return interval(np.array([evaluation.mean for evaluation in result.evaluations]))


def _unused(path: Path) -> Path:
    number, found = 1, path
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}-{number}")
    return found


def spelled(values: Mapping[str, Any]) -> str:
    """Settings as `--set` takes them."""
    return " ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in values.items())


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise missing_extra("optuna", "sweep") from error
    return optuna
