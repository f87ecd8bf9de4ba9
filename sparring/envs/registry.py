"""Environments by name: JAX-native ids, `gym:ID`, `envpool:ID`, `file.py:name`, and objects as they are.

Importing this module imports neither jax nor gymnasium.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from sparring.errors import ConfigError, EnvironmentFailure, MissingExtra, UnknownName, nearest
from sparring.machine import usable_cores
from sparring.reference import is_reference, load

Backend: TypeAlias = Literal["auto", "inline", "workers"]

CLASSIC = "sparring.envs.classic"
PROBES = "sparring.envs.probes"
MEMORY = "sparring.envs.memory"
JAX_ENVS = {
    "CartPole-v1": f"{CLASSIC}.cartpole:CartPole",
    "MountainCar-v0": f"{CLASSIC}.mountain_car:MountainCar",
    "MountainCarContinuous-v0": f"{CLASSIC}.mountain_car:MountainCarContinuous",
    "Acrobot-v1": f"{CLASSIC}.acrobot:Acrobot",
    "Pendulum-v1": f"{CLASSIC}.pendulum:Pendulum",
    "RepeatFirst": f"{MEMORY}:RepeatFirst",
    "MaskedCartPole-v1": f"{MEMORY}:masked_cartpole",
    "MaskedPendulum-v1": f"{MEMORY}:masked_pendulum",
    "PositionMountainCar-v0": f"{MEMORY}:position_mountain_car",
    "probe/constant-value": f"{PROBES}:ConstantValue",
    "probe/observed-value": f"{PROBES}:ObservedValue",
    "probe/discounting": f"{PROBES}:Discounting",
    "probe/action-reward": f"{PROBES}:ActionReward",
    "probe/action-reward-continuous": f"{PROBES}:ActionRewardContinuous",
    "probe/observed-action": f"{PROBES}:ObservedAction",
    "probe/observed-action-continuous": f"{PROBES}:ObservedActionContinuous",
    "probe/truncation": f"{PROBES}:Truncation",
    "probe/masked": f"{PROBES}:Masked",
    "probe/multidiscrete": f"{PROBES}:ManyChoices",
    "probe/multibinary": f"{PROBES}:ManyBits",
    "probe/dict": f"{PROBES}:DictObservation",
    "probe/multiply": f"{PROBES}:Multiply",
    "probe/multiply-continuous": f"{PROBES}:MultiplyContinuous",
}
JAX_FAMILIES = {
    "RepeatPrevious": (f"{MEMORY}:RepeatPrevious", (4, 32)),
    "RepeatPreviousContinuous": (f"{MEMORY}:RepeatPreviousContinuous", (4,)),
    "TMaze": (f"{MEMORY}:TMaze", (10, 50)),
}
"""Environments with a number in their id, as in RepeatPrevious-4, and the numbers that are listed."""

MEASURE_SECONDS = 0.1
WORKER_OVERHEAD = 3e-4
"""Seconds that a step through worker processes costs beyond the environments' own time."""
WORTHWHILE = 1e-3
"""Seconds per step of all rows that workers must save before they are chosen."""

_step_costs: dict[str, float] = {}


def jax_ids() -> list[str]:
    """The ids that run as JAX environments."""
    families = (f"{name}-{n}" for name, (_, listed) in JAX_FAMILIES.items() for n in listed)
    return [*JAX_ENVS, *families]


def is_jax(env: Any) -> bool:
    """Whether an id or object is a JAX environment; does not build it and does not look into files."""
    if isinstance(env, str):
        return env in JAX_ENVS or _family(env) is not None
    return not isinstance(env, type) and all(
        hasattr(env, name) for name in ("spec", "reset", "observe", "step")
    )


def make(
    env: Any,
    *,
    n_envs: int = 1,
    kwargs: Mapping[str, Any] | None = None,
    backend: Backend = "auto",
    time_limit: int | None = None,
    n_workers: int | None = None,
    deadline: float = 30.0,
    fresh_every_episode: bool | None = None,
) -> Any:
    """The environment a user means: a JaxEnv, or a HostEnv with `n_envs` rows.

    An id that exists JAX-native gives the JaxEnv; `gym:ID` and `envpool:ID` force the adapter; any other id
    is Gymnasium's. `file.py:name` is loaded from the user's file. Environments, vector environments and
    lists of factories are adapted; a JaxEnv or HostEnv is returned as it is. `kwargs` go to the
    environment's constructor; for Atari, `atari_wrap=True` adds the usual preprocessing.
    """
    if n_envs < 1:
        raise ConfigError(f"n_envs must be at least 1, not {n_envs}.")
    if time_limit is not None and time_limit < 1:
        raise ConfigError(f"time_limit must be at least 1, not {time_limit}.")
    if backend not in ("auto", "inline", "workers"):
        raise ConfigError(f"backend must be 'auto', 'inline' or 'workers', not {backend!r}.")
    options = _Options(
        n_envs, dict(kwargs or {}), backend, time_limit, n_workers, deadline, fresh_every_episode
    )
    if isinstance(env, str):
        return _by_name(env, options)
    if is_jax(env):
        return _limited(env, time_limit)
    if isinstance(env, type):
        return _from_callable(env, options)
    if _is_host(env):
        return env
    if isinstance(env, Sequence):
        return _from_factories(env, options)
    if callable(env) and not hasattr(env, "step"):
        return _from_callable(env, options)
    return _adapt(env, options)


def host(env: Any, rows: int) -> Any:
    """A host environment for what `make` returned: a JaxEnv is given rows, a HostEnv is returned as it is."""
    if not is_jax(env):
        return env
    from sparring.envs.batched import JaxHost

    return JaxHost(env, rows)


@dataclass(frozen=True)
class _Options:
    """What `make` was asked for besides the environment itself."""

    rows: int
    kwargs: dict[str, Any]
    backend: Backend
    time_limit: int | None
    n_workers: int | None
    deadline: float
    fresh_every_episode: bool | None


def _by_name(name: str, options: _Options) -> Any:
    if is_jax(name):
        return _limited(_jax_env(name, options.kwargs), options.time_limit)
    if name.startswith("envpool:"):
        from sparring.envs.envpool import EnvPoolRows

        return EnvPoolRows(
            name.removeprefix("envpool:"), options.rows, time_limit=options.time_limit, **options.kwargs
        )
    if is_reference(name):
        return _from_file(name, options)
    return _from_gymnasium(name.removeprefix("gym:"), options, forced=name.startswith("gym:"))


def _jax_env(name: str, kwargs: Mapping[str, Any]) -> Any:
    place, number = _family(name) or (JAX_ENVS[name], ())
    module, _, cls = place.partition(":")
    try:
        return getattr(importlib.import_module(module), cls)(*number, **kwargs)
    except TypeError as error:
        raise ConfigError(f"{name!r} does not take these arguments {dict(kwargs)!r}: {error}.") from error


def _family(name: str) -> tuple[str, tuple[int, ...]] | None:
    """Where an environment with a number in its id is defined, and the number."""
    family, _, number = name.rpartition("-")
    if family not in JAX_FAMILIES or not number.isdecimal():
        return None
    return JAX_FAMILIES[family][0], (int(number),)


def _limited(env: Any, time_limit: int | None) -> Any:
    if time_limit is None or env.spec.time_limit == time_limit:
        return env
    from sparring.envs.batched import WithTimeLimit

    return WithTimeLimit(env, time_limit)


def _require_gymnasium() -> Any:
    if importlib.util.find_spec("gymnasium") is None:
        raise MissingExtra(
            f"'gymnasium' is not installed; only these run without it: {', '.join(jax_ids())}. "
            "Install it with: pip install gymnasium"
        )
    return importlib.import_module("gymnasium")


def _from_gymnasium(env_id: str, options: _Options, *, forced: bool) -> Any:
    gymnasium = _require_gymnasium()
    from sparring.envs.source import GymId

    kwargs = dict(options.kwargs)
    wrap, life = bool(kwargs.pop("atari_wrap", False)), bool(kwargs.pop("life_ends_episode", False))
    source = GymId(env_id, kwargs, wrap, life)
    try:
        source.registered()
    except UnknownName as error:
        if isinstance(error.__cause__, gymnasium.error.DeprecatedEnv):
            raise
        known = list(gymnasium.registry) if forced else [*jax_ids(), *gymnasium.registry]
        raise UnknownName(
            f"There is no environment {env_id!r}.{nearest(env_id, known)} `file.py:name` loads one of your "
            "own, `envpool:ID` one of EnvPool's."
        ) from error
    return _rows([source] * options.rows, env_id, options)


def _from_file(reference: str, options: _Options) -> Any:
    found = load(reference)
    if not callable(found) or (hasattr(found, "step") and not isinstance(found, type)):
        return make(found, n_envs=options.rows, time_limit=options.time_limit)
    try:
        first = found(**options.kwargs)
    except TypeError as error:
        raise ConfigError(
            f"{reference} could not be called with the arguments {options.kwargs!r}: {error}"
        ) from error
    if is_jax(first):
        return _limited(first, options.time_limit)
    if _is_host(first) or hasattr(first, "num_envs"):
        return make(first, n_envs=options.rows, time_limit=options.time_limit)
    _require_gymnasium()
    from sparring.envs.source import InFile

    _close(first)
    return _rows([InFile(reference, options.kwargs)] * options.rows, reference, options)


def _from_callable(function: Callable[..., Any], options: _Options) -> Any:
    """A class or function that builds an environment, called once per row."""
    first = function(**options.kwargs)
    if is_jax(first):
        return _limited(first, options.time_limit)
    if _is_host(first) or hasattr(first, "num_envs"):
        return make(first, n_envs=options.rows, time_limit=options.time_limit)
    _close(first)
    if options.kwargs:
        kwargs = options.kwargs
        return _from_factories([lambda: function(**kwargs)] * options.rows, options)
    return _from_factories([function] * options.rows, options)


def _from_factories(factories: Sequence[Any], options: _Options) -> Any:
    _require_gymnasium()
    from sparring.envs.source import Factory

    if not factories or not all(callable(factory) for factory in factories):
        raise ConfigError("A list of environments must hold functions that build them: [lambda: make(), …].")
    if options.rows not in (1, len(factories)):
        raise ConfigError(
            f"n_envs is {options.rows} but {len(factories)} factories were given; leave n_envs out or make "
            "them agree."
        )
    sources = [Factory(factory) for factory in factories]
    return _rows(sources, None, options)


def _adapt(env: Any, options: _Options) -> Any:
    """A Gymnasium environment or vector environment that already exists."""
    gymnasium = _require_gymnasium()
    from sparring.envs.source import refuse_legacy

    refuse_legacy(env)
    if isinstance(env, gymnasium.vector.VectorEnv):
        if options.time_limit is not None:
            raise ConfigError("time_limit cannot be set on a vector environment; set it where it is built.")
        from sparring.envs.vector import VectorRows

        return VectorRows(env)
    if not (hasattr(env, "step") and hasattr(env, "reset")):
        raise EnvironmentFailure(
            f"{type(env).__name__} is no environment. Give an id, a gymnasium.Env, a "
            "gymnasium.vector.VectorEnv, a list of functions that build environments, or file.py:name."
        )
    if options.rows > 1:
        raise ConfigError(
            f"One environment object cannot be {options.rows} rows; give its id, or a list of functions that "
            "build it."
        )
    from sparring.envs.gymnasium import GymRows

    label = getattr(getattr(env, "spec", None), "id", None) or type(env).__name__
    rows = GymRows([lambda: env], label=label, time_limit=options.time_limit, fresh_every_episode=False)
    rows.backend_reason = "inline, because an environment object was given"
    return rows


def _rows(sources: Sequence[Any], label: str | None, options: _Options) -> Any:
    """The rows of a Gymnasium environment, in this process or in workers."""
    from sparring.envs.gymnasium import GymRows
    from sparring.envs.workers import WorkerRows

    backend, reason = choose_backend(sources, options.backend, options.n_workers)
    common: dict[str, Any] = {
        "label": label,
        "time_limit": options.time_limit,
        "fresh_every_episode": options.fresh_every_episode,
    }
    rows: GymRows | WorkerRows
    if backend == "workers":
        rows = WorkerRows(sources, n_workers=options.n_workers, deadline=options.deadline, **common)
    else:
        rows = GymRows(sources, **common)
    rows.backend_reason = reason
    return rows


def choose_backend(
    sources: Sequence[Any], asked: Backend = "auto", n_workers: int | None = None
) -> tuple[Backend, str]:
    """Inline or workers, and why: by the measured cost of a step, when the choice is ours."""
    if asked != "auto":
        return asked, f"{asked}, as asked for"
    workers = min(n_workers or usable_cores(), len(sources))
    if workers < 2:
        why = "one row" if len(sources) < 2 else "one core"
        return "inline", f"inline, because there is {why}"
    if not all(
        getattr(source, "importable", True) and not getattr(source, "in_main", False) for source in sources
    ):
        return "inline", "inline, because the factory cannot be imported by a worker process"
    cost = step_cost(sources[0])
    rows = len(sources)
    inline, apart = rows * cost, -(-rows // workers) * cost + WORKER_OVERHEAD
    figures = f"a step of one row costs {cost * 1e6:.0f} µs, of {rows} rows {inline * 1e3:.2f} ms"
    if inline - apart > WORTHWHILE:
        return "workers", f"{workers} workers, because {figures}"
    return "inline", f"inline, because {figures}"


def step_cost(source: Callable[[], Any]) -> float:
    """Seconds that one step of the environment takes, resets included; measured once per environment."""
    name = repr(source)
    if name not in _step_costs:
        from sparring.envs.gymnasium import GymRows

        rows = GymRows([source])
        try:
            _step_costs[name] = measure_rows(rows)
        finally:
            rows.close()
    return _step_costs[name]


def measure_rows(rows: Any) -> float:
    """Seconds that a step of one row takes with random actions, legal ones where there are masks."""
    import numpy as np

    from sparring.envs.masks import choose

    generator, space = np.random.default_rng(0), rows.spec.action
    now = rows.reset(0)
    now = rows.step(choose(space, generator, (1,), now.legal))  # the first step may load and compile
    steps, begun = 0, time.perf_counter()
    while steps < 1000 and time.perf_counter() - begun < MEASURE_SECONDS:
        now = rows.step(choose(space, generator, (1,), now.legal))
        steps += 1
    return (time.perf_counter() - begun) / steps


def _is_host(env: Any) -> bool:
    return not isinstance(env, type) and all(hasattr(env, name) for name in ("spec", "snapshot", "restore"))


def _close(env: Any) -> None:
    if hasattr(env, "close"):
        env.close()


def known_ids() -> list[str]:
    """Every id that `make` knows by name, for completion and for offering the nearest."""
    gymnasium = sys.modules.get("gymnasium") or (
        importlib.import_module("gymnasium") if importlib.util.find_spec("gymnasium") else None
    )
    return [*jax_ids(), *(gymnasium.registry if gymnasium else ())]
