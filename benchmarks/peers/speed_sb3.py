"""Environment steps per second of Stable-Baselines3's PPO, DQN or SAC, as one JSON line.

python benchmarks/peers/speed_sb3.py cartpole-host --steps 100000
python benchmarks/peers/speed_sb3.py hopper-sac-host --steps 5000 --updates 2000
"""

import torch
from host_speed import make_model, measure, parse, report, updates_alone
from stable_baselines3 import DQN, PPO, SAC


def main() -> None:
    """Command line."""
    args = parse()
    if args.threads:
        torch.set_num_threads(args.threads)
    model = make_model({"ppo": PPO, "dqn": DQN, "sac": SAC}, args.case, device="cpu")
    clock = measure(model, args)
    report(
        "sb3",
        args.case,
        clock,
        compile_seconds=None,  # nothing is compiled
        threads=torch.get_num_threads(),
        packages=("stable-baselines3", "torch", "gymnasium", "numpy"),
        updates_alone_per_second=updates_alone(model, args.updates) if args.updates else None,
    )


if __name__ == "__main__":
    main()
