"""`sparring resume RUN`: a run goes on where it was saved."""

from __future__ import annotations

from collections.abc import Callable

from sparring.cli.interrupts import until_ready
from sparring.cli.output import Output
from sparring.cli.parser import Options, Parser, add_track, positive
from sparring.cli.train import display, report


def parser() -> Parser:
    made = Parser("resume", "Continue a run exactly where it was saved.", ("resume last",))
    made.run_argument()
    made.add_argument(
        "--total-timesteps", type=positive, metavar="N", help="a new goal, counted from the start"
    )
    made.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where to compute")
    add_track(made)
    made.add_argument("--quiet", action="store_true", help="no display while training")
    return made


def run(options: Options, out: Output) -> int:
    with until_ready() as ready:
        return _resume(options, out, ready)


def _resume(options: Options, out: Output, ready: Callable[[], None]) -> int:
    from sparring import launch
    from sparring.runs import directory

    found = directory.find(options.run)
    plan = launch.read_plan(found, options.trust_code)
    status = found.read_status()
    # The goal of an earlier `resume --total-timesteps` stands in the status, not in the configuration.
    total = options.total_timesteps or status.total or None
    goal = total or plan.settings.total_timesteps
    out.say(f"Resuming {found.name}: step {status.steps:,} of {goal:,}")
    outcome = launch.resume(
        found,
        total_timesteps=total,
        device=options.device,
        display=display(plan, out, ready, options.quiet),
        say=out.say,
        trust_code=options.trust_code,
        track=options.track,
    )
    report(outcome, out)
    return 0
