"""The SB3-shaped façade: an environment and a few words become a training session and an agent."""

from __future__ import annotations

import dataclasses
import importlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from sparring import actor, spaces
from sparring.config import as_mapping, from_mapping
from sparring.drivers.fused import Fused
from sparring.drivers.host import Host, OnStep
from sparring.drivers.loop import Driver
from sparring.drivers.platform import prepare
from sparring.drivers.several import Several
from sparring.envs import registry
from sparring.envs.batched import JaxHost
from sparring.errors import ConfigError, SpaceMismatch, UnknownName, nearest
from sparring.evaluation.evaluator import Evaluation, evaluate
from sparring.reference import is_reference, load
from sparring.runs import artefact, directory, tree
from sparring.session import Session, Settings, eval_episodes
from sparring.spaces import EnvSpec
from sparring.types import ActorState, Behaviour

ALGORITHMS = {
    "ppo": "sparring.algos.ppo:PPO",
    "a2c": "sparring.algos.a2c:A2C",
    "reinforce": "sparring.algos.reinforce:REINFORCE",
}


def algorithm_class(name: str) -> Any:
    """The algorithm of that name, or the one in the user's file."""
    if is_reference(name):
        found = load(name)
        if not all(hasattr(found, part) for part in ("Config", "init", "act", "update", "policy", "absorb")):
            raise ConfigError(
                f"{name!r} is not an algorithm: it needs Config, init, policy, carry, act, update and absorb. "
                "See docs/algorithms.md and examples/my_algorithm.py."
            )
        return found
    if name.lower() not in ALGORITHMS:
        raise UnknownName(
            f"There is no algorithm {name!r}.{nearest(name, ALGORITHMS)} Known: {', '.join(ALGORITHMS)}; "
            "`file.py:Name` loads one of your own."
        )
    module, _, attribute = ALGORITHMS[name.lower()].partition(":")
    return getattr(importlib.import_module(module), attribute)


class Assembly(NamedTuple):
    """Everything a session needs."""

    driver: Driver
    eval_env: Any
    spec: EnvSpec
    settings: Settings
    warnings: list[str]


def assemble(
    algorithm: Any,
    env: Any,
    settings: Settings,
    config: Any,
    seeds: tuple[int, ...],
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    host: bool = False,
    on_step: OnStep | None = None,
    eval_env: Any = None,
    device: str = "auto",
) -> Assembly:
    """Makes the environments, picks the driver, and checks that the settings are possible.

    A JAX environment runs fused, unless `host` is set; anything else runs on the host driver.
    """
    prepare(device)
    options: dict[str, Any] = {
        "kwargs": env_kwargs,
        "time_limit": settings.time_limit,
        "backend": settings.backend,
        "deadline": settings.worker_deadline,
    }
    world = registry.make(env, n_envs=settings.n_envs, **options)
    jaxy = registry.is_jax(world)
    rows = settings.n_envs if jaxy else world.spec.rows
    settings = dataclasses.replace(settings, n_envs=rows, n_eval_episodes=eval_episodes(settings, jaxy))
    spec = dataclasses.replace(world.spec, rows=rows)
    algo = algorithm(spec, config)
    warnings = list(algo.check()) if hasattr(algo, "check") else []
    driver: Driver
    window = settings.stats_window_size
    if jaxy and not host:
        driver = Fused(algo, world, rows, seeds, window)  # type: ignore[assignment]
    else:
        worlds = [JaxHost(world, rows)] if jaxy else [world]
        for _ in seeds[1:]:
            again = registry.make(env, n_envs=settings.n_envs, **options)
            worlds.append(JaxHost(again, rows) if jaxy else again)
        hosts = [Host(algo, w, seed, window, on_step) for w, seed in zip(worlds, seeds, strict=True)]
        driver = hosts[0] if len(hosts) == 1 else Several(hosts)  # type: ignore[assignment]
    if eval_env is None:
        if jaxy:
            eval_env = world
        elif isinstance(env, str) or (isinstance(env, (list, tuple)) and not hasattr(env, "step")):
            count = min(settings.n_eval_episodes, 8, len(env) if not isinstance(env, str) else 8)
            source = env if isinstance(env, str) else list(env)[:count]
            eval_env = registry.make(source, n_envs=count, **{**options, "backend": "inline"})
    return Assembly(driver, eval_env, spec, settings, warnings)


def recommended(name: str) -> str:
    """The policy's `network` for SB3's policy name."""
    known = {"MlpPolicy": "auto", "CnnPolicy": "cnn", "MultiInputPolicy": "auto"}
    if name not in known:
        raise ConfigError(f"There is no policy {name!r}.{nearest(name, known)} Known: {', '.join(known)}.")
    return known[name]


class Agent:
    """A trained policy: weights, specification, configuration; acts exactly as it did in training."""

    def __init__(self, algo: Any, weights: Any, reference: str) -> None:
        self.algo = algo
        self.weights = weights
        self.reference = reference
        self._calls = 0

    @classmethod
    def load(cls, path: Path | str, trusted: bool = False) -> Agent:
        """The agent in an artefact; code named by it is run only when `trusted`."""
        saved = artefact.load(path)
        algo = rebuild(saved, trusted)
        template = jax.eval_shape(lambda key: algo.policy(algo.init(key)), jax.random.key(0))
        return cls(algo, saved.weights(template), saved.algorithm)

    @property
    def spec(self) -> EnvSpec:
        return self.algo.spec  # type: ignore[no-any-return]

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
        seed: int = 0,
    ) -> tuple[np.ndarray, Any]:
        """Actions for one observation or a batch, and the state to hand to the next call."""
        obs, single = _batched(self.spec.observation, observation)
        rows = jax.tree.leaves(obs)[0].shape[0]
        fresh = state is None
        carry = self.algo.carry(rows) if fresh else state
        start = np.ones(rows, bool) if fresh else np.zeros(rows, bool)
        first = start if episode_start is None else np.reshape(np.asarray(episode_start, bool), rows)
        behaviour = Behaviour(greedy=np.ones(rows, bool) if deterministic else None)
        self._calls += 1
        key = jax.random.fold_in(jax.random.key(seed), self._calls)
        action, _, carry = _act(self.algo, self.weights, ActorState(obs, first, carry), behaviour, key)
        action = np.asarray(action)
        kept = carry if jax.tree.leaves(carry) else None
        return (action[0] if single else action), kept

    def evaluate(self, env: Any, episodes: int = 100, seed: int = 0, deterministic: bool = True) -> Evaluation:
        """Whole episodes of this agent in an environment that `registry.make` made."""
        check_spaces(self.spec, env.spec)
        return evaluate(self.algo, self.weights, env, episodes, seed, deterministic)


@jax.jit
def _act(algo: Any, weights: Any, state: ActorState, behaviour: Behaviour, key: Any) -> tuple[Any, Any, Any]:
    return actor.act(algo, weights, state, behaviour, key)


def rebuild(saved: artefact.Artefact, trusted: bool = False) -> Any:
    """The algorithm an artefact describes."""
    for name, value in (("algorithm", saved.algorithm), ("network", str(saved.config.get("network", "")))):
        if is_reference(value) and not trusted:
            raise ConfigError(
                f"This agent's {name} is code in {value!r}. If you trust that file, say so: trust_code=True, "
                "or --trust-code on the command line."
            )
    cls = algorithm_class(saved.algorithm)
    return cls(saved.spec, from_mapping(cls.Config, saved.config))


def check_spaces(trained: EnvSpec, given: EnvSpec) -> None:
    """An agent only acts where observations and actions are what it was trained on."""
    for name in ("observation", "action"):
        a, b = getattr(trained, name), getattr(given, name)
        if _shape_of(a) != _shape_of(b):
            raise SpaceMismatch(
                f"The agent was trained on {trained.id} with {name}s {spaces.describe(a)}, but {given.id} has "
                f"{spaces.describe(b)}. Use the environment it was trained on, or train a new agent."
            )


def _shape_of(space: Any) -> Any:
    """What must agree between two spaces; bounds may differ in the last digit between versions."""
    if isinstance(space, spaces.Box):
        return (space.shape, space.dtype)
    if isinstance(space, spaces.Dict):
        return tuple((name, _shape_of(part)) for name, part in space.parts)
    return space


def _batched(space: Any, observation: Any) -> tuple[Any, bool]:
    """An observation with a batch axis in our dtypes, and whether it came without one."""
    example = spaces.zeros(space)
    if isinstance(example, dict):
        if not isinstance(observation, Mapping):
            raise SpaceMismatch(f"This agent observes {spaces.describe(space)}; give it a dict.")
        parts = {name: np.asarray(observation[name]) for name in example}
        single = next(iter(parts.values())).ndim == next(iter(example.values())).ndim
        made = {n: (x[None] if single else x).astype(example[n].dtype) for n, x in parts.items()}
        return made, single
    array = np.asarray(observation)
    single = array.ndim == example.ndim
    array = array[None] if single else array
    if array.shape[1:] != example.shape:
        raise SpaceMismatch(
            f"This agent observes {spaces.describe(space)}; an observation of shape {array.shape[1:]} does not fit."
        )
    return array.astype(example.dtype), single


class Model:
    """An algorithm and an environment behind SB3's interface."""

    algorithm: ClassVar[str]
    """name or reference of the algorithm"""

    def __init__(
        self,
        policy: Any,
        env: Any,
        *,
        seed: int | None = None,
        verbose: int = 0,
        device: str = "auto",
        tensorboard_log: str | None = None,
        policy_kwargs: Mapping[str, Any] | None = None,
        stats_window_size: int = 100,
        run_dir: str | Path | bool | None = None,
        n_envs: int = 1,
        _init_setup_model: bool = True,
        **settings: Any,
    ) -> None:
        from sparring.common.translate import config_values, unwrap

        self._class = algorithm_class(self.algorithm)
        world, extra = unwrap(env)
        values = config_values(policy, policy_kwargs, settings) | extra
        self.config = from_mapping(self._class.Config, values)
        self.env = env
        self._world = world
        self.seed = int(time.time_ns() % 2**31) if seed is None else int(seed)
        self.verbose = verbose
        self.device = device
        self.tensorboard_log = tensorboard_log
        self.run_dir = run_dir
        self.num_timesteps = 0
        self._settings = Settings(n_envs=n_envs, stats_window_size=stats_window_size)
        self._assembly: Assembly | None = None
        self._train: Any = None
        self._generation = 0
        self._per_step = False
        self.callback: Any = None
        self.session: Session | None = None
        self.run: directory.RunDirectory | None = None
        self.recorded: dict[str, float] = {}
        if world is not None:
            self._spec = self._look(world)
            for warning in self._check():
                self._say(f"Warning: {warning}")

    def __init_subclass__(cls) -> None:
        cls.__doc__ = cls.__doc__ or f"SB3's {cls.__name__} on JAX."

    # -- learning ----------------------------------------------------------------------------------------

    def learn(
        self,
        total_timesteps: int,
        callback: Any = None,
        log_interval: int = 1,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool | None = None,
    ) -> Self:
        """Trains for that many more environment steps."""
        from sparring.common import learning

        return learning.learn(
            self, int(total_timesteps), callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar
        )

    def _look(self, world: Any) -> EnvSpec:
        made = registry.make(world, n_envs=self._settings.n_envs)
        if not isinstance(world, str):
            self._world = made
        rows = self._settings.n_envs if registry.is_jax(made) else made.spec.rows
        spec = dataclasses.replace(made.spec, rows=rows)
        if isinstance(world, str) and hasattr(made, "close"):
            made.close()
        return spec

    def _check(self) -> list[str]:
        algo = self._class(self._spec, self.config)
        return list(algo.check()) if hasattr(algo, "check") else []

    def _say(self, text: str) -> None:
        if self.verbose >= 0:
            print(text)

    def assembled(self, settings: Settings, on_step: OnStep | None, host: bool, fresh: bool) -> Assembly:
        """The driver for the next call of learn, continuing with the weights there are."""
        if self._world is None:
            raise ConfigError("This model has no environment; give it one with set_env(env).")
        old = self._assembly
        if old is not None and not fresh and host == self._per_step:
            return old._replace(settings=dataclasses.replace(old.settings, total_timesteps=settings.total_timesteps))
        train = self.train_state() if (old is not None or self._train is not None) else None
        seed = self.seed + 1_000_003 * self._generation
        self._generation += 1
        assembly = assemble(
            self._class, self._world, settings, self.config, (seed,), host=host, on_step=on_step, device=self.device
        )
        self._per_step = host
        if train is not None:
            put_train_state(assembly.driver, train)
        self._assembly = assembly
        return assembly

    # -- acting ------------------------------------------------------------------------------------------

    def agent(self) -> Agent:
        """The policy as it is now."""
        algo = self._class(self._spec, self.config)
        return Agent(algo, algo.policy(self.train_state()), self.algorithm)

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, Any]:
        """SB3's predict; `state` carries frames and memory where the policy has them."""
        agent = self._cached_agent()
        return agent.predict(observation, state, episode_start, deterministic, self.seed)

    def _cached_agent(self) -> Agent:
        train = self.train_state()
        cached: tuple[Any, Agent] | None = getattr(self, "_agent", None)
        if cached is None or cached[0] is not train:
            cached = (train, self.agent())
            self._agent = cached
        return cached[1]

    def train_state(self) -> Any:
        """Everything that learning changed."""
        if self._assembly is not None:
            return self._assembly.driver.train_state()
        if self._train is None:
            algo = self._class(self._spec, self.config)
            self._train = jax.jit(algo.init)(jax.random.key(self.seed))
        return self._train

    # -- environment -------------------------------------------------------------------------------------

    def set_env(self, env: Any, force_reset: bool = True) -> None:
        """Another environment with the same spaces."""
        from sparring.common.translate import unwrap

        world, _ = unwrap(env)
        spec = self._look(world) if world is not None else None
        if spec is not None and hasattr(self, "_spec"):
            check_spaces(self._spec, spec)
        train = self.train_state()
        self.env = env
        self._world = world if isinstance(world, str) else self._world
        if spec is not None:
            self._spec = spec
        self._assembly, self._train = None, train

    def get_env(self) -> Any:
        """The environment as SB3's VecEnv."""
        from sparring.common.vec_env import as_vec_env

        return None if self._world is None else as_vec_env(self.env, self._spec.rows)

    @property
    def n_envs(self) -> int:
        return self._spec.rows

    @property
    def observation_space(self) -> Any:
        from sparring.common.translate import gym_space

        return gym_space(self._spec.observation)

    @property
    def action_space(self) -> Any:
        from sparring.common.translate import gym_space

        return gym_space(self._spec.action)

    @property
    def logger(self) -> Any:
        from sparring.common.learning import Logger

        return Logger(self)

    # -- saving ------------------------------------------------------------------------------------------

    def save(self, path: str | Path, exclude: Any = None, include: Any = None) -> None:
        """One archive with weights, statistics, optimiser, configuration and specification; no pickle."""
        place = Path(path)
        place = place if place.suffix == ".zip" else place.with_name(place.name + ".zip")
        save_agent(place, self._class(self._spec, self.config), self.train_state(), self.algorithm, full=True)

    @classmethod
    def load(
        cls,
        path: str | Path,
        env: Any = None,
        device: str = "auto",
        trust_code: bool = False,
        **settings: Any,
    ) -> Self:
        """The agent that `save` wrote; `env` is needed only to go on learning."""
        saved = artefact.load(path)
        if saved.algorithm != cls.algorithm:
            raise ConfigError(
                f"{str(path)!r} holds a {saved.algorithm.upper()} agent; load it with "
                f"{saved.algorithm.upper()}.load, not {cls.__name__}.load."
            )
        algo = rebuild(saved, trust_code)
        values = {**saved.config, **settings}
        model = cls.__new__(cls)
        Model.__init__(model, "MlpPolicy", None, device=device)
        model.config = from_mapping(model._class.Config, values)
        model._spec = saved.spec
        template = jax.eval_shape(algo.init, jax.random.key(0))
        model._train = jax.tree.map(jnp.asarray, saved.train_state(template))
        if env is not None:
            model.set_env(env)
        return model

    def get_parameters(self) -> dict[str, Any]:
        """Every array that training changed, by name."""
        return tree.flatten(self.train_state())

    def set_parameters(self, parameters: Any, exact_match: bool = True, device: str = "auto") -> None:
        """Arrays by name, as `get_parameters` returns them, or a saved file."""
        if isinstance(parameters, (str, Path)):
            saved = artefact.load(parameters)
            template = jax.eval_shape(rebuild(saved).init, jax.random.key(0))
            parameters = tree.flatten(saved.train_state(template))
        now = self.train_state()
        values = dict(parameters) if exact_match else {**tree.flatten(now), **parameters}
        new = jax.tree.map(jnp.asarray, tree.unflatten(now, values))
        if self._assembly is not None:
            put_train_state(self._assembly.driver, new)
        else:
            self._train = new


def put_train_state(driver: Driver, train: Any) -> None:
    """Replaces what learning changed in a driver's first seed."""
    state = driver.state(0)
    fresh = jax.tree.map(jnp.copy, train)
    driver.restore(state._replace(learner=state.learner._replace(train=fresh)), driver.iteration)


def save_agent(place: Path, algo: Any, train: Any, reference: str, full: bool = False) -> None:
    """Writes an artefact; `full` adds what further learning needs."""
    artefact.save(
        place,
        algo.policy(train),
        algorithm=reference,
        config=as_mapping(algo.config),
        spec=algo.spec,
        train=train if full else None,
    )
