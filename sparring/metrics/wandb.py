"""Metrics, settings, alerts, films and the best agent as a Weights & Biases run.

Offline unless the user sets WANDB_MODE=online: the files lie in the given folder, and `wandb sync` sends them
when somebody wants that. Tokens are left to wandb, which reads them from its own places.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparring.errors import ConfigError, StorageError, missing_extra
from sparring.metrics import wandb_file
from sparring.metrics.registry import TIMESTEPS

MODES = ("offline", "online", "disabled")
LEVELS = {"info": "INFO", "warn": "WARN", "warning": "WARN", "error": "ERROR"}
PATIENCE = 10.0
"""Seconds that wandb has for the end of a file."""
INIT_SECONDS = 20
"""How long wandb may look for its server; a process does not end before."""
TITLE = 63
"""Characters that wandb allows in the title of an alert."""


class WandbSink:
    """One W&B run per seed, opened at its first record; all steps are `time/total_timesteps`.

    `run` is the run's folder: at the end its best agent and the films that were not handed over before are
    taken from there.
    """

    def __init__(
        self, folder: Path | str, name: str, run: Path | None = None, project: str = "sparring"
    ) -> None:
        self._mode = mode()
        if self._mode != "online":  # nor does wandb tell its makers of its own errors
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        try:
            import wandb
        except ImportError as error:
            raise missing_extra("wandb", "wandb") from error
        self.folder = Path(folder)
        self._wandb: Any = wandb
        self._name = name
        self._run = run
        self._project = os.environ.get("WANDB_PROJECT", project)
        self._facts: dict[str, Any] = {}
        self._runs: dict[int, Any] = {}
        self._step = 0
        self._filmed: set[Path] = set()
        self._has_model = False

    def write(self, step: int, seconds: float, values: Mapping[str, float], seed: int = 0) -> None:
        self._log(step, seed, {name: float(value) for name, value in values.items()})

    def describe(self, facts: Mapping[str, Any]) -> None:
        self._facts.update(facts)
        for run in self._runs.values():
            run.config.update(dict(facts), allow_val_change=True)

    def alert(self, step: int, title: str, text: str, level: str = "warning", seed: int = 0) -> None:
        body = f"{text}\n(step {step:,})"
        self._open(seed).alert(title=title[:TITLE], text=body, level=LEVELS.get(level, "INFO"))

    def video(self, step: int, path: Path, seed: int = 0) -> None:
        self._filmed.add(path.resolve())
        self._log(step, seed, {"videos/agent": self._wandb.Video(str(path), format="mp4")})

    def model(self, step: int, folder: Path, seed: int = 0) -> None:
        self._has_model = True
        artifact = self._wandb.Artifact(
            safe(f"{self._name}-best"), type="model", metadata={"step": step, **self._facts}
        )
        for file in sorted(folder.iterdir()):
            # Not copied to wandb's own folder in the user's home: a run's folder has all that belongs to it.
            artifact.add_file(str(file), policy="immutable", skip_cache=True)
        self._open(seed).log_artifact(artifact, aliases=["best"])

    def close(self) -> None:
        if self._runs:
            self._gather()
        for run in self._runs.values():
            run.finish()
            if self._mode == "offline":
                _wait(Path(run.settings.sync_file))
        self._runs.clear()

    def _gather(self) -> None:
        """The best agent and the films in the run's folder, each at its own step."""
        if self._run is None:
            return
        best = self._run / "best"
        if best.is_dir() and not self._has_model:
            self.model(self._best_step(self._run / "evaluation.json"), best)
        films = [(self._step_of(film), film) for film in (self._run / "videos").glob("*.mp4")]
        for step, film in sorted(films):
            if film.resolve() not in self._filmed:
                self.video(step, film)

    def _best_step(self, evaluation: Path) -> int:
        """The step at which the best agent was found; the last one where nothing says."""
        try:
            return int(json.loads(evaluation.read_text())["best"]["step"])
        except (OSError, ValueError, KeyError, TypeError):
            return self._step

    def _step_of(self, film: Path) -> int:
        """The step in a film's name; the last one for a film of another name."""
        number = re.fullmatch(r"step-(\d+)", film.stem)
        return int(number[1]) if number else self._step

    def _log(self, step: int, seed: int, values: dict[str, Any]) -> None:
        self._step = max(self._step, int(step))
        # wandb's own step must grow; an evaluation has the step of the update before it.
        self._open(seed).log({**values, TIMESTEPS: int(step)})

    def _open(self, seed: int) -> Any:
        if seed not in self._runs:
            self.folder.mkdir(parents=True, exist_ok=True)
            run = self._wandb.init(
                project=self._project,
                dir=str(self.folder),
                name=self._name if seed == 0 else f"{self._name}-{seed}",
                group=self._name,
                config={**self._facts, "seed_index": seed},
                mode=self._mode,
                reinit="create_new",
                settings=self._wandb.Settings(
                    init_timeout=INIT_SECONDS,
                    console="off",  # the display is ours
                    silent=True,
                    disable_code=True,
                    disable_git=True,  # an address may hold a token
                ),
            )
            run.define_metric("*", step_metric=TIMESTEPS)
            self._runs[seed] = run
        return self._runs[seed]


def _wait(file: Path) -> None:
    """Until wandb's own process wrote the file: offline, `finish` returns before that."""
    deadline = time.monotonic() + PATIENCE
    while not (file.exists() and wandb_file.ended(file)):
        if time.monotonic() > deadline:
            raise StorageError(
                f"wandb did not end {str(file)!r} within {PATIENCE:g} s; it may be incomplete."
            )
        time.sleep(0.05)


def mode() -> str:
    """What WANDB_MODE asks for; offline when it is not set."""
    asked = os.environ.get("WANDB_MODE", "offline")
    if asked not in MODES:
        raise ConfigError(f"WANDB_MODE={asked!r} is not known. Use one of {', '.join(MODES)}, or unset it.")
    return asked


def safe(name: str) -> str:
    """A name with characters that wandb allows in an artifact's."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name)
