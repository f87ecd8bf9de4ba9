"""Run folders: where a run keeps its settings, metrics, checkpoints, agents and videos.

runs/ppo-CartPole-v1-0-20250102-030405/
    config.toml   status.json   lock   metrics.sqlite   checkpoints/   last/   best/   evaluation.json
    videos/
"""

from __future__ import annotations

import json
import os
import re
import time
import tomllib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, get_args

from sparring.errors import ConfigError, StorageError, UnknownName, nearest
from sparring.runs.durable import replace_file
from sparring.runs.lock import Lock, is_held

ROOT = Path("runs")
CONFIG = "config.toml"
STATUS = "status.json"
LOCK = "lock"

State = Literal["running", "finished", "stopped", "failed", "interrupted", "killed", "unknown"]


class Status(NamedTuple):
    """What a run is and how far it is; `killed` is a run that says running and whose process is gone."""

    algo: str
    env: str
    seed: int
    state: State = "running"
    steps: int = 0
    total: int = 0
    mean_reward: float | None = None
    message: str = ""
    started: float = 0.0
    """Wall-clock time of the first start, in seconds since the epoch."""
    updated: float = 0.0
    pid: int = 0


class RunDirectory:
    """One run's folder. As a context manager it holds the run's lock."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._lock = Lock(self.path / LOCK)

    def __enter__(self) -> RunDirectory:
        self.lock()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unlock()

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.sqlite"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def last(self) -> Path:
        """The agent as training left it."""
        return self.path / "last"

    @property
    def snapshots(self) -> Path:
        """Agents that wait to be evaluated."""
        return self.path / "snapshots"

    @property
    def evaluation(self) -> Path:
        """What the best and the last agent scored."""
        return self.path / "evaluation.json"

    @property
    def behaviours(self) -> Path:
        """What the agent earned at behaviours all over the space that a bandit chose from."""
        return self.path / "behaviours.json"

    @property
    def best(self) -> Path:
        return self.path / "best"

    @property
    def videos(self) -> Path:
        return self.path / "videos"

    def lock(self) -> None:
        """Makes this process the only one that writes here; raises StorageError when another one does."""
        try:
            self._lock.acquire()
        except OSError as error:
            raise _failed(self.path, error) from error

    def unlock(self) -> None:
        self._lock.release()

    def write_config(self, values: Mapping[str, Any], comments: Mapping[str, str] | None = None) -> None:
        """Stores the resolved settings, each with the comment that says where it came from."""
        from sparring.config import dump_toml

        self._replace(CONFIG, dump_toml(values, comments))

    def read_config(self) -> dict[str, Any]:
        """The settings the run was started with."""
        path = self.path / CONFIG
        try:
            return tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise ConfigError(f"{str(self.path)!r} is not a run: it has no {CONFIG}.") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{str(path)!r} is not valid TOML: {error}") from error

    def write_status(self, status: Status) -> Status:
        """Replaces `status.json` in one step, stamped with this process and the time."""
        stamped = status._replace(updated=time.time(), pid=os.getpid())
        self._replace(STATUS, json.dumps(stamped._asdict(), indent=1) + "\n")
        return stamped

    def read_status(self) -> Status:
        """The last status written; `killed` when it says running and no process holds the lock."""
        status = _parse_status(self.path / STATUS)
        if status.state == "running" and not is_held(self.path / LOCK):
            return status._replace(state="killed")
        return status

    def _replace(self, name: str, text: str) -> None:
        try:
            replace_file(self.path / name, [text.encode("utf-8")])
        except OSError as error:
            raise _failed(self.path, error) from error


def create(
    algo: str, env: str, seed: int, *, root: Path | str = ROOT, path: Path | str | None = None, total: int = 0
) -> RunDirectory:
    """A new run's folder, locked: `path`, or a fresh name under `root`."""
    try:
        folder = _fresh(Path(root), default_name(algo, env, seed)) if path is None else _claim(Path(path))
        run = RunDirectory(folder)
        run.lock()
        for part in (run.checkpoints, run.videos):
            part.mkdir(exist_ok=True)
    except OSError as error:
        raise _failed(Path(path or root), error) from error
    run.write_status(Status(algo, env, seed, total=total, started=time.time()))
    return run


def find(name: Path | str, root: Path | str = ROOT) -> RunDirectory:
    """The run at a path, of a name under `root`, or the newest one for `last`."""
    root = Path(root)
    if str(name) == "last":
        newest = paths(root)
        if not newest:
            raise UnknownName(
                f"There are no runs under {str(root)!r} yet. Start one: sparring train ppo CartPole-v1"
            )
        return RunDirectory(newest[0])
    for candidate in (Path(name), root / name):
        if is_run(candidate):
            return RunDirectory(candidate)
    known = [path.name for path in paths(root)]
    raise UnknownName(
        f"There is no run {str(name)!r}, neither as a path nor under {str(root)!r}."
        f"{nearest(str(name), known)} See all with: sparring runs"
    )


def statuses(root: Path | str = ROOT) -> list[tuple[RunDirectory, Status]]:
    """All runs under a folder with their status, newest first."""
    runs = [RunDirectory(path) for path in paths(Path(root))]
    return [(run, run.read_status()) for run in runs]


def paths(root: Path) -> list[Path]:
    """The folders of all runs under a folder, newest first."""
    if not root.is_dir():
        return []
    found = [path for path in root.iterdir() if not path.name.startswith(".") and is_run(path)]
    return sorted(found, key=lambda path: (_parse_status(path / STATUS).started, path.name), reverse=True)


def is_run(path: Path) -> bool:
    """Whether a folder holds a run."""
    return path.is_dir() and ((path / STATUS).is_file() or (path / CONFIG).is_file())


def default_name(algo: str, env: str, seed: int, now: datetime | None = None) -> str:
    """`algo-env-seed-date-time`, with every character of the environment's id safe in a file name."""
    stamp = (now or datetime.now()).strftime("%Y%m%d-%H%M%S")
    return f"{_safe(algo).lower()}-{_safe(env)}-{seed}-{stamp}"


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("._-")[-80:] or "_"


def _fresh(root: Path, name: str) -> Path:
    """Makes a folder that did not exist; `-2`, `-3` … when runs start within one second."""
    root.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        path = root / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return path


def _claim(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    if is_run(path):
        raise StorageError(
            f"{str(path)!r} already holds a run. Continue it with: sparring resume {path}, or choose another "
            "folder."
        )
    return path


def _parse_status(path: Path) -> Status:
    """A status file, or an unknown status when it is missing or damaged: listing runs must not fail."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        known = {key: data[key] for key in Status._fields if key in data}
        status = Status(**{"algo": "?", "env": "?", "seed": 0, **known})
        return status if status.state in get_args(State) else status._replace(state="unknown")
    except (OSError, ValueError, TypeError):
        started = path.parent.stat().st_mtime if path.parent.is_dir() else 0.0
        return Status("?", "?", 0, state="unknown", started=started)


def _failed(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"The run's folder {str(path)!r} cannot be written: {error.strerror or error}. Free some space, or "
        "choose another folder with --run-dir."
    )
