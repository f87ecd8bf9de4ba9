"""SB3's callbacks. One that looks at single steps makes a compiled environment run from Python.

A class that only needs to be called now and then sets `per_step = False`: it is then called after iterations,
with `n_calls` counted as if it had been called at every step.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sparring.errors import ConfigError


class BaseCallback:
    """Override `_on_step` and the other methods with an underscore; returning False from `_on_step` stops."""

    per_step = True
    """whether `_on_step` must be called at every step"""

    def __init__(self, verbose: int = 0) -> None:
        self.verbose = verbose
        self.model: Any = None
        self.parent: Any = None
        self.n_calls = 0
        self.num_timesteps = 0
        self.locals: dict[str, Any] = {}
        self.globals: dict[str, Any] = {}
        self._calls = 1

    @property
    def training_env(self) -> Any:
        return self.model.get_env()

    @property
    def logger(self) -> Any:
        return self.model.logger

    def init_callback(self, model: Any) -> None:
        self.model = model
        self._init_callback()

    def _init_callback(self) -> None:
        pass

    def on_training_start(self, locals_: dict[str, Any], globals_: dict[str, Any]) -> None:
        self.locals, self.globals = locals_, globals_
        self.num_timesteps = self.model.num_timesteps
        self._on_training_start()

    def _on_training_start(self) -> None:
        pass

    def on_rollout_start(self) -> None:
        self._on_rollout_start()

    def _on_rollout_start(self) -> None:
        pass

    def on_step(self) -> bool:
        return self.on_steps(1)

    def on_steps(self, calls: int) -> bool:
        """Several steps at once."""
        self._calls = calls
        self.n_calls += calls
        self.num_timesteps = self.model.num_timesteps
        return self._on_step()

    def _on_step(self) -> bool:
        return True

    def passed(self, period: int) -> bool:
        """Whether `n_calls` reached a multiple of the period with the last call."""
        return period > 0 and self.n_calls // period > (self.n_calls - self._calls) // period

    def calls_until_due(self) -> int:
        """Steps that may pass before this callback must be called; it may be called earlier."""
        return 1

    def on_rollout_end(self) -> None:
        self._on_rollout_end()

    def _on_rollout_end(self) -> None:
        pass

    def on_training_end(self) -> None:
        self._on_training_end()

    def _on_training_end(self) -> None:
        pass

    def update_locals(self, locals_: dict[str, Any]) -> None:
        self.locals.update(locals_)
        self.update_child_locals(locals_)

    def update_child_locals(self, locals_: dict[str, Any]) -> None:
        pass


class CallbackList(BaseCallback):
    """Several callbacks as one."""

    def __init__(self, callbacks: Sequence[BaseCallback]) -> None:
        super().__init__()
        self.callbacks = list(callbacks)

    def _init_callback(self) -> None:
        for callback in self.callbacks:
            callback.parent = self.parent
            callback.init_callback(self.model)

    def _on_training_start(self) -> None:
        for callback in self.callbacks:
            callback.on_training_start(self.locals, self.globals)

    def _on_rollout_start(self) -> None:
        for callback in self.callbacks:
            callback.on_rollout_start()

    def _on_step(self) -> bool:
        going = [callback.on_step() for callback in self.callbacks]  # all are called, whatever one says
        return all(going)

    def _on_rollout_end(self) -> None:
        for callback in self.callbacks:
            callback.on_rollout_end()

    def _on_training_end(self) -> None:
        for callback in self.callbacks:
            callback.on_training_end()

    def update_child_locals(self, locals_: dict[str, Any]) -> None:
        for callback in self.callbacks:
            callback.update_locals(locals_)


class ConvertCallback(BaseCallback):
    """A function of (locals, globals) that is called at every step; False stops."""

    def __init__(
        self, callback: Callable[[dict[str, Any], dict[str, Any]], Any] | None, verbose: int = 0
    ) -> None:
        super().__init__(verbose)
        self.callback = callback

    def _on_step(self) -> bool:
        if self.callback is None:
            return True
        return self.callback(self.locals, self.globals) is not False


class EventCallback(BaseCallback):
    """Calls another callback when something has happened."""

    def __init__(self, callback: BaseCallback | None = None, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.callback = callback
        if callback is not None:
            callback.parent = self

    def init_callback(self, model: Any) -> None:
        super().init_callback(model)
        if self.callback is not None:
            self.callback.init_callback(self.model)

    def on_training_start(self, locals_: dict[str, Any], globals_: dict[str, Any]) -> None:
        super().on_training_start(locals_, globals_)
        if self.callback is not None:
            self.callback.on_training_start(self.locals, self.globals)

    def _on_event(self) -> bool:
        return self.callback is None or self.callback.on_step()

    def update_child_locals(self, locals_: dict[str, Any]) -> None:
        if self.callback is not None:
            self.callback.update_locals(locals_)


class EveryNTimesteps(EventCallback):
    """Calls another callback every so many environment steps, at the end of the iteration they fall in."""

    per_step = False

    def __init__(self, n_steps: int, callback: BaseCallback) -> None:
        super().__init__(callback)
        self.n_steps = n_steps
        self.last_time_trigger = 0

    def _on_training_start(self) -> None:
        self.last_time_trigger = self.num_timesteps

    def _on_step(self) -> bool:
        if self.num_timesteps - self.last_time_trigger < self.n_steps:
            return True
        self.last_time_trigger = self.num_timesteps
        return self._on_event()

    def calls_until_due(self) -> int:
        ahead = self.last_time_trigger + self.n_steps - self.model.num_timesteps
        return int(max(-(-ahead // self.model.n_envs), 1))


class LogEveryNTimesteps(EveryNTimesteps):
    """Writes what was recorded every so many environment steps."""

    def __init__(self, n_steps: int) -> None:
        super().__init__(n_steps, ConvertCallback(None))

    def _on_event(self) -> bool:
        self.logger.dump(self.num_timesteps)
        return True

    per_step = False


class CheckpointCallback(BaseCallback):
    """Saves the agent every `save_freq` calls, at the end of the iteration they fall in.

    VecNormalize's statistics are in the agent; `save_vecnormalize` writes them once more, to the file that
    SB3 would write (its name ends in .pkl, but it is no pickle).
    """

    per_step = False

    def __init__(
        self,
        save_freq: int,
        save_path: str,
        name_prefix: str = "rl_model",
        save_replay_buffer: bool = False,
        save_vecnormalize: bool = False,
        verbose: int = 0,
    ) -> None:
        super().__init__(verbose)
        self.save_freq = save_freq
        self.save_path = save_path
        self.name_prefix = name_prefix
        self.save_replay_buffer = save_replay_buffer
        self.save_vecnormalize = save_vecnormalize

    def _init_callback(self) -> None:
        Path(self.save_path).mkdir(parents=True, exist_ok=True)

    def _on_step(self) -> bool:
        if not self.passed(self.save_freq):
            return True
        path = self._checkpoint_path(extension="zip")
        self.model.save(path)
        if self.verbose >= 2:
            print(f"Saving model checkpoint to {path}")
        marker = self.model.get_vec_normalize_env() if self.save_vecnormalize else None
        if marker is not None:
            marker.save(self._checkpoint_path("vecnormalize_", "pkl"))
        if self.save_replay_buffer and hasattr(self.model.config, "buffer_size"):
            self.model.save_replay_buffer(self._checkpoint_path("replay_buffer_", "pkl"))
        return True

    def calls_until_due(self) -> int:
        return self.save_freq - self.n_calls % self.save_freq if self.save_freq > 0 else 1 << 60

    def _checkpoint_path(self, checkpoint_type: str = "", extension: str = "") -> str:
        name = f"{self.name_prefix}_{checkpoint_type}{self.num_timesteps}_steps.{extension}"
        return str(Path(self.save_path) / name)


class EvalCallback(EventCallback):
    """Evaluates the agent every `eval_freq` calls, at the end of the iteration they fall in."""

    per_step = False

    def __init__(
        self,
        eval_env: Any,
        callback_on_new_best: BaseCallback | None = None,
        callback_after_eval: BaseCallback | None = None,
        n_eval_episodes: int = 5,
        eval_freq: int = 10000,
        log_path: str | None = None,
        best_model_save_path: str | None = None,
        deterministic: bool = True,
        render: bool = False,
        verbose: int = 1,
        warn: bool = True,
    ) -> None:
        from sparring.common.vec_env import as_vec_env

        super().__init__(callback_after_eval, verbose)
        self.callback_on_new_best = callback_on_new_best
        if callback_on_new_best is not None:
            callback_on_new_best.parent = self
        self.given_env = eval_env
        self.eval_env = as_vec_env(eval_env)
        self.n_eval_episodes = n_eval_episodes
        self.eval_freq = eval_freq
        self.best_model_save_path = best_model_save_path
        self.log_path = None if log_path is None else str(Path(log_path) / "evaluations")
        self.deterministic = deterministic
        self.render = render
        self.best_mean_reward = -np.inf
        self.last_mean_reward = -np.inf
        self.evaluations_timesteps: list[int] = []
        self.evaluations_results: list[list[float]] = []
        self.evaluations_length: list[list[int]] = []
        self.evaluations_successes: list[list[bool]] = []
        self._successes: list[bool] = []

    def _init_callback(self) -> None:
        from sparring.envs import registry

        shared = self.given_env is self.model.given_env or self.eval_env is self.model.get_env()
        if shared and not registry.is_jax(self.model.world):
            raise ConfigError(
                "EvalCallback was given the environment that is being trained on; evaluating there would "
                "break its episodes. Make a second one for evaluation."
            )
        for folder in (self.best_model_save_path, self.log_path and str(Path(self.log_path).parent)):
            if folder is not None:
                Path(folder).mkdir(parents=True, exist_ok=True)
        if self.callback_on_new_best is not None:
            self.callback_on_new_best.init_callback(self.model)

    def calls_until_due(self) -> int:
        return self.eval_freq - self.n_calls % self.eval_freq if self.eval_freq > 0 else 1 << 60

    def _on_step(self) -> bool:
        if not self.passed(self.eval_freq):
            return True
        rewards, lengths = self._evaluate()
        self._store(rewards, lengths)
        mean = self.last_mean_reward = float(np.mean(rewards))
        self._report(mean, rewards, lengths)
        going = True
        if mean > self.best_mean_reward:
            if self.verbose >= 1:
                print("New best mean reward!")
            self.best_mean_reward = mean
            if self.best_model_save_path is not None:
                self.model.save(Path(self.best_model_save_path) / "best_model")
            if self.callback_on_new_best is not None:
                going = self.callback_on_new_best.on_step()
        return going and self._on_event()

    def _evaluate(self) -> tuple[list[float], list[int]]:
        from sparring.common.evaluation import evaluate_policy, is_compiled

        self._successes = []
        found: Any = evaluate_policy(
            self.model,
            self.eval_env,
            n_eval_episodes=self.n_eval_episodes,
            render=self.render,
            deterministic=self.deterministic,
            return_episode_rewards=True,
            callback=None if is_compiled(self.eval_env) else self._log_success_callback,
        )
        return found

    def _log_success_callback(self, locals_: dict[str, Any], globals_: dict[str, Any]) -> None:
        """Remembers `is_success` of an episode that ended."""
        success = locals_["info"].get("is_success") if locals_["done"] else None
        if success is not None:
            self._successes.append(bool(success))

    def _store(self, rewards: list[float], lengths: list[int]) -> None:
        if self.log_path is None:
            return
        self.evaluations_timesteps.append(self.num_timesteps)
        self.evaluations_results.append(rewards)
        self.evaluations_length.append(lengths)
        extra: dict[str, Any] = {}
        if self._successes:
            self.evaluations_successes.append(self._successes)
            extra["successes"] = self.evaluations_successes
        np.savez(
            self.log_path,
            timesteps=self.evaluations_timesteps,
            results=self.evaluations_results,
            ep_lengths=self.evaluations_length,
            **extra,
        )

    def _report(self, mean: float, rewards: list[float], lengths: list[int]) -> None:
        if self.verbose >= 1:
            spread = np.std(rewards)
            print(f"Eval num_timesteps={self.num_timesteps}, episode_reward={mean:.2f} +/- {spread:.2f}")
            print(f"Episode length: {np.mean(lengths):.2f} +/- {np.std(lengths):.2f}")
        self.logger.record("eval/mean_reward", mean)
        self.logger.record("eval/mean_ep_length", float(np.mean(lengths)))
        if self._successes:
            self.logger.record("eval/success_rate", float(np.mean(self._successes)))
        self.logger.dump(self.num_timesteps)

    def update_child_locals(self, locals_: dict[str, Any]) -> None:
        super().update_child_locals(locals_)
        if self.callback_on_new_best is not None:
            self.callback_on_new_best.update_locals(locals_)


class StopTrainingOnRewardThreshold(BaseCallback):
    """Stops when an EvalCallback's best mean reward reaches a number; give it as `callback_on_new_best`."""

    per_step = False

    def __init__(self, reward_threshold: float, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.reward_threshold = reward_threshold

    def _on_step(self) -> bool:
        best = _evaluator(self).best_mean_reward
        going = bool(best < self.reward_threshold)
        if self.verbose >= 1 and not going:
            print(f"Stopping training because the mean reward {best:.2f} is above {self.reward_threshold}")
        return going


class StopTrainingOnNoModelImprovement(BaseCallback):
    """Stops when so many evaluations in a row were not the best; give it as `callback_after_eval`."""

    per_step = False

    def __init__(self, max_no_improvement_evals: int, min_evals: int = 0, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.max_no_improvement_evals = max_no_improvement_evals
        self.min_evals = min_evals
        self.last_best_mean_reward = -np.inf
        self.no_improvement_evals = 0

    def _on_step(self) -> bool:
        best = _evaluator(self).best_mean_reward
        if self.n_calls > self.min_evals:
            self.no_improvement_evals = (
                0 if best > self.last_best_mean_reward else self.no_improvement_evals + 1
            )
        self.last_best_mean_reward = best
        going = self.no_improvement_evals <= self.max_no_improvement_evals
        if self.verbose >= 1 and not going:
            print(f"Stopping training: no new best in the last {self.no_improvement_evals} evaluations")
        return going


class StopTrainingOnMaxEpisodes(BaseCallback):
    """Stops after the iteration in which `max_episodes` per environment have ended."""

    per_step = False

    def __init__(self, max_episodes: int, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.max_episodes = max_episodes
        self.n_episodes = 0

    def _on_step(self) -> bool:
        self.n_episodes = int(self.logger.name_to_value.get("rollout/episodes", 0))
        going = self.n_episodes < self.max_episodes * int(self.model.n_envs)
        if self.verbose >= 1 and not going:
            print(f"Stopping training after {self.n_episodes} episodes in {self.num_timesteps} steps")
        return going


class ProgressBarCallback(BaseCallback):
    """Shows the live display, as `learn(…, progress_bar=True)` does."""

    per_step = False

    def calls_until_due(self) -> int:
        return 1 << 60


def convert(callback: Any) -> BaseCallback:
    """SB3's rule: None, one callback, a list of them, or a function of (locals, globals)."""
    if isinstance(callback, BaseCallback):
        return callback
    if callback is None:
        return CallbackList([])
    if isinstance(callback, (list, tuple)):
        return CallbackList([convert(part) for part in callback])
    if any(base.__module__.partition(".")[0] == "stable_baselines3" for base in type(callback).__mro__):
        raise ConfigError(
            f"{type(callback).__name__} inherits from Stable-Baselines3's callbacks. Import BaseCallback "
            "from sparring.common.callbacks instead."
        )
    if callable(callback):
        return ConvertCallback(callback)
    raise ConfigError(
        f"A callback is a BaseCallback, a list of them or a function, not a {type(callback).__name__}."
    )


def leaves(callback: BaseCallback) -> list[BaseCallback]:
    """The callbacks in a list of lists."""
    if not isinstance(callback, CallbackList):
        return [callback]
    return [leaf for part in callback.callbacks for leaf in leaves(part)]


def needs_steps(callback: BaseCallback) -> bool:
    """Whether a callback looks at single steps.

    The class that defines `_on_step`, or one derived from it, says so with `per_step`; one whose `_on_step`
    only returns True does not look at anything.
    """
    family = type(callback).__mro__
    definer = next(cls for cls in family if "_on_step" in vars(cls))
    said = next(cls for cls in family if "per_step" in vars(cls))
    if family.index(said) <= family.index(definer) and said is not BaseCallback:
        return bool(vars(said)["per_step"])
    return not _only_returns_true(vars(definer)["_on_step"])


def _only_returns_true(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    if code is None:
        return False
    steps = [i for i in dis.get_instructions(code) if i.opname not in ("RESUME", "RETURN_VALUE", "NOP")]
    return len(steps) == 1 and steps[0].opname in ("LOAD_CONST", "RETURN_CONST") and steps[0].argval is True


def _evaluator(callback: BaseCallback) -> EvalCallback:
    if not isinstance(callback.parent, EvalCallback):
        name = (
            "callback_on_new_best"
            if isinstance(callback, StopTrainingOnRewardThreshold)
            else "callback_after_eval"
        )
        raise ConfigError(
            f"{type(callback).__name__} works inside an EvalCallback: EvalCallback(…, {name}=it)."
        )
    return callback.parent
