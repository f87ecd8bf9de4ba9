"""Curves as text."""

from __future__ import annotations

import math

import numpy as np

from sparring.metrics import charts


def test_a_sparkline_rises_with_its_values() -> None:
    assert charts.sparkline(range(8)) == "▁▂▃▄▅▆▇█"
    assert charts.sparkline([3, 3, 3]) == "▄▄▄"
    assert charts.sparkline([]) == ""


def test_a_sparkline_of_many_values_is_as_wide_as_asked_and_shows_gaps() -> None:
    values = np.linspace(0, 1, 1000)
    values[500:600] = math.nan
    line = charts.sparkline(values, width=10)
    assert len(line) == 10
    assert line[5] == " "
    assert line[0] == "▁"
    assert line[-1] == "█"


def test_a_line_chart_has_its_numbers_at_the_axes() -> None:
    text = charts.line_chart([0, 50_000, 100_000], [0.0, 250.0, 500.0], width=20, height=4, title="return")
    lines = text.splitlines()
    assert lines[0] == "return"
    assert lines[1].startswith("500 ┤")
    assert lines[4].startswith("  0 ┤")
    assert lines[-1].split() == ["0", "100k"]
    assert all(len(line) <= 20 + 5 for line in lines)


def test_a_rising_curve_is_drawn_from_the_lower_left_to_the_upper_right() -> None:
    lines = charts.line_chart(range(100), range(100), width=10, height=5).splitlines()
    body = [line.split("┤")[1] for line in lines[:5]]
    assert set(body[0][:6]) == {"⠀"}  # the top row has dots only at the right
    assert body[0][9] != "⠀"
    assert body[4][0] != "⠀"
    assert len(body[4]) <= 4


def test_a_chart_of_nothing_and_of_one_point() -> None:
    assert charts.line_chart([], []) == "no points"
    assert charts.line_chart([1, 2], [math.nan, math.inf], title="x") == "x: no points"
    assert "┤" in charts.line_chart([5], [1.0])


def test_marks_stand_below_their_step() -> None:
    text = charts.line_chart([0, 100], [0, 1], width=10, height=2, marks=[50, 1000])
    under = text.splitlines()[-2]
    assert under.count("^") == 1
    assert under.index("^") - text.splitlines()[0].index("┤") - 1 == 5


def test_knots_are_where_the_curve_bends() -> None:
    x = np.arange(101)
    y = np.where(x < 40, 0.0, np.where(x < 60, (x - 40) * 5.0, 100.0))
    chosen = charts.knots(x, y)
    assert chosen[0] == 0
    assert chosen[-1] == 100
    assert len(chosen) <= 6
    assert min(abs(i - 40) for i in chosen) <= 2
    assert min(abs(i - 60) for i in chosen) <= 2


def test_knots_are_few_ignore_nan_and_follow_the_curve() -> None:
    rng = np.random.default_rng(0)
    x = np.arange(3000)
    y = np.sin(x / 300) + 0.05 * rng.standard_normal(3000)
    y[::7] = math.nan
    chosen = charts.knots(x, y, limit=12)
    assert len(chosen) <= 12
    assert np.isfinite(y[chosen]).all()
    line = np.interp(x, x[chosen], y[chosen])
    assert np.abs(line - np.sin(x / 300)).mean() < 0.15
    assert charts.knots([1, 2, 3], [1.0, math.nan, 2.0]) == [0, 2]
    assert charts.knots([7], [1.0]) == [0]


def test_numbers_are_short() -> None:
    shown = [charts.short(v) for v in (0.0, 0.0312345, -1234.5, 12345.0, 3.21e6, 5e-9, 1e15, math.nan)]
    assert shown == ["0", "0.0312", "-1234", "12.3k", "3.21M", "5e-09", "1e+15", "nan"]
    assert [charts.count(v) for v in (512, 20_480, 1_250_000)] == ["512", "20.48k", "1.25M"]
