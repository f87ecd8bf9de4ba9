"""`sparring import-sb3 MODEL --env ENV`: a model that Stable-Baselines3 saved, as a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.cli.output import Output, paragraph
from sparring.cli.parser import Options, Parser, positive

if TYPE_CHECKING:
    from sparring.sb3.importing import Imported


def parser() -> Parser:
    made = Parser(
        "import-sb3",
        "Take over a model that Stable-Baselines3 saved (PPO, A2C, DQN, SAC or TD3 with an MLP policy).\n"
        "Its pickle is opened by SB3 in a confined process, never here.",
        ("import-sb3 CartPole-v1.zip --env CartPole-v1 -o runs/theirs",),
    )
    made.add_argument("model", type=Path, metavar="MODEL", help="the .zip file")
    made.add_argument("--env", required=True, metavar="ENV", help="the environment it was trained on")
    made.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="the run's folder (default: a new one under runs/)"
    )
    made.add_argument(
        "--vecnormalize",
        metavar="FILE",
        help="VecNormalize's statistics (default: vecnormalize.pkl beside the model); `none` for none",
    )
    made.add_argument(
        "--peers-python",
        type=Path,
        metavar="PATH",
        help="the Python that has SB3 (default: $SPARRING_SB3_PYTHON, then .venv-peers/bin/python)",
    )
    made.add_argument(
        "--steps", type=positive, default=1000, metavar="N", help="steps of the comparison (default 1000)"
    )
    made.add_argument(
        "--timeout", type=positive, default=300, metavar="S", help="seconds that SB3 may take (default 300)"
    )
    return made


def run(options: Options, out: Output) -> int:
    from sparring.drivers.platform import prepare
    from sparring.sb3 import importing

    prepare("cpu")
    statistics = _statistics(options, out)
    found = importing.run(
        options.model,
        options.env,
        python=options.peers_python,
        output=options.output,
        statistics=statistics,
        steps=options.steps,
        seconds=options.timeout,
        say=lambda text: out.say(paragraph(text, 2)),
    )
    _tell(found, out)
    result: dict[str, Any] = {
        "run": str(found.run.path),
        "algorithm": found.given.algorithm,
        "timesteps": found.given.timesteps,
        "versions": found.given.versions,
        "vecnormalize": None if found.statistics is None else str(found.statistics),
        "protection": found.protection,
        "parity": found.observed._asdict(),
        "replay": None if found.replayed is None else found.replayed._asdict(),
    }
    out.result(result)
    return 0


def _statistics(options: Options, out: Output) -> Path | None:
    from sparring.sb3.importing import find_statistics

    if options.vecnormalize == "none" or not options.model.is_file():
        return None
    if options.vecnormalize is not None:
        return Path(options.vecnormalize)
    found = find_statistics(options.model)
    if found is not None:
        out.say(f"Observations are normalised by {found} (--vecnormalize none leaves it out).")
    return found


def _tell(found: Imported, out: Output) -> None:
    given, seen, again = found.given, found.observed, found.replayed
    shape = "-".join(map(str, given.pi)) or "linear"
    out.say(
        f"{found.run.path}: {given.algorithm.upper()}, {shape} {given.activation}, trained for "
        f"{given.timesteps:,} steps"
    )
    out.say(
        f"Against SB3 on {seen.observations:,} observations: {seen.equal:,} actions equal, largest "
        f"difference {max(seen.action, seen.params):.1e} (actions {seen.action:.1e}, their distribution "
        f"{seen.params:.1e})"
    )
    if again is None:
        out.say(paragraph(f"They were drawn from the observation space: {given.record.why}.", 2))
    else:
        kept = "all" if again.same == again.steps else f"the first {again.same:,}"
        out.say(
            f"The same {again.episodes} episodes played here: {kept} of {again.steps:,} steps alike, largest "
            f"difference {max(again.obs, again.reward):.1e} (observations {again.obs:.1e}, rewards "
            f"{again.reward:.1e})"
        )
        if again.same < again.steps:
            out.say("  Roundings of the last digit grow in such an environment; each decision is the same.")
    for verb in ("eval", "play"):
        out.say(f"  sparring {verb} {found.run.path}")
