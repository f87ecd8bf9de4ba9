"""Pictures in a terminal: two pixels per character, the upper one as foreground, the lower as background."""

from __future__ import annotations

import os

import numpy as np

HALF = "▀"
RESET = "\x1b[0m"


def shrink(frame: np.ndarray, columns: int, rows: int) -> np.ndarray:
    """The frame in at most `columns` × 2 `rows` pixels, its shape kept, by the mean of each cell."""
    height, width = frame.shape[:2]
    scale = min(columns / width, 2 * rows / height, 1.0)
    wide, high = max(int(width * scale), 1), max(int(height * scale) // 2 * 2, 2)
    across = np.linspace(0, width, wide + 1).astype(int)
    down = np.linspace(0, height, high + 1).astype(int)
    pixels = frame.astype(np.float64)
    if pixels.ndim == 2:
        pixels = np.repeat(pixels[:, :, None], 3, axis=2)
    # Sums up to each edge; their differences are the sums of the cells.
    sums = np.zeros((height + 1, width + 1, 3))
    sums[1:, 1:] = pixels.cumsum(0).cumsum(1)
    cells = np.diff(np.diff(sums[down][:, across], axis=0), axis=1)
    area = np.maximum(np.diff(down)[:, None] * np.diff(across)[None, :], 1)
    means: np.ndarray = np.clip(np.round(cells / area[:, :, None]), 0, 255)
    return means.astype(np.uint8)


def draw(pixels: np.ndarray, truecolor: bool) -> list[str]:
    """One line of half blocks per two rows of pixels; a colour is written only where it changes."""
    lines = []
    for upper, lower in zip(pixels[::2], pixels[1::2], strict=True):
        line, last = [], ""
        for above, below in zip(upper, lower, strict=True):
            colours = _colour(above, 38, truecolor) + _colour(below, 48, truecolor)
            line.append(HALF if colours == last else colours + HALF)
            last = colours
        lines.append("".join(line) + RESET)
    return lines


def has_truecolor() -> bool:
    """Whether the terminal says that it shows 24-bit colours."""
    return os.environ.get("COLORTERM", "") in ("truecolor", "24bit")


def _colour(pixel: np.ndarray, layer: int, truecolor: bool) -> str:
    """The escape sequence for a colour; without true colour the nearest of the 6 × 6 × 6 cube or greys."""
    red, green, blue = (int(value) for value in pixel)
    if truecolor:
        return f"\x1b[{layer};2;{red};{green};{blue}m"
    if max(red, green, blue) - min(red, green, blue) < 12:
        grey = round((red - 8) / 10)
        code = 16 if red < 8 else 231 if grey > 23 else 232 + max(grey, 0)
    else:
        code = 16 + 36 * round(red / 51) + 6 * round(green / 51) + round(blue / 51)
    return f"\x1b[{layer};5;{code}m"
