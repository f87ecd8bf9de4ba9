"""`sparring train ALGO ENV`: a new run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.cli.interrupts import until_ready
from sparring.cli.output import Output
from sparring.cli.parser import (
    ALGORITHMS,
    Options,
    Parser,
    UsageError,
    add_settings,
    add_track,
    positive,
    whole,
)
from sparring.errors import ConfigError

if TYPE_CHECKING:
    from sparring.launch import Plan

CHARTS = ("rollout/ep_rew_mean", "eval/mean_reward")
"""Curves that are drawn when a run ends."""
EXAMPLES = (
    "train ppo CartPole-v1",
    "train ppo gym:CartPole-v1 --stop-reward threshold --set n_envs=4 learning_rate=1e-3",
    "train reinforce Acrobot-v1 --total-timesteps 200_000 --seeds 3",
)


def parser() -> Parser:
    made = Parser("train", "Train an agent in a new run folder.", EXAMPLES)
    made.add_argument("algorithm", metavar="ALGO", nargs="?", help=ALGORITHMS)
    made.add_argument("env", metavar="ENV", nargs="?", help="an id, gym:ID, envpool:ID, or file.py:name")
    made.add_argument("--total-timesteps", type=positive, metavar="N", help="environment steps of every seed")
    made.add_argument("--seed", type=whole, default=0, metavar="S", help="seed (default 0)")
    made.add_argument(
        "--seeds", type=positive, default=1, metavar="M", help="train M seeds, the first being S"
    )
    add_settings(made)
    made.add_argument(
        "--run-dir", type=Path, metavar="DIR", help="the run's folder (default: a new one in runs/)"
    )
    made.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where to compute")
    made.add_argument("--tensorboard", type=Path, metavar="DIR", help="also write TensorBoard files there")
    add_track(made)
    made.add_argument(
        "--stop-reward",
        metavar="X",
        help="stop when an evaluation reaches X; `threshold` is the environment's own",
    )
    made.add_argument(
        "--address", metavar="HOST:PORT", help="act on the Ray cluster there; driver=cluster is understood"
    )
    made.add_argument("--quiet", action="store_true", help="no display while training")
    return made


def run(options: Options, out: Output) -> int:
    if options.env is None:
        return _explain(options, out)
    with until_ready() as ready:
        from sparring import launch

        plan = make_plan(options)
        if plan.preset:
            out.say(f"Using the tuned preset {preset_name(plan)}; --preset none for defaults")
        outcome = launch.train(
            plan,
            run_dir=options.run_dir,
            device=options.device,
            display=display(plan, out, ready, options.quiet),
            say=out.say,
            tensorboard=options.tensorboard,
            track=options.track,
        )
    report(outcome, out)
    return 0


def _explain(options: Options, out: Output) -> int:
    """What to type when the algorithm or the environment is missing."""
    if options.algorithm is not None:
        raise UsageError(f"On which environment? For example: sparring train {options.algorithm} CartPole-v1")
    lines = "\n".join(f"  sparring {line}" for line in EXAMPLES)
    print(
        f"Train what, and where? For example:\n{lines}\nAll options: sparring train --help", file=sys.stderr
    )
    out.result({"error": "train needs an algorithm and an environment"})
    return 2


def make_plan(options: Options) -> Plan:
    """The settings that presets, files and flags amount to, with the flag that each one came from."""
    from sparring import launch
    from sparring.config import parse_assignment

    values = dict(parse_assignment(text) for text in options.assignments)
    flags: dict[str, Any] = {}
    if getattr(options, "total_timesteps", None) is not None:
        flags["total_timesteps"] = options.total_timesteps
    if getattr(options, "stop_reward", None) is not None:
        flags["stop_reward"] = _stop_reward(options, values)
    if getattr(options, "address", None) is not None:
        flags |= {"driver": "cluster", "address": options.address}
    first, count = getattr(options, "seed", 0), getattr(options, "seeds", 1)
    plan = launch.plan(
        options.algorithm,
        options.env,
        tuple(range(first, first + count)),
        file=None if options.config is None else Path(options.config),
        values={**values, **flags},
        use_preset=options.preset != "none",
    )
    sources = {name: "--" + name.replace("_", "-") for name in flags}
    return plan._replace(provenance={**plan.provenance, **sources})


def _stop_reward(options: Options, values: dict[str, Any]) -> float:
    """The number given, or the reward at which the environment counts as solved."""
    if options.stop_reward != "threshold":
        try:
            return float(options.stop_reward)
        except ValueError as error:
            raise ConfigError(
                f"--stop-reward takes a number or `threshold`, got {options.stop_reward!r}."
            ) from error
    from sparring.envs import registry

    env = registry.make(options.env, kwargs=values.get("env_kwargs"), backend="inline")
    threshold = env.spec.reward_threshold
    if hasattr(env, "close"):
        env.close()
    if threshold is None:
        raise ConfigError(f"{options.env} does not say when it is solved; give a number: --stop-reward 100")
    return float(threshold)


def preset_name(plan: Plan) -> str:
    return f"{plan.algorithm.lower()}/{plan.env.removeprefix('gym:').removeprefix('envpool:')}"


def display(plan: Plan, out: Output, ready: Callable[[], None], quiet: bool) -> Any:
    """Makes the display of a run; called when training is about to begin, which it tells `ready`."""
    from sparring.metrics import console

    def show(settings: Any, started_at: int) -> list[Any]:
        ready()
        if quiet:
            return []
        title = f"{plan.algorithm} {plan.env}"
        total, window = settings.total_timesteps, settings.stats_window_size
        return [console.display(total, window, title=title, started_at=started_at, stream=out.stream)]

    return show


def report(outcome: Any, out: Output) -> None:
    """What came of a run, where it is, and what can be done with it."""
    from sparring.metrics import charts, sqlite

    result, run = outcome.result, outcome.run
    handle = run.name if str(run.path) == str(Path("runs") / run.name) else str(run.path)
    total = run.read_status().steps
    if result.outcome == "interrupted":
        out.say(
            f"Interrupted at step {total:,}; everything is saved. Continue with: sparring resume {handle}"
        )
    else:
        word = {"finished": "Finished", "solved": "Solved", "stopped": "Stopped"}[result.outcome]
        speed = f"{result.steps_per_second:,.0f} steps/s" if result.steps else "nothing left to train"
        compiled = f"compiled in {result.compile_seconds:.1f} s"
        out.say(f"{word} at step {total:,}: {result.seconds:.1f} s, {speed}, {compiled}")
    if result.evaluations:
        evaluation = result.evaluations[0]
        low, high = evaluation.ci95
        episodes = len(evaluation.returns)
        score = f"{evaluation.mean:.2f} ± {evaluation.std:.2f}"
        out.say(f"Evaluation: {score} over {episodes} episodes, deterministic")
        out.say(f"            95 % interval of the mean: {low:.2f} to {high:.2f}")
        if len(result.evaluations) > 1:
            means = ", ".join(f"{e.mean:.1f}" for e in result.evaluations)
            out.say(f"Evaluation of each seed: {means}")
    for name in CHARTS:
        if run.metrics.is_file() and len((curve := sqlite.read(run.metrics, name)).steps) > 2:
            out.say(charts.line_chart(curve.steps, curve.values, title=name))
    out.say(f"Run: {run.path}")
    if result.outcome != "interrupted":
        more = max(2 * total, 1)
        for command in (
            f"eval {handle}",
            f"play {handle}",
            f"record {handle} -o video.mp4",
            f"resume {handle} --total-timesteps {more}",
        ):
            out.say(f"  sparring {command}")
    out.result(outcome.as_json())
