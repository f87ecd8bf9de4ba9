"""`sparring report RUN… -o report.html`: what happened in some runs, as one file for a browser."""

from __future__ import annotations

from pathlib import Path

from sparring.cli.output import Output
from sparring.cli.parser import Options, Parser, whole

MEGABYTE = 2**20


def parser() -> Parser:
    made = Parser(
        "report",
        "Write a page about a run, or about several, one over the other: curves, health, films, settings.",
        ("report last", "report runs/a runs/b -o report.html"),
    )
    made.add_argument("run", metavar="RUN", nargs="+", help="path or name of a run, or `last`")
    made.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="the page (default: report.html, in the run's folder when there is one run)",
    )
    made.add_argument(
        "--video-mb", type=whole, default=16, metavar="N", help="films to put into the page (default 16 MB)"
    )
    return made


def run(options: Options, out: Output) -> int:
    from sparring.web.gather import find_all
    from sparring.web.report import MOST_RUNS, write_report

    runs = find_all(options.run, MOST_RUNS)
    path = options.output or (runs[0].path if len(runs) == 1 else Path()) / "report.html"
    written = write_report(runs, path, options.video_mb * MEGABYTE)
    linked = [film.name for film in written.films if not film.embedded]
    out.say(f"{written.path}: {written.size / MEGABYTE:.2f} MB, {len(written.story.metrics)} charts")
    if linked:
        out.say(f"Linked, because of their size: {', '.join(linked)} (--video-mb N puts more into the page)")
    out.result(
        {
            "path": str(written.path),
            "bytes": written.size,
            "runs": [str(found.path) for found in runs],
            "metrics": [metric.name for metric in written.story.metrics],
            "metrics_left_out": written.story.left_out,
            "alerts": [None if r.alerts is None else len(r.alerts) for r in written.story.runs],
            "videos": {"embedded": len(written.films) - len(linked), "linked": len(linked)},
        }
    )
    return 0
