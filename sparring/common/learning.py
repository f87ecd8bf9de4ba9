"""What `Model.learn` does: a session with SB3's callbacks, logger and tables around a driver."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sparring.config import as_mapping
from sparring.envs import registry
from sparring.errors import ConfigError
from sparring.machine import usable_cores
from sparring.metrics.alerts import parse_policy
from sparring.metrics.registry import TIMESTEPS
from sparring.metrics.sink import Sink, Tee
from sparring.replay.offpolicy import too_short
from sparring.replay.size import told
from sparring.session import Progress, Session, Settings, Stop, watch


def learn(
    model: Any,
    total_timesteps: int,
    callback: Any,
    log_interval: int,
    tb_log_name: str | None,
    reset_num_timesteps: bool,
    progress_bar: bool | None,
    on_alert: str = "",
) -> None:
    """Trains a model for that many steps; every call is a session, in a run folder unless there is none."""
    from sparring.common.callbacks import ProgressBarCallback, convert, leaves

    parse_policy(on_alert)
    _check_normalising(model)
    root = convert(callback)
    if progress_bar is None:
        shown = any(isinstance(leaf, ProgressBarCallback) for leaf in leaves(root))
        progress_bar = shown or sys.stdout.isatty()
    calls = Calls(model, root)
    host = bool(calls.steppers) and registry.is_jax(model.world)
    if host:
        model.say(
            f"{type(calls.steppers[0]).__name__} looks at every step, so {model.spec.id} is stepped from "
            "Python; per_step = False in its class would let it run compiled."
        )
    if model.foreign_steps() != model._foreign:  # someone else moved the environment on
        model.forget_driver()
    driver = model.driver(host=host, fresh=reset_num_timesteps)
    if model.verbose >= 1 and driver.iteration == 0 and hasattr(model.config, "buffer_size"):
        model.say(told(driver, model.config))
    root.init_callback(model)
    if reset_num_timesteps:
        model.num_timesteps = 0
    steps = driver.iteration * driver.steps_per_iteration
    settings = dataclasses.replace(model.settings, total_timesteps=steps + total_timesteps, eval_freq=-1)
    goal = model.num_timesteps + total_timesteps
    for warning in too_short(model.config, settings.total_timesteps):
        model.say(f"Warning: {warning}")
    with ExitStack() as stack:
        run = _run_folder(model, settings, again=not reset_num_timesteps)
        if run is not None:
            stack.callback(run.unlock)
        sinks = _sinks(model, run, tb_log_name, goal, not reset_num_timesteps, on_alert)
        session = Session(
            driver,
            settings,
            None,
            run,
            [Shifted(sink, model.num_timesteps - steps) for sink in sinks],
            save_agent=lambda folder, index, full: _keep(model, folder),
            metadata={"env": _env_name(model)},
            on_iterations=calls.on_iterations,
            say=model.say,
            progress=_progress(model, settings, steps, reset_num_timesteps),
        )
        displays = _displays(model, goal, log_interval, progress_bar)
        session.displays = [Shifted(display, model.num_timesteps - steps) for display in displays]
        stack.callback(Tee([*session.displays, *session.sinks]).close)
        model.session, model.run = session, run
        if hasattr(driver, "on_step"):
            driver.on_step = calls.on_step if calls.steppers else None
        calls.start(
            session,
            {
                "self": model,
                "total_timesteps": goal,
                "callback": root,
                "log_interval": log_interval,
                "tb_log_name": tb_log_name or type(model).__name__,
                "reset_num_timesteps": reset_num_timesteps,
                "progress_bar": progress_bar,
            },
        )
        try:
            result = session.run()
        finally:
            model._foreign = model.foreign_steps()
    root.on_training_end()
    if result.outcome == "interrupted":
        kept = "" if run is None else f" Its checkpoint is in {run.path}."
        model.say(f"Interrupted after {model.num_timesteps:,} steps.{kept}")


class Calls:
    """Callbacks in their places: per step where they look at steps, per iteration otherwise."""

    def __init__(self, model: Any, root: Any) -> None:
        from sparring.common.callbacks import leaves, needs_steps

        self.model = model
        self.root = root
        self.steppers = [leaf for leaf in leaves(root) if needs_steps(leaf)]
        self.others = [leaf for leaf in leaves(root) if not needs_steps(leaf)]
        self._tally: Any = None
        self._begun = 0
        self._reported = 0
        self._t = 0

    def start(self, session: Session, values: dict[str, Any]) -> None:
        """Before the first step."""
        self._begun = self.model.num_timesteps - session.steps
        self._reported = session.steps
        self.root.on_training_start(values, {})
        self.root.on_rollout_start()
        self.model._foreign = self.model.foreign_steps()
        self._plan(session)

    def on_step(self, timestep: Any, driver: Any) -> None:
        """After one step of all rows on the host driver."""
        rollout, rows = int(driver.algo.plan.rollout), driver.rows
        action = driver.action
        self._t += 1
        self.model.num_timesteps += rows
        self.root.update_locals(
            {
                "new_obs": timestep.obs,
                "rewards": timestep.reward,
                "dones": timestep.terminated | timestep.truncated,
                "infos": self._infos(timestep, driver),
                "actions": action,
                "clipped_actions": action,
                "n_steps": self._t,
                "env": self.model.get_env(),
            }
        )
        going = [callback.on_step() for callback in self.steppers]
        self._check_untouched()
        if not all(going):
            raise Stop
        if self._t == rollout:
            self._t = 0
            self.root.on_rollout_end()

    def on_iterations(self, session: Session) -> None:
        """After one or several iterations."""
        self.model.num_timesteps = self._begun + session.steps
        calls = (session.steps - self._reported) // self.model.spec.rows
        self._reported = session.steps
        if not self.steppers:
            self.root.on_rollout_end()
        going = [callback.on_steps(calls) for callback in self.others]
        self.model.logger.flush(session.steps)
        self._check_untouched()
        if not all(going):
            raise Stop
        if session.driver.iteration < session.total_iterations:
            self.root.on_rollout_start()
        self._plan(session)

    def _plan(self, session: Session) -> None:
        """Lets a compiled run go on as long as no callback wants to be called."""
        due = min((callback.calls_until_due() for callback in self.others), default=1 << 60)
        rollout = session.driver.steps_per_iteration // self.model.spec.rows
        session.most_iterations = 1 if self.steppers else max(-(-due // rollout), 1)

    def _infos(self, timestep: Any, driver: Any) -> list[dict[str, Any]]:
        """SB3's infos; a vector environment with wrappers has made its own."""
        from sparring.common.vec_env.tally import Tally, row_infos

        if hasattr(driver.env, "venv"):
            return driver.env.last_infos
        if self._tally is None:
            self._tally = Tally(driver.rows)
        return row_infos(getattr(driver.env, "last_infos", None), timestep, self._tally)

    def _check_untouched(self) -> None:
        if self.model.foreign_steps() != self.model._foreign:
            raise ConfigError(
                "A callback stepped or reset the environment that is being trained on, so the episodes in "
                "progress are broken. Give the callback an environment of its own."
            )


class Logger:
    """SB3's logger: numbers recorded by callbacks reach the run's metrics, tables and TensorBoard."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._pending: dict[str, float] = {}
        self._hidden: dict[str, frozenset[str]] = {}
        self._means: dict[str, int] = {}

    @property
    def name_to_value(self) -> dict[str, float]:
        """The newest value of every name."""
        session: Session | None = self._model.session
        return {**({} if session is None else session.last), **self._pending}

    def record(self, key: str, value: Any, exclude: str | tuple[str, ...] | None = None) -> None:
        """A number under a name; `exclude` names outputs that are spared it (`tensorboard`, `stdout`)."""
        try:
            self._pending[key] = float(value)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"logger.record({key!r}) takes a number, not a {type(value).__name__}. Write figures, texts "
                "and videos with a tensorboardX.SummaryWriter of your own."
            ) from error
        names = (exclude,) if isinstance(exclude, str) else exclude or ()
        self._hidden[key] = frozenset(names)

    def record_mean(self, key: str, value: Any, exclude: str | tuple[str, ...] | None = None) -> None:
        """The running mean of what is recorded under a name until it is written."""
        count = self._means.get(key, 0) if key in self._pending else 0
        before = self._pending.get(key, 0.0)
        self.record(key, (before * count + float(value)) / (count + 1), exclude)
        self._means[key] = count + 1

    def dump(self, step: int = 0) -> None:
        """Writes what was recorded; `step` is the model's num_timesteps."""
        session: Session | None = self._model.session
        if session is not None:
            self.flush(session.steps)

    def flush(self, step: int) -> None:
        """Writes what was recorded at a step of the driver."""
        session: Session | None = self._model.session
        if session is None or not self._pending:
            return
        seconds = session.progress.seconds
        for sink in session.sinks:
            sink.write(step, seconds, self._shown(sink, "tensorboard"))
        Tee(session.displays).write(step, seconds, self._shown(None, "stdout"))
        session.last.update(self._pending)
        self._pending, self._hidden, self._means = {}, {}, {}

    def _shown(self, sink: Sink | None, output: str) -> dict[str, float]:
        """What an output may see; SQLite sees everything."""
        inner: Any = sink
        while hasattr(inner, "sink"):
            inner = inner.sink
        if inner is not None and type(inner).__name__ != "TensorBoardSink":
            return self._pending
        return {name: value for name, value in self._pending.items() if output not in self._hidden[name]}


@dataclasses.dataclass
class Shifted:
    """A sink whose steps are the model's, where the driver has counted fewer or more."""

    sink: Sink
    offset: int

    def write(self, step: int, seconds: float, values: Mapping[str, float], seed: int = 0) -> None:
        if self.offset and TIMESTEPS in values:
            values = {**values, TIMESTEPS: values[TIMESTEPS] + self.offset}
        self.sink.write(step + self.offset, seconds, values, seed)

    def close(self) -> None:
        self.sink.close()


def _check_normalising(model: Any) -> None:
    marker = model.get_vec_normalize_env()
    if marker is not None and not marker.training:
        raise ConfigError(
            "VecNormalize has training=False, but statistics that stand still while the agent learns are not "
            "available. Set env.training = True before learn."
        )
    gamma = model.config.gamma
    if marker is not None and marker.norm_reward and gamma != marker.gamma:
        model.say(
            f"VecNormalize has gamma={marker.gamma}; rewards are normalised with the algorithm's own "
            f"gamma={gamma}."
        )


def _progress(model: Any, settings: Settings, steps: int, fresh: bool) -> Progress:
    """Where the clock and the checkpoints of this call begin."""
    seconds = 0.0 if fresh or model.session is None else model.session.progress.seconds
    period = max((settings.total_timesteps - steps) // 10, 1)
    return Progress(next_checkpoint=steps + period, seconds=seconds)


def _run_folder(model: Any, settings: Settings, again: bool) -> Any:
    """The run's folder, locked: a new one, or the one of the last call when counting goes on."""
    from sparring.runs import directory

    if model.run_dir is False:
        return None
    if again and model.run is not None:
        model.run.lock()
        return model.run
    path = None if model.run_dir in (None, True) else Path(model.run_dir)
    if path is not None and model.run is not None:
        number = 2
        while directory.is_run(path.with_name(f"{path.name}-{number}")):
            number += 1
        path = path.with_name(f"{path.name}-{number}")
    name, env = Path(model.algorithm.partition(":")[0]).stem, _env_name(model)
    run = directory.create(name, env, model.seed, path=path, total=settings.total_timesteps)
    defaults = as_mapping(type(model.config)())
    config = as_mapping(model.config)
    run.write_config(
        {
            "schema": 1,
            "algorithm": model.algorithm,
            "env": env,
            "seeds": [model.seed],
            "settings": as_mapping(settings),
            "config": config,
            "env_kwargs": {},
        },
        {f"config.{k}": "default" if defaults[k] == v else "the constructor" for k, v in config.items()},
    )
    return run


def _env_name(model: Any) -> str:
    """The id that makes the environment again, or the name of an object that only the script can make."""
    given = getattr(model.given_env, "made_from", model.given_env)
    wrapped = hasattr(model.world, "venv")
    return given if isinstance(given, str) and not wrapped else f"object:{model.spec.id}"


def _sinks(
    model: Any, run: Any, tb_log_name: str | None, goal: int, again: bool, on_alert: str
) -> list[Sink]:
    """What keeps the numbers: where there is a folder the health rules look at them, too."""
    sinks: list[Sink] = []
    if run is not None:
        from sparring.metrics.sqlite import SqliteSink
        from sparring.runs import provenance

        health = watch(
            run,
            model.algorithm,
            as_mapping(model.config),
            on_alert=on_alert,
            say=model.say,
            total=goal,
            target=model.spec.reward_threshold,
            env=_env_name(model),
        )
        if again:
            health.catch_up()
        stored = SqliteSink(run.metrics)
        stored.describe({"device": provenance.device(), "cores": usable_cores()})
        sinks += [stored, health]
    if model.tensorboard_log is not None:
        from sparring.metrics.apart import Apart
        from sparring.metrics.tensorboard import TensorBoardSink, next_folder

        name = tb_log_name or type(model).__name__
        board = TensorBoardSink(next_folder(model.tensorboard_log, name, again=again))
        sinks.append(Apart(board, "TensorBoard", model.say))
    return sinks


def _displays(model: Any, goal: int, log_interval: int, progress_bar: bool) -> list[Sink]:
    from sparring.metrics import console

    shown: list[Sink] = []
    if model.verbose >= 1 and log_interval:
        shown.append(console.LogTable(log_interval, counts=model.log_counts))
    if progress_bar:
        title = f"{type(model).__name__} {model.spec.id}"
        window = model.settings.stats_window_size
        shown.append(console.display(goal, window, title=title, started_at=model.num_timesteps))
    return shown


def _keep(model: Any, folder: Path) -> None:
    from sparring.model import save_agent

    save_agent(folder, model.algo(), model.train_state(), model.algorithm)
