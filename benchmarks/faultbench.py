"""How well the health rules see faults: runs with injected faults beside healthy ones.

    python benchmarks/faultbench.py                    everything, a few minutes on two cores
    python benchmarks/faultbench.py --only reward_x1000 --seeds 2 --half tune

Every case is trained with several seeds. Seeds 0, 1, 2 … are for setting the thresholds in
`sparring/metrics/rules.py`; held out are seeds from 100 on, every run in the environments of `UNSEEN`, and
every kind of fault in `NEW_FAULTS`. A fault is seen when a right rule raises an alert. Faults are injected
from outside: environments are wrapped, algorithms subclassed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import platform
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

OUT = Path(__file__).parents[1] / "docs" / "results" / "faultbench.json"
UNSEEN = ("Acrobot-v1",)
"""Environments whose runs no threshold was set on."""

HELD_OUT = 100
"""The first seed that no threshold was set on."""

BASES: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "cartpole": (
        "ppo",
        "CartPole-v1",
        {
            "n_envs": 8,
            "n_steps": 32,
            "batch_size": 256,
            "n_epochs": 10,
            "learning_rate": 1e-3,
            "gamma": 0.98,
            "gae_lambda": 0.8,
        },
        40_000,
    ),
    "acrobot": (
        "ppo",
        "Acrobot-v1",
        {
            "n_envs": 16,
            "n_steps": 64,
            "batch_size": 256,
            "n_epochs": 4,
            "learning_rate": 1e-3,
            "gae_lambda": 0.94,
            "normalize_obs": True,
            "normalize_reward": True,
        },
        120_000,
    ),
    "pendulum": (
        "ppo",
        "Pendulum-v1",
        {
            "n_envs": 16,
            "n_steps": 64,
            "batch_size": 256,
            "n_epochs": 10,
            "learning_rate": 1e-3,
            "gamma": 0.9,
            "gae_lambda": 0.95,
        },
        120_000,
    ),
    "dqn": (
        "dqn",
        "CartPole-v1",
        {
            "learning_rate": 2.3e-3,
            "batch_size": 64,
            "buffer_size": 20_000,
            "learning_starts": 1000,
            "target_update_interval": 10,
            "train_freq": 256,
            "gradient_steps": 128,
            "exploration_fraction": 0.16,
            "exploration_final_eps": 0.04,
            "net_arch": (128, 128),
            "prioritized": True,
        },
        30_000,
    ),
    "a2c": ("a2c", "CartPole-v1", {"n_envs": 16, "n_steps": 16, "learning_rate": 2e-3}, 100_000),
    "sac": (
        "sac",
        "Pendulum-v1",
        {
            "n_envs": 4,
            "learning_rate": 1e-3,
            "batch_size": 128,
            "train_freq": 8,
            "gradient_steps": 16,
            "buffer_size": 20_000,
            "learning_starts": 500,
            "pi": (64, 64),
            "qf": (64, 64),
        },
        16_000,
    ),
}
"""Healthy settings: algorithm, environment, settings, steps."""


class Case(NamedTuple):
    """One way to train: a base and, in a faulty case, what is wrong with it and which rules may say so."""

    base: str
    right: tuple[str, ...] = ()
    settings: Mapping[str, Any] = {}
    environment: Mapping[str, Any] = {}
    """changes of the environment: fields of `Altered`"""
    algorithm: str = ""
    """a class of `faulty_algorithms`"""


OUTCOME = ("R24", "R29")
FAULTS: dict[str, list[Case]] = {
    "advantage_sign": [Case(b, OUTCOME, algorithm="Negated") for b in ("cartpole", "acrobot", "pendulum")],
    "truncation_is_termination": [
        Case("pendulum", ("R21",), environment={"limit": 200}),
        Case("pendulum", ("R21",), environment={"limit": 100}),
    ],
    "learning_rate_x100": [
        Case(b, ("R02", "R03", "R04", "R06", "R08", "R09", *OUTCOME), {"learning_rate": 0.1})
        for b in ("cartpole", "acrobot", "pendulum")
    ],
    "observations_x1000": [
        Case("cartpole", ("R12",), environment={"obs_scale": 1000.0}),
        Case("acrobot", ("R12",), {"normalize_obs": False}, {"obs_scale": 1000.0}),
        Case("pendulum", ("R12",), environment={"obs_scale": 1000.0}),
    ],
    "reward_x1000": [
        Case("cartpole", ("R06", "R08"), environment={"reward_scale": 1000.0}),
        Case("acrobot", ("R06", "R08"), {"normalize_reward": False}, {"reward_scale": 1000.0}),
        Case("pendulum", ("R06", "R08"), environment={"reward_scale": 1000.0}),
    ],
    "entropy_zero": [Case(b, ("R05",), algorithm="Certain") for b in ("cartpole", "acrobot")],
    "entropy_huge": [
        Case("cartpole", ("R05", "R29"), {"ent_coef": 10.0}),
        Case("acrobot", ("R05", "R29"), {"ent_coef": 10.0}),
        Case("pendulum", ("R05", "R29", "R14"), {"ent_coef": 10.0}),
    ],
    "stale_policy": [Case(b, ("R02", "R03"), algorithm="Stale") for b in ("cartpole", "acrobot", "pendulum")],
    "gradients_clipped_away": [
        Case(b, ("R08", "R09", "R02", "R03"), {"max_grad_norm": 1e-9})
        for b in ("cartpole", "acrobot", "pendulum")
    ],
    "gamma_tiny": [Case(b, ("R06",), {"gamma": 0.1}) for b in ("cartpole", "acrobot", "pendulum")],
    "dead_units": [
        Case(b, ("R10", "R08"), {"activation": "relu"}, algorithm="Dead") for b in ("cartpole", "acrobot")
    ],
    "priority_alpha_2": [Case("dqn", ("R18",), {"priority_alpha": 2.0})],
    "action_unscaled": [Case("pendulum", ("R14",), environment={"action_bound": 0.02})],
    "reward_nan": [Case(b, ("R01",), environment={"nan_after": 50}) for b in ("cartpole", "acrobot")],
    "reward_zero": [
        Case(b, ("R22",), environment={"reward_scale": 0.0}) for b in ("cartpole", "acrobot", "pendulum")
    ],
    "leaking_episodes": [Case(b, ("R04", *OUTCOME), algorithm="Leaking") for b in ("cartpole", "acrobot")],
    "observation_constant": [
        Case(b, ("R12",), environment={"frozen": True}) for b in ("cartpole", "acrobot", "pendulum")
    ],
    "dqn_learning_rate_x100": [Case("dqn", ("R15", "R06", "R08", "R09", *OUTCOME), {"learning_rate": 0.23})],
    "sac_learning_rate_x100": [
        Case("sac", ("R15", "R16", "R17", "R06", "R08", "R09", *OUTCOME), {"learning_rate": 0.1})
    ],
    "sac_reward_x1000": [Case("sac", ("R06", "R08", "R17"), environment={"reward_scale": 1000.0})],
}
NEW_FAULTS: dict[str, list[Case]] = {
    "critic_untrained": [
        Case(b, ("R04", "R07"), {"vf_coef": 0.0}) for b in ("cartpole", "acrobot", "pendulum")
    ],
    "actions_ignored": [
        Case(b, ("R05", *OUTCOME), environment={"deaf": True}) for b in ("cartpole", "acrobot", "pendulum")
    ],
    "learning_rate_zero": [
        Case(b, ("R02", "R03", "R09", "R29"), {"learning_rate": 1e-12})
        for b in ("cartpole", "acrobot", "pendulum")
    ],
    "log_prob_misremembered": [
        Case(b, ("R02", "R03"), algorithm="Misremembering") for b in ("cartpole", "acrobot", "pendulum")
    ],
    "weights_x30": [
        Case(b, ("R04", "R05", "R06", "R07", "R08", "R14", *OUTCOME), algorithm="Loud")
        for b in ("cartpole", "acrobot", "pendulum")
    ],
    "observation_nan": [Case(b, ("R01",), environment={"blind_after": 50}) for b in ("cartpole", "acrobot")],
    "episodes_of_two_steps": [
        Case(b, ("R21",), environment={"limit": 2}) for b in ("cartpole", "acrobot", "pendulum")
    ],
    "entropy_punished": [Case(b, ("R05",), {"ent_coef": -1.0}) for b in ("cartpole", "acrobot")],
    "dqn_target_frozen": [Case("dqn", ("R15", "R16", *OUTCOME), {"target_update_interval": 10_000_000})],
    "dqn_episodes_never_end": [Case("dqn", ("R15", "R06", *OUTCOME), algorithm="Leaking")],
    "dqn_never_exploits": [Case("dqn", ("R29",), {"exploration_final_eps": 1.0})],
    "sac_noise_rewarded": [Case("sac", ("R05", "R17", *OUTCOME), {"ent_coef": 100.0})],
}
"""Faults that were written after the thresholds, with the rules that may name them; run once."""

HEALTHY: list[Case] = [
    Case("cartpole"),
    Case("cartpole", settings={"learning_rate": 3e-4, "n_epochs": 4}),
    Case("cartpole", settings={"ent_coef": 0.01}),
    Case("acrobot"),
    Case("acrobot", settings={"learning_rate": 3e-4, "n_epochs": 10}),
    Case("pendulum"),
    Case("pendulum", settings={"normalize_reward": True, "normalize_obs": True}),
    Case("dqn"),
    Case("dqn", settings={"prioritized": False}),
    Case("a2c"),
    Case("sac"),
]


def environment(case: Case) -> Any:
    """The case's environment, altered."""
    import jax
    import jax.numpy as jnp

    from sparring.envs import registry
    from sparring.spaces import Box

    inner = registry.make(BASES[case.base][1])
    if not case.environment:
        return inner

    def drawn(key: Any) -> Any:
        space = inner.spec.action
        if isinstance(space, Box):
            return jax.random.uniform(key, space.shape, minval=space.low, maxval=space.high)
        return jax.random.randint(key, (), 0, space.n)

    @dataclasses.dataclass(frozen=True)
    class Altered:
        """An environment with something wrong."""

        reward_scale: float = 1.0
        obs_scale: float = 1.0
        limit: int = 0
        """steps after which an episode ends as if the task were over"""
        action_bound: float = 0.0
        """bounds of the action that are declared; the true ones are reached from there"""
        nan_after: int = 0
        frozen: bool = False
        """the last part of the observation never changes"""
        deaf: bool = False
        """actions are drawn by chance, whatever the agent says"""
        blind_after: int = 0
        """steps after which observations are not numbers"""

        @property
        def spec(self) -> Any:
            spec = inner.spec
            if self.limit:
                spec = dataclasses.replace(spec, time_limit=None)
            if self.action_bound:
                spec = dataclasses.replace(
                    spec, action=Box(spec.action.shape, -self.action_bound, self.action_bound)
                )
            if self.obs_scale != 1.0:
                wide = Box(spec.observation.shape, -math.inf, math.inf)
                spec = dataclasses.replace(spec, observation=wide)
            return spec

        def reset(self, key: Any) -> Any:
            return inner.reset(key), jnp.zeros((), jnp.int32)

        def observe(self, state: Any) -> Any:
            obs = inner.observe(state[0]) * self.obs_scale
            if self.blind_after:
                obs = jnp.where(state[1] > self.blind_after, jnp.nan, obs)
            return obs.at[-1].set(0.0) if self.frozen else obs

        def step(self, state: Any, action: Any, key: Any) -> Any:
            if self.action_bound:
                action = action * (2.0 / self.action_bound)
            if self.deaf:
                action = drawn(jax.random.fold_in(key, 1))
            after, outcome = inner.step(state[0], action, key)
            count = state[1] + 1
            reward = outcome.reward * self.reward_scale
            if self.nan_after:
                reward = jnp.where(count > self.nan_after, jnp.nan, reward)
            outcome = outcome._replace(reward=reward)
            if self.limit:
                outcome = outcome._replace(terminated=outcome.terminated | (count >= self.limit))
            return (after, count), outcome

    return Altered(**case.environment)


def faulty_algorithms(base: Any) -> dict[str, Any]:
    """The algorithm with bugs; PPO's parts are named here."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    from sparring.config import algorithm

    class Acting(NamedTuple):
        now: Any
        acting: Any

    @algorithm
    class Negated(base):  # type: ignore[misc]
        """Goes down where it should go up."""

        def _targets(self, c: Any, state: Any, rollout: Any) -> Any:
            samples, returns, mask = super()._targets(c, state, rollout)
            return samples._replace(advantage=-samples.advantage), returns, mask

    @algorithm
    class Leaking(base):  # type: ignore[misc]
        """Never sees that an episode ended."""

        def update(self, state: Any, batch: Any, key: Any) -> Any:
            data = batch.data
            never = jnp.zeros_like(data.terminated)
            return super().update(
                state, batch._replace(data=data._replace(terminated=never, truncated=never)), key
            )

    @algorithm
    class Certain(base):  # type: ignore[misc]
        """Begins with a policy that is sure of everything."""

        def init(self, key: Any) -> Any:
            state = super().init(key)
            head = jax.tree.map(lambda x: x * 1e5, state.nets.actor.head)
            return state._replace(nets=eqx.tree_at(lambda n: n.actor.head, state.nets, head))

    @algorithm
    class Dead(base):  # type: ignore[misc]
        """Begins with units that no input switches on."""

        def init(self, key: Any) -> Any:
            state = super().init(key)

            def biases(nets: Any) -> list[Any]:
                return [layer.bias for layer in (*nets.actor.body.layers, *nets.critic.body.layers)]

            low = [jnp.full_like(b, -100.0) for b in biases(state.nets)]
            return state._replace(nets=eqx.tree_at(biases, state.nets, low))

    @algorithm
    class Stale(base):  # type: ignore[misc]
        """Acts with weights that are up to 20 iterations old."""

        def init(self, key: Any) -> Any:
            state = super().init(key)
            return Acting(state, super().policy(state))

        def policy(self, state: Any) -> Any:
            return state.acting

        def update(self, state: Any, batch: Any, key: Any) -> Any:
            now, report = super().update(state.now, batch, key)
            return state._replace(now=now), report

        def absorb(self, state: Any, rollout: Any) -> Any:
            now = super().absorb(state.now, rollout)
            fresh = now.iteration % 20 == 0
            acting = jax.tree.map(lambda a, b: jnp.where(fresh, a, b), super().policy(now), state.acting)
            return Acting(now, acting)

    @algorithm
    class Misremembering(base):  # type: ignore[misc]
        """Writes down that every action was twice as likely as it was."""

        def act(self, *arguments: Any) -> Any:
            action, extras, carry = super().act(*arguments)
            return action, extras._replace(log_prob=extras.log_prob + math.log(2.0)), carry

    @algorithm
    class Loud(base):  # type: ignore[misc]
        """Begins with weights that are far too large."""

        def init(self, key: Any) -> Any:
            state = super().init(key)
            return state._replace(nets=jax.tree.map(lambda x: x * 30.0, state.nets))

    return {c.__name__: c for c in (Negated, Leaking, Certain, Dead, Stale, Misremembering, Loud)}


def train(case: Case, seeds: tuple[int, ...]) -> list[list[tuple[int, dict[str, float]]]]:
    """The metrics of a case, for every seed."""
    from sparring.config import from_mapping
    from sparring.drivers.fused import Fused
    from sparring.drivers.platform import prepare
    from sparring.model import algorithm_class
    from sparring.session import measured, relative_entropy

    prepare("cpu", large=False)
    name, _, settings, total = BASES[case.base]
    values = {**settings, **case.settings}
    rows = int(values.pop("n_envs", 1))
    base = algorithm_class(name)
    cls = faulty_algorithms(base)[case.algorithm] if case.algorithm else base
    env = environment(case)
    algo = cls(dataclasses.replace(env.spec, rows=rows), from_mapping(base.Config, values))
    driver = Fused(algo, env, rows, seeds)
    iterations = total // driver.steps_per_iteration
    driver.reschedule(float(iterations))
    runs: list[list[tuple[int, dict[str, float]]]] = [[] for _ in seeds]
    while driver.iteration < iterations:
        first = driver.iteration
        traces = driver.advance(min(iterations - first, 1024))
        for run, trace in zip(runs, traces, strict=True):
            for row in range(driver.iteration - first):
                values_now = {k: float(v[row]) for k, v in trace.items()}
                values_now = measured(values_now)
                values_now |= relative_entropy(algo.spec.action, values_now)
                run.append(((first + row + 1) * driver.steps_per_iteration, values_now))
    return runs


def judge(
    name_of_fault: str,
    case: Case,
    runs: list[list[tuple[int, dict[str, float]]]],
    seeds: tuple[int, ...],
) -> list[dict[str, Any]]:
    """What the rules said about every seed, and the worst values of each rule."""
    from sparring.metrics.health import Context, Engine, replay
    from sparring.metrics.rules import RULES

    name, env, settings, total = BASES[case.base]
    results = []
    for seed, run in zip(seeds, runs, strict=True):
        unseen = seed >= HELD_OUT or env in UNSEEN or name_of_fault in NEW_FAULTS
        half = "held out" if unseen else "tune"
        config = {
            "max_grad_norm": {"dqn": 10.0, "sac": None}.get(name, 0.5),
            "gamma": 0.99,
            **settings,
            **case.settings,
        }
        engine = Engine(RULES, Context(name, total, config))
        worst: dict[str, list[float]] = {}
        for step, values in run:
            engine.feed(step, values)
            for rule in engine.rules:
                if math.isfinite(value := engine.value(rule, 0)):
                    low, high = worst.setdefault(rule.key, [value, value])
                    worst[rule.key] = [min(low, value), max(high, value)]
        replay(engine, [])
        alarms = {a.rule.key: a.onset for a in engine.alerts if a.level != "note"}
        right = [key for key in alarms if key.partition(".")[0] in case.right]
        results.append(
            {
                "env": env,
                "base": case.base,
                "seed": seed,
                "half": half,
                "return": run[-1][1]["rollout/ep_rew_mean"],
                "alarms": alarms,
                "right": right,
                "extremes": worst,
            }
        )
    return results


def work(name: str, case: Case, seeds: tuple[int, ...]) -> tuple[str, Case, list[dict[str, Any]], float]:
    began = time.perf_counter()
    return name, case, judge(name, case, train(case, seeds), seeds), time.perf_counter() - began


def summary(results: Mapping[str, list[dict[str, Any]]], half: str) -> dict[str, Any]:
    """Recall of every fault, precision of every rule and the share of healthy runs with an alarm.

    The precision of a fault is the share of its runs' alarms that came from right rules; the others are
    mostly consequences, such as a return that does not rise. A rule's counts healthy runs as wrong.
    """
    faults, raised = {}, {}
    chosen = {name: [r for r in runs if half in ("all", r["half"])] for name, runs in results.items()}
    for name, runs in chosen.items():
        for r in runs:
            for key in r["alarms"]:
                good, bad = raised.setdefault(key, [0, 0])
                raised[key] = [good + (name != "healthy"), bad + (name == "healthy")]
        if name != "healthy" and runs:
            seen = [r for r in runs if r["right"]]
            faults[name] = {
                "runs": len(runs),
                "seen_by_a_right_rule": len(seen),
                "alarmed_at_all": sum(bool(r["alarms"]) for r in runs),
                "recall": len(seen) / len(runs),
                "precision": sum(len(r["right"]) for r in runs) / max(sum(len(r["alarms"]) for r in runs), 1),
                "rules": sorted({key for r in seen for key in r["right"]}),
            }
    healthy = chosen.get("healthy", [])
    false = [r for r in healthy if r["alarms"]]
    return {
        "faults": faults,
        "faults_seen": sum(f["recall"] > 0.5 for f in faults.values()),
        "recall": sum(f["seen_by_a_right_rule"] for f in faults.values())
        / max(sum(f["runs"] for f in faults.values()), 1),
        "healthy_runs": len(healthy),
        "false_alarms": len(false),
        "false_alarm_rate": len(false) / max(len(healthy), 1),
        "false_alarm_rules": sorted({key for r in false for key in r["alarms"]}),
        "rules": {
            key: {"on_faults": good, "on_healthy": bad, "precision": good / (good + bad)}
            for key, (good, bad) in sorted(raised.items())
        },
    }


def table(name: str, found: dict[str, Any]) -> str:
    """The summary as text."""
    lines = [f"{name}: {'fault':<28} seen  runs  precision  rules"]
    for fault, f in found["faults"].items():
        counts = f"{f['seen_by_a_right_rule']:>4}  {f['runs']:>4}  {f['precision']:>9.2f}"
        lines.append(f"{'':>{len(name)}}  {fault:<28} {counts}  {' '.join(f['rules'])}")
    lines.append(
        f"recall {found['recall']:.2f}, faults seen {found['faults_seen']} of {len(found['faults'])}, "
        f"false alarms in {found['false_alarms']} of {found['healthy_runs']} healthy runs: "
        f"{' '.join(found['false_alarm_rules']) or 'none'}"
    )
    return "\n".join(lines)


def extremes(results: Mapping[str, list[dict[str, Any]]]) -> str:
    """What each rule measured on the tuning half: healthy runs, and every fault it is right for."""
    spread: dict[str, dict[str, list[float]]] = {}
    for name, runs in results.items():
        for r in runs:
            if r["half"] == "tune":
                for key, (low, high) in r["extremes"].items():
                    now = spread.setdefault(key, {}).setdefault(name, [low, high])
                    spread[key][name] = [min(now[0], low), max(now[1], high)]
    lines = []
    for key, by in sorted(spread.items()):
        cells = [f"{name} {low:.3g}..{high:.3g}" for name, (low, high) in by.items()]
        lines.append(f"{key}: {'; '.join(cells)}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", help="only these faults; `healthy` for the controls")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of each half (default 3)")
    parser.add_argument(
        "--half", choices=("tune", "all"), default="all", help="tune: nothing held out is run"
    )
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 2))
    parser.add_argument("--extremes", action="store_true", help="show what rules measured on the tuning half")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    cases = {"healthy": HEALTHY, **FAULTS, **({} if arguments.half == "tune" else NEW_FAULTS)}
    if arguments.only:
        cases = {name: cases[name] for name in arguments.only}
    seeds = tuple(range(arguments.seeds))
    if arguments.half == "all":
        seeds += tuple(range(HELD_OUT, HELD_OUT + arguments.seeds))
    jobs: list[tuple[str, Case]] = [(name, case) for name, many in cases.items() for case in many]
    if arguments.half == "tune":
        jobs = [(name, case) for name, case in jobs if BASES[case.base][1] not in UNSEEN]
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in cases}
    began = time.perf_counter()
    run: Callable[..., Any] = work
    import multiprocessing

    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
        late = tuple(seed for seed in seeds if seed >= HELD_OUT)
        waiting = [pool.submit(run, name, case, late if name in NEW_FAULTS else seeds) for name, case in jobs]
        for done in as_completed(waiting):
            name, case, found, seconds = done.result()
            results[name] += found
            shown = sorted({key for r in found for key in r["alarms"]})
            mean = sum(r["return"] for r in found) / len(found)
            print(
                f"{name} {case.base} {dict(case.settings)}: return {mean:.0f}, {seconds:.0f} s: {shown}",
                flush=True,
            )
    if arguments.extremes:
        print(extremes(results))
    halves = ("tune",) if arguments.half == "tune" else ("tune", "held out")
    report = {half: summary(results, half) for half in halves}
    for half, found in report.items():
        print(table(half, found))
    if arguments.half == "tune" or arguments.only:
        return
    report["about"] = {
        "seeds": list(seeds),
        "unseen_environments": list(UNSEEN),
        "unseen_faults": list(NEW_FAULTS),
        "seconds": round(time.perf_counter() - began),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "command": "python benchmarks/faultbench.py",
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
