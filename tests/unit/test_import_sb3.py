"""Models of SB3's: what a confined exporter hands over is checked, and the agent built from it acts the same.

tests/golden/sb3_import holds what SB3 handed over for small models; check_import_sb3.py --fixtures writes it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import zipfile
from pathlib import Path
from textwrap import dedent
from typing import Any

import jax
import numpy as np
import pytest
from cli_help import Shell, quick

from sparring.envs import registry
from sparring.errors import CheckpointError, ConfigError, MissingExtra, SpaceMismatch
from sparring.export import policy
from sparring.runs import tensors
from sparring.sb3 import confined, exporter, handover, importing, parity, rebuild, sandbox
from sparring.sb3.handover import Handover, Record
from sparring.spaces import Box, Discrete, EnvSpec, MultiBinary, MultiDiscrete

FOLDER = Path(__file__).parents[1] / "golden" / "sb3_import"
ENVS = {
    "ppo": "CartPole-v1",
    "ppo-normalised": "Pendulum-v1",
    "ppo-sde": "Pendulum-v1",
    "a2c": "CartPole-v1",
    "dqn": "CartPole-v1",
    "sac": "Pendulum-v1",
    "td3": "Pendulum-v1",
}


@pytest.fixture(scope="module", autouse=True)
def compiled_quickly(tmp_path_factory):
    with quick(tmp_path_factory):
        yield


@pytest.fixture
def shell(capsys):
    return Shell(capsys)


def recorded(case: str) -> dict[str, bytes]:
    return {name: (FOLDER / case / name).read_bytes() for name in handover.SIZES}


def changed(case: str, arrays: dict[str, Any] | None = None, **about: Any) -> dict[str, bytes]:
    """A recorded hand-over with other arrays (None removes one) and other facts."""
    files = recorded(case)
    found = {**tensors.decode(files[handover.TENSORS], ""), **(arrays or {})}
    body = b"".join(tensors.encode({name: x for name, x in found.items() if x is not None}))
    facts = {**json.loads(files[handover.ABOUT]), **about}
    return {handover.ABOUT: json.dumps(facts).encode(), handover.TENSORS: body}


def spec(case: str) -> EnvSpec:
    found: EnvSpec = registry.make(ENVS[case]).spec
    return found


# -- building ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ENVS)
def test_an_imported_agent_acts_as_the_model(case):
    given = handover.read(recorded(case), spec(case))
    assert given.normalised is not None or case != "ppo-normalised"
    agent = rebuild.agent(given, spec(case))
    seen = parity.on_observations(agent, given)
    assert seen.observations == seen.equal == 250
    assert max(seen.action, seen.params) < 1e-5
    again = parity.on_episodes(agent, given.record, f"gym:{ENVS[case]}", importing.SEED)
    assert again.same == again.steps == 250
    assert max(again.obs, again.reward) < 1e-4


def test_stochastic_actions_have_no_noise_that_sb3_does_not_add():
    agents = {case: rebuild.agent(handover.read(recorded(case), spec(case)), spec(case)) for case in ENVS}
    obs = np.linspace(-0.5, 0.5, 3 * 64, dtype=np.float32).reshape(64, 3)
    one, two = (agents["td3"].predict(obs)[0] for _ in range(2))
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(agents["sac"].predict(obs)[0], agents["sac"].predict(obs)[0])
    assert not bool(agents["sac"].weights.random)
    assert float(agents["dqn"].weights.epsilon) == pytest.approx(0.05)


def test_an_agent_with_gsde_is_exported_without_its_noise():
    given = handover.read(recorded("ppo-sde"), spec("ppo-sde"))
    made = policy.pipeline(rebuild.agent(given, spec("ppo-sde")))
    assert [port.name for port in made.inputs] == ["observation"]
    (action,) = jax.jit(made.function)(given.record.obs)
    np.testing.assert_allclose(action, given.record.action, atol=1e-5)


def test_an_agent_that_acts_otherwise_is_refused():
    given = handover.read(recorded("ppo"), spec("ppo"))
    weights = {**given.weights, "head.bias": given.weights["head.bias"] + np.float32([0, 1e-3])}
    agent = rebuild.agent(given._replace(weights=weights), spec("ppo"))
    with pytest.raises(CheckpointError, match="does not act as SB3's"):
        parity.on_observations(agent, given)


def test_an_episode_that_goes_otherwise_is_noticed():
    given = handover.read(recorded("ppo"), spec("ppo"))
    agent = rebuild.agent(given, spec("ppo"))
    assert given.record.reward is not None
    reward = given.record.reward.copy()
    reward[100] += 1
    found = parity.on_episodes(agent, given.record._replace(reward=reward), "gym:CartPole-v1", importing.SEED)
    assert found.same == 100


@pytest.mark.parametrize(
    ("observation", "action", "pi"),
    [
        (Box((2, 2), 0, 255, "uint8"), Discrete(3), (5,)),
        (Box((2, 2), 0, 255, "uint8"), Discrete(3), ()),
        (Discrete(4), MultiDiscrete((2, 4, 3)), (5,)),
        (MultiDiscrete((2, 3)), MultiBinary(3), (6, 5)),
    ],
)
def test_other_spaces_by_hand(observation, action, pi):
    """Held against a dense network in numpy: bytes as they are, choices as one of many, branches in a row."""
    random = np.random.default_rng(0)
    made = EnvSpec("made-up", observation, action)
    sizes = action.sizes if isinstance(action, MultiDiscrete) else (action.n,)
    width, rows = handover.inputs(observation), 40
    weights: dict[str, np.ndarray] = {}
    for name, (a, b) in zip(
        [*(f"body.{i}" for i in range(len(pi))), "head"],
        zip((width, *pi), (*pi, sum(sizes)), strict=True),
        strict=True,
    ):
        weights[f"{name}.weight"] = random.normal(0, 0.3, (b, a)).astype(np.float32)
        weights[f"{name}.bias"] = random.normal(0, 0.3, b).astype(np.float32)
    match observation:
        case Box():
            obs = random.integers(0, 255, (rows, 2, 2)).astype(np.int32)
            x = obs.reshape(rows, -1).astype(np.float64)
        case Discrete(n):
            obs = random.integers(0, n, rows).astype(np.int32)
            x = np.eye(n)[obs]
        case MultiDiscrete(parts):
            obs = random.integers(0, parts, (rows, len(parts))).astype(np.int32)
            x = np.concatenate([np.eye(n)[obs[:, i]] for i, n in enumerate(parts)], axis=1)
    for index in range(len(pi)):
        x = np.tanh(x @ weights[f"body.{index}.weight"].T + weights[f"body.{index}.bias"])
    logits = x @ weights["head.weight"].T + weights["head.bias"]
    if isinstance(action, MultiBinary):
        params, chosen = logits, (logits > 0).astype(np.int32)
    else:
        cut = np.split(logits, np.cumsum(sizes)[:-1], axis=1)
        params = np.concatenate([c - np.log(np.exp(c).sum(1, keepdims=True)) for c in cut], axis=1)
        chosen = np.stack([c.argmax(1) for c in cut], axis=1).astype(np.int32)
    chosen = chosen[:, 0] if isinstance(action, Discrete) else chosen
    record = Record(obs, chosen, params.astype(np.float32), None, None, None, "made up")
    given = Handover("ppo", "tanh", pi, weights, False, -1, 0.0, {}, None, record, 0, {})
    assert parity.on_observations(rebuild.agent(given, made), given).params < 1e-4


# -- what is handed over -------------------------------------------------------------------------------------

BAD: dict[str, tuple[dict[str, bytes], str]] = {
    "nothing": ({}, "left no export.json"),
    "no tensors": ({handover.ABOUT: recorded("ppo")[handover.ABOUT]}, "left no export.safetensors"),
    "not JSON": ({handover.ABOUT: b"\x80\x04garbage"}, "is not JSON"),
    "deep JSON": ({handover.ABOUT: b"[" * 100_000}, "is not JSON"),
    "a list": ({handover.ABOUT: b"[]"}, "not a description"),
    "not safetensors": ({**recorded("ppo"), handover.TENSORS: b"PK\x03\x04"}, "not a readable safetensors"),
    "NaN": (
        changed("ppo", {"head.bias": np.float32([np.nan, 0])}),
        "head.bias has numbers that are not finite",
    ),
    "infinite": (
        changed("ppo-normalised", {"obs.var": np.array([1, np.inf, 1])}),
        "obs.var has numbers that are not finite",
    ),
    "negative": (changed("ppo-normalised", {"obs.var": -np.ones(3)}), "variance is negative"),
    "wrong shape": (changed("ppo", {"body.0.weight": np.zeros((4, 16), np.float32)}), r"float32\[4, 16\]"),
    "wrong dtype": (changed("ppo", {"head.bias": np.zeros(2)}), "head.bias is float64"),
    "missing": (changed("sac", {"log_std.bias": None}), "'log_std.bias' is missing"),
    "too much": (changed("ppo", {"value": np.zeros(1, np.float32)}), "'value' does not belong there"),
    "nothing recorded": (changed("ppo", {"record.obs": None}), "recorded no decisions"),
    "other layers": (changed("ppo", pi=[16]), "does not belong there"),
    "absurd layers": (changed("ppo", pi=[10**12, 8]), "not a whole number"),
    "no sizes": (changed("ppo", pi=None), "not a description"),
    "another algorithm": (changed("ppo", algorithm="tqc"), "known: ppo, a2c"),
    "its algorithm": (changed("ppo", algorithm="sac"), "SAC does not act with"),
    "activation": (changed("ppo", activation="file.py:Net"), "known: tanh"),
    "exploration": (changed("dqn", exploration_rate=7.0), "not a number from 0 to 1"),
}


PENDULUM = ("infinite", "negative", "missing")


@pytest.mark.parametrize("case", BAD)
def test_a_bad_hand_over_is_an_error_that_says_what(case):
    files, words = BAD[case]
    with pytest.raises(CheckpointError, match=words):
        handover.read(files, spec("sac" if case in PENDULUM else "ppo"))


def test_another_environment_is_refused():
    with pytest.raises(SpaceMismatch, match=r"The model has observations Box\[4\].*Box\[2\]"):
        handover.read(recorded("ppo"), registry.make("MountainCar-v0").spec)


def test_actions_with_other_bounds_are_refused():
    found = spec("sac")
    narrow = EnvSpec(found.id, found.observation, Box((1,), -1.0, 1.0))
    with pytest.raises(SpaceMismatch, match="from -2 to 2"):
        handover.read(recorded("sac"), narrow)


def test_what_the_exporter_refuses_is_told():
    files = {handover.ABOUT: json.dumps({"schema": 1, "error": "it sees \x1b[31mimages"}).encode()}
    with pytest.raises(ConfigError, match=r"cannot be imported: it sees \[31mimages\."):
        handover.read(files, spec("ppo"))


# -- the process ---------------------------------------------------------------------------------------------


@pytest.fixture
def stand_in(tmp_path):
    """Makes an executable that stands where SB3's Python would."""

    def make(code: str) -> Path:
        path = tmp_path / "python-of-sb3"
        path.write_text(
            f"#!{sys.executable} -I\nimport json, os, sys, time, socket, subprocess\n{dedent(code)}"
        )
        path.chmod(0o755)
        return path

    return make


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "models" / "CartPole-v1.zip"
    path.parent.mkdir()
    path.write_bytes(b"a model that only SB3 opens")
    return path


def told(shell: Shell, model: Path, python: Path, *more: object) -> Any:
    return shell("import-sb3", model, "--env", "CartPole-v1", "--peers-python", python, *more)


SAY = "said = str(%s)\nopen('export.json', 'w').write(json.dumps({'schema': 1, 'error': said}))"


def test_a_whole_import(shell, stand_in, model, tmp_path):
    for name, body in recorded("ppo").items():
        (tmp_path / name).write_bytes(body)
    python = stand_in(
        f"""
        request = json.load(open("request.json"))
        assert request["env"] == "CartPole-v1" and request["steps"] == 250, request
        assert request["vecnormalize"] is None and len(request["seeds"]) == 250
        assert open(request["model"], "rb").read() == b"a model that only SB3 opens"
        for name in ("export.json", "export.safetensors"):
            open(name, "wb").write(open("{tmp_path}/" + name, "rb").read())
        """
    )
    run = tmp_path / "run"
    said = told(shell, model, python, "-o", run, "--steps", 250, "--json")
    assert said.code == 0, said.err
    assert said.last["parity"]["equal"] == said.last["replay"]["same"] == 250
    assert "250 actions equal" in said.err
    scored = shell("eval", run, "--episodes", 2, "--json")
    assert scored.code == 0
    assert scored.last["mean"] > 9
    assert "imported from CartPole-v1.zip" in (run / "status.json").read_text()
    assert told(shell, model, python, "-o", run).code == 2  # it holds a run now


def test_one_that_never_ends_is_ended_with_all_that_it_started(shell, stand_in, model, tmp_path):
    sign = tmp_path / "alive"
    python = stand_in(
        """
        code = "import time; time.sleep(60)"
        subprocess.Popen([sys.executable, "-c", code, "SIGN"], start_new_session=True)
        time.sleep(60)
        """.replace("SIGN", str(sign))
    )
    begun = time.monotonic()
    said = told(shell, model, python, "--timeout", 2)
    assert said.code == 3
    assert "did not finish within 2 seconds" in said.error
    assert time.monotonic() - begun < 60
    if sandbox.unshare():
        while str(sign) in processes() and time.monotonic() - begun < 60:
            time.sleep(0.05)  # the kernel ends what was left in the sandbox, a moment later
        assert str(sign) not in processes()


def processes() -> str:
    lines = [
        p / "cmdline" for p in Path("/proc").iterdir() if p.name.isdecimal() and int(p.name) != os.getpid()
    ]
    found = []
    for line in lines:
        try:
            found.append(line.read_text())
        except OSError:
            continue
    return "\n".join(found)


def test_garbage_is_refused(shell, stand_in, model):
    python = stand_in("[open(n, 'wb').write(os.urandom(99)) for n in ('export.json', 'export.safetensors')]")
    said = told(shell, model, python)
    assert said.code == 4
    assert "export.json is not JSON" in said.error


def test_a_failure_is_told_in_its_own_last_words(shell, stand_in, model):
    said = told(shell, model, stand_in("sys.exit('No module named stable_\\x1b[2Jbaselines3')"))
    assert said.code == 3
    assert "ended with 1" in said.error
    assert "No module named stable_ [2Jbaselines3" in said.error


def test_links_are_not_followed(shell, stand_in, model):
    said = told(shell, model, stand_in("os.symlink('/etc/passwd', 'export.json')"))
    assert said.code == 3
    assert "export.json is not a plain file" in said.error


def test_no_secrets_no_folders_of_ours(shell, stand_in, model, monkeypatch):
    for name in ("HF_TOKEN", "WANDB_API_KEY", "PYTHONPATH", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "a-secret")
    python = stand_in(SAY % "(sorted(os.listdir('.')), dict(os.environ))")
    said = told(shell, model, python)
    assert said.code == 2
    assert "HOME" in said.error
    assert "['model.zip', 'request.json']" in said.error
    assert "a-secret" not in said.error
    assert f"{str(Path.home())!r}" not in said.error


def test_nothing_is_written_elsewhere_and_nobody_called(shell, stand_in, model, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        python = stand_in(
            f"""
            said = []
            try:
                open("{tmp_path}/escaped", "w")
                said.append("wrote")
            except OSError:
                said.append("kept inside")
            try:
                socket.create_connection(("127.0.0.1", {port}), 5)
                said.append("called")
            except OSError:
                said.append("kept silent")
            open("export.json", "w").write(json.dumps({{"schema": 1, "error": " and ".join(said)}}))
            """
        )
        said = told(shell, model, python)
    assert (tmp_path / "escaped").exists() != bool(confined.landlock())
    assert ("kept inside" in said.error) == bool(confined.landlock())
    assert ("kept silent" in said.error) == bool(sandbox.unshare() or confined.landlock() >= 4)
    assert ("no network" in said.out) == bool(sandbox.unshare())


def test_memory_and_files_are_bounded(stand_in):
    greedy = stand_in("x = bytearray(2**30)")
    with pytest.raises(sandbox.SandboxError, match="MemoryError"):
        sandbox.run([str(greedy)], {}, {}, sandbox.Limits(60, 2**29))
    large = stand_in("with open('export.json', 'wb') as file:\n    file.write(bytes(4096))")
    with pytest.raises(sandbox.SandboxError, match=r"has 4,096 bytes; 100 are accepted"):
        sandbox.run([str(large)], {}, {"export.json": 100})
    with pytest.raises(sandbox.SandboxError, match=r"File too large|signal"):
        sandbox.run([str(large)], {}, {}, sandbox.Limits(60, 2**33, 1024))


# -- finding things ------------------------------------------------------------------------------------------


def test_the_python_of_sb3(monkeypatch, tmp_path):
    monkeypatch.setenv(importing.VARIABLE, sys.executable)
    assert importing.find_python(None) == Path(sys.executable)
    with pytest.raises(MissingExtra, match=r"no Python at .*nowhere.*pip install stable-baselines3"):
        importing.find_python(tmp_path / "nowhere")
    monkeypatch.delenv(importing.VARIABLE)
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".venv-peers" / "bin").mkdir(parents=True)
    (tmp_path / importing.USUAL).symlink_to(sys.executable)
    assert importing.find_python(None) == tmp_path / importing.USUAL  # the link, which has the packages


@pytest.mark.parametrize("place", ["vecnormalize.pkl", "Hopper-v4/vecnormalize.pkl", "vec_normalize.pkl"])
def test_statistics_beside_a_model(tmp_path, place):
    model = tmp_path / "best_model.zip"
    model.touch()
    assert importing.find_statistics(model) is None
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).touch()
    assert importing.find_statistics(model) == tmp_path / place


@pytest.mark.parametrize(
    ("module", "own", "wanted"),
    [
        ("stable_baselines3.common.policies", "clip_range", "ppo"),
        ("stable_baselines3.td3.policies", "policy_delay", "td3"),
        ("sb3_contrib.tqc.policies", "target_entropy", None),
    ],
)
def test_the_algorithm_is_known_without_opening_a_pickle(tmp_path, module, own, wanted):
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        data = {"policy_class": {"__module__": module, ":serialized:": "gASV!"}, own: 1, "gamma": 0.9}
        archive.writestr("data", json.dumps(data))
    if wanted is None:
        with pytest.raises(exporter.Unsupported, match="sb3_contrib"):
            exporter.identify(str(tmp_path / "m.zip"))
    else:
        assert exporter.identify(str(tmp_path / "m.zip")) == (wanted, {"gamma": 0.9})


def test_the_exporters_files_are_safetensors():
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.array([True]),
        "c": np.float64([1.5]),
    }
    found = tensors.decode(exporter.encode(arrays), "a file")
    assert {n: x.tolist() for n, x in found.items()} == {n: x.tolist() for n, x in arrays.items()}
