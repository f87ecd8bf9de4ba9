"""Videos: frames streamed into an H.264 MP4 that every browser plays."""

from __future__ import annotations

import os
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from sparring.errors import EnvironmentFailure, StorageError, missing_extra
from sparring.runs.durable import discard, temporary


def write_video(path: Path | str, frames: Iterable[np.ndarray], fps: float = 30.0) -> Path:
    """Encodes frames as they come, with one frame in memory; the file appears when it is complete.

    A frame is uint8 of shape [H, W, 3] or [H, W]; odd sizes get their last row or column doubled, because
    yuv420p stores colour for 2 × 2 pixels.
    """
    try:
        import av
    except ImportError as error:
        raise missing_extra("av", "video") from error
    path = Path(path)
    draft = temporary(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The index goes to the front, so that playing starts before the download ends.
        with av.open(str(draft), "w", format="mp4", options={"movflags": "+faststart"}) as container:
            _encode(container, frames, Fraction(fps).limit_denominator(1000))
        os.replace(draft, path)
    except OSError as error:
        raise StorageError(
            f"The video {str(path)!r} could not be written: {error.strerror or error}."
        ) from error
    finally:
        discard(draft)
    return path


def _encode(container: Any, frames: Iterable[np.ndarray], rate: Fraction) -> None:
    from av import VideoFrame

    stream: Any = None
    shape: tuple[int, ...] = ()
    for count, frame in enumerate(frames):
        picture = _prepare(frame, count)
        if stream is None:
            shape = picture.shape
            stream = _add_stream(container, rate, shape)
        elif picture.shape != shape:
            raise EnvironmentFailure(
                f"Frame {count} of the video is {picture.shape[1]} × {picture.shape[0]} pixels, the ones "
                f"before it {shape[1]} × {shape[0]}. An environment must draw all frames in one size."
            )
        container.mux(stream.encode(VideoFrame.from_ndarray(picture, format="rgb24")))
    if stream is None:
        raise EnvironmentFailure("There are no frames to film: the environment draws nothing.")
    container.mux(stream.encode(None))


def _add_stream(container: Any, rate: Fraction, shape: tuple[int, ...]) -> Any:
    stream = container.add_stream("libx264", rate=rate)
    stream.height, stream.width = shape[:2]
    stream.pix_fmt = "yuv420p"
    stream.options = {"crf": "20", "preset": "veryfast"}
    return stream


def _prepare(frame: np.ndarray, count: int) -> np.ndarray:
    frame = np.asarray(frame)
    if frame.ndim == 2:
        frame = np.repeat(frame[:, :, None], 3, axis=2)
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3 or 0 in frame.shape:
        raise EnvironmentFailure(
            f"Frame {count} of the video is {frame.dtype}{list(frame.shape)}, not uint8[height, width, 3]."
        )
    odd = [(0, size % 2) for size in frame.shape[:2]]
    return np.ascontiguousarray(np.pad(frame, [*odd, (0, 0)], mode="edge"))
