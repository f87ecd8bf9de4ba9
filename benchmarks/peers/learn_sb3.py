"""Train one Stable-Baselines3 agent with RL-Zoo's settings, evaluate its final policy, write one JSON file.

    python benchmarks/peers/learn_sb3.py --row cartpole-ppo --seed 0 --out result.json

The settings are those of RL-Zoo3 `hyperparams/ppo.yml` and `a2c.yml` (commit 22e3ff2); what a row does not
name is SB3's default. `lin_x` falls linearly from x to 0 over the training, as in RL-Zoo. A file that exists
already is left alone, so that a batch of runs can be stopped and started again.
"""

import argparse
import json
import os
import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecNormalize, sync_envs_normalization

ALGORITHMS: dict[str, type[BaseAlgorithm]] = {"ppo": PPO, "a2c": A2C}
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
}


def resolve(hyperparams: dict[str, Any]) -> dict[str, Any]:
    """Replace RL-Zoo's `lin_x` strings by SB3 schedules."""

    def value(name: str, given: Any) -> Any:
        if name in SCHEDULED and isinstance(given, str):
            start = float(given.removeprefix("lin_"))
            return lambda remaining: remaining * start
        return given

    return {name: value(name, given) for name, given in hyperparams.items()}


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


def run(row_name: str, seed: int, steps: int | None) -> dict[str, Any]:
    """Train and evaluate one seed of a row."""
    row = ROWS[row_name]
    total = steps or row["steps"]
    env = make_env(row, row["n_envs"], seed, training=True)
    hyperparams = resolve(row["hyperparams"])
    model = ALGORITHMS[row["algo"]]("MlpPolicy", env, seed=seed, device="cpu", **hyperparams)
    wall, cpu = time.perf_counter(), time.process_time()
    model.learn(total, log_interval=None)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    packages = ("stable-baselines3", "torch", "gymnasium", "numpy")
    return {
        "row": row_name,
        "seed": seed,
        "algo": row["algo"],
        "env": row["env"],
        "steps": model.num_timesteps,
        "train_seconds": wall,
        "train_cpu_seconds": cpu,  # unlike the wall time not lengthened by a pause or a busy machine
        "deterministic": evaluate(model, row, deterministic=True),
        "stochastic": evaluate(model, row, deterministic=False),
        "versions": {name: version(name) for name in packages} | {"python": platform.python_version()},
        "settings": row | {"steps": total},
    }


def write_json(path: Path, result: dict[str, Any]) -> None:
    """Write a file that is either whole or absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(result, indent=1) + "\n")
    os.replace(temporary, path)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--row", required=True, choices=ROWS)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, help="train for fewer steps than the row says (a smoke test)")
    args = parser.parse_args()
    if args.out.exists():
        print(f"{args.out} exists, nothing to do")
        return
    torch.set_num_threads(1)
    result = run(args.row, args.seed, args.steps)
    write_json(args.out, result)
    print(
        f"{args.row} seed {args.seed}: {result['deterministic']['mean']:.1f} deterministic, "
        f"{result['stochastic']['mean']:.1f} stochastic, {result['train_seconds']:.0f} s"
    )


if __name__ == "__main__":
    main()
