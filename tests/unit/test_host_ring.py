"""The host ring returns what the device ring does, with each observation kept once; sizes are predicted."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import quick
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.errors import CheckpointError, ConfigError
from sparring.ops.returns import n_step
from sparring.replay import size
from sparring.replay.host_ring import HostRing
from sparring.replay.prioritised import Prioritised
from sparring.replay.ring import Ring
from sparring.types import Transition

T, B = 4, 2
ADD, TAKE, LAST = quick(Ring.add, static_argnums=0), quick(Ring.take, static_argnums=0), quick(n_step)


class Extras(NamedTuple):
    """What an algorithm that stacks frames leaves with every step."""

    log_prob: Any
    frames: Any = None


class Stream:
    """Rollouts of random episodes; observations are single frames and, in `extras`, stacks of k of them."""

    def __init__(self, seed: int, stack: int, masked: bool, ends: float = 0.15) -> None:
        self.random = np.random.default_rng(seed)
        self.stack, self.masked, self.ends = stack, masked, ends
        self.obs = [self.observation() for _ in range(B)]
        self.frames: list[Any] = [None] * B
        self.first = np.ones(B, bool)

    def observation(self) -> dict[str, np.ndarray]:
        image = self.random.integers(0, 256, (2, 3, 1)).astype(np.uint8)
        return {"image": image, "speed": self.random.normal(size=2).astype(np.float32)}

    def step(self, b: int) -> Transition:
        random = self.random
        mask = not self.masked or random.random() < 0.7
        over = random.random() < self.ends
        terminated = mask and over and random.random() < 0.5
        obs, first = self.obs[b], bool(self.first[b])
        if mask:
            old = [obs] * self.stack if first else [*self.frames[b][1:], obs]
            self.frames[b] = old
        shown = self.frames[b] or [obs] * self.stack
        follows = self.observation()
        jumps = random.random() < 0.05  # an observation that is not the next one of the step before
        if mask or over:
            self.obs[b] = self.observation() if over or jumps else follows
            self.first[b] = over
        return Transition(
            obs=obs,
            action=np.int32(random.integers(5)),
            reward=np.float32(random.normal()),
            terminated=np.bool_(terminated),
            truncated=np.bool_(over and not terminated),
            next_obs=follows,
            extras=Extras(
                np.float32(random.normal()),
                None if self.stack == 1 else jax.tree.map(lambda *x: np.stack(x), *shown),
            ),
            first=np.bool_(first),
            mask=np.bool_(mask) if self.masked else None,
        )

    def next(self) -> Transition:
        steps = [[self.step(b) for b in range(B)] for _ in range(T)]
        rows = [jax.tree.map(lambda *x: np.stack(x), *row) for row in steps]
        return jax.tree.map(lambda *x: np.stack(x), *rows)


def compare(host: HostRing, ring: Ring, store: Any) -> None:
    """Every window of the host ring, against the same window of the device ring."""
    windows = host.windows()
    row = np.repeat(np.arange(B), windows)
    age = np.concatenate([np.arange(w) for w in windows])
    if not len(row):
        return
    count = len(row)
    early = np.asarray(ring.windows(store)) - windows
    padded = -(-count // 128) * 128
    theirs = TAKE(
        ring, store, jnp.asarray(np.resize(row, padded)), jnp.asarray(np.resize(age + early[row], padded))
    )
    last = np.asarray(LAST(theirs.data.reward, theirs.data.terminated, theirs.data.truncated, 0.9).last)[
        :count
    ]
    theirs = jax.tree.map(lambda x: np.asarray(x)[:count], theirs.data)
    mine = host.take(row, age).data
    for name in ("action", "reward", "terminated", "truncated"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))
    np.testing.assert_array_equal(mine.extras.log_prob, theirs.extras.log_prob)
    assert mine.extras.frames is None
    at = np.arange(count)
    for leaf in ("image", "speed"):
        follows = theirs.next_obs[leaf][at, last]
        if theirs.extras.frames is None:
            seen, seen_next = theirs.obs[leaf][:, 0], follows
        else:
            seen = theirs.extras.frames[leaf][:, 0]
            before = theirs.extras.frames[leaf][at, last]
            seen_next = np.concatenate([before[:, 1:], follows[:, None]], axis=1)
        np.testing.assert_array_equal(mine.obs[leaf], seen)
        np.testing.assert_array_equal(mine.next_obs[leaf], seen_next)


CASES = [(1, 1, False), (1, 3, True), (3, 1, True), (3, 3, False)]
"""frames in a stack, steps in a window, rows that do not always decide"""


@given(
    seed=st.integers(0, 10**6),
    case=st.sampled_from(CASES),
    count=st.integers(1, 16),
    capacity=st.sampled_from([1, 40]),
    spare=st.sampled_from([1.5, 0.0]),
)
@settings(max_examples=30)
def test_it_returns_what_the_ring_returns(seed, case, count, capacity, spare):
    stack, n, masked = case
    stream = Stream(seed, stack, masked)
    ring, parts = Ring(capacity, 1, n), [stream.next() for _ in range(count)]
    host = HostRing(parts[0], capacity, n, stack, spare)
    memory = ring.init(parts[0])
    for part in parts:
        host.add(part)
        memory = ADD(ring, memory, part)
    held = np.asarray(ring.windows(memory.data))
    if spare:  # room for episodes of one step each: nothing goes early
        np.testing.assert_array_equal(host.windows(), held)
    else:
        assert (host.windows() <= held).all()
        assert (host.windows() >= np.minimum(held, 1)).all()
    compare(host, ring, memory.data)


def test_a_mapped_ring_is_the_same_and_a_restored_one_goes_on(tmp_path):
    stream = Stream(0, 3, True)
    parts = [stream.next() for _ in range(16)]
    (tmp_path / "one").mkdir()
    plain, mapped = HostRing(parts[0], 40, 3, 3), HostRing(parts[0], 40, 3, 3, folder=tmp_path / "one")
    for part in parts[:12]:
        plain.add(part)
        mapped.add(part)
    assert all(isinstance(x, np.memmap) for name, x in mapped.state().items() if name.startswith("frames-"))
    assert list((tmp_path / "one").iterdir()) == [], "the files have no names"
    assert (
        mapped.filled
        == plain.filled
        == plain.windows().sum() / (plain._layout.size * B) + 2 / plain._layout.size
    )
    resumed = HostRing(parts[0], 40, 3, 3)
    resumed.restore({name: x.copy() for name, x in mapped.state().items()})
    for part in parts[12:]:
        plain.add(part)
        resumed.add(part)
    np.testing.assert_array_equal(plain.windows(), resumed.windows())
    row = np.repeat(np.arange(B), plain.windows())
    age = np.concatenate([np.arange(w) for w in plain.windows()])
    for a, b in zip(
        jax.tree.leaves(plain.take(row, age)), jax.tree.leaves(resumed.take(row, age)), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(CheckpointError, match="buffer_size"):
        HostRing(parts[0], 400, 3, 3).restore(plain.state())


def example(obs: np.ndarray, action: np.ndarray) -> Transition:
    """One step of one row, as small as it can be."""
    over = np.zeros((1, 1), bool)
    return Transition(obs, action, np.zeros((1, 1), np.float32), over, over, obs, ())


ATARI = example(np.zeros((1, 1, 84, 84, 1), np.uint8), np.zeros((1, 1), np.int32))


def test_a_million_atari_steps_fit_into_8_gb():
    small = HostRing(ATARI, 200, frame_stack=4)
    assert small.nbytes == HostRing.predicted_bytes(ATARI, 200, frame_stack=4)
    assert HostRing.predicted_bytes(ATARI, 1_000_000, frame_stack=4) <= 8_000_000_000


def test_five_million_references_fit_into_half_a_gb():
    part = example(np.zeros((1, 1), np.int64), np.zeros((1, 1, 3), np.float32))
    assert HostRing(part, 300, 3).nbytes == HostRing.predicted_bytes(part, 300, 3)
    assert HostRing.predicted_bytes(part, 5_000_000, 3) <= 500_000_000


def test_references_are_resolved_when_sampling():
    known = np.arange(1000, dtype=np.float32) * 10

    def resolve(index: np.ndarray) -> np.ndarray:
        return known[index]

    part = example(np.zeros((1, 1), np.int64), np.zeros((1, 1), np.int32))
    host = HostRing(part, 100, n_step=2, frame_stack=2, resolve=resolve)
    for i in range(7, 12):
        host.add(part._replace(obs=np.full((1, 1), i), next_obs=np.full((1, 1), i + 1)))
    data = host.take(np.array([0, 0]), np.array([0, 3])).data
    np.testing.assert_array_equal(data.obs, [[70, 70], [90, 100]])
    np.testing.assert_array_equal(data.next_obs, [[80, 90], [110, 120]])


def test_an_observation_is_kept_once():
    """An episode of E steps takes E + 1 places."""
    stream = Stream(1, 1, False, ends=0.0)
    stream.random = np.random.default_rng(1)
    part = stream.next()
    chained = part._replace(
        next_obs=jax.tree.map(lambda o, n: np.concatenate([o[1:], n[-1:]]), part.obs, part.next_obs)
    )
    host = HostRing(chained, 100)
    host.add(chained)
    np.testing.assert_array_equal(host.state()["pushed"], T + 1)


def test_the_bytes_of_a_device_replay_are_predicted():
    part = jax.tree.map(
        jnp.asarray, example(np.zeros((1, 1, 11), np.float32), np.zeros((1, 1, 3), np.float32))
    )
    for replay in (Ring(300, 4), Prioritised(300, 4, 3)):
        held = sum(x.nbytes for x in jax.tree.leaves(replay.init(part)))
        assert size.replay_bytes(replay, part) == held


def test_a_buffer_that_does_not_fit_is_refused_with_one_that_would():
    size.check_fits(100, 100, "memory", 10)
    size.check_fits(10**15, None, "memory", 10)
    with pytest.raises(
        ConfigError, match=r"buffer_size=1000 .*5000000 bytes.* of host memory.* at most 200\."
    ):
        size.check_fits(5_000_000, 1_000_000, "host memory", 1000)
    with pytest.raises(ConfigError, match="Not even one"):
        size.check_fits(5_000_000, 1, "host memory", 1000)


def test_free_memory_is_the_least_that_the_system_leaves(tmp_path, monkeypatch):
    monkeypatch.setattr(size, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(size, "CGROUPS", ((tmp_path, "memory.max", "memory.current"),))
    assert size.free_bytes() is None
    (tmp_path / "meminfo").write_text("MemTotal:  99 kB\nMemAvailable:      50 kB\n")
    assert size.free_bytes() == 50 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("20000\n")
    assert size.free_bytes() == 50 * 1024
    (tmp_path / "memory.max").write_text("30000\n")
    assert size.free_bytes() == 10_000
    (tmp_path / "memory.stat").write_text("active_file 7\ninactive_file 500\n")
    assert size.free_bytes() == 10_500


def test_what_is_mapped_and_what_stays_in_memory_is_everything(tmp_path):
    mapped = HostRing.mapped_bytes(ATARI, 40)
    ring = HostRing(ATARI, 40, folder=tmp_path)
    assert mapped == sum(x.nbytes for x in ring.state().values() if isinstance(x, np.memmap))
    assert 0 < mapped < HostRing.predicted_bytes(ATARI, 40) == ring.nbytes
