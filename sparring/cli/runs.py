"""`sparring runs`: all runs of a folder, newest first."""

from __future__ import annotations

from pathlib import Path

from sparring.cli.output import Output, number, table, width
from sparring.cli.parser import Options, Parser
from sparring.runs import directory

HEAD = ("name", "algo", "env", "seed", "steps", "reward", "state")


def parser() -> Parser:
    made = Parser("runs", "List the runs, newest first.")
    made.add_argument(
        "root", nargs="?", type=Path, default=directory.ROOT, help="the folder of runs (default runs)"
    )
    return made


def run(options: Options, out: Output) -> int:
    found = directory.statuses(options.root)
    out.result({"runs": [{"name": r.name, "path": str(r.path), **s._asdict()} for r, s in found]})
    if out.as_json:
        return 0
    if not found:
        out.say(f"There are no runs in {options.root}. Start one: sparring train ppo CartPole-v1")
        return 0
    rows = [
        (r.name, s.algo, s.env, str(s.seed), f"{s.steps:,}/{s.total:,}", number(s.mean_reward), s.state)
        for r, s in found
    ]
    out.say(table(HEAD, rows, width(), optional=("seed", "algo", "env")))
    return 0
