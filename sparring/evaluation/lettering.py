"""Words and bars on pictures: capital letters of 5 × 7 dots on a darkened ground, drawn with numpy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

# Seven rows from the top, two hexadecimal digits each; the highest of the five bits is the left dot.
SHAPES = {
    "A": "0e11111f111111", "B": "1e11111e11111e", "C": "0e11101010110e", "D": "1e11111111111e",
    "E": "1f10101e10101f", "F": "1f10101e101010", "G": "0e11101711110f", "H": "1111111f111111",
    "I": "0e04040404040e", "J": "0702020202120c", "K": "11121418141211", "L": "1010101010101f",
    "M": "111b1515111111", "N": "11191513111111", "O": "0e11111111110e", "P": "1e11111e101010",
    "Q": "0e11111115120d", "R": "1e11111e141211", "S": "0f10100e01011e", "T": "1f040404040404",
    "U": "1111111111110e", "V": "111111110a0a04", "W": "1111111515150a", "X": "11110a040a1111",
    "Y": "1111110a040404", "Z": "1f01020408101f", "0": "0e11131519110e", "1": "040c040404040e",
    "2": "0e11010204081f", "3": "1f02040201110e", "4": "02060a121f0202", "5": "1f101e0101110e",
    "6": "0608101e11110e", "7": "1f010204080808", "8": "0e11110e11110e", "9": "0e11110f01020c",
    ".": "00000000000c0c", ",": "00000000060204", ":": "000c0c000c0c00", "-": "0000001f000000",
    "+": "0004041f040400", "/": "00010204081000", "%": "18190204081303", "(": "02040808080402",
    ")": "08040202020408", "=": "00001f001f0000", "_": "0000000000001f", "?": "0e110102040004",
}  # fmt: skip
HEIGHT, WIDTH = 7, 5
GAP = 1
"""Dots between letters."""
LEADING = 3
"""Dots between lines."""
MARGIN = 3
"""Dots around a block of lines."""
BAR = 24
"""Dots that a full bar is long."""
SHADE = 0.25
"""How much of the picture shows through behind letters."""
WHITE = (255, 255, 255)
AMBER = (255, 200, 60)


class Line(NamedTuple):
    """A line of a block: words, and a bar behind them where a share from 0 to 1 is given."""

    text: str
    share: float | None = None
    after: str = ""
    """words behind the bar"""
    bright: bool = False


@cache
def _shape(letter: str) -> np.ndarray:
    rows = bytes.fromhex(SHAPES.get(letter, SHAPES["?"]))
    return np.array([[bool(row >> (WIDTH - 1 - x) & 1) for x in range(WIDTH)] for row in rows])


def lettered(text: str) -> np.ndarray:
    """The dots of a line of words, bool[7, …]; small letters become capitals."""
    dots = np.zeros((HEIGHT, max(len(text) * (WIDTH + GAP) - GAP, 0)), bool)
    for place, letter in enumerate(text.upper()):
        if letter != " ":
            left = place * (WIDTH + GAP)
            dots[:, left : left + WIDTH] = _shape(letter)
    return dots


def block(lines: Sequence[Line], columns: int = 10_000, centred: bool = False) -> tuple[np.ndarray, ...]:
    """The dots of several lines and which of them are bright; both bool, no wider than `columns`."""
    start = max((lettered(line.text).shape[1] for line in lines if line.share is not None), default=0)
    rows = [_row(line, start + 4 * GAP) for line in lines]
    width = min(max((row.shape[1] for row in rows), default=0) + 2 * MARGIN, columns)
    height = len(rows) * (HEIGHT + LEADING) - LEADING + 2 * MARGIN
    dots, bright = np.zeros((height, width), bool), np.zeros((height, width), bool)
    for index, (line, whole) in enumerate(zip(lines, rows, strict=True)):
        top = MARGIN + index * (HEIGHT + LEADING)
        row = whole[:, : max(width - 2 * MARGIN, 0)]
        left = (width - row.shape[1]) // 2 if centred else MARGIN
        place = np.s_[top : top + HEIGHT, left : left + row.shape[1]]
        dots[place] = row
        bright[place] = line.bright
    return dots, bright


def _row(line: Line, start: int) -> np.ndarray:
    words = lettered(line.text)
    if line.share is None:
        return words
    after = lettered(line.after)
    row = np.zeros((HEIGHT, start + BAR + 4 * GAP + after.shape[1]), bool)
    row[:, : words.shape[1]] = words
    row[HEIGHT - 1, start : start + BAR] = True
    row[1:, start : start + round(BAR * min(max(line.share, 0.0), 1.0))] = True
    row[:, start + BAR + 4 * GAP :] = after
    return row


def overlaid(frame: np.ndarray, lines: Sequence[Line]) -> np.ndarray:
    """A copy of a frame with lines in its upper left corner, twice as large where there is room."""
    scale = 2 if min(frame.shape[:2]) >= 300 else 1
    dots, bright = (_enlarged(part, scale) for part in block(lines, frame.shape[1] // scale))
    return _inked(frame, dots, bright, (0, 0))


def card(shape: tuple[int, ...], lines: Sequence[str]) -> np.ndarray:
    """A title: centred words on a dark picture, as large as fit."""
    dots, bright = block([Line(line, bright=not i) for i, line in enumerate(lines)], centred=True)
    scale = max(min(shape[0] * 2 // (3 * dots.shape[0]), shape[1] // dots.shape[1], 4), 1)
    dots, bright = (_enlarged(part, scale) for part in (dots, bright))
    corner = tuple(max((have - need) // 2, 0) for have, need in zip(shape[:2], dots.shape, strict=True))
    return _inked(np.full((*shape[:2], 3), 24, np.uint8), dots, bright, (corner[0], corner[1]), shade=1.0)


def _inked(
    frame: np.ndarray,
    dots: np.ndarray,
    bright: np.ndarray,
    corner: tuple[int, int],
    shade: float = SHADE,
) -> np.ndarray:
    drawn = frame.copy()
    part = drawn[corner[0] : corner[0] + dots.shape[0], corner[1] : corner[1] + dots.shape[1]]
    dots, bright = (mask[: part.shape[0], : part.shape[1]] for mask in (dots, bright))
    part[:] = (part * shade).astype(np.uint8)
    part[dots] = WHITE
    part[dots & bright] = AMBER
    return drawn


def _enlarged(dots: np.ndarray, scale: int) -> np.ndarray:
    return dots.repeat(scale, axis=0).repeat(scale, axis=1)
