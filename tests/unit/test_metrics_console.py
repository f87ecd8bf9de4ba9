"""What people read while an agent learns, and the names of the numbers."""

from __future__ import annotations

import builtins
import io
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sparring.errors import MissingExtra
from sparring.metrics import console
from sparring.metrics.console import LiveDisplay, LogTable, PlainLines, Progress, display
from sparring.metrics.registry import METRICS, meaning
from sparring.metrics.sink import Sink
from sparring.metrics.tensorboard import TensorBoardSink, next_folder

FULL = {
    "time/fps": 1000.0,
    "time/compile_seconds": 2.5,
    "rollout/episodes": 1234.0,
    "rollout/window_episodes": 100.0,
    "rollout/ep_rew_mean": 475.25,
}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_metrics_import_no_jax() -> None:
    code = (
        "import sys, sparring.metrics.sink, sparring.metrics.sqlite, sparring.metrics.console, "
        "sparring.metrics.tensorboard, sparring.metrics.registry; sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_plain_lines_come_every_few_seconds_and_at_the_end() -> None:
    stream, clock = io.StringIO(), Clock()
    sink = PlainLines(Progress(100_000, 100), stream, every=5.0, clock=clock)
    for second in range(12):
        clock.now = float(second)
        sink.write(second * 1000, clock.now, FULL)
    assert len(stream.getvalue().splitlines()) == 3  # at 0, 5 and 10 seconds
    sink.close()
    sink.close()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 4
    assert lines[-1] == (
        "11,000/100,000 steps | 1,234 episodes | 1,000 steps/s | ETA 1 min 29 s | compiled in 2.5 s | "
        "reward 475.2 (last 100)"
    )
    assert "\x1b" not in stream.getvalue()


def test_the_mean_reward_is_not_shown_before_the_window_is_full() -> None:
    progress = Progress(1000, 100)
    progress.update(10, {"rollout/window_episodes": 37.0, "rollout/ep_rew_mean": 9.0})
    assert progress.reward() == "window 37/100"
    progress.update(20, {"rollout/window_episodes": 100.0})
    assert progress.reward() == "reward 9 (last 100)"
    assert Progress(1000, 100).reward() == ""


def test_both_evaluations_are_shown_apart() -> None:
    progress = Progress(1000, 100)
    assert progress.evaluation() == ""
    progress.update(10, {"eval/mean_reward": 500.0, "eval/stochastic_mean_reward": 431.04})
    assert progress.evaluation() == "evaluation 500 deterministic, 431 stochastic"


def test_before_anything_is_known_the_line_is_short() -> None:
    assert Progress(1000, 100, started_at=400).line() == "400/1,000 steps | compiling, 0 s"


def test_a_pipe_gets_lines_and_a_terminal_a_display() -> None:
    stream = io.StringIO()
    sink = display(1000, 10, stream=stream)
    assert isinstance(sink, PlainLines)
    assert isinstance(sink, Sink)

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "xterm-256color")
        patch.delenv("NO_COLOR", raising=False)
        terminal = Terminal()
        live = display(1000, 10, title="ppo CartPole-v1", stream=terminal)
        assert isinstance(live, LiveDisplay)
        live.write(500, 1.0, {**FULL, "rollout/window_episodes": 10.0, "eval/mean_reward": 490.5})
        live.close()
        live.close()
    for words in ("ppo CartPole-v1", "50%", "500/1,000 steps", "1,000 steps/s", "ETA", "490.5 deterministic"):
        assert words in terminal.getvalue()


def test_the_live_display_fits_a_narrow_terminal() -> None:
    stream = io.StringIO()
    narrow = Console(file=stream, force_terminal=True, width=40, color_system=None)
    sink = LiveDisplay(Progress(10**9, 100), "reinforce MountainCarContinuous-v0", narrow)
    sink.write(10**8, 1.0, FULL)
    sink.close()
    assert "reward 475.2" in stream.getvalue().replace("\n", " ")


def test_the_table_is_grouped_as_sb3_does_and_follows_log_interval() -> None:
    stream = io.StringIO()
    sink = LogTable(log_interval=2, stream=stream)
    for iteration in range(1, 6):
        sink.write(
            iteration * 10, 0.0, {"time/iterations": iteration, "train/loss": 0.012345, "rollout/x": 1}
        )
    assert stream.getvalue().count("time/") == 2
    block = stream.getvalue().splitlines()[:8]
    assert block == [
        "---------------------------",
        "| rollout/      |         |",
        "|    x          | 1       |",
        "| time/         |         |",
        "|    iterations | 2       |",
        "| train/        |         |",
        "|    loss       | 0.01235 |",
        "---------------------------",
    ]
    sink.close()
    assert "eval/" not in stream.getvalue()
    sink.write(60, 0.0, {"eval/mean_reward": 5.0})
    sink.close()
    assert "eval/" in stream.getvalue()


@pytest.mark.parametrize(
    ("value", "text"),
    [(3.0, "3"), (0.0123456, "0.01235"), (12345.6, "12346"), (float("nan"), "nan"), (-1e-9, "-1e-09")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert console.number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (59.4, "59 s"), (185, "3 min 05 s"), (7620, "2 h 07 min")]
)
def test_durations_are_readable(seconds: float, text: str) -> None:
    assert console.duration(seconds) == text


def test_every_metric_has_one_line_of_meaning() -> None:
    for name, text in METRICS.items():
        assert "/" in name
        assert text.endswith(".")
        assert "\n" not in text
    assert meaning("time/fps") == METRICS["time/fps"]
    assert meaning("my/own") == ""


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Reads an event file: records of length, checksum, data, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    found: dict[str, list[tuple[int, float]]] = {}
    for file in folder.glob("events.*"):
        data = file.read_bytes()
        while data:
            (size,) = struct.unpack("<Q", data[:8])
            event = Event.FromString(data[12 : 12 + size])
            data = data[16 + size :]
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def test_tensorboard_has_sb3s_tags(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    assert isinstance(sink, Sink)
    sink.write(10, 0.0, {"rollout/ep_rew_mean": 1.5, "time/fps": 100, "time/iterations": 1})
    sink.write(20, 0.0, {"rollout/ep_rew_mean": 2.5})
    sink.write(20, 0.0, {"rollout/ep_rew_mean": 3.5}, seed=2)
    sink.close()
    sink.close()
    assert scalars(tmp_path) == {"rollout/ep_rew_mean": [(10, 1.5), (20, 2.5)], "time/fps": [(10, 100.0)]}
    assert scalars(tmp_path / "seed-2") == {"rollout/ep_rew_mean": [(20, 3.5)]}


def test_tensorboard_folders_count_up_as_in_sb3(tmp_path: Path) -> None:
    assert next_folder(tmp_path / "none", "PPO") == tmp_path / "none" / "PPO_1"
    for name in ("PPO_1", "PPO_12", "PPO_x", "A2C_40"):
        (tmp_path / name).mkdir()
    assert next_folder(tmp_path, "PPO").name == "PPO_13"
    assert next_folder(tmp_path, "PPO", again=True).name == "PPO_12"
    assert next_folder(tmp_path, "SAC", again=True).name == "SAC_1"


def test_the_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "tensorboardX":
            raise ImportError(name=name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=r"pip install 'sparring\[track\]'"):
        TensorBoardSink(tmp_path)
