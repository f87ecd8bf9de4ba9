"""`sparring runs`: the runs of a folder, newest first; the seeds of a run are one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.cli.output import Output, number, paragraph, table, width
from sparring.cli.parser import Options, Parser, UsageError, positive
from sparring.errors import StorageError
from sparring.runs import directory
from sparring.runs.selection import Listed, everything, filtered, parse_filter

if TYPE_CHECKING:
    from sparring.metrics.performance import Performance

HEAD = ("name", "algo", "env", "seed", "steps", "reward", "state")
SORTS = ("started", *HEAD)
DESCENDING = ("started", "steps", "reward")


def parser() -> Parser:
    made = Parser(
        "runs",
        "List the runs, newest first. The seeds of one run are one line; their reward is the interquartile\n"
        "mean. Filters take any setting, * and ?, and a comma for either.",
        (
            "runs",
            "runs algo=ppo,sac env=Hopper* --sort reward --limit 10",
            "runs state=killed",
            "runs --long --limit 5",
        ),
    )
    made.add_argument(
        "words",
        nargs="*",
        metavar="FOLDER | NAME=PATTERN",
        help="the folder of runs (default runs) and filters: algo=… env=… state=… name=… seed=… or a setting",
    )
    made.add_argument(
        "--sort", choices=SORTS, default="started", help="default started; numbers begin with the largest"
    )
    made.add_argument("--reverse", action="store_true", help="the other way round")
    made.add_argument("--limit", type=positive, metavar="N", help="show the first N")
    made.add_argument("--long", action="store_true", help="say also what each run spent its time on")
    return made


def run(options: Options, out: Output) -> int:
    root, filters = read_words(options.words)
    listed = everything(root)
    found = [(run, reward(run)) for run in filtered(listed, parse_filter(filters))]
    found = ordered(found, options.sort, options.reverse)[: options.limit]
    speeds = [speed(run, out.say) if options.long else None for run, _ in found]
    shown = [as_json(run, score) for run, score in found]
    if options.long:
        shown = [
            {**run, "performance": verdict and verdict.as_json()}
            for run, verdict in zip(shown, speeds, strict=True)
        ]
    out.result({"runs": shown})
    if out.as_json:
        return 0
    if not listed:
        out.say(f"There are no runs in {root}. Start one: sparring train ppo CartPole-v1")
    elif not found:
        out.say(f"None of the {len(listed)} runs in {root} matches {' '.join(filters)}.")
    else:
        rows = [row(run, score) for run, score in found]
        out.say(table(HEAD, rows, width(), optional=("seed", "algo", "env")))
        for (run, _), verdict in zip(found, speeds, strict=True):
            if verdict is not None:
                words = f"{verdict.sentence} Try: {verdict.command}" if verdict.command else verdict.sentence
                out.say(paragraph(f"{run.run.name}: {words}", indent=2))
    return 0


def read_words(words: list[str]) -> tuple[Path, list[str]]:
    """The folder and the filters; a folder is what has no `=` or exists."""
    folders = [word for word in words if "=" not in word or Path(word).is_dir()]
    if len(folders) > 1:
        raise UsageError(
            f"One folder of runs at a time, got {' and '.join(folders)}. See: sparring runs --help"
        )
    filters = [part for word in words if word not in folders for part in word.split()]
    return Path(folders[0]) if folders else directory.ROOT, filters


def reward(run: Listed) -> float | None:
    """A run's last reward; over several seeds their IQM."""
    if len(run.seeds) == 1:
        return run.status.mean_reward
    import numpy as np

    from sparring.evaluation.comparison import FINAL
    from sparring.evaluation.statistics import iqm
    from sparring.metrics import sqlite

    try:
        for metric in FINAL:
            last = [sqlite.last(run.run.metrics, metric, index) for index in range(len(run.seeds))]
            values = [value for value in last if value is not None]
            if values:
                return float(iqm(np.array(values)))
    except StorageError:  # a damaged file must not hide the other runs
        return run.status.mean_reward
    return run.status.mean_reward


def speed(run: Listed, say: Callable[[str], None]) -> Performance | None:
    """What limits a run's speed; None where its metrics do not tell."""
    from sparring.metrics import performance, sqlite
    from sparring.metrics.advice import Commands

    status = run.status
    sections = (run.config.get(part, {}) for part in ("settings", "config"))
    known = {key: value for part in sections if isinstance(part, Mapping) for key, value in part.items()}
    commands = Commands(status.algo, status.env, run.run.name, known, status.total)
    try:
        device = sqlite.metadata(run.run.metrics).get("device", "")
        return performance.judge(performance.recorded(run.run.metrics), known, commands, device)
    except StorageError as error:  # a damaged file must not hide the other runs
        say(f"{run.run.name}: where its time went is not known. {error}")
        return None


def ordered(
    found: list[tuple[Listed, float | None]], key: str, backwards: bool
) -> list[tuple[Listed, float | None]]:
    """Runs by a column; those without a value come last either way."""

    def value(pair: tuple[Listed, float | None]) -> Any:
        run, score = pair
        status = run.status
        if key == "reward":
            return score
        return {"name": run.run.name, "seed": run.seeds, **status._asdict()}[key]

    known = [pair for pair in found if value(pair) is not None]
    known.sort(key=value, reverse=(key in DESCENDING) != backwards)
    return known + [pair for pair in found if value(pair) is None]


def row(run: Listed, score: float | None) -> tuple[str, ...]:
    status = run.status
    steps = f"{status.steps:,}/{status.total:,}"
    return (run.run.name, status.algo, status.env, seeds(run), steps, number(score), status.state)


def seeds(run: Listed) -> str:
    """`3`, or `0-4 (5)` for several."""
    first, *more = run.seeds
    return f"{first}-{more[-1]} ({len(run.seeds)})" if more else str(first)


def as_json(run: Listed, score: float | None) -> dict[str, Any]:
    return {
        "name": run.run.name,
        "path": str(run.run.path),
        **run.status._asdict(),
        "seeds": list(run.seeds),
        "reward": score,
    }
