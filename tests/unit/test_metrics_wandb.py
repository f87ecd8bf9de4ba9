"""The W&B sink writes offline files that wandb's own records are read back from, and calls nobody."""

from __future__ import annotations

import math
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparring.errors import CheckpointError, ConfigError, MissingExtra
from sparring.metrics import trackers, wandb_file
from sparring.metrics.apart import Apart
from sparring.metrics.wandb import WandbSink, mode, safe

TOKEN = "0123456789abcdef" * 2 + "01234567"


class Proxy:
    """Where every connection to the outside would go; counts them."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:  # closed
                return
            self.calls.append(connection.recv(100))
            connection.close()

    def close(self) -> None:
        self._server.close()


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """A home for wandb without a user's settings, with a token, and with a watched way to the outside."""
    home, watched = tmp_path_factory.mktemp("home"), Proxy()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
            patch.setenv(name, str(home / name))
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
            patch.setenv(name, watched.address)
        patch.setenv("WANDB_API_KEY", TOKEN)
        patch.delenv("WANDB_MODE", raising=False)
        patch.setattr(trackers, "PATIENCE", 120.0)  # wandb starts a process; the machine may be busy
        yield watched
    watched.close()


@pytest.fixture(scope="module")
def folder(proxy: Proxy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two seeds, an alert, a film and a best agent, as a tracker wrote it."""
    run = tmp_path_factory.mktemp("runs") / "ppo-CartPole"
    for part in ("best", "videos"):
        (run / part).mkdir(parents=True)
    (run / "best" / "agent.json").write_text("{}")
    (run / "best" / "policy.safetensors").write_bytes(b"weights")
    (run / "videos" / "early.mp4").write_bytes(b"film 1")
    (run / "videos" / "step-150.mp4").write_bytes(b"film 2")
    said: list[str] = []
    (tracker,) = trackers.start(["wandb"], run, {"algorithm": "ppo", "config": {"gamma": 0.99}}, said.append)
    for step in (100, 200):
        tracker.write(step, 0.0, {"train/loss": step / 1000, "train/odd": math.nan})
    tracker.write(200, 0.0, {"eval/mean_reward": 7.5})  # a second record at the same step
    tracker.write(100, 0.0, {"train/loss": 0.5}, seed=1)
    tracker.alert(150, "entropy-collapse" * 10, "The policy stopped exploring.", "error")
    tracker.video(200, run / "videos" / "early.mp4")
    tracker.close()
    assert (said, tracker.lost) == ([], 0)
    return run


def runs(folder: Path) -> dict[str, wandb_file.WandbRun]:
    found = [wandb_file.read(path) for path in (folder / "wandb").glob("offline-run-*")]
    return {run.name: run for run in found}


def test_everything_is_read_back(folder: Path) -> None:
    found = runs(folder)
    assert found.keys() == {"ppo-CartPole", "ppo-CartPole-1"}
    run = found["ppo-CartPole"]
    assert run.config["algorithm"] == "ppo"
    assert run.config["config"] == {"gamma": 0.99}
    rows = [{k: v for k, v in row.items() if not k.startswith("_")} for row in run.history]
    assert math.isnan(rows[0].pop("train/odd"))
    rows[1].pop("train/odd")
    assert rows[:3] == [
        {"train/loss": 0.1, "time/total_timesteps": 100},
        {"train/loss": 0.2, "time/total_timesteps": 200},
        {"eval/mean_reward": 7.5, "time/total_timesteps": 200},
    ]
    (alert,) = run.alerts
    assert alert == (
        ("entropy-collapse" * 10)[:63],
        "The policy stopped exploring.\n(step 150)",
        "ERROR",
    )
    assert run.artifacts == {"ppo-CartPole-best": ["agent.json", "policy.safetensors"]}
    other = found["ppo-CartPole-1"]
    assert [(row["train/loss"], row["time/total_timesteps"]) for row in other.history] == [(0.5, 100)]
    assert not other.artifacts


def test_every_film_is_there_once(folder: Path) -> None:
    films = [path.read_bytes() for path in (folder / "wandb").glob("**/media/**/*.mp4")]
    assert sorted(films) == [b"film 1", b"film 2"]
    rows = [
        row for row in runs(folder)["ppo-CartPole"].history if any("videos/agent" in name for name in row)
    ]
    assert [row["time/total_timesteps"] for row in rows] == [200, 150]  # the second had its step in its name


def test_nobody_was_called_and_the_token_is_nowhere(folder: Path, proxy: Proxy) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert [path for path in files if TOKEN.encode() in path.read_bytes()] == []
    assert proxy.calls == []


@pytest.mark.slow
def test_wandb_itself_would_sync_the_folder(folder: Path) -> None:
    paths = sorted(map(str, (folder / "wandb").glob("offline-run-*")))
    said = subprocess.run(
        [sys.executable, "-m", "wandb", "sync", "--dry-run", *paths],
        capture_output=True,
        text=True,
        check=True,
    )
    for path in paths:
        assert Path(path).name in said.stdout + said.stderr


def test_a_torn_file_is_read_to_its_last_whole_record_and_a_flipped_bit_is_seen(
    folder: Path, tmp_path: Path
) -> None:
    whole = next(p for p in (folder / "wandb").glob("**/*.wandb") if b"entropy" in p.read_bytes())
    torn = tmp_path / "torn.wandb"
    torn.write_bytes(whole.read_bytes()[:-3])
    assert wandb_file.read(torn).history == wandb_file.read(whole).history
    data = bytearray(whole.read_bytes())
    data[data.index(b"stopped exploring")] ^= 1
    torn.write_bytes(data)
    with pytest.raises(CheckpointError, match="corrupt"):
        wandb_file.read(torn)
    torn.write_bytes(b"something else")
    with pytest.raises(CheckpointError, match="not a W&B run"):
        wandb_file.read(torn)
    with pytest.raises(CheckpointError, match=r"holds 2 `\.wandb` files"):
        wandb_file.read(folder)


def test_long_records_span_blocks(proxy: Proxy, tmp_path: Path) -> None:
    sink = WandbSink(tmp_path, "long")
    sink.describe({"long": "x" * 100_000})
    for step in range(300):
        sink.write(step, 0.0, {f"train/{i}": float(step) for i in range(10)})
    sink.close()
    run = wandb_file.read(tmp_path)
    assert run.config["long"] == "x" * 100_000
    assert [row["train/3"] for row in run.history] == list(map(float, range(300)))


def test_the_mode_is_offline_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    assert mode() == "offline"
    monkeypatch.setenv("WANDB_MODE", "online")
    assert mode() == "online"
    monkeypatch.setenv("WANDB_MODE", "onlin")
    with pytest.raises(ConfigError, match="WANDB_MODE='onlin'"):
        mode()


def test_names_and_missing_extras(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert safe("a b/c-v1") == "a_b_c-v1"
    with pytest.raises(ConfigError, match="Did you mean 'wandb'"):
        trackers.check(["wandbb"])
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtra, match=r"pip install 'sparring\[wandb\]'"):
        trackers.check(["tensorboard", "wandb"])


def test_trackers_are_apart_and_tensorboard_goes_where_it_is_told(tmp_path: Path) -> None:
    (board,) = trackers.start(["tensorboard"], tmp_path / "run", {}, print, tmp_path / "board")
    assert isinstance(board, Apart)
    board.write(1, 0.0, {"a": 1.0})
    board.close()
    assert list((tmp_path / "board").glob("events.*"))
    assert not (tmp_path / "run").exists()
