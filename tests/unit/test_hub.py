"""Agents to and from the Hub: the real client against a loopback server."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_help import Shell, quick
from loopback_hub import TOKEN, LoopbackHub

from sparring.export import card, hub
from sparring.metrics.sqlite import SqliteSink, StoredAlert
from sparring.runs import artefact, directory, sealed
from sparring.runs.directory import RunDirectory

# The client's own, where it uploads large files.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

ROOT = Path(__file__).parents[2]
REPO = "me/a2c-CartPole-v1"
RESULTS: dict[str, Any] = {
    "mean_reward": 480.5,
    "std_reward": 12.25,
    "ci95": [475.0, 486.0],
    "is_deterministic": True,
    "n_eval_episodes": 100,
    "steps": 1024,
}
CONFIG: dict[str, Any] = {
    "schema": 1,
    "algorithm": "a2c",
    "env": "CartPole-v1",
    "seeds": [3],
    "settings": {"total_timesteps": 1024},
    "config": {"gamma": 0.99},
    "env_kwargs": {},
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    from huggingface_hub import constants

    made = LoopbackHub()
    # Xet is the Hub's other protocol for large files; the server speaks LFS. It is read when imported.
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    monkeypatch.setenv("HF_ENDPOINT", made.address)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield made
    made.close()


@pytest.fixture
def sparring(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run whose agent is the golden one, with a film and an alert."""
    made = directory.create("a2c", "CartPole-v1", 3, path=tmp_path / "runs" / "mine")
    made.write_config(CONFIG)
    made.last.mkdir()
    for file in (ROOT / "tests" / "golden" / "artefact-v1").iterdir():
        if file.name in artefact.MEMBERS:
            (made.last / file.name).write_bytes(file.read_bytes())
    (made.videos / "late.mp4").write_bytes(b"film")
    SqliteSink(made.metrics).close()
    made.unlock()
    return made


def alarm(run: RunDirectory) -> None:
    """An alert in the run's file, with an evil text."""
    connection = sqlite3.connect(run.metrics)
    connection.execute(
        "CREATE TABLE IF NOT EXISTS alerts (rule TEXT, name TEXT, seed INTEGER, onset INTEGER, level TEXT, "
        "last INTEGER, cleared INTEGER, value REAL, evidence TEXT)"
    )
    text = "entropy 0.01 | `x`\n---\n# <b>"
    connection.execute(
        "INSERT INTO alerts VALUES ('R1', 'collapse', 0, 500, 'error', 9, NULL, 0.01, ?)", [text]
    )
    connection.commit()
    connection.close()


def pushed(run: RunDirectory, server: LoopbackHub) -> dict[str, bytes]:
    files = hub.contents(run, run.last, REPO, RESULTS, run.videos / "late.mp4")
    hub.push(REPO, files)
    return server.repos[REPO]


def test_what_is_pushed_is_pulled(run: RunDirectory, server: LoopbackHub, tmp_path: Path) -> None:
    alarm(run)
    stored = pushed(run, server)
    assert {"README.md", "manifest.json", "agent.json", "policy.safetensors"} < set(stored)
    assert {"config.json", "results.json", "health.json", "replay.mp4"} < set(stored)
    assert not [name for name, body in stored.items() if TOKEN.encode() in body]
    large = [name for name in stored if name.endswith((".safetensors", ".mp4"))]
    assert server.seen.count("PUT /lfs") == len(large) >= 2  # the way of large files
    pulled = hub.pull(REPO, tmp_path / "agent")
    assert pulled.revision == server.revision(REPO)
    assert pulled.results == RESULTS
    assert pulled.run.read_config() == CONFIG
    assert (pulled.run.videos / "replay.mp4").read_bytes() == b"film"
    first, second = artefact.load(run.last), artefact.load(pulled.run.last)
    assert (first.algorithm, first.config, first.spec) == (second.algorithm, second.config, second.spec)
    assert {n: x.tobytes() for n, x in first.policy.items()} == {
        n: x.tobytes() for n, x in second.policy.items()
    }
    status = pulled.run.read_status()
    assert (status.state, status.steps, status.mean_reward, status.seed) == ("finished", 1024, 480.5, 3)
    assert status.message.startswith(f"pulled from {REPO} at ")
    assert [path.name for path in tmp_path.iterdir() if "tmp-" in path.name] == []


def test_pushing_again_replaces_the_files(run: RunDirectory, server: LoopbackHub, tmp_path: Path) -> None:
    pushed(run, server)
    files = hub.contents(run, run.last, REPO, {**RESULTS, "mean_reward": 1.0}, None)
    hub.push(REPO, files)
    assert hub.pull(REPO, tmp_path / "agent").results["mean_reward"] == 1.0


def test_the_card_says_what_the_hub_looks_for(run: RunDirectory) -> None:
    yaml = pytest.importorskip("yaml")
    alarm(run)
    text = hub.contents(run, run.last, REPO, RESULTS, None)["README.md"].decode()
    _, front, body = text.split("---\n", 2)
    facts = yaml.safe_load(front)
    env = artefact.load(run.last).spec.id
    assert facts["library_name"] == "sparring"
    assert {env, "reinforcement-learning", "deep-reinforcement-learning"} <= set(facts["tags"])
    (listed,) = facts["model-index"]
    (result,) = listed["results"]
    assert result["task"]["type"] == "reinforcement-learning"
    assert result["dataset"]["type"] == env
    assert (result["metrics"][0]["type"], result["metrics"][0]["value"]) == (
        "mean_reward",
        "480.50 +/- 12.25",
    )
    assert "| 95 % interval of the mean | 475.00 to 486.00 |" in body
    assert "| 500 | error | collapse | entropy 0.01 / 'x' --- # ‹b> |" in body
    assert f"sparring pull {REPO} -o agent" in body
    assert "replay.mp4" not in body


def test_a_card_names_few_alerts_and_counts_the_rest() -> None:
    text = card.health([StoredAlert("R", f"n{i}", 0, i, "warn", i, None, 0.0, "e") for i in range(13)])
    assert "n9" in text
    assert "n10" not in text
    assert text.endswith("… and 3 more.")


# -- what a stranger may have put there ----------------------------------------------------------------------


def reseal(stored: dict[str, bytes], **changed: bytes) -> None:
    """The repository with changed files and a manifest that agrees with them."""
    stored.update({name.replace("__", "."): body for name, body in changed.items()})
    manifest = sealed.unseal(stored["manifest.json"], "manifest")
    names = {*manifest["files"], *(name.replace("__", ".") for name in changed)}
    listing = {n: {"size": len(stored[n]), "sha256": hashlib.sha256(stored[n]).hexdigest()} for n in names}
    stored["manifest.json"] = sealed.seal({**manifest, "files": listing})


def refused(tmp_path: Path, match: str, error: type[Exception] = Exception, **options: Any) -> None:
    with pytest.raises(error, match=match):
        hub.pull(REPO, tmp_path / "agent", **options)
    assert not (tmp_path / "agent").exists()
    assert [path.name for path in tmp_path.iterdir() if "tmp-" in path.name] == []


def test_a_changed_file_is_refused(run: RunDirectory, server: LoopbackHub, tmp_path: Path) -> None:
    stored = pushed(run, server)
    weights = bytearray(stored["policy.safetensors"])
    weights[-1] ^= 1
    stored["policy.safetensors"] = bytes(weights)
    refused(tmp_path, "policy.safetensors is not the file that was pushed")
    # … also when the manifest was made to agree: the agent carries the hash of its weights.
    reseal(stored)
    refused(tmp_path, "checksum")


def test_a_foreign_repository_is_refused(server: LoopbackHub, tmp_path: Path) -> None:
    server.repos[REPO] = {"pytorch_model.bin": b"pickle"}
    refused(tmp_path, "holds no manifest.json")


@pytest.mark.parametrize("name", ["../evil.py", "model.py", "sub/agent.json", "policy.pkl"])
def test_a_strange_name_is_refused_and_never_fetched(
    name: str, run: RunDirectory, server: LoopbackHub, tmp_path: Path
) -> None:
    stored = pushed(run, server)
    stored[name] = b"x"
    manifest = sealed.unseal(stored["manifest.json"], "manifest")
    manifest["files"][name] = {"size": 1, "sha256": hashlib.sha256(b"x").hexdigest()}
    stored["manifest.json"] = sealed.seal(manifest)
    refused(tmp_path, "which no agent of sparring has")


def test_too_large_a_file_is_refused_before_it_is_fetched(
    run: RunDirectory, server: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed(run, server)
    monkeypatch.setattr(artefact, "SIZE_LIMIT", 10)
    refused(tmp_path, "10 are accepted")


@pytest.mark.parametrize("key", ["algorithm", "env"])
def test_an_agent_that_names_code_is_refused_and_the_code_never_runs(
    key: str, run: RunDirectory, server: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("evil.py").write_text("open('ran', 'w')\nclass Mine: pass\n")
    stored = pushed(run, server)
    reseal(stored, config__json=json.dumps({**CONFIG, key: "evil.py:Mine"}).encode())
    refused(tmp_path, r"needs code that it does not hold \(evil.py:Mine\).*--trust-code")
    hub.pull(REPO, tmp_path / "agent", trust_code=True)
    assert not Path("ran").exists()


@pytest.mark.parametrize("body", [b"[]", b"not json", b'{"a": null}'])
def test_settings_that_are_none_are_refused(
    body: bytes, run: RunDirectory, server: LoopbackHub, tmp_path: Path
) -> None:
    reseal(pushed(run, server), config__json=body)
    refused(tmp_path, "config.json")


def test_errors_name_the_fix(
    run: RunDirectory, server: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(tmp_path, "hf auth login", hub.HubError)
    with pytest.raises(Exception, match="write it as user/name"):
        hub.pull("a/b/c", tmp_path / "x")
    (tmp_path / "there").mkdir()
    with pytest.raises(Exception, match="exists already"):
        hub.pull(REPO, tmp_path / "there")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong" * 4)
    with pytest.raises(hub.HubError, match="hf auth login") as caught:
        pushed(run, server)
    assert "hf_wrong" not in str(caught.value)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(Exception, match=r"pip install 'sparring\[hub\]'"):
        hub.pull(REPO, tmp_path / "x")


def test_a_hub_that_is_not_there_is_named(
    run: RunDirectory, server: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed(run, server)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    refused(tmp_path, "could not be reached", hub.HubError)


def test_the_command_pulls_and_reports(
    run: RunDirectory, server: LoopbackHub, tmp_path: Path, sparring: Shell
) -> None:
    pushed(run, server)
    said = sparring("pull", REPO, "-o", tmp_path / "agent", "--json")
    assert said.code == 0
    assert said.last["results"] == RESULTS
    assert "all as they were pushed" in said.err
    assert sparring("pull", "me/nothing").code == 7


# -- the commands ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_trained_agent_goes_there_and_back(
    server: LoopbackHub,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    sparring: Shell,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ("--total-timesteps", 512, "--set", "n_envs=4", "n_eval_episodes=4", "eval_freq=-1", "--quiet")
    with quick(tmp_path_factory):
        assert sparring("train", "a2c", "CartPole-v1", *small, "--run-dir", tmp_path / "r").code == 0
        dry = sparring("push", tmp_path / "r", REPO, "--episodes", 4, "--dry-run", tmp_path / "dry", "--json")
        assert dry.code == 0
        assert server.seen == []
        said = sparring("push", tmp_path / "r", REPO, "--episodes", 4, "--seed", 5, "--private", "--json")
        assert said.code == 0
        assert said.last["files"] == dry.last["files"]
        assert server.made[REPO]["visibility"] == "private"
        back = sparring("pull", REPO, "-o", "agent", "--json")
        assert back.last["results"] == said.last["results"]
        for folder in ("r", "agent"):
            score = sparring("eval", tmp_path / folder, "--episodes", 4, "--seed", 5, "--json").last
            assert score["mean"] == said.last["results"]["mean_reward"]
        (code,) = re.findall(r"```python\n(.*?)```", server.repos[REPO]["README.md"].decode(), re.S)
        found: dict[str, Any] = {}
        exec(compile(code, "README.md", "exec"), found)
        assert found["action"].shape == ()
