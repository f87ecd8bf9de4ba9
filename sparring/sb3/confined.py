"""Starts a command that may not do much: limits of the system, and no writing outside one folder.

    python -I confined.py FOLDER SECONDS MEMORY FILE_SIZE COMMAND …

Imports the standard library only. Linux's Landlock, landlock(7), works without privileges where there is one.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import sys

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
PATH_BENEATH = 1
NO_NEW_PRIVS = 38

WRITE_FILE, REFER, TRUNCATE = 1 << 1, 1 << 13, 1 << 14
CHANGES = WRITE_FILE | sum(1 << bit for bit in range(4, 13))
"""Writing to files, and making or removing anything."""
CONNECT = 0b11
"""Binding and connecting TCP sockets."""
APART = 0b11
"""Abstract sockets and signals of other processes."""


def landlock() -> int:
    """The version of Landlock that this kernel speaks; 0 without one."""
    if not sys.platform.startswith("linux"):
        return 0
    return max(int(ctypes.CDLL(None).syscall(CREATE_RULESET, None, 0, 1)), 0)


def keep_inside(folder: str) -> None:
    """From here on this process and its children change files below the folder only."""
    version = landlock()
    if not version:
        return
    changes = CHANGES | (REFER if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0)
    rules = struct.pack("=QQQ", changes, CONNECT if version >= 4 else 0, APART if version >= 6 else 0)
    ruleset = _call(CREATE_RULESET, rules, 8 if version < 4 else 16 if version < 6 else 24, 0)
    for path, allowed in ((folder, changes), ("/dev/null", changes & (WRITE_FILE | TRUNCATE))):
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
        _call(ADD_RULE, ruleset, PATH_BENEATH, struct.pack("=Qi", allowed, parent), 0)
        os.close(parent)
    if ctypes.CDLL(None).prctl(NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError("prctl refused")
    _call(RESTRICT_SELF, ruleset, 0)


def limit(seconds: int, memory: int, file_size: int) -> None:
    """Processor time, address space, size of a file, open files, and no core dumps."""
    for kind, most in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, file_size),
        (resource.RLIMIT_NOFILE, 512),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (bound, bound))


def _call(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result = int(libc.syscall(number, *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"system call {number} failed")
    return result


def main() -> None:
    folder, seconds, memory, file_size, *command = sys.argv[1:]
    limit(int(seconds), int(memory), int(file_size))
    keep_inside(folder)
    os.execv(command[0], command)  # noqa: S606  (that is the point)


if __name__ == "__main__":
    main()
