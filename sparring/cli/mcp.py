"""`sparring mcp`: the runs of a folder for a desktop language model, read-only."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path

from sparring.cli.output import Output
from sparring.cli.parser import Options, Parser
from sparring.errors import UnknownName
from sparring.runs import directory


def parser() -> Parser:
    made = Parser(
        "mcp",
        "Serve the runs of a folder to a language model over standard input and output (Model Context\n"
        "Protocol). Read-only; a desktop program starts it. With --json: print the tools and end.",
        ("mcp --root runs", "mcp --json"),
    )
    made.add_argument(
        "--root", type=Path, default=directory.ROOT, metavar="DIR", help="the folder of runs (default runs)"
    )
    return made


def run(options: Options, out: Output) -> int:
    from sparring.desktop.tools import server

    if not options.root.is_dir():
        raise UnknownName(f"There is no folder {str(options.root)!r}. Name the folder of runs with --root.")
    made = server(options.root)
    if out.as_json:
        out.result({"tools": [tool.as_json() for tool in made.tools.values()]})
        return 0
    print(
        f"sparring mcp: reading {options.root.resolve()}; waiting for a client.", file=sys.stderr, flush=True
    )
    sink = sys.stdout.buffer
    with redirect_stdout(sys.stderr):  # whatever a library prints must not end up between the messages
        made.serve(sys.stdin.buffer, sink)
    return 0
