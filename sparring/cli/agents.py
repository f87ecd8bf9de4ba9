"""Trained agents of runs, and the environments in which they are shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sparring.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from sparring.evaluation.episode import Performer
    from sparring.launch import Plan
    from sparring.model import Agent
    from sparring.runs.directory import RunDirectory


class Loaded(NamedTuple):
    """A run's agent and the plan it was trained by."""

    run: RunDirectory
    plan: Plan
    agent: Agent


def load(name: str, *, best: bool, trust_code: bool, say: Callable[[str], None]) -> Loaded:
    """The last or best agent of a run; while there is no last one the best, else that of a checkpoint."""
    from sparring import launch
    from sparring.drivers.platform import prepare
    from sparring.model import Agent
    from sparring.runs import directory

    run = directory.find(name)
    plan = launch.read_plan(run, trust_code)
    place = run.best if best else run.last
    if not best and not place.exists() and run.best.exists():
        say(f"{run.name} has not ended yet: using its best agent so far.")
        place = run.best
    prepare("auto")
    if not place.exists():
        newest = None if best else _from_newest_checkpoint(run, plan, say)
        if newest is None:
            raise CheckpointError(
                f"{run.name} has no {'best' if best else 'trained'} agent yet. Let it train to its first "
                f"{'evaluation' if best else 'checkpoint'}: sparring resume {run.path}"
            )
        say(f"{run.name} has not ended yet: using its agent after {newest.step:,} steps.")
        return Loaded(run, plan, Agent(newest.performer.algo, newest.performer.weights, plan.algorithm))
    _refuse_enclosed_code(place, run.path, trust_code)
    return Loaded(run, plan, Agent.load(place, trusted=True))


def _refuse_enclosed_code(place: Path, folder: Path, trust_code: bool) -> None:
    """Code that came along with a run is a stranger's, unless the user says otherwise."""
    from sparring.reference import is_reference
    from sparring.runs import artefact

    saved = artefact.load(place)
    for reference in (saved.algorithm, str(saved.config.get("network", ""))):
        if not is_reference(reference) or trust_code:
            continue
        file = Path(reference.rpartition(":")[0]).resolve()
        if file.is_relative_to(folder.resolve()):
            raise ConfigError(
                f"{folder} names code that lies inside the run itself ({file.name}). Look at the file, and "
                "if you trust it add --trust-code."
            )


def drawable(plan: Plan) -> Any:
    """One row of a run's environment that can be asked for pictures."""
    from sparring.evaluation import frames

    return frames.drawable(plan.env, plan.env_kwargs, plan.settings.time_limit)


def environment(plan: Plan, rows: int, **kwargs: Any) -> Any:
    """The environment that a run was trained on; a host one has `rows` rows."""
    from sparring.envs import registry

    return registry.make(
        plan.env,
        n_envs=rows,
        kwargs={**plan.env_kwargs, **kwargs},
        time_limit=plan.settings.time_limit,
        backend="inline",
    )


class Moment(NamedTuple):
    """One step of a shown episode."""

    episode: int
    step: int
    obs: Any
    """what the agent saw"""
    action: Any
    reward: float
    total: float
    """the episode's return so far"""
    over: bool


def perform(agent: Agent, env: Any, episodes: int, seed: int, deterministic: bool) -> Iterator[Moment]:
    """Episodes of consecutive seeds in row 0 of a host environment; the first moment of each is the reset."""
    from sparring.evaluation.episode import Episode

    for number in range(episodes):
        episode = Episode(performer(agent, env), env, seed + number, deterministic)
        yield Moment(number, 0, episode.timestep.obs, None, 0.0, 0.0, False)
        while not episode.over:
            obs = episode.timestep.obs
            action = episode.decide()
            episode.advance()
            yield Moment(number, episode.step, obs, action, episode.reward, episode.total, episode.over)


def performer(agent: Agent, env: Any, train: Any = None) -> Performer:
    """An agent that may act in this environment."""
    from sparring.evaluation.episode import Performer
    from sparring.model import check_spaces

    check_spaces(agent.spec, dataclasses.replace(env.spec, rows=1))
    return Performer(agent.algo, agent.weights, train)


class Stage(NamedTuple):
    """An agent as it was after some steps of training."""

    step: int
    performer: Performer


def from_checkpoint(algo: Any, path: Path) -> Stage:
    """The first seed's agent as a checkpoint holds it, with all that training knew."""
    import jax

    from sparring.evaluation.episode import Performer
    from sparring.runs import checkpoint, tree

    template = jax.eval_shape(algo.init, jax.random.key(0))
    train = tree.unflatten(template, checkpoint.read_part(path, "0/learner/train/"))
    return Stage(checkpoint.read_manifest(path).step, Performer(algo, jax.jit(algo.policy)(train), train))


def _from_newest_checkpoint(run: RunDirectory, plan: Plan, say: Callable[[str], None]) -> Stage | None:
    """The agent of the newest intact checkpoint; None when there is none."""
    from sparring.model import algorithm_class
    from sparring.runs import checkpoint

    paths = checkpoint.listing(run.checkpoints)
    if not paths:
        return None
    env = environment(plan, 1)
    spec = dataclasses.replace(env.spec, rows=plan.settings.n_envs)
    if hasattr(env, "close"):
        env.close()
    algo = _scheduled(algorithm_class(plan.algorithm)(spec, plan.config), plan)
    for path in paths:
        try:
            return from_checkpoint(algo, path)
        except CheckpointError as error:
            say(f"Left out: {error}")
    return None


def stages(loaded: Loaded, say: Callable[[str], None]) -> list[Stage]:
    """What a run still has of its agents, by steps: its checkpoints, and the best agent if it is another."""
    import json

    from sparring.evaluation.episode import Performer
    from sparring.model import Agent
    from sparring.runs import checkpoint

    run, algo = loaded.run, _scheduled(loaded.agent.algo, loaded.plan)
    found: dict[int, Stage] = {}
    for path in reversed(checkpoint.listing(run.checkpoints)):
        try:
            stage = from_checkpoint(algo, path)
        except CheckpointError as error:
            say(f"Left out: {error}")
            continue
        found[stage.step] = stage
    if run.best.exists() and run.evaluation.exists():
        step = int(json.loads(run.evaluation.read_text())["best"]["step"])
        best = Agent.load(run.best, trusted=True)
        found.setdefault(step, Stage(step, Performer(best.algo, best.weights)))
    return [found[step] for step in sorted(found)]


def training_state(loaded: Loaded) -> Any:
    """What training knew when it left this agent, if a checkpoint of that moment is there; else None."""
    import jax
    import numpy as np

    from sparring.runs import checkpoint

    algo = _scheduled(loaded.agent.algo, loaded.plan)
    for path in checkpoint.listing(loaded.run.checkpoints):
        try:
            stage = from_checkpoint(algo, path)
        except CheckpointError:  # `--reel` and `resume` tell of it; here only V(s) is missing
            continue
        pairs = zip(
            jax.tree.leaves(stage.performer.weights), jax.tree.leaves(loaded.agent.weights), strict=True
        )
        if all(np.array_equal(a, b) for a, b in pairs):
            return stage.performer.train
    return None


def _scheduled(algo: Any, plan: Plan) -> Any:
    """An algorithm with its schedules over the run's length."""
    import jax.numpy as jnp

    if not hasattr(algo, "horizon"):
        return algo
    per = algo.plan.rollout * algo.spec.rows
    total = max(-(-plan.settings.total_timesteps // per), 1)
    return dataclasses.replace(algo, horizon=jnp.float32(total))
