"""Speed of the fused driver: PPO on CartPole-v1, 64 × 64 steps, 8 minibatches, 4 epochs, as JSON.

Needs only jax, equinox, optax and numpy, so it runs on a machine without Gymnasium.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time

import jax

from sparring.algos.ppo import PPO, PPOConfig
from sparring.drivers.fused import Fused
from sparring.drivers.platform import prepare
from sparring.envs.classic.cartpole import CartPole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--n-steps", type=int, default=64)
    parser.add_argument("--minibatches", type=int, default=8)
    parser.add_argument(
        "--steps", type=int, default=1_000_000, help="environment steps of one timed repetition"
    )
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=1)
    a = parser.parse_args()
    prepare()
    env = CartPole()
    config = PPOConfig(
        n_steps=a.n_steps, batch_size=a.rows * a.n_steps // a.minibatches, n_epochs=4, learning_rate=1e-3
    )
    iterations = max(a.steps // (a.rows * a.n_steps), 1)
    algo = PPO(dataclasses.replace(env.spec, rows=a.rows), config, float(iterations))
    driver = Fused(algo, env, a.rows, tuple(range(a.seeds)))
    driver.advance(1)
    seconds = []
    for _ in range(a.repeat):
        began = time.perf_counter()
        left = iterations
        while left:
            done = min(left, 1000)
            traces = driver.advance(done)
            left -= done
        seconds.append(time.perf_counter() - began)
    steps = iterations * a.rows * a.n_steps * a.seeds
    device = jax.devices()[0]
    print(
        json.dumps(
            {
                "peer": "sparring",
                "case": "cartpole-fused",
                "rows": a.rows,
                "n_steps": a.n_steps,
                "seeds": a.seeds,
                "steps": steps,
                "seconds": min(seconds),
                "seconds_all": seconds,
                "steps_per_second": steps / min(seconds),
                "steps_per_second_median": steps / statistics.median(seconds),
                "compile_seconds": driver.compile_seconds,
                "ep_rew_mean": float(traces[0]["rollout/ep_rew_mean"][-1]),
                "device": f"{device.platform} {device.device_kind}",
                "versions": {"jax": jax.__version__},
            }
        )
    )


if __name__ == "__main__":
    main()
