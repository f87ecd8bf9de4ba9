"""`sparring pull REPO`: an agent from the Hugging Face Hub, as a run folder."""

from __future__ import annotations

from pathlib import Path

from sparring.cli.output import Output
from sparring.cli.parser import Options, Parser


def parser() -> Parser:
    made = Parser(
        "pull",
        "Download an agent from the Hugging Face Hub, check every file and run nothing.",
        ("pull me/ppo-CartPole-v1",),
    )
    made.add_argument("repo", metavar="REPO", help="user/name on the Hub")
    made.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="the run's folder (default: runs/ and its name)"
    )
    made.add_argument(
        "--revision", default="main", metavar="REV", help="branch, tag or commit (default main)"
    )
    made.add_argument(
        "--trust-code", action="store_true", help="accept an agent that names Python files of yours"
    )
    return made


def run(options: Options, out: Output) -> int:
    from sparring.export import hub

    pulled = hub.pull(options.repo, options.output, revision=options.revision, trust_code=options.trust_code)
    path = pulled.run.path
    out.say(f"{path}: {', '.join(pulled.files)}, all as they were pushed ({pulled.revision[:12]})")
    for verb in ("eval", "play"):
        out.say(f"  sparring {verb} {path}")
    out.result(
        {
            "run": str(path),
            "repo": options.repo,
            "revision": pulled.revision,
            "files": pulled.files,
            "results": pulled.results,
        }
    )
    return 0
