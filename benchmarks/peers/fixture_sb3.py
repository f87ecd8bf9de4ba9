"""Write what one update of Stable-Baselines3 does, as an oracle for ours: tests/golden/sb3/*.npz.

    .venv-peers/bin/python benchmarks/peers/fixture_sb3.py

Each file holds a rollout with terminations and truncations, the weights and the optimiser's state before the
update, the order of the minibatches, and the weights after it. numpy alone reads them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "golden" / "sb3"
NETS = {"net_arch": {"pi": [16, 8], "vf": [8, 16]}}
PPO_SETTINGS = {"n_steps": 32, "batch_size": 32, "n_epochs": 3, "ent_coef": 0.01, "gae_lambda": 0.9}
CASES: dict[str, tuple[Any, str, int, dict[str, Any]]] = {
    "ppo-discrete": (PPO, "CartPole-v1", 15, {**PPO_SETTINGS, "clip_range_vf": 0.3}),
    "ppo-box": (PPO, "Pendulum-v1", 20, PPO_SETTINGS),
    "a2c-discrete": (A2C, "CartPole-v1", 5, {"n_steps": 8, "ent_coef": 0.01, "gae_lambda": 0.9}),
}


class Recorded:
    """A vector environment's outcomes as terminations, truncations and final observations."""

    def __init__(self, env: VecEnv) -> None:
        self.steps: list[dict[str, np.ndarray]] = []
        self.step_wait, env.step_wait = env.step_wait, self.record  # type: ignore[method-assign]

    def record(self) -> Any:
        obs, reward, done, infos = self.step_wait()
        cut = np.array([info.get("TimeLimit.truncated", False) for info in infos])
        final = np.stack(
            [i["terminal_observation"] if d else o for o, d, i in zip(obs, done, infos, strict=True)]
        )
        step = {"reward": reward, "terminated": done & ~cut, "truncated": cut, "next_obs": final}
        self.steps.append({name: np.array(value) for name, value in step.items()})
        return obs, reward, done, infos


def weights(model: Any) -> dict[str, np.ndarray]:
    """The policy's parameters by SB3's names."""
    return {name: value.detach().numpy().copy() for name, value in model.policy.named_parameters()}


def optimiser(model: Any) -> Iterator[tuple[str, np.ndarray]]:
    """The optimiser's state by parameter."""
    names = [name for name, _ in model.policy.named_parameters()]
    for index, state in model.policy.optimizer.state_dict()["state"].items():
        for key, value in state.items():
            yield f"optimiser.{key}.{names[index]}", value.numpy().copy()


def fixture(case: str) -> dict[str, np.ndarray]:
    """Trains a little, then records one rollout and the update that follows it."""
    algorithm, env_id, limit, settings = CASES[case]
    env = make_vec_env(lambda: gym.make(env_id, max_episode_steps=limit), n_envs=4, seed=0)
    model = algorithm("MlpPolicy", env, policy_kwargs=NETS, seed=0, device="cpu", **settings)
    model.learn(4 * settings["n_steps"] * 3)
    _, callback = model._setup_learn(1_000_000, None)
    recorded = Recorded(env)
    model.collect_rollouts(env, callback, model.rollout_buffer, n_rollout_steps=settings["n_steps"])
    buffer = model.rollout_buffer
    data = {
        **{f"before.{name}": value for name, value in weights(model).items()},
        **dict(optimiser(model)),
        **{name: np.stack([step[name] for step in recorded.steps]) for name in recorded.steps[0]},
        "obs": buffer.observations.copy(),
        "action": buffer.actions.copy(),
        "log_prob": buffer.log_probs.copy(),
        "advantage": buffer.advantages.copy(),
        "returns": buffer.returns.copy(),
    }
    count = buffer.buffer_size * buffer.n_envs
    orders = [np.random.RandomState(epoch).permutation(count) for epoch in range(settings.get("n_epochs", 1))]
    waiting = iter(orders)
    shuffle, np.random.permutation = np.random.permutation, lambda _: next(waiting)
    model.train()
    np.random.permutation = shuffle
    rows = buffer.buffer_size  # SB3 flattens row by row, we flatten step by step
    data["order"] = np.stack([(order % rows) * buffer.n_envs + order // rows for order in orders])
    return data | {f"after.{name}": value for name, value in weights(model).items()}


def main() -> None:
    torch.set_num_threads(1)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        data = fixture(case)
        np.savez_compressed(FOLDER / f"{case}.npz", **data)
        print(case, "terminated", int(data["terminated"].sum()), "truncated", int(data["truncated"].sum()))


if __name__ == "__main__":
    main()
