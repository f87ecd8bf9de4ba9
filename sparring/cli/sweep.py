"""`sparring sweep ALGO ENV SPACE`: a search for settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sparring.cli.output import Output, table, width
from sparring.cli.parser import ALGORITHMS, Options, Parser, add_settings, positive, whole

EXAMPLES = ("sweep ppo CartPole-v1 space.toml --trials 30 --total-timesteps 50_000 --promote 3",)


def parser() -> Parser:
    made = Parser(
        "sweep", "Search for settings; a trial's score is the lower bound over its seeds.", EXAMPLES
    )
    made.add_argument("algorithm", metavar="ALGO", help=ALGORITHMS)
    made.add_argument("env", metavar="ENV", help="an id, gym:ID, envpool:ID, or file.py:name")
    made.add_argument("space", type=Path, metavar="SPACE", help="a TOML file with a table per setting")
    made.add_argument("--trials", type=positive, default=20, metavar="N", help="trials in all (default 20)")
    made.add_argument(
        "--seeds", type=positive, default=3, metavar="M", help="seeds of every trial (default 3)"
    )
    made.add_argument("--seed", type=whole, default=0, metavar="S", help="the first of them (default 0)")
    made.add_argument(
        "--promote", type=whole, default=0, metavar="K", help="train the K best again on fresh seeds"
    )
    made.add_argument("--total-timesteps", type=positive, metavar="N", help="environment steps of every seed")
    made.add_argument(
        "--run-dir",
        type=Path,
        metavar="DIR",
        help="the sweep's folder (default sweeps/ALGO-ENV); goes on there",
    )
    made.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where to compute")
    add_settings(made)
    return made


def run(options: Options, out: Output) -> int:
    from sparring import sweep
    from sparring.config import parse_assignment
    from sparring.runs.directory import default_name

    values: dict[str, Any] = dict(parse_assignment(text) for text in options.assignments)
    if options.total_timesteps is not None:
        values["total_timesteps"] = options.total_timesteps
    name = default_name(Path(options.algorithm.partition(":")[0]).stem, options.env, options.seed)
    task = sweep.Task(
        options.algorithm,
        options.env,
        sweep.read_space(options.space),
        options.run_dir or Path("sweeps") / name.rsplit("-", 3)[0],
        tuple(range(options.seed, options.seed + options.seeds)),
        values,
        None if options.config is None else Path(options.config),
        options.preset != "none",
        options.device,
    )
    outcome = sweep.sweep(task, options.trials, promote=options.promote, seed=options.seed, say=out.say)
    report(outcome, task.folder, out)
    return 0


def report(outcome: Any, folder: Path, out: Output) -> None:
    """The best trials, and what is left of them on fresh seeds."""
    from sparring.sweep import spelled

    if outcome.interrupted:
        out.say("Interrupted; the same command goes on.")
    if not outcome.trials:
        out.say("No trial came to its end.")
    else:
        rows = [
            (str(t.number), f"{t.score.low:.2f}", f"{t.score.value:.2f}", spelled(t.values))
            for t in outcome.trials[:5]
        ]
        out.say(table(("trial", "lower bound", "mean", "settings"), rows, width()))
        out.say(
            f"{len(outcome.trials)} trials, {outcome.pruned} pruned; best settings: {folder / 'best.toml'}"
        )
    if outcome.promoted:
        again = [
            (
                str(p.trial.number),
                f"{p.trial.score.value:.2f}",
                f"{p.fresh.value:.2f}",
                f"{p.fresh.low:.2f} to {p.fresh.high:.2f}",
                f"{p.shrinkage:+.2f}",
            )
            for p in outcome.promoted
        ]
        out.say(table(("trial", "in the sweep", "fresh seeds", "95 % interval", "shrinkage"), again, width()))
    out.result(
        {
            "folder": str(folder),
            "interrupted": outcome.interrupted,
            "pruned": outcome.pruned,
            "trials": [{**t._asdict(), "score": t.score._asdict()} for t in outcome.trials],
            "promoted": [
                {
                    "trial": p.trial.number,
                    "run": str(p.run),
                    "sweep": p.trial.score._asdict(),
                    "fresh": p.fresh._asdict(),
                    "shrinkage": p.shrinkage,
                }
                for p in outcome.promoted
            ],
        }
    )
