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
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv


def _linear(start: float) -> Callable[[float], float]:
    """A schedule from `start` to 0 over the training."""
    return lambda remaining: remaining * start


# What a case does not name is SB3's default: for PPO separate networks of 64, 64 tanh and a learning rate of
# 3e-4; for SAC networks of 256, 256 relu, batches of 256 and one update after every step. The clock starts
# after the `untimed` steps, by default after the first iteration.
CASES: dict[str, dict[str, Any]] = {
    "cartpole-host": {
        "algo": "ppo",
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
        "algo": "ppo",
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
        "algo": "ppo",
        "env": "Hopper-v5",
        "n_envs": 1,
        "hyperparams": {"n_steps": 2048, "batch_size": 64, "n_epochs": 10},
    },
    "cartpole-dqn-host": {
        "algo": "dqn",
        "env": "CartPole-v1",
        "n_envs": 1,
        "untimed": 2048,
        "hyperparams": {
            "learning_rate": 2.3e-3,
            "batch_size": 64,
            "buffer_size": 100_000,
            "learning_starts": 1000,
            "target_update_interval": 10,
            "train_freq": 256,
            "gradient_steps": 128,
            "exploration_fraction": 0.16,
            "exploration_final_eps": 0.04,
            "policy_kwargs": {"net_arch": [256, 256]},
        },
    },
    "hopper-sac-host": {
        "algo": "sac",
        "env": "Hopper-v5",
        "n_envs": 1,
        "untimed": 1200,
        "hyperparams": {"learning_starts": 1000},  # RL-Zoo waits 10,000 steps, which are not timed anyway
    },
}
UPDATES_PER_CALL = 100
"""How many updates one call of `train` makes where updates are timed alone."""


def untimed_steps(case: str) -> int:
    """The steps before the clock starts."""
    settings = CASES[case]
    return settings.get("untimed") or settings["n_envs"] * settings["hyperparams"]["n_steps"]


class Clock(BaseCallback):
    """Times everything from the first iteration (rollout and update) after the untimed steps to the last.

    `settle` is called before the clock is read, to wait for work that a peer still has under way.
    """

    def __init__(self, untimed: int, settle: Callable[[], None]) -> None:
        super().__init__()
        self.untimed = untimed
        self.settle = settle
        self.started = self.first_seconds = self.seconds = 0.0
        self.steps_before = self.updates_before = self.steps = self.updates = 0

    def _now(self) -> float:
        self.settle()
        return time.perf_counter()

    def _on_training_start(self) -> None:
        self.begun = self._now()

    def _on_rollout_start(self) -> None:
        if not self.started and self.model.num_timesteps >= self.untimed:
            self.started = self._now()
            self.first_seconds = self.started - self.begun
            self.steps_before, self.updates_before = self.model.num_timesteps, self.model._n_updates

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        self.seconds = self._now() - self.started
        self.steps = self.model.num_timesteps - self.steps_before
        self.updates = self.model._n_updates - self.updates_before

    @property
    def compile_seconds(self) -> float:
        """What the untimed steps took beyond as many timed ones."""
        return max(0.0, self.first_seconds - self.seconds * self.steps_before / self.steps)


def parse() -> argparse.Namespace:
    """The command line of both scripts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=CASES)
    parser.add_argument(
        "--steps", type=int, required=True, help="steps to train, untimed first ones included"
    )
    parser.add_argument("--updates", type=int, help="off-policy: time as many updates without steps, too")
    parser.add_argument("--threads", type=int, help="CPU threads (default: what the library chooses)")
    args = parser.parse_args()
    if args.steps < 2 * untimed_steps(args.case):
        parser.error(f"--steps must be at least {2 * untimed_steps(args.case)}")
    if args.updates and (args.updates < UPDATES_PER_CALL or CASES[args.case]["algo"] == "ppo"):
        parser.error(f"--updates must be at least {UPDATES_PER_CALL}, of an off-policy case")
    return args


def make_model(algorithms: dict[str, type[BaseAlgorithm]], case: str, **kwargs: Any) -> BaseAlgorithm:
    """The peer's agent on the case's environments, all of them in this process."""
    settings = CASES[case]
    algorithm = algorithms[settings["algo"]]
    env = make_vec_env(settings["env"], n_envs=settings["n_envs"], seed=0, vec_env_cls=DummyVecEnv)
    return algorithm("MlpPolicy", env, seed=0, verbose=0, **settings["hyperparams"], **kwargs)


def measure(
    model: BaseAlgorithm, args: argparse.Namespace, settle: Callable[[], None] = lambda: None
) -> Clock:
    """Train without any log output and return the clock."""
    clock = Clock(untimed_steps(args.case), settle)
    model.learn(args.steps, callback=clock, log_interval=None)  # type: ignore[arg-type]
    return clock


def updates_alone(model: BaseAlgorithm, count: int, settle: Callable[[], None] = lambda: None) -> float:
    """Updates per second of `train` on the buffer that training has filled, the sampling included."""
    assert isinstance(model, OffPolicyAlgorithm)
    calls = count // UPDATES_PER_CALL
    for timed in (False, True):
        settle()
        begun = time.perf_counter()
        for _ in range(calls if timed else 1):
            model.train(gradient_steps=UPDATES_PER_CALL, batch_size=model.batch_size)
        settle()
    return calls * UPDATES_PER_CALL / (time.perf_counter() - begun)


def report(
    peer: str,
    case: str,
    clock: Clock,
    *,
    compile_seconds: float | None,
    threads: int,
    packages: Sequence[str],
    updates_alone_per_second: float | None = None,
) -> None:
    """Print the JSON line; updates are counted for off-policy cases only."""
    line: dict[str, Any] = {
        "peer": peer,
        "case": case,
        "steps": clock.steps,
        "seconds": clock.seconds,
        "steps_per_second": clock.steps / clock.seconds,
        "compile_seconds": compile_seconds,
        "versions": {name: version(name) for name in packages} | {"python": platform.python_version()},
        "threads": threads,
    }
    if CASES[case]["algo"] != "ppo":
        line |= {
            "updates": clock.updates,
            "updates_per_second": clock.updates / clock.seconds,
            "updates_alone_per_second": updates_alone_per_second,
        }
    print(json.dumps(line))
