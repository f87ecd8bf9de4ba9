"""`import-sb3`: SB3 reads the model apart from us, and what it hands over becomes a run folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from sparring import launch
from sparring.config import as_mapping
from sparring.envs import registry
from sparring.envs.api import episode_seed
from sparring.errors import ConfigError, MissingExtra
from sparring.model import Agent
from sparring.reference import is_reference
from sparring.runs import artefact, directory
from sparring.runs.directory import RunDirectory, Status
from sparring.sb3 import handover, parity, rebuild, sandbox
from sparring.sb3.handover import Handover
from sparring.sb3.parity import Parity, Replay
from sparring.spaces import EnvSpec

EXPORTER = Path(__file__).with_name("exporter.py")
VARIABLE = "SPARRING_SB3_PYTHON"
USUAL = Path(".venv-peers/bin/python")
STATISTICS = ("vecnormalize.pkl", "vec_normalize.pkl")
SEED = 0


class Imported(NamedTuple):
    """A run folder with an imported agent, and how close it is to the model."""

    run: RunDirectory
    given: Handover
    observed: Parity
    replayed: Replay | None
    """None where SB3's Python could not make the environment"""
    statistics: Path | None
    protection: str


def run(
    model: Path,
    env: str,
    *,
    python: Path | None = None,
    output: Path | None = None,
    statistics: Path | None = None,
    steps: int = 1000,
    seconds: int = 300,
    say: Callable[[str], None] = print,
) -> Imported:
    """Imports a model of SB3's; `statistics` are VecNormalize's."""
    if not model.is_file():
        raise ConfigError(f"There is no file {str(model)!r}.")
    if statistics is not None and not statistics.is_file():
        raise ConfigError(f"There is no file {str(statistics)!r}.")
    if output is not None and directory.is_run(output):
        raise ConfigError(f"{str(output)!r} already holds a run; choose another folder with -o.")
    spec = _spec(env)
    chosen = find_python(python)
    say(f"Reading {model.name} with {chosen}: {sandbox.protection()}.")
    returned = export(model, _gymnasium_id(env), chosen, statistics, steps, seconds)
    given = handover.read(returned.files, spec)
    agent = rebuild.agent(given, spec)
    observed = parity.on_observations(agent, given)
    replayed = None
    if given.record.reward is not None:
        replayed = parity.on_episodes(agent, given.record, f"gym:{_gymnasium_id(env)}", SEED)
    made = _settle(agent, given, env, output, model)
    return Imported(made, given, observed, replayed, statistics, returned.protection)


def find_python(asked: Path | None) -> Path:
    """The Python that has SB3: the one asked for, the environment variable's, or the usual one."""
    named = asked or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    checkout = Path(__file__).resolve().parents[2] / USUAL
    for candidate in [named] if named else [USUAL, checkout]:
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate.absolute()  # not resolved: an environment is known by its own link
    where = f"There is no Python at {str(named)!r}." if named else f"There is no {USUAL}."
    raise MissingExtra(
        f"{where} Stable-Baselines3 runs in an environment of its own. Make one: python3 -m venv .venv-peers "
        "&& .venv-peers/bin/pip install stable-baselines3 (and what your environment needs). Another place "
        f"is named by --peers-python or {VARIABLE}."
    )


def find_statistics(model: Path) -> Path | None:
    """VecNormalize's file where SB3's users and RL-Zoo put it: beside the model, or in a folder beside it."""
    folders = [model.parent, model.with_suffix("")]
    folders += sorted(path for path in model.parent.iterdir() if path.is_dir() and path not in folders)
    found = [path / name for path in folders for name in STATISTICS if (path / name).is_file()]
    return found[0] if found else None


def export(
    model: Path,
    env: str | None,
    python: Path,
    statistics: Path | None,
    steps: int,
    seconds: int,
    exporter: Path = EXPORTER,
) -> sandbox.Returned:
    """What SB3, confined, makes of the model."""
    request = {
        "model": "model.zip",
        "vecnormalize": None if statistics is None else STATISTICS[0],
        "env": env,
        "steps": steps,
        "seeds": [episode_seed(SEED, 0, episode) for episode in range(steps)],
    }
    inputs: dict[str, Path | bytes] = {"request.json": json.dumps(request).encode(), "model.zip": model}
    if statistics is not None:
        inputs[STATISTICS[0]] = statistics
    command = [str(python), "-I", "-B", str(exporter)]
    return sandbox.run(command, inputs, handover.SIZES, sandbox.Limits(seconds=seconds))


def _spec(env: str) -> EnvSpec:
    world = registry.make(env, n_envs=1, backend="inline")
    try:
        found: EnvSpec = world.spec
    finally:
        if hasattr(world, "close"):
            world.close()
    return found


def _gymnasium_id(env: str) -> str | None:
    """The environment's id in Gymnasium, if it may have one."""
    return None if is_reference(env) else env.removeprefix("gym:").removeprefix("envpool:")


def _settle(agent: Agent, given: Handover, env: str, output: Path | None, model: Path) -> RunDirectory:
    """A run folder with the agent as what training left behind."""
    plan = launch.plan(given.algorithm, env, (SEED,), use_preset=False)
    plan = plan._replace(config=agent.algo.config)
    versions = ", ".join(f"{name} {version}" for name, version in given.versions.items())
    origin = f"imported from {model.name} ({versions})"
    run = directory.create(given.algorithm, env, SEED, path=output, total=given.timesteps)
    with run:
        run.write_config(launch.facts(plan), {})
        artefact.save(
            run.last,
            agent.weights,
            algorithm=given.algorithm,
            config=as_mapping(agent.algo.config),
            spec=agent.spec,
            metadata={"origin": origin},
        )
        started = run.read_status().started
        steps = given.timesteps
        run.write_status(Status(given.algorithm, env, SEED, "finished", steps, steps, None, origin, started))
    return run
