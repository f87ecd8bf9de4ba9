"""The SB3-shaped façade: an environment and a few words become a training session and an agent."""

from __future__ import annotations

import dataclasses
import importlib
import time
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np

from sparring import actor, spaces
from sparring.common.normalised import raw_observation
from sparring.common.words import translated
from sparring.config import as_mapping, coerce, from_mapping
from sparring.drivers.async_ import Async, Crew
from sparring.drivers.fused import Fused
from sparring.drivers.host import Host, OnStep
from sparring.drivers.loop import Driver
from sparring.drivers.platform import divided, once_options, prepare
from sparring.drivers.several import Several
from sparring.envs import registry
from sparring.envs.batched import JaxHost
from sparring.envs.references import REFER, RESOLVE
from sparring.errors import CheckpointError, ConfigError, SpaceMismatch, UnknownName, nearest
from sparring.evaluation.evaluator import ROWS, Evaluation, evaluate
from sparring.ops import keys
from sparring.reference import is_reference, load
from sparring.replay.size import bytes_of, free_bytes, same_layout
from sparring.runs import artefact, directory, tensors, tree
from sparring.runs.durable import replace_file
from sparring.session import Session, Settings, eval_episodes
from sparring.spaces import EnvSpec
from sparring.types import ActorState, Behaviour

if TYPE_CHECKING:
    from sparring.common.translate import Given

ALGORITHMS = {
    "ppo": "sparring.algos.ppo:PPO",
    "a2c": "sparring.algos.a2c:A2C",
    "reinforce": "sparring.algos.reinforce:REINFORCE",
    "dqn": "sparring.algos.dqn:DQN",
    "pqn": "sparring.algos.pqn:PQN",
    "gdi": "sparring.algos.gdi:GDI",
    "sac": "sparring.algos.sac:SAC",
    "td3": "sparring.algos.td3:TD3",
    "crossq": "sparring.algos.crossq:CrossQ",
}


def algorithm_class(name: str) -> Any:
    """The algorithm of that name, or the one in the user's file."""
    if is_reference(name):
        found = load(name)
        if not all(hasattr(found, part) for part in ("Config", "init", "act", "update", "policy", "absorb")):
            raise ConfigError(
                f"{name!r} is not an algorithm: it needs Config, init, policy, carry, act, update and "
                "absorb. See docs/algorithms.md and examples/my_algorithm.py."
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
    alone: bool = False,
) -> Assembly:
    """Makes the environments, picks the driver, and checks that the settings are possible.

    A JAX environment runs fused, unless `host` is set; anything else runs on the host driver. Without an
    `eval_env` one is made where it can be; False makes none. `alone` says that this process does nothing
    else afterwards: small networks of one seed then keep to one thread.
    """
    options: dict[str, Any] = {
        "kwargs": env_kwargs,
        "time_limit": settings.time_limit,
        "backend": settings.backend,
        "deadline": settings.worker_deadline,
    }
    _refuse_without_cluster(settings)
    world = registry.make(env, n_envs=settings.n_envs, **options)
    images = spaces.shows_images(world.spec.observation)
    single = alone and len(seeds) == 1 and settings.driver == "auto"
    prepare(device, large=images, alone=single and not divided(config))
    jaxy = registry.is_jax(world)
    rows = settings.n_envs if jaxy else world.spec.rows
    settings = dataclasses.replace(settings, n_envs=rows, n_eval_episodes=eval_episodes(settings, jaxy))
    refers = world.spec.refers and settings.driver == "auto"
    spec = dataclasses.replace(world.spec, rows=rows, refers=refers)
    if getattr(config, "buffer", "") == "reference" and not refers:
        raise ConfigError(
            f"buffer='reference' needs an environment in this process (backend=inline, driver=auto) with "
            f"the methods {REFER}() and {RESOLVE}(references), and {spec.id} as it runs here is none. "
            "See docs/environments.md, or use buffer='host'."
        )
    algo = algorithm(spec, config)
    warnings = [*(algo.check() if hasattr(algo, "check") else []), *_unread(settings)]
    on_host = getattr(config, "buffer", "") == "host" or getattr(config, "buffer_folder", "")
    if jaxy and not host and on_host and settings.driver == "auto":
        raise ConfigError(
            f"{world.spec.id} runs compiled, and its replay lies beside the networks: leave buffer='host' "
            f"and buffer_folder out, or step it in Python, for example as gym:{world.spec.id}."
        )
    driver: Driver
    window = settings.stats_window_size
    if settings.driver != "auto":
        driver = _asynchronous(algo, world, env, settings, seeds, env_kwargs)
    elif jaxy and not host:
        driver = Fused(algo, world, rows, seeds, window)
    else:
        worlds = [JaxHost(world, rows)] if jaxy else [world]
        for _ in seeds[1:]:
            again = registry.make(env, n_envs=settings.n_envs, **options)
            worlds.append(JaxHost(again, rows) if jaxy else again)
        hosts = [
            Host(algo, w, seed, window, on_step, copies=len(seeds) - index)
            for index, (w, seed) in enumerate(zip(worlds, seeds, strict=True))
        ]
        driver = hosts[0] if len(hosts) == 1 else Several(hosts)
    if eval_env is False:
        eval_env = None
    elif eval_env is None:
        if jaxy:
            eval_env = world
        elif isinstance(env, str) or (isinstance(env, (list, tuple)) and not hasattr(env, "step")):
            count = min(settings.n_eval_episodes, ROWS, len(env) if not isinstance(env, str) else ROWS)
            source = env if isinstance(env, str) else list(env)[:count]
            eval_env = registry.make(source, n_envs=count, **{**options, "backend": "inline"})
    return Assembly(driver, eval_env, spec, settings, warnings)


def _refuse_without_cluster(settings: Settings) -> None:
    """Parts that would be Ray actors need a driver that has Ray."""
    if settings.learner_gpus and settings.learner != "cluster":
        raise ConfigError("learner_gpus are kept for learner=cluster: set that, too, or leave them out.")
    if settings.driver == "cluster":
        return
    if settings.address:
        raise ConfigError(
            f"address={settings.address!r} is a cluster's: use driver=cluster, or leave it out."
        )
    if settings.replay_shards:
        raise ConfigError("replay_shards are Ray actors: use driver=cluster, or leave them out.")
    if settings.learner == "cluster":
        raise ConfigError("learner=cluster is a Ray actor: use driver=cluster, or learner=here.")


def _unread(settings: Settings) -> list[str]:
    """A warning about settings of actors that nothing reads."""
    names = ["actors", "actor_kind", "actor_pull", "learner_push", "slot", "slot_folder"]
    if settings.driver != "auto":
        names = ["slot_folder"] if settings.driver == "cluster" or settings.slot != "file" else []
    given = [name for name in names if getattr(settings, name) != getattr(Settings, name)]
    needed = {
        "auto": "driver=async or driver=cluster",
        "async": "slot=file",
        "cluster": "driver=async and slot=file",
    }[settings.driver]
    found = [f"Nothing reads {', '.join(given)} without {needed}."] if given else []
    if settings.driver != "auto" and settings.backend != Settings.backend:
        found.append(
            f"Nothing reads backend={settings.backend!r} without driver=auto: actors step by themselves."
        )
    return found


def _asynchronous(
    algo: Any,
    world: Any,
    env: Any,
    settings: Settings,
    seeds: tuple[int, ...],
    kwargs: Mapping[str, Any] | None,
) -> Driver:
    """Actors and a learner, as the settings ask for."""
    if len(seeds) > 1:
        raise ConfigError(
            f"driver={settings.driver} trains one seed at a time, not {len(seeds)}: leave --seeds out, or "
            "use sparring sweep."
        )
    if settings.driver == "cluster" and (settings.slot, settings.actor_kind) != ("memory", "process"):
        raise ConfigError(
            f"driver=cluster sends weights and starts actors through Ray: slot={settings.slot} and "
            f"actor_kind={settings.actor_kind} are for driver=async. Leave them out."
        )
    crew = Crew(
        settings.actors or 2 - algo.spec.rows % 2,
        settings.actor_kind,
        settings.actor_pull,
        settings.learner_push,
        settings.slot,
        settings.slot_folder,
        settings.worker_deadline,
        dict(kwargs or {}),
        settings.time_limit,
        settings.replay_shards,
    )
    crew.check(algo, env)
    window = settings.stats_window_size
    shown = registry.host(world, settings.n_envs)
    if settings.driver != "cluster":
        return Async(algo, shown, env, seeds[0], window, crew)
    if settings.learner == "cluster":
        from sparring.drivers.remote import RemoteRun

        shown.close()
        return RemoteRun(algo, env, seeds[0], window, crew, settings.address, settings.learner_gpus)
    from sparring.drivers.cluster import ClusterRun

    return ClusterRun(algo, shown, env, seeds[0], window, crew, settings.address)


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
        return cls.load_full(path, trusted)[0]

    @classmethod
    def load_full(cls, path: Path | str, trusted: bool = False) -> tuple[Agent, Any]:
        """The agent and its training state, which is None where it was saved without one."""
        saved = artefact.load(path)
        algo = rebuild(saved, trusted)
        key = jax.random.key(0)
        template = jax.eval_shape(lambda key: algo.policy(algo.init(key)), key)
        train = None if saved.train is None else saved.train_state(jax.eval_shape(algo.init, key))
        return cls(algo, saved.weights(template), saved.algorithm), train

    @property
    def spec(self) -> EnvSpec:
        return self.algo.spec

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
        seed: int = 0,
        action_masks: Any = None,
    ) -> tuple[np.ndarray, Any]:
        """Actions for one observation or a batch, and the state to hand to the next call.

        `action_masks` says what is legal, as the environment's `action_masks()` does; without, everything is.
        """
        obs, single = _batched(self.spec.observation, raw_observation(observation))
        rows = jax.tree.leaves(obs)[0].shape[0]
        fresh = state is None
        carry = self.algo.carry(rows) if fresh else _fitting(state, self.algo.carry(rows))
        told = np.zeros(rows, bool) if episode_start is None else np.asarray(episode_start, bool).reshape(-1)
        if told.size != rows:
            raise SpaceMismatch(
                f"episode_start has {told.size} entries for {rows} observations; give one for each."
            )
        first = told | fresh  # who has no state begins
        behaviour = Behaviour(greedy=np.ones(rows, bool) if deterministic else None)
        self._calls += 1
        place = np.array([seed, self._calls], np.uint32)
        legal = None if action_masks is None else self._legal(action_masks, rows)
        state = ActorState(obs, first, carry, legal)
        action, _, carry = _act(self.algo, self.weights, state, behaviour, place)
        action = np.asarray(action)
        kept = carry if jax.tree.leaves(carry) else None
        return (np.asarray(action[0]) if single else action), kept

    def _legal(self, masks: Any, rows: int) -> np.ndarray:
        if not self.spec.masks_actions:
            raise SpaceMismatch(
                f"{self.spec.id} has no action_masks(), so this agent was trained without; leave them out."
            )
        found, wanted = np.asarray(masks, bool), (rows, spaces.legal_size(self.spec.action))
        if found.size != wanted[0] * wanted[1]:
            raise SpaceMismatch(
                f"action_masks has the shape {found.shape}; {rows} observations need {wanted}: one entry per "
                "option."
            )
        return found.reshape(wanted)

    def evaluate(
        self,
        env: Any,
        episodes: int = 100,
        seed: int = 0,
        deterministic: bool = True,
        behave: Callable[[int], Behaviour] | None = None,
    ) -> Evaluation:
        """Whole episodes of this agent in an environment that `registry.make` made."""
        check_spaces(self.spec, env.spec)
        return evaluate(self.algo, self.weights, env, episodes, seed, deterministic, behave)


@jax.jit
def _act(
    algo: Any, weights: Any, state: ActorState, behaviour: Behaviour, place: Any
) -> tuple[Any, Any, Any]:
    """One decision per row; `place` is the seed and the number of the call."""
    key = keys.derive(jax.random.key(place[0]), place[1])
    return actor.act(algo, actor.settled(weights), state, behaviour, key)


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
                f"The agent was trained on {trained.id} with {name}s {spaces.describe(a)}, but {given.id} "
                f"has {spaces.describe(b)}. Use the environment it was trained on, or train a new agent."
            )


def _shape_of(space: Any) -> Any:
    """What must agree between two spaces; bounds may differ in the last digit between versions."""
    if isinstance(space, spaces.Box):
        return (space.shape, space.dtype)
    if isinstance(space, spaces.Dict):
        return tuple((name, _shape_of(part)) for name, part in space.parts)
    return space


def _fitting(state: Any, wanted: Any) -> Any:
    """A state as `predict` returned it for as many observations; anything else is refused."""

    def shapes(tree: Any) -> Any:
        return [np.shape(x) for x in jax.tree.leaves(tree)]

    trees: list[Any] = [jax.tree.structure(tree) for tree in (state, wanted)]
    if trees[0] != trees[1] or shapes(state) != shapes(wanted):
        raise SpaceMismatch(
            "This state does not belong to these observations: hand predict the state that it returned for "
            "as many of them, or None at the start."
        )
    return state


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
            f"This agent observes {spaces.describe(space)}; an observation of shape {array.shape[1:]} does "
            "not fit."
        )
    return array.astype(example.dtype), single


class Model:
    """An algorithm and an environment behind SB3's interface; `sparring.baselines` has its constructors."""

    algorithm: ClassVar[str]
    """name or reference of the algorithm"""
    log_interval: ClassVar[int] = 1
    """iterations (or what `log_counts` counts) between tables of `verbose=1`"""
    log_counts: ClassVar[str] = "time/iterations"

    def __init__(
        self,
        policy: Any,
        env: Any,
        settings: Mapping[str, Any] | None = None,
        *,
        policy_kwargs: Mapping[str, Any] | None = None,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: Any = "auto",
        run_dir: str | Path | bool | None = None,
        n_envs: int = 1,
    ) -> None:
        from sparring.common.learning import Logger
        from sparring.common.translate import config_values, unwrap

        self._class = algorithm_class(self.algorithm)
        self.verbose = verbose
        self.seed = int(time.time_ns() % 2**31) if seed is None else int(seed)
        self.device = str(device).partition(":")[0]
        self.tensorboard_log = tensorboard_log
        self.run_dir = run_dir
        self.num_timesteps = 0
        self.settings = Settings(n_envs=n_envs, stats_window_size=stats_window_size)
        self.session: Session | None = None
        self.run: directory.RunDirectory | None = None
        self.logger = Logger(self)
        self._driver: Driver | None = None
        self._replayed: Any = None
        self._bandit: Any = None
        """what replay and bandit held, while there is no driver"""
        self._replay_file: Path | None = None
        """of a replay to go on with, until there is an environment"""
        self._hosted = False
        self._train: Any = None
        self._horizon: float | None = None
        """what `_schedule_length` said last, while there is no driver"""
        self._generation = 0
        self._foreign = 0
        self._compiled: Driver | None = None
        self._agent: tuple[Any, Agent] | None = None
        prepare(self.device)
        given = unwrap(env, n_envs)
        values = config_values(policy, policy_kwargs, {**given.config, **(settings or {})}, self.algorithm)
        self.config = from_mapping(self._class.Config, translated(values, self._class.Config))
        self._env, self._world, self._venv = env, given.world, given.venv
        if given.world is not None:
            self._settle(given)

    def _settle(self, given: Given) -> None:
        """Takes an environment: its specification, its statistics, and a check of the settings."""
        self._spec = dataclasses.replace(given.world.spec, rows=given.rows)
        self.settings = dataclasses.replace(self.settings, n_envs=given.rows)
        algo = self.algo()
        for warning in algo.check() if hasattr(algo, "check") else ():
            self.say(f"Warning: {warning}")
        notes = getattr(given.world, "by_hand", None)
        if notes:
            self.say(f"Note on steps of {self._spec.id} by hand: {'; '.join(notes)}.")
        marker = self.get_vec_normalize_env()
        if marker is not None:
            if marker.loaded and self._train is None and self._driver is None:
                self.put_normalisation(marker.loaded)
            marker.bind(self)

    # -- learning ----------------------------------------------------------------------------------------

    def learn(
        self,
        total_timesteps: int,
        callback: Any = None,
        log_interval: int | None = None,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool | None = None,
        on_alert: str = "",
    ) -> Self:
        """Trains for that many more environment steps; `on_alert="R01=stop R14=ignore"` is what health rules
        do besides speaking."""
        from sparring.common.learning import learn

        interval = self.log_interval if log_interval is None else log_interval
        learn(
            self,
            int(total_timesteps),
            callback,
            interval,
            tb_log_name,
            reset_num_timesteps,
            progress_bar,
            on_alert,
        )
        return self

    def algo(self) -> Any:
        """The algorithm with this model's specification and settings."""
        algo, horizon = self._class(self._spec, self.config), self._schedule_length()
        if horizon is None or not hasattr(algo, "horizon"):
            return algo
        return dataclasses.replace(algo, horizon=horizon)

    def _schedule_length(self) -> float | None:
        """Iterations over which schedules run; None before there are any."""
        if self._driver is None:
            return self._horizon
        return float(getattr(self._driver.algo, "horizon", 1.0))

    def say(self, text: str) -> None:
        print(text)

    def driver(self, *, host: bool, fresh: bool) -> Driver:
        """What trains next, with the weights there are; `fresh` starts its counts and schedules again."""
        if self._world is None:
            raise ConfigError("This model has no environment; give it one with set_env(env).")
        if self._driver is not None and host == self._hosted and (not fresh or self._driver.iteration == 0):
            return self._driver
        self.forget_driver()
        free = free_bytes()
        if free is not None and bytes_of(self._replayed) > free:
            self.say("The replay begins anew: there is no room for the old one beside it.")
            self._replayed = self._compiled = None
        train, replayed = self._train, self._replayed
        seed = self.seed + 1_000_003 * self._generation
        parts = assemble(
            self._class,
            self._world,
            self.settings,
            self.config,
            (seed,),
            host=host,
            eval_env=False,
            device=self.device,
        )
        self._generation += 1
        _share_program(self._compiled, parts.driver)
        self._compiled = parts.driver
        if train is not None:
            train = with_iteration(train, 0) if fresh else train
            put_train_state(parts.driver, train, iteration_of(train))
        if replayed is not None and not parts.driver.take_over(replayed):  # type: ignore[attr-defined]
            self.say("The replay begins anew: what it held does not fit the new settings or environment.")
        if self._bandit is not None and not put_bandit(parts.driver, self._bandit):
            self.say("The bandit begins anew: what it knew does not fit the new settings or environment.")
        self._driver, self._hosted = parts.driver, host
        self._train = self._replayed = self._bandit = None
        return parts.driver

    def forget_driver(self) -> None:
        """Makes the next `learn` begin with new episodes; what was learned is kept, and the replay and the
        bandit with it."""
        if self._driver is None:
            return
        if hasattr(self.config, "buffer_size"):
            self._replayed = self._driver.replayed()  # type: ignore[attr-defined]
        self._bandit = self.bandit_state()
        self._horizon = self._schedule_length()
        self._train, self._driver = self.train_state(), None

    def bandit_state(self) -> Any:
        """What the bandit knows; None where none chooses, or nothing has happened yet."""
        control = None if self._driver is None else self._driver.acting().control
        return self._bandit if control is None else jax.tree.map(np.asarray, control.state)

    def __setattr__(self, name: str, value: Any) -> None:
        config: Any = self.__dict__.get("config")
        settings = () if config is None else type(config).__dataclass_fields__
        if name not in settings and not (name == "action_noise" and "noise" in settings):
            object.__setattr__(self, name, value)
            return
        hints, values = get_type_hints(type(config)), translated({name: value}, type(config))
        self.config = dataclasses.replace(config, **{n: coerce(v, hints[n], n) for n, v in values.items()})
        self.forget_driver()

    def __getattr__(self, name: str) -> Any:
        """A setting by its name."""
        config = self.__dict__.get("config")
        if name.startswith("_") or config is None or not hasattr(config, name):
            from sparring.common.elsewhere import place

            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{place(name)}")
        return getattr(config, name)

    @property
    def exploration_rate(self) -> float:
        """The share of random choices now, of an algorithm that explores by it."""
        weights = self.algo().policy(self.train_state())
        if not hasattr(weights, "epsilon"):
            raise AttributeError("exploration_rate")  # `__getattr__` says more
        return float(weights.epsilon)

    # -- acting ------------------------------------------------------------------------------------------

    def agent(self) -> Agent:
        """The policy as it is now; learning on does not change it."""
        algo = self.algo()
        return Agent(algo, jax.tree.map(jnp.copy, algo.policy(self.train_state())), self.algorithm)

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
        action_masks: Any = None,
    ) -> tuple[np.ndarray, Any]:
        """SB3's predict; `state` carries frames and memory where the policy has them, `action_masks` are
        sb3-contrib's."""
        return self.policy.predict(observation, state, episode_start, deterministic, self.seed, action_masks)

    @property
    def policy(self) -> Agent:
        """The policy, to act with until learning goes on."""
        train = self.train_state()
        if self._agent is None or self._agent[0] is not train:
            algo = self.algo()
            self._agent = (train, Agent(algo, algo.policy(train), self.algorithm))
        return self._agent[1]

    def train_state(self) -> Any:
        """Everything that learning changed."""
        if self._driver is not None:
            return self._driver.train_state()
        if self._train is None:
            algo = self.algo()
            self._train = jax.jit(algo.init, compiler_options=once_options())(jax.random.key(self.seed))
        return self._train

    def _put(self, train: Any) -> None:
        if self._driver is not None:
            put_train_state(self._driver, train, self._driver.iteration)
        else:
            self._train = train

    @property
    def ep_info_buffer(self) -> list[dict[str, float]]:
        """Return `r` and length `l` of the last episodes of training, in no order."""
        if self._driver is None:
            return []
        episodes = self._driver.state(0).learner.episodes
        count = min(int(episodes.finished), episodes.window_return.shape[0])
        pairs = zip(
            np.asarray(episodes.window_return)[:count],
            np.asarray(episodes.window_length)[:count],
            strict=True,
        )
        return [{"r": float(r), "l": int(n), "t": 0.0} for r, n in pairs]

    # -- environment -------------------------------------------------------------------------------------

    def set_env(self, env: Any, force_reset: bool = True) -> None:
        """Another environment with the same spaces; learning goes on there with new episodes."""
        from sparring.common.translate import unwrap

        given = unwrap(env, self.settings.n_envs)
        if given.world is None:
            raise ConfigError("set_env needs an environment: an id, a Gymnasium environment or a VecEnv.")
        check_spaces(self._spec, given.world.spec)
        for name in ("normalize_obs", "normalize_reward"):
            if given.config.get(name) and not getattr(self.config, name, False):
                raise ConfigError(
                    f"The environment is wrapped in VecNormalize, but this agent was made without {name}. "
                    "Leave VecNormalize out, or train a new agent with it."
                )
        self.forget_driver()
        train = self.train_state()
        self._env, self._world, self._venv = env, given.world, given.venv
        self._settle(given)
        self._train = fitted(train, self.algo())
        self._take_replay_file()

    def get_env(self) -> Any:
        """The environment as SB3's VecEnv; None when there is none."""
        if self._world is None:
            return None
        if self._venv is None:
            from sparring.common.vec_env.host import HostVecEnv

            self._venv = HostVecEnv(registry.host(self._world, self._spec.rows))
            self._venv.seed(self.seed)
        return self._venv

    @property
    def env(self) -> Any:
        return self.get_env()

    @property
    def given_env(self) -> Any:
        """The environment as it was given: an id or an object."""
        return self._env

    @property
    def world(self) -> Any:
        """What a driver steps."""
        return self._world

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    def foreign_steps(self) -> int:
        """Steps and resets of the training environment that were not made by learning."""
        if self._venv is None or registry.is_jax(self._world):
            return 0  # a JAX environment's rows are the driver's own
        from sparring.common.vec_env.rows import clock

        return int(self._world.foreign) if hasattr(self._world, "foreign") else clock(self._venv)

    def get_vec_normalize_env(self) -> Any:
        """The VecNormalize around the environment, or None."""
        if self._venv is None:
            return None
        from sparring.common.vec_env.normalize import unwrap_vec_normalize

        return unwrap_vec_normalize(self._venv)

    @property
    def n_envs(self) -> int:
        return int(self._spec.rows)

    @property
    def observation_space(self) -> Any:
        from sparring.common.gym_space import gym_space

        return gym_space(self._spec.observation)

    @property
    def action_space(self) -> Any:
        from sparring.common.gym_space import gym_space

        return gym_space(self._spec.action)

    def set_random_seed(self, seed: int | None = None) -> None:
        """The seed of episodes and exploration from the next `learn` on."""
        if seed is not None:
            self.seed = int(seed)
            self.forget_driver()

    # -- statistics of VecNormalize ----------------------------------------------------------------------

    def normalisation(self) -> dict[str, np.ndarray]:
        """Count, mean and sum of squared deviations of observations and returns, by name."""
        train = self.train_state()
        known: dict[str, Any] = {}
        if getattr(train, "moments", None) is not None:
            for name, mean in train.moments.mean.items():
                entries = {"count": train.moments.count, "mean": mean, "m2": train.moments.m2[name]}
                known |= {f"obs/{name}.{kind}": x for kind, x in entries.items()}
        if getattr(train, "rewards", None) is not None:
            known |= {f"return.{kind}": x for kind, x in train.rewards.moments._asdict().items()}
        return {name: np.array(x) for name, x in known.items()}

    def put_normalisation(self, known: Mapping[str, np.ndarray]) -> None:
        """Statistics as `normalisation` returns them; names that this agent has no use for are left out."""
        train = self.train_state()
        moments, rewards = getattr(train, "moments", None), getattr(train, "rewards", None)
        if moments is not None and all(f"obs/{name}.mean" in known for name in moments.mean):
            parts = {kind: {n: known[f"obs/{n}.{kind}"] for n in moments.mean} for kind in ("mean", "m2")}
            count = next(iter(known[f"obs/{name}.count"] for name in moments.mean))
            moments = jax.tree.map(jnp.asarray, moments._replace(count=count, **parts))
        if rewards is not None and "return.mean" in known:
            loaded = {kind: jnp.asarray(known[f"return.{kind}"]) for kind in rewards.moments._fields}
            rewards = rewards._replace(moments=rewards.moments._replace(**loaded))
        self._put(train._replace(moments=moments, rewards=rewards))

    # -- saving ------------------------------------------------------------------------------------------

    def save(self, path: str | Path, exclude: Any = None, include: Any = None) -> None:
        """One archive with weights, statistics, optimiser, configuration and specification; no pickle."""
        place = _place(path)
        place = place if place.suffix == ".zip" else place.with_name(place.name + ".zip")
        facts: dict[str, Any] = {
            "num_timesteps": self.num_timesteps,
            "seed": self.seed,
            "verbose": self.verbose,
            "tensorboard_log": None if self.tensorboard_log is None else str(self.tensorboard_log),
            "stats_window_size": self.settings.stats_window_size,
        }
        algo, train, bandit = self.algo(), self.train_state(), self.bandit_state()
        facts["horizon"] = self._schedule_length()
        save_agent(place, algo, train, self.algorithm, full=True, metadata=facts, bandit=bandit)

    @classmethod
    def load(
        cls,
        path: str | Path,
        env: Any = None,
        device: Any = "auto",
        custom_objects: Mapping[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        trust_code: bool = False,
        **settings: Any,
    ) -> Self:
        """The agent that `save` wrote; `env` is needed only to go on learning.

        Settings given here, by name or in `custom_objects`, replace the saved ones.
        """
        saved = _load(_place(path))
        if saved.algorithm != cls.algorithm:
            raise ConfigError(
                f"{str(path)!r} holds a {saved.algorithm.upper()} agent; load it with "
                f"{saved.algorithm.upper()}.load, not {cls.__name__}.load."
            )
        rebuild(saved, trust_code)
        values = translated({**(custom_objects or {}), **settings}, algorithm_class(cls.algorithm).Config)
        values.pop("lr_schedule", None)  # SB3 keeps a copy of learning_rate under this name
        facts = saved.metadata
        names = ("seed", "verbose", "tensorboard_log", "stats_window_size", "run_dir")
        options = {name: values.pop(name, facts.get(name)) for name in names}
        options = {name: value for name, value in options.items() if value is not None}
        model = cls.__new__(cls)
        Model.__init__(model, "MlpPolicy", None, {**saved.config, **values}, device=device, **options)
        model._spec = saved.spec
        model.settings = dataclasses.replace(model.settings, n_envs=saved.spec.rows)
        template = jax.eval_shape(model.algo().init, jax.random.key(0))
        model._train = jax.tree.map(jnp.asarray, saved.train_state(template))
        controller = actor.controller_of(model.algo())
        if saved.bandit is not None and controller is not None:
            start = partial(controller.start, rows=saved.spec.rows)
            try:
                model._bandit = tree.unflatten(jax.eval_shape(start, jax.random.key(0)).state, saved.bandit)
            except CheckpointError:
                model.say("The bandit begins anew: what it knew does not fit the new settings.")
        model.num_timesteps = int(facts.get("num_timesteps", 0))
        horizon = facts.get("horizon")
        model._horizon = None if horizon is None else max(float(horizon), 1.0)
        if env is not None:
            model.set_env(env)
        return model

    def save_replay_buffer(self, path: str | Path) -> None:
        """What the replay holds, as one safetensors file under exactly this name; no pickle."""
        held = self._driver.replayed() if self._driver is not None else self._replayed  # type: ignore[attr-defined]
        if not hasattr(self.config, "buffer_size") or held is None:
            raise ConfigError(f"{type(self).__name__} holds no replay: nothing to save before it learns.")
        place = Path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        replace_file(place, tensors.encode(tree.flatten(held)))

    def load_replay_buffer(self, path: str | Path, truncate_last_traj: bool = True) -> None:
        """Goes on with the replay of a file that `save_replay_buffer` wrote; episodes begin anew, so the last
        one of each row is cut where it stopped. Without an environment it waits for `set_env`."""
        if not hasattr(self.config, "buffer_size"):
            raise ConfigError(f"{type(self).__name__} has no replay to load into.")
        if not truncate_last_traj:
            raise ConfigError("An unfinished episode cannot be gone on with: leave truncate_last_traj=True.")
        if not Path(path).is_file():
            raise CheckpointError(f"There is no file {str(path)!r}; save_replay_buffer writes one.")
        self._replay_file = Path(path)
        if self._world is not None:
            self._take_replay_file()

    def _take_replay_file(self) -> None:
        """Goes on with the replay that was asked for, now that there is an environment."""
        path, self._replay_file = self._replay_file, None
        if path is None:
            return
        self.forget_driver()
        driver: Any = self.driver(host=self._hosted, fresh=False)
        if not driver.take_over(tree.unflatten(driver.replayed(), tensors.read(Path(path)))):
            raise ConfigError(
                f"The replay in {str(path)!r} cannot be gone on with in {self._spec.id}: either its rows "
                "hold different numbers of steps, as where workers died, and a compiled environment writes "
                "all rows at once; or its references stand for other observations than when it was saved. "
                "Use an environment stepped in Python (gym:…), or the data of then."
            )

    def get_parameters(self) -> dict[str, Any]:
        """A copy of every array that training changed, by name."""
        return {name: np.array(x) for name, x in tree.flatten(self.train_state()).items()}

    def set_parameters(self, load_path_or_dict: Any, exact_match: bool = True, device: Any = "auto") -> None:
        """Arrays by name, as `get_parameters` returns them, or a saved file."""
        now = self.train_state()
        given = load_path_or_dict
        if isinstance(given, (str, Path)):
            saved = _load(Path(given))
            template = jax.eval_shape(rebuild(saved).init, jax.random.key(0))
            given = tree.flatten(saved.train_state(template))
        values = dict(given) if exact_match else {**tree.flatten(now), **given}
        self._put(jax.tree.map(jnp.asarray, tree.unflatten(now, values)))


def iteration_of(train: Any) -> int:
    """How many iterations a training state has seen since its schedules began."""
    return int(getattr(train, "iteration", 0))


def with_iteration(train: Any, iteration: int) -> Any:
    """The training state with its schedules at that iteration."""
    if not hasattr(train, "iteration"):
        return train
    return train._replace(iteration=jnp.full_like(train.iteration, iteration))


def _share_program(old: Any, new: Any) -> None:
    """Spares a fused driver the compilation of a program that its predecessor has."""
    if not (isinstance(old, Fused) and isinstance(new, Fused)):
        return
    before: Any = jax.tree.structure(old.algo)
    if before == jax.tree.structure(new.algo) and old.env is new.env and old.rows == new.rows:
        new._program = old._program


def fitted(train: Any, algo: Any) -> Any:
    """A training state for another number of rows: what is counted per row begins again."""
    shapes = jax.eval_shape(algo.init, jax.random.key(0))
    return jax.tree.map(
        lambda new, old: old if old.shape == new.shape else jnp.zeros(new.shape, new.dtype), shapes, train
    )


def _place(path: Any) -> Path:
    if not isinstance(path, (str, Path)):
        raise ConfigError(f"An agent is saved to and loaded from a path, not a {type(path).__name__}.")
    return Path(path)


def _load(place: Path) -> artefact.Artefact:
    """The artefact; what Stable-Baselines3 saved is named as such."""
    try:
        return artefact.load(place)
    except CheckpointError as error:
        for candidate in (place, place.with_name(f"{place.name}.zip")):
            if candidate.is_file() and zipfile.is_zipfile(candidate):
                with zipfile.ZipFile(candidate) as archive:
                    if "_stable_baselines3_version" in archive.namelist():
                        raise CheckpointError(
                            f"{str(candidate)!r} was saved by Stable-Baselines3: torch weights and a pickle, "
                            "which can run code and is not read here. Take it over with: "
                            f"sparring import-sb3 {candidate} --env ENV"
                        ) from error
        raise


def put_train_state(driver: Driver, train: Any, iteration: int) -> None:
    """Replaces what learning changed in a driver's first seed, and how many iterations it has behind it."""
    state = driver.state(0)
    fresh = jax.tree.map(jnp.copy, train)
    driver.restore(state._replace(learner=state.learner._replace(train=fresh)), iteration)


def put_bandit(driver: Driver, bandit: Any) -> bool:
    """Gives the first seed's bandit what another one knew; False and no change if that does not fit."""
    state = driver.state(0)
    control = state.actor.control
    if control is None or not same_layout(control.state, bandit):
        return False
    knowing = state.actor._replace(control=control._replace(state=bandit))
    driver.restore(state._replace(actor=knowing), driver.iteration)
    return True


def save_agent(
    place: Path,
    algo: Any,
    train: Any,
    reference: str,
    full: bool = False,
    metadata: Mapping[str, Any] | None = None,
    sync: bool = True,
    bandit: Any = None,
) -> None:
    """Writes an artefact; `full` adds what further learning needs; `sync` waits for the disk."""
    artefact.save(
        place,
        algo.policy(train),
        algorithm=reference,
        config=as_mapping(algo.config),
        spec=algo.spec,
        train=train if full else None,
        bandit=bandit,
        metadata=metadata,
        sync=sync,
    )
