"""Which runs are meant: names, paths, `last`, commas, filters, and `sparring runs` with them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cli_help import Shell
from made_runs import make_run

from sparring.errors import ConfigError, UnknownName
from sparring.metrics.sqlite import SqliteSink
from sparring.runs.selection import everything, select


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five runs, oldest first."""
    root = tmp_path_factory.mktemp("selection") / "runs"
    make_run(root, "hop", [10.0], algo="ppo", env="Hopper-v5", seed=3)
    make_run(root, "gym-hop", [30.0], algo="sac", env="gym:Hopper-v5", state="killed")
    make_run(root, "cart", [100.0, 200.0, 600.0, 300.0], config={"learning_rate": 3e-4, "core": "gru"})
    make_run(root, "walk", [], algo="td3", env="Walker2d-v5", state="failed")
    make_run(root, "new=er", [1.0], algo="dqn")
    return root


@pytest.fixture
def sparring(capsys: pytest.CaptureFixture[str], root: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(root.parent)
    return Shell(capsys)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("last", ["new=er"]),
        ("cart", ["cart"]),
        ("cart, hop,cart", ["cart", "hop"]),
        ("algo=ppo", ["cart", "hop"]),
        ("algo=PPO env=Hopper*", ["hop"]),
        ("env=Hopper-v?", ["gym-hop", "hop"]),  # whoever runs it, the task is the same
        ("algo=sac,td3", ["walk", "gym-hop"]),
        ("state=killed", ["gym-hop"]),
        ("learning_rate=0.0003", ["cart"]),
        ("learning_rate=3e-4 core=g*", ["cart"]),
        ("total_timesteps=4000 name=*hop", ["gym-hop", "hop"]),
        ("seed=2", ["cart"]),
        ("seed=3", ["cart", "hop"]),
    ],
)
def test_what_a_user_names_is_found_newest_first(root: Path, text: str, names: list[str]) -> None:
    assert [found.run.name for found in select(text, root)] == names


def test_a_path_is_a_run_even_with_an_equals_sign(root: Path) -> None:
    assert [found.run.name for found in select(str(root / "new=er"), root)] == ["new=er"]


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("algo=none", UnknownName, "No run under .* matches 'algo=none'.*sparring runs"),
        ("alog=ppo", UnknownName, "No run has a setting 'alog'.* Did you mean 'algo'"),
        ("algo=ppo Hopper", ConfigError, "'Hopper' is no filter. Write NAME=PATTERN"),
        ("algo=", ConfigError, "'algo=' is no filter"),
        ("crt", UnknownName, "There is no run 'crt'.* Did you mean 'cart'"),
        (" , ", UnknownName, "name is empty"),
    ],
)
def test_mistakes_name_the_fix(root: Path, text: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        select(text, root)


def test_the_seeds_of_a_run_are_one_unit(root: Path) -> None:
    seeds = {found.run.name: found.seeds for found in everything(root)}
    assert seeds["cart"] == (0, 1, 2, 3)
    assert seeds["hop"] == (3,)


def test_a_damaged_run_does_not_hide_the_others(tmp_path: Path) -> None:
    make_run(tmp_path, "good", [1.0])
    make_run(tmp_path, "bad", [1.0, 2.0])
    (tmp_path / "bad" / "config.toml").write_text("= no")
    (tmp_path / "bad" / "status.json").write_text("{")
    assert {found.run.name for found in everything(tmp_path)} == {"good", "bad"}


# -- the command -------------------------------------------------------------------------------------------


def listed(sparring: Shell, *words: str) -> list[str]:
    return [run["name"] for run in sparring("runs", *words, "--json").last["runs"]]


def test_runs_filters_sorts_and_limits(sparring: Shell) -> None:
    assert listed(sparring) == ["new=er", "walk", "cart", "gym-hop", "hop"]
    assert listed(sparring, "algo=ppo,sac", "env=Hopper*") == ["gym-hop", "hop"]
    assert listed(sparring, "algo=ppo env=Hopper*") == ["hop"]
    assert listed(sparring, "--sort", "reward") == ["cart", "gym-hop", "hop", "new=er", "walk"]
    assert listed(sparring, "--sort", "reward", "--reverse") == ["new=er", "hop", "gym-hop", "cart", "walk"]
    assert listed(sparring, "--sort", "name", "--limit", "2") == ["cart", "gym-hop"]
    assert listed(sparring, "runs", "state=killed") == ["gym-hop"]
    assert listed(sparring, "algo=none") == []


def test_a_run_of_several_seeds_is_one_line_with_their_iqm(sparring: Shell) -> None:
    said = sparring("runs", "name=cart")
    assert said.code == 0
    assert said.out.splitlines()[1].split() == [
        *("cart", "ppo", "CartPole-v1", "0-3", "(4)", "4,000/4,000", "250", "finished")
    ]
    run = sparring("runs", "name=cart", "--json").last["runs"][0]
    assert (run["seeds"], run["reward"]) == ([0, 1, 2, 3], 250.0)


def test_a_damaged_metrics_file_leaves_the_list_whole(sparring: Shell, tmp_path: Path) -> None:
    run = make_run(tmp_path, "bad", [5.0, 6.0])
    for file in tmp_path.glob("bad/metrics.sqlite*"):
        file.unlink()
    run.metrics.write_bytes(os.urandom(4096))
    assert sparring("runs", tmp_path, "--json").last["runs"][0]["reward"] == 5.0


def test_mistakes_of_the_command(sparring: Shell) -> None:
    nothing = sparring("runs", "algo=none")
    assert (nothing.code, "None of the 5 runs in runs matches algo=none" in nothing.out) == (0, True)
    assert "Did you mean 'learning_rate'" in sparring("runs", "learning_rat=1").error
    two = sparring("runs", "here", "there")
    assert (two.code, "One folder of runs at a time" in two.error) == (2, True)
    assert sparring("runs", "--sort", "size").code == 2


def test_long_tells_what_limits_a_run_where_its_metrics_do(sparring: Shell, tmp_path: Path) -> None:
    made = make_run(tmp_path, "slow", [5.0])
    make_run(tmp_path, "old", [5.0])
    sink = SqliteSink(made.metrics)
    for step in (1000, 2000):
        sink.write(step, 5.0, {"time/split_seconds": 5.0, "time/env": 0.9, "time/update": 0.1})
    sink.close()
    said = sparring("runs", tmp_path, "--long").out
    assert "slow: The environment takes 90% of the time with 4 copies" in said
    assert "Try: sparring train ppo CartPole-v1" in said
    assert "old:" not in said
    found = {
        run["name"]: run["performance"] for run in sparring("runs", tmp_path, "--long", "--json").last["runs"]
    }
    assert (found["old"], found["slow"]["bound"], found["slow"]["seconds"]) == (None, "env", 10.0)
    assert "performance" not in sparring("runs", tmp_path, "--json").last["runs"][0]
    (tmp_path / "old" / "metrics.sqlite").write_bytes(b"damaged" * 1000)
    assert sparring("runs", tmp_path, "--long").code == 0
