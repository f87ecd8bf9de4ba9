"""Trained agents of runs, and the environments in which they are shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sparring.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from sparring.launch import Plan
    from sparring.model import Agent
    from sparring.runs.directory import RunDirectory


class Loaded(NamedTuple):
    """A run's agent and the plan it was trained by."""

    run: RunDirectory
    plan: Plan
    agent: Agent


def load(name: str, *, best: bool, trust_code: bool, say: Callable[[str], None]) -> Loaded:
    """The last or the best agent of a run; the best one while there is no last one yet."""
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
    if not place.exists():
        raise CheckpointError(
            f"{run.name} has no {'best' if best else 'trained'} agent yet. Let it train to its first "
            f"evaluation: sparring resume {run.path}"
        )
    prepare("auto")
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
    """Episodes of an agent in row 0 of a host environment, step by step; the first moment is the reset."""
    import jax

    from sparring.evaluation.evaluator import SEED_OFFSET, Player
    from sparring.model import check_spaces
    from sparring.ops import keys

    check_spaces(agent.spec, dataclasses.replace(env.spec, rows=1))
    key = keys.once(jax.random.key(seed), keys.EVALUATION)
    player = Player(agent.algo, agent.weights, 1, deterministic, key)
    timestep = env.reset(seed + SEED_OFFSET)
    for episode in range(episodes):
        step, total, over = 0, 0.0, False
        yield Moment(episode, 0, timestep.obs, None, 0.0, 0.0, False)
        while not over:
            obs = timestep.obs
            action = player.act(timestep)
            timestep = env.step(action)
            step, reward = step + 1, float(timestep.reward[0])
            total += reward
            over = bool(timestep.terminated[0] | timestep.truncated[0])
            yield Moment(episode, step, obs, action[0], reward, total, over)
