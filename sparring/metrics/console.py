"""What a person sees while an agent learns: a live display, plain lines, or SB3's table."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sparring.metrics.sink import Sink

LINE_SECONDS = 5.0
Stream: TypeAlias = Any
"""A text stream; notebooks and log captures implement only a part of `TextIO`. None means stdout."""


class Progress:
    """The newest numbers of a run, and the phrases that describe them."""

    def __init__(self, total: int, window: int, started_at: int = 0) -> None:
        self.total = total
        self.window = window
        self.step = started_at
        self.values: dict[str, float] = {}
        self._began = time.monotonic()

    def update(self, step: int, values: Mapping[str, float]) -> None:
        self.step = max(self.step, int(step))
        self.values.update(values)

    @property
    def fraction(self) -> float:
        return min(self.step / self.total, 1.0) if self.total > 0 else 0.0

    def steps(self) -> str:
        return f"{self.step:,}/{self.total:,} steps"

    def speed(self) -> str:
        fps = self.values.get("time/fps")
        if fps is None:
            return f"compiling, {duration(time.monotonic() - self._began)}"
        return f"{fps:,.0f} steps/s"

    def eta(self) -> str:
        fps = self.values.get("time/fps", 0.0)
        if fps <= 0 or self.step >= self.total:
            return ""
        return f"ETA {duration((self.total - self.step) / fps)}"

    def compiling(self) -> str:
        seconds = self.values.get("time/compile_seconds")
        return f"compiled in {seconds:.1f} s" if seconds is not None else ""

    def episodes(self) -> str:
        count = self.values.get("rollout/episodes")
        return f"{count:,.0f} episodes" if count is not None else ""

    def reward(self) -> str:
        """The mean over a full window; before that, how full the window is."""
        filled = int(self.values.get("rollout/window_episodes", self.window))
        mean = self.values.get("rollout/ep_rew_mean")
        if filled < self.window:
            return f"window {filled}/{self.window}"
        return f"reward {number(mean)} (last {self.window})" if mean is not None else ""

    def evaluation(self) -> str:
        shown = [
            f"{number(self.values[name])} {kind}"
            for name, kind in (
                ("eval/mean_reward", "deterministic"),
                ("eval/stochastic_mean_reward", "stochastic"),
            )
            if name in self.values
        ]
        return f"evaluation {', '.join(shown)}" if shown else ""

    def line(self) -> str:
        parts = (
            self.steps(),
            self.episodes(),
            self.speed(),
            self.eta(),
            self.compiling(),
            self.reward(),
            self.evaluation(),
        )
        return " | ".join(part for part in parts if part)


class LiveDisplay:
    """A bar and two lines that a terminal redraws; other output appears above them."""

    def __init__(self, progress: Progress, title: str = "", console: Console | None = None) -> None:
        self._progress = progress
        self._title = title
        self._console = console or Console()
        self._live = Live(
            console=self._console,
            refresh_per_second=4,
            get_renderable=self._draw,
            redirect_stdout=True,
            redirect_stderr=True,
        )
        self._live.start()

    def write(self, step: int, seconds: float, values: Mapping[str, float], seed: int = 0) -> None:
        if seed == 0:
            self._progress.update(step, values)

    def close(self) -> None:
        self._live.stop()

    def _draw(self) -> Any:
        now = self._progress
        head = Table.grid(padding=(0, 1))
        words = len(self._title) + len(now.steps()) + len(now.speed()) + len(now.eta())
        room = self._console.width - words - 10
        head.add_row(
            Text(self._title, style="bold"),
            ProgressBar(total=1.0, completed=now.fraction, width=max(min(room, 30), 4)),
            Text(f"{now.fraction:4.0%}"),
            Text(now.steps()),
            Text(now.speed(), style="cyan"),
            Text(now.eta()),
        )
        rest = (now.episodes(), now.reward(), now.evaluation(), now.compiling())
        return Group(head, Text("  ".join(part for part in rest if part), style="dim"))


class PlainLines:
    """One line every few seconds, and one at the end: for logs, pipes and notebooks without a terminal."""

    def __init__(
        self,
        progress: Progress,
        stream: Stream = None,
        every: float = LINE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._progress = progress
        self._stream = stream or sys.stdout
        self._every = every
        self._clock = clock
        self._shown_at = -float("inf")
        self._pending = False

    def write(self, step: int, seconds: float, values: Mapping[str, float], seed: int = 0) -> None:
        if seed != 0:
            return
        self._progress.update(step, values)
        self._pending = True
        if self._clock() - self._shown_at >= self._every:
            self._show()

    def close(self) -> None:
        if self._pending:
            self._show()

    def _show(self) -> None:
        print(self._progress.line(), file=self._stream, flush=True)
        self._shown_at = self._clock()
        self._pending = False


class LogTable:
    """SB3's table of `verbose=1`, once per `log_interval` iterations or what the metric `counts` counts."""

    def __init__(self, log_interval: int = 1, stream: Stream = None, counts: str = "time/iterations") -> None:
        self._counts = counts
        self._interval = max(int(log_interval), 1)
        self._stream = stream or sys.stdout
        self._printed = 0
        self._values: dict[str, float] = {}

    def write(self, step: int, seconds: float, values: Mapping[str, float], seed: int = 0) -> None:
        if seed != 0:
            return
        self._values.update(values)
        count = int(self._values.get(self._counts, 0))
        if count - self._printed >= self._interval:
            self._printed = count
            self._show()

    def close(self) -> None:
        """Shows an evaluation that came after the last iteration."""
        if any(name.startswith("eval/") for name in self._values):
            self._show()

    def _show(self) -> None:
        print(table(self._values), file=self._stream, flush=True)
        self._values.clear()


def display(
    total: int,
    window: int,
    *,
    title: str = "",
    started_at: int = 0,
    stream: Stream = None,
    every: float = LINE_SECONDS,
) -> Sink:
    """The live display where the stream is a terminal, plain lines elsewhere."""
    stream = stream or sys.stdout
    progress = Progress(total, window, started_at)
    console = Console(file=stream)
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveDisplay(progress, title, console)
    return PlainLines(progress, stream, every)


def table(values: Mapping[str, float], limit: int = 36) -> str:
    """Numbers grouped by the part of their name before the slash, in a box."""
    rows: list[tuple[str, str]] = []
    group = ""
    for name in sorted(values):
        head, slash, tail = name.partition("/")
        if slash and head != group:
            group = head
            rows.append((f"{head}/", ""))
        rows.append((f"   {tail}" if slash else name, number(values[name])))
    left = min(max((len(label) for label, _ in rows), default=0), limit)
    right = max((len(value) for _, value in rows), default=0)
    rule = "-" * (left + right + 7)
    body = [f"| {label[:limit]:<{left}} | {value:<{right}} |" for label, value in rows]
    return "\n".join([rule, *body, rule])


def number(value: float) -> str:
    """A number in few characters: integers whole, others with four digits."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e9:
        return str(int(value))
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"


def duration(seconds: float) -> str:
    """Seconds as `42 s`, `3 min 05 s` or `2 h 07 min`."""
    whole = int(seconds + 0.5)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
