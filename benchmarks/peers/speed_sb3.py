"""Environment steps per second of Stable-Baselines3 PPO, as one JSON line.

python benchmarks/peers/speed_sb3.py cartpole-host --steps 100000
"""

import torch
from host_speed import make_model, measure, parse, report
from stable_baselines3 import PPO


def main() -> None:
    """Command line."""
    args = parse()
    if args.threads:
        torch.set_num_threads(args.threads)
    clock = measure(make_model(PPO, args.case, device="cpu"), args.steps)
    report(
        "sb3",
        args.case,
        clock,
        compile_seconds=None,  # nothing is compiled
        threads=torch.get_num_threads(),
        packages=("stable-baselines3", "torch", "gymnasium", "numpy"),
    )


if __name__ == "__main__":
    main()
