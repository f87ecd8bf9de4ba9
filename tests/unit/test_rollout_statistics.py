"""A rollout's statistics are numpy's, with and without places that hold no decision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import agent

from sparring.actor import start_episodes
from sparring.drivers.fused import Fused
from sparring.drivers.statistics import details, of_batch, of_episodes, statistics
from sparring.envs.classic.cartpole import CartPole
from sparring.envs.classic.pendulum import Pendulum
from sparring.metrics.registry import OF_BATCH, SPARSE, SPREAD
from sparring.session import measured, relative_entropy
from sparring.spaces import Box, Discrete, EnvSpec, MultiDiscrete
from sparring.types import Batch, Transition

T, B = 9, 5
random = np.random.default_rng(0)
NUMBERS = EnvSpec("numbers", Box((3,)), Box((2,), (-2.0, 0.0), (2.0, 1.0)))
CHOICES = EnvSpec("choices", Box((3,)), Discrete(3))


def rollout(action: np.ndarray, mask: np.ndarray | None = None) -> Transition:
    ended = random.random((T, B)) < 0.3
    terminated = ended & (random.random((T, B)) < 0.5)
    made = Transition(
        obs=random.normal(size=(T, B, 3)).astype(np.float32),
        action=action,
        reward=np.where(random.random((T, B)) < 0.5, 0.0, random.normal(size=(T, B))).astype(np.float32),
        terminated=terminated,
        truncated=ended & ~terminated,
        next_obs=np.zeros((T, B, 3), np.float32),
        extras=None,
        mask=mask,
    )
    return jax.tree.map(jax.numpy.asarray, made)


def test_of_numbers():
    action = np.clip(random.normal(0.5, 1.5, (T, B, 2)), [-2, 0], [2, 1]).astype(np.float32)
    made = rollout(action)
    got = statistics(NUMBERS, made)
    edge = np.array([0.04, 0.01])
    at_edge = (action <= np.array([-2, 0]) + edge) | (action >= np.array([2, 1]) - edge)
    reward, obs = np.asarray(made.reward), np.asarray(made.obs).reshape(-1, 3)
    wanted = {
        "stats/action_saturation": at_edge.mean(),
        "stats/reward_mean": reward.mean(),
        "stats/reward_std": reward.std(),
        "stats/reward_nonzero": (reward != 0).mean(),
        "stats/terminated_share": made.terminated.sum() / (made.terminated | made.truncated).sum(),
        "stats/obs_std_min": obs.std(0).min(),
        "stats/obs_std_max": obs.std(0).max(),
        "stats/obs_abs_max": np.abs(obs).max(),
    }
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        assert float(got[name]) == pytest.approx(float(value), rel=1e-5), name


def test_places_without_a_decision_do_not_count():
    mask = random.random((T, B)) < 0.6
    made = rollout(random.integers(0, 3, (T, B)).astype(np.int32), mask)
    got = statistics(CHOICES, made)
    counts = np.bincount(np.asarray(made.action)[mask], minlength=3)
    assert float(got["stats/action_top_share"]) == pytest.approx(counts.max() / counts.sum(), rel=1e-6)
    assert float(got["stats/reward_mean"]) == pytest.approx(np.asarray(made.reward)[mask].mean(), rel=1e-5)


def test_details_are_of_each_option_and_each_entry():
    mask = random.random((T, B)) < 0.6
    made = rollout(random.integers(0, 3, (T, B)).astype(np.int32), mask)
    got = {name: float(x) for name, x in details(CHOICES, made).items()}
    assert set(got) < SPARSE
    counts = np.bincount(np.asarray(made.action)[mask], minlength=3) / mask.sum()
    obs, reward = np.asarray(made.obs)[mask], np.asarray(made.reward)[mask]
    for i in range(3):
        assert got[f"stats/action_share_{i}"] == pytest.approx(counts[i], rel=1e-5)
        for what in ("min", "mean", "max", "std"):
            wanted = getattr(obs[:, i], what)()
            assert got[f"stats/obs_{i}_{what}"] == pytest.approx(wanted, rel=1e-4, abs=1e-6)
    assert got["stats/rewards_p95"] == pytest.approx(np.quantile(reward, 0.95), rel=1e-4)
    image = EnvSpec("image", Box((40,)), Discrete(19))
    assert all(name.startswith("stats/rewards_") for name in details(image, made))


def test_returns_are_those_of_finished_episodes():
    algo = agent("ppo", CartPole(), 1, 10.0)
    train = jax.eval_shape(algo.init, jax.random.key(0))._replace(iteration=jnp.int32(4))
    window = start_episodes(1, 5)._replace(window_return=jnp.arange(5.0) + 3.0)
    got = of_episodes(algo, train, window._replace(finished=jnp.int32(3)))
    values = [float(got[f"rollout/ep_returns_{what}"]) for what in SPREAD]
    assert values == pytest.approx([3.0, 3.1, 4.0, 4.9, 5.0])
    assert np.isnan(float(of_episodes(algo, train, window)["rollout/ep_returns_min"]))


def test_a_short_rollout_has_none_and_no_end_is_minus_one():
    made = rollout(np.zeros((T, B), np.int32))
    short = jax.tree.map(lambda x: x[:1], made)
    assert statistics(CHOICES, short) == {}
    none = made._replace(terminated=made.terminated & False, truncated=made.truncated & False)
    assert float(statistics(CHOICES, none)["stats/terminated_share"]) == -1.0


def test_relative_entropy():
    values = {"train/entropy_loss": -np.log(4.0)}
    assert relative_entropy(Discrete(4), values)["stats/entropy_relative"] == pytest.approx(1.0)
    assert relative_entropy(MultiDiscrete((4, 4)), values)["stats/entropy_relative"] == pytest.approx(0.5)
    assert relative_entropy(Box((2,)), values) == {}
    assert relative_entropy(Discrete(4), {}) == {}


def replayer(name: str, env: Any, **settings: Any) -> Any:
    """An algorithm whose looks are due in every iteration, on one row."""
    return agent(name, env, 1, 10.0, learning_starts=0, **settings)


def drawn(algo: Any, steps: int, seed: int = 0) -> Transition:
    """Steps [N, n, …] as a replay hands them out."""
    spec, made = algo.spec, np.random.default_rng(seed)
    shape, space = (40, steps), spec.action
    obs = made.normal(size=(*shape, *spec.observation.shape)).astype(np.float32)
    if isinstance(space, Box):
        action = np.clip(made.normal(0, 2, (*shape, *space.shape)), *space.bounds()).astype(np.float32)
    else:
        action = made.integers(0, space.n, shape).astype(np.int32)
    reward = made.normal(size=shape).astype(np.float32)
    ends = [made.random(shape) < 0.2 for _ in range(2)]
    return Transition(obs, action, reward, ends[0], ends[1] & ~ends[0], obs, None)


def test_of_windows_the_first_steps_count():
    algo = replayer("sac", Pendulum(), n_steps=3)
    data = drawn(algo, 3)
    state = jax.eval_shape(algo.init, jax.random.key(0))._replace(
        iteration=jnp.int32(3), updates=jnp.int32(3), moments=None
    )
    got = of_batch(algo, state, Batch(jax.tree.map(jnp.asarray, data)))
    low, high = algo.spec.action.bounds()
    action, obs = data.action[:, 0], data.obs[:, 0]
    at_edge = (action <= low + 0.01 * (high - low)) | (action >= high - 0.01 * (high - low))
    assert set(got) <= set(OF_BATCH) <= SPARSE
    assert float(got["stats/action_saturation"]) == pytest.approx(at_edge.mean(), rel=1e-6)
    assert 0.1 < at_edge.mean() < 0.9
    assert float(got["stats/obs_std_max"]) == pytest.approx(obs.std(0).max(), rel=1e-5)
    assert float(got["stats/reward_mean"]) == pytest.approx(data.reward[:, 0].mean(), rel=1e-5)


def test_of_sequences_neither_burn_in_nor_padding_counts():
    algo = replayer("dqn", CartPole(), core="gru", core_size=4, burn_in=2, sequence_length=3)
    mask = np.random.default_rng(1).random((40, 5)) < 0.6
    data = drawn(algo, 5)
    data.obs[~mask] = np.nan
    data.obs[:, :2] = 100.0
    state = jax.eval_shape(algo.init, jax.random.key(0))._replace(
        iteration=jnp.int32(3), updates=jnp.int32(3), moments=None
    )
    got = of_batch(algo, state, Batch(jax.tree.map(jnp.asarray, data._replace(mask=mask, core=np.zeros(3)))))
    counts = mask[:, 2:]
    obs, reward = data.obs[:, 2:][counts], data.reward[:, 2:][counts]
    assert float(got["stats/obs_std_max"]) == pytest.approx(obs.std(0).max(), rel=1e-5)
    assert float(got["stats/obs_std_min"]) == pytest.approx(obs.std(0).min(), rel=1e-5)
    assert float(got["stats/obs_abs_max"]) == pytest.approx(np.abs(obs).max(), rel=1e-5)
    assert float(got["stats/reward_mean"]) == pytest.approx(reward.mean(), rel=1e-5)
    terminated = data.terminated[:, 2:][counts].sum()
    ended = (data.terminated | data.truncated)[:, 2:][counts].sum()
    assert float(got["stats/terminated_share"]) == pytest.approx(terminated / ended, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "env", "train_freq"), [("sac", Pendulum(), 1), ("dqn", CartPole(), 4)])
def test_a_learner_from_replay_says_what_it_sees(name: str, env: Any, train_freq: int):
    algo = agent(name, env, 1, 30.0, learning_starts=40, batch_size=64, train_freq=train_freq)
    (trace,) = Fused(algo, env, 1, (0,)).advance(60)
    told = [measured({n: float(x[i]) for n, x in trace.items()}) for i in range(60)]
    filling = [now for now in told if "train/n_updates" not in now]
    assert filling
    assert not any(set(now) & set(OF_BATCH) for now in filling)
    last = told[-1]
    if name == "sac":  # still random actions: a hundredth of the range is at each end
        assert 0.0 <= last["stats/action_saturation"] < 0.2
        assert 0.1 < last["stats/obs_std_max"] < 10.0
        assert last["stats/reward_mean"] < 0.0
        assert -8.0 <= last["stats/obs_2_min"] < last["stats/obs_2_mean"] < last["stats/obs_2_max"] <= 8.0
        assert last["stats/rewards_min"] < last["stats/reward_mean"] < last["stats/rewards_max"] <= 0.0
    else:
        assert last["stats/reward_mean"] == 1.0
        assert 0.5 <= last["stats/action_top_share"] <= 1.0
        shares = [last["stats/action_share_0"], last["stats/action_share_1"]]
        assert sum(shares) == pytest.approx(1.0)
        assert max(shares) == pytest.approx(last["stats/action_top_share"])
        assert last["stats/terminated_share"] in (-1.0, 1.0)


@pytest.mark.slow
def test_an_actor_critic_says_how_its_targets_are_spread():
    algo = agent("ppo", CartPole(), 4, 10.0, n_steps=16)
    (trace,) = Fused(algo, CartPole(), 4, (0,)).advance(10)
    last = measured({n: float(x[-1]) for n, x in trace.items()})
    for name in ("stats/advantages", "stats/value_targets", "stats/logits", "rollout/ep_returns"):
        values = [last[f"{name}_{what}"] for what in SPREAD]
        assert values == sorted(values)
        assert values[0] < values[-1]
    largest = max(abs(last["stats/advantages_min"]), abs(last["stats/advantages_max"]))
    assert last["stats/advantage_max"] == pytest.approx(largest, rel=1e-6)
    assert last["stats/action_share_0"] + last["stats/action_share_1"] == pytest.approx(1.0)
    assert last["train/value_loss_root"] == pytest.approx(last["train/value_loss"] ** 0.5, rel=1e-5)
    assert last["stats/logits_min"] == pytest.approx(-last["stats/logits_max"], abs=1e-6)  # of two options


def test_an_algorithm_that_does_not_count_its_iterations_has_no_details() -> None:
    algo = agent("ppo", CartPole(), 2)
    episodes = start_episodes(2, 4)
    assert of_episodes(algo, object(), episodes) == {}
    assert of_episodes(algo, algo.init(jax.random.key(0)), episodes)


def test_bytes_that_never_change_are_no_statistic():
    spec = replace(NUMBERS, observation=Box((3,), 0, 255, "uint8"))
    memory = np.tile(np.array([7, 0, 0], np.uint8), (T, B, 1))
    memory[..., 1] = random.integers(0, 256, (T, B))
    got = statistics(spec, rollout(np.zeros((T, B, 2), np.float32))._replace(obs=jax.numpy.asarray(memory)))
    assert "stats/obs_std_min" not in got
    assert float(got["stats/obs_std_max"]) == pytest.approx(memory[..., 1].std() / 255, rel=1e-5)
