"""Train one Stable-Baselines3 agent with RL-Zoo's settings, evaluate its final policy, write one JSON file.

    python benchmarks/peers/learn_sb3.py --row cartpole-ppo --seed 0 --out result.json

The settings are those of RL-Zoo3 `hyperparams/*.yml` (commit 22e3ff2); what a row does not name is SB3's
default. `lin_x` falls linearly from x to 0 over the training and `noise_std` adds Gaussian noise to every
action, as in RL-Zoo. A file that exists already is left alone, so that a batch of runs can be stopped and
started again. `learn_sbx.py` trains SBX's agents in the same way.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3 import A2C, DQN, PPO, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecNormalize, sync_envs_normalization

ALGORITHMS: dict[str, type[BaseAlgorithm]] = {"ppo": PPO, "a2c": A2C, "dqn": DQN, "sac": SAC, "td3": TD3}
PACKAGES = ("stable-baselines3", "torch", "gymnasium", "numpy")
CURVE_POINTS = 50
EVAL_EPISODES = 100
EVAL_SEED = 1_000_000  # training environments use the seeds `seed .. seed + n_envs - 1`, far below
SCHEDULED = ("learning_rate", "clip_range")

_MOUNTAINCAR: dict[str, Any] = {
    "algo": "ppo",
    "env": "MountainCar-v0",
    "steps": 1_000_000,
    "n_envs": 16,
    "normalize": True,
    "hyperparams": {"n_steps": 16, "gae_lambda": 0.98, "gamma": 0.99, "n_epochs": 4, "ent_coef": 0.0},
}

ROWS: dict[str, dict[str, Any]] = {
    "cartpole-ppo": {
        "algo": "ppo",
        "env": "CartPole-v1",
        "steps": 100_000,
        "n_envs": 8,
        "hyperparams": {
            "n_steps": 32,
            "batch_size": 256,
            "gae_lambda": 0.8,
            "gamma": 0.98,
            "n_epochs": 20,
            "ent_coef": 0.0,
            "learning_rate": "lin_0.001",
            "clip_range": "lin_0.2",
        },
    },
    "pendulum-ppo": {
        "algo": "ppo",
        "env": "Pendulum-v1",
        "steps": 100_000,
        "n_envs": 4,
        "hyperparams": {
            "n_steps": 1024,
            "gae_lambda": 0.95,
            "gamma": 0.9,
            "n_epochs": 10,
            "ent_coef": 0.0,
            "learning_rate": 1e-3,
            "clip_range": 0.2,
            "use_sde": True,
            "sde_sample_freq": 4,
        },
    },
    "cartpole-a2c": {
        "algo": "a2c",
        "env": "CartPole-v1",
        "steps": 500_000,
        "n_envs": 8,
        "hyperparams": {"ent_coef": 0.0},
    },
    "lunarlander-ppo": {
        "algo": "ppo",
        "env": "LunarLander-v3",
        "steps": 1_000_000,
        "n_envs": 16,
        "hyperparams": {
            "n_steps": 1024,
            "batch_size": 64,
            "gae_lambda": 0.98,
            "gamma": 0.999,
            "n_epochs": 4,
            "ent_coef": 0.01,
        },
    },
    "mountaincar-ppo": _MOUNTAINCAR,
    "mountaincar-ppo-stack4": {**_MOUNTAINCAR, "frame_stack": 4},
    "cartpole-dqn": {
        "algo": "dqn",
        "env": "CartPole-v1",
        "steps": 50_000,
        "n_envs": 1,
        "hyperparams": {
            "learning_rate": 2.3e-3,
            "batch_size": 64,
            "buffer_size": 100_000,
            "learning_starts": 1000,
            "gamma": 0.99,
            "target_update_interval": 10,
            "train_freq": 256,
            "gradient_steps": 128,
            "exploration_fraction": 0.16,
            "exploration_final_eps": 0.04,
            "policy_kwargs": {"net_arch": [256, 256]},
        },
    },
    "mountaincar-dqn": {
        "algo": "dqn",
        "env": "MountainCar-v0",
        "steps": 120_000,
        "n_envs": 1,
        "hyperparams": {
            "learning_rate": 4e-3,
            "batch_size": 128,
            "buffer_size": 10_000,
            "learning_starts": 1000,
            "gamma": 0.98,
            "target_update_interval": 600,
            "train_freq": 16,
            "gradient_steps": 8,
            "exploration_fraction": 0.2,
            "exploration_final_eps": 0.07,
            "policy_kwargs": {"net_arch": [256, 256]},
        },
    },
    "lunarlander-dqn": {
        "algo": "dqn",
        "env": "LunarLander-v3",
        "steps": 100_000,
        "n_envs": 1,
        "hyperparams": {
            "learning_rate": 6.3e-4,
            "batch_size": 128,
            "buffer_size": 50_000,
            "learning_starts": 0,
            "gamma": 0.99,
            "target_update_interval": 250,
            "train_freq": 4,
            "gradient_steps": -1,
            "exploration_fraction": 0.12,
            "exploration_final_eps": 0.1,
            "policy_kwargs": {"net_arch": [256, 256]},
        },
    },
    "pendulum-sac": {
        "algo": "sac",
        "env": "Pendulum-v1",
        "steps": 20_000,
        "n_envs": 1,
        "hyperparams": {"learning_rate": 1e-3},
    },
    "pendulum-td3": {
        "algo": "td3",
        "env": "Pendulum-v1",
        "steps": 20_000,
        "n_envs": 1,
        "hyperparams": {
            "learning_rate": 1e-3,
            "gamma": 0.98,
            "buffer_size": 200_000,
            "learning_starts": 10_000,
            "noise_std": 0.1,
            "train_freq": 1,
            "gradient_steps": 1,
            "policy_kwargs": {"net_arch": [400, 300]},
        },
    },
}


def resolve(hyperparams: dict[str, Any], env: VecEnv) -> dict[str, Any]:
    """Replace RL-Zoo's `lin_x` strings by SB3 schedules and `noise_std` by SB3's action noise."""

    def value(name: str, given: Any) -> Any:
        if name in SCHEDULED and isinstance(given, str):
            start = float(given.removeprefix("lin_"))
            return lambda remaining: remaining * start
        return given

    found = {name: value(name, given) for name, given in hyperparams.items() if name != "noise_std"}
    if "noise_std" in hyperparams:
        shape = env.action_space.shape or ()
        found["action_noise"] = NormalActionNoise(np.zeros(shape), np.full(shape, hyperparams["noise_std"]))
    return found


def make_env(row: dict[str, Any], n_envs: int, seed: int, *, training: bool) -> VecEnv:
    """The row's environments, wrapped in RL-Zoo's order: normalise each frame, then stack the frames."""
    env = make_vec_env(row["env"], n_envs=n_envs, seed=seed)
    if row.get("normalize"):
        gamma = row["hyperparams"]["gamma"]
        env = VecNormalize(env, training=training, norm_reward=training, gamma=gamma)
    if n_stack := row.get("frame_stack"):
        env = VecFrameStack(env, n_stack)
    return env


def evaluate(model: BaseAlgorithm, row: dict[str, Any], *, deterministic: bool) -> dict[str, Any]:
    """Raw returns of one episode in each of `EVAL_EPISODES` freshly seeded environments."""
    env = make_env(row, EVAL_EPISODES, EVAL_SEED, training=False)
    trained_on = model.get_env()
    assert trained_on is not None
    sync_envs_normalization(trained_on, env)
    resample = row["hyperparams"].get("sde_sample_freq", 0)
    returns = np.full(EVAL_EPISODES, np.nan)
    lengths = np.zeros(EVAL_EPISODES, dtype=int)
    obs, step = env.reset(), 0
    while np.isnan(returns).any():
        if resample and not deterministic and step % resample == 0:
            model.policy.reset_noise(EVAL_EPISODES)  # gSDE explores in evaluation as it did in training
        actions, _ = model.predict(obs, deterministic=deterministic)  # type: ignore[arg-type]
        obs, _, dones, infos = env.step(actions)
        step += 1
        for i in np.flatnonzero(dones & np.isnan(returns)):
            returns[i], lengths[i] = infos[i]["episode"]["r"], infos[i]["episode"]["l"]
    env.close()
    return {
        "mean": float(returns.mean()),
        "std": float(returns.std()),
        "episodes": EVAL_EPISODES,
        "returns": returns.tolist(),
        "lengths": lengths.tolist(),
    }


def training_curve(env: VecEnv, total: int) -> dict[str, list[Any]]:
    """Mean raw return of the training episodes that ended in each of `CURVE_POINTS` equal parts of the steps.

    The steps of an episode's end are counted as if all environments ran in step; None where none ended.
    """
    ended: list[list[float]] = [[] for _ in range(CURVE_POINTS)]
    lengths, returns = env.env_method("get_episode_lengths"), env.env_method("get_episode_rewards")
    for ends, values in zip((np.cumsum(one) * env.num_envs for one in lengths), returns, strict=True):
        for end, value in zip(ends, values, strict=True):
            ended[min(int(end - 1) * CURVE_POINTS // total, CURVE_POINTS - 1)].append(value)
    return {
        "steps": [total * (i + 1) // CURVE_POINTS for i in range(CURVE_POINTS)],
        "training_return": [float(np.mean(values)) if values else None for values in ended],
    }


def train_and_evaluate(
    row_name: str,
    row: dict[str, Any],
    algorithm: type[BaseAlgorithm],
    seed: int,
    packages: Sequence[str],
    **kwargs: Any,
) -> dict[str, Any]:
    """Train and evaluate one seed of a row; `kwargs` go to the algorithm beside the row's settings."""
    env = make_env(row, row["n_envs"], seed, training=True)
    model = algorithm("MlpPolicy", env, seed=seed, **resolve(row["hyperparams"], env), **kwargs)
    wall, cpu = time.perf_counter(), time.process_time()
    model.learn(row["steps"], log_interval=None)  # type: ignore[arg-type]
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    deterministic = evaluate(model, row, deterministic=True)
    always_deterministic = row["algo"] == "td3"  # its noise belongs to training only
    return {
        "row": row_name,
        "seed": seed,
        "algo": row["algo"],
        "env": row["env"],
        "steps": model.num_timesteps,
        "train_seconds": wall,
        "train_cpu_seconds": cpu,  # unlike the wall time not lengthened by a pause or a busy machine
        "steps_per_second": model.num_timesteps / wall,
        "deterministic": deterministic,
        "stochastic": deterministic if always_deterministic else evaluate(model, row, deterministic=False),
        "curve": training_curve(env, row["steps"]),
        "versions": {name: version(name) for name in packages} | {"python": platform.python_version()},
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "settings": row,
    }


def write_json(path: Path, result: dict[str, Any]) -> None:
    """Write a file that is either whole or absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(result, indent=1) + "\n")
    os.replace(temporary, path)


def parse(rows: dict[str, dict[str, Any]], description: str) -> argparse.Namespace:
    """The command line of `learn_sb3.py` and `learn_sbx.py`."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--row", required=True, choices=rows)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, help="train for fewer steps than the row says (a smoke test)")
    parser.add_argument("--note", help="a remark to keep in the result, as what else the machine did")
    return parser.parse_args()


def summary(result: dict[str, Any]) -> str:
    """The result in one line."""
    return (
        f"{result['row']} seed {result['seed']}: {result['deterministic']['mean']:.1f} deterministic, "
        f"{result['stochastic']['mean']:.1f} stochastic, {result['train_seconds']:.0f} s"
    )


def main() -> None:
    """Command line."""
    args = parse(ROWS, __doc__ or "")
    if args.out.exists():
        print(f"{args.out} exists, nothing to do")
        return
    torch.set_num_threads(1)
    row = ROWS[args.row]
    row |= {"steps": args.steps or row["steps"]}
    algorithm = ALGORITHMS[row["algo"]]
    result = train_and_evaluate(args.row, row, algorithm, args.seed, PACKAGES, device="cpu")
    write_json(args.out, result | {"note": args.note})
    print(summary(result))


if __name__ == "__main__":
    main()
