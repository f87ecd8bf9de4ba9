"""What Weights & Biases wrote offline as numbers by step under our names, so that it can be diagnosed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sparring.metrics import wandb_file

ALIASES = {
    "charts/episodic_return": "rollout/ep_rew_mean",
    "charts/episodic_length": "rollout/ep_len_mean",
    "charts/learning_rate": "train/learning_rate",
    "charts/SPS": "time/fps",
    "losses/approx_kl": "train/approx_kl",
    "losses/clipfrac": "train/clip_fraction",
    "losses/explained_variance": "train/explained_variance",
    "losses/value_loss": "train/value_loss",
    "losses/policy_loss": "train/policy_gradient_loss",
}
"""CleanRL's names in ours; SB3's are ours already."""


class Logged(NamedTuple):
    """An offline run: its name, settings, and numbers by step."""

    name: str
    config: dict[str, Any]
    records: list[tuple[int, int, dict[str, float]]]
    finished: bool


def find_file(folder: Path) -> Path | None:
    """The one `.wandb` file of a run's folder; None where there is none."""
    if folder.is_file() and folder.suffix == ".wandb":
        return folder
    found = sorted(folder.glob("run-*.wandb")) if folder.is_dir() else []
    return found[0] if found else None


def read(path: Path) -> Logged:
    """Everything a run logged; a file whose end was cut off gives what is whole."""
    run = wandb_file.read(path)
    records = [_record(number, row) for number, row in enumerate(run.history)]
    config = {name: value for name, value in run.config.items() if name != "_wandb"}
    name = run.name or path.stem.removeprefix("run-")
    return Logged(name, config, sorted(records, key=lambda r: r[0]), wandb_file.ended(path))


def _record(number: int, row: Mapping[str, Any]) -> tuple[int, int, dict[str, float]]:
    values = {name: float(value) for name, value in row.items() if _is_number(value)}
    step = int(values.pop("global_step", values.get("_step", number)))
    return step, 0, {ALIASES.get(k, k): v for k, v in values.items() if not k.startswith("_")}


def _is_number(value: Any) -> bool:
    if value in ("NaN", "Infinity", "-Infinity"):
        return True
    return isinstance(value, (int, float)) and not isinstance(value, bool)
