"""Arrays that a supervisor and its workers share: actions in, outcomes out. Imports no jax."""

from __future__ import annotations

from multiprocessing.shared_memory import SharedMemory

import numpy as np

from sparring.spaces import Dict, EnvSpec, dtype_of, event_shape, legal_size

Field = tuple[str, tuple[int, ...], np.dtype]


def fields(spec: EnvSpec) -> list[Field]:
    """Name, shape and dtype of every shared array."""
    rows = spec.rows
    parts = spec.observation.parts if isinstance(spec.observation, Dict) else (("", spec.observation),)
    result: list[Field] = [
        ("action", (rows, *event_shape(spec.action)), dtype_of(spec.action)),
        ("reward", (rows,), np.dtype(np.float32)),
        ("terminated", (rows,), np.dtype(bool)),
        ("truncated", (rows,), np.dtype(bool)),
        ("episode", (rows,), np.dtype(np.int64)),
    ]
    for name, part in parts:
        for kind in ("obs", "next_obs"):
            result.append((f"{kind}.{name}", (rows, *event_shape(part)), dtype_of(part)))
    if spec.masks_actions:
        for name in ("legal", "next_legal"):
            result.append((name, (rows, legal_size(spec.action)), np.dtype(bool)))
    return result


class Board:
    """One block of shared memory with named arrays; whoever creates it also removes it."""

    def __init__(self, spec: EnvSpec, name: str | None = None) -> None:
        offsets, size = [], 0
        for _, shape, dtype in fields(spec):
            size = -(-size // 64) * 64  # each array starts on a cache line of its own
            offsets.append(size)
            size += int(np.prod(shape)) * dtype.itemsize
        self._memory = SharedMemory(name=name, create=name is None, size=max(size, 1))
        self._owner = name is None
        self.arrays: dict[str, np.ndarray] = {
            field: np.ndarray(shape, dtype, buffer=self._memory.buf, offset=offset)
            for (field, shape, dtype), offset in zip(fields(spec), offsets, strict=True)
        }

    @property
    def name(self) -> str:
        return self._memory.name

    def close(self) -> None:
        """Lets go of the memory; may be called again."""
        self.arrays = {}
        try:
            self._memory.close()
        except BufferError:
            return  # an array is still in use elsewhere; the block goes with the process
        finally:
            if self._owner:
                self._owner = False
                self._memory.unlink()
