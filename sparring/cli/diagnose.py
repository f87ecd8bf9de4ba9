"""`sparring diagnose RUN`: what is wrong with a run, and what to do next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sparring.cli.output import Output
from sparring.cli.parser import Options, Parser, UsageError, positive, whole
from sparring.runs import directory

if TYPE_CHECKING:
    from sparring.evaluation.diagnosis import Subject


def parser() -> Parser:
    made = Parser(
        "diagnose",
        "Say what is wrong with a run, since when, why, and what to do next: short enough for a chat.",
        ("diagnose last", "diagnose last --json", "diagnose last --detail full --since 50_000"),
    )
    made.add_argument(
        "run", metavar="RUN", help="path or name of a run, or `last`; also a folder of W&B's offline files"
    )
    made.add_argument("--text", action="store_true", help="text (the default)")
    made.add_argument(
        "--budget", type=positive, metavar="N", help="most tokens of the text (default 1500; full 6000)"
    )
    made.add_argument(
        "--detail", choices=("short", "full"), default="short", help="short (default), or everything"
    )
    made.add_argument(
        "--since", type=whole, default=0, metavar="STEP", help="leave out what ended before a step"
    )
    return made


def run(options: Options, out: Output) -> int:
    from sparring.evaluation import diagnosis
    from sparring.evaluation.diagnosis_text import BUDGET, FULL, LEAST, render

    if options.budget is not None and options.budget < LEAST:
        raise UsageError(f"--budget {options.budget} is too small for a verdict; {LEAST} is the least.")
    subject = read(options.run)
    report = diagnosis.diagnose(subject, options.since)
    out.result(report)
    if not out.as_json:
        full = options.detail == "full"
        out.say(render(report, options.budget or (FULL if full else BUDGET), full))
    return 0


def read(name: str) -> Subject:
    """The run of that name, or what W&B wrote in that folder."""
    from sparring.evaluation.diagnosis import subject_of, subject_of_wandb
    from sparring.metrics.wandb_history import find_file

    if not directory.is_run(Path(name)) and (file := find_file(Path(name))) is not None:
        return subject_of_wandb(file)
    return subject_of(directory.find(name))
