"""`sparring check-env ID`: what is right and wrong with an environment."""

from __future__ import annotations

from sparring.cli.output import Output, paragraph
from sparring.cli.parser import Options, Parser

MARKS = {"ok": "ok     ", "advice": "advice ", "warning": "warning", "error": "ERROR  "}


def parser() -> Parser:
    made = Parser("check-env", "Verify an environment and say what to fix.", ("check-env my_env.py:make",))
    made.add_argument("env", metavar="ENV", help="an id, gym:ID, envpool:ID, or file.py:name")
    made.add_argument(
        "--n-envs", type=int, default=8, metavar="N", help="rows that a run would have (default 8)"
    )
    made.add_argument("--seed", type=int, default=0, metavar="S", help="seed (default 0)")
    return made


def run(options: Options, out: Output) -> int:
    from sparring.envs.check import check

    findings = check(options.env, n_envs=options.n_envs, seed=options.seed)
    for finding in findings:
        why = f": {finding.why}" if finding.why else ""
        fix = f" → {finding.fix}" if finding.fix else ""
        out.say(paragraph(f"{MARKS[finding.level]} {finding.what}{why}{fix}", 8))
    errors = sum(finding.level == "error" for finding in findings)
    warnings = sum(finding.level == "warning" for finding in findings)
    out.say(f"{options.env}: {errors} errors, {warnings} warnings")
    out.result({"env": options.env, "ok": not errors, "findings": [f._asdict() for f in findings]})
    return 1 if errors else 0
