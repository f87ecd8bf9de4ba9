"""The probe battery: five questions with known answers that every algorithm must get right.

Each probe environment isolates one part of a learning rule (after Andy Jones, "Debugging RL", 2021). The
first one that fails says where to look.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sparring.config import Linear, from_mapping
from sparring.drivers.fused import Fused
from sparring.envs import registry
from sparring.errors import SpaceMismatch
from sparring.evaluation.evaluator import evaluate

ROWS = 16
ITERATIONS = 300
ENOUGH = 0.1
"""Error of a value that counts as learned, beside a true value of one."""

# What the probes run with, as far as the algorithm has such settings: they are small and want to be quick.
SETTINGS: dict[str, Any] = {
    "n_steps": 16,
    "batch_size": 64,
    "n_epochs": 4,
    "learning_rate": 3e-3,
    "gamma": 0.9,
    "pi": (32,),
    "vf": (32,),
    "max_episode_steps": 8,
}

REPLAYED: dict[str, Any] = {
    "n_steps": 1,
    "batch_size": 64,
    "buffer_size": 16_000,
    "learning_starts": 64,
    "train_freq": 4,
    "gradient_steps": 2,
    "learning_rate": Linear(0.01),
    "gamma": 0.9,
    "ent_coef": 0.02,
    "net_arch": (32,),
    "pi": (32,),
    "qf": (32,),
}
"""The same for algorithms with a replay, whose settings of the same name mean something else."""
COPIED, FOLLOWING = {"target_update_interval": 128}, {"tau": 0.05}
"""How a target network keeps up in so few updates: copied every so often, or following at every update."""

Result = Literal["pass", "fail", "note", "skip"]


class Verdict(NamedTuple):
    """What a probe found."""

    probe: str
    result: Result
    measured: str
    hint: str = ""


class Probe(NamedTuple):
    """An environment, what to hold against it, and what a failure points at."""

    kind: Literal["value", "return"]
    hint: str
    truth: Callable[[float], dict[float, float]] = lambda gamma: {}
    """the value of each observation, given the discount"""
    wanted: float = 0.0
    """the mean return of a policy that has learned"""
    binding: bool = True
    """whether missing it is a failure; otherwise it is only noted"""


PROBES: dict[str, Probe] = {
    "constant-value": Probe(
        "value", "look at the value loss, its sign and its optimiser", lambda gamma: {0.0: 1.0}
    ),
    "observed-value": Probe(
        "value",
        "look at how observations and gradients go through the network",
        lambda gamma: {-1.0: -1.0, 1.0: 1.0},
    ),
    "discounting": Probe(
        "value", "look at discounting and at the returns", lambda gamma: {0.0: gamma, 1.0: 1.0}
    ),
    "action-reward": Probe(
        "return", "look at the advantage and the policy loss, first of all its sign", wanted=0.9
    ),
    "observed-action": Probe(
        "return", "look at how observations, actions and advantages are kept together in batches", wanted=0.9
    ),
    "action-reward-continuous": Probe(
        "return", "look at the log-probability of continuous actions", wanted=-0.05
    ),
    "observed-action-continuous": Probe(
        "return", "look at the log-probability of continuous actions in batches", wanted=-0.05
    ),
    "truncation": Probe(
        "value",
        "the value stops at a time limit: right for Monte-Carlo returns, a mistake where it is bootstrapped",
        lambda gamma: {0.0: 1.0 / (1.0 - gamma)},
        binding=False,
    ),
}


def run_probe(algorithm: Any, name: str, seed: int = 0, given: Mapping[str, Any] | None = None) -> Verdict:
    """Trains an algorithm class on one probe and holds what it learned against the right answer."""
    probe = PROBES[name]
    env = registry.make(f"probe/{name}")
    values = settings_for(algorithm) | dict(given or {})
    spec = dataclasses.replace(env.spec, rows=ROWS)
    try:
        algo = algorithm(spec, from_mapping(algorithm.Config, values))
        if hasattr(algo, "check"):
            algo.check()
    except SpaceMismatch as error:
        return Verdict(name, "skip", str(error))
    if probe.kind == "value" and not hasattr(algo, "value"):
        return Verdict(name, "skip", "it has no value(state, obs)")
    driver = Fused(algo, env, ROWS, (seed,))
    driver.reschedule(float(ITERATIONS))
    driver.advance(ITERATIONS)
    if not all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(driver.train_state())):
        return Verdict(name, "fail", "a parameter is not finite", "look for a logarithm or division of zero")
    if probe.kind == "value":
        return _judge_values(name, probe, driver)
    return _judge_return(name, probe, driver, env, seed)


def settings_for(algorithm: Any) -> dict[str, Any]:
    """The probes' settings that an algorithm has."""
    known = {field.name: field.default for field in dataclasses.fields(algorithm.Config)}
    wanted = SETTINGS
    if "buffer_size" in known:
        wanted = REPLAYED | (COPIED if known.get("tau") == 1.0 else FOLLOWING)
    return {key: value for key, value in wanted.items() if key in known}


def localise(algorithm: str, verdicts: Sequence[Verdict]) -> str:
    """One sentence: the first probe that fails isolates the broken part, since all before it work."""
    passed = [verdict.probe for verdict in verdicts if verdict.result == "pass"]
    first = next((verdict for verdict in verdicts if verdict.result == "fail"), None)
    works = f" ({', '.join(passed)} work)" if passed else ""
    if first is not None:
        return f"{algorithm} fails first at {first.probe}{works}: {first.hint}. Measured: {first.measured}."
    if not passed:
        return f"{algorithm} was examined by no probe: none fits its actions or values."
    noted = [verdict for verdict in verdicts if verdict.result == "note"]
    more = "".join(f" Noted at {verdict.probe}: {verdict.hint}." for verdict in noted)
    return f"{algorithm} passes {len(passed)} probes: {', '.join(passed)}.{more}"


def _judge_values(name: str, probe: Probe, driver: Fused) -> Verdict:
    """Learned values beside the true ones; the tolerance grows with their size."""
    truth = probe.truth(float(getattr(driver.algo.config, "gamma", SETTINGS["gamma"])))
    obs = np.array(list(truth), np.float32)[:, None]
    found = np.asarray(driver.algo.value(driver.train_state(), jnp.asarray(obs)))
    right = np.array(list(truth.values()))
    text = ", ".join(
        f"V({o:g}) = {v:.3f} (want {r:.3f})" for o, v, r in zip(truth, found, right, strict=True)
    )
    if np.all(np.abs(found - right) <= ENOUGH * np.maximum(1.0, np.abs(right))):
        return Verdict(name, "pass", text)
    return Verdict(name, "fail" if probe.binding else "note", text, probe.hint)


def _judge_return(name: str, probe: Probe, driver: Fused, env: Any, seed: int) -> Verdict:
    """The mean return of the greedy policy beside the one wanted."""
    weights = driver.algo.policy(driver.train_state())
    score = evaluate(driver.algo, weights, env, 256, seed).mean
    text = f"mean return {score:.3f} (want ≥ {probe.wanted:g})"
    return Verdict(name, "pass" if score >= probe.wanted else "fail", text, probe.hint)
