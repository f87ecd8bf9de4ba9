"""Metrics as TensorBoard event files, with SB3's tags."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparring.errors import missing_extra

HIDDEN = frozenset({"time/iterations", "time/time_elapsed", "time/total_timesteps"})
"""Names that SB3 keeps out of TensorBoard: they are its axes."""


class TensorBoardSink:
    """Writes scalars to a folder; seeds beyond the first get a sub-folder each."""

    def __init__(self, folder: Path | str) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise missing_extra("tensorboardX", "track") from error
        self.folder = Path(folder)
        self._open = SummaryWriter
        self._writers: dict[int, Any] = {}

    def write(self, step: int, seconds: float, values: Mapping[str, float], seed: int = 0) -> None:
        writer = self._writer(seed)
        for name, value in values.items():
            if name not in HIDDEN:
                writer.add_scalar(name, float(value), global_step=int(step))

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _writer(self, seed: int) -> Any:
        if seed not in self._writers:
            folder = self.folder if seed == 0 else self.folder / f"seed-{seed}"
            self._writers[seed] = self._open(logdir=str(folder))
        return self._writers[seed]


def next_folder(root: Path | str, name: str, again: bool = False) -> Path:
    """SB3's `name_1`, `name_2` …: the first unused one, or with `again` the last used one."""
    root = Path(root)
    pattern = re.compile(rf"{re.escape(name)}_(\d+)")
    used = (
        [int(m[1]) for path in root.glob("*") if (m := pattern.fullmatch(path.name))] if root.is_dir() else []
    )
    number = max(used, default=0)
    return root / f"{name}_{number if again and used else number + 1}"
