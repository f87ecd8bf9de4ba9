"""`sparring VERB …`: finds the verb, runs it, and turns every failure into a message and an exit code."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from sparring.cli.interrupts import ABORTED
from sparring.cli.output import Output, paragraph
from sparring.cli.parser import UsageError, spread_assignments
from sparring.errors import SparringError, nearest

VERBS = {
    "train": "train an agent",
    "resume": "continue a run exactly where it was saved",
    "eval": "score a trained agent over whole episodes",
    "behaviours": "score an agent's heads and behaviours",
    "play": "watch a trained agent in a window or in the terminal",
    "record": "film a trained agent as an MP4",
    "runs": "list the runs",
    "compare": "hold groups of runs against each other, with a verdict",
    "plot": "draw learning curves with bands over seeds",
    "report": "write a page about runs: curves, health, films, settings",
    "sweep": "search for settings over several seeds",
    "export": "metrics for tables and trackers, the agent for other programs",
    "push": "put an agent on the Hugging Face Hub",
    "pull": "get an agent from the Hugging Face Hub",
    "import-sb3": "take over a model that Stable-Baselines3 saved",
    "diagnose": "say what is wrong with a run and what to do next",
    "mcp": "serve runs to a desktop language model, read-only",
    "config": "show every setting, its value and where it came from",
    "check-env": "verify an environment and say what to fix",
    "check-algo": "run the probe environments on an algorithm",
    "doctor": "look at this machine and installation",
}
BUG = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    out = Output("--json" in arguments)
    try:
        return dispatch(arguments, out)
    except SparringError as error:
        for place in own_frames(error.__cause__):
            print(f"  {place}", file=sys.stderr)
        return fail(out, str(error), error.exit_code)
    except KeyboardInterrupt:
        return fail(out, "Aborted.", ABORTED)
    except BrokenPipeError:  # `sparring runs | head`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (the interpreter flushes it at exit)
        return 0
    except SystemExit as ending:  # argparse after --help
        return ending.code if isinstance(ending.code, int) else 0
    except Exception as error:  # noqa: BLE001  (the last resort: say so, and how to report it)
        traceback.print_exc()
        return fail(out, blame(error), BUG)


def dispatch(arguments: list[str], out: Output) -> int:
    """Hands the arguments to their verb."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(overview())
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version", "version"):
        from importlib.metadata import version

        print(f"sparring {version('sparring')}")
        return 0
    verb, *rest = arguments
    if verb not in VERBS:
        raise UsageError(f"There is no command {verb!r}.{nearest(verb, VERBS)} Known: {', '.join(VERBS)}.")
    module = importlib.import_module(f"sparring.cli.{verb.replace('-', '_')}")
    options = module.parser().parse_args(spread_assignments(rest))
    return int(module.run(options, out))


def overview() -> str:
    """The text of `sparring --help`."""
    wide = max(map(len, VERBS))
    lines = [f"  {verb:<{wide}}  {summary}" for verb, summary in VERBS.items()]
    return "\n".join(
        [
            "usage: sparring COMMAND …",
            "",
            *lines,
            "",
            "start here:",
            "  sparring train ppo CartPole-v1",
            "",
            "`sparring COMMAND --help` says more; every command takes --json.",
        ]
    )


def fail(out: Output, message: str, code: int) -> int:
    """One paragraph on stderr, and with --json an object with the same words."""
    sys.stdout.flush()
    print(paragraph(f"Error: {message}"), file=sys.stderr, flush=True)
    out.result({"error": message})
    return code


def blame(error: Exception) -> str:
    """What to say about an exception that nobody foresaw: it is the user's file's, or a bug of ours."""
    kind = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}, line {error.lineno}, is not valid Python: {error.msg}."
    if places := own_frames(error):
        return f"{places[-1]}, raised {kind}. The traceback above shows how it was called."
    return f"{kind}. This is a bug in sparring: please report it with the traceback above."


def own_frames(error: BaseException | None) -> list[str]:
    """The lines of the user's own files that an exception came through."""
    if error is None:
        return []
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not _is_library(f.filename)]
    return [f"{frame.filename}, line {frame.lineno}, in {frame.name}" for frame in frames]


def _is_library(filename: str) -> bool:
    """Whether a file belongs to sparring, to an installed package or to Python."""
    path = Path(filename)
    package = Path(__file__).resolve().parents[1]
    return (
        filename.startswith("<")
        or path.is_relative_to(package)
        or "site-packages" in path.parts
        or path.is_relative_to(Path(os.__file__).parent)
    )
