"""What `speed_sb3.py` and `speed_sbx.py` share: the cases, the clock and the JSON line."""

import argparse
import json
import platform
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv


def _linear(start: float) -> Callable[[float], float]:
    """A schedule from `start` to 0 over the training."""
    return lambda remaining: remaining * start


# What a case does not name is SB3's default: separate networks of 64, 64 tanh and a learning rate of 3e-4.
CASES: dict[str, dict[str, Any]] = {
    "cartpole-host": {
        "env": "CartPole-v1",
        "n_envs": 8,
        "hyperparams": {
            "n_steps": 32,
            "batch_size": 256,
            "n_epochs": 20,
            "learning_rate": _linear(1e-3),
            "gamma": 0.98,
            "gae_lambda": 0.8,
            "clip_range": _linear(0.2),
            "ent_coef": 0.0,
        },
    },
    "lunarlander-host": {
        "env": "LunarLander-v3",
        "n_envs": 16,
        "hyperparams": {
            "n_steps": 1024,
            "batch_size": 64,
            "n_epochs": 4,
            "gamma": 0.999,
            "gae_lambda": 0.98,
            "ent_coef": 0.01,
        },
    },
    "hopper-host": {
        "env": "Hopper-v5",
        "n_envs": 1,
        "hyperparams": {"n_steps": 2048, "batch_size": 64, "n_epochs": 10},
    },
}


class Clock(BaseCallback):
    """Times everything from the end of the first iteration (rollout and update) to the end of the last.

    `settle` is called before the clock is read, to wait for work that a peer still has under way.
    """

    def __init__(self, settle: Callable[[], None]) -> None:
        super().__init__()
        self.settle = settle
        self.rollouts = 0
        self.first_seconds = self.seconds = 0.0
        self.steps = 0

    def _now(self) -> float:
        self.settle()
        return time.perf_counter()

    def _on_training_start(self) -> None:
        self.begun = self._now()

    def _on_rollout_start(self) -> None:
        self.rollouts += 1
        if self.rollouts == 2:
            self.started = self._now()
            self.first_seconds = self.started - self.begun
            self.steps_before = self.model.num_timesteps

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        self.seconds = self._now() - self.started
        self.steps = self.model.num_timesteps - self.steps_before

    @property
    def compile_seconds(self) -> float:
        """What the first iteration took beyond an average later one."""
        return max(0.0, self.first_seconds - self.seconds / (self.rollouts - 1))


def parse() -> argparse.Namespace:
    """The command line of both scripts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=CASES)
    parser.add_argument(
        "--steps", type=int, required=True, help="steps to train, untimed first iteration included"
    )
    parser.add_argument("--threads", type=int, help="CPU threads (default: what the library chooses)")
    args = parser.parse_args()
    iteration = CASES[args.case]["n_envs"] * CASES[args.case]["hyperparams"]["n_steps"]
    if args.steps < 2 * iteration:
        parser.error(f"--steps must be at least two iterations, {2 * iteration}")
    return args


def make_model(algorithm: type[BaseAlgorithm], case: str, **kwargs: Any) -> BaseAlgorithm:
    """The peer's agent on the case's environments, all of them in this process."""
    settings = CASES[case]
    env = make_vec_env(settings["env"], n_envs=settings["n_envs"], seed=0, vec_env_cls=DummyVecEnv)
    return algorithm("MlpPolicy", env, seed=0, verbose=0, **settings["hyperparams"], **kwargs)


def measure(model: BaseAlgorithm, steps: int, settle: Callable[[], None] = lambda: None) -> Clock:
    """Train without any log output and return the clock."""
    clock = Clock(settle)
    model.learn(steps, callback=clock, log_interval=None)  # type: ignore[arg-type]
    return clock


def report(
    peer: str,
    case: str,
    clock: Clock,
    *,
    compile_seconds: float | None,
    threads: int,
    packages: Sequence[str],
) -> None:
    """Print the JSON line."""
    line = {
        "peer": peer,
        "case": case,
        "steps": clock.steps,
        "seconds": clock.seconds,
        "steps_per_second": clock.steps / clock.seconds,
        "compile_seconds": compile_seconds,
        "versions": {name: version(name) for name in packages} | {"python": platform.python_version()},
        "threads": threads,
    }
    print(json.dumps(line))
