"""Flat {name: array} mappings as safetensors: data only, nothing in the file can run.

Written as a stream by ourselves (no second copy in memory, the disk's own error codes), read by the
safetensors library, which checks every offset of a file that a stranger may have made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sparring.errors import CheckpointError

CODES = {
    "bool": "BOOL",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
}


def encode(arrays: Mapping[str, np.ndarray]) -> Iterator[bytes | memoryview]:
    """The bytes of a safetensors file, piece by piece."""
    ready = {name: _native(name, array) for name, array in arrays.items()}
    # Wide items first: every array then starts at a multiple of its item size.
    order = sorted(ready, key=lambda name: (-ready[name].dtype.itemsize, name))
    header: dict[str, Any] = {}
    offset = 0
    for name in order:
        array = ready[name]
        end = offset + array.nbytes
        header[name] = {
            "dtype": CODES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in order:
        if ready[name].nbytes:
            yield ready[name].reshape(-1).view(np.uint8).data


def read(path: Path, below: str = "") -> dict[str, np.ndarray]:
    """The arrays of a safetensors file, or those whose names begin so."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            names = [name for name in file.keys() if name.startswith(below)]  # noqa: SIM118
            return {name: np.asarray(file.get_tensor(name)) for name in names}
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path.name} is not a readable safetensors file: {error}") from error


def decode(data: bytes, name: str) -> dict[str, np.ndarray]:
    """The arrays in the bytes of a safetensors file; `name` is for the error."""
    from safetensors import SafetensorError, deserialize

    kinds = {code: dtype for dtype, code in CODES.items()}
    try:
        parts: list[tuple[str, dict[str, Any]]] = deserialize(data)
        return {
            key: np.frombuffer(part["data"], dtype_named(kinds[part["dtype"]])).reshape(part["shape"])
            for key, part in parts
        }
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{name} is not a readable safetensors file: {error}") from error


def dtype_named(name: str) -> np.dtype[Any]:
    """The dtype of a stored name, bfloat16 included."""
    if name == "bfloat16":
        import ml_dtypes

        name = ml_dtypes.bfloat16
    return np.dtype(name)


def _native(name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.name not in CODES:
        raise CheckpointError(
            f"{name!r} has dtype {array.dtype}, which cannot be saved. Use one of {', '.join(CODES)}."
        )
    little = array.dtype.newbyteorder("<") if array.dtype.kind in "iuf" else array.dtype
    # `order="C"` and not ascontiguousarray, which would turn a 0-d array into a 1-d one.
    return np.asarray(array, dtype=little, order="C")
