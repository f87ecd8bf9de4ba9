"""Speed of one run as `sparring train` makes it, RL-Zoo's settings. Prints one JSON line.

python benchmarks/speed_host.py CASE --steps N [--updates M]

Learners from replay are timed once learning has begun. `--updates` also times as many updates without steps,
and beside them the fastest product of matrices of the same shape.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sparring import launch
from sparring.drivers.host import Host
from sparring.model import algorithm_class, assemble

CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "cartpole-host": ("ppo", "gym:CartPole-v1", {}),
    "lunarlander-host": ("ppo", "LunarLander-v3", {}),
    "hopper-host": (
        "ppo",
        "Hopper-v5",
        {"n_envs": 1, "n_steps": 2048, "batch_size": 64, "n_epochs": 10, "use_preset": False},
    ),
    "cartpole-dqn": ("dqn", "CartPole-v1", {}),
    "cartpole-dqn-host": ("dqn", "gym:CartPole-v1", {}),
    "hopper-sac-host": ("sac", "Hopper-v5", {"learning_starts": 1000}),
}
UNTIMED = {"cartpole-dqn": 2048, "cartpole-dqn-host": 2048, "hopper-sac-host": 1200}
"""Steps before the clock starts; one iteration where none are named."""


def products_per_second(rows: int, width: int, seconds: float = 1.0) -> float:
    """Floating-point operations per second of [rows, width] @ [width, width] over and over, at best."""
    many = 100

    @jax.jit
    def chain(x: Any, w: Any) -> Any:
        return jax.lax.fori_loop(0, many, lambda i, x: x @ w, x)

    x, w = jnp.zeros((rows, width)), jnp.zeros((width, width))
    jax.block_until_ready(chain(x, w))
    best, end = np.inf, time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        jax.block_until_ready(chain(x, w))
        best = min(best, (time.perf_counter() - began) / many)
    return 2.0 * rows * width * width / best


def sac_products(config: Any, observations: int, actions: int) -> float:
    """Floating-point operations of the matrix products that one update of SAC cannot do without.

    A gradient costs two products per layer, one of them not needed for the first layer's inputs; the critics'
    weights need none when the actor learns.
    """

    def layers(inputs: int, sizes: tuple[int, ...], outputs: int) -> list[int]:
        widths = (inputs, *sizes, outputs)
        return [a * b for a, b in pairwise(widths)]

    actor = layers(observations, config.pi, 2 * actions)
    critic = layers(observations + actions, config.qf, 1)
    once = sum(actor) + 2 * sum(critic)  # the policy and the targets at what followed
    learn_critics = 2 * (3 * sum(critic) - critic[0])
    learn_actor = 3 * sum(actor) - actor[0] + 2 * 2 * sum(critic)
    return 2.0 * config.batch_size * (once + learn_critics + learn_actor)


def updates_alone(driver: Host, count: int) -> dict[str, float]:
    """Updates per second from the replay as it is, in blocks of 100, and the products' share of the peak."""
    from dataclasses import replace

    from sparring.drivers import loop

    algo = replace(driver.algo, config=replace(driver.algo.config, gradient_steps=100))
    block = jax.jit(lambda a, train, memory, key: loop.updates(a, train, memory, key)[0], donate_argnums=1)
    train, memory = jax.tree.map(jnp.copy, driver.learner.train), driver.learner.replay
    train = jax.block_until_ready(block(algo, train, memory, jax.random.key(0)))
    peak = products_per_second(algo.config.batch_size, algo.config.pi[0])
    began = time.perf_counter()
    for i in range(max(count // 100, 1)):
        train = block(algo, train, memory, jax.random.key(i))
    jax.block_until_ready(train)
    rate = 100 * max(count // 100, 1) / (time.perf_counter() - began)
    peak = max(peak, products_per_second(algo.config.batch_size, algo.config.pi[0]))
    space = algo.spec
    needed = sac_products(algo.config, space.observation.shape[0], space.action.shape[0])
    return {
        "updates_alone_per_second": rate,
        "peak_gigaflops": peak / 1e9,
        "needed_gigaflops": needed * rate / 1e9,
        "share_of_peak": needed * rate / peak,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--steps", type=int, required=True, help="environment steps that are timed")
    parser.add_argument("--updates", type=int, default=0, help="SAC: time as many updates without steps, too")
    a = parser.parse_args()
    algorithm, env, values = CASES[a.case]
    values = dict(values)
    use_preset = values.pop("use_preset", True)
    plan = launch.plan(algorithm, env, values={**values, "eval_freq": -1}, use_preset=use_preset)
    parts = assemble(
        algorithm_class(algorithm),
        env,
        plan.settings,
        plan.config,
        (0,),
        eval_env=False,
        device="cpu",
        alone=True,
    )
    driver = parts.driver
    per = driver.steps_per_iteration
    before, iterations = max(UNTIMED.get(a.case, 0) // per, 1), max(a.steps // per, 1)
    # As in a run of the preset's length: it looks inside the networks 200 times, not at every tenth step.
    driver.reschedule(max(float(plan.settings.total_timesteps // per), float(iterations + before)))
    driver.advance(before)
    began = time.perf_counter()
    driver.advance(iterations)
    seconds = time.perf_counter() - began
    updates = iterations * driver.algo.plan.updates
    result = {
        "peer": "sparring",
        "case": a.case,
        "steps": iterations * per,
        "seconds": seconds,
        "steps_per_second": iterations * per / seconds,
        "compile_seconds": driver.compile_seconds,
        "versions": {"jax": jax.__version__},
    }
    if algorithm != "ppo":
        result["updates_per_second"] = updates / seconds
    if a.updates and isinstance(driver, Host):
        result |= updates_alone(driver, a.updates)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
