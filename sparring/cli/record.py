"""`sparring record RUN -o f.mp4`: a film of a trained agent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.cli import agents, graphics
from sparring.cli.output import Output
from sparring.cli.parser import Options, Parser
from sparring.errors import EnvironmentFailure

if TYPE_CHECKING:
    import numpy as np

    from sparring.launch import Plan


def parser() -> Parser:
    made = Parser("record", "Film a trained agent as an MP4.", ("record last -o cartpole.mp4 --episodes 3",))
    made.run_argument()
    made.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="the film (default: in the run's videos/)"
    )
    made.add_argument("--fps", type=float, metavar="F", help="frames per second (default: the environment's)")
    made.acting_arguments(episodes=1)
    return made


def run(options: Options, out: Output) -> int:
    from sparring.evaluation.video import write_video

    loaded = agents.load(options.run, best=options.best, trust_code=options.trust_code, say=out.say)
    env = drawable(loaded.plan)
    path = options.output or loaded.run.videos / f"seed-{options.seed}.mp4"
    returns: list[float] = []
    lengths: list[int] = []

    def frames() -> Iterator[np.ndarray]:
        played = agents.perform(loaded.agent, env, options.episodes, options.seed, not options.stochastic)
        for moment in played:
            if moment.over:  # the environment shows the next episode already
                returns.append(moment.total)
                lengths.append(moment.step)
                continue
            yield picture(env, loaded.plan.env)

    try:
        write_video(path, frames(), options.fps or fps(env))
    finally:
        env.close()
    shown = ", ".join(f"{total:.1f}" for total in returns)
    many = "episode" if len(returns) == 1 else "episodes"
    out.say(f"{path}: {len(returns)} {many}, returns {shown}, lengths {', '.join(map(str, lengths))}")
    out.result({"path": str(path), "episodes": len(returns), "returns": returns, "lengths": lengths})
    return 0


def drawable(plan: Plan) -> Any:
    """One row of a run's environment that can be asked for pictures."""
    from sparring.envs import registry
    from sparring.reference import is_reference

    graphics.prepare(plan.env)
    if registry.is_jax(plan.env):
        return registry.host(agents.environment(plan, 1), 1)
    if plan.env.startswith("envpool:"):
        # EnvPool draws nothing; Gymnasium knows the classic and MuJoCo ids too.
        plan = plan._replace(env="gym:" + plan.env.removeprefix("envpool:"))
    if is_reference(plan.env):
        return registry.host(_own(plan), 1)
    return registry.host(agents.environment(plan, 1, render_mode="rgb_array"), 1)


def _own(plan: Plan) -> Any:
    """The user's environment, asked to draw when its function takes a render_mode."""
    from sparring.errors import ConfigError

    try:
        return agents.environment(plan, 1, render_mode="rgb_array")
    except ConfigError:
        return agents.environment(plan, 1)


def picture(env: Any, name: str) -> np.ndarray:
    """A frame of row 0."""
    frame: np.ndarray | None = env.render()
    if frame is None:
        raise EnvironmentFailure(
            f"{name} draws nothing. A JAX environment needs `draw(state)`, a Gymnasium one "
            "render_mode='rgb_array' and a `render` that returns pixels."
        )
    return frame


def fps(env: Any) -> float:
    """Frames per second that an environment asks for; the classic ones are Gymnasium's."""
    inner = env.envs[0] if getattr(env, "envs", None) else env
    asked = (getattr(inner, "metadata", None) or {}).get("render_fps")
    if asked:
        return float(asked)
    classic = {"CartPole": 50.0, "Acrobot": 15.0}
    return next((rate for start, rate in classic.items() if env.spec.id.startswith(start)), 30.0)
