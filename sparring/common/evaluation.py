"""evaluate_policy: whole episodes of an agent, as SB3 counts them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparring.envs import registry
from sparring.errors import SparringError

OnStep = Callable[[dict[str, Any], dict[str, Any]], Any]


class BelowThreshold(SparringError, AssertionError):
    """A mean reward that did not reach the threshold it was held against."""


def evaluate_policy(
    model: Any,
    env: Any,
    n_eval_episodes: int = 10,
    deterministic: bool = True,
    render: bool = False,
    callback: OnStep | None = None,
    reward_threshold: float | None = None,
    return_episode_rewards: bool = False,
    warn: bool = True,
) -> tuple[float, float] | tuple[list[float], list[int]]:
    """Mean and deviation of the return over whole episodes, every row playing its share of them.

    Rewards are the environment's own, whatever VecNormalize says. `model` is anything with SB3's `predict`.
    """
    from sparring.common.vec_env import as_vec_env
    from sparring.model import Agent, Model

    venv = model.get_env() if isinstance(model, Model) and env is model.given_env else as_vec_env(env)
    agent = model.policy if isinstance(model, Model) else model
    if isinstance(agent, Agent) and callback is None and not render:
        rewards, lengths = _compiled(agent, venv, n_eval_episodes, deterministic)
    else:
        rewards, lengths = _stepped(model, venv, n_eval_episodes, deterministic, render, callback)
    mean, std = float(np.mean(rewards)), float(np.std(rewards))
    if reward_threshold is not None and mean <= reward_threshold:
        raise BelowThreshold(f"The mean reward {mean:.2f} is not above the threshold {reward_threshold:.2f}.")
    return (rewards, lengths) if return_episode_rewards else (mean, std)


def is_compiled(env: Any) -> bool:
    """Whether a vector environment is a JAX environment, which evaluates in one call and has no infos."""
    from sparring.common.translate import unwrap

    return registry.is_jax(unwrap(env).world)


def _compiled(agent: Any, venv: Any, episodes: int, deterministic: bool) -> tuple[list[float], list[int]]:
    """Our own evaluator: one call for a JAX environment, one jitted call per step otherwise."""
    from sparring.common.translate import unwrap

    base = venv.unwrapped
    seed = base.next_seed() if hasattr(base, "next_seed") else 0
    base.clock = getattr(base, "clock", 0) + 1
    found = agent.evaluate(unwrap(venv).world, episodes, seed, deterministic)
    return [float(r) for r in found.returns], [int(n) for n in found.lengths]


def _stepped(
    model: Any, venv: Any, episodes: int, deterministic: bool, render: bool, callback: OnStep | None
) -> tuple[list[float], list[int]]:
    """SB3's loop, for callbacks, windows and models of any kind."""
    from sparring.model import Agent, Model

    rows = venv.num_envs
    # A fixed share per row: taking whichever episodes end first would favour short ones.
    share = [(episodes + row) // rows for row in range(rows)]
    total, length = np.zeros(rows), np.zeros(rows, int)
    rewards: list[float] = []
    lengths: list[int] = []
    done_by = [0] * rows
    ours = isinstance(model, Agent | Model) and model.spec.masks_actions
    observations, states = venv.reset(), None
    starts = np.ones(rows, bool)
    while any(n < wanted for n, wanted in zip(done_by, share, strict=True)):
        masks = {"action_masks": venv.unwrapped.legal} if ours else {}
        actions, states = model.predict(
            observations, state=states, episode_start=starts, deterministic=deterministic, **masks
        )
        observations, gained, dones, infos = venv.step(actions)
        total += gained
        length += 1
        starts = dones
        for i in range(rows):
            if done_by[i] >= share[i]:
                continue
            if callback is not None:
                callback(
                    {**locals(), "done": bool(dones[i]), "info": infos[i], "reward": gained[i]}, globals()
                )
            if dones[i] and not infos[i].get("lost", False):
                rewards.append(float(total[i]))
                lengths.append(int(length[i]))
                done_by[i] += 1
        total[dones], length[dones] = 0.0, 0
        if render:
            venv.render()
    return rewards, lengths
