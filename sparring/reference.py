"""Objects in a user's own file: `path/to/file.py:name`."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from sparring.errors import UnknownName, nearest


def is_reference(text: str) -> bool:
    """Whether the text names an object in a Python file."""
    path, colon, name = text.rpartition(":")
    return bool(colon) and path.endswith(".py") and name.isidentifier()


def load(reference: str) -> Any:
    """The object a `file.py:name` reference names; the file is executed once per process."""
    path, _, name = reference.rpartition(":")
    module = _module(Path(path))
    try:
        return getattr(module, name)
    except AttributeError:
        known = [key for key in vars(module) if not key.startswith("_")]
        raise UnknownName(f"{path} defines no {name!r}.{nearest(name, known)}") from None


def _module(path: Path) -> ModuleType:
    path = path.expanduser().resolve()
    if not path.is_file():
        raise UnknownName(f"There is no file {str(path)!r}; give the path of a Python file as file.py:name.")
    # The name holds the whole path, so that two files called env.py do not meet.
    name = f"sparring_user_file_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UnknownName(f"{str(path)!r} cannot be imported as a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses in the file look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
