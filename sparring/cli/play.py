"""`sparring play RUN`: a trained agent to watch, in a window or in the terminal."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from sparring.cli import agents, terminal
from sparring.cli.output import Output, number
from sparring.cli.parser import Options, Parser
from sparring.errors import SparringError
from sparring.evaluation import graphics
from sparring.evaluation.frames import fps

if TYPE_CHECKING:
    from sparring.cli.agents import Loaded, Moment

SMOOTH = 30.0
"""Pictures per second that a terminal is asked to draw, at most."""


def parser() -> Parser:
    made = Parser("play", "Watch a trained agent in a window, or in the terminal.", ("play last",))
    made.run_argument()
    made.add_argument("--terminal", action="store_true", help="the terminal even where a window could open")
    made.add_argument("--fps", type=float, metavar="F", help="steps per second (default: the environment's)")
    made.acting_arguments(episodes=3)
    return made


def run(options: Options, out: Output) -> int:
    loaded = agents.load(options.run, best=options.best, trust_code=options.trust_code, say=out.say)
    env = None if options.terminal or not graphics.has_display() else window(loaded)
    in_window = env is not None
    env = env or agents.drawable(loaded.plan)
    live = not in_window and out.stream.isatty()
    view = View(env, options.fps or fps(env), out) if live else None
    returns = []
    try:
        with full_screen() if live else quietly():
            for moment in agents.perform(
                loaded.agent, env, options.episodes, options.seed, not options.stochastic
            ):
                if view is not None:
                    view.show(moment)
                elif in_window:
                    env.render()
                if moment.over:
                    returns.append(moment.total)
                    if view is None:
                        out.say(
                            f"episode {moment.episode + 1}: {moment.step} steps, return {moment.total:.2f}"
                        )
    except KeyboardInterrupt:  # the usual way to stop watching
        pass
    finally:
        env.close()
    if live:
        out.say(f"Returns: {', '.join(f'{total:.2f}' for total in returns) or 'none ended'}")
    out.result({"episodes": len(returns), "returns": returns})
    return 0


def window(loaded: Loaded) -> Any:
    """The environment in a window of its own, or None where it has none."""
    from sparring.reference import is_reference

    plan = loaded.plan
    bare = plan.env.removeprefix("gym:").removeprefix("envpool:")
    if is_reference(plan.env) or bare.startswith("probe/"):
        return None
    try:
        return agents.environment(plan._replace(env=f"gym:{bare}"), 1, render_mode="human")
    except SparringError:
        return None


class View:
    """A live picture of row 0 above the numbers of the step."""

    def __init__(self, env: Any, rate: float, out: Output) -> None:
        self._env = env
        self._pause = 1.0 / rate
        self._out = out
        self._truecolor = terminal.has_truecolor()
        self._draws = True
        self._due = time.monotonic()
        self._drawn_at = -np.inf
        self._score = 0.0

    def show(self, moment: Moment) -> None:
        """Waits for the step's time, then draws it unless the terminal is behind."""
        self._due = max(self._due + self._pause, time.monotonic() - 0.5)
        time.sleep(max(self._due - time.monotonic(), 0.0))
        if time.monotonic() - self._drawn_at < 1.0 / SMOOTH and not moment.over:
            return
        self._drawn_at = time.monotonic()
        size = shutil.get_terminal_size((80, 24))
        words = describe(moment, size.columns)
        lines = [*self._picture(size.columns, size.lines - len(words) - 1), *words]
        body = "".join(f"{line}\x1b[K\n" for line in lines)
        self._out.stream.write(f"\x1b[H{body}\x1b[J")
        self._out.stream.flush()

    def _picture(self, columns: int, rows: int) -> list[str]:
        if not self._draws or rows < 2:
            return []
        try:
            frame = self._env.render()
        except SparringError:  # a missing extra: the numbers remain
            frame = None
        self._draws = frame is not None
        return terminal.draw(terminal.shrink(frame, columns, rows), self._truecolor) if self._draws else []


def describe(moment: Moment, columns: int) -> list[str]:
    """Observation, action, reward and return of a step, each on one line."""
    first = moment.obs if not isinstance(moment.obs, dict) else next(iter(moment.obs.values()))
    values = np.asarray(first)[0].reshape(-1)
    seen = " ".join(f"{value:+.3f}" if values.dtype.kind == "f" else str(value) for value in values[:64])
    action = (
        "-" if moment.action is None else " ".join(number(float(a)) for a in np.reshape(moment.action, -1))
    )
    head = f"episode {moment.episode + 1}  step {moment.step}  "
    return [
        clip(f"{head}action {action}  reward {number(moment.reward)}  return {moment.total:.2f}", columns),
        clip(f"sees {seen}", columns),
        clip("Ctrl-C ends", columns),
    ]


def clip(text: str, columns: int) -> str:
    return text if len(text) < columns else text[: columns - 2] + "…"


@contextmanager
def full_screen() -> Iterator[None]:
    """The terminal's second screen without a cursor; the first one comes back at the end."""
    sys.stdout.write("\x1b[?1049h\x1b[?25l\x1b[2J")
    try:
        yield
    finally:
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()


@contextmanager
def quietly() -> Iterator[None]:
    yield
