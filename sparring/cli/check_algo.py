"""`sparring check-algo NAME`: does an algorithm learn what the probe environments ask for?"""

from __future__ import annotations

from sparring.cli.output import Output, paragraph
from sparring.cli.parser import ALGORITHMS, Options, Parser, add_settings, whole
from sparring.errors import ConfigError, nearest

MARKS = {"pass": "pass", "fail": "FAIL", "note": "note", "skip": "skip"}


def parser() -> Parser:
    made = Parser(
        "check-algo", "Run the probe environments on an algorithm.", ("check-algo my_algorithm.py:Mine",)
    )
    made.add_argument("algorithm", metavar="ALGO", help=ALGORITHMS)
    made.add_argument("--probe", action="append", metavar="NAME", help="only this probe; repeatable")
    made.add_argument("--seed", type=whole, default=0, metavar="S", help="seed (default 0)")
    add_settings(made)
    return made


def run(options: Options, out: Output) -> int:
    from sparring.config import load_toml, parse_assignment
    from sparring.drivers.platform import prepare
    from sparring.evaluation import checks
    from sparring.model import algorithm_class

    cls = algorithm_class(options.algorithm)
    given = {} if options.config is None else load_toml(options.config)
    given |= dict(parse_assignment(text) for text in options.assignments)
    for name in options.probe or ():
        if name not in checks.PROBES:
            raise ConfigError(f"There is no probe {name!r}.{nearest(name, checks.PROBES)}")
    prepare("auto")
    verdicts = []
    for name in options.probe or checks.PROBES:
        verdict = checks.run_probe(cls, name, options.seed, given)
        verdicts.append(verdict)
        hint = f" → {verdict.hint}" if verdict.hint and verdict.result != "pass" else ""
        out.say(paragraph(f"{MARKS[verdict.result]}  {name:<30} {verdict.measured}{hint}", 6))
    failed = [verdict.probe for verdict in verdicts if verdict.result == "fail"]
    passed = sum(verdict.result == "pass" for verdict in verdicts)
    out.say(
        f"{options.algorithm}: {passed} probes passed" + (f", failed: {', '.join(failed)}" if failed else "")
    )
    out.result({"algorithm": options.algorithm, "ok": not failed, "probes": [v._asdict() for v in verdicts]})
    return 1 if failed or not passed else 0
