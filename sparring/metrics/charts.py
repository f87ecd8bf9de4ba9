"""Curves as text: a sparkline, a line of braille dots with axes, and the few points that tell a curve.

Pure functions of numbers; the same numbers give the same characters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

BARS = "▁▂▃▄▅▆▇█"
BRAILLE = 0x2800
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bit of each dot of a braille character: four rows of two."""


def sparkline(values: ArrayLike, width: int = 24) -> str:
    """One line of bars from the smallest to the largest value; a space where nothing finite was seen."""
    heights = buckets(np.asarray(values, np.float64), width)
    if not len(heights):
        return ""
    low, high = extent(heights)
    span = high - low
    characters = []
    for height in heights:
        if not math.isfinite(height):
            characters.append(" ")
        elif span <= 0:
            characters.append(BARS[3])
        else:
            characters.append(BARS[min(int((height - low) / span * len(BARS)), len(BARS) - 1)])
    return "".join(characters)


def line_chart(
    steps: ArrayLike,
    values: ArrayLike,
    width: int = 60,
    height: int = 8,
    title: str = "",
    marks: Sequence[float] = (),
) -> str:
    """A curve in braille dots between labelled axes, `width` × `height` characters; `marks` are steps shown
    by a ^ below the axis."""
    x, y = finite(steps, values)
    if not len(x):
        return f"{title}: no points" if title else "no points"
    low, high = extent(y)
    grid = np.zeros((height, width), np.int64)
    columns = _columns(x, y, 2 * width)
    rows = [_row(value, low, high, 4 * height) for _, value in columns]
    previous: tuple[int, int] | None = None
    for (column, _), row in zip(columns, rows, strict=True):
        for c, r in _segment(previous, (column, row)):
            grid[r // 4, c // 2] |= DOTS[r % 4][c % 2]
        previous = (column, row)
    top, bottom = short(high), short(low)
    margin = max(len(top), len(bottom))
    labels = [top, *[""] * (height - 2), bottom] if height > 1 else [top]
    lines = [title] if title else []
    for label, cells in zip(labels, grid, strict=True):
        lines.append(f"{label:>{margin}} ┤" + "".join(chr(BRAILLE + int(cell)) for cell in cells).rstrip("⠀"))
    lines.append(" " * margin + " └" + "─" * width)
    first, last = count(x[0]), count(x[-1])
    lines.append(" " * (margin + 2) + first + f"{last:>{max(width - len(first), len(last) + 1)}}")
    if shown := [mark for mark in marks if x[0] <= mark <= x[-1]]:
        under = [" "] * width
        for mark in shown:
            under[min(int((mark - x[0]) / max(x[-1] - x[0], 1e-12) * width), width - 1)] = "^"
        lines.insert(-1, (" " * (margin + 2) + "".join(under)).rstrip())
    return "\n".join(lines)


def knots(steps: ArrayLike, values: ArrayLike, limit: int = 12, tolerance: float = 0.05) -> list[int]:
    """Indices of at most `limit` points whose straight lines follow the curve: the ends, then wherever the
    curve bends most, until it is nowhere further away than `tolerance` of its range."""
    x, y = np.asarray(steps, np.float64), np.asarray(values, np.float64)
    usable = np.flatnonzero(np.isfinite(y))
    if len(usable) <= 2 or limit <= 2:
        return [int(i) for i in usable[:: max(len(usable) - 1, 1)][:limit]]
    x, y = x[usable], smooth(y[usable])
    allowed = max(tolerance * float(np.ptp(y)), 1e-6 * float(np.abs(y).max()))
    chosen = [0, len(x) - 1]
    while len(chosen) < limit:
        gaps = [_furthest(x, y, a, b) for a, b in pairwise(chosen)]
        distance, index = max(gaps)
        if distance <= allowed or index in chosen:
            break
        chosen = sorted([*chosen, index])
    return [int(usable[i]) for i in chosen]


def smooth(values: np.ndarray, share: int = 20) -> np.ndarray:
    """A running mean over about a twentieth of the curve; its ends keep their values."""
    window = len(values) // share | 1
    if window < 3:
        return values
    half = window // 2
    padded = np.pad(values, half, mode="edge")
    means = np.convolve(padded, np.ones(window) / window, mode="valid")
    means[0], means[-1] = values[0], values[-1]
    return means


def buckets(values: np.ndarray, width: int) -> np.ndarray:
    """At most `width` means of neighbouring finite values, in order; NaN for a bucket without any."""
    if len(values) <= width:
        return values
    edges = np.linspace(0, len(values), width + 1).astype(np.int64)
    means = np.full(width, np.nan)
    for i, (a, b) in enumerate(pairwise(edges)):
        part = values[a:b]
        part = part[np.isfinite(part)]
        if len(part):
            means[i] = part.mean()
    return means


def finite(steps: ArrayLike, values: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """The points that can be drawn."""
    x, y = np.asarray(steps, np.float64), np.asarray(values, np.float64)
    keep = np.isfinite(x) & np.isfinite(y)
    return x[keep], y[keep]


def extent(values: np.ndarray) -> tuple[float, float]:
    """The smallest and largest finite value; zeros when there is none."""
    kept = values[np.isfinite(values)]
    return (float(kept.min()), float(kept.max())) if len(kept) else (0.0, 0.0)


def short(value: float) -> str:
    """A number in three significant digits and few characters: 0.031, -1.4e+03, 12k, 3.2M."""
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= unit and size < 1e12:
            return f"{value / min(unit, 1e3 if letter == 'k' else unit):.3g}{letter}"
    if size >= 1000 and size < 1e4:
        return f"{value:.0f}"
    return f"{value:.3g}"


def count(value: float) -> str:
    """A number of steps: 512, 20k, 1.25M."""
    whole = round(value)
    if abs(whole) < 10_000:
        return str(whole)
    for unit, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if abs(whole) >= unit:
            return f"{whole / unit:.4g}{letter}"
    return str(whole)


def _columns(x: np.ndarray, y: np.ndarray, width: int) -> list[tuple[int, float]]:
    """The mean value of each column of dots that has points."""
    span = float(x[-1] - x[0])
    places = np.zeros(len(x), np.int64) if span <= 0 else ((x - x[0]) / span * (width - 1)).astype(np.int64)
    found = np.unique(places)
    return [(int(c), float(y[places == c].mean())) for c in found]


def _row(value: float, low: float, high: float, height: int) -> int:
    if high <= low:
        return height // 2
    return min(int((high - value) / (high - low) * (height - 1) + 0.5), height - 1)


def _segment(start: tuple[int, int] | None, end: tuple[int, int]) -> list[tuple[int, int]]:
    """The dots from one point to the next."""
    if start is None:
        return [end]
    count = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    return [
        (
            start[0] + round((end[0] - start[0]) * i / count),
            start[1] + round((end[1] - start[1]) * i / count),
        )
        for i in range(1, count + 1)
    ]


def _furthest(x: np.ndarray, y: np.ndarray, a: int, b: int) -> tuple[float, int]:
    """How far the curve leaves the straight line between two points, and where."""
    if b - a < 2:
        return 0.0, a
    inner = np.arange(a + 1, b)
    line = y[a] + (y[b] - y[a]) * (x[inner] - x[a]) / max(float(x[b] - x[a]), 1e-12)
    away = np.abs(y[inner] - line)
    best = int(np.argmax(away))
    return float(away[best]), int(inner[best])
