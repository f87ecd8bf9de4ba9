"""Memory tasks pay what their docstrings say, with and without memory, and hide what they should."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from sparring.envs import batched, memory, registry
from sparring.envs.classic.cartpole import CartPole
from sparring.envs.classic.mountain_car import MountainCar
from sparring.envs.classic.pendulum import Pendulum
from sparring.envs.memory import RepeatFirst, RepeatPrevious, RepeatPreviousContinuous, TMaze
from sparring.errors import ConfigError, UnknownName
from sparring.ops.keys import several
from sparring.spaces import Box, Discrete

ROWS = 4
MANY = 2000
LEVELS = np.array([-1, -1 / 3, 1 / 3, 1])
UP, FORWARD, DOWN, BACK = range(4)


def choices(env: Any, steps: int, rows: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    if isinstance(env.spec.action, Discrete):
        return random.integers(0, env.spec.action.n, (steps, rows)).astype(np.int32)
    return random.uniform(-1.5, 1.5, (steps, rows, 1)).astype(np.float32)  # beyond the bounds, too


# -- plain definitions -------------------------------------------------------------------------------------


class Plain:
    """One episode in plain Python: `pay` returns reward and end for an action after what was seen."""

    def __init__(self, env: Any) -> None:
        self.env, self.seen, self.steps = env, [], 0

    def pay(self, action: Any) -> tuple[float, bool]:
        raise NotImplementedError


class PlainPrevious(Plain):
    def pay(self, action: Any) -> tuple[float, bool]:
        if len(self.seen) <= self.env.k:
            return 0.0, False
        share = 1 / (self.env.spec.time_limit - self.env.k)
        return (share if action == self.seen[-1 - self.env.k] else -share), False


class PlainContinuous(Plain):
    def pay(self, action: Any) -> tuple[float, bool]:
        if len(self.seen) <= self.env.k:
            return 0.0, False
        error = min(max(float(action[0]), -1), 1) - float(self.seen[-1 - self.env.k][0])
        return (1 - 1.5 * error**2 / (5 / 9)) / (self.env.spec.time_limit - self.env.k), False


class PlainFirst(Plain):
    def pay(self, action: Any) -> tuple[float, bool]:
        return (1 if action == self.seen[0] else -1) / self.env.length, False


class PlainMaze(Plain):
    """Follows the agent's position, and checks that the observation is the one of that place."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.place = 0

    def pay(self, action: Any) -> tuple[float, bool]:
        length, cue = self.env.length, self.seen[0]
        assert cue in (0, 1)
        assert self.seen[-1] == (cue if self.place == 0 else 3 if self.place == length else 2)
        if self.place == length and action in (UP, DOWN):
            return (1.0 if action == (UP, DOWN)[cue] else -1.0), True
        before = self.place
        if action == FORWARD:
            self.place = min(self.place + 1, length)
        if action == BACK:
            self.place = max(self.place - 1, 0)
        return (0.0 if self.place > before else -1 / (4 * (length + 1))), False


PLAIN: list[tuple[Any, type[Plain]]] = [
    (RepeatPrevious(4), PlainPrevious),
    (RepeatPrevious(1, 7), PlainPrevious),
    (RepeatPreviousContinuous(3, 11), PlainContinuous),
    (RepeatFirst(9), PlainFirst),
    (TMaze(2), PlainMaze),
    (TMaze(1), PlainMaze),
]


@pytest.mark.parametrize(("env", "plain"), PLAIN, ids=lambda value: getattr(value, "__name__", None))
def test_rewards_and_ends_are_the_plain_definition(env: Any, plain: type[Plain]) -> None:
    host = batched.JaxHost(env, ROWS)
    obs = host.reset(0).obs
    episodes = [plain(env) for _ in range(ROWS)]
    ends = 0
    for action in choices(env, 150, ROWS):
        step = host.step(action)
        for row, episode in enumerate(episodes):
            episode.seen.append(obs[row])
            episode.steps += 1
            reward, terminated = episode.pay(action[row])
            assert step.reward[row] == pytest.approx(reward, abs=1e-6)
            assert step.terminated[row] == terminated
            assert step.truncated[row] == (episode.steps == env.spec.time_limit and not terminated)
            if step.terminated[row] or step.truncated[row]:
                episodes[row] = plain(env)
                ends += 1
        obs = step.obs
    assert ends >= ROWS


# -- what memory is worth ----------------------------------------------------------------------------------

Policy = Callable[[Any, list[np.ndarray], np.random.Generator], np.ndarray]


def returns(env: Any, policy: Policy, seed: int = 0) -> np.ndarray:
    """The return of every row's first episode, for a policy of the observations so far."""
    host, random = batched.JaxHost(env, MANY), np.random.default_rng(seed)
    seen = [host.reset(seed).obs]
    total, running = np.zeros(MANY), np.ones(MANY, bool)
    for _ in range(env.spec.time_limit):
        step = host.step(policy(env, seen, random))
        total += step.reward * running
        running &= ~(step.terminated | step.truncated)
        seen.append(step.obs)
    assert not running.any()
    return total


def recall(env: Any, seen: list[np.ndarray], random: np.random.Generator) -> np.ndarray:
    """The right action of a policy that remembers everything."""
    now = seen[-1]
    match env:
        case RepeatPrevious() | RepeatPreviousContinuous():
            return seen[-1 - env.k] if len(seen) > env.k else now
        case RepeatFirst():
            return seen[0]
        case TMaze():
            turn = np.where(seen[0] == 0, UP, DOWN)
            return np.where(now == 3, turn, FORWARD).astype(np.int32)
    raise AssertionError(env)


def forgetful(env: Any, seen: list[np.ndarray], random: np.random.Generator) -> np.ndarray:
    """The best action of a policy that sees only the present."""
    now = seen[-1]
    match env:
        case RepeatPreviousContinuous():
            return np.zeros_like(now)
        case TMaze():
            return np.where(now == 3, UP, FORWARD).astype(np.int32)
    return now


def constant(env: Any, seen: list[np.ndarray], random: np.random.Generator) -> np.ndarray:
    return np.full_like(seen[-1], 1)


def blind(env: Any, seen: list[np.ndarray], random: np.random.Generator) -> np.ndarray:
    if isinstance(env.spec.action, Box):
        return random.uniform(-1, 1, seen[-1].shape).astype(np.float32)
    return random.integers(0, 4, seen[-1].shape).astype(np.int32)


WORTH = [
    (RepeatPrevious(4), -0.5),
    (RepeatPrevious(32), -0.5),
    (RepeatPreviousContinuous(4), -0.5),
    (RepeatFirst(), -0.5 + 1.5 / 52),
    (TMaze(10), 0.0),
]
by_worth = pytest.mark.parametrize(("env", "worth"), WORTH, ids=[env.spec.id for env, _ in WORTH])


@by_worth
def test_perfect_memory_gets_one(env: Any, worth: float) -> None:
    np.testing.assert_allclose(returns(env, recall), 1.0, atol=1e-5)


@by_worth
def test_no_memory_gets_what_is_stated(env: Any, worth: float) -> None:
    def error(sample: np.ndarray) -> float:
        return 4 * sample.std() / np.sqrt(len(sample))

    best = returns(env, forgetful)
    assert best.mean() == pytest.approx(worth, abs=error(best))
    for policy in (constant, blind):
        other = returns(env, policy)
        assert other.mean() <= worth + error(other)
        if isinstance(env, RepeatPrevious):
            assert other.mean() == pytest.approx(-0.5, abs=error(other))


# -- what is drawn and what is hidden -----------------------------------------------------------------------


@pytest.mark.parametrize("env", [RepeatPrevious(4), RepeatFirst(), RepeatPreviousContinuous(4)], ids=str)
def test_symbols_are_uniform_and_independent_of_rows_time_and_actions(env: Any) -> None:
    def symbols(seed: int, action_seed: int) -> np.ndarray:
        host = batched.JaxHost(env, MANY)
        steps = [host.reset(seed), *map(host.step, choices(env, 30, MANY, action_seed))]
        shown = np.stack([step.obs for step in steps])
        if shown.ndim == 2:
            return shown
        index = np.abs(shown - LEVELS).argmin(-1)
        np.testing.assert_allclose(shown[..., 0], LEVELS[index], rtol=1e-6)
        return index

    one = symbols(0, 0)
    np.testing.assert_array_equal(one, symbols(0, 1))
    other = symbols(1, 0)
    assert (one == other).mean() == pytest.approx(0.25, abs=0.01)
    assert (one[1:] == one[:-1]).mean() == pytest.approx(0.25, abs=0.01)
    assert (one[:, 1:] == one[:, :-1]).mean() == pytest.approx(0.25, abs=0.01)
    np.testing.assert_allclose(np.bincount(one.reshape(-1), minlength=4) / one.size, 0.25, atol=0.01)


def test_the_corridor_looks_the_same_for_both_cues() -> None:
    env = TMaze(3)
    states = [memory.Maze(np.int32(place), np.int32(cue)) for cue in (0, 1) for place in range(4)]
    shown = [int(env.observe(state)) for state in states]
    assert shown == [0, 2, 2, 3, 1, 2, 2, 3]
    cues = np.asarray(jax.vmap(env.reset)(several(jax.random.key(0), 1000)).cue)
    assert cues.mean() == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize(
    ("env_id", "whole", "shown"),
    [
        ("MaskedCartPole-v1", CartPole(), [0, 2]),
        ("MaskedPendulum-v1", Pendulum(), [0, 1]),
        ("PositionMountainCar-v0", MountainCar(), [0]),
    ],
)
def test_hidden_entries_are_gone_and_nothing_else_changes(env_id: str, whole: Any, shown: list[int]) -> None:
    env = registry.make(env_id)
    assert env.spec.id == env_id
    assert env.spec.action == whole.spec.action
    assert env.spec.time_limit == whole.spec.time_limit
    assert env.spec.observation.shape == (len(shown),)
    for bound, all_bounds in zip(env.spec.observation.bounds(), whole.spec.observation.bounds(), strict=True):
        np.testing.assert_array_equal(bound, all_bounds[shown])
    part, full = batched.JaxHost(env, ROWS), batched.JaxHost(whole, ROWS)
    np.testing.assert_array_equal(part.reset(3).obs, full.reset(3).obs[:, shown])
    for action in choices(env, 60, ROWS) % 2:
        one, other = part.step(action), full.step(action)
        np.testing.assert_array_equal(one.obs, other.obs[:, shown])
        np.testing.assert_array_equal(one.next_obs, other.next_obs[:, shown])
        np.testing.assert_array_equal(one.reward, other.reward)
        np.testing.assert_array_equal(one.terminated, other.terminated)
        np.testing.assert_array_equal(one.truncated, other.truncated)


def test_a_hidden_environment_is_drawn_whole() -> None:
    part, full = (batched.JaxHost(env, 1) for env in (memory.masked_cartpole(), CartPole()))
    part.reset(0), full.reset(0)
    np.testing.assert_array_equal(part.render(), full.render())
    full.close()


# -- names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env_id", "env"),
    [
        ("RepeatPrevious-4", RepeatPrevious(4)),
        ("RepeatPrevious-7", RepeatPrevious(7)),
        ("RepeatPreviousContinuous-12", RepeatPreviousContinuous(12)),
        ("RepeatFirst", RepeatFirst()),
        ("TMaze-50", TMaze(50)),
        ("TMaze-3", TMaze(3)),
    ],
)
def test_a_number_in_the_id_is_the_tasks(env_id: str, env: Any) -> None:
    assert registry.is_jax(env_id)
    assert registry.make(env_id) == env
    assert hash(registry.make(env_id)) == hash(env)
    assert env.spec.id == env_id


@pytest.mark.parametrize(("k", "length"), [(4, 52), (32, 104), (64, 156), (100, 208)])
def test_episodes_are_as_long_as_popgyms(k: int, length: int) -> None:
    assert RepeatPrevious(k).spec.time_limit == length
    assert RepeatPreviousContinuous(k).spec.time_limit == length


def test_settings_reach_the_task() -> None:
    assert registry.make("RepeatPrevious-3", kwargs={"length": 9}).spec.time_limit == 9
    assert registry.make("MaskedPendulum-v1", kwargs={"g": 9.81}).env.g == 9.81


@pytest.mark.parametrize("env_id", ["RepeatPrevious-0", "RepeatPreviousContinuous-0", "TMaze-0"])
def test_an_impossible_number_is_refused(env_id: str) -> None:
    with pytest.raises(ConfigError, match="at least 1, not 0"):
        registry.make(env_id)


def test_an_episode_must_outlast_the_delay() -> None:
    with pytest.raises(ConfigError, match="length of at least 5, not 4"):
        RepeatPrevious(4, 4)
    with pytest.raises(ConfigError, match="length"):
        RepeatFirst(0)


@pytest.mark.parametrize("env_id", ["RepeatPrevious", "RepeatPrevious-x", "RepeatPrevious-"])
def test_a_family_without_its_number_offers_the_nearest(env_id: str) -> None:
    assert not registry.is_jax(env_id)
    with pytest.raises(UnknownName, match="RepeatPrevious-4"):
        registry.make(env_id)
