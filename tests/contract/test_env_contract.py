"""One contract that every environment implementation keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from sparring.envs import registry
from sparring.envs.envpool import EnvPoolRows
from sparring.envs.gymnasium import GymRows
from sparring.envs.source import GymId, InFile
from sparring.envs.vector import VectorRows
from sparring.envs.workers import WorkerRows
from sparring.spaces import Box, Dict, MultiBinary, MultiDiscrete, dtype_of, event_shape, legal_size
from sparring.types import TimeStep

pytestmark = pytest.mark.filterwarnings("ignore:builtin type [sS]wig.*:DeprecationWarning")

ROWS = 3
OWN = Path(__file__).with_name("own_envs.py")


@dataclass(frozen=True)
class Case:
    """One implementation: how to build it, and what it promises beyond the contract."""

    name: str
    build: Callable[[int | None], Any]
    resumes: bool = True
    spends_steps: bool = False
    """Resets take a step of their own."""
    own_generators: bool = True
    """Rows draw from generators of their own."""


def jax_host(env_id: str) -> Case:
    return Case(f"jax {env_id}", lambda limit: registry.host(registry.make(env_id, time_limit=limit), ROWS))


def gym_rows(env_id: str) -> Case:
    return Case(f"gym {env_id}", lambda limit: GymRows([GymId(env_id)] * ROWS, time_limit=limit))


def own_rows(name: str) -> Case:
    return Case(f"own {name}", lambda limit: GymRows([InFile(f"{OWN}:{name}")] * ROWS, time_limit=limit))


def vector(mode: AutoresetMode) -> Case:
    def build(limit: int | None) -> VectorRows:
        makers = [lambda: gymnasium.make("CartPole-v1", max_episode_steps=limit)] * ROWS
        return VectorRows(gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=mode, copy=False))

    return Case(f"vector {mode.name}", build, resumes=False, spends_steps=mode is AutoresetMode.NEXT_STEP)


def native_vector(limit: int | None) -> VectorRows:
    env = gymnasium.make_vec("CartPole-v1", ROWS, "vector_entry_point", max_episode_steps=limit or 500)
    return VectorRows(env)


def workers(env_id: str) -> Case:
    return Case(
        f"workers {env_id}", lambda limit: WorkerRows([GymId(env_id)] * ROWS, n_workers=2, time_limit=limit)
    )


CASES = [
    *(jax_host(env_id) for env_id in registry.jax_ids()),
    gym_rows("CartPole-v1"),
    gym_rows("Pendulum-v1"),
    gym_rows("LunarLander-v3"),
    gym_rows("BipedalWalker-v3"),
    gym_rows("Hopper-v5"),
    gym_rows("FrozenLake-v1"),
    gym_rows("Blackjack-v1"),
    own_rows("Parts"),
    own_rows("Masked"),
    *(vector(mode) for mode in AutoresetMode),
    Case("vector native", native_vector, resumes=False, spends_steps=True, own_generators=False),
    workers("CartPole-v1"),
    Case("workers Parts", lambda limit: WorkerRows([InFile(f"{OWN}:Parts")] * ROWS, time_limit=limit)),
    Case(
        "envpool CartPole-v1",
        lambda limit: EnvPoolRows("CartPole-v1", ROWS, time_limit=limit),
        resumes=False,
        spends_steps=True,
    ),
]
each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)

_built: dict[tuple[str, int | None], Any] = {}


@pytest.fixture(scope="module", autouse=True)
def close_all() -> Iterator[None]:
    yield
    for host in _built.values():
        host.close()
    _built.clear()


def built(case: Case, limit: int | None = None) -> Any:
    """The case's environment, built once; every test starts with a reset."""
    if (case.name, limit) not in _built:
        _built[case.name, limit] = case.build(limit)
    return _built[case.name, limit]


def actions(host: Any, count: int, seed: int = 0) -> list[np.ndarray]:
    generator, space = np.random.default_rng(seed), host.spec.action
    shape = (host.spec.rows, *event_shape(space))
    match space:
        case Box():
            low, high = space.bounds()
            return [generator.uniform(low, high, shape).astype(np.float32) for _ in range(count)]
        case MultiDiscrete(sizes):
            return [generator.integers(0, sizes, shape, np.int32) for _ in range(count)]
        case MultiBinary():
            return [generator.integers(0, 2, shape, np.int32) for _ in range(count)]
    return [generator.integers(0, space.n, shape, np.int32) for _ in range(count)]


def run(host: Any, seed: int, choices: list[np.ndarray]) -> list[TimeStep]:
    return [host.reset(seed), *(host.step(choice) for choice in choices)]


def parts(obs: Any) -> list[np.ndarray]:
    return [obs[name] for name in sorted(obs)] if isinstance(obs, dict) else [obs]


def everything(step: TimeStep) -> list[np.ndarray]:
    optional = [x for x in (step.legal, step.lost) if x is not None]
    return [*parts(step.obs), *parts(step.next_obs), step.reward, step.terminated, step.truncated, *optional]


def equal(a: list[TimeStep], b: list[TimeStep]) -> bool:
    return all(
        len(everything(x)) == len(everything(y))
        and all(np.array_equal(p, q) for p, q in zip(everything(x), everything(y), strict=True))
        for x, y in zip(a, b, strict=True)
    )


def lost(step: TimeStep) -> np.ndarray:
    return np.zeros(ROWS, bool) if step.lost is None else step.lost


@each
def test_arrays_have_the_shapes_and_dtypes_of_the_spec(case: Case) -> None:
    host = built(case)
    spec = host.spec
    assert spec.rows == ROWS
    spaces = spec.observation.parts if isinstance(spec.observation, Dict) else [("", spec.observation)]
    for step in run(host, 0, actions(host, 5)):
        for obs in (step.obs, step.next_obs):
            assert isinstance(obs, dict) == isinstance(spec.observation, Dict)
            for name, space in spaces:
                part = obs[name] if name else obs
                assert isinstance(part, np.ndarray)
                assert part.shape == (ROWS, *event_shape(space))
                assert part.dtype == dtype_of(space)
        assert step.reward.shape == (ROWS,)
        assert step.reward.dtype == np.float32
        for flag in (step.terminated, step.truncated):
            assert flag.shape == (ROWS,)
            assert flag.dtype == bool
        assert step.active is None
        assert (step.legal is not None) == spec.masks_actions
        if step.legal is not None:
            assert step.legal.shape == (ROWS, legal_size(spec.action))
            assert step.legal.any(1).all()


@each
def test_reset_has_no_outcome(case: Case) -> None:
    step = built(case).reset(0)
    assert not step.reward.any()
    assert not step.terminated.any()
    assert not step.truncated.any()
    assert step.lost is None
    assert all(np.array_equal(a, b) for a, b in zip(parts(step.obs), parts(step.next_obs), strict=True))


@each
def test_obs_is_next_obs_except_where_an_episode_ended(case: Case) -> None:
    host = built(case)
    fresh = differs = 0
    for step in run(host, 1, actions(host, 150))[1:]:
        ended = step.terminated | step.truncated
        assert not (step.terminated & step.truncated).any()
        for row in range(ROWS):
            same = all(
                np.array_equal(a[row], b[row])
                for a, b in zip(parts(step.obs), parts(step.next_obs), strict=True)
            )
            if not ended[row] or case.spends_steps:
                assert same
            else:
                fresh += 1
                differs += not same
    continuous = not host.spec.id.startswith(("probe/", "FrozenLake", "Blackjack", "Repeat", "TMaze"))
    if fresh and continuous:
        assert differs == fresh


@each
def test_a_lost_step_has_no_outcome_and_follows_an_end(case: Case) -> None:
    host = built(case)
    ended = np.zeros(ROWS, bool)
    ends = 0
    for step in run(host, 2, actions(host, 150))[1:]:
        if case.spends_steps:
            assert np.array_equal(lost(step), ended)
        else:
            assert step.lost is None
        assert not step.reward[lost(step)].any()
        assert not (step.terminated | step.truncated)[lost(step)].any()
        ended = step.terminated | step.truncated
        ends += int(ended.sum())
    if case.spends_steps:
        assert ends > 0


@each
def test_the_time_limit_truncates(case: Case) -> None:
    if case.name.startswith("jax probe/") and case.name not in ("jax probe/multiply", "jax probe/masked"):
        return  # compiled anew for a limit that the same code keeps
    host = built(case, 6)
    assert host.spec.time_limit == 6
    elapsed = np.zeros(ROWS, int)
    cuts = 0
    for step in run(host, 3, actions(host, 60))[1:]:
        elapsed += ~lost(step)
        assert np.array_equal(step.truncated, (elapsed == 6) & ~step.terminated & ~lost(step))
        cuts += int(step.truncated.sum())
        elapsed[step.terminated | step.truncated] = 0
    if not host.spec.id.startswith("probe/") and host.spec.id not in (
        "FrozenLake-v1",
        "Blackjack-v1",
        f"{OWN}:Masked",
    ):
        assert cuts > 0


@each
def test_a_seed_gives_the_same_steps_again(case: Case) -> None:
    host = built(case)
    choices = actions(host, 60)
    assert equal(run(host, 4, choices), run(host, 4, choices))


@each
def test_another_seed_gives_other_steps(case: Case) -> None:
    host = built(case)
    choices = actions(host, 60)
    first, other = run(host, 4, choices), run(host, 5, choices)
    constant = {
        "probe/constant-value",
        "probe/discounting",
        "probe/action-reward",
        "probe/action-reward-continuous",
        "probe/truncation",
    }
    if host.spec.id in constant or host.spec.id.endswith("Masked"):
        assert equal(first, other)
    else:
        assert not equal(first, other)


@each
def test_rows_do_not_touch_each_other(case: Case) -> None:
    if not case.own_generators:
        return  # one generator serves all rows of Gymnasium's native vector environment
    host = built(case)
    choices = actions(host, 60)
    changed = [choice.copy() for choice in choices]
    for choice, other in zip(changed, actions(host, 60, seed=9), strict=True):
        choice[0] = other[0]
    for a, b in zip(run(host, 6, choices), run(host, 6, changed), strict=True):
        for x, y in zip(everything(a)[: 2 * len(parts(a.obs)) + 3], everything(b), strict=False):
            assert np.array_equal(x[1:], y[1:])


@each
def test_rows_differ(case: Case) -> None:
    host = built(case)
    observations = [parts(step.obs) for step in run(host, 7, [np.zeros_like(a) for a in actions(host, 40)])]
    varied = any(not np.array_equal(part[0], part[1]) for obs in observations for part in obs)
    constant = ("probe/constant-value", "probe/discounting", "probe/action-reward", "probe/truncation")
    assert varied or host.spec.id.startswith(constant) or host.spec.id.endswith("Masked")


@each
def test_arrays_are_not_written_to_afterwards(case: Case) -> None:
    host = built(case)
    choices = actions(host, 40)
    steps = [host.reset(8)]
    kept = [[x.copy() for x in everything(steps[0])]]
    for choice in choices:
        steps.append(host.step(choice))
        kept.append([x.copy() for x in everything(steps[-1])])
    for step, copies in zip(steps, kept, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(everything(step), copies, strict=True))


@each
def test_actions_are_not_changed(case: Case) -> None:
    host = built(case)
    choices = actions(host, 20)
    before = [choice.copy() for choice in choices]
    run(host, 8, choices)
    assert all(np.array_equal(a, b) for a, b in zip(before, choices, strict=True))


@each
def test_a_snapshot_continues_exactly_or_is_none(case: Case) -> None:
    host = built(case)
    choices = actions(host, 120)
    run(host, 9, choices[:70])
    snapshot = host.snapshot()
    if not case.resumes:
        assert snapshot is None
        return
    assert all(isinstance(value, np.ndarray) for value in snapshot.values())
    saved = {name: value.copy() for name, value in snapshot.items()}
    expected = [host.step(choice) for choice in choices[70:]]
    assert all(np.array_equal(saved[name], value) for name, value in snapshot.items())
    other = case.build(None)
    try:
        restored = other.restore(saved, 9)
        assert other.events() == []
        assert restored.lost is None
        resumed = [other.step(choice) for choice in choices[70:]]
    finally:
        other.close()
    assert equal(resumed, expected)


@each
def test_a_restored_environment_shows_what_was_last_seen(case: Case) -> None:
    host = built(case)
    last = run(host, 10, actions(host, 35))[-1]
    snapshot = host.snapshot()
    if snapshot is None:
        return
    restored = host.restore(snapshot, 10)
    assert all(np.array_equal(a, b) for a, b in zip(parts(restored.obs), parts(last.obs), strict=True))
    if last.legal is not None:
        assert np.array_equal(restored.legal, last.legal)


@each
def test_closing_twice_is_fine(case: Case) -> None:
    host = case.build(None)
    host.reset(0)
    host.close()
    host.close()


@each
def test_nothing_to_say_when_nothing_happened(case: Case) -> None:
    host = built(case)
    host.reset(0)
    assert host.events() == []
