"""`sparring doctor`: clashes of versions, tokens, the compile cache, and the first failing probe."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import jax
import pytest
from cli_help import Shell, quick

from sparring.algos.dqn import DQN
from sparring.algos.ppo import PPO
from sparring.algos.sac import SAC
from sparring.cli import doctor
from sparring.cli.pins import Unmet, unmet
from sparring.evaluation import checks
from sparring.evaluation.checks import Verdict, localise, settings_for

ALGORITHM = Path(__file__).parents[2] / "examples" / "my_algorithm.py"


@pytest.fixture
def sparring(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages, before all others."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def install(shelf: Path, name: str, version: str, *requires: str) -> None:
    folder = shelf / f"{name}-{version}.dist-info"
    folder.mkdir()
    lines = [f"Requires-Dist: {need}" for need in requires]
    head = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", "Provides-Extra: more"]
    (folder / "METADATA").write_text("\n".join([*head, *lines]) + "\n")


def test_a_version_that_does_not_fit_is_found(shelf: Path) -> None:
    install(shelf, "alpha", "1.0", "beta>=2", 'gamma; extra == "more"', 'absent; python_version < "3"')
    install(shelf, "beta", "1.5", "delta<3")
    install(shelf, "delta", "3.1")
    assert list(unmet("alpha")) == [Unmet("alpha", "beta>=2", "1.5"), Unmet("beta", "delta<3", "3.1")]
    assert Unmet("alpha", "gamma", "") in list(unmet("alpha", ["more"]))
    assert "and 1.5 is installed" in next(iter(unmet("alpha"))).text


def test_packages_that_require_each_other_end(shelf: Path) -> None:
    install(shelf, "one", "1.0", "two==1.0")
    install(shelf, "two", "1.0", "one==1.0")
    assert list(unmet("one")) == []


def test_a_clash_is_a_problem_with_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = [Unmet("sparring", "jax>=99", "0.1"), Unmet("other", "thing<1", "")]
    monkeypatch.setattr(doctor, "unmet", lambda *_: iter(wrong))
    first, second = doctor.pins()
    assert (first.level, first.fix) == ("problem", "pip install 'jax>=99'")
    assert second.level == "warning"
    assert "thing<1, and it is not installed" in second.found


def test_the_installed_packages_are_walked() -> None:
    """The walk reaches beyond the first requirements, or it could not find their clashes."""
    assert metadata.requires("sparring")
    (found,) = doctor.pins()
    assert found.level == "ok"


def test_tokens_are_named_and_never_shown(
    sparring: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret_value")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    (tmp_path / "token").write_text("hf_another_secret")
    monkeypatch.setattr(doctor, "LOOKS", (doctor.tokens, lambda: iter([leak()])))

    def leak() -> doctor.Symptom:
        return doctor.Symptom("leak", "ok", "a library said hf_secret_value")

    said = sparring("doctor", "--json")
    assert "HF_TOKEN, the Hub's login file" in said.last["checks"][0]["found"]
    assert "secret" not in said.out + said.err
    assert "<HF_TOKEN>" in said.out
    assert "<HF_TOKEN>" in said.err


def test_a_cache_that_is_off_or_cannot_be_written_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = jax.config.values["jax_compilation_cache_dir"]
    try:
        jax.config.update("jax_compilation_cache_dir", None)
        monkeypatch.setenv("SPARRING_CACHE_DIR", "")
        (off,) = doctor.cache()
        assert off.level == "warning"
        assert off.fix == "unset SPARRING_CACHE_DIR"
        blocked = tmp_path / "file"
        blocked.write_text("")
        monkeypatch.setenv("SPARRING_CACHE_DIR", str(blocked))
        (nowhere,) = doctor.cache()
        assert "cannot be made" in nowhere.found
        monkeypatch.setenv("SPARRING_CACHE_DIR", str(tmp_path / "kept"))
        (kept,) = doctor.cache()
        assert kept.level == "ok"
        assert "0 files" in kept.found
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_a_look_that_breaks_is_a_problem_and_the_others_go_on(
    sparring: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise OSError("no such thing")

    monkeypatch.setattr(doctor, "LOOKS", (broken, doctor.python))
    said = sparring("doctor", "--json")
    assert said.code == 1
    assert [check["level"] for check in said.last["checks"]] == ["problem", "ok"]


def test_deep_without_a_name_is_an_error(sparring: Shell) -> None:
    assert sparring("doctor", "--deep", ",").code == 2
    assert "There is no algorithm" in sparring("doctor", "--deep", "pp").error


def test_the_first_failure_is_localised() -> None:
    verdicts = [
        Verdict("constant-value", "pass", "V(0) = 1"),
        Verdict("observed-value", "pass", "V(1) = 1"),
        Verdict("discounting", "fail", "V(0) = 0.5 (want 0.9)", checks.PROBES["discounting"].hint),
    ]
    assert localise("mine", verdicts) == (
        "mine fails first at discounting (constant-value, observed-value work): look at discounting and at "
        "the returns. Measured: V(0) = 0.5 (want 0.9)."
    )
    assert localise("mine", verdicts[:2]).startswith("mine passes 2 probes")
    assert "no probe" in localise("mine", [Verdict("discounting", "skip", "")])


def test_a_replay_has_settings_of_its_own() -> None:
    """`n_steps` is the length of a rollout for one family and of a return for the other."""
    assert settings_for(PPO)["n_steps"] == 16
    assert settings_for(DQN)["n_steps"] == 1
    assert settings_for(DQN)["buffer_size"] < 100_000
    assert "tau" not in settings_for(DQN)  # copied as a whole, every so often
    assert "target_update_interval" not in settings_for(SAC)  # followed, at every update


@pytest.mark.slow
def test_deep_finds_the_broken_part(
    sparring: Shell, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = tmp_path / "wrong.py"
    text = ALGORITHM.read_text()
    assert text.count(" - gain, ") == 1
    wrong.write_text(text.replace(" - gain, ", " + gain, "))
    names = ("constant-value", "action-reward", "observed-action")
    monkeypatch.setattr(checks, "PROBES", {name: checks.PROBES[name] for name in names})
    monkeypatch.setattr(doctor, "LOOKS", (doctor.python,))
    with quick(tmp_path_factory):
        said = sparring("doctor", "--deep", f"{wrong}:Mine", "--json")
    assert said.code == 1
    (found,) = said.last["deep"].values()
    assert found["first_failure"] == "action-reward"
    assert [verdict["result"] for verdict in found["probes"]] == ["pass", "fail"]
    assert "advantage and the policy loss" in found["sentence"]
    assert "probe 2 of 3, action-reward …" in said.err


@pytest.mark.slow
def test_dqn_is_healthy(
    sparring: Shell, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "LOOKS", ())
    names = ("discounting", "observed-action", "action-reward-continuous")
    monkeypatch.setattr(checks, "PROBES", {name: checks.PROBES[name] for name in names})
    with quick(tmp_path_factory):
        said = sparring("doctor", "--deep", "dqn", "--json")
    assert said.code == 0, said.err
    assert [v["result"] for v in said.last["deep"]["dqn"]["probes"]] == ["pass", "pass", "skip"]
