"""`sparring behaviours RUN`: what each head and each behaviour of an agent is worth."""

from __future__ import annotations

import json
from math import isnan
from pathlib import Path

from sparring.cli import agents
from sparring.cli.output import Output
from sparring.cli.parser import Options, Parser

ROWS = 16


def parser() -> Parser:
    made = Parser(
        "behaviours",
        "Score an agent's heads, and its behaviours all over the space that a bandit chose from.",
        ("behaviours last --episodes 320 -o behaviours.png",),
    )
    made.run_argument()
    made.acting_arguments(episodes=160)
    made.add_argument("-o", "--out", type=Path, metavar="FILE", help="draw the map into this PNG file")
    return made


def run(options: Options, out: Output) -> int:
    from sparring.evaluation import behaviours
    from sparring.runs.durable import replace_file

    loaded = agents.load(options.run, best=options.best, trust_code=options.trust_code, say=out.say)
    env = agents.environment(loaded.plan, ROWS)
    try:
        out.say("Playing greedily by each head …")
        heads = behaviours.heads(loaded.agent, env, max(options.episodes // 4, 10), options.seed)
        for name, score in heads.items():
            low, high = score.ci95
            out.say(f"head {name:<5} {score.mean:9.2f}   95 % interval {low:.2f} to {high:.2f}")
        out.say(f"Playing {options.episodes} episodes at behaviours all over the space …")
        found = behaviours.over_indices(loaded.agent, env, options.episodes, options.seed, ROWS)
    finally:
        if hasattr(env, "close"):
            env.close()
    for c, coordinate in enumerate(found.space.coordinates):
        row = "  ".join("    -" if isnan(x) else f"{x:5.0f}" for x in found.mean(c))
        out.say(f"{coordinate.name:<14} {row}")
    if options.out is not None:
        from sparring.evaluation import charts

        out.say(f"drawn: {charts.behaviour_map(found).save(options.out)}")
    told = {
        "run": str(loaded.run.path),
        "heads": {name: score.as_json() for name, score in heads.items()},
        "cells": found.as_json(),
        "episodes": len(found.returns),
        "seed": options.seed,
    }
    kept = {name: told[name] for name in ("heads", "episodes", "seed")} | {"maps": found.pairs()}
    replace_file(loaded.run.behaviours, [json.dumps(kept).encode() + b"\n"])
    out.say(f"`sparring report {loaded.run.path.name}` shows the map.")
    out.result(told)
    return 0
