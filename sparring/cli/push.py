"""`sparring push RUN REPO`: an agent with its model card to the Hugging Face Hub."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sparring.cli import agents
from sparring.cli.output import Output
from sparring.cli.parser import Options, Parser, positive, whole
from sparring.errors import CheckpointError


def parser() -> Parser:
    made = Parser(
        "push",
        "Evaluate a trained agent and upload it with a model card to the Hugging Face Hub.",
        ("push last me/ppo-CartPole-v1",),
    )
    made.run_argument()
    made.add_argument("repo", metavar="REPO", help="user/name on the Hub; made when it does not exist")
    made.add_argument(
        "--episodes", type=positive, default=100, metavar="N", help="episodes of the evaluation (default 100)"
    )
    made.add_argument("--seed", type=whole, default=1000, metavar="S", help="its seed (default 1000)")
    made.add_argument("--best", action="store_true", help="the agent with the best evaluation, not the last")
    made.add_argument("--video", type=Path, metavar="FILE", help="a film (default: the run's newest)")
    made.add_argument("--private", action="store_true", default=None, help="make a new repository private")
    made.add_argument("--dry-run", type=Path, metavar="DIR", help="write the files there and upload nothing")
    return made


def run(options: Options, out: Output) -> int:
    from sparring.export import hub

    hub.require()
    loaded = agents.load(options.run, best=options.best, trust_code=options.trust_code, say=out.say)
    place = loaded.run.best if options.best or not loaded.run.last.exists() else loaded.run.last
    results = _evaluate(loaded, options.episodes, options.seed)
    out.say(
        f"Evaluation: {results['mean_reward']:.2f} ± {results['std_reward']:.2f}, {options.episodes} episodes"
    )
    files = hub.contents(loaded.run, place, options.repo, results, _film(options.video, loaded.run.videos))
    if options.dry_run is not None:
        options.dry_run.mkdir(parents=True, exist_ok=True)
        for name, body in files.items():
            (options.dry_run / name).write_bytes(body)
        out.say(f"{options.dry_run}: {', '.join(sorted(files))}; nothing was uploaded")
        out.result({"repo": options.repo, "url": None, "files": sorted(files), "results": results})
        return 0
    pushed = hub.push(options.repo, files, private=options.private)
    out.say(f"{pushed.url}: {', '.join(pushed.files)}")
    out.say(f"  sparring pull {pushed.repo}")
    out.result({**pushed._asdict(), "results": results})
    return 0


def _evaluate(loaded: agents.Loaded, episodes: int, seed: int) -> dict[str, Any]:
    """What the card tells of the agent."""
    env = agents.environment(loaded.plan, min(episodes, 8))
    try:
        score = loaded.agent.evaluate(env, episodes, seed)
    finally:
        if hasattr(env, "close"):
            env.close()
    return {
        "mean_reward": score.mean,
        "std_reward": score.std,
        "ci95": list(score.ci95),
        "is_deterministic": True,
        "n_eval_episodes": episodes,
        "eval_seed": seed,
        "eval_datetime": datetime.now(UTC).isoformat(timespec="seconds"),
        "steps": loaded.run.read_status().steps,
    }


def _film(given: Path | None, videos: Path) -> Path | None:
    """The film to show: the one given, or the newest of the run."""
    if given is not None:
        if not given.is_file():
            raise CheckpointError(
                f"There is no film {str(given)!r}. Make one with: sparring record RUN -o {given}"
            )
        return given
    films = sorted(videos.glob("*.mp4"), key=lambda film: film.stat().st_mtime) if videos.is_dir() else []
    return films[-1] if films else None
