"""One update of DQN, SAC and TD3 from SB3's weights, optimiser states, batch and noise ends at SB3's weights.

The fixtures are written by benchmarks/peers/fixture_sb3.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import agent
from jax.flatten_util import ravel_pytree

from sparring.algos import td3
from sparring.envs.classic.cartpole import CartPole
from sparring.envs.classic.pendulum import Pendulum
from sparring.nets.heads import unit_to_bounds
from sparring.nets.sight import Stored
from sparring.ops import distributions
from sparring.types import Batch, Transition

FOLDER = Path(__file__).parents[1] / "golden" / "sb3"
N = 64
NETS = {"pi": (16, 8), "qf": (8, 16)}

Named = dict[str, Callable[[Any], Any]]
"""Where SB3's layers are in a network of ours, by name."""


def q_layers(prefix: str) -> Named:
    each: Named = {f"{prefix}.{2 * i}": lambda n, i=i: n.body.layers[i] for i in range(2)}
    return {**each, f"{prefix}.4": lambda n: n.advantage}


def critic_layers(prefix: str) -> Named:
    found: Named = {}
    for k in range(2):
        for i in range(2):
            found[f"{prefix}.qf{k}.{2 * i}"] = lambda n, k=k, i=i: n.each[k].body.layers[i]
        found[f"{prefix}.qf{k}.4"] = lambda n, k=k: n.each[k].output
    return found


def actor_layers(names: tuple[str, ...], *outputs: Callable[[Any], Any]) -> Named:
    bodies: list[Callable[[Any], Any]] = [lambda n, i=i: n.body.layers[i] for i in range(2)]
    return dict(zip(names, [*bodies, *outputs], strict=True))


SAC_ACTOR = actor_layers(
    ("actor.latent_pi.0", "actor.latent_pi.2", "actor.mu", "actor.log_std"),
    lambda n: n.output.dense,
    lambda n: n.output.log_std,
)


def td3_actor(prefix: str) -> Named:
    return actor_layers(tuple(f"{prefix}.mu.{i}" for i in (0, 2, 4)), lambda n: n.output)


def load(net: Any, data: Any, prefix: str, named: Named) -> Any:
    """Our network with SB3's numbers; torch keeps matrices transposed."""
    for name, find in named.items():
        numbers = (
            jnp.asarray(data[f"{prefix}.{name}.weight"].T),
            jnp.asarray(data[f"{prefix}.{name}.bias"]),
        )
        net = eqx.tree_at(lambda n, find=find: (find(n).weight, find(n).bias), net, numbers)
    return net


def optimiser(state: Any, net: Any, data: Any, named: Named) -> Any:
    """Adam's state with SB3's numbers."""
    step = data[f"optimiser.step.{next(iter(named))}.bias"]
    return state._replace(
        count=jnp.int32(step),
        mu=load(net, data, "optimiser.exp_avg", named),
        nu=load(net, data, "optimiser.exp_avg_sq", named),
    )


def read(case: str) -> dict[str, np.ndarray]:
    with np.load(FOLDER / f"{case}.npz") as file:
        return dict(file)


def batch(data: Any, action: Any) -> Batch:
    fields = {name: data[name][:, None] for name in ("obs", "reward", "terminated", "truncated", "next_obs")}
    return Batch(jax.tree.map(jnp.asarray, Transition(action=action[:, None], extras=Stored(), **fields)))


def recorded(data: Any, order: tuple[int, ...]) -> Callable[..., Any]:
    """Draws the noise that torch drew, in our order."""
    waiting = [jnp.asarray(data[f"noise.{number}"]) for number in order]

    def normal(key: Any, shape: tuple[int, ...]) -> Any:
        noise = waiting.pop(0)
        assert noise.shape == shape
        return noise

    return normal


def assert_arrived(new: Any, before: Any, after: Any) -> None:
    start, end, wanted = (ravel_pytree(net)[0] for net in (before, new, after))
    moved = float(jnp.linalg.norm(wanted - start))
    assert moved > 1e-3
    assert float(jnp.linalg.norm(end - wanted)) < 1e-3 * moved


def assert_follows(new: Any, before: Any, after: Any) -> None:
    """Targets move by a hundredth of a step: float32's rounding is more of that."""
    start, end, wanted = (ravel_pytree(net)[0] for net in (before, new, after))
    assert float(jnp.linalg.norm(wanted - start)) > 0
    np.testing.assert_allclose(end, wanted, rtol=0, atol=1e-6)


def test_dqn():
    data = read("dqn")
    assert data["terminated"].any()
    settings = {"net_arch": (16, 8), "batch_size": N, "learning_rate": 1e-4, "max_grad_norm": 10.0}
    algo = agent("dqn", CartPole(), 1, **settings)
    start = jax.jit(algo.init)(jax.random.key(0))
    online, target = q_layers("q_net.q_net"), q_layers("q_net_target.q_net")
    before = load(start.nets, data, "before", online)
    state = start._replace(
        nets=before,
        target=load(start.nets, data, "before", target),
        optimiser=optimiser(start.optimiser, start.nets, data, online),
    )
    new, _ = jax.jit(algo.update)(
        state, batch(data, data["action"][:, 0].astype(np.int32)), jax.random.key(0)
    )
    assert_arrived(new.nets, before, load(start.nets, data, "after", online))


def number_batch(algo: Any, data: Any) -> Batch:
    """SB3 keeps actions in [-1, 1]; truncations do not end the value."""
    assert data["truncated"].any()
    assert not data["terminated"].any()
    return batch(data, np.asarray(unit_to_bounds(algo.spec.action, jnp.asarray(data["action"]))))


def test_sac(monkeypatch):
    data = read("sac")
    algo = agent("sac", Pendulum(), 1, **NETS, batch_size=N, learning_rate=3e-4)
    start = jax.jit(algo.init)(jax.random.key(0))
    critics = critic_layers("critic")
    actor, critic = load(start.actor, data, "before", SAC_ACTOR), load(start.critic, data, "before", critics)
    target = load(start.critic, data, "before", critic_layers("critic_target"))
    coefficient = {n: jnp.asarray(data[f"optimiser.{n}.log_ent_coef"][0]) for n in ("exp_avg", "exp_avg_sq")}
    state = start._replace(
        actor=actor,
        critic=critic,
        target=target,
        log_ent_coef=jnp.asarray(data["before.log_ent_coef"][0]),
        actor_optimiser=optimiser(start.actor_optimiser, start.actor, data, SAC_ACTOR),
        critic_optimiser=optimiser(start.critic_optimiser, start.critic, data, critics),
        ent_optimiser=start.ent_optimiser._replace(
            count=jnp.int32(data["optimiser.step.log_ent_coef"]),
            mu=coefficient["exp_avg"],
            nu=coefficient["exp_avg_sq"],
        ),
        updates=jnp.int32(data["updates"]),
    )
    monkeypatch.setattr(distributions, "normal", recorded(data, (1, 0)))
    new, _ = algo.update(state, number_batch(algo, data), jax.random.key(0))
    assert_arrived(new.critic, critic, load(start.critic, data, "after", critics))
    assert_arrived(new.actor, actor, load(start.actor, data, "after", SAC_ACTOR))
    assert_follows(new.target, target, load(start.critic, data, "after", critic_layers("critic_target")))
    assert float(new.log_ent_coef) == pytest.approx(float(data["after.log_ent_coef"][0]), abs=1e-6)
    assert float(data["after.log_ent_coef"][0]) != float(data["before.log_ent_coef"][0])


def test_td3(monkeypatch):
    data = read("td3")
    algo = agent("td3", Pendulum(), 1, **NETS, batch_size=N, learning_rate=1e-3)
    start = jax.jit(algo.init)(jax.random.key(0))
    critics, actors = critic_layers("critic"), td3_actor("actor")
    actor, critic = load(start.actor, data, "before", actors), load(start.critic, data, "before", critics)
    actor_target = load(start.actor, data, "before", td3_actor("actor_target"))
    critic_target = load(start.critic, data, "before", critic_layers("critic_target"))
    state = start._replace(
        actor=actor,
        critic=critic,
        actor_target=actor_target,
        critic_target=critic_target,
        actor_optimiser=optimiser(start.actor_optimiser, start.actor, data, actors),
        critic_optimiser=optimiser(start.critic_optimiser, start.critic, data, critics),
        updates=jnp.int32(data["updates"]),
    )
    monkeypatch.setattr(td3, "normal", recorded(data, (0,)))
    new, _ = algo.update(state, number_batch(algo, data), jax.random.key(0))
    assert_arrived(new.critic, critic, load(start.critic, data, "after", critics))
    assert_arrived(new.actor, actor, load(start.actor, data, "after", actors))
    after = load(start.actor, data, "after", td3_actor("actor_target"))
    assert_follows(new.actor_target, actor_target, after)
    after = load(start.critic, data, "after", critic_layers("critic_target"))
    assert_follows(new.critic_target, critic_target, after)
