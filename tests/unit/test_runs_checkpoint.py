"""Checkpoints are complete or absent, and any damage is seen."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparring.errors import CheckpointError, DivergedError, StorageError
from sparring.runs import checkpoint, sealed
from sparring.runs.provenance import provenance

ORIGIN = {"jax": "0", "device": "cpu"}


class State(NamedTuple):
    params: dict[str, Any]
    count: Any


def state(step: int) -> State:
    return State({"w": jnp.full((8, 4), step, jnp.float32), "h": jnp.ones(3, jnp.bfloat16)}, jnp.int32(step))


TEMPLATE = jax.eval_shape(lambda: state(0))


def save(folder: Path, step: int, **options: Any) -> Path:
    """A small checkpoint without provenance lookups, for tests that save hundreds of times."""
    arrays = {"w": np.full(64, step, np.float32), "n": np.asarray(step)}
    return checkpoint.save_arrays(folder, arrays, step=step, iteration=step, provenance=ORIGIN, **options)


def strict(text: str) -> None:
    raise AssertionError(f"unexpected report: {text}")


def test_a_state_comes_back_with_its_journals_and_facts(tmp_path: Path) -> None:
    host = {"row0/actions": np.arange(5, dtype=np.int64), "row0/obs": np.array([np.nan, 1.0])}
    facts = {"seed": 3, "config": {"learning_rate": 1e-3}, "score": None}
    path = checkpoint.save(tmp_path, state(7), step=123456, iteration=9, host=host, metadata=facts)
    assert path == tmp_path / "step-000000123456"
    loaded = checkpoint.load_latest(tmp_path, strict)
    assert loaded is not None
    restored = loaded.restore(TEMPLATE)
    for a, b in zip(jax.tree.leaves(restored), jax.tree.leaves(state(7)), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    assert loaded.host is not None
    np.testing.assert_array_equal(loaded.host["row0/actions"], host["row0/actions"])
    np.testing.assert_array_equal(loaded.host["row0/obs"], host["row0/obs"])
    manifest = loaded.manifest
    assert (manifest.step, manifest.iteration, manifest.metadata) == (123456, 9, facts)
    assert checkpoint.Leaf("params/h", (3,), "bfloat16") in manifest.leaves
    assert {"sparring", "jax", "jaxlib", "numpy", "python", "platform", "device", "cores"} <= set(
        manifest.provenance
    )


def test_an_empty_folder_has_no_checkpoint(tmp_path: Path) -> None:
    assert checkpoint.load_latest(tmp_path / "nowhere", strict) is None
    assert checkpoint.load_latest(tmp_path, strict) is None


def test_the_last_k_and_the_best_are_kept(tmp_path: Path) -> None:
    for step in range(1, 9):
        save(tmp_path, step, keep=2, best=step in (2, 4))
    assert [p.name for p in checkpoint.listing(tmp_path)] == [f"step-{s:012d}" for s in (8, 7, 4)]
    assert checkpoint.best_of(tmp_path) == tmp_path / "step-000000000004"


def test_a_step_saved_again_is_newer_and_never_replaces_in_place(tmp_path: Path) -> None:
    first = save(tmp_path, 5)
    second = save(tmp_path, 5)
    assert first != second
    assert checkpoint.listing(tmp_path) == [second, first]


def test_leftovers_are_ignored_and_swept_by_the_next_save(tmp_path: Path) -> None:
    good = save(tmp_path, 1)
    left = tmp_path / ".tmp-step-000000000002-1-1"
    shutil.copytree(good, left)
    assert checkpoint.listing(tmp_path) == [good]
    save(tmp_path, 2)
    assert not left.exists()


# Damage ------------------------------------------------------------------------------------------------


def test_a_thousand_flipped_bits_are_all_detected(tmp_path: Path) -> None:
    host = {"actions": np.arange(50, dtype=np.int32)}
    path = checkpoint.save(tmp_path, state(1), step=1, iteration=1, host=host, metadata={"note": "x y"})
    files = sorted(path.iterdir())
    assert [f.name for f in files] == ["host.safetensors", "manifest.json", "state.safetensors"]
    original = {file: file.read_bytes() for file in files}
    bits = [(file, bit) for file in files for bit in range(8 * len(original[file]))]
    detected = 0
    for file, bit in random.Random(0).sample(bits, 1000):
        damaged = bytearray(original[file])
        damaged[bit // 8] ^= 1 << bit % 8
        file.write_bytes(damaged)
        with pytest.raises(CheckpointError):
            checkpoint.load(path)
        detected += 1
        file.write_bytes(original[file])
    assert detected == 1000
    checkpoint.load(path)


def test_every_single_bit_of_sealed_json_matters() -> None:
    data = sealed.seal({"a": [1, 2.5, None, True], "b": {"text": "é\n"}, "schema": 1})
    assert sealed.unseal(data, "x")["b"] == {"text": "é\n"}
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CheckpointError):
            sealed.unseal(bytes(damaged), "x")
    for damaged_text in (data + b" ", b" " + data, data.replace(b": ", b":"), data[:-1], b"", b"[]", b"{}"):
        with pytest.raises(CheckpointError):
            sealed.unseal(damaged_text, "x")


@pytest.mark.parametrize("name", [checkpoint.STATE, checkpoint.HOST, checkpoint.MANIFEST])
@pytest.mark.parametrize("damage", ["truncate", "empty", "delete", "grow"])
def test_a_damaged_file_is_quarantined_and_the_one_before_used(
    tmp_path: Path, name: str, damage: str
) -> None:
    host = {"a": np.zeros(3)}
    save(tmp_path, 1, host=host)
    broken = save(tmp_path, 2, host=host) / name
    data = broken.read_bytes()
    match damage:
        case "truncate":
            broken.write_bytes(data[: len(data) // 2])
        case "empty":
            broken.write_bytes(b"")
        case "grow":
            broken.write_bytes(data + b"\0")
        case "delete":
            broken.unlink()
    reports: list[str] = []
    loaded = checkpoint.load_latest(tmp_path, reports.append)
    assert loaded is not None
    assert loaded.manifest.step == 1
    assert len(reports) == 1
    assert "step-000000000002" in reports[0]
    assert (tmp_path / ".corrupt-step-000000000002").is_dir()
    # The next save is not confused by what was set aside.
    save(tmp_path, 2)
    again = checkpoint.load_latest(tmp_path, strict)
    assert again is not None
    assert again.manifest.step == 2


def test_by_default_damage_is_a_warning(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (save(tmp_path, 2) / checkpoint.STATE).write_bytes(b"")
    with pytest.warns(UserWarning, match="corrupt"):
        assert checkpoint.load_latest(tmp_path) is not None


def test_when_all_are_damaged_nothing_is_guessed(tmp_path: Path) -> None:
    for step in (1, 2):
        (save(tmp_path, step) / checkpoint.MANIFEST).unlink()
    reports: list[str] = []
    with pytest.raises(CheckpointError, match="None of the 2 checkpoints"):
        checkpoint.load_latest(tmp_path, reports.append)
    assert len(reports) == 2


def test_a_newer_schema_is_one_line_and_not_quarantined(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    manifest = sealed.unseal((path / checkpoint.MANIFEST).read_bytes(), "x")
    (path / checkpoint.MANIFEST).write_bytes(sealed.seal({**manifest, "schema": 2}))
    with pytest.raises(CheckpointError, match="schema 2") as error:
        checkpoint.load_latest(tmp_path, strict)
    assert "\n" not in str(error.value)
    assert path.is_dir()


def test_an_older_schema_goes_through_its_migration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path, 1)
    manifest = sealed.unseal((path / checkpoint.MANIFEST).read_bytes(), "x")
    (path / checkpoint.MANIFEST).write_bytes(sealed.seal({**manifest, "schema": 0}))
    with pytest.raises(CheckpointError, match="schema 0"):
        checkpoint.load(path)

    def rename(old: checkpoint.Manifest, arrays: checkpoint.Arrays) -> Any:
        return old._replace(schema=1), {f"new/{name}": array for name, array in arrays.items()}

    monkeypatch.setitem(checkpoint.MIGRATIONS, 0, rename)
    assert set(checkpoint.load(path).arrays) == {"new/w", "new/n"}


def test_a_manifest_cannot_name_other_files(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    manifest = sealed.unseal((path / checkpoint.MANIFEST).read_bytes(), "x")
    manifest["files"]["../../etc/passwd"] = manifest["files"][checkpoint.STATE]
    (path / checkpoint.MANIFEST).write_bytes(sealed.seal(manifest))
    with pytest.raises(CheckpointError, match="unexpected files"):
        checkpoint.load(path)


def test_another_structure_names_the_leaf(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, state(1), step=1, iteration=1)
    loaded = checkpoint.load_latest(tmp_path, strict)
    assert loaded is not None
    other = TEMPLATE._replace(params={**TEMPLATE.params, "w": jax.ShapeDtypeStruct((6, 4), jnp.float32)})
    with pytest.raises(
        CheckpointError, match=r"'params/w' is float32\[8, 4\] in the file, but float32\[6, 4\]"
    ):
        loaded.restore(other)


# Values that must not be saved -----------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_a_state_that_is_not_finite_is_refused_by_leaf(tmp_path: Path, bad: float, dtype: Any) -> None:
    save(tmp_path, 1)
    tree = {"train": {"w": jnp.array([1, bad, 2], dtype)}}
    with pytest.raises(DivergedError, match="'train/w' has 1 of 3 values"):
        checkpoint.save(tmp_path, tree, step=2, iteration=2)
    assert [p.name for p in tmp_path.iterdir()] == ["step-000000000001"]


def test_infinities_may_be_allowed_by_path(tmp_path: Path) -> None:
    tree = {"best": {"score": jnp.array(-jnp.inf)}, "bestial": jnp.ones(2)}
    checkpoint.save(tmp_path, tree, step=1, iteration=1, allow_nonfinite=["best"])
    with pytest.raises(DivergedError):
        checkpoint.save(tmp_path, tree, step=2, iteration=1, allow_nonfinite=["best/sc", "other"])
    with pytest.raises(DivergedError):
        checkpoint.save(
            tmp_path, {"bestial": jnp.array(jnp.nan)}, step=2, iteration=1, allow_nonfinite=["best"]
        )


def test_facts_that_json_cannot_hold_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="plain finite numbers"):
        save(tmp_path, 1, metadata={"score": float("nan")})
    assert list(tmp_path.iterdir()) == []


# Exactness -------------------------------------------------------------------------------------------------


def test_exactness_lists_what_differs(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, state(1), step=1, iteration=1)
    manifest = checkpoint.read_manifest(checkpoint.listing(tmp_path)[0])
    assert checkpoint.exactness(manifest) == []
    now = {**provenance(), "jax": "99", "cores": 512, "xla_flags": "--fast", "device": "H200", "python": "4"}
    found = checkpoint.exactness(manifest, now)
    assert len(found) == 4  # another Python alone changes no number
    assert any("jax version" in text and "'99'" in text for text in found)


# Disks -----------------------------------------------------------------------------------------------------


def test_too_little_space_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**6, 0, 2000))
    with pytest.raises(StorageError, match="only 2,000 are"):
        save(tmp_path, 2)
    assert [p.name for p in tmp_path.iterdir()] == ["step-000000000001"]


OPERATIONS = ("open", "write", "fsync", "mkdir", "rename", "replace")
DELETIONS = ("unlink", "rmdir")


@contextmanager
def failing_from(n: int, names: tuple[str, ...], failure: Callable[[], BaseException]) -> Iterator[list[str]]:
    """Lets n calls of these `os` functions pass and fails all later ones; yields the calls made."""
    calls: list[str] = []
    real = {name: getattr(os, name) for name in names}

    def wrap(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if name == "open" and not args[1] & os.O_CREAT:
                return real[name](*args, **kwargs)  # reading works on a full disk
            calls.append(name)
            if len(calls) > n:
                raise failure()
            return real[name](*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(os, name, wrap(name))
        yield calls


def operations_of_a_save(tmp_path: Path, names: tuple[str, ...]) -> int:
    folder = tmp_path / "count"
    save(folder, 1, keep=1)
    with failing_from(10**6, names, AssertionError) as calls:
        save(folder, 2, keep=1)
    return len(calls)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_disk_that_fails_at_the_nth_call_for_all_n(tmp_path: Path, code: int) -> None:
    total = operations_of_a_save(tmp_path, OPERATIONS)
    assert total > 10
    for n in range(total):
        folder = tmp_path / str(n)
        save(folder, 1, keep=1)
        before = sum(1 for _ in folder.rglob("*"))
        with (
            failing_from(n, OPERATIONS, lambda: OSError(code, os.strerror(code))),
            pytest.raises(StorageError, match=r"A checkpoint of [\d,]+ bytes .*" + os.strerror(code)),
        ):
            save(folder, 2, keep=1)
        loaded = checkpoint.load_latest(folder, strict)
        assert loaded is not None
        assert loaded.arrays["w"][0] == loaded.manifest.step
        assert not list(folder.glob(".tmp-*"))
        if loaded.manifest.step == 1:
            assert sum(1 for _ in folder.rglob("*")) == before
        save(folder, 3, keep=1)  # the disk is back


def test_files_and_folders_are_synced_before_and_after_the_rename(tmp_path: Path) -> None:
    save(tmp_path, 1)
    with failing_from(10**6, ("fsync", "rename"), AssertionError) as calls:
        save(tmp_path, 2)
    # state, manifest and their folder; then the name; then the folder that holds the name
    assert calls == ["fsync", "fsync", "fsync", "rename", "fsync"]


class Killed(BaseException):
    """Stands for SIGKILL: nothing that touches the disk works any more, clean-up included."""


def test_a_kill_at_the_nth_call_for_all_n(tmp_path: Path) -> None:
    names = OPERATIONS + DELETIONS
    total = operations_of_a_save(tmp_path, names)
    seen = set()
    for n in range(total):
        folder = tmp_path / str(n)
        save(folder, 1, keep=1)
        with failing_from(n, names, Killed), pytest.raises(Killed):
            save(folder, 2, keep=1)
        loaded = checkpoint.load_latest(folder, strict)
        assert loaded is not None
        assert loaded.arrays["w"][0] == loaded.manifest.step
        seen.add(loaded.manifest.step)
        save(folder, 3, keep=1)
        assert [p.name for p in folder.iterdir()] == ["step-000000000003"]
    assert seen == {1, 2}


def test_a_disk_that_lies_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)
    real = os.write

    def lossy(descriptor: int, data: Any) -> int:
        return real(descriptor, bytes(data).replace(b"\x40", b"\x41"))

    monkeypatch.setattr(os, "write", lossy)
    with pytest.raises(StorageError, match="did not give back what was written"):
        save(tmp_path, 2)
    monkeypatch.undo()
    loaded = checkpoint.load_latest(tmp_path, strict)
    assert loaded is not None
    assert loaded.manifest.step == 1


LIMITED = """
    import resource
    import sys
    from pathlib import Path
    import numpy as np
    from sparring.errors import StorageError
    from sparring.runs import checkpoint
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
    for step, size in ((1, 100), (2, 100_000)):
        try:
            arrays = {"w": np.full(size, step, np.float32)}
            checkpoint.save_arrays(Path(sys.argv[1]), arrays, step=step, iteration=0, provenance={})
        except StorageError as error:
            print(step, error)
"""


def test_a_real_write_error_of_the_kernel(tmp_path: Path) -> None:
    """A limit on file size makes the kernel refuse a write half way, as a full disk does."""
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LIMITED), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.startswith("2 A checkpoint of 40")
    assert "File too large" in result.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["step-000000000001"]


# SIGKILL ---------------------------------------------------------------------------------------------------

SAVER = """
    import sys
    from pathlib import Path
    import numpy as np
    from sparring.runs import checkpoint
    step = int(sys.argv[2])
    print("ready", flush=True)
    while True:
        arrays = {"w": np.full(50_000, step, np.float32), "n": np.asarray(step)}
        host = {"actions": np.full(1000, step)}
        checkpoint.save_arrays(
            Path(sys.argv[1]), arrays, host=host, step=step, iteration=step, provenance={}, keep=2,
            best=step % 7 == 0,
        )
        step += 1
"""


@pytest.mark.slow
def test_fifty_kills_leave_fifty_loadable_folders(tmp_path: Path) -> None:
    assert "jax" not in SAVER  # a child that starts in a moment
    moments = random.Random(1)
    step = 1
    for _ in range(50):
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(SAVER), str(tmp_path), str(step)], stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        time.sleep(moments.uniform(0.0, 0.1))
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        loaded = checkpoint.load_latest(tmp_path, strict)
        if loaded is None:
            assert step == 1  # killed before the first one was complete
            continue
        assert (loaded.arrays["w"] == loaded.manifest.step).all()
        assert loaded.host is not None
        assert (loaded.host["actions"] == loaded.manifest.step).all()
        assert loaded.manifest.step >= step - 1
        step = loaded.manifest.step + 1
    assert step > 50


# Fixtures of released schemas ------------------------------------------------------------------------------

GOLDEN = Path(__file__).parents[1] / "golden" / "checkpoint-v1"


def test_the_golden_checkpoint_of_schema_1_loads() -> None:
    loaded = checkpoint.load(GOLDEN / "step-000000004096")
    assert loaded.manifest.schema == 1
    assert loaded.manifest.step == 4096
    assert loaded.manifest.best
    assert loaded.manifest.metadata["seed"] == 7
    restored = loaded.restore(
        {
            "params": {"layers": [State({"w": np.zeros((2, 3), np.float32)}, np.zeros((), np.int32))]},
            "mask": np.zeros(2, np.bool_),
            "half": jax.ShapeDtypeStruct((2,), jnp.bfloat16),
        }
    )
    np.testing.assert_array_equal(
        restored["params"]["layers"][0].params["w"], np.arange(6, dtype=np.float32).reshape(2, 3)
    )
    assert restored["half"].tolist() == [0.5, -2.0]
    assert loaded.host is not None
    assert loaded.host["row-0/actions"].tolist() == [1, 0, 1]
