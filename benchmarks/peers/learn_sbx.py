"""Train one SBX agent (SB3 in JAX) with RL-Zoo's settings, evaluate its final policy, write one JSON file.

    python benchmarks/peers/learn_sbx.py --row hopper-sac --seed 0 --out result.json

As `learn_sb3.py`, with the settings of RL-Zoo3 `hyperparams/sac.yml` and `td3.yml` over 100,000 steps; a
schedule runs over these steps. `JAX_PLATFORMS=cpu` is assumed where the variable is not set.
"""

import os
from typing import Any

import torch
from learn_sb3 import PACKAGES, parse, summary, train_and_evaluate, write_json

_SAC: dict[str, Any] = {"algo": "sac", "steps": 100_000, "n_envs": 1}
_TD3: dict[str, Any] = {"algo": "td3", "steps": 100_000, "n_envs": 1}

ROWS: dict[str, dict[str, Any]] = {
    "hopper-sac": {**_SAC, "env": "Hopper-v5", "hyperparams": {"learning_starts": 10_000}},
    "hopper-td3": {
        **_TD3,
        "env": "Hopper-v5",
        "hyperparams": {
            "learning_rate": 1e-3,
            "batch_size": 256,
            "learning_starts": 10_000,
            "noise_std": 0.1,
            "train_freq": 1,
            "gradient_steps": 1,
            "policy_kwargs": {"net_arch": [400, 300]},
        },
    },
    "lunarlandercontinuous-sac": {
        **_SAC,
        "env": "LunarLanderContinuous-v3",
        "hyperparams": {
            "learning_rate": "lin_0.00073",
            "tau": 0.01,
            "learning_starts": 10_000,
            "policy_kwargs": {"net_arch": [400, 300]},
        },
        "note": "SBX lets the actor's and the critics' learning rate fall, the entropy coefficient's not.",
    },
    "lunarlandercontinuous-td3": {
        **_TD3,
        "env": "LunarLanderContinuous-v3",
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


def main() -> None:
    """Command line."""
    args = parse(ROWS, __doc__ or "")
    if args.out.exists():
        print(f"{args.out} exists, nothing to do")
        return
    torch.set_num_threads(1)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")

    import jax
    from sbx import SAC, TD3

    row = ROWS[args.row]
    row |= {"steps": args.steps or row["steps"]}
    algorithm = {"sac": SAC, "td3": TD3}[row["algo"]]
    result = train_and_evaluate(args.row, row, algorithm, args.seed, ("sbx-rl", "jax", "flax", *PACKAGES))
    write_json(args.out, result | {"device": jax.devices()[0].device_kind, "note": args.note})
    print(summary(result))


if __name__ == "__main__":
    main()
