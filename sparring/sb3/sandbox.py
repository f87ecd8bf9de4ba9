"""A program in a process of its own: it gets a few files and limits, and hands files back."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, NamedTuple

from sparring.errors import SparringError
from sparring.sb3 import confined

UNSHARE = ("--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--")
"""No network interfaces, and a tree of processes that ends as a whole; needs no privileges where allowed."""
TOLD = 12
"""Lines of what a failed program said that are shown."""


class SandboxError(SparringError):
    """A confined program that failed, took too long or handed back something else than was asked for."""

    exit_code = 3


class Limits(NamedTuple):
    """What a confined program may use."""

    seconds: int = 300
    memory: int = 16 * 2**30
    """bytes of address space; torch alone maps several"""
    file_size: int = 2**30


class Returned(NamedTuple):
    """What a program handed back, and how it was confined."""

    files: dict[str, bytes]
    protection: str


def run(
    command: Sequence[str],
    inputs: Mapping[str, Path | bytes],
    outputs: Mapping[str, int],
    limits: Limits | None = None,
) -> Returned:
    """Runs a program in an empty folder with these files, and reads those it left, up to so many bytes each.

    A file that is missing is left out; the caller knows which it needs.
    """
    limits = limits or Limits()
    with tempfile.TemporaryDirectory(prefix="sparring-apart-") as name:
        folder = Path(name)
        for target, source in inputs.items():
            if isinstance(source, bytes):
                (folder / target).write_bytes(source)
            else:
                shutil.copyfile(source, folder / target)
        _execute(command, folder, limits)
        found = {target: _read(folder / target, most) for target, most in outputs.items()}
        return Returned({k: v for k, v in found.items() if v is not None}, protection())


@cache
def unshare() -> tuple[str, ...]:
    """The command that takes the network away; empty where it does not work without privileges."""
    program = shutil.which("unshare", path="/usr/bin:/bin")
    if program is None:
        return ()
    command = (program, *UNSHARE)
    try:
        tried = subprocess.run(
            [*command, "/bin/true"], stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return command if tried.returncode == 0 else ()


def protection() -> str:
    """How a program is confined on this machine, in words."""
    network = "no network" if unshare() else "THE NETWORK IS REACHABLE (unshare does not work here)"
    files = (
        "writes only in its own folder"
        if confined.landlock()
        else "CAN WRITE WHAT YOU CAN WRITE (no Landlock here)"
    )
    return f"{network}, {files}, a clean environment, limits on time and memory"


def _execute(command: Sequence[str], folder: Path, limits: Limits) -> None:
    wrapper = [*unshare(), sys.executable, "-I", "-B", confined.__file__, str(folder)]
    numbers = [str(limits.seconds), str(limits.memory), str(limits.file_size)]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [*wrapper, *numbers, *command],
            cwd=folder,
            env=_environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            close_fds=True,
            start_new_session=True,
        )
        try:
            finished = _ended(process.pid, limits.seconds)
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # and whatever it started in its session
            code = process.wait()
        if not finished:
            raise SandboxError(
                f"{Path(command[0]).name} did not finish within {limits.seconds} seconds and was ended. If "
                "the machine is busy give it more time: --timeout."
            )
        if code:
            ending = f"was ended by signal {-code}" if code < 0 else f"ended with {code}"
            words = _last_words(said)
            raise SandboxError(f"{Path(command[0]).name} {ending}. It said last:\n{words}")


def _ended(pid: int, seconds: float) -> bool:
    """Waits for a child; it is not reaped, so that its number stays its own until its group was ended."""
    deadline = time.monotonic() + seconds
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _environment(folder: Path) -> dict[str, str]:
    """Nothing of ours: no tokens, no paths, no proxies."""
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "LANG": "C.UTF-8",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "MPLCONFIGDIR": str(folder),
        "SDL_VIDEODRIVER": "dummy",
    }


def _read(path: Path, most: int) -> bytes | None:
    """A plain file; links and files that are too large are refused."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SandboxError(f"{path.name} is not a plain file: {error.strerror}.") from error
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_nlink != 1:
            raise SandboxError(f"{path.name} is not a plain file.")
        if about.st_size > most:
            raise SandboxError(f"{path.name} has {about.st_size:,} bytes; {most:,} are accepted.")
        return file.read(most)


def _last_words(said: IO[bytes]) -> str:
    """The end of what a program said, without anything that a terminal would obey."""
    said.seek(max(said.seek(0, os.SEEK_END) - 8192, 0))
    text = said.read().decode("utf-8", "replace")
    lines = ["".join(c if c.isprintable() else " " for c in line)[:300] for line in text.splitlines()]
    return (
        "\n".join(f"  {line}" for line in [line for line in lines if line.strip()][-TOLD:]) or "  (nothing)"
    )
