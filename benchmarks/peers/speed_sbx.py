"""Environment steps per second of SBX PPO (SB3 in JAX), as one JSON line.

    python benchmarks/peers/speed_sbx.py cartpole-host --steps 100000

SBX jits its policy and one minibatch update by itself, while the first iteration runs; it also reads two
statistics back after every minibatch, which is part of its cost. `--threads` limits the cores of the process,
because XLA sizes its thread pool by them.
"""

import os

from host_speed import make_model, measure, parse, report


def main() -> None:
    """Command line."""
    args = parse()
    if args.threads:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    os.environ.setdefault("JAX_PLATFORMS", "cpu")

    import jax
    from sbx import PPO

    model = make_model(PPO, args.case)
    policy = model.policy
    env = model.get_env()
    assert env is not None
    # The value of one observation is compiled when the first episode is truncated: do it beforehand.
    model.vf.apply(policy.vf_state.params, policy.prepare_obs(env.observation_space.sample())[0])

    def settle() -> None:
        jax.block_until_ready((policy.actor_state.params, policy.vf_state.params))

    clock = measure(model, args.steps, settle)
    report(
        "sbx",
        args.case,
        clock,
        compile_seconds=clock.compile_seconds,
        threads=len(os.sched_getaffinity(0)),
        packages=("sbx-rl", "jax", "flax", "stable-baselines3", "torch", "gymnasium", "numpy"),
    )


if __name__ == "__main__":
    main()
