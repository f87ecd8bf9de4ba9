"""Videos decode to what was drawn, and a failure leaves no file behind."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from sparring.errors import EnvironmentFailure, MissingExtra, StorageError
from sparring.evaluation.frames import renderer
from sparring.evaluation.video import write_video


def decode(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def shades(count: int, height: int, width: int) -> Iterator[np.ndarray]:
    for i in range(count):
        yield np.full((height, width, 3), i * 255 // count, np.uint8)


@pytest.mark.parametrize(("height", "width"), [(64, 96), (65, 97), (2, 2), (1, 33)])
def test_every_frame_is_there_in_order_and_in_an_even_size(tmp_path: Path, height: int, width: int) -> None:
    path = write_video(tmp_path / "deep" / "v.mp4", shades(20, height, width), fps=50)
    frames = decode(path)
    assert len(frames) == 20
    assert frames[0].shape == (height + height % 2, width + width % 2, 3)
    for i, frame in enumerate(frames):
        assert abs(float(frame.mean()) - i * 255 // 20) < 6
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.codec_context.name == "h264"
        assert stream.codec_context.pix_fmt == "yuv420p"
        assert stream.average_rate == 50


def test_the_index_comes_before_the_data(tmp_path: Path) -> None:
    data = write_video(tmp_path / "v.mp4", shades(5, 32, 32), 30).read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")


def test_grey_frames_and_fractional_rates(tmp_path: Path) -> None:
    frames = (np.full((16, 16), 200, np.uint8) for _ in range(3))
    path = write_video(tmp_path / "v.mp4", frames, fps=29.97)
    assert len(decode(path)) == 3


def drawn_badly() -> Iterator[np.ndarray]:
    yield from shades(3, 32, 32)
    raise RuntimeError("the environment died")


@pytest.mark.parametrize(
    ("frames", "error", "words"),
    [
        ([], EnvironmentFailure, "no frames"),
        ([np.zeros((8, 8, 3))], EnvironmentFailure, "Frame 0 .* float64"),
        (
            [np.zeros((8, 8, 3), np.uint8), np.zeros((8, 6, 3), np.uint8)],
            EnvironmentFailure,
            "Frame 1 .* 6 × 8",
        ),
        (drawn_badly(), RuntimeError, "died"),
    ],
)
def test_a_failure_leaves_the_old_video_and_nothing_else(
    tmp_path: Path, frames: Any, error: type[Exception], words: str
) -> None:
    path = write_video(tmp_path / "v.mp4", shades(4, 16, 16), 30)
    before = path.read_bytes()
    with pytest.raises(error, match=words):
        write_video(path, frames, 30)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_an_unwritable_place_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="could not be written"):
        write_video(tmp_path / "file" / "v.mp4", shades(2, 16, 16), 30)


def test_the_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def no_av(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "av":
            raise ImportError(name=name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_av)
    with pytest.raises(MissingExtra, match=r"pip install 'sparring\[video\]'"):
        write_video(tmp_path / "v.mp4", shades(2, 16, 16), 30)


def test_only_classic_environments_are_drawn_here() -> None:
    assert renderer("Hopper-v5") is None


@pytest.mark.parametrize(
    ("env_id", "a", "b"),
    [
        ("CartPole-v1", [0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.2, 0.0]),
        ("MountainCar-v0", [-0.5, 0.0], [0.3, 0.0]),
        ("MountainCarContinuous-v0", [-0.5, 0.0], [0.3, 0.0]),
        ("Acrobot-v1", [0.0, 0.0, 0.0, 0.0], [1.0, 0.5, 0.0, 0.0]),
        ("Pendulum-v1", [0.0, 0.0], [2.0, 0.0]),
    ],
)
def test_a_frame_shows_the_state(env_id: str, a: list[float], b: list[float]) -> None:
    draw = renderer(env_id)
    assert draw is not None
    first, second, again = draw(a), draw(b), draw(a)
    assert first.dtype == np.uint8
    assert first.ndim == 3
    assert (first != second).any()
    np.testing.assert_array_equal(first, again)
