"""Environment steps per second of SBX's PPO, DQN or SAC (SB3 in JAX), as one JSON line.

    python benchmarks/peers/speed_sbx.py cartpole-host --steps 100000
    python benchmarks/peers/speed_sbx.py hopper-sac-host --steps 5000 --updates 2000

SBX jits its policy and its update by itself, while the untimed steps run; it also reads statistics back after
every minibatch of PPO and every call of `train`, which is part of its cost. Its DQN does not clip gradients.
`--threads` limits the cores of the process, because XLA sizes its thread pool by them.
"""

import os

from host_speed import CASES, make_model, measure, parse, report, updates_alone


def main() -> None:
    """Command line."""
    args = parse()
    if args.threads:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    os.environ.setdefault("JAX_PLATFORMS", "cpu")

    import jax
    from sbx import DQN, PPO, SAC

    model = make_model({"ppo": PPO, "dqn": DQN, "sac": SAC}, args.case)
    policy = model.policy
    on_policy = CASES[args.case]["algo"] == "ppo"
    if on_policy:
        env = model.get_env()
        assert env is not None
        # The value of one observation is compiled when the first episode is truncated: do it beforehand.
        model.vf.apply(policy.vf_state.params, policy.prepare_obs(env.observation_space.sample())[0])

    def settle() -> None:
        for name in ("actor_state", "vf_state", "qf_state"):
            if hasattr(policy, name):
                jax.block_until_ready(getattr(policy, name).params)

    clock = measure(model, args, settle)
    report(
        "sbx",
        args.case,
        clock,
        compile_seconds=clock.compile_seconds if on_policy else None,  # hidden among steps without updates
        threads=len(os.sched_getaffinity(0)),
        packages=("sbx-rl", "jax", "flax", "stable-baselines3", "torch", "gymnasium", "numpy"),
        updates_alone_per_second=updates_alone(model, args.updates, settle) if args.updates else None,
    )


if __name__ == "__main__":
    main()
