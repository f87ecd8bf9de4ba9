"""Artefacts: a trained agent as files: weights, environment spec, algorithm and settings, nothing else.

An artefact is a folder, or a `.zip` with stored (uncompressed) members, of `agent.json`,
`policy.safetensors` and, when learning may continue from it, `train.safetensors` and a bandit's
`bandit.safetensors`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sparring.errors import CheckpointError, SpaceMismatch, StorageError
from sparring.runs import provenance as origin
from sparring.runs import sealed, tensors
from sparring.runs.durable import discard, sync_folder, temporary, write_file
from sparring.spaces import EnvSpec, spec_from_json, spec_to_json

SCHEMA = 1
AGENT = "agent.json"
POLICY = "policy.safetensors"
TRAIN = "train.safetensors"
BANDIT = "bandit.safetensors"
MEMBERS = (AGENT, POLICY, TRAIN, BANDIT)
AGENT_LIMIT = 16 * 2**20
"""An `agent.json` above this many bytes is not ours."""
SIZE_LIMIT = 16 * 2**30
"""Bytes of weights that `load` accepts without being told otherwise."""

Arrays = dict[str, np.ndarray]


class Artefact(NamedTuple):
    """Everything needed to act, and `train` when it was saved so that learning can continue."""

    algorithm: str
    """A built-in's name, or `file.py:Class` of the user's own."""
    config: dict[str, Any]
    spec: EnvSpec
    policy: Arrays
    train: Arrays | None
    metadata: dict[str, Any]
    provenance: dict[str, Any]
    bandit: Arrays | None = None
    """the state of a bandit that chooses behaviours, where there was one and learning can continue"""

    def weights(self, template: Any) -> Any:
        """The policy as a tree with the template's structure."""
        from sparring.runs.tree import unflatten

        return unflatten(template, self.policy)

    def train_state(self, template: Any) -> Any:
        """The full training state as a tree with the template's structure."""
        from sparring.runs.tree import unflatten

        if self.train is None:
            raise CheckpointError(
                "This agent was saved for acting only, without its training state, so learning cannot "
                "continue. Resume the run it came from instead: sparring resume RUN"
            )
        return unflatten(template, self.train)


def save(
    path: Path | str,
    policy: Any,
    *,
    algorithm: str,
    config: Mapping[str, Any],
    spec: EnvSpec,
    train: Any = None,
    bandit: Any = None,
    metadata: Mapping[str, Any] | None = None,
    sync: bool = True,
) -> Path:
    """Writes an artefact to a folder, or to one file when the path ends in `.zip`; returns the path.

    A folder that need not outlive a power cut is written quicker without `sync`.
    """
    from sparring.runs.tree import flatten

    path = Path(path)
    parts = {POLICY: flatten(policy)}
    if train is not None:
        parts[TRAIN] = flatten(train)
    if bandit is not None:
        parts[BANDIT] = flatten(bandit)
    bodies = {name: b"".join(tensors.encode(arrays)) for name, arrays in parts.items()}
    agent = {
        "schema": SCHEMA,
        "algorithm": algorithm,
        "config": dict(config),
        "spec": spec_to_json(spec),
        "files": {name: {"size": len(body), "sha256": _digest(body)} for name, body in bodies.items()},
        "metadata": dict(metadata or {}),
        "provenance": origin.provenance(),
    }
    bodies[AGENT] = sealed.seal(agent)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".zip":
            _write_zip(path, bodies)
        else:
            _write_folder(path, bodies, sync)
    except OSError as error:
        needed = sum(map(len, bodies.values()))
        raise StorageError(
            f"The agent ({needed:,} bytes) could not be written to {str(path)!r}: {error.strerror or error}. "
            "Free some space or choose another place."
        ) from error
    return path


def load(path: Path | str, size_limit: int = SIZE_LIMIT) -> Artefact:
    """The artefact in a folder or zip, every byte checked; `agent` also finds `agent.zip`."""
    place = locate(Path(path))
    try:
        bodies = _read_folder(place, size_limit) if place.is_dir() else _read_zip(place, size_limit)
    except OSError as error:
        raise CheckpointError(f"{str(place)!r} cannot be read: {error.strerror or error}.") from error
    return _assemble(place, bodies)


def copy(source: Path, target: Path) -> None:
    """Replaces the artefact in a folder by another one."""
    try:
        _write_folder(target, _read_folder(locate(source), SIZE_LIMIT))
    except OSError as error:
        raise StorageError(f"{str(source)!r} could not be copied to {str(target)!r}: {error}.") from error


def locate(path: Path) -> Path:
    """Where an artefact is: at the path, there with `.zip`, or where a killed save set it aside."""
    for candidate in (path, path.with_name(f"{path.name}.zip"), _aside(path)):
        if candidate.exists():
            return candidate
    raise CheckpointError(f"There is no saved agent at {str(path)!r} (nor with '.zip' behind it).")


def _assemble(place: Path, bodies: Mapping[str, bytes]) -> Artefact:
    agent = sealed.unseal(bodies[AGENT], f"{place.name}/{AGENT}")
    if agent.get("schema") != SCHEMA:
        raise CheckpointError(
            f"{str(place)!r} has artefact schema {agent.get('schema')!r}, but this version of sparring reads "
            f"{SCHEMA}. Update sparring: pip install -U sparring"
        )
    try:
        files = dict(agent["files"])
        if files.keys() != bodies.keys() - {AGENT} or POLICY not in files:
            raise CheckpointError(f"{str(place)!r} is corrupt: beside {AGENT} belong {sorted(files)}.")
        for name, record in files.items():
            if len(bodies[name]) != record["size"] or _digest(bodies[name]) != record["sha256"]:
                raise CheckpointError(f"{str(place)!r} is corrupt: the checksum of {name} does not match.")
        return Artefact(
            algorithm=str(agent["algorithm"]),
            config=dict(agent["config"]),
            spec=spec_from_json(agent["spec"]),
            policy=tensors.decode(bodies[POLICY], POLICY),
            train=tensors.decode(bodies[TRAIN], TRAIN) if TRAIN in files else None,
            metadata=dict(agent["metadata"]),
            provenance=dict(agent["provenance"]),
            bandit=tensors.decode(bodies[BANDIT], BANDIT) if BANDIT in files else None,
        )
    except (KeyError, TypeError, ValueError, SpaceMismatch) as error:
        raise CheckpointError(f"{place.name}/{AGENT} is not a description of an agent: {error}") from error


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def _write_folder(path: Path, bodies: Mapping[str, bytes], sync: bool = True) -> None:
    """Replaces a folder so that at every moment it, or the copy set aside, is whole."""
    aside = _aside(path)
    if aside.exists() and not path.exists():
        os.rename(aside, path)
    if path.exists() and not _is_ours(path):
        raise StorageError(f"{str(path)!r} exists and is not a saved agent. Choose another name.")
    draft = temporary(path)
    try:
        draft.mkdir()
        for name, body in bodies.items():
            write_file(draft / name, [body], sync)
        if sync:
            sync_folder(draft)
        if path.exists():
            shutil.rmtree(aside, ignore_errors=True)
            os.rename(path, aside)
        os.rename(draft, path)
    except BaseException:
        discard(draft)
        raise
    if sync:
        sync_folder(path.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _is_ours(path: Path) -> bool:
    return path.is_dir() and {file.name for file in path.iterdir()} <= set(MEMBERS)


def _write_zip(path: Path, bodies: Mapping[str, bytes]) -> None:
    if path.is_dir():
        raise StorageError(f"{str(path)!r} is a folder. Choose another name.")
    draft = temporary(path)
    try:
        with zipfile.ZipFile(draft, "x", zipfile.ZIP_STORED) as archive:
            for name in MEMBERS:
                if name in bodies:
                    member = zipfile.ZipInfo(name)  # with a fixed date: equal agents are equal files
                    member.external_attr = 0o644 << 16
                    archive.writestr(member, bodies[name])
        with draft.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        discard(draft)
        raise
    sync_folder(path.parent)


def _read_folder(path: Path, size_limit: int) -> dict[str, bytes]:
    names = {file.name for file in path.iterdir()}
    if AGENT not in names:
        raise _foreign(path, names)
    sizes = {name: (path / name).stat().st_size for name in MEMBERS if name in names}
    _check_sizes(path, sizes, size_limit)
    return {name: (path / name).read_bytes() for name in sizes}


def _read_zip(path: Path, size_limit: int) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            names = [member.filename for member in members]
            if AGENT not in names:
                raise _foreign(path, names)
            if len(set(names)) != len(names) or not set(names) <= set(MEMBERS):
                raise CheckpointError(f"{str(path)!r} is not a saved agent: it holds {names[:8]}.")
            if any(member.compress_type != zipfile.ZIP_STORED for member in members):  # no zip bombs
                raise CheckpointError(
                    f"{str(path)!r} was repacked with compression, which is not accepted. Unpack it and load "
                    "the folder."
                )
            _check_sizes(path, {member.filename: member.file_size for member in members}, size_limit)
            return {name: archive.read(name) for name in names}
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise CheckpointError(f"{str(path)!r} is corrupt or not a saved agent: {error}.") from error


def _check_sizes(path: Path, sizes: Mapping[str, int], size_limit: int) -> None:
    for name, size in sizes.items():
        limit = AGENT_LIMIT if name == AGENT else size_limit
        if size > limit:
            raise CheckpointError(f"{str(path)!r}: {name} has {size:,} bytes; {limit:,} are accepted.")


def _foreign(path: Path, names: Iterable[str]) -> CheckpointError:
    """What a file that is not ours looks like, and what to do instead."""
    found = set(names)
    if "policy.pth" in found and "data" in found:
        looks = (
            "it looks like a Stable-Baselines3 model, which holds pickled Python objects and torch weights "
            "and is never loaded here. Take it over with: sparring import-sb3 FILE --env ENV"
        )
    elif any(name.endswith("data.pkl") for name in found):
        looks = "it looks like a torch file, which holds pickled Python objects and is never loaded here"
    elif "manifest.json" in found:
        looks = "it looks like a checkpoint of a sparring run. Use the run's folder: sparring resume RUN"
    elif "config.toml" in found or "status.json" in found:
        looks = "it looks like the folder of a run. Use its 'last' or 'best' folder"
    else:
        looks = f"it holds {', '.join(sorted(found)[:5]) or 'nothing'} and no {AGENT}"
    return CheckpointError(f"{str(path)!r} is not a saved sparring agent: {looks}.")
