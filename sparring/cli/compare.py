"""`sparring compare A B`: which group of runs is better, and how sure that is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.cli.config import spelled
from sparring.cli.output import Output, paragraph, table, width
from sparring.cli.parser import Options, Parser, whole
from sparring.runs import directory

if TYPE_CHECKING:
    from sparring.evaluation.comparison import Comparison, Row, Table
    from sparring.evaluation.statistics import Interval

GROUP = "a run, several with commas, or a filter such as 'algo=ppo env=Hopper*'"


def parser() -> Parser:
    made = Parser(
        "compare",
        "Hold groups of runs against each other: interquartile mean over seeds, 95 % interval, probability\n"
        "of improvement over the first group, and a verdict. Every seed of a run counts.",
        ("compare 'algo=ppo env=Hopper*' 'algo=sac env=Hopper*'", "compare runs/one runs/two,runs/three"),
    )
    made.add_argument("groups", nargs="+", metavar="GROUP", help=GROUP)
    made.add_argument(
        "--metric", metavar="NAME", help="default: the last eval/mean_reward, else rollout/ep_rew_mean"
    )
    made.add_argument("--at", type=whole, metavar="STEP", help="take the last value up to this step")
    made.add_argument("--lower-is-better", action="store_true", help="for a metric that should be small")
    made.add_argument(
        "--target", type=float, metavar="X", help="show the optimality gap: how far below X on average"
    )
    made.add_argument(
        "--root", type=Path, default=directory.ROOT, metavar="DIR", help="the folder of runs (default runs)"
    )
    return made


def run(options: Options, out: Output) -> int:
    from sparring.evaluation.comparison import compare
    from sparring.evaluation.units import find_units

    found = compare(
        find_units(options.groups, options.root),
        metric=options.metric,
        at=options.at,
        direction="lower" if options.lower_is_better else "higher",
        target=options.target,
    )
    out.say(text(found))
    out.result(found.as_json())
    return 0


def text(found: Comparison) -> str:
    """The whole comparison for people."""
    parts = ["\n".join(f"{unit.letter}  {unit.text}" for unit in found.units)]
    for each in found.tables:
        parts.append(f"{found.metric} in {each.env}\n{scores(each)}")
    parts.append("\n".join(paragraph(verdict.sentence) for verdict in found.verdicts))
    if found.differences:
        parts.append(f"Settings that differ\n{settings(found)}")
    else:
        parts.append("The settings are the same.")
    if found.notes:
        parts.append("\n".join(paragraph(f"Note: {note}") for note in found.notes))
    return "\n\n".join(parts)


def scores(each: Table) -> str:
    """One line for every unit."""
    from sparring.evaluation.verdict import number

    head = ["", "n", "IQM", "95 % interval", f"P(better than {each.rows[0].letter})"]
    rows = [
        [row.letter, str(len(row.scores)), number(row.iqm), bounds(row.interval), chance(row)]
        for row in each.rows
    ]
    if each.rows[0].gap is not None:
        head.append("optimality gap")
        rows = [
            [*cells, "-" if row.gap is None else number(row.gap)]
            for cells, row in zip(rows, each.rows, strict=True)
        ]
    return table(head, rows, width())


def bounds(found: Interval | None) -> str:
    from sparring.evaluation.verdict import number

    return "none: one seed" if found is None else f"{number(found.low)} to {number(found.high)}"


def chance(row: Row) -> str:
    if row.improvement is None:
        return "-"
    if row.improvement_interval is None:
        return f"{row.improvement:.2f}"
    _, low, high = row.improvement_interval
    return f"{row.improvement:.2f} ({low:.2f} to {high:.2f})"


def settings(found: Comparison) -> str:
    """The configuration's differences, a column for every unit."""
    rows = [
        [name, *(" | ".join(shown(value) for value in values) for values in each)]
        for name, each in found.differences.items()
    ]
    return table(["", *(unit.letter for unit in found.units)], rows, width())


def shown(value: Any) -> str:
    """A setting's value in at most 40 characters; a dash where a run does not have the setting."""
    text = "-" if value is None else spelled(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
