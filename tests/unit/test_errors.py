"""Bad input: each mistake gets one paragraph that says what, why and the fix, and nothing is lost."""

from __future__ import annotations

import resource
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli_help import Said, Shell, quick

from sparring.cli.main import main
from sparring.metrics import sqlite
from sparring.runs.directory import RunDirectory

TRAIN = ("--total-timesteps", 640, "--quiet", "--set", "n_envs=4", "n_eval_episodes=2")
OWN = """
import gymnasium
import numpy as np


class Bad(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        obs = np.zeros(2, np.float32)
        if self.steps > 300:
            obs = self.fail(obs)
        return obs, 1.0, self.steps % 10 == 0, False, {}


class Raises(Bad):
    def fail(self, obs):
        raise RuntimeError("the cable is loose")


class Nan(Bad):
    def fail(self, obs):
        return obs * np.nan


class Text(Bad):
    observation_space = gymnasium.spaces.Text(5)
"""


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with quick(tmp_path_factory):
        yield


@pytest.fixture
def sparring(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.fixture(scope="module")
def finished(cache: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run to take copies of."""
    run = tmp_path_factory.mktemp("errors") / "run"
    assert main([str(word) for word in ("train", "a2c", "CartPole-v1", *TRAIN, "--run-dir", run)]) == 0
    return run


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the short run, to be spoilt."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def check(said: Said, code: int, *words: str) -> None:
    """One paragraph on stderr, without a traceback, that holds these words."""
    assert said.code == code, said.err
    assert "Traceback" not in said.err
    assert "Error:" in said.err
    assert "\n\n" not in said.err
    for word in words:
        assert word in said.error


# -- names -------------------------------------------------------------------------------------------------


def test_unknown_environment(sparring: Shell) -> None:
    check(sparring("train", "ppo", "CartPol-v1"), 2, "'CartPol-v1'", "Did you mean 'CartPole-v1'")


def test_unknown_algorithm(sparring: Shell) -> None:
    check(sparring("train", "pp", "CartPole-v1"), 2, "'pp'", "Did you mean 'ppo'", "file.py:Name")


def test_unknown_setting(sparring: Shell) -> None:
    said = sparring("train", "ppo", "CartPole-v1", "--set", "learning_rat=1")
    check(said, 2, "'learning_rat'", "Did you mean 'learning_rate'", "sparring config show ppo CartPole-v1")


def test_unknown_run(sparring: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check(sparring("eval", "nothing"), 2, "There is no run 'nothing'", "sparring runs")
    check(sparring("resume", "last"), 2, "no runs", "sparring train ppo CartPole-v1")


def test_missing_files(sparring: Shell, tmp_path: Path) -> None:
    check(sparring("train", "ppo", f"{tmp_path}/none.py:make"), 2, "There is no file", "none.py")
    check(sparring("train", f"{tmp_path}/none.py:Mine", "CartPole-v1"), 2, "There is no file")
    said = sparring("train", "ppo", "CartPole-v1", "--config", tmp_path / "none.toml")
    check(said, 2, "There is no configuration file")


def test_a_name_that_the_file_does_not_define(sparring: Shell, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def make():\n    pass\n")
    check(sparring("train", "ppo", f"{tmp_path}/own.py:mke"), 2, "'mke'", "Did you mean 'make'")
    check(sparring("train", f"{tmp_path}/own.py:make", "CartPole-v1"), 2, "is not an algorithm")


# -- values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("gamma", ("--set takes key=value",)),
        ("n_steps=many", ("n_steps must be a whole number", "'many'")),
        ("gamma=often", ("gamma must be a number or a schedule", "'often'")),
        ("use_sde=perhaps", ("use_sde must be true or false",)),
        ("stop_on=luck", ("'deterministic', 'stochastic'", "'luck'")),
        ("activation=thanh", ("Did you mean 'tanh'",)),
        ("n_envs=0", ("n_envs must be at least 1",)),
    ],
)
def test_values_of_the_wrong_kind(sparring: Shell, assignment: str, words: tuple[str, ...]) -> None:
    check(sparring("train", "ppo", "CartPole-v1", "--set", assignment), 2, *words)


def test_impossible_sizes_propose_ones_that_work(sparring: Shell) -> None:
    said = sparring("train", "ppo", "CartPole-v1", "--preset", "none", "--set", "n_steps=1", "batch_size=1")
    check(said, 2, "n_steps × n_envs = 1", "Use n_steps=2 or more")
    said = sparring("train", "reinforce", "probe/discounting")
    check(said, 2, "no time limit", "Set max_episode_steps", "1000")


def test_stop_reward_needs_a_number_or_a_threshold(sparring: Shell) -> None:
    check(sparring("train", "ppo", "CartPole-v1", "--stop-reward", "much"), 2, "'much'", "`threshold`")
    said = sparring("train", "ppo", "probe/truncation", "--stop-reward", "threshold")
    check(said, 2, "does not say when it is solved", "--stop-reward 100")


def test_a_configuration_that_is_not_toml(sparring: Shell, tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("gamma: 0.9")
    check(sparring("train", "ppo", "CartPole-v1", "--config", file), 2, "is not valid TOML")


def test_nothing_is_left_behind_by_a_mistake(
    sparring: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = sparring("train", "ppo", "CartPole-v1", "--set", "action_bins=3")
    check(said, 2, "action_bins needs a Box action space")
    assert not (tmp_path / "runs").exists()


# -- what is not installed ---------------------------------------------------------------------------------


def test_missing_extra_of_an_environment(sparring: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.startswith(("Box2D", "gymnasium.envs.box2d")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "Box2D", None)
    check(sparring("train", "ppo", "LunarLander-v3"), 2, "pip install 'sparring[box2d]'")


def test_missing_extra_for_videos(sparring: Shell, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    check(sparring("record", run), 2, "pip install 'sparring[video]'")


def test_missing_extra_for_tensorboard(
    sparring: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    said = sparring("train", "a2c", "CartPole-v1", *TRAIN, "--tensorboard", "tb")
    check(said, 2, "pip install 'sparring[track]'")
    assert not (tmp_path / "runs").exists()


def test_no_gpu(sparring: Shell) -> None:
    said = sparring("train", "a2c", "CartPole-v1", "--device", "cuda")
    check(said, 2, "jax sees no GPU", "pip install 'sparring[cuda]'")


# -- environments ------------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    return file


def test_spaces_that_no_algorithm_takes(sparring: Shell, own: Path) -> None:
    check(sparring("train", "ppo", f"{own}:Text"), 2, "observation space Text", "is not supported", "Box")


@pytest.mark.parametrize(("name", "words"), [("Raises", ("the cable is loose",)), ("Nan", ("not finite",))])
def test_an_environment_that_fails_names_itself(
    sparring: Shell, own: Path, tmp_path: Path, name: str, words: tuple[str, ...]
) -> None:
    place = tmp_path / "failed"
    said = sparring(
        "train", "a2c", f"{own}:{name}", "--total-timesteps", 2000, "--quiet", "--run-dir", place,
        "--set", "checkpoint_freq=100", "eval_freq=-1",
    )  # fmt: skip
    check(said, 3, f"own.py:{name}", "row 0", *words)
    if name == "Raises":
        assert "own.py, line 25, in fail" in said.err
    status = RunDirectory(place).read_status()
    assert status.state == "failed"
    assert words[0] in status.message
    assert list((place / "checkpoints").iterdir())  # what came before is kept


def test_training_that_diverges_names_step_and_metric(sparring: Shell, tmp_path: Path) -> None:
    said = sparring(
        "train", "a2c", "CartPole-v1", *TRAIN, "learning_rate=1e30", "--run-dir", tmp_path / "r", "--json"
    )
    check(said, 6, "diverged at step", "is nan", "learning rate")
    assert "diverged" in said.last["error"]
    (alert,) = [a for a in sqlite.alerts(tmp_path / "r" / "metrics.sqlite") if a.rule == "R01"]
    assert alert.level == "error"
    assert "R01 not_finite" in said.err  # shown before the error


# -- what was saved ----------------------------------------------------------------------------------------


def newest(run: Path) -> list[Path]:
    return sorted((run / "checkpoints").glob("step-*"))


def test_a_corrupt_checkpoint_falls_back_to_the_one_before(sparring: Shell, run: Path) -> None:
    last = max(int(path.name[5:17]) for path in newest(run))
    for state in (run / "checkpoints").glob(f"step-{last:012}*/state.safetensors"):
        data = bytearray(state.read_bytes())
        data[-5] ^= 1
        state.write_bytes(data)
    said = sparring("resume", run, "--quiet", "--json")
    assert said.code == 0, said.err
    assert "corrupt" in said.err
    assert said.last["steps"] > 0  # it trained the lost part again


def test_no_good_checkpoint_is_an_error(sparring: Shell, run: Path) -> None:
    for folder in newest(run):
        (folder / "state.safetensors").write_bytes(b"nonsense")
    check(sparring("resume", run, "--quiet"), 4, "checkpoint")


def test_a_foreign_or_spoilt_agent(sparring: Shell, run: Path) -> None:
    agent = run / "last" / "agent.json"
    agent.write_text('{"model": "of another library"}')
    check(sparring("eval", run), 4, "agent.json")
    shutil.rmtree(run / "last")
    shutil.rmtree(run / "best")
    shutil.rmtree(run / "checkpoints")
    check(sparring("eval", run), 4, "has no trained agent yet", "sparring resume")


def test_a_run_with_nothing_but_checkpoints_shows_its_newest_intact_one(sparring: Shell, run: Path) -> None:
    ended = sparring("eval", run, "--episodes", "3", "--json")
    shutil.rmtree(run / "last")
    shutil.rmtree(run / "best")
    said = sparring("eval", run, "--episodes", "3", "--json")
    assert said.code == 0, said.err
    assert "not ended yet" in said.err
    assert said.last["mean"] == ended.last["mean"]
    for folder in newest(run)[1:]:
        (folder / "state.safetensors").write_bytes(b"nonsense")
    older = sparring("eval", run, "--episodes", "3", "--json")
    assert older.code == 0, older.err
    assert "Left out" in older.err
    for folder in newest(run):
        (folder / "state.safetensors").write_bytes(b"nonsense")
    check(sparring("eval", run), 4, "has no trained agent yet")


def test_a_checkpoint_for_another_observation_space(sparring: Shell, run: Path) -> None:
    config = run / "config.toml"
    config.write_text(config.read_text().replace('"CartPole-v1"', '"Acrobot-v1"'))
    check(sparring("eval", run), 2, "trained on CartPole-v1", "Box[4]", "Acrobot-v1", "Box[6]")
    said = sparring("resume", run, "--quiet")
    assert said.code in (2, 4), said.err
    check(said, said.code, "Error")


def test_a_folder_that_is_no_run(sparring: Shell, tmp_path: Path) -> None:
    check(sparring("eval", tmp_path), 2, "There is no run")
    (tmp_path / "config.toml").write_text("a = 1")
    check(sparring("eval", tmp_path), 4, "is not a run's configuration")


# -- disks and locks ---------------------------------------------------------------------------------------


@contextmanager
def small_disk(limit: int) -> Iterator[None]:
    """No file of this process may grow beyond the limit: what a full disk looks like."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_keeps_what_there_was(sparring: Shell, run: Path) -> None:
    before = {path.name for path in newest(run)}
    with small_disk(20_000):
        said = sparring("resume", run, "--total-timesteps", 1280, "--quiet")
    check(said, 5, "could not be written")
    assert {path.name for path in newest(run)} >= before
    assert sparring("resume", run, "--total-timesteps", 1280, "--quiet").code == 0


def test_a_folder_that_cannot_be_written(sparring: Shell, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = sparring("train", "a2c", "CartPole-v1", *TRAIN, "--run-dir", tmp_path / "file" / "run")
    check(said, 5, "cannot be written", "--run-dir")


def test_a_folder_that_holds_a_run(sparring: Shell, run: Path) -> None:
    said = sparring("train", "a2c", "CartPole-v1", *TRAIN, "--run-dir", run)
    check(said, 5, "already holds a run", "sparring resume")


def test_a_run_that_another_process_has(sparring: Shell, run: Path) -> None:
    with RunDirectory(run):
        check(sparring("resume", run, "--quiet"), 5, "is in use by process")
        assert sparring("eval", run, "--episodes", 2).code == 0  # reading is free
