"""Checkpoints: a folder per saved step, complete or absent, and checked bit by bit when loaded.

`checkpoints/step-000000123456/` holds `state.safetensors`, sometimes `host.safetensors` (journals of host
environments) and `manifest.json` with the size and SHA-256 of each file. A save goes to a temporary name,
is synced, renamed and read back before anything older is deleted.
"""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sparring.errors import CheckpointError, DivergedError, StorageError
from sparring.runs import provenance as origin
from sparring.runs import sealed, tensors
from sparring.runs.durable import (
    FileRecord,
    discard,
    record_file,
    remove_folder,
    sweep,
    sync_folder,
    temporary,
    write_file,
)

SCHEMA = 1
STATE = "state.safetensors"
HOST = "host.safetensors"
MANIFEST = "manifest.json"
CORRUPT = ".corrupt-"
HEADROOM = 3
"""A save needs this many times its own size free: the old, the new, and room for metrics."""

_ADVICE = "Free some space, or choose another folder with --run-dir. Earlier checkpoints are kept."
_NAME = re.compile(r"step-(\d{12,})(?:\.(\d+))?")

Arrays = dict[str, np.ndarray]


class Leaf(NamedTuple):
    """Path, shape and dtype of one saved array."""

    path: str
    shape: tuple[int, ...]
    dtype: str


class Manifest(NamedTuple):
    """What a checkpoint holds, when and where it was made, and how to tell that it is intact."""

    step: int
    iteration: int
    created: str
    best: bool
    files: dict[str, FileRecord]
    leaves: tuple[Leaf, ...]
    provenance: dict[str, Any]
    metadata: dict[str, Any]
    schema: int = SCHEMA


class Checkpoint(NamedTuple):
    """A verified checkpoint in memory."""

    path: Path
    manifest: Manifest
    arrays: Arrays
    host: Arrays | None

    def restore(self, template: Any) -> Any:
        """The saved state as a tree with the template's structure."""
        from sparring.runs.tree import unflatten

        return unflatten(template, self.arrays)


MIGRATIONS: dict[int, Callable[[Manifest, Arrays], tuple[Manifest, Arrays]]] = {}
"""From the state of an older schema to that of the next one."""


def save(
    folder: Path,
    state: Any,
    *,
    step: int,
    iteration: int,
    host: Mapping[str, np.ndarray] | None = None,
    metadata: Mapping[str, Any] | None = None,
    keep: int = 3,
    best: bool = False,
    allow_nonfinite: Collection[str] = (),
) -> Path:
    """Saves a tree of arrays durably, then deletes all but the last `keep` checkpoints and the best."""
    from sparring.runs.tree import flatten

    return save_arrays(
        folder,
        flatten(state),
        step=step,
        iteration=iteration,
        host=host,
        metadata=metadata,
        keep=keep,
        best=best,
        allow_nonfinite=allow_nonfinite,
        provenance=origin.provenance(),
    )


def save_arrays(
    folder: Path,
    arrays: Mapping[str, np.ndarray],
    *,
    step: int,
    iteration: int,
    provenance: Mapping[str, Any],
    host: Mapping[str, np.ndarray] | None = None,
    metadata: Mapping[str, Any] | None = None,
    keep: int = 3,
    best: bool = False,
    allow_nonfinite: Collection[str] = (),
) -> Path:
    """`save` for a state that is already flat; it needs no jax."""
    check_finite(arrays, allow_nonfinite, step)
    parts = {STATE: arrays} if host is None else {STATE: arrays, HOST: host}
    needed = sum(_estimate(part) for part in parts.values())
    with _storage(folder, needed):
        folder.mkdir(parents=True, exist_ok=True)
        sweep(folder)
        _check_free(folder, needed)
        final = _free_name(folder, step)
        draft = temporary(final)
        try:
            draft.mkdir()
            files = {name: write_file(draft / name, tensors.encode(part)) for name, part in parts.items()}
            manifest = Manifest(
                step=step,
                iteration=iteration,
                created=datetime.now(UTC).isoformat(timespec="seconds"),
                best=best,
                files=files,
                leaves=_leaves(arrays),
                provenance=dict(provenance),
                metadata=dict(metadata or {}),
            )
            write_file(draft / MANIFEST, [sealed.seal(_to_json(manifest))])
            sync_folder(draft)
            os.rename(draft, final)
        except BaseException:
            discard(draft)
            raise
        sync_folder(folder)
        _read_back(final)
        prune(folder, keep)
    return final


def load_latest(folder: Path, report: Callable[[str], None] = warnings.warn) -> Checkpoint | None:
    """The newest intact checkpoint, or None when there has never been one.

    A corrupt one is renamed `.corrupt-…`, never deleted, and `report` gets a sentence about it.
    """
    broken = 0
    for path in listing(folder):
        try:
            return load(path)
        except (_DamageError, OSError) as error:
            broken += 1
            report(f"{error} {_quarantine(path)} The checkpoint before it is used.")
    if broken:
        raise CheckpointError(
            f"None of the {broken} checkpoints in {str(folder)!r} is intact; they were kept as {CORRUPT}…. "
            "Start a new run, or restore the folder from a backup."
        )
    return None


def load(path: Path) -> Checkpoint:
    """One checkpoint, with every byte checked against its manifest."""
    manifest = verify(path)
    arrays = tensors.read(path / STATE)
    if _leaves(arrays) != manifest.leaves:
        raise _DamageError(f"{path.name} is corrupt: {STATE} does not hold what {MANIFEST} lists.")
    host = tensors.read(path / HOST) if HOST in manifest.files else None
    for schema in range(manifest.schema, SCHEMA):
        manifest, arrays = MIGRATIONS[schema](manifest, arrays)
    return Checkpoint(path, manifest, arrays, host)


def read_part(path: Path, below: str) -> Arrays:
    """The arrays of a checkpoint whose paths begin so, named by the rest; its files are checked first."""
    verify(path)
    arrays = tensors.read(path / STATE, below)
    return {name.removeprefix(below): array for name, array in arrays.items()}


def verify(path: Path) -> Manifest:
    """The manifest of a checkpoint whose files are all present and bit for bit as written."""
    manifest = read_manifest(path)
    for name, expected in manifest.files.items():
        file = path / name
        if not file.is_file():
            raise _DamageError(f"{path.name} is corrupt: {name} is missing.")
        found = record_file(file)
        if found.size != expected.size:
            raise _DamageError(
                f"{path.name} is corrupt: {name} has {found.size} bytes instead of {expected.size}."
            )
        if found != expected:
            raise _DamageError(f"{path.name} is corrupt: the checksum of {name} does not match.")
    return manifest


def read_manifest(path: Path) -> Manifest:
    """The manifest of a checkpoint; its own checksum is verified, that of the other files is not."""
    try:
        data = (path / MANIFEST).read_bytes()
    except FileNotFoundError as error:
        raise _DamageError(f"{path.name} is not a complete checkpoint: {MANIFEST} is missing.") from error
    try:
        content = sealed.unseal(data, f"{path.name}/{MANIFEST}")
    except CheckpointError as error:
        raise _DamageError(str(error)) from error
    return _from_json(content, path)


def listing(folder: Path) -> list[Path]:
    """The checkpoints of a folder, newest first, whether intact or not."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=_order, reverse=True)


def best_of(folder: Path) -> Path | None:
    """The newest checkpoint that was saved as the best so far."""
    return next((path for path in listing(folder) if _is_best(path)), None)


def prune(folder: Path, keep: int) -> None:
    """Deletes all but the newest `keep` checkpoints and the best one."""
    best = best_of(folder)
    for path in listing(folder)[max(keep, 1) :]:
        if path != best:
            remove_folder(path)


def exactness(manifest: Manifest, now: Mapping[str, Any] | None = None) -> list[str]:
    """Why a resume from this checkpoint may not repeat the run bit for bit; empty when it will."""
    return origin.differences(manifest.provenance, origin.provenance() if now is None else now)


def check_finite(
    arrays: Mapping[str, np.ndarray], allowed: Collection[str] = (), step: int | None = None
) -> None:
    """Raises DivergedError for the first float array with a NaN or an infinity.

    `allowed` names paths, or the beginnings of paths up to a `/`, where such values are meant.
    """
    for path, array in arrays.items():
        if array.dtype.kind in "biu" or any(path == a or path.startswith(f"{a}/") for a in allowed):
            continue
        good = np.isfinite(array)
        if not good.all():
            when = "" if step is None else f" at step {step:,}"
            raise DivergedError(
                f"{path!r} has {array.size - int(good.sum())} of {array.size} values that are not finite"
                f"{when}; nothing was saved and the last good checkpoint is kept. Likely causes: a learning "
                "rate that is too high, rewards or observations that are not scaled, or an environment that "
                "returned NaN."
            )


class _DamageError(CheckpointError):
    """A checkpoint that is broken, as opposed to one that is sound but cannot be used here."""


def _order(path: Path) -> tuple[int, int]:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1]), int(match[2] or 0)


def _free_name(folder: Path, step: int) -> Path:
    """A name that is not taken: a step saved again gets a suffix, so the first save is never replaced."""
    base = folder / f"step-{step:012d}"
    taken = [_order(path)[1] for path in listing(folder) if _order(path)[0] == step]
    return base if not taken else base.with_name(f"{base.name}.{max(taken) + 1}")


def _is_best(path: Path) -> bool:
    try:
        return read_manifest(path).best
    except CheckpointError:  # left for `load_latest`, which reports and quarantines it
        return False


def _read_back(path: Path) -> None:
    try:
        verify(path)
    except CheckpointError as error:
        raise StorageError(
            f"The disk did not give back what was written: {error} {_quarantine(path)} Check the disk; the "
            "checkpoint before it is untouched."
        ) from error


def _quarantine(path: Path) -> str:
    aside = path.with_name(f"{CORRUPT}{path.name}")
    number = 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{CORRUPT}{path.name}-{number}")
    try:
        os.rename(path, aside)
    except OSError as error:
        return f"It could not be renamed ({error.strerror})."
    return f"It was renamed {aside.name}."


def _check_free(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < HEADROOM * needed:
        raise StorageError(
            f"A checkpoint of {needed:,} bytes needs {HEADROOM * needed:,} bytes free at {str(folder)!r}, "
            f"but only {free:,} are. {_ADVICE}"
        )


@contextmanager
def _storage(folder: Path, needed: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"A checkpoint of {needed:,} bytes could not be written to {str(folder)!r}: "
            f"{error.strerror or error}. {_ADVICE}"
        ) from error


def _estimate(arrays: Mapping[str, np.ndarray]) -> int:
    """Bytes that arrays take on disk: data, a header entry and a manifest entry each, and the rest."""
    return sum(array.nbytes + 2 * len(name) + 256 for name, array in arrays.items()) + 4096


def _leaves(arrays: Mapping[str, np.ndarray]) -> tuple[Leaf, ...]:
    return tuple(Leaf(path, arrays[path].shape, arrays[path].dtype.name) for path in sorted(arrays))


def _to_json(manifest: Manifest) -> dict[str, Any]:
    return {
        **manifest._asdict(),
        "files": {name: record._asdict() for name, record in manifest.files.items()},
        "leaves": [leaf._asdict() for leaf in manifest.leaves],
    }


def _from_json(content: Mapping[str, Any], path: Path) -> Manifest:
    schema = content.get("schema")
    if not isinstance(schema, int) or schema > SCHEMA or (schema < SCHEMA and schema not in MIGRATIONS):
        raise CheckpointError(
            f"{path.name} has checkpoint schema {schema!r}, but this version of sparring reads {SCHEMA}. "
            "Update sparring: pip install -U sparring"
        )
    try:
        files = {name: FileRecord(int(r["size"]), str(r["sha256"])) for name, r in content["files"].items()}
        if STATE not in files or not files.keys() <= {STATE, HOST}:
            raise ValueError(f"unexpected files {sorted(files)}")
        return Manifest(
            step=int(content["step"]),
            iteration=int(content["iteration"]),
            created=str(content["created"]),
            best=bool(content["best"]),
            files=files,
            leaves=tuple(Leaf(str(x["path"]), tuple(x["shape"]), str(x["dtype"])) for x in content["leaves"]),
            provenance=dict(content["provenance"]),
            metadata=dict(content["metadata"]),
            schema=schema,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _DamageError(f"{path.name}/{MANIFEST} is not a checkpoint manifest: {error}") from error
