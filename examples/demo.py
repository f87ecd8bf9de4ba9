"""The demo: train PPO on CartPole until solved, evaluate it over 100 episodes, film it."""

import sys
import time

from sparring.cli.main import main


def demo() -> int:
    began = time.perf_counter()
    steps = (
        ["train", "ppo", "CartPole-v1", "--seed", "0", "--stop-reward", "threshold"],
        ["eval", "last", "--episodes", "100"],
        ["record", "last", "-o", "runs/demo.mp4"],
    )
    for step in steps:
        print(f"\n$ sparring {' '.join(step)}", flush=True)
        code = main(step)
        if code:
            return code
    print(f"\nAll of it took {time.perf_counter() - began:.1f} s. Look at:")
    print("  runs/demo.mp4                 the agent at work")
    print("  .venv/bin/sparring runs       what was trained")
    print("  .venv/bin/sparring play last  watch it live")
    print("  README.md, docs/              what else there is")
    return 0


if __name__ == "__main__":
    sys.exit(demo())
