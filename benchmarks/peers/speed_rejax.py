"""Environment steps per second of rejax PPO on gymnax's CartPole-v1, as one JSON line.

    python benchmarks/peers/speed_rejax.py --steps 2000000

The whole training is one compiled function, compiled before the clock starts. rejax evaluates inside it; here
the evaluation is replaced by a constant and the initial one skipped, so that only training is timed.
"""

import argparse
import json
import os
import platform
import time
from importlib.metadata import version
from typing import Any


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--steps", type=int, required=True, help="steps to train, rounded up to whole iterations"
    )
    parser.add_argument("--threads", type=int, help="cores of the process (default: all it may use)")
    parser.add_argument("--activation", default="tanh", help="rejax's own default is swish")
    args = parser.parse_args()
    if args.threads:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    os.environ.setdefault("JAX_PLATFORMS", "cpu")

    import jax
    from rejax import PPO

    settings: dict[str, Any] = {
        "env": "CartPole-v1",
        "num_envs": 64,
        "num_steps": 64,
        "num_minibatches": 8,
        "num_epochs": 4,
        "agent_kwargs": {"hidden_layer_sizes": (64, 64), "activation": args.activation},
    }
    iteration = settings["num_envs"] * settings["num_steps"]
    total = -(-args.steps // iteration) * iteration
    agent = PPO.create(**settings, total_timesteps=total, eval_freq=total, skip_initial_evaluation=True)
    agent = agent.replace(eval_callback=lambda agent, state, key: ())

    key = jax.random.PRNGKey(0)
    begun = time.perf_counter()
    train = jax.jit(agent.train).lower(key).compile()
    compiled = time.perf_counter()
    state, _ = jax.block_until_ready(train(key))
    seconds = time.perf_counter() - compiled
    assert int(state.global_step) == total
    packages = ("rejax", "gymnax", "jax", "flax", "distrax", "optax", "numpy")
    line = {
        "peer": "rejax",
        "case": "cartpole-fused",
        "steps": total,
        "seconds": seconds,
        "steps_per_second": total / seconds,
        "compile_seconds": compiled - begun,
        "versions": {name: version(name) for name in packages} | {"python": platform.python_version()},
        "threads": len(os.sched_getaffinity(0)),
        "settings": settings | {"evaluation": "none", "other": "rejax defaults"},
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
