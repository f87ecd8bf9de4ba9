"""`sparring eval RUN`: how good a trained agent is."""

from __future__ import annotations

from sparring.cli import agents
from sparring.cli.output import Output
from sparring.cli.parser import Options, Parser


def parser() -> Parser:
    made = Parser(
        "eval", "Score a trained agent over whole episodes.", ("eval last --episodes 100 --seed 1",)
    )
    made.run_argument()
    made.acting_arguments(episodes=100)
    return made


def run(options: Options, out: Output) -> int:
    loaded = agents.load(options.run, best=options.best, trust_code=options.trust_code, say=out.say)
    env = agents.environment(loaded.plan, min(options.episodes, 8))
    try:
        score = loaded.agent.evaluate(env, options.episodes, options.seed, not options.stochastic)
    finally:
        if hasattr(env, "close"):
            env.close()
    low, high = score.ci95
    kind = "stochastic" if options.stochastic else "deterministic"
    out.say(f"{loaded.run.name} ({kind}, seed {options.seed})")
    out.say(f"reward   {score.mean:.2f} ± {score.std:.2f}, 95 % interval of the mean {low:.2f} to {high:.2f}")
    out.say(f"range    {score.returns.min():.2f} to {score.returns.max():.2f}")
    out.say(f"length   {score.lengths.mean():.1f} steps ({score.lengths.min()} to {score.lengths.max()})")
    out.say(f"episodes {len(score.returns)}")
    out.result(
        {
            "run": str(loaded.run.path),
            **score.as_json(),
            "lengths": [int(n) for n in score.lengths],
            "deterministic": not options.stochastic,
            "seed": options.seed,
        }
    )
    return 0
