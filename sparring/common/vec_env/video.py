"""Videos of a vector environment while it runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sparring.common.vec_env.base import Answer, VecEnv, VecEnvWrapper
from sparring.errors import ConfigError


class VecVideoRecorder(VecEnvWrapper):
    """Films `video_length` steps whenever `record_video_trigger(step)` says so, as MP4 files."""

    def __init__(
        self,
        venv: VecEnv,
        video_folder: str,
        record_video_trigger: Callable[[int], bool],
        video_length: int = 200,
        name_prefix: str = "rl-video",
    ) -> None:
        super().__init__(venv)
        if venv.render_mode != "rgb_array":
            raise ConfigError(
                f"VecVideoRecorder needs environments made with render_mode='rgb_array', not "
                f"{venv.render_mode!r}."
            )
        self.video_folder = Path(video_folder)
        self.record_video_trigger = record_video_trigger
        self.video_length = video_length
        self.name_prefix = name_prefix
        self.step_id = 0
        self.video_path: Path | None = None
        """the last video written"""
        self._frames: list[np.ndarray] | None = None
        self._began = 0

    def reset(self) -> Any:
        obs = self.venv.reset()
        self._look()
        return obs

    def step_wait(self) -> Answer:
        answer = self.venv.step_wait()
        self.step_id += 1
        self._look()
        if self._frames is not None and self.step_id - self._began >= self.video_length:
            self._finish()
        return answer

    def close(self) -> None:
        self._finish()
        self.venv.close()

    def _look(self) -> None:
        if self._frames is None and self.record_video_trigger(self.step_id):
            self._frames, self._began = [], self.step_id
        if self._frames is not None and (frame := self.venv.render("rgb_array")) is not None:
            self._frames.append(np.array(frame))

    def _finish(self) -> None:
        frames, self._frames = self._frames, None
        if not frames:
            return
        from sparring.evaluation.video import write_video

        name = f"{self.name_prefix}-step-{self._began}-to-step-{self._began + self.video_length}.mp4"
        rate = float(self.metadata.get("render_fps") or 30.0)
        self.video_path = write_video(self.video_folder / name, frames, rate)
