"""Saved agents come back whole; anything else is refused with a reason and never run."""

from __future__ import annotations

import contextlib
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparring.errors import CheckpointError, StorageError
from sparring.runs import artefact, sealed
from sparring.spaces import Box, Dict, Discrete, EnvSpec


class Policy(NamedTuple):
    w: Any
    mean: Any


SPEC = EnvSpec(
    "CartPole-v1",
    Dict((("pos", Box((4,), -1.0, (1.0, 2.0, 3.0, float("inf")))), ("n", Discrete(3)))),
    Discrete(2),
)
POLICY = Policy(jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3), jnp.float32(0.5))
TRAIN = {"policy": POLICY, "count": jnp.int32(9)}


def save(path: Path, **options: Any) -> Path:
    return artefact.save(path, POLICY, algorithm="ppo", config={"gamma": 0.99}, spec=SPEC, **options)


def same(a: Any, b: Any) -> bool:
    return all(
        x.dtype == y.dtype and np.array_equal(x, y)
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


@pytest.mark.parametrize("name", ["agent", "agent.zip", "deep/er/agent.zip"])
@pytest.mark.parametrize("train", [None, TRAIN])
def test_an_agent_comes_back(tmp_path: Path, name: str, train: Any) -> None:
    path = save(tmp_path / name, train=train, metadata={"steps": 10})
    loaded = artefact.load(path)
    assert (loaded.algorithm, loaded.config, loaded.spec) == ("ppo", {"gamma": 0.99}, SPEC)
    assert loaded.metadata == {"steps": 10}
    assert same(loaded.weights(jax.eval_shape(lambda: POLICY)), POLICY)
    if train is None:
        assert loaded.train is None
        with pytest.raises(CheckpointError, match="sparring resume"):
            loaded.train_state(TRAIN)
    else:
        assert same(loaded.train_state(jax.eval_shape(lambda: TRAIN)), TRAIN)
    assert not list(path.parent.glob(".*"))


def test_the_zip_suffix_may_be_left_out(tmp_path: Path) -> None:
    save(tmp_path / "agent.zip")
    assert artefact.load(tmp_path / "agent").algorithm == "ppo"
    with pytest.raises(CheckpointError, match="no saved agent"):
        artefact.load(tmp_path / "other")


def test_equal_agents_are_equal_files_that_unzip_plainly(tmp_path: Path) -> None:
    a, b = save(tmp_path / "a.zip"), save(tmp_path / "b.zip")
    assert a.read_bytes() == b.read_bytes()
    with zipfile.ZipFile(a) as archive:
        archive.extractall(tmp_path / "folder")
    assert artefact.load(tmp_path / "folder").spec == SPEC


@pytest.mark.parametrize("name", ["agent", "agent.zip"])
def test_saving_again_replaces(tmp_path: Path, name: str) -> None:
    save(tmp_path / name, train=TRAIN)
    save(tmp_path / name, metadata={"second": True})
    loaded = artefact.load(tmp_path / name)
    assert loaded.train is None
    assert loaded.metadata == {"second": True}
    assert [p.name for p in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["agent", "agent.zip"])
def test_a_kill_at_any_rename_leaves_the_old_or_the_new(tmp_path: Path, name: str) -> None:
    class Killed(BaseException):
        pass

    for n in range(6):
        path = tmp_path / str(n) / name
        save(path, metadata={"version": 1})
        left = n

        def fragile(operation: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal left
                left -= 1
                if left < 0:
                    raise Killed
                return operation(*args, **kwargs)

            return call

        with pytest.MonkeyPatch.context() as patch:
            for function in ("rename", "replace", "rmdir", "unlink"):
                patch.setattr(os, function, fragile(getattr(os, function)))
            with contextlib.suppress(Killed):
                save(path, metadata={"version": 2})
        assert artefact.load(path).metadata["version"] in (1, 2)
        save(path, metadata={"version": 3})
        assert artefact.load(path).metadata["version"] == 3


def test_a_folder_that_is_something_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("...")
    with pytest.raises(StorageError, match="not a saved agent"):
        save(tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter1.tex").exists()
    (tmp_path / "x.zip").mkdir()
    with pytest.raises(StorageError, match="is a folder"):
        save(tmp_path / "x.zip")


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for name in ("agent", "agent.zip"):
        with pytest.raises(StorageError, match=r"The agent \([\d,]+ bytes\) could not be written"):
            save(tmp_path / "file" / name)


@pytest.mark.parametrize("name", ["agent", "agent.zip"])
def test_flipped_bits_never_load_as_another_agent(tmp_path: Path, name: str) -> None:
    path = save(tmp_path / name, train=TRAIN)
    good = artefact.load(path)
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    generator = np.random.default_rng(0)
    for file in files:
        data = file.read_bytes()
        for bit in generator.integers(0, 8 * len(data), 200):
            damaged = bytearray(data)
            damaged[bit // 8] ^= 1 << int(bit % 8)
            file.write_bytes(damaged)
            if path.is_dir():
                with pytest.raises(CheckpointError):
                    artefact.load(path)
            else:  # dates and attributes inside a zip do not matter; what is read must be right or refused
                try:
                    read = artefact.load(path)
                except CheckpointError:
                    continue
                assert read.config == good.config
                assert same(read.policy, good.policy)
                assert same(read.train, good.train)
        file.write_bytes(data)


@pytest.mark.parametrize("keep", [0, 1, 20, 100, -1])
def test_truncated_zips(tmp_path: Path, keep: int) -> None:
    path = save(tmp_path / "agent.zip")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match="corrupt"):
        artefact.load(path)


def rezip(source: Path, target: Path, compression: int = zipfile.ZIP_STORED, **more: bytes) -> Path:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", compression) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
        for name, data in more.items():
            new.writestr(name, data)
    return target


def test_zips_with_anything_unexpected_are_refused(tmp_path: Path) -> None:
    good = save(tmp_path / "agent.zip")
    slip = rezip(good, tmp_path / "slip.zip", **{"../../evil.py": b"x"})
    with pytest.raises(CheckpointError, match="it holds"):
        artefact.load(slip)
    with pytest.raises(CheckpointError, match="repacked with compression"):
        artefact.load(rezip(good, tmp_path / "bomb.zip", zipfile.ZIP_DEFLATED))
    with pytest.warns(UserWarning, match="Duplicate"):
        twice = rezip(good, tmp_path / "twice.zip", **{"agent.json": b"{}"})
    with pytest.raises(CheckpointError, match="it holds"):
        artefact.load(twice)
    with pytest.raises(CheckpointError, match="bytes; 10 are accepted"):
        artefact.load(good, size_limit=10)


def test_a_newer_schema_is_one_line(tmp_path: Path) -> None:
    path = save(tmp_path / "agent")
    agent = sealed.unseal((path / "agent.json").read_bytes(), "x")
    (path / "agent.json").write_bytes(sealed.seal({**agent, "schema": 9}))
    with pytest.raises(CheckpointError, match="schema 9") as error:
        artefact.load(path)
    assert "\n" not in str(error.value)


def test_a_sealed_file_that_describes_no_agent(tmp_path: Path) -> None:
    path = save(tmp_path / "agent")
    (path / "agent.json").write_bytes(sealed.seal({"schema": 1, "hello": "world"}))
    with pytest.raises(CheckpointError, match="not a description of an agent"):
        artefact.load(path)


def test_a_missing_weights_file(tmp_path: Path) -> None:
    path = save(tmp_path / "agent")
    (path / "policy.safetensors").unlink()
    with pytest.raises(CheckpointError, match="corrupt"):
        artefact.load(path)


class Trap:
    """Would create a file if anything unpickled it."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return Path.touch, (self.canary,)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        (("data", "policy.pth", "pytorch_variables.pth"), "Stable-Baselines3"),
        (("archive/data.pkl", "archive/version"), "torch file"),
        (("manifest.json", "state.safetensors"), "checkpoint of a sparring run"),
        (("config.toml", "status.json"), "folder of a run"),
        (("readme.txt",), "holds readme.txt and no agent.json"),
    ],
)
def test_foreign_files_are_named_and_never_run(tmp_path: Path, members: tuple[str, ...], words: str) -> None:
    canary = tmp_path / "canary"
    payload = pickle.dumps(Trap(canary))
    archive = tmp_path / "foreign.zip"
    folder = tmp_path / "foreign"
    with zipfile.ZipFile(archive, "w") as target:
        for name in members:
            target.writestr(name, payload)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(payload)
    with pytest.raises(CheckpointError, match=words):
        artefact.load(archive)
    if "/" not in members[0]:
        with pytest.raises(CheckpointError, match=words):
            artefact.load(folder)
    bare = tmp_path / "model.pkl"
    bare.write_bytes(payload)
    with pytest.raises(CheckpointError, match="not a saved agent"):
        artefact.load(bare)
    assert not canary.exists()


def test_weights_for_another_shape_name_the_leaf(tmp_path: Path) -> None:
    loaded = artefact.load(save(tmp_path / "agent"))
    with pytest.raises(CheckpointError, match=r"'w' is bfloat16\[2, 3\] in the file"):
        loaded.weights(POLICY._replace(w=jnp.zeros((2, 4), jnp.bfloat16)))


def test_the_golden_artefact_of_schema_1_loads() -> None:
    loaded = artefact.load(Path(__file__).parents[1] / "golden" / "artefact-v1")
    assert loaded.algorithm == "ppo"
    assert loaded.spec.reward_threshold == 475.0
    weights = loaded.weights({"actor": {"w": np.zeros((4, 2), np.float32)}})
    np.testing.assert_array_equal(weights["actor"]["w"], np.arange(8, dtype=np.float32).reshape(4, 2))
    assert loaded.train_state({"count": np.zeros((), np.int32)})["count"] == 3


def test_a_passing_copy_does_not_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    save(tmp_path / "lasting")
    assert synced
    synced.clear()
    save(tmp_path / "passing", sync=False)
    assert synced == []
    assert same(artefact.load(tmp_path / "passing").weights(jax.eval_shape(lambda: POLICY)), POLICY)
