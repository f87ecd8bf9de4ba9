"""A policy of SB3's as an agent of ours: the same numbers under our names."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from sparring.config import from_mapping
from sparring.model import Agent, algorithm_class
from sparring.runs import tree
from sparring.sb3.handover import Arrays, Handover
from sparring.spaces import Box, EnvSpec, MultiDiscrete

EPSILON = 1e-8
"""what our normaliser adds to a variance"""
PREFIX = {"ppo": "actor/", "a2c": "actor/", "sac": "policy/actor/", "dqn": "nets/", "td3": ""}
HEAD = {"dqn": "advantage", "td3": "output"}


def agent(given: Handover, spec: EnvSpec) -> Agent:
    """An agent that acts as the model does."""
    spec = dataclasses.replace(spec, rows=1)
    cls = algorithm_class(given.algorithm)
    algo = cls(spec, from_mapping(cls.Config, settings(given, cls.Config)))
    template = jax.eval_shape(lambda key: algo.policy(algo.init(key)), jax.random.key(0))
    return Agent(algo, tree.unflatten(template, named(given, spec)), given.algorithm)


def settings(given: Handover, config: Any) -> dict[str, Any]:
    """Our settings for the model; what only training needs is taken over where it is a plain number."""
    values: dict[str, Any] = {
        name: value for name, value in given.settings.items() if name in config.__dataclass_fields__
    }
    values |= {"network": "mlp", "activation": given.activation}
    values["net_arch" if given.algorithm == "dqn" else "pi"] = given.pi
    if given.normalised is not None:
        values |= {"normalize_obs": True, "clip_obs": given.normalised.clip}
    match given.algorithm:
        case "ppo" | "a2c":
            values |= {"use_sde": given.use_sde, "sde_sample_freq": given.sde_sample_freq}
        case "dqn":
            rate = given.exploration_rate
            values |= {"exploration_initial_eps": rate, "exploration_final_eps": rate}
        case "td3":
            values["noise"] = "none"  # SB3 adds noise in training only, never in `predict`
    return values


def named(given: Handover, spec: EnvSpec) -> Arrays:
    """The model's numbers under the paths of our policy; torch keeps matrices transposed."""
    prefix, head = PREFIX[given.algorithm], HEAD.get(given.algorithm, "head/dense")
    found: Arrays = {}
    for index in range(len(given.pi)):
        found[f"{prefix}body/layers/{index}/weight"] = given.weights[f"body.{index}.weight"].T
        found[f"{prefix}body/layers/{index}/bias"] = given.weights[f"body.{index}.bias"]
    found[f"{prefix}{head}/weight"] = given.weights["head.weight"].T
    found[f"{prefix}{head}/bias"] = given.weights["head.bias"]
    if "log_std" in given.weights:
        found[f"{prefix}head/log_std"] = given.weights["log_std"]
    if "log_std.weight" in given.weights:
        found[f"{prefix}head/log_std/weight"] = given.weights["log_std.weight"].T
        found[f"{prefix}head/log_std/bias"] = given.weights["log_std.bias"]
    if isinstance(spec.observation, Box) and spec.observation.dtype == "uint8":
        first = f"{prefix}body/layers/0/weight" if given.pi else f"{prefix}{head}/weight"
        found[first] = found[first] * np.float32(
            255.0
        )  # SB3 shows bytes as they are, we show them from 0 to 1
    if isinstance(spec.action, MultiDiscrete):
        found |= _padded(found, f"{prefix}{head}", spec.action.sizes)
    found |= _around(given)
    return {name: np.asarray(array, order="C") for name, array in found.items()}


def _padded(found: Arrays, head: str, sizes: tuple[int, ...]) -> Arrays:
    """The last layer with every branch as wide as the widest."""
    columns = np.concatenate([np.arange(n) + branch * max(sizes) for branch, n in enumerate(sizes)])
    weight, bias = found[f"{head}/weight"], found[f"{head}/bias"]
    wide = np.zeros((weight.shape[0], len(sizes) * max(sizes)), np.float32)
    wide[:, columns] = weight
    more = np.zeros(wide.shape[1], np.float32)
    more[columns] = bias
    return {f"{head}/weight": wide, f"{head}/bias": more}


def _around(given: Handover) -> Arrays:
    """What acting needs beside the networks."""
    found: dict[str, Any] = {}
    within = "policy/" if given.algorithm == "sac" else ""
    if given.normalised is not None:
        known = given.normalised
        count = max(known.samples, 2.0)
        variance = known.variance + (known.epsilon - EPSILON)  # ours is fixed
        found |= {
            f"{within}moments/count": count,
            f"{within}moments/mean/": known.mean,
            f"{within}moments/m2/": variance * count,
            f"{within}clip": known.clip,
        }
    match given.algorithm:
        case "dqn":
            found["epsilon"] = given.exploration_rate
        case "td3":
            found["std"] = 0.0
    made = {name: np.asarray(value, np.float32) for name, value in found.items()}
    return made if given.algorithm not in ("sac", "td3") else {**made, "random": np.asarray(False)}
