"""Supervised worker processes: what they survive and what they leave behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.envs.gymnasium import GymRows
from sparring.envs.source import Factory, GymId, InFile
from sparring.envs.workers import MAX_FAILURES, WorkerRows
from sparring.errors import ConfigError, EnvironmentFailure, MissingExtra, UnknownName

OWN = Path(__file__).parents[1] / "contract" / "own_envs.py"
ROOT = Path(__file__).parents[2]
OK, RAISE, KILL, SEGFAULT, EXIT, HANG, NAN = range(7)
KINDS = [RAISE, KILL, SEGFAULT, EXIT, HANG]
SAYS = {
    RAISE: "raised EnvironmentFailure",
    KILL: "was killed by SIGKILL",
    SEGFAULT: "was killed by SIGSEGV",
    EXIT: "died with exit code 7",
    HANG: "did not answer within 1 s",
    NAN: "not finite",
}


def faulty(rows: int, **options: Any) -> WorkerRows:
    return WorkerRows([InFile(f"{OWN}:Faulty")] * rows, n_workers=rows, deadline=1.0, **options)


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


def acted(*choices: int) -> np.ndarray:
    return np.array(choices, np.int32)


@pytest.mark.slow
def test_fifty_faults_are_survived() -> None:
    rows = faulty(5)
    pids = [process.pid for process in rows.processes]
    first = rows.reset(3)
    reference = GymRows([InFile(f"{OWN}:Faulty")] * 5)
    faults, best = 0, {kind: float("inf") for kind in KINDS}
    for round_ in range(8):
        for _ in range(2):
            good = rows.step(acted(OK, OK, OK, OK, OK))
            assert good.lost is None
            assert good.reward.tolist() == [1.0] * 5
        kinds = np.roll(KINDS, round_)  # every row fails in another way each round
        result = rows.step(kinds.astype(np.int32))
        faults += 5
        assert result.lost is not None
        assert result.lost.all()
        assert not result.reward.any()
        assert not (result.terminated | result.truncated).any()
        assert np.array_equal(result.obs, result.next_obs)
        # The new episode is the one that (seed, row, episode) names, so nothing depends on the fault.
        assert np.array_equal(result.obs[:, :2], reference.start(3, [round_ + 1] * 5).obs[:, :2])
        events = rows.events()
        assert len(events) == 5
        for row, kind in enumerate(kinds):
            (event,) = [event for event in events if f"(row {row} of" in event]
            assert SAYS[int(kind)] in event
        pids += [process.pid for process in rows.processes]
    for row, kind in 2 * list(enumerate(KINDS)):  # one at a time, to time the replacement
        action = acted(OK, OK, OK, OK, OK)
        action[row] = kind
        begun = time.monotonic()
        result = rows.step(action)
        best[kind] = min(best[kind], time.monotonic() - begun)
        faults += 1
        assert result.lost is not None
        assert np.flatnonzero(result.lost).tolist() == [row]
        assert result.reward.sum() == 4.0
        assert result.obs[row, 0] == 0
        pids += [process.pid for process in rows.processes]
    assert faults == 50
    assert first.obs.shape == (5, 3)
    begun = time.monotonic()
    rows.close()
    assert time.monotonic() - begun <= 5
    assert not any(alive(pid) for pid in set(pids) if pid is not None)
    assert not multiprocessing.active_children()
    for kind, seconds in best.items():
        assert seconds <= 2.0 + (1.0 if kind == HANG else 0.0), (SAYS[kind], seconds)


def test_a_non_finite_observation_costs_the_episode_not_the_run() -> None:
    rows = faulty(2)
    rows.reset(0)
    result = rows.step(acted(OK, NAN))
    assert result.lost is not None
    assert result.lost.tolist() == [False, True]
    assert SAYS[NAN] in rows.events()[0]
    rows.close()


def test_a_worker_loses_all_its_rows_and_only_those() -> None:
    rows = WorkerRows([InFile(f"{OWN}:Faulty")] * 4, n_workers=2, deadline=5.0)
    rows.reset(0)
    result = rows.step(acted(OK, RAISE, OK, OK))
    assert result.lost is not None
    assert result.lost.tolist() == [True, True, False, False]
    assert result.reward.tolist() == [0, 0, 1, 1]
    assert "rows 0-1" in rows.events()[0]
    rows.close()


@pytest.mark.parametrize("kind", [RAISE, HANG, KILL])
def test_a_fault_in_reset_is_survived(kind: int, tmp_path: Path) -> None:
    kwargs = {"first_reset": kind, "marker": str(tmp_path / "failed")}
    rows = WorkerRows([InFile(f"{OWN}:Faulty", kwargs)], n_workers=1, deadline=1.0)
    assert rows.reset(0).lost is None
    assert len(rows.events()) == 1
    assert rows.step(acted(OK)).lost is None
    rows.close()


def test_an_environment_that_never_works_stops_the_run_with_its_traceback() -> None:
    rows = WorkerRows([InFile(f"{OWN}:Faulty", {"always_fails": True})], n_workers=1)
    rows.reset(0)
    for _ in range(MAX_FAILURES - 1):
        assert rows.step(acted(OK)).lost is not None
    with pytest.raises(EnvironmentFailure, match=f"failed {MAX_FAILURES} times in a row") as caught:
        rows.step(acted(OK))
    assert "broken on purpose" in str(caught.value)
    assert "Traceback" in str(caught.value)
    rows.close()


def test_a_worker_killed_between_steps_is_noticed_in_the_next() -> None:
    rows = faulty(2)
    rows.reset(0)
    rows.step(acted(OK, OK))
    pid = rows.processes[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    snapshot = rows.snapshot()
    assert snapshot["length"].tolist() == [-1, 1]
    result = rows.step(acted(OK, OK))
    assert result.lost is not None
    assert result.lost.tolist() == [True, False]
    restored = rows.restore(snapshot, 0)
    assert restored.lost is not None
    assert restored.lost.tolist() == [True, False]
    rows.close()


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (GymId("NoSuch-v0"), UnknownName),
        (GymId("CartPole-v1", {"wheels": 4}), ConfigError),
        (InFile(f"{OWN}:Nothing"), UnknownName),
        (InFile(f"{OWN}:needs_a_package"), MissingExtra),
    ],
)
def test_what_cannot_be_built_is_said_at_once(source: Any, error: type[Exception], tmp_path: Path) -> None:
    if source == InFile(f"{OWN}:needs_a_package"):
        own = tmp_path / "own.py"
        own.write_text("def make():\n    import mujoco_that_is_not_there\n")
        source = InFile(f"{own}:make")
    with pytest.raises(error):
        WorkerRows([source], n_workers=1)
    assert not multiprocessing.active_children()


def test_a_factory_without_a_name_cannot_travel() -> None:
    with pytest.raises(ConfigError, match="inline"):
        WorkerRows([Factory(lambda: None)])


def test_use_after_close_is_refused() -> None:
    rows = faulty(1)
    rows.reset(0)
    rows.close()
    with pytest.raises(EnvironmentFailure, match="close"):
        rows.step(acted(OK))


def test_numbers_in_infos_travel() -> None:
    rows = faulty(2)
    rows.reset(0)
    rows.step(acted(OK, OK))
    assert rows.last_infos == [{"t": 1.0}, {"t": 1.0}]
    rows.close()


def test_workers_do_not_load_jax() -> None:
    import jax

    jax.devices()
    rows = faulty(1)
    assert rows.reset(0).obs[0, 2] == 0.0
    rows.close()


def test_an_object_that_is_forgotten_leaves_no_process() -> None:
    rows = faulty(1)
    pid = rows.processes[0].pid
    assert pid is not None
    del rows
    assert not alive(pid)


def script(body: str, tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(
        textwrap.dedent(
            f"""
            import sys
            sys.path.insert(0, {str(ROOT)!r})
            import numpy as np
            from sparring.envs.source import InFile
            from sparring.envs.workers import WorkerRows
            print("main", flush=True)
            """
        )
        + textwrap.dedent(body)
    )
    return path


def test_a_script_without_a_main_guard_runs_once(tmp_path: Path) -> None:
    path = script(
        f"""
        rows = WorkerRows([InFile({f"{OWN}:Faulty"!r})] * 2, n_workers=2)
        rows.reset(0)
        rows.step(np.zeros(2, np.int32))
        print("pids", *(p.pid for p in rows.processes), flush=True)
        """,
        tmp_path,
    )
    out = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=60, check=False)
    assert out.returncode == 0, out.stderr
    assert out.stdout.count("main") == 1
    assert out.stderr == ""
    assert not any(alive(int(pid)) for pid in out.stdout.split("pids")[1].split())


def test_workers_die_with_their_supervisor_even_while_they_hang(tmp_path: Path) -> None:
    path = script(
        f"""
        rows = WorkerRows([InFile({f"{OWN}:Faulty"!r})] * 2, n_workers=2, deadline=1000)
        rows.reset(0)
        print("pids", *(p.pid for p in rows.processes), flush=True)
        rows.step(np.full(2, {HANG}, np.int32))
        """,
        tmp_path,
    )
    with subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pids = []
        for line in process.stdout:
            if line.startswith("pids"):
                pids = [int(pid) for pid in line.split()[1:]]
                break
        time.sleep(0.3)
        process.kill()
    assert len(pids) == 2
    end = time.monotonic() + 10
    while any(alive(pid) for pid in pids) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in pids)


def test_the_same_steps_as_in_process_bit_for_bit() -> None:
    sources = [GymId("CartPole-v1")] * 5
    apart, inline = WorkerRows(sources, n_workers=2), GymRows(sources)
    generator = np.random.default_rng(0)
    assert apart.spec == inline.spec
    a, b = apart.reset(11), inline.reset(11)
    for _ in range(300):
        for x, y in zip(a, b, strict=True):
            assert (x is None) == (y is None)
            if x is not None:
                assert x.tobytes() == y.tobytes()
        action = generator.integers(0, 2, 5).astype(np.int32)
        a, b = apart.step(action), inline.step(action)
    ours, theirs = apart.snapshot(), inline.snapshot()
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    other = GymRows(sources)
    assert np.array_equal(other.restore(ours, 11).obs, apart.restore(theirs, 11).obs)
    apart.close()
