"""What users of replay learners and bandits meet: schedules while learning, replays in files, refusals."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparring import DQN, SAC, TD3, CrossQ, actor
from sparring.algos.crossq import CrossQ as CrossQAlgorithm
from sparring.algos.crossq import CrossQConfig
from sparring.algos.dqn import DQNConfig
from sparring.algos.gdi import GDI, GDIConfig
from sparring.bandit.settings import coordinate
from sparring.bandit.space import Space
from sparring.bandit.tiles import Tiles
from sparring.bandit.ucb import SlidingWindowUCB
from sparring.common.callbacks import BaseCallback, CheckpointCallback
from sparring.config import from_mapping, parse_assignment
from sparring.drivers.async_ import Crew
from sparring.envs import registry
from sparring.envs.classic.cartpole import CartPole
from sparring.envs.classic.pendulum import Pendulum
from sparring.errors import CheckpointError, ConfigError
from sparring.evaluation.behaviours import _at
from sparring.model import algorithm_class, assemble
from sparring.replay.size import told
from sparring.session import Settings
from sparring.types import Behaviour, View

SMALL: dict[str, Any] = {
    "learning_starts": 50,
    "batch_size": 16,
    "buffer_size": 500,
    "train_freq": 10,
    "gradient_steps": 1,
    "run_dir": False,
    "seed": 0,
}


class Looking(BaseCallback):
    def __init__(self, look: Any) -> None:
        super().__init__()
        self.look, self.seen = look, []

    def _on_step(self) -> bool:
        if self.n_calls % 100 == 0:
            self.seen.append(self.look(self.model))
        return True


def test_a_callback_sees_the_exploration_rate_of_its_time():
    callback = Looking(lambda model: model.exploration_rate)
    model = DQN("MlpPolicy", "CartPole-v1", net_arch=(8,), exploration_fraction=1.0, **SMALL)
    model.learn(1000, callback=callback)
    assert callback.seen == sorted(callback.seen, reverse=True)
    assert callback.seen[0] > 0.85
    assert callback.seen[4] == pytest.approx(1.0 - 0.95 * 0.5, abs=0.03)
    assert model.exploration_rate == pytest.approx(0.05, abs=0.01)


def test_an_agent_saved_in_the_middle_acts_by_its_schedules_of_then(tmp_path):
    def noise(model: Any) -> float:
        model.save(tmp_path / "middle")
        return float(np.mean(model.policy.weights.std))

    callback = Looking(noise)
    falls: dict[str, Any] = {"noise": "normal", "noise_std": "linear(0.4, 0)"}
    model = TD3("MlpPolicy", "Pendulum-v1", pi=(8,), qf=(8,), **falls, **SMALL)
    assert model.noise == "normal"
    model.learn(300, callback=callback)
    assert callback.seen[0] == pytest.approx(0.4 * 2 / 3, abs=0.03)
    loaded = TD3.load(tmp_path / "middle")
    assert float(np.mean(loaded.policy.weights.std)) == callback.seen[-1]


def test_a_replay_waits_for_an_environment(tmp_path):
    """SB3's order: load the agent, load its replay, set the environment, learn."""
    first = DQN("MlpPolicy", "CartPole-v1", net_arch=(8,), **SMALL)
    first.learn(200)
    first.save(tmp_path / "agent")
    first.save_replay_buffer(tmp_path / "replay")
    other = DQN.load(tmp_path / "agent")
    other.load_replay_buffer(tmp_path / "replay")
    other.set_env("CartPole-v1")
    held = [jax.tree.leaves(m._driver.replayed()) for m in (first, other)]
    for x, y in zip(*held, strict=True):
        np.testing.assert_array_equal(x, y)


def test_the_replays_size_is_told_where_one_listens(capsys):
    for verbose in (0, 1):
        DQN("MlpPolicy", "CartPole-v1", net_arch=(8,), verbose=verbose, **SMALL).learn(50)
        assert ("Replay: up to" in capsys.readouterr().out) == bool(verbose)


@pytest.mark.parametrize("more", [{}, {"prioritized": True}])
def test_a_replay_goes_through_a_file(tmp_path, more):
    first = DQN("MlpPolicy", "CartPole-v1", net_arch=(8,), **SMALL, **more)
    with pytest.raises(ConfigError, match="before it learns"):
        first.save_replay_buffer(tmp_path / "early.pkl")
    first.learn(200)
    first.save_replay_buffer(tmp_path / "deep" / "replay.pkl")
    other = DQN("MlpPolicy", "CartPole-v1", net_arch=(8,), **SMALL, **more)
    other.load_replay_buffer(tmp_path / "deep" / "replay.pkl")
    for x, y in zip(*(jax.tree.leaves(m._driver.replayed()) for m in (first, other)), strict=True):
        np.testing.assert_array_equal(x, y)
    other.learn(20)  # more than learning_starts is there: it learns at once
    assert other.session.last["train/n_updates"] == 2
    wide = DQN("MlpPolicy", "CartPole-v1", net_arch=(8,), **{**SMALL, "buffer_size": 900}, **more)
    with pytest.raises(CheckpointError):
        wide.load_replay_buffer(tmp_path / "deep" / "replay.pkl")
    with pytest.raises(CheckpointError):
        other.load_replay_buffer(tmp_path / "nothing.pkl")


def test_a_checkpoint_callback_keeps_the_replay(tmp_path):
    model = DQN("MlpPolicy", "CartPole-v1", net_arch=(8,), **SMALL)
    model.learn(100, callback=CheckpointCallback(50, str(tmp_path), save_replay_buffer=True))
    assert sorted(path.name for path in tmp_path.glob("*replay*")) == [
        "rl_model_replay_buffer_100_steps.pkl",
        "rl_model_replay_buffer_50_steps.pkl",
    ]


def test_a_linear_critic_of_crossq_learns():
    model = CrossQ("MlpPolicy", "Pendulum-v1", policy_kwargs={"net_arch": {"pi": [8], "qf": []}}, **SMALL)
    model.learn(100)
    assert np.isfinite(model.session.last["train/critic_loss"])


def test_the_weight_of_crossqs_entropy_has_adams_own_memory():
    algo = CrossQAlgorithm(Pendulum().spec, CrossQConfig())
    mu = algo._ent_rule().update(np.float32(1.0), algo._ent_rule().init(np.float32(0.0)))[1].mu
    assert float(mu) == pytest.approx(0.1)


def test_an_action_with_one_value_is_no_division_by_zero():
    import gymnasium as gym

    class Narrow(gym.Env):
        observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
        action_space = gym.spaces.Box(np.float32([-1, 0.5]), np.float32([1, 0.5]))

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

        def step(self, action):
            return self.np_random.uniform(-1, 1, 2).astype(np.float32), float(action[0]), False, False, {}

    model = SAC("MlpPolicy", Narrow(), pi=(8,), qf=(8,), **SMALL)
    model.learn(100)
    assert np.isfinite(model.session.last["train/critic_loss"])


@pytest.mark.parametrize(("algorithm", "values", "match"), [
    ("dqn", {"max_grad_norm": -1.0}, "max_grad_norm"),
    ("sac", {"adam_eps": -1.0}, "adam_eps"),
    ("dqn", {"frame_stack": 0}, "frame_stack"),
    ("gdi", {"gamma": 1.5}, "gamma"),
    ("gdi", {"adam_b2": 1.0}, "adam_b2 must be at least 0 and below 1"),
    ("crossq", {"adam_b1": 1.0}, "adam_b1 must be at least 0 and below 1"),
    ("crossq", {"adam_b1": -0.1}, "adam_b1"),
    ("gdi", {"rho_bar": -1.0}, "rho_bar"),
    ("gdi", {"target_temperature": 0.0}, "target_temperature"),
    ("gdi", {"gammas": [5.0, 0.9]}, "gammas"),
    ("gdi", {"prioritized": True, "priority_eta": 3.0}, "priority_eta"),
])  # fmt: skip
def test_numbers_out_of_bounds_are_refused(algorithm, values, match):
    cls = algorithm_class(algorithm)
    env = "Pendulum-v1" if algorithm in ("sac", "crossq") else "CartPole-v1"
    with pytest.raises(ConfigError, match=match):
        assemble(cls, env, Settings(n_envs=2), from_mapping(cls.Config, values), (0,), eval_env=False)


@pytest.mark.parametrize(("settings", "match"), [
    ({"address": "1.2.3.4:6379"}, "driver=cluster"),
    ({"learner_gpus": 1.0}, "learner=cluster"),
])  # fmt: skip
def test_settings_of_a_cluster_are_refused_without_one(settings, match):
    cls = algorithm_class("dqn")
    with pytest.raises(ConfigError, match=match):
        assemble(cls, "CartPole-v1", Settings(**settings), cls.Config(), (0,), eval_env=False)


def test_settings_that_nothing_reads_are_told():
    cls = algorithm_class("dqn")
    config = from_mapping(cls.Config, {"buffer_size": 100})
    made = assemble(cls, "CartPole-v1", Settings(actors=8, slot="file"), config, (0,), eval_env=False)
    assert any("actors, slot" in warning for warning in made.warnings)
    quiet = assemble(cls, "CartPole-v1", Settings(), config, (0,), eval_env=False)
    assert not any("reads" in warning for warning in quiet.warnings)


def test_a_crew_needs_patience():
    algo = GDI(CartPole().spec, GDIConfig())
    with pytest.raises(ConfigError, match="worker_deadline"):
        Crew(1, deadline=0.0).check(algo, "CartPole-v1")


def test_none_is_a_word():
    name, value = parse_assignment("controller=none")
    assert from_mapping(GDIConfig, {name: value}).controller == "none"
    assert from_mapping(GDIConfig, dict([parse_assignment("core=none")])).core == "none"


def test_policies_of_one_head_are_told():
    algo = GDI(CartPole().spec, GDIConfig(variant="i3", policies=5))
    assert any("policies" in warning for warning in algo.check())


def test_tables_of_gigabytes_are_refused():
    space = Space(tuple(coordinate(f"x{i}:0:1:10") for i in range(9)))
    with pytest.raises(ConfigError, match="thompson"):
        Tiles(space)


def test_a_window_reports_what_its_rows_choose():
    space = Space((coordinate("x:0:1:8"),))
    bandit = SlidingWindowUCB(space, window=16, arms=8)
    state = bandit.init(jax.random.key(0))
    choice = bandit.select(state, jax.random.key(1), 4)
    state = bandit.update(state, choice, jnp.float32([1.0, 2.0, 3.0, 4.0]), jnp.ones(4, bool))
    told = bandit.report(state, 4)["bandit/probability/x"]
    drawn = np.zeros(8)
    for key in jax.random.split(jax.random.key(2), 400):
        np.add.at(drawn, np.asarray(bandit.select(state, key, 4).cell)[:, 0], 1 / 1600)
    np.testing.assert_allclose(told, drawn, atol=0.04)


def test_an_evaluation_of_a_bandits_choices_has_some_of_all_rows():
    algo = GDI(CartPole().spec, GDIConfig(controller_space=("epsilon:0:1:4",)))
    points = np.linspace(0.0, 1.0, 64, dtype=np.float32)[:, None]
    for rows in (8, 64, 128):
        assert float(np.mean(_at(algo, points)(rows).mixture[:, 0])) == pytest.approx(0.5, abs=0.08)


def test_crossqs_adam_may_forget_at_once():
    model = CrossQ("MlpPolicy", "Pendulum-v1", pi=(8,), qf=(8,), adam_b1=0.0, **SMALL).learn(100)
    assert np.isfinite(model.session.last["train/critic_loss"])


@pytest.mark.parametrize(("values", "held", "more"), [
    ({"buffer_size": 100_000}, 98_304, False),
    ({"buffer_size": 1000}, 8192, True),
    ({"buffer_size": 1000, "prioritized": True}, 8192, True),
    ({"buffer_size": 1000, "core": "gru", "core_size": 4, "burn_in": 60}, 12_288, True),
])  # fmt: skip
def test_a_replay_is_told_with_the_steps_that_it_holds(values, held, more):
    cls = algorithm_class("dqn")
    config = from_mapping(cls.Config, {"train_freq": 64, "net_arch": [8], **values})
    driver = assemble(cls, "CartPole-v1", Settings(n_envs=64), config, (0,), eval_env=False).driver
    assert jax.tree.leaves(driver.state().learner.replay.data)[0].shape[0] * 64 == held
    said = told(driver, config)
    assert said.startswith(f"Replay: up to {held:,} steps")
    assert ("more than buffer_size=1,000" in said) == more


def test_warming_up_is_random_whatever_a_controller_chooses():
    values = {"controller": "fixed", "controller_index": (0.0,), "controller_space": ("epsilon:0:1:2",)}
    algo = algorithm_class("dqn")(CartPole().spec, from_mapping(DQNConfig, {"net_arch": [8], **values}))
    view = View(jnp.zeros((512, 4)), None, None)
    chosen = Behaviour(epsilon=jnp.zeros(512))
    key = jax.random.key(0)
    state = algo.init(key)

    def share(weights: Any, behaviour: Behaviour) -> float:
        best = int(jnp.argmax(state.nets(jnp.zeros((1, 4)))))
        return float(np.mean(algo.act(weights, algo.carry(512), view, behaviour, key)[0] == best))

    assert share(algo.policy(state), chosen) == pytest.approx(0.5, abs=0.1)
    assert share(algo.policy(state), chosen._replace(greedy=jnp.ones(512, bool))) == 1.0
    assert share(actor.settled(algo.policy(state)), chosen) == 1.0, "outside training nothing warms up"
    late = state._replace(iteration=jnp.int32(algo.config.learning_starts))
    assert share(algo.policy(late), chosen) == 1.0


def test_an_agent_that_warms_up_acts_by_its_policy_outside_training():
    model = TD3("MlpPolicy", "Pendulum-v1", pi=(8,), qf=(8,), **{**SMALL, "learning_starts": 10_000})
    obs = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    for _ in range(2):
        best, sampled = (model.predict(obs, deterministic=flag)[0] for flag in (True, False))
        np.testing.assert_array_equal(best, sampled)
        agent = model.agent()
        for env in (Pendulum(), registry.make("gym:Pendulum-v1", n_envs=2)):
            scores = [agent.evaluate(env, 2, deterministic=flag).returns for flag in (True, False)]
            np.testing.assert_array_equal(*scores)
        model.learn(50)


@pytest.mark.parametrize("cls", [SAC, TD3, CrossQ])
def test_samples_outside_training_know_no_warm_up(cls):
    obs = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    settings = [{**SMALL, "learning_starts": starts} for starts in (10_000, 0)]
    warm, ready = (cls("MlpPolicy", "Pendulum-v1", pi=(8,), qf=(8,), noise="normal", **s) for s in settings)
    assert warm.noise == ready.noise == "normal"
    np.testing.assert_array_equal(warm.predict(obs)[0], ready.predict(obs)[0])


@pytest.mark.parametrize("length", [2, 50])
def test_a_host_replay_that_short_episodes_fill_early_says_so_once(length):
    import gymnasium as gym

    class Short(gym.Env):
        observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
        action_space = gym.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.count = 0
            return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

        def step(self, action):
            self.count += 1
            return self.np_random.uniform(-1, 1, 2).astype(np.float32), 1.0, self.count == length, False, {}

    cls = algorithm_class("dqn")
    values = {"buffer": "host", "buffer_size": 60, "learning_starts": 8, "batch_size": 8, "net_arch": [8]}
    config = from_mapping(cls.Config, values)
    made = assemble(cls, Short, Settings(), config, (0,), eval_env=False)
    told = []
    for _ in range(100):
        made.driver.advance(1)
        told += [event for event in made.driver.events() if "Episodes are short" in event]
    made.driver.close()
    assert len(told) == (1 if length == 2 else 0)
    if told:
        assert 0.6 < float(told[0].split("holds ")[1].split("%")[0]) / 100 < 0.9
