"""Learning curves: bands only where there are several seeds, and pictures that open."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from cli_help import Shell
from made_runs import make_run
from PIL import Image

from sparring.evaluation import bands, charts
from sparring.evaluation.units import find_units


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("plot") / "runs"
    make_run(root, "five", [100.0, 200.0, 300.0, 400.0, 500.0])
    make_run(root, "one_$x^2$", [-250.0], algo="dqn")
    make_run(root, "short", [80.0], algo="sac", steps=(500, 1000, 1500))
    make_run(root, "late", [80.0], algo="sac", steps=(2000, 3000))
    make_run(root, "pendulum", [-200.0, -300.0], env="Pendulum-v1")
    return root


@pytest.fixture
def sparring(capsys: pytest.CaptureFixture[str], root: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(root.parent)
    return Shell(capsys)


def line(root: Path, text: str, axis: bands.Axis = "steps") -> bands.Line:
    (found,) = bands.lines(find_units([text], root), "eval/mean_reward", axis)
    return found


def test_a_line_is_the_iqm_with_a_band_around_it(root: Path) -> None:
    found = line(root, "five")
    assert found.x.tolist() == [1000, 2000, 3000, 4000]
    assert found.value.tolist() == pytest.approx([75, 150, 225, 300])
    assert found.low is not None
    assert found.high is not None
    assert (found.low < found.value).all()
    assert (found.value < found.high).all()
    assert (found.n, found.cut) == (5, None)
    assert line(root, "five", "time").x.tolist() == [10, 20, 30, 40]


def test_one_seed_has_no_band(root: Path) -> None:
    found = line(root, "one_$x^2$")
    assert (found.n, found.low, found.high) == (1, None, None)


def test_curves_of_different_lengths_are_joined_where_all_have_values(root: Path) -> None:
    found = line(root, "five,short")
    assert found.x.tolist() == [1000, 1500]
    assert found.cut == 4000
    apart = line(root, "short,late")
    assert len(apart.x) == 0


def test_long_curves_are_thinned_but_keep_their_ends() -> None:
    steps = np.arange(1, 5001, dtype=float)
    x, table = bands.aligned([(steps, steps * 2), (steps, steps * 3)])
    assert (len(x), x[0], x[-1]) == (bands.POINTS, 1, 5000)
    np.testing.assert_array_equal(table, [x * 2, x * 3])


def test_a_second_counts_once() -> None:
    """Iterations of one device call share their time: the last one is what was reached by then."""
    from sparring.metrics.sqlite import Curve

    curve = Curve(np.array([1, 2, 3]), np.array([5.0, 5.0, 6.0]), np.array([1.0, 2.0, 3.0]))
    at, values = bands._against(curve, "time")
    assert (at.tolist(), values.tolist()) == ([5.0, 6.0], [2.0, 3.0])


def test_a_figure_has_a_band_for_several_seeds_alone(root: Path) -> None:
    lines = bands.lines(find_units(["five", "one_$x^2$"], root), "eval/mean_reward")
    (panel,) = charts.learning_curves(lines).figure.axes
    assert len(panel.lines) == 2
    assert len(panel.collections) == 1
    labels = [text.get_text() for text in panel.get_legend().get_texts()]
    assert labels == ["five (5 seeds, 95 % band)", r"one_\$x^2\$ (1 seed, no band)"]


def test_the_root_scale_is_signed_and_its_ticks_are_round() -> None:
    x = np.array([-400.0, -1.0, 0.0, 9.0, 10_000.0])
    assert charts.signed_root(x).tolist() == [-20, -1, 0, 3, 100]
    np.testing.assert_allclose(charts.signed_square(charts.signed_root(x)), x)
    ticks = charts.root_ticks(-300, 500)
    assert 0 in ticks
    assert ticks == sorted(ticks)
    assert -300 <= ticks[0] < 0 < ticks[-1] <= 500
    gaps = np.diff(charts.signed_root(np.array(ticks)))
    assert gaps.min() > 0.3 * gaps.max()


# -- the command -------------------------------------------------------------------------------------------


def test_plot_writes_a_picture(sparring: Shell, tmp_path: Path) -> None:
    file = tmp_path / "new" / "curves.png"
    said = sparring("plot", "five", "one_$x^2$", "-o", file, "--sqrt", "--json")
    assert said.code == 0
    lines = said.last["lines"]
    assert [(one["n"], one["low"] is None) for one in lines] == [(5, False), (1, True)]
    with Image.open(file) as picture:
        assert picture.size == (960, 630)
        colours = {colour for _, colour in picture.convert("RGB").getcolors(100_000) or []}
    assert {(0, 114, 178), (213, 94, 0)} <= colours  # both lines


def test_plot_draws_a_panel_for_every_environment_and_metric(sparring: Shell, tmp_path: Path) -> None:
    file = tmp_path / "curves.svg"
    said = sparring("plot", "algo=ppo", "-o", file, "--metric", "eval/mean_reward", "--x", "time")
    assert said.code == 0
    assert "algo=ppo, Pendulum-v1, eval/mean_reward: IQM of 2 seeds with a 95 % band" in said.out
    assert "algo=ppo, CartPole-v1, eval/mean_reward: IQM of 5 seeds with a 95 % band" in said.out
    assert file.read_text().count('<g id="axes_') == 2


def test_plot_says_where_a_line_ends_early(sparring: Shell, tmp_path: Path) -> None:
    said = sparring("plot", "five,short", "short,late", "-o", tmp_path / "a.pdf")
    assert "up to 1,500, where the first seed ends" in said.out
    assert "its seeds have no steps in common" in said.out


def test_plot_draws_profiles(sparring: Shell, tmp_path: Path) -> None:
    file = tmp_path / "profile.png"
    said = sparring("plot", "five", "short", "--profile", "-o", file, "--json")
    assert said.code == 0
    assert said.last["environments"][0]["units"]["A"]["profile"][0] == 1.0
    with Image.open(file) as picture:
        assert picture.size[0] == 960


def test_plot_without_matplotlib_names_the_extra(
    sparring: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    said = sparring("plot", "five", "-o", tmp_path / "x.png")
    assert said.code == 2
    assert "pip install 'sparring[plot]'" in said.error


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("five", "-o", "x.bmp"), 2, "End it with .png, .svg, .pdf"),
        (("five", "--metric", "eval/men_reward"), 2, "Did you mean 'eval/mean_reward'"),
        (("nothing",), 2, "There is no run 'nothing'"),
        (("five", "-o", "/proc/none/x.png"), 5, "cannot be written"),
    ],
)
def test_mistakes_name_the_fix(sparring: Shell, words: tuple[str, ...], code: int, says: str) -> None:
    said = sparring("plot", *words)
    assert said.code == code
    assert says in said.error
