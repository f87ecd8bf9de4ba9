"""Evaluation somewhere in a Ray cluster: snapshots travel as bytes to an actor that plays them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from sparring.background import BackgroundEvaluator, Request, RequestPlayer, Stage
from sparring.drivers.ray_library import end, library, losses
from sparring.envs.workers import THREAD_VARIABLES

Files = dict[str, bytes]
"""What lies in a folder, by path."""


class ClusterEvaluator(BackgroundEvaluator):
    """`BackgroundEvaluator` with its process on any node of the cluster; it makes no films."""

    def _start(self) -> None:
        self._pipe = self._process = Remote(self.stage)


class Remote:
    """An actor of Ray's that plays, as a process and the pipe to it."""

    pid: int | None = None
    """it may be on another machine"""
    exitcode: int | None = None

    def __init__(self, stage: Stage) -> None:
        self._ray = library()
        threads = dict.fromkeys(THREAD_VARIABLES, "1") | {"JAX_PLATFORMS": "cpu"}
        # It takes no core from actors, so that it never waits for a node with a free one.
        remote = self._ray.remote(RemotePlayer).options(num_cpus=0, runtime_env={"env_vars": threads})
        self._actor = remote.remote(stage)
        self._call: Any = None

    def send(self, request: Request | None) -> None:
        if request is not None:
            self._call = self._actor.play.remote(request, tuple(packed(place) for place in request.places))

    def poll(self, seconds: float) -> bool:
        ready, _ = self._ray.wait([self._call], timeout=seconds)
        return bool(ready)

    def recv(self) -> Any:
        try:
            return self._ray.get(self._call)
        except losses() as error:
            raise EOFError from error

    def join(self, seconds: float | None = None) -> None:
        """Nothing to wait for."""

    def close(self) -> None:
        self.kill()

    def kill(self) -> None:
        end(self._actor)


class RemotePlayer:
    """What runs in the cluster: plays each request."""

    def __init__(self, stage: Stage) -> None:
        from sparring.drivers.platform import prepare

        prepare("cpu")  # accelerators belong to the learner
        self._player = RequestPlayer(stage)

    def play(self, request: Request, snapshots: tuple[Files, ...]) -> tuple[Any, ...]:
        with tempfile.TemporaryDirectory(prefix="sparring-evaluation-") as folder:
            places = tuple(Path(folder) / str(i) for i in range(len(snapshots)))
            for place, files in zip(places, snapshots, strict=True):
                unpacked(files, place)
            return self._player.answer(request._replace(places=places))


def packed(folder: Path) -> Files:
    """All files of a folder."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def unpacked(files: Files, folder: Path) -> None:
    """A folder with these files."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
