"""One update from SB3's weights, optimiser state, rollout and minibatch order ends at SB3's weights.

Where definitions coincide, the rollout itself, its advantages and the update agree to 1e-5.

The fixtures are written by benchmarks/peers/fixture_sb3.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import agent, quick
from jax.flatten_util import ravel_pytree

from sparring import actor
from sparring.algos import ppo
from sparring.algos.ppo import gradient
from sparring.envs import registry
from sparring.envs.classic.cartpole import CartPole
from sparring.envs.classic.pendulum import Pendulum
from sparring.nets import policy
from sparring.nets.policy import Choice
from sparring.ops import distributions, optim
from sparring.ops.minibatch import Epoch
from sparring.types import Batch, Behaviour, Transition

FOLDER = Path(__file__).parents[1] / "golden" / "sb3"
ROWS = 4
NETS: dict[str, Any] = {"pi": (16, 8), "vf": (8, 16), "ent_coef": 0.01, "gae_lambda": 0.9}
PPO = {**NETS, "n_steps": 32, "batch_size": 32, "n_epochs": 3}


def layers(nets: Any) -> list[Any]:
    """Our dense layers in the order of SB3's names."""
    return [*nets.actor.body.layers, nets.actor.head.dense, *nets.critic.body.layers, nets.critic.value]


NAMES = [
    "mlp_extractor.policy_net.0",
    "mlp_extractor.policy_net.2",
    "action_net",
    "mlp_extractor.value_net.0",
    "mlp_extractor.value_net.2",
    "value_net",
]


def load(nets: Any, data: Any, prefix: str) -> Any:
    """Our networks with SB3's numbers; torch keeps matrices transposed."""
    for index, name in enumerate(NAMES):
        nets = eqx.tree_at(
            lambda n, i=index: (layers(n)[i].weight, layers(n)[i].bias),
            nets,
            (jnp.asarray(data[f"{prefix}.{name}.weight"].T), jnp.asarray(data[f"{prefix}.{name}.bias"])),
        )
    if nets.actor.head.log_std is None:
        return nets
    return eqx.tree_at(lambda n: n.actor.head.log_std, nets, jnp.asarray(data[f"{prefix}.log_std"]))


def rollout(data: Any, discrete: bool) -> Transition:
    action = data["action"].reshape(*data["reward"].shape, -1)
    drawn = action[..., 0].astype(np.int32) if discrete else action
    fields = {name: data[name] for name in ("obs", "reward", "terminated", "truncated", "next_obs")}
    extras = Choice(data["log_prob"], None if discrete else drawn)
    return jax.tree.map(jnp.asarray, Transition(action=drawn, extras=extras, **fields))


def flat(nets: Any) -> Any:
    return ravel_pytree(nets)[0]


@pytest.mark.parametrize(
    ("case", "env", "more"),
    [("ppo-discrete", CartPole(), {"clip_range_vf": 0.3}), ("ppo-box", Pendulum(), {})],
)
def test_ppo(case, env, more):
    with np.load(FOLDER / f"{case}.npz") as file:
        data = dict(file)
    assert data["truncated"].any()
    algo = agent("ppo", env, ROWS, **{**PPO, **more})
    c, start = algo.config, jax.jit(algo.init)(jax.random.key(0))
    nets = load(start.nets, data, "before")
    moments = [flat(load(start.nets, data, f"optimiser.{name}")) for name in ("exp_avg", "exp_avg_sq")]
    count = jnp.int32(data["optimiser.step.value_net.bias"])
    state = start._replace(
        nets=nets, optimiser=start.optimiser._replace(count=count, mu=moments[0], nu=moments[1])
    )
    samples, returns, _ = jax.jit(algo._targets)(c, state, rollout(data, discrete=case == "ppo-discrete"))
    np.testing.assert_allclose(samples.advantage.reshape(-1, ROWS), data["advantage"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(returns.reshape(-1, ROWS), data["returns"], rtol=1e-4, atol=1e-4)
    rule = optim.transform("adam", c.adam_eps)

    @jax.jit
    def step(now: tuple[Any, Any], index: Any) -> tuple[Any, Any]:
        part = jax.tree.map(lambda x: x[index], (samples, returns))
        slope, _ = gradient(ravel_pytree(nets)[1](now[0]), c, None, *part, None)
        return optim.apply(rule, *now, flat(slope), c.learning_rate, c.max_grad_norm)[:2]

    now = (flat(nets), state.optimiser)
    for index in data["order"].reshape(-1, PPO["batch_size"]):
        now = step(now, jnp.asarray(index))
    wanted = flat(load(start.nets, data, "after"))
    moved = float(jnp.linalg.norm(wanted - flat(nets)))
    assert moved > 0.01
    # torch divides by n - 1 where advantages are standardised, which is 1.6 % of their deviation at 32.
    assert float(jnp.linalg.norm(now[0] - wanted)) < 3e-3 * moved


def test_a2c():
    with np.load(FOLDER / "a2c-discrete.npz") as file:
        data = dict(file)
    assert data["truncated"].any()
    algo = agent("a2c", CartPole(), ROWS, n_steps=8, **NETS)
    start = jax.jit(algo.init)(jax.random.key(0))
    nets = load(start.nets, data, "before")
    square = flat(load(start.nets, data, "optimiser.square_avg"))
    state = start._replace(nets=nets, optimiser=start.optimiser._replace(nu=square))
    new, _ = jax.jit(algo.update)(state, Batch(rollout(data, discrete=True)), jax.random.key(1))
    wanted = flat(load(start.nets, data, "after"))
    moved = float(jnp.linalg.norm(wanted - flat(nets)))
    assert moved > 0.01
    assert float(jnp.linalg.norm(flat(new.nets) - wanted)) < 1e-3 * moved


@pytest.mark.parametrize(
    ("case", "env_id", "limit"), [("agree-discrete", "CartPole-v1", 22), ("agree-box", "Pendulum-v1", 20)]
)
def test_rollout_advantages_and_update_agree(case, env_id, limit, monkeypatch):
    """From the same weights, seeds, noise and order of minibatches everything agrees to 1e-5."""
    with np.load(FOLDER / f"{case}.npz") as file:
        data = dict(file)
    assert data["truncated"].any()
    assert data["terminated"].any() == (case == "agree-discrete")
    world = registry.make(f"gym:{env_id}", n_envs=1, time_limit=limit, backend="inline")
    settings = {**NETS, "n_steps": 64, "batch_size": 16, "n_epochs": 4, "normalize_advantage": "false"}
    algo = agent("ppo", world, 1, **settings)
    start = jax.jit(algo.init)(jax.random.key(0))
    moments = [flat(load(start.nets, data, f"optimiser.{name}")) for name in ("exp_avg", "exp_avg_sq")]
    count = jnp.int32(data["optimiser.step.value_net.bias"])
    before = start._replace(
        nets=load(start.nets, data, "before"),
        optimiser=start.optimiser._replace(count=count, mu=moments[0], nu=moments[1]),
    )
    rollout = played(algo, before, world, data["noise"], monkeypatch)
    sample = policy.drawn(rollout)
    for name, ours in {**rollout._asdict(), "action": sample, "log_prob": rollout.extras.log_prob}.items():
        if name in data:
            theirs = data[name].reshape(ours.shape)
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5, err_msg=name)

    samples, returns, _ = quick(algo._targets)(algo.config, before, rollout)
    for ours, name in ((samples.value, "value"), (samples.advantage, "advantage"), (returns, "returns")):
        np.testing.assert_allclose(ours, data[name][:, 0], rtol=1e-5, atol=1e-5, err_msg=name)

    order = jnp.asarray(data["order"].reshape(4, -1, 16))
    monkeypatch.setattr(ppo, "epochs", lambda *_: Epoch(order, None))
    after, _ = quick(algo.update)(before, Batch(rollout), jax.random.key(0))
    wanted = flat(load(start.nets, data, "after"))
    assert float(jnp.max(jnp.abs(wanted - flat(before.nets)))) > 1e-3
    np.testing.assert_allclose(flat(after.nets), wanted, rtol=0, atol=1e-5)


def played(
    algo: Any, state: Any, world: Any, noise: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> Transition:
    """A rollout in the environment itself, with torch's noise: normals, or q of the largest p / q."""
    given: list[Any] = []
    monkeypatch.setattr(distributions, "normal", lambda key, shape: given.pop().reshape(shape))
    monkeypatch.setattr(distributions, "gumbel", lambda key, shape: -jnp.log(given.pop()).reshape(shape))

    @quick
    def decide(weights: Any, now: Any, lots: Any) -> Any:
        given.append(lots)
        return actor.act(algo, weights, now, Behaviour(), jax.random.key(0))

    timestep = world.reset(0)
    now, weights, steps = actor.start(algo, timestep), algo.policy(state), []
    for lots in noise:
        action, extras, carry = decide(weights, now, lots)
        assert not given
        timestep = world.step(np.asarray(action))
        steps.append(actor.transition(now, action, extras, timestep))
        now = actor.observe(now, carry, timestep)
    world.close()
    return jax.tree.map(lambda *x: jnp.asarray(np.stack(x)), *steps)
