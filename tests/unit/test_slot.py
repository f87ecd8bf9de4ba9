"""Weight slots: the newest whole weights or none, whatever happens to the writer."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.drivers.slot import KEPT, FileSlot, MemorySlot, SharedSlot, Slot
from sparring.runs import tensors


def weights(version: int, size: int = 50) -> dict[str, np.ndarray]:
    """Weights that say of every number which version it belongs to."""
    return {"a/b": np.full((size, 3), version, np.float32), "step": np.array(version, np.int32)}


SIZE = len(b"".join(tensors.encode(weights(0))))


@pytest.fixture(params=["memory", "shared", "file"])
def slot(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Slot]:
    makers: dict[str, Callable[[], Slot]] = {
        "memory": MemorySlot,
        "shared": lambda: SharedSlot(SIZE),
        "file": lambda: FileSlot(tmp_path),
    }
    made = makers[request.param]()
    yield made
    made.close()


def version_in(found: Any) -> int:
    version, arrays = found
    assert set(arrays) == {"a/b", "step"}
    assert np.all(arrays["a/b"] == version)
    assert arrays["a/b"].shape == (50, 3)
    assert int(arrays["step"]) == version
    return int(version)


def test_the_newest_is_pulled_once(slot: Slot) -> None:
    assert slot.pull(-1) is None
    slot.publish(0, weights(0))
    assert version_in(slot.pull(-1)) == 0
    assert slot.pull(0) is None
    for version in (1, 2, 7):
        slot.publish(version, weights(version))
    assert version_in(slot.pull(0)) == 7
    slot.publish(5, weights(5))  # an old writer that comes late changes nothing
    assert version_in(slot.pull(0)) == 7
    assert slot.pull(7) is None


def test_a_reader_never_sees_half_of_a_version(slot: Slot) -> None:
    done = threading.Event()

    def write() -> None:
        for version in range(150):
            slot.publish(version, weights(version))
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = -1
    while not done.is_set():
        found = slot.pull(seen)
        if found is not None:
            assert version_in(found) > seen
            seen = found[0]
    writer.join()
    assert seen == 149 or version_in(slot.pull(seen)) == 149


def test_old_files_go_and_strange_ones_are_passed_over(tmp_path: Path) -> None:
    slot = FileSlot(tmp_path)
    for version in range(10):
        slot.publish(version, weights(version))
    files = sorted(path.name for path in tmp_path.iterdir())
    assert len(files) == KEPT

    newest = tmp_path / files[-1]
    data = newest.read_bytes()
    newest.write_bytes(data[: len(data) // 2])  # a power cut
    assert version_in(slot.pull(-1)) == 8
    newest.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))  # a flipped bit
    assert version_in(slot.pull(-1)) == 8
    garbage = b"not weights"
    (tmp_path / f"{50:012d}-{hashlib.sha256(garbage).hexdigest()}.safetensors").write_bytes(garbage)
    (tmp_path / "000000000099.safetensors").write_bytes(data)
    (tmp_path / "README").write_text("hello")
    assert version_in(slot.pull(-1)) == 8
    assert slot.pull(8) is None


def test_a_killed_writer_leaves_the_version_before() -> None:
    slot = SharedSlot(SIZE)
    try:
        slot.publish(1, weights(1))
        slot.publish(2, weights(2))
        for half in range(2):  # what a writer that dies in the middle of version 3 leaves
            if slot._head(half).version == 2:
                at = half * slot._half + 60
                slot._bytes[at : at + 4] = b"\xff\xff\xff\xff"
        assert version_in(slot.pull(0)) == 1
        assert slot.pull(1) is None
        with pytest.raises(ValueError, match="do not fit"):
            slot.publish(4, weights(4, size=5000))
    finally:
        slot.close()
