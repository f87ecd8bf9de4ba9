"""Objects in a user's own file, named `path/to/file.py:Name`."""

from __future__ import annotations

import importlib.util
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from sparring.errors import UnknownName, nearest


def is_reference(text: str) -> bool:
    """Whether a text names an object in a file."""
    path, _, name = text.rpartition(":")
    return path.endswith(".py") and name.isidentifier()


def load(reference: str) -> Any:
    """The object; the file is run once per process."""
    path, _, name = reference.rpartition(":")
    module = _module(Path(path).resolve())
    if not hasattr(module, name):
        known = [k for k in vars(module) if not k.startswith("_")]
        raise UnknownName(f"{path!r} has no {name!r}.{nearest(name, known)}")
    return getattr(module, name)


@lru_cache(maxsize=None)
def _module(path: Path) -> Any:
    if not path.is_file():
        raise UnknownName(f"There is no file {str(path)!r}.")
    name = f"sparring_user_{path.stem}_{abs(hash(path)):x}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UnknownName(f"{str(path)!r} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
