"""`sparring record RUN -o f.mp4`: a film of a trained agent."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.cli import agents
from sparring.cli.output import Output
from sparring.cli.parser import Options, Parser, positive
from sparring.errors import CheckpointError

if TYPE_CHECKING:
    from sparring.evaluation.episode import Performer
    from sparring.evaluation.film import Part, Played

PICKED_FROM = 10
"""Episodes among which the best, median and worst are looked for, unless told otherwise."""


def parser() -> Parser:
    made = Parser(
        "record",
        "Film a trained agent as an MP4.",
        (
            "record last -o cartpole.mp4 --episodes 3",
            "record last --grid 9 --overlay",
            "record last --pick all --episodes 100",
            "record last --reel",
        ),
    )
    made.run_argument()
    made.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="the film (default: in the run's videos/)"
    )
    made.add_argument("--fps", type=float, metavar="F", help="frames per second (default: the environment's)")
    made.add_argument(
        "--grid", type=positive, default=1, metavar="N", help="N environments of different seeds side by side"
    )
    made.add_argument(
        "--overlay", action="store_true", help="write step, return, V(s) and the chances of actions on it"
    )
    made.add_argument(
        "--pick",
        choices=("best", "median", "worst", "all"),
        help=f"film only these of the episodes (default then {PICKED_FROM}); all: these three",
    )
    made.add_argument(
        "--reel", action="store_true", help="one film of the agent after more and more training"
    )
    made.acting_arguments(episodes=None)
    return made


def run(options: Options, out: Output) -> int:
    from sparring.evaluation.film import Look, film
    from sparring.evaluation.frames import fps
    from sparring.evaluation.video import write_video

    loaded = agents.load(options.run, best=options.best, trust_code=options.trust_code, say=out.say)
    path = options.output or loaded.run.videos / default_name(options)
    look = Look(options.grid, options.overlay, not options.stochastic)
    played: list[Played] = []
    with ExitStack() as stack:
        envs = [agents.drawable(loaded.plan) for _ in range(options.grid)]
        for env in envs:
            stack.callback(env.close)
        rate = options.fps or fps(envs[0])
        parts = script(options, loaded, envs[0], out)
        write_video(path, film(parts, envs, look, rate, played.append), rate)
    tell(out, path, parts, played)
    return 0


def default_name(options: Options) -> str:
    """A film's name that says how it was made."""
    parts = [
        "reel" if options.reel else "",
        f"grid-{options.grid}" if options.grid > 1 else "",
        options.pick or "",
        f"seed-{options.seed}",
    ]
    return "-".join(part for part in parts if part) + ".mp4"


def script(options: Options, loaded: agents.Loaded, env: Any, out: Output) -> list[Part]:
    """Which agents play which episodes."""
    from sparring.evaluation.film import Part, Take, picked, score

    count = options.episodes or (max(PICKED_FROM, options.grid) if options.pick else options.grid)
    seeds = range(options.seed, options.seed + count)
    casts: list[tuple[Performer, tuple[str, ...]]] = []
    train = agents.training_state(loaded) if options.overlay and not options.reel else None
    own = agents.performer(loaded.agent, env, train)
    if options.reel:
        found = agents.stages(loaded, out.say)
        if not found:
            raise CheckpointError(
                f"{loaded.run.name} has no intact checkpoint to make a reel of. Let it train to its first "
                f"checkpoint: sparring resume {loaded.run.path}"
            )
        casts += [(stage.performer, (f"{stage.step:,} steps",)) for stage in found]
    else:
        casts.append((own, ()))
    parts = []
    for performer, title in casts:
        takes, words = tuple(Take(seed) for seed in seeds), title
        if options.pick:
            takes = picked(score(performer, env, seeds, not options.stochastic), options.pick)
            words = (*title, *(f"{take.label} of {count}" for take in takes)) if title else title
        parts.append(Part(performer, takes, words))
    return parts


def tell(out: Output, path: Path, parts: list[Part], played: list[Played]) -> None:
    """What was filmed, for people and for programs."""
    returns, lengths = [one.total for one in played], [one.length for one in played]
    many = "episode" if len(played) == 1 else "episodes"
    of = f" of {len(parts)} agents" if len(parts) > 1 else ""
    shown = ", ".join(f"{one.label} {one.total:.1f}".strip() for one in played)
    out.say(f"{path}: {len(played)} {many}{of}, returns {shown}, lengths {', '.join(map(str, lengths))}")
    out.result(
        {
            "path": str(path),
            "episodes": len(played),
            "returns": returns,
            "lengths": lengths,
            "seeds": [one.seed for one in played],
            "picked": [one.label for one in played if one.label],
            "parts": [" ".join(part.title) for part in parts if part.title],
        }
    )
