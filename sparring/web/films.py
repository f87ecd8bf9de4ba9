"""Films of a run as parts of a page: the first ones inside it, the others as links."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote


class Film(NamedTuple):
    """A film's name, its address in a page and its size; `embedded` when the address is the film itself."""

    run: int
    name: str
    address: str
    size: int
    embedded: bool


def films(folders: Sequence[Path], page: Path, room: int) -> list[Film]:
    """The MP4 files of runs' video folders, embedded while there is room for them, in bytes of files."""
    found = []
    for run, folder in enumerate(folders):
        for file in sorted(folder.rglob("*.mp4")):
            if not is_film(file, folder):
                continue
            size = file.stat().st_size
            embedded = size <= room
            room -= size if embedded else 0
            address = _embedded(file) if embedded else _link(file, page)
            found.append(Film(run, file.relative_to(folder).as_posix(), address, size, embedded))
    return found


def is_film(file: Path, folder: Path) -> bool:
    """Whether a file is an MP4 that lies in the folder: a link to something else is not published."""
    if not file.is_file() or not file.resolve().is_relative_to(folder.resolve()):
        return False
    with file.open("rb") as opened:
        return opened.read(8)[4:] == b"ftyp"


def _embedded(file: Path) -> str:
    return "data:video/mp4;base64," + base64.b64encode(file.read_bytes()).decode("ascii")


def _link(file: Path, page: Path) -> str:
    """The way from the page to the file; the leading dot keeps a name with a colon from being a scheme."""
    way = Path(os.path.relpath(file.resolve(), page.resolve().parent)).as_posix()
    return "./" + quote(way)
