"""What a verb says: text for people, and with --json one object as the last line of stdout."""

from __future__ import annotations

import json
import math
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, TextIO


class Output:
    """Text goes to stdout, or to stderr when stdout is kept for JSON."""

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json

    @property
    def stream(self) -> TextIO:
        return sys.stderr if self.as_json else sys.stdout

    def say(self, text: str = "") -> None:
        """A line for people."""
        print(text, file=self.stream, flush=True)

    def result(self, data: Mapping[str, Any]) -> None:
        """The verb's result, printed only with --json."""
        if self.as_json:
            print(json.dumps(plain(data)), flush=True)


def plain(value: Any) -> Any:
    """A value as strict JSON holds it: numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return plain(value.item()) if hasattr(value, "item") else str(value)


def width() -> int:
    """Columns of the terminal; wide where there is none."""
    return shutil.get_terminal_size((160, 24)).columns


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], columns: int, optional: Sequence[str] = ()
) -> str:
    """Aligned columns; `optional` ones are left out, in that order, while the table is too wide."""
    kept = list(range(len(head)))
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    for name in optional:
        if sum(widths[i] + 2 for i in kept) - 2 <= columns:
            break
        kept.remove(head.index(name))
    lines = ["  ".join(row[i].ljust(widths[i]) for i in kept).rstrip() for row in (head, *rows)]
    return "\n".join(lines)


def paragraph(text: str, indent: int = 0) -> str:
    """Text wrapped to the terminal, so that a long message stays readable; later lines are indented."""
    wrapper = textwrap.TextWrapper(
        min(width(), 100), subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(wrapper.fill(line) for line in text.splitlines())


def number(value: float | None) -> str:
    """A number in few characters."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:.0f}" if value == round(value) and abs(value) < 1e7 else f"{value:.4g}"
