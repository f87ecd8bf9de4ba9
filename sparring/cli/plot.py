"""`sparring plot RUN …`: learning curves as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sparring.cli.compare import GROUP
from sparring.cli.output import Output
from sparring.cli.parser import Options, Parser
from sparring.runs import directory

if TYPE_CHECKING:
    from sparring.evaluation.bands import Line


def parser() -> Parser:
    made = Parser(
        "plot",
        "Draw learning curves: interquartile mean over seeds with a 95 % band, one line for every group.",
        ("plot last", "plot 'algo=ppo env=Hopper*' 'algo=sac env=Hopper*' -o hopper.svg --x time"),
    )
    made.add_argument("groups", nargs="+", metavar="GROUP", help=GROUP)
    made.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("plot.png"),
        metavar="FILE",
        help="the picture: .png, .svg or .pdf (default plot.png)",
    )
    made.add_argument(
        "--metric",
        action="append",
        metavar="NAME",
        help="repeatable; default rollout/ep_rew_mean, else eval/mean_reward",
    )
    made.add_argument("--x", choices=("steps", "time"), default="steps", help="what runs to the right")
    made.add_argument("--sqrt", action="store_true", help="a signed-square-root scale for the values")
    made.add_argument(
        "--profile", action="store_true", help="performance profiles of the last values instead of curves"
    )
    made.add_argument(
        "--root", type=Path, default=directory.ROOT, metavar="DIR", help="the folder of runs (default runs)"
    )
    return made


def run(options: Options, out: Output) -> int:
    from sparring.evaluation import bands, charts
    from sparring.evaluation.units import common_metric, find_units, no_value

    charts.check_format(options.output)
    units = find_units(options.groups, options.root)
    if options.profile:
        return profile(options, out)
    metrics = options.metric or [common_metric(units, bands.LEARNING)]
    drawn = [line for metric in metrics for line in bands.lines(units, metric, options.x)]
    for unit in units:
        for metric in metrics:
            if not any(line.unit is unit and line.metric == metric for line in drawn):
                raise no_value(unit, metric)
    path = charts.learning_curves(drawn, options.x, options.sqrt).save(options.output)
    for line in drawn:
        out.say(described(line))
    out.say(str(path))
    out.result({"output": str(path), "x": options.x, "lines": [as_json(line) for line in drawn]})
    return 0


def profile(options: Options, out: Output) -> int:
    """Performance profiles, with the numbers behind them."""
    from sparring.evaluation import charts
    from sparring.evaluation.comparison import compare
    from sparring.evaluation.units import find_units

    metric = options.metric[0] if options.metric else None
    found = compare(find_units(options.groups, options.root), metric=metric)
    path = charts.profiles(found).save(options.output)
    out.say(str(path))
    out.result({"output": str(path), **found.as_json()})
    return 0


def described(line: Line) -> str:
    """What was drawn, in a line of text."""
    seeds = "1 seed, so no band" if line.n == 1 else f"IQM of {line.n} seeds with a 95 % band"
    cut = "" if line.cut is None else f"; up to {line.x[-1]:,.0f}, where the first seed ends"
    if not len(line.x):
        cut = "; nothing to draw: its seeds have no steps in common"
    return f"{line.unit.text}, {line.env}, {line.metric}: {seeds}{cut}"


def as_json(line: Line) -> dict[str, object]:
    return {
        "group": line.unit.text,
        "env": line.env,
        "metric": line.metric,
        "n": line.n,
        "x": line.x.tolist(),
        "value": line.value.tolist(),
        "low": None if line.low is None else line.low.tolist(),
        "high": None if line.high is None else line.high.tolist(),
    }
