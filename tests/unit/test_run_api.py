"""`Run`: a run's numbers in Python, shown in a notebook."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from made_runs import make_run

from sparring import Run
from sparring.errors import CheckpointError, UnknownName
from sparring.metrics.sqlite import SqliteSink


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("api") / "runs"
    run = make_run(root, "two<b>", [100.0, 200.0], seed=7)
    sink = SqliteSink(run.metrics)
    for step in range(100, 4001, 100):
        sink.write(step, step / 100, {"train/loss": 1 / step}, 1)
    sink.close()
    make_run(root, "young", [])
    return root


def test_what_a_run_is(root: Path) -> None:
    run = Run("two<b>", root)
    assert run.path == Run(root / "two<b>").path
    assert (run.status.state, run.status.algo) == ("finished", "ppo")
    assert run.config["config"]["learning_rate"] == 0.001
    assert run.seeds == (7, 8)
    assert run.names == ["eval/mean_reward", "train/loss"]
    assert "ppo on CartPole-v1, 2 seeds, 4,000/4,000 steps, finished" in repr(run)
    assert "two&lt;b&gt;" in run._repr_html_()
    assert "<b>" not in run._repr_html_()


def test_a_curve_is_asked_for_by_the_seed_that_the_user_chose(root: Path) -> None:
    run = Run("two<b>", root)
    assert run.curve("eval/mean_reward").values.tolist() == [25, 50, 75, 100]
    assert run.curve("eval/mean_reward", seed=8).values.tolist() == [50, 100, 150, 200]
    with pytest.raises(UnknownName, match="has no seed 0; it has 7, 8"):
        run.curve("eval/mean_reward", seed=0)
    with pytest.raises(UnknownName, match="Did you mean 'train/loss'"):
        run.curve("train/los")


def test_metrics_are_a_table_with_a_row_for_every_seed_and_step(root: Path) -> None:
    table = Run("two<b>", root).metrics()
    assert list(table) == ["seed", "step", "time", "eval/mean_reward", "train/loss"]
    assert table.rows == 4 + 40
    eighth = table["seed"] == 8
    at = eighth & (table["step"] == 2000)
    assert table["eval/mean_reward"][at].tolist() == [100.0]
    assert table["train/loss"][at].tolist() == [1 / 2000]
    assert table["time"][at].tolist() == [20.0]
    assert np.isnan(table["train/loss"][~eighth]).all()
    assert np.isnan(table["eval/mean_reward"][eighth & (table["step"] == 100)]).all()
    assert list(Run("two<b>", root).metrics("train/loss")) == ["seed", "step", "time", "train/loss"]
    with pytest.raises(KeyError, match="Did you mean 'train/loss'"):
        table["train/los"]


def test_a_table_shows_its_ends(root: Path) -> None:
    table = Run("two<b>", root).metrics()
    text = repr(table).splitlines()
    assert text[0].split() == list(table)
    assert text[6].split() == ["…"] * 5
    assert text[-1] == "44 rows × 5 columns"
    page = table._repr_html_()
    assert page.count("<tr>") == 12
    assert "<th>eval/mean_reward</th>" in page


def test_a_run_without_metrics_has_an_empty_table(root: Path) -> None:
    run = Run("young", root)
    assert run.names == []
    assert (run.metrics().rows, len(run.metrics())) == (0, 3)
    with pytest.raises(UnknownName, match="has no metrics yet"):
        run.plot()


def test_a_plot_is_a_picture(root: Path) -> None:
    chart = Run("two<b>", root).plot("eval/mean_reward", "train/loss", x="time", sqrt=True)
    assert chart._repr_png_().startswith(b"\x89PNG")
    assert len(chart.figure.axes) == 2
    assert Run("two<b>", root).plot().figure.axes[0].get_ylabel() == "eval/mean_reward, IQM"


def test_the_newest_film_is_shown(root: Path) -> None:
    run = Run("two<b>", root)
    with pytest.raises(CheckpointError, match=r"has no film yet\. Make one: sparring record"):
        run.video()
    (run.directory.videos / "seed-1.mp4").write_bytes(b"film")
    film = run.video()
    assert film.path.name == "seed-1.mp4"
    assert 'src="data:video/mp4;base64,ZmlsbQ=="' in film._repr_html_()
    assert run.video("seed-1").path == film.path
    with pytest.raises(UnknownName, match=r"Did you mean 'seed-1\.mp4'"):
        run.video("seed-2.mp4")


def test_looking_at_a_run_needs_no_jax(root: Path) -> None:
    code = (
        "import sys; from sparring import Run; run = Run(sys.argv[1]); run.metrics(); run.status; "
        "print({'jax', 'gymnasium', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, root / "two<b>"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
