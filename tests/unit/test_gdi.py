"""GDI: the dueling structure, the mixture that acts, and what one update learns from."""

from __future__ import annotations

import importlib.resources
import tomllib
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import agent, quick

from sparring.algos import gdi
from sparring.algos.gdi import GDI, GDIConfig
from sparring.config import from_mapping
from sparring.envs import probes, registry
from sparring.envs.classic.cartpole import CartPole
from sparring.errors import ConfigError
from sparring.nets import policies
from sparring.nets.policies import Judged
from sparring.spaces import Box, Discrete, EnvSpec, MultiDiscrete, event_shape
from sparring.types import Behaviour, Transition, View

ROWS = 3


def made(**settings: Any) -> GDI:
    env = registry.make("CartPole-v1", n_envs=ROWS)
    return GDI(replace(env.spec, rows=ROWS), GDIConfig(**{"net_arch": (16,), **settings}), 10.0)


def judged(advantage: Any, value: Any) -> Judged:
    """One head and one branch."""
    return Judged(jnp.float32([value]), jnp.float32(advantage)[None, None])


def test_casa_by_numbers() -> None:
    heads = judged([1.0, 0.0, -1.0], 0.5)
    log_pi = policies.log_policy(heads.advantage, jnp.ones(1))
    assert np.exp(log_pi)[0, 0] == pytest.approx([0.6652, 0.2447, 0.0900], abs=1e-4)
    q = [float(policies.q_of(heads, log_pi, jnp.int32([a]))[0]) for a in range(3)]
    assert q == pytest.approx([0.9248, -0.0752, -1.0752], abs=1e-4)
    assert float(np.exp(log_pi)[0, 0] @ np.asarray(q)) == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize("sizes", [(4,), (3, 2)])
def test_the_policy_expects_v_of_q(sizes: tuple[int, ...]) -> None:
    """E_π Q = V to 1e-6 over all joint choices, for one branch and for several."""
    rng = np.random.default_rng(0)
    table = np.full((2, len(sizes), max(sizes)), policies.ILLEGAL, np.float32)
    for d, size in enumerate(sizes):
        table[:, d, :size] = rng.normal(size=(2, size))
    heads = Judged(jnp.float32([0.3, -2.0]), jnp.asarray(table))
    log_pi = policies.log_policy(heads.advantage, jnp.full(2, 2.0))
    mean = np.zeros(2)
    for joint in np.ndindex(*sizes):
        choice = jnp.int32(joint)
        mean += np.exp(policies.taken(log_pi, choice)) * np.asarray(policies.q_of(heads, log_pi, choice))
    assert mean == pytest.approx([0.3, -2.0], abs=1e-6)


def test_q_and_policy_move_the_same_logits_the_same_way() -> None:
    """dQ(a)/dA = τ · d log π(a)/dA, and neither touches V."""
    tau = 0.5
    advantage = jnp.float32(np.random.default_rng(1).normal(size=(1, 2, 3)))
    choice = jnp.int32([2, 0])

    def q(a: Any, v: Any) -> Any:
        log_pi = policies.log_policy(a, jnp.full(1, 1.0 / tau))
        return policies.q_of(Judged(v, a), log_pi, choice)[0]

    def log_p(a: Any) -> Any:
        return policies.taken(policies.log_policy(a, jnp.full(1, 1.0 / tau)), choice)[0]

    by_q, by_v = jax.grad(q, (0, 1))(advantage, jnp.ones(1))
    assert np.asarray(by_q) == pytest.approx(tau * np.asarray(jax.grad(log_p)(advantage)), abs=1e-6)
    assert float(by_v[0]) == 0.0


@pytest.mark.parametrize(("reward", "first", "second"), [
    (1.0, 1.386, 0.190), (-1.0, -0.693, -0.190), (100.0, 9.230, 2.270), (-100.0, -4.615, -2.270),
])  # fmt: skip
def test_shaped_rewards_by_numbers(reward: float, first: float, second: float) -> None:
    seen = gdi.shaped(GDIConfig(), jnp.float32(reward), 2)
    assert np.asarray(seen) == pytest.approx([first, second], abs=1e-3)


def test_what_is_stored_is_the_mixture_that_acted() -> None:
    algo = made()
    state = algo.init(jax.random.key(0))
    nets = jax.tree.map(lambda x: x * 3.0, state.nets)  # far from uniform
    weights = algo.policy(state._replace(nets=nets))
    obs = jnp.float32(np.random.default_rng(2).normal(size=(ROWS, 4)))
    behaviour = algo.behaviour(jnp.float32([[3.0, 9.0, 0.2], [0.0, 0.0, 0.7], [50.0, 1.0, 1.0]]))
    action, extras, _ = algo.act(weights, algo.carry(ROWS), View(obs), behaviour, jax.random.key(1))
    heads = weights.nets(weights.nets.trunk.torso(obs)).advantage[:, :, 0]

    def soft(x: Any) -> Any:
        e = np.exp(x - x.max())
        return e / e.sum()

    for row, (one, two, epsilon) in enumerate([(3.0, 9.0, 0.2), (0.0, 0.0, 0.7), (50.0, 1.0, 1.0)]):
        mu = epsilon * soft(np.asarray(heads[row, 0]) * one) + (1 - epsilon) * soft(
            np.asarray(heads[row, 1]) * two
        )
        assert np.exp(extras.log_mu[row]) == pytest.approx(mu[int(action[row])], abs=1e-5)


def test_what_the_heads_said_is_noted() -> None:
    """V and A of both heads and the whole behaviour, as the actor saw them; the learner's V has not moved."""
    algo = made(record_heads=True, sequence_length=20)
    state = quick(algo.init)(jax.random.key(0))
    weights = algo.policy(state)
    obs = jnp.float32(np.random.default_rng(2).normal(size=(ROWS, 4)))
    behaviour = algo.behaviour(jnp.float32([[3.0, 9.0, 0.2]] * ROWS))
    action, extras, _ = algo.act(weights, algo.carry(ROWS), View(obs), behaviour, jax.random.key(1))
    heads = weights.nets(weights.nets.trunk.torso(obs))
    np.testing.assert_allclose(extras.noted.value, heads.value, rtol=1e-6)
    np.testing.assert_allclose(extras.noted.advantage, heads.advantage, rtol=1e-6)
    np.testing.assert_allclose(extras.noted.mu.sum(axis=-1), 1.0, rtol=1e-6)
    chosen = extras.noted.mu[np.arange(ROWS), 0, np.asarray(action)]
    np.testing.assert_allclose(np.log(chosen), extras.log_mu, rtol=1e-5)
    batch = one_batch(algo, state, length=5)
    _, report = quick(algo.update)(state, batch, jax.random.key(3))
    assert float(report.metrics["train/value_drift"]) > 0  # its batch has other observations


def test_greedy_by_head_or_by_the_sum() -> None:
    table = jnp.float32([[[[3.0, 0.0, 2.0]], [[0.0, 3.0, 2.0]]]])
    heads = Judged(jnp.zeros((1, 2)), table)
    assert int(gdi.greedy(heads, jnp.int32([0]))[0, 0]) == 0
    assert int(gdi.greedy(heads, jnp.int32([1]))[0, 0]) == 1
    assert int(gdi.greedy(heads, None)[0, 0]) == 2


def test_an_uniform_behaviour_is_uniform_over_what_is_legal() -> None:
    advantage = jnp.float32([[[5.0, policies.ILLEGAL, -3.0]]])
    assert np.exp(policies.log_policy(advantage, jnp.zeros(1)))[0, 0] == pytest.approx([0.5, 0.0, 0.5])


@pytest.mark.parametrize(("variant", "heads", "names"), [
    ("h3", 2, ("inverse_tau_1", "inverse_tau_2", "epsilon")),
    ("i3", 1, ("inverse_tau_1", "inverse_tau_2", "epsilon")),
    ("lbc", 3, ("inverse_tau_1", "inverse_tau_2", "inverse_tau_3", "omega_1", "omega_2", "omega_3")),
])  # fmt: skip
def test_variants(variant: str, heads: int, names: tuple[str, ...]) -> None:
    algo = made(variant=variant, policies=3 if variant == "lbc" else 2)
    assert (algo.heads, algo.space.names) == (heads, names)
    state = algo.init(jax.random.key(0))
    assert state.nets.heads == heads
    point = algo.controller.start(jax.random.key(1), ROWS).choice.point
    behaviour = algo.behaviour(point)
    assert np.asarray(behaviour.mixture).sum(axis=1) == pytest.approx(np.ones(ROWS), abs=1e-6)
    _, extras, _ = algo.act(
        algo.policy(state), algo.carry(ROWS), View(jnp.zeros((ROWS, 4))), behaviour, jax.random.key(2)
    )
    assert (np.exp(np.asarray(extras.log_mu)) > 0.2).all()  # it starts near uniform over two actions


def test_a_gamma_index_lets_one_policy_act() -> None:
    algo = made(variant="lbc", policies=3, gammas=(0.9, 0.99, 0.999), controller_space=("gamma_index=1|2|3",))
    algo.check()
    behaviour = algo.behaviour(jnp.float32([[1.0], [2.0], [3.0]]))
    assert np.asarray(behaviour.mixture).tolist() == np.eye(3).tolist()
    assert np.isnan(np.asarray(behaviour.sharpness)).all()  # of the target policies
    state = algo.init(jax.random.key(0))
    spread = eqx.tree_at(lambda s: s.nets.advantage.weight, state, 50.0 * state.nets.advantage.weight)
    weights, obs = algo.policy(spread), jax.random.normal(jax.random.key(4), (3, 4))
    _, extras, _ = algo.act(weights, algo.carry(3), View(obs), behaviour, jax.random.key(2))
    for head in range(3):
        alone = algo.behaviour(jnp.full((3, 1), head + 1.0))
        _, other, _ = algo.act(weights, algo.carry(3), View(obs), alone, jax.random.key(2))
        # rows draw their own numbers, so the row that chose this head does what all of them do at it
        assert float(extras.log_mu[head]) == float(other.log_mu[head])
    assert len({float(x) for x in extras.log_mu}) > 1


@pytest.mark.parametrize(("space", "index", "match"), [
    (("gamma_index=1|3",), (), "2 policies"),
    (("gamma_index=1|2", "epsilon:0:1:4"), (), "mixes several"),
    (("gamma_index=1|2",), (3.0,), "2 policies"),
    (("gamma_index:1:2:4",), (), "whole"),
])  # fmt: skip
def test_a_gamma_index_of_no_policy_is_refused(space: Any, index: Any, match: str) -> None:
    chosen = {"controller": "fixed", "controller_index": index} if index else {}
    with pytest.raises(ConfigError, match=match):
        made(controller_space=space, **chosen).check()


def test_no_gradient_of_the_target_reaches_v_from_q() -> None:
    """With only the Q-loss on, the value head does not move."""
    algo = made(v_coef=0.0, pi_coef=0.0, weight_decay=0.0, learning_rate=1e-3, warmup=1)
    state = quick(algo.init)(jax.random.key(0))
    new, _ = quick(algo.update)(state, one_batch(algo, state, length=6), jax.random.key(3))
    assert np.array_equal(new.nets.value.weight, state.nets.value.weight)
    assert not np.array_equal(new.nets.advantage.weight, state.nets.advantage.weight)


def test_a_short_episode_is_learned_from() -> None:
    """An episode of 5 steps in sequences of 20 counts 5 steps, not none."""
    algo = made(sequence_length=20)
    state = quick(algo.init)(jax.random.key(0))
    batch = one_batch(algo, state, length=5)
    assert int(batch.data.mask.sum()) == 5 * batch.data.mask.shape[0]
    _, report = quick(algo.update)(state, batch, jax.random.key(3))
    assert float(report.metrics["train/q_loss_1"]) > 0


def one_batch(algo: GDI, state: Any, length: int) -> Any:
    """Sequences of episodes of so many steps, through the replay."""
    steps = length * 4
    key = jax.random.key(5)
    obs = jax.random.normal(key, (steps + 1, ROWS, *event_shape(algo.spec.observation)))
    view, key = View(obs[0]), jax.random.key(6)
    acting = quick(lambda state: algo.act(algo.policy(state), algo.carry(ROWS), view, Behaviour(), key))
    action, extras, _ = acting(state)
    ends = jnp.broadcast_to((jnp.arange(steps) % length == length - 1)[:, None], (steps, ROWS))
    rollout = Transition(
        obs[:-1],
        jnp.broadcast_to(action, (steps, *action.shape)),
        jnp.ones((steps, ROWS)),
        ends,
        jnp.zeros_like(ends),
        obs[1:],
        jax.tree.map(lambda x: jnp.broadcast_to(x, (steps, *x.shape)), extras),
        first=jnp.roll(ends, 1, axis=0).at[0].set(True),
    )
    replay = algo.replay
    return quick(lambda data: replay.sample(replay.add(replay.init(data), data), jax.random.key(7)))(rollout)


CHOICES = {
    "two branches": (probes.ManyChoices(), {}),
    "numbers in bins": (probes.ObservedActionContinuous(), {"action_bins": (5,)}),
    "one head": (CartPole(), {"variant": "i3"}),
    "three policies": (CartPole(), {"variant": "lbc", "policies": 3, "gammas": (0.9, 0.97, 0.99)}),
}


@pytest.mark.parametrize("case", CHOICES)
def test_one_update_of_every_kind(case: str) -> None:
    """The loss is finite and the weights of every head move."""
    env, settings = CHOICES[case]
    algo = agent("gdi", env, ROWS, learning_starts=1, **settings)
    before = quick(algo.init)(jax.random.key(0))
    after, report = quick(algo.update)(before, one_batch(algo, before, length=6), jax.random.key(3))
    assert np.isfinite(report.metrics["train/loss"])
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after))
    moved = np.asarray(after.nets.value.weight != before.nets.value.weight)
    assert moved.any(axis=0).tolist() == [True] * algo.heads
    moved = np.asarray(after.nets.advantage.weight != before.nets.advantage.weight)
    assert moved.reshape(8, algo.heads, -1).any(axis=(0, 2)).all()


def test_a_reuse_that_whole_updates_cannot_give_is_told() -> None:
    """One row and the default batch learn 64 times from a step; what the warning names gives what is set."""
    spec = registry.make("CartPole-v1", n_envs=1).spec
    one = GDI(replace(spec, rows=1), GDIConfig())
    assert one.reuse == 64.0
    (warning,) = one.check()
    assert "64 times. Choose train_freq=1280, or n_envs=32," in warning
    for rows, settings in ((1, {"train_freq": 1280}), (32, {})):
        fits = GDI(replace(spec, rows=rows), GDIConfig(**settings))
        assert (fits.reuse, fits.check()) == (2.0, [])
    assert GDI(replace(spec, rows=1), GDIConfig(gradient_steps=3)).check() == []  # asked for by number
    assert GDI(replace(spec, rows=25), GDIConfig()).check() == []  # 2.56 instead of 2
    (warning,) = GDI(replace(spec, rows=20), GDIConfig()).check()
    assert "3.2 times" in warning


def test_presets_learn_from_a_step_as_often_as_they_say() -> None:
    text = (importlib.resources.files("sparring.presets") / "gdi.toml").read_text()
    for name, settings in tomllib.loads(text).items():
        given = {key: value for key, value in settings.items() if key != "total_timesteps"}
        like = "Pendulum-v1" if "action_bins" in given else "CartPole-v1"
        spec = replace(registry.make(like, n_envs=1).spec, rows=given.pop("n_envs"))
        config = from_mapping(GDIConfig, given)
        algo = GDI(spec, config)
        assert algo.reuse == pytest.approx(config.sample_reuse, rel=0.05), name
        assert algo.check() == [], name


# -- the loss, beside loops straight from its definition ---------------------------------------------------

COUNT, LENGTH = 4, 4
WEIGHT = np.array([1.0, 0.5, 0.25, 0.8], np.float32)


def stored(algo: GDI, sizes: tuple[int, ...], burn_in: int) -> Transition:
    """Four sequences: inside an episode, terminated with padding, truncated with padding, and one whose
    episode starts where the block does and is truncated at its last step."""
    random, steps = np.random.default_rng(0), burn_in + LENGTH
    begin, end = np.array([0, 0, 0, burn_in]), burn_in + np.array([LENGTH, 3, 2, LENGTH])
    place = np.arange(steps)
    last = place == end[:, None] - 1
    walk = random.normal(size=(COUNT, steps + 1, 3)).astype(np.float32)
    choice = np.stack([random.integers(0, size, (COUNT, steps)) for size in sizes], axis=-1)
    action = choice if len(sizes) > 1 else choice[..., 0]
    core = jax.eval_shape(lambda: algo.carry(COUNT).core)
    data = Transition(
        walk[:, :-1],
        action.astype(np.int32),
        random.normal(0, 3, (COUNT, steps)).astype(np.float32),
        last & (np.arange(COUNT) == 1)[:, None],
        last & (np.arange(COUNT) >= 2)[:, None],
        walk[:, 1:],
        gdi.Acted(np.log(random.uniform(0.05, 0.9, (COUNT, steps))).astype(np.float32)),
        first=(place == begin[:, None]) & (np.arange(COUNT) == 3)[:, None],
        elapsed=random.integers(1, 4, (COUNT, steps)) if len(sizes) > 1 else None,
        mask=(place >= begin[:, None]) & (place < end[:, None]),
        core=jax.tree.map(lambda s: random.normal(size=s.shape).astype(s.dtype), core),
    )
    return jax.tree.map(jnp.asarray, data)


@quick
def one_look(nets: Any, memory: Any, obs: Any, first: Any) -> tuple[Any, Any, Any]:
    """V and A of one observation, and the memory after it."""
    features, memory = nets.trunk.step(memory, obs[None], first[None])
    told = nets(features)
    return told.value[0], told.advantage[0], memory


def seen_by_heads(nets: Any, data: Transition, n: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """V, A and V of what followed at every valid step of a sequence, one step of the core after another."""
    memory = jax.tree.map(lambda x: x[n : n + 1], data.core)
    told = []
    for t in range(data.mask.shape[1]):
        if not data.mask[n, t]:
            continue
        value, advantage, memory = one_look(nets, memory, data.obs[n, t], data.first[n, t])
        after, _, _ = one_look(nets, memory, data.next_obs[n, t], jnp.zeros((), bool))
        told.append(tuple(np.asarray(x, np.float64) for x in (value, advantage, after)))
    return told


def shaped_by_hand(name: str, r: float) -> float:
    size = np.log(1 + abs(r))
    return {"none": r, "optimistic": 2 * size if r >= 0 else -size}[name]


def by_definition(nets: Any, c: GDIConfig, data: Transition, sizes: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Losses of every head and their gradients by the biases of V and A (eqs. 1 to 8), in 64 bits."""
    parts = {name: np.zeros(2) for name in ("v", "q", "pi", "value bias")}
    by_advantage = np.zeros((2, len(sizes), max(sizes)))
    counted = int(np.asarray(data.mask)[:, c.burn_in :].sum())
    x = jax.tree.map(np.asarray, data._replace(core=None))
    for n in range(COUNT):
        heads = seen_by_heads(nets, data, n)
        steps = [t for t in range(x.mask.shape[1]) if x.mask[n, t]]
        block = [(t, heads[i]) for i, t in enumerate(steps) if t >= c.burn_in]
        for h in range(2):
            gamma, name = c.gammas[h], c.shaping[h]
            vs_next, v_ahead, q_ahead, trace_ahead = 0.0, 0.0, 0.0, 0.0  # of the step after this one
            for place, (t, (value, advantage, following)) in reversed(list(enumerate(block))):
                v, follows = value[h], following[h]
                chosen = np.atleast_1d(x.action[n, t])
                log_pi, q, slope = 0.0, v, np.zeros_like(by_advantage[h])
                for d, size in enumerate(sizes):
                    a = advantage[h, d, :size]
                    soft = np.exp(a / c.target_temperature) / np.exp(a / c.target_temperature).sum()
                    log_pi += np.log(soft[chosen[d]])
                    q += a[chosen[d]] - soft @ a
                    slope[d, :size] = np.eye(size)[chosen[d]] - soft
                ratio = np.exp(log_pi - x.extras.log_mu[n, t])
                rho, clipped = min(c.rho_bar, ratio), min(c.c_bar, ratio)
                r = shaped_by_hand(name, c.reward_scale * x.reward[n, t])
                lasted = 1 if x.elapsed is None else x.elapsed[n, t]
                disc = 0.0 if x.terminated[n, t] else gamma**lasted
                goes_on = place + 1 < len(block)  # sequences are of one episode
                vs = v + rho * (r + disc * follows - (q if c.doubly_robust else v))
                if goes_on:
                    vs += disc * c.v_trace * clipped * (vs_next - v_ahead)
                adv = r + disc * (vs_next if goes_on else follows) - v
                target = r + disc * (follows + (trace_ahead * q_ahead if goes_on else 0.0))
                w = WEIGHT[n] / counted
                parts["v"][h] += w * (vs - v) ** 2
                parts["q"][h] += w * (target - q) ** 2
                parts["pi"][h] -= w * rho * adv * log_pi
                parts["value bias"][h] -= w * c.v_coef * 2 * (vs - v)
                pull = c.q_coef * 2 * (target - q) + c.pi_coef * rho * adv / c.target_temperature
                by_advantage[h] -= w * pull * slope
                vs_next, v_ahead, q_ahead, trace_ahead = vs, v, target - q, c.q_trace * clipped
    return {**parts, "advantage bias": by_advantage.reshape(-1)}


@pytest.mark.parametrize(
    ("core", "burn_in", "sizes", "robust"),
    [("none", 0, (3, 2), False), ("none", 0, (3, 2), True), ("gru", 1, (3,), False)],
)
def test_the_loss_by_its_definition(core: str, burn_in: int, sizes: tuple[int, ...], robust: bool) -> None:
    """Both heads' losses, their weighted sum, and what reaches V and A, where no target may be moved."""
    space = Discrete(*sizes) if len(sizes) == 1 else MultiDiscrete(sizes)
    config = GDIConfig(
        net_arch=(8,), core=core, core_size=5, burn_in=burn_in, sequence_length=LENGTH, gammas=(0.95, 0.6),
        shaping=("optimistic", "none"), reward_scale=0.5, target_temperature=0.7, rho_bar=1.2, c_bar=0.9,
        v_trace=0.8, q_trace=0.95, v_coef=1.5, q_coef=3.0, pi_coef=2.0, doubly_robust=robust,
    )  # fmt: skip
    algo = GDI(EnvSpec("made-up", Box((3,), -1.0, 1.0), space, rows=COUNT), config, 10.0)
    nets = quick(algo.init)(jax.random.key(0)).nets
    random = np.random.default_rng(1)
    far = jnp.asarray(random.normal(size=nets.advantage.weight.shape), jnp.float32)  # policies far from even
    nets = eqx.tree_at(lambda n: n.advantage.weight, nets, far)
    data = stored(algo, sizes, burn_in)

    @quick
    def assembled(nets: Any) -> Any:
        objective = lambda nets: gdi.loss(nets, config, None, None, data, jnp.asarray(WEIGHT))  # noqa: E731
        return jax.value_and_grad(objective, has_aux=True)(nets)

    (total, (error, metrics)), slope = assembled(nets)
    right = by_definition(nets, config, data, sizes)
    for part in ("v", "q", "pi"):
        got = [float(metrics[f"train/{part}_loss_{h}"]) for h in (1, 2)]
        assert got == pytest.approx(right[part].tolist(), rel=1e-4), part
    whole = (1.5 * right["v"] + 3.0 * right["q"] + 2.0 * right["pi"]).sum()
    assert float(total) == pytest.approx(whole, rel=1e-4)
    assert np.asarray(slope.value.bias) == pytest.approx(right["value bias"], rel=1e-3, abs=1e-5)
    assert np.asarray(slope.advantage.bias) == pytest.approx(right["advantage bias"], rel=1e-3, abs=1e-5)
    assert error.shape == (LENGTH, COUNT, 2)


@pytest.mark.parametrize(("settings", "words"), [
    ({"shaping": ("optimistc",)}, "optimistic"),
    ({"policies": 3}, "lbc"),
    ({"variant": "lbc", "policies": 3, "gammas": (0.9,)}, "3 heads"),
    ({"sharpness_log": True}, "sharpness_range"),
    ({"controller": "fixed"}, "inverse_tau_1"),
    ({"gradient_steps": 0}, "gradient_steps must be at least 1, or -1, got 0"),
    ({"pi_coef": -3.0}, "pi_coef must be at least 0, got -3"),
    ({"warmup": -5}, "warmup must be"),
    ({"gradient_steps": -2}, "gradient_steps must be at least 1, or -1, got -2"),
    ({"controller": "fixed", "controller_index": (10.0, 10.0, 2.0)}, "epsilon = 2, which must be between"),
    ({"controller_space": ("epsilon:0:3:6",)}, "epsilon = 1.5, which must be between 0 and 1"),
    ({"controller_options": ("floor=2",)}, "floor of Thompson must be between 0 and 1"),
    ({"controller_index": (1.0, 1.0, 0.5)}, "controller_index=.."),
])  # fmt: skip
def test_impossible_settings(settings: dict[str, Any], words: str) -> None:
    algo = made(**settings)
    with pytest.raises(ConfigError, match=words):
        algo.check()


def test_settings_without_effect_are_warned_about() -> None:
    quiet = {"gradient_steps": 1}
    (warning,) = made(controller="none", controller_options=("floor=2",), **quiet).check()
    assert "Nothing reads controller_options=('floor=2',)" in warning
    (warning,) = made(shaping=("none", "log", "optimistic"), **quiet).check()
    assert "names 3 rewards, and variant='h3' learns 2: leave optimistic out" in warning
    (warning,) = made(variant="i3", shaping=("none", "log"), **quiet).check()
    assert "variant='i3' learns 1: leave log out" in warning
    for settings in ({"controller": "none"}, {"variant": "i3"}, {"shaping": ("none",)}):
        assert made(**settings, **quiet).check() == []  # the default has two, and i3 takes the first
