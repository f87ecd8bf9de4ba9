"""The asynchronous driver: what actors make is learned from once, whoever dies meanwhile."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from sparring.config import from_mapping
from sparring.drivers import async_
from sparring.drivers.acting import Acting, Job
from sparring.drivers.async_ import Async, Crew
from sparring.drivers.collector import Chunk
from sparring.drivers.seats import DEPTH, Seat, ThreadSeat, Trouble, raised
from sparring.drivers.slot import MemorySlot, Slot
from sparring.envs import registry
from sparring.errors import ConfigError, EnvironmentFailure
from sparring.metrics import sqlite
from sparring.model import _unread, algorithm_class, assemble
from sparring.runs import checkpoint
from sparring.session import Settings

TINY: dict[str, Any] = {
    "net_arch": [8],
    "train_freq": 4,
    "sequence_length": 4,
    "batch_size": 4,
    "buffer_size": 640,
    "learning_starts": 16,
    "sample_reuse": 1,
}


def made(
    crew: Crew, rows: int = 4, algorithm: str = "gdi", env: str = "CartPole-v1", **settings: Any
) -> Async:
    cls = algorithm_class(algorithm)
    world = registry.make(env, n_envs=rows)
    tiny = {name: value for name, value in TINY.items() if hasattr(cls.Config, name)}
    algo = cls(replace(world.spec, rows=rows), from_mapping(cls.Config, {**tiny, **settings}), 100.0)
    return Async(algo, registry.host(world, rows), env, 0, crew=crew)


class HandSeat(Seat):
    """An actor that makes a chunk when the test says so."""

    def __init__(self, job: Job, slot: Slot, template: Chunk, arrived: threading.Condition) -> None:
        super().__init__(job, slot, template, arrived)
        self.permits = DEPTH
        self._chunks: Iterator[Chunk] | None = None

    def make(self, count: int = 1) -> None:
        if self._chunks is None:
            self._chunks = Acting(self.job, self._slot).chunks()
        for _ in range(count):
            assert self.permits > 0
            self.permits -= 1
            self._arrive(next(self._chunks))

    def die(self) -> None:
        self._fail(Trouble("was killed by the test"))

    def permit(self) -> None:
        self.permits += 1

    def close(self) -> None:
        """Nothing runs."""

    def _pulse(self) -> int:
        return time.monotonic_ns()


class ByHand(Async):
    """An asynchronous driver with such actors."""

    def _made_seat(self, job: Job) -> Seat:
        assert self._slot is not None
        return HandSeat(job, self._slot, self._template, self._arrived)

    @property
    def seats(self) -> list[HandSeat]:
        self._start()
        return self._seats  # type: ignore[return-value]


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ByHand]:
    monkeypatch.setitem(globals(), "Async", ByHand)
    return lambda **crew: made(Crew(kind="thread", **crew))  # type: ignore[return-value]


def written(driver: Async) -> list[int]:
    """Steps in the replay of every row."""
    return [int(n) for n in driver.learner.replay.data.store.written]


@pytest.mark.slow
def test_an_iteration_takes_as_many_chunks_as_there_are_actors(by_hand: Callable[..., ByHand]) -> None:
    driver = by_hand(actors=2)
    one, two = driver.seats
    one.make()
    two.make()
    trace = driver.advance(1)[0]
    assert written(driver) == [4, 4, 4, 4]
    assert trace["async/queue"] == 2
    assert (one.permits, two.permits) == (DEPTH, DEPTH)

    one.make(2)  # the other is late: two chunks of one are an iteration too
    driver.advance(1)
    assert written(driver) == [12, 12, 4, 4]
    assert int(driver.train_state().iteration) == driver.iteration == 2

    one.make(2)  # the second one waits for the next iteration and is older by one then
    two.make()
    assert driver.advance(1)[0]["async/staleness"] == 0
    two.make()
    trace = driver.advance(1)[0]
    assert trace["async/staleness"] == 0.5 * driver.algo.plan.updates
    assert written(driver) == [20, 20, 12, 12]
    assert sum(written(driver)) == 4 * driver.steps_per_iteration


@pytest.mark.slow
def test_a_late_actors_episode_goes_on_where_it_was(by_hand: Callable[..., ByHand]) -> None:
    driver = by_hand(actors=2)
    one, two = driver.seats
    one.make()
    two.make()
    driver.advance(1)  # both have begun an episode in the first step
    one.make(2)
    driver.advance(1)
    data = driver.learner.replay.data.store.data
    assert not np.asarray(data.terminated | data.truncated)[:4, 2:].any()  # CartPole stands for longer


@pytest.mark.slow
def test_a_dead_actor_loses_what_it_was_making_and_nothing_else(by_hand: Callable[..., ByHand]) -> None:
    driver = by_hand(actors=2)
    one, two = driver.seats
    one.make(2)
    two.make()
    before = driver.actor.control.state
    one.die()
    driver.advance(1)
    again = driver.seats[0]
    assert again is not one
    assert again.job.life != one.job.life
    assert len(again.chunks) == 1  # what the dead one had sent is still learned from
    assert driver.replaced == 1
    assert "Actor 0 was killed by the test and was replaced" in driver.events()[0]
    assert driver.events() == []
    again.make()
    two.make()
    driver.advance(1)
    assert again.permits == DEPTH - 1, "an inherited chunk is not one of its own"
    two.make()
    driver.advance(1)
    assert written(driver) == [12, 12, 12, 12]
    # Where its successor began, the replay saw the old episodes break off, and nobody was credited.
    data = driver.learner.replay.data
    assert np.all(np.asarray(data.step)[8, :2] == 0)
    assert np.all(np.asarray(data.store.data.truncated | data.store.data.terminated)[7, :2])
    assert jax.tree.structure(before) == jax.tree.structure(driver.actor.control.state)


@pytest.mark.slow
def test_an_actor_is_replaced_in_the_long_run_and_finds_weights(by_hand: Callable[..., ByHand]) -> None:
    driver = by_hand(actors=1)
    driver.seats[0].make()
    driver.advance(1)
    driver._slot = MemorySlot()  # lost with all it held, as where a node goes
    driver.iteration = 3_000_000
    driver.seats[0].die()
    driver._mend()
    driver.seats[0].make()
    driver.advance(1)
    assert driver.iteration == 3_000_001


def test_an_actor_that_never_comes_up_ends_the_run(by_hand: Callable[..., ByHand]) -> None:
    driver = by_hand(actors=2)
    for _ in range(async_.MAX_FAILURES - 1):
        driver.seats[1].die()
        driver._mend()
    driver.seats[1].die()
    with pytest.raises(EnvironmentFailure, match=r"Actor 1 was killed by the test, 10 times in a row"):
        driver._mend()
    refusal = ConfigError("no such thing")
    driver = by_hand(actors=2)
    driver.seats[0]._fail(Trouble("raised", refusal=refusal))
    with pytest.raises(ConfigError, match="no such thing"):
        driver._mend()


TRACEBACK = """Traceback (most recent call last):
  File "env.py", line 3, in step
    raise RuntimeError("boom")
RuntimeError: boom {action}

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "gymnasium.py", line 9, in step
    raise failure
EnvironmentFailure: row 0 raised RuntimeError: boom {action}. The traceback above is the environment's own."""


def boom(action: int) -> Trouble:
    details = TRACEBACK.format(action=action)
    return raised("EnvironmentFailure", details.rpartition("EnvironmentFailure: ")[2], details, True)


def test_an_actor_that_raises_again_and_again_ends_the_run_and_is_shown_once(
    by_hand: Callable[..., ByHand],
) -> None:
    driver = by_hand(actors=2)
    for action in range(async_.MAX_FAILURES - 1):
        driver.seats[0].made = 1  # it gets so far every time
        driver.seats[0]._fail(boom(action))
        driver._mend()
    first, *others = driver.events()
    assert first.endswith(
        "was replaced; its unfinished sequences are lost.\nTraceback (most recent call last):\n"
        '  File "env.py", line 3, in step\n    raise RuntimeError("boom")\nRuntimeError: boom 0'
    )
    assert not any("Traceback" in line or "traceback above" in line for line in others)
    driver.seats[0].made = 1
    driver.seats[0]._fail(boom(9))
    with pytest.raises(EnvironmentFailure, match=r"boom 9, 10 times in a row with fewer than 20 chunks"):
        driver._mend()


@pytest.mark.parametrize(
    ("made_chunks", "trouble"),
    [(1, Trouble("was killed by SIGKILL", killed=True)), (async_.FEW_CHUNKS, boom(0))],
)
def test_an_actor_that_was_well_is_replaced_for_ever(
    by_hand: Callable[..., ByHand], made_chunks: int, trouble: Trouble
) -> None:
    driver = by_hand(actors=2)
    for _ in range(3 * async_.MAX_FAILURES):
        driver.seats[0].made = made_chunks
        driver.seats[0]._fail(trouble)
        driver._mend()
    assert driver.replaced == 3 * async_.MAX_FAILURES


def test_a_failure_before_the_first_chunk_brings_its_traceback_along(by_hand: Callable[..., ByHand]) -> None:
    driver = by_hand(actors=2)
    driver.seats[0]._fail(boom(0))
    with pytest.raises(EnvironmentFailure, match=r"(?s)raised RuntimeError: boom 0.*env\.py.*boom 0$"):
        driver._mend()


@pytest.mark.slow
def test_the_bandit_learns_from_the_actors_episodes(by_hand: Callable[..., ByHand]) -> None:
    driver = by_hand(actors=2)
    for _ in range(16):
        for seat in driver.seats:
            seat.make()
        newest = np.concatenate([seat.chunks[-1].rollout.point[-1] for seat in driver.seats])
        driver.advance(1)
        np.testing.assert_array_equal(driver.acting().control.choice.point, newest)  # what is evaluated
    finished = int(driver.learner.episodes.finished)
    assert finished > 2  # CartPole falls after ten to sixty random steps
    assert int(driver.actor.control.state.pool.held) == finished
    pulled = driver._slot.pull(-1)  # type: ignore[union-attr]
    assert pulled is not None
    assert pulled[0] == driver.iteration
    assert any(name.startswith("bandit") for name in pulled[1])


@pytest.mark.slow
def test_threads_train_and_say_how_they_keep_up() -> None:
    driver = made(Crew(actors=2, kind="thread", pull=2, push=2))
    try:
        assert isinstance(driver._open_slot(), MemorySlot)
        traces = driver.advance(12)[0]
        assert isinstance(driver._seats[0], ThreadSeat)
    finally:
        driver.close()
    assert int(sum(written(driver))) == 12 * driver.steps_per_iteration
    for name in ("staleness", "queue", "samples_per_insert", "learner_idle", "actor_idle", "actors_replaced"):
        assert traces[f"async/{name}"].shape == (12,)
    assert np.all(traces["async/staleness"] >= 0)
    assert traces["async/samples_per_insert"][-1] > 0
    assert np.all(traces["async/actors_replaced"] == 0)
    # The saved state brings learner and bandit back.
    other = made(Crew(actors=2, kind="thread"))
    other.restore(driver.state(), driver.iteration)
    other.restore_world({})
    assert "start anew" in other.events()[0]
    assert jax.tree.all(jax.tree.map(np.array_equal, driver.state(), other.state()))


def test_a_shared_folder_of_weights_is_swept_by_each_machine_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened() -> Path:
        driver = object.__new__(Async)
        driver.crew = Crew(slot="file", folder=str(tmp_path))
        driver._open_slot()
        assert driver._folder is not None
        return driver._folder

    def killed(pid: int, number: int) -> None:
        raise ProcessLookupError

    here = opened()
    monkeypatch.setattr(socket, "gethostname", lambda: "else-where.9")
    there = opened()
    monkeypatch.undo()
    monkeypatch.setattr(os, "kill", killed)  # no process here has either number
    again = opened()
    assert set(tmp_path.iterdir()) == {there, again}
    assert here != again


@pytest.mark.parametrize(
    ("driver", "needed"),
    [
        ("auto", "driver=async or driver=cluster"),
        ("async", "slot=file"),
        ("cluster", "driver=async and slot=file"),
    ],
)
def test_a_folder_for_weights_that_nobody_reads_is_told(driver: Any, needed: str) -> None:
    given = Settings(driver=driver, slot_folder="weights")
    assert _unread(given) == [f"Nothing reads slot_folder without {needed}."]
    assert _unread(replace(given, slot_folder="")) == []
    told = _unread(replace(given, slot_folder="", backend="workers"))
    assert [("backend" in warning) for warning in told] == ([] if driver == "auto" else [True])


@pytest.mark.parametrize(("rows", "actors"), [(1, 1), (3, 1), (4, 2)])
def test_as_many_actors_as_share_the_rows(rows: int, actors: int) -> None:
    cls, settings = algorithm_class("dqn"), Settings(driver="async", actor_kind="thread", n_envs=rows)
    made = assemble(cls, "CartPole-v1", settings, cls.Config(buffer_size=100), (0,), eval_env=False)
    made.driver.close()
    assert isinstance(made.driver, Async)
    assert made.driver.crew.actors == actors


def test_what_cannot_be_asynchronous_is_refused() -> None:
    def attempt(
        algorithm: str, env: Any = "CartPole-v1", seeds: tuple[int, ...] = (0,), **settings: Any
    ) -> None:
        cls = algorithm_class(algorithm)
        assemble(cls, env, Settings(**{"driver": "async", **settings}), cls.Config(), seeds)

    with pytest.raises(ConfigError, match=r"PPO learns from what.*and driver=cluster act.*Use gdi, dqn"):
        attempt("ppo", n_envs=2, driver="cluster")
    with pytest.raises(ConfigError, match=r"n_envs=3 rows cannot be shared evenly by actors=2.*n_envs=4"):
        attempt("gdi", n_envs=3, actors=2)
    with pytest.raises(ConfigError, match="one seed at a time"):
        attempt("gdi", n_envs=2, seeds=(0, 1))
    with pytest.raises(ConfigError, match=r"driver=async and driver=cluster build.*need an id"):
        attempt("gdi", env=registry.make("CartPole-v1"), n_envs=2, driver="cluster")
    with pytest.raises(ConfigError, match="learner_push"):
        attempt("gdi", n_envs=2, learner_push=0)
    with pytest.raises(ConfigError, match="slot=file and actor_kind=process are for driver=async"):
        attempt("gdi", n_envs=2, driver="cluster", slot="file")


NOTING = """
import os
from pathlib import Path
import gymnasium as gym, numpy as np
class Noting(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    def __init__(self):
        self.note("opened")
    def note(self, what):
        with Path(__file__).with_name(f"{what}-{os.getpid()}").open("a") as notes:
            notes.write("x")
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}
    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), 1.0, self.t == 3, False, {"t": self.t, "a/b%2F ü": self.t}
    def close(self):
        self.note("closed")
"""


@pytest.mark.slow
def test_an_actors_process_tells_infos_ignores_sigterm_and_closes_its_environments(tmp_path: Path) -> None:
    (tmp_path / "noting.py").write_text(NOTING)
    driver = made(Crew(actors=2), env=f"{tmp_path / 'noting.py'}:Noting")
    try:
        driver.advance(2)
        actors: list[Any] = [seat.process for seat in driver._seats]  # type: ignore[attr-defined]
        for actor in actors:
            os.kill(actor.pid, signal.SIGTERM)  # as one to the whole group does
        told = driver.advance(4)[0]
        assert driver.replaced == 0
        for kind, value in (("sum", 6), ("mean", 2), ("last", 3)):  # of steps 1, 2, 3; any name will do
            assert told[f"env/t_{kind}"][-1] == told[f"env/a/b%2F ü_{kind}"][-1] == value
    finally:
        driver.close()
    for actor in actors:
        opened, closed = ((tmp_path / f"{what}-{actor.pid}").read_text() for what in ("opened", "closed"))
        assert len(opened) >= 2
        assert opened == closed
        assert actor.exitcode == 0


UNCLOSED = """
import sys
sys.path.insert(0, sys.argv[1])
from test_async import Crew, made
if __name__ == "__main__":
    driver = made(Crew(actors=1), env=sys.argv[2])
    driver.advance(2)
    print(driver._seats[0].process.pid)
"""


@pytest.mark.slow
def test_an_interpreter_that_exits_without_closing_ends_its_actors(tmp_path: Path) -> None:
    (tmp_path / "noting.py").write_text(NOTING)
    command = [sys.executable, "-c", UNCLOSED, str(Path(__file__).parent), f"{tmp_path / 'noting.py'}:Noting"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    opened, closed = (tmp_path / f"{what}-{done.stdout.strip()}" for what in ("opened", "closed"))
    assert opened.read_text() == closed.read_text()


PROGRAM = """
import sys
from pathlib import Path
from sparring import launch
from sparring.runs import directory
folder = Path(sys.argv[1])
values = dict(net_arch=[8], train_freq=4, sequence_length=4, batch_size=4, sample_reuse=1, learning_starts=16,
              buffer_size=2000, n_envs=4, driver="async", actors=2, slot="file", slot_folder=sys.argv[2],
              evaluation="inline", eval_freq=-1, n_eval_episodes=1, total_timesteps=int(sys.argv[3]),
              checkpoint_freq=160)
if folder.exists():
    launch.resume(directory.find(folder), say=lambda text: print(text, flush=True))
else:
    plan = launch.plan("gdi", "gym:CartPole-v1", (0,), values=values, use_preset=False)
    launch.train(plan, run_dir=folder, say=lambda text: print(text, flush=True))
"""


def children(pid: int) -> list[int]:
    """The actors of a learner, by what Linux says of its processes."""
    found = []
    for place in Path("/proc").iterdir():
        try:
            parent = int((place / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if place.name.isdigit() and parent == pid and b"spawn_main" in (place / "cmdline").read_bytes():
                found.append(int(place.name))
        except (OSError, IndexError, ValueError):
            continue
    return found


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_killed_actors_and_a_killed_learner(tmp_path: Path) -> None:
    """One actor killed, then the learner: the run resumes, ends normally, and every file is whole.

    `benchmarks/kills_async.py` does it fifty and ten times.
    """
    folder, slots, log = tmp_path / "run", tmp_path / "slots", tmp_path / "log"

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", PROGRAM, str(folder), str(slots), "1600"]
        with log.open("a") as out:
            return subprocess.Popen(command, stdout=out, stderr=out)

    def wait_for(what: Callable[[], bool]) -> None:
        end = time.monotonic() + 120
        while not what():
            assert time.monotonic() < end, log.read_text()
            assert process.poll() is None, log.read_text()
            time.sleep(0.02)

    process = start()
    wait_for(lambda: len(children(process.pid)) >= 2 and bool(checkpoint.listing(folder / "checkpoints")))
    os.kill(children(process.pid)[0], signal.SIGKILL)
    wait_for(lambda: "was replaced" in log.read_text())
    actors = children(process.pid)
    process.kill()
    process.wait()
    end = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in actors):
        assert time.monotonic() < end, "an actor outlived its learner"
        time.sleep(0.05)

    process = start()
    assert process.wait(120) == 0, log.read_text()
    assert "was killed by SIGKILL and was replaced" in log.read_text()
    assert "the actors' episodes start anew" in log.read_text()
    for place in checkpoint.listing(folder / "checkpoints"):
        checkpoint.verify(place)
    assert not list((folder / "checkpoints").glob(".corrupt-*"))
    assert not list(slots.iterdir()), "weights of a killed learner were left behind"
    steps = sqlite.read(folder / "metrics.sqlite", "async/staleness").steps
    assert list(steps) == sorted(set(steps))
    assert steps[-1] == 1600


FOUR_DEVICES = """
import sys
sys.path.insert(0, sys.argv[1])
import jax, numpy as np
from test_async import ByHand, Crew, DEPTH
import test_async
from sparring.drivers import host, loop
test_async.Async = ByHand
assert len(jax.devices()) == 4

def trained(mesh, **settings):
    loop.mesh_for, before = (loop.mesh_for if mesh else lambda size: None), loop.mesh_for
    driver = test_async.made(Crew(kind="thread", actors=2), batch_size=8, **settings)
    loop.mesh_for = before
    for _ in range(5):
        for seat in driver.seats:
            seat.make()
        driver.advance(1)
    return driver

settings = {"algorithm": "dqn", "buffer": "host"} if sys.argv[2] == "host" else {}
one, four = trained(False, **settings), trained(True, **settings)
assert one._mesh is None and four._mesh.size == 4
if four._ring is None:
    program = four._programs[True].lower(four._floats, four._kept, four._live, four._data, four._rollout(),
                                         four._key, np.int32(0))
else:
    program = host._learn_from.lower(four.algo, four.learner, four._rollout(), four._drawn(), four._key,
                                     np.int32(0))
print("all-reduce" in program.compile().as_text())
pairs = zip(jax.tree.leaves(one.train_state()), jax.tree.leaves(four.train_state()), strict=True)
print(max(float(np.max(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)))) for a, b in pairs))
print(int(one.train_state().updates))
"""


@pytest.mark.slow
@pytest.mark.parametrize("replay", ["device", "host"])
def test_four_devices_make_the_update_of_one(replay: str) -> None:
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", FOUR_DEVICES, str(Path(__file__).parent), replay]
    found = subprocess.run(command, env={**os.environ, **flags}, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    divided, distance, updates = found.stdout.split()
    assert divided == "True"
    assert float(distance) < 1e-5
    assert int(updates) >= 4
