"""The command line: each verb, its exit code, and its JSON."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_help import Said, Shell, quick

from sparring.cli import main as entry
from sparring.cli import output, parser, play, terminal
from sparring.cli.config import field_help
from sparring.cli.main import VERBS, main
from sparring.errors import MissingExtra
from sparring.evaluation import graphics

ROOT = Path(__file__).parents[2]
ALGORITHM = f"{ROOT / 'examples' / 'my_algorithm.py'}:Mine"
ENV = f"{ROOT / 'examples' / 'my_env.py'}"
NETWORK = f"{ROOT / 'examples' / 'my_network.py'}:Torso"
SMALL = ("--total-timesteps", 1024, "--set", "n_envs=4", "n_eval_episodes=4", "eval_freq=-1", "--quiet")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with quick(tmp_path_factory):
        yield


@pytest.fixture
def sparring(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.fixture(scope="module")
def trained(cache: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run that the reading verbs share."""
    folder = tmp_path_factory.mktemp("cli") / "runs" / "short"
    words = ("train", "a2c", "CartPole-v1", *SMALL, "--run-dir", folder)
    assert main([str(word) for word in words]) == 0
    return folder


# -- help --------------------------------------------------------------------------------------------------


def fresh(*words: str) -> tuple[str, float]:
    """A command in a fresh process: the heavy modules it imported, and its processor time in seconds."""
    code = (
        "import sys; from sparring.cli.main import main; main(sys.argv[1:]); "
        "print('HEAVY', *({'jax', 'gymnasium', 'rich', 'numpy'} & set(sys.modules)))"
    )
    before = os.times()
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return done.stdout.rpartition("HEAVY")[2].strip(), spent


@pytest.mark.parametrize("words", [("--help",), ("train", "--help"), ("runs",)])
def test_help_is_quick_and_imports_nothing_heavy(words: tuple[str, ...]) -> None:
    runs = [fresh(*words) for _ in range(3)]
    assert {heavy for heavy, _ in runs} == {""}
    assert min(seconds for _, seconds in runs) < 0.3


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(sparring: Shell, verb: str) -> None:
    said = sparring(verb, "--help")
    assert said.code == 0
    assert f"usage: sparring {verb}" in said.out
    assert "--json" in said.out


def test_the_overview_names_every_verb(sparring: Shell) -> None:
    said = sparring("--help")
    assert said.code == 0
    assert all(f"  {verb} " in said.out for verb in VERBS)
    assert max(map(len, said.out.splitlines())) <= 80


def test_python_dash_m_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sparring", "--version"], capture_output=True, text=True, check=True
    )
    assert re.fullmatch(r"sparring \d+\.\d+\.\d+\n", done.stdout)


def test_train_without_arguments_gives_three_examples(sparring: Shell) -> None:
    said = sparring("train")
    assert said.code == 2
    assert len(re.findall(r"^  sparring train \w+ [\w:]+-v\d", said.err, re.M)) == 3
    assert said.out == ""


def test_train_without_an_environment_proposes_one(sparring: Shell) -> None:
    said = sparring("train", "ppo", "--json")
    assert said.code == 2
    assert "sparring train ppo CartPole-v1" in said.error
    assert "CartPole-v1" in said.last["error"]


def test_unknown_verbs_and_options_get_the_nearest(sparring: Shell) -> None:
    said = sparring("trian")
    assert (said.code, said.out) == (2, "")
    assert "Did you mean 'train'" in said.err
    said = sparring("train", "ppo", "CartPole-v1", "--total-timestep", 5)
    assert said.code == 2
    assert "Did you mean '--total-timesteps'" in said.error


def test_an_impossible_value_names_the_option(sparring: Shell) -> None:
    said = sparring("train", "ppo", "CartPole-v1", "--total-timesteps", "many")
    assert said.code == 2
    assert "--total-timesteps" in said.error
    assert "'many' is not a whole number" in said.error


# -- runs --------------------------------------------------------------------------------------------------


def test_train_reports_json_last_and_text_on_stderr(sparring: Shell, tmp_path: Path) -> None:
    said = sparring(
        "train", "a2c", "CartPole-v1", *SMALL, "--seeds", 2, "--run-dir", tmp_path / "r", "--json",
        "--tensorboard", tmp_path / "tb",
    )  # fmt: skip
    assert said.code == 0
    assert len(said.out.splitlines()) == 1
    result = said.last
    assert {"run", "steps", "seconds", "steps_per_second", "compile_seconds", "eval"} <= result.keys()
    assert result["eval"].keys() == {"mean", "std", "ci95", "episodes"}
    assert (result["run"], result["steps"], result["eval"]["episodes"]) == (str(tmp_path / "r"), 1024 + 16, 4)
    assert len(result["eval_by_seed"]) == 2
    assert "Using the tuned preset a2c/CartPole-v1; --preset none for defaults" in said.err
    assert list((tmp_path / "tb").iterdir())
    for verb in ("eval", "play", "record", "resume"):
        assert f"sparring {verb} {tmp_path / 'r'}" in said.err


def test_resume_goes_on_to_a_new_goal_and_remembers_it(sparring: Shell, tmp_path: Path) -> None:
    run = tmp_path / "r"
    assert sparring("train", "a2c", "CartPole-v1", *SMALL, "--run-dir", run).code == 0
    said = sparring("resume", run, "--total-timesteps", 1500, "--quiet", "--json")
    assert said.code == 0
    assert said.last["steps"] == 460
    said = sparring("resume", run, "--json")
    assert said.code == 0
    assert "step 1,500 of 1,500" in said.err
    assert said.last["steps"] == 0


def test_eval_gives_the_same_score_twice(sparring: Shell, trained: Path) -> None:
    first, second = (sparring("eval", trained, "--episodes", 6, "--seed", 3, "--json") for _ in range(2))
    assert first.code == 0
    assert first.last == second.last
    assert first.last["episodes"] == len(first.last["lengths"]) == 6
    low, high = first.last["ci95"]
    assert low <= first.last["mean"] <= high
    other = sparring("eval", trained, "--episodes", 6, "--seed", 4, "--stochastic", "--best", "--json").last
    assert other["lengths"] != first.last["lengths"]


def test_eval_tells_people_the_same(sparring: Shell, trained: Path) -> None:
    said = sparring("eval", trained, "--episodes", 6)
    assert said.code == 0
    assert re.search(
        r"^reward   [\d.]+ ± [\d.]+, 95 % interval of the mean [\d.]+ to [\d.]+$", said.out, re.M
    )
    assert re.search(r"^length   [\d.]+ steps \(\d+ to \d+\)$", said.out, re.M)


def test_record_films_every_step(sparring: Shell, trained: Path, tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    film = tmp_path / "film.mp4"
    said = sparring("record", trained, "-o", film, "--episodes", 2, "--json")
    assert said.code == 0
    with av.open(str(film)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        assert container.streams.video[0].average_rate == 50
    assert len(frames) == sum(said.last["lengths"])
    assert said.last["returns"] == said.last["lengths"]  # CartPole pays 1 per step
    assert frames[0].std() > 10  # something is drawn
    assert np.abs(frames[0].astype(int) - frames[-1]).max() > 50


def test_record_defaults_to_the_runs_own_folder(sparring: Shell, trained: Path) -> None:
    pytest.importorskip("av")
    assert sparring("record", trained, "--seed", 7).code == 0
    assert (trained / "videos" / "seed-7.mp4").is_file()


def test_play_without_a_terminal_prints_a_line_per_episode(sparring: Shell, trained: Path) -> None:
    said = sparring("play", trained, "--terminal", "--episodes", 2, "--json")
    assert said.code == 0
    assert len(re.findall(r"^episode \d: \d+ steps, return [\d.]+$", said.err, re.M)) == 2
    assert len(said.last["returns"]) == 2


def test_play_draws_in_a_terminal(sparring: Shell, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr(play, "SMOOTH", 1e9)
    said = sparring("play", trained, "--terminal", "--episodes", 1, "--fps", 1e6)
    assert said.code == 0
    assert "▀" in said.out
    assert "episode 1  step 5  action " in said.out
    assert said.out.count("\x1b[?1049h") == said.out.count("\x1b[?1049l") == 1


def test_a_window_opens_where_there_is_a_display(
    sparring: Shell, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pygame")
    monkeypatch.setenv("DISPLAY", ":99")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    said = sparring("play", trained, "--episodes", 1)
    assert said.code == 0
    assert re.search(r"^episode 1: \d+ steps", said.out, re.M)


def test_runs_lists_the_newest_first(sparring: Shell, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained.parents[1])
    said = sparring("runs")
    assert said.code == 0
    head, row = said.out.splitlines()
    assert head.split() == ["name", "algo", "env", "seed", "steps", "reward", "state"]
    assert row.split()[:5] == ["short", "a2c", "CartPole-v1", "0", "1,040/1,024"]
    listed = sparring("runs", "--json").last["runs"]
    assert [(run["name"], run["state"]) for run in listed] == [("short", "finished")]
    assert sparring("eval", "last", "--episodes", 2).code == 0
    assert sparring("eval", "short", "--episodes", 2).code == 0


def test_runs_without_any_says_how_to_start(sparring: Shell, tmp_path: Path) -> None:
    said = sparring("runs", tmp_path)
    assert said.code == 0
    assert "sparring train ppo CartPole-v1" in said.out


def test_code_inside_a_run_is_not_run_unasked(sparring: Shell, trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "foreign"
    run.mkdir()
    (run / "evil.py").write_text("raise SystemExit('ran')")
    text = (trained / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace('"a2c"', f'"{run}/evil.py:X"'))
    said = sparring("eval", run)
    assert said.code == 2
    assert "--trust-code" in said.error


# -- settings ----------------------------------------------------------------------------------------------


def test_config_show_says_where_every_value_came_from(sparring: Shell, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("gamma = 0.5\nn_steps = 7\n")
    said = sparring(
        "config", "show", "ppo", "CartPole-v1", "--config", file, "--set", "n_steps=9", "vf_coef=1", "--json"
    )
    assert said.code == 0
    shown = said.last
    assert shown["preset"] is True
    algorithm, run = shown["algorithm"], shown["run"]
    assert algorithm["gamma"] == {"value": 0.5, "from": str(file), "help": "discount"}
    assert (algorithm["n_steps"]["value"], algorithm["n_steps"]["from"]) == (9, "--set")
    assert algorithm["n_epochs"]["from"] == run["n_envs"]["from"] == "preset ppo/CartPole-v1"
    assert algorithm["pi"]["from"] == "default"
    assert all(setting["help"] for part in (algorithm, run) for setting in part.values())


def test_config_show_without_the_preset(sparring: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = sparring("config", "show", "ppo", "CartPole-v1", "--preset", "none")
    assert said.code == 0
    assert "No preset" in said.out
    assert re.search(r"^n_epochs +10 +default", said.out, re.M)
    assert max(map(len, said.out.splitlines())) <= 80


def test_field_help_reads_docstrings_of_bases_too() -> None:
    from sparring.algos.ppo import PPOConfig

    found = field_help(PPOConfig)
    assert found["gamma"] == "discount"
    assert "network" in found


# -- checks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", ["CartPole-v1", f"{ENV}:make", f"{ENV}:Corridor"])
def test_check_env_passes_good_environments(sparring: Shell, env: str) -> None:
    said = sparring("check-env", env, "--json")
    assert said.code == 0
    assert said.last["ok"] is True
    assert {finding["level"] for finding in said.last["findings"]} <= {"ok", "advice"}


def test_check_env_fails_with_1(sparring: Shell) -> None:
    said = sparring("check-env", "CartPol-v1")
    assert said.code == 1
    assert "Did you mean 'CartPole-v1'" in " ".join(said.out.split())


def test_check_algo_measures_the_example(sparring: Shell) -> None:
    said = sparring("check-algo", ALGORITHM, "--probe", "discounting", "--probe", "observed-action", "--json")
    assert said.code == 0
    assert [(v["probe"], v["result"]) for v in said.last["probes"]] == [
        ("discounting", "pass"),
        ("observed-action", "pass"),
    ]
    assert "(want 0.900)" in said.last["probes"][0]["measured"]


def test_check_algo_finds_a_wrong_sign(sparring: Shell, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    text = Path(ALGORITHM.partition(":")[0]).read_text()
    assert text.count(" - gain, ") == 1
    wrong.write_text(text.replace(" - gain, ", " + gain, "))
    said = sparring("check-algo", f"{wrong}:Mine", "--probe", "action-reward")
    assert said.code == 1
    assert "FAIL  action-reward" in said.out
    assert "mean return -1.000 (want ≥ 0.9)" in said.out


def test_an_unknown_probe_is_an_error(sparring: Shell) -> None:
    said = sparring("check-algo", "ppo", "--probe", "discount")
    assert said.code == 2
    assert "Did you mean 'discounting'" in said.error


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["ppo", "a2c", "reinforce", pytest.param(ALGORITHM, marks=pytest.mark.exhaustive)]
)
def test_every_algorithm_passes_every_probe(sparring: Shell, name: str) -> None:
    said = sparring("check-algo", name, "--json")
    assert said.code == 0, said.err
    results = {verdict["probe"]: verdict["result"] for verdict in said.last["probes"]}
    noted = {"truncation"} if name == "reinforce" else set()  # true Monte-Carlo returns end at a cut
    assert {probe for probe, result in results.items() if result != "pass"} == noted


def test_doctor_says_what_is_here(sparring: Shell) -> None:
    said = sparring("doctor", "--json")
    assert said.code == 0, said.err
    names = {check["name"] for check in said.last["checks"]}
    assert {
        "python",
        "packages",
        "extras",
        "memory",
        "disk",
        "video",
        "graphics",
        "devices",
        "speed",
    } <= names
    assert all(check["fix"] for check in said.last["checks"] if check["level"] != "ok")


# -- files of the user's own -------------------------------------------------------------------------------


def test_own_algorithm_environment_and_network_work_together(sparring: Shell, tmp_path: Path) -> None:
    run = tmp_path / "own"
    said = sparring(
        "train", ALGORITHM, f"{ENV}:make", "--total-timesteps", 8192, "--run-dir", run, "--quiet", "--json",
        "--set", f"network={NETWORK}", "n_envs=4", "learning_rate=3e-3", "n_eval_episodes=20",
    )  # fmt: skip
    assert said.code == 0, said.err
    assert said.last["eval"]["mean"] > 0.2  # the way to the end from every start
    assert sparring("eval", run, "--episodes", 5).code == 0
    assert sparring("record", run, "--episodes", 2).code == 0
    assert sparring("resume", run, "--total-timesteps", 9000, "--quiet").code == 0


def test_an_own_jax_environment_trains_fused_and_is_filmed(sparring: Shell, tmp_path: Path) -> None:
    run = tmp_path / "own"
    said = sparring(
        "train", "a2c", f"{ENV}:Corridor", "--run-dir", run, "--total-timesteps", 2000, "--set", "n_envs=8",
        "--quiet", "--stop-reward", "threshold",
    )  # fmt: skip
    assert said.code == 0, said.err
    assert "stop_reward = 0.2  # --stop-reward" in (run / "config.toml").read_text()
    assert sparring("record", run).code == 0


def test_a_bug_in_the_users_file_is_named(sparring: Shell, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def make():\n    return undefined_name\n")
    said = sparring("check-env", f"{tmp_path / 'broken.py'}:make")
    assert said.code == 1
    (tmp_path / "wrong.py").write_text("def make(:\n")
    said = sparring("train", "ppo", f"{tmp_path / 'wrong.py'}:make", "--json")
    assert said.code == 1
    assert "wrong.py, line 1, is not valid Python" in said.last["error"]


# -- failures that nobody foresaw --------------------------------------------------------------------------


def raising(error: BaseException) -> Any:
    def dispatch(*_: Any) -> int:
        raise error

    return dispatch


def test_an_unexpected_exception_is_called_a_bug(sparring: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "dispatch", raising(ValueError("odd")))
    monkeypatch.setattr(entry, "_is_library", lambda name: True)
    said = sparring("runs", "--json")
    assert said.code == 1
    assert "Traceback" in said.err
    assert "ValueError: odd. This is a bug in sparring" in said.error
    assert "This is a bug" in said.last["error"]


def test_an_abort_ends_with_130(sparring: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "dispatch", raising(KeyboardInterrupt()))
    said: Said = sparring("runs")
    assert (said.code, said.err) == (130, "Error: Aborted.\n")


# -- parts -------------------------------------------------------------------------------------------------


def test_assignments_may_follow_each_other() -> None:
    words = ["ppo", "--set", "a=1", "b=2", "CartPole-v1", "--set", "c=3", "--json"]
    spread = ["ppo", "--set", "a=1", "--set", "b=2", "CartPole-v1", "--set", "c=3", "--json"]
    assert parser.spread_assignments(words) == spread


def test_whole_numbers_have_many_spellings() -> None:
    assert [parser.whole(text) for text in ("1e6", "100_000", "7", "-2")] == [1_000_000, 100_000, 7, -2]


def test_json_holds_no_nan() -> None:
    nested = {"a": [float("nan"), np.float32(1.5), np.int64(2)], "b": (float("inf"), None, True)}
    assert output.plain(nested) == {"a": [None, 1.5, 2], "b": [None, None, True]}


def test_a_table_drops_optional_columns_when_narrow() -> None:
    rows = [("x" * 20, "y" * 20, "z" * 20)]
    assert output.table(("a", "b", "c"), rows, 64, ["b", "a"]).splitlines()[0].split() == ["a", "b", "c"]
    assert output.table(("a", "b", "c"), rows, 63, ["b", "a"]).splitlines()[0].split() == ["a", "c"]
    assert output.table(("a", "b", "c"), rows, 30, ["b", "a"]).splitlines()[0].split() == ["c"]


def test_a_picture_keeps_its_shape_and_mean() -> None:
    frame = np.zeros((40, 60, 3), np.uint8)
    frame[:20] = 200
    small = terminal.shrink(frame, 30, 100)
    assert small.shape == (20, 30, 3)
    assert (small[:10] == 200).all()
    assert (small[10:] == 0).all()
    assert terminal.shrink(frame[:, :, 0], 80, 5).shape == (10, 15, 3)
    assert terminal.shrink(frame, 500, 500).shape == (40, 60, 3)  # never enlarged


def test_half_blocks_hold_two_pixels() -> None:
    pixels = np.array([[[255, 0, 0]] * 2, [[0, 0, 255]] * 2], np.uint8)
    (line,) = terminal.draw(pixels, truecolor=True)
    assert line == "\x1b[38;2;255;0;0m\x1b[48;2;0;0;255m▀▀\x1b[0m"
    (line,) = terminal.draw(pixels, truecolor=False)
    assert line == "\x1b[38;5;196m\x1b[48;5;21m▀▀\x1b[0m"


def test_no_way_to_draw_mujoco_names_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setenv("SDL_AUDIODRIVER", "dummy")
    monkeypatch.delitem(sys.modules, "mujoco", raising=False)
    monkeypatch.setattr(graphics, "is_mujoco", lambda env: True)
    monkeypatch.setattr(graphics, "headless_backend", lambda: None)
    with pytest.raises(MissingExtra, match=r"libegl1 .* libosmesa6"):
        graphics.prepare("Hopper-v5")
    monkeypatch.setattr(graphics, "headless_backend", lambda: "osmesa")
    graphics.prepare("Hopper-v5")
    assert os.environ.pop("MUJOCO_GL") == "osmesa"


def test_mujoco_is_recognised_without_importing_it() -> None:
    pytest.importorskip("mujoco")
    assert graphics.is_mujoco("Hopper-v5")
    assert graphics.is_mujoco("gym:Hopper-v5")
    assert not graphics.is_mujoco("CartPole-v1")
