"""The command line in this process: exit code, stdout and stderr of one command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from sparring.cli.main import main


class Said(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def last(self) -> dict[str, Any]:
        """The JSON object in the last line of stdout."""
        found: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return found

    @property
    def error(self) -> str:
        """Standard error with its line breaks undone."""
        return " ".join(self.err.split())


class Shell:
    """Runs commands and captures what they say."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: object) -> Said:
        self._capsys.readouterr()
        code = main([str(word) for word in words])
        said = self._capsys.readouterr()
        return Said(code, said.out, said.err)


def cached(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Settings with which jax compiles hastily, and once in this session."""
    return {
        "jax_disable_most_optimizations": True,
        "jax_compilation_cache_dir": str(tmp_path_factory.getbasetemp() / "compiled"),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }


@contextmanager
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Programs are compiled once and without optimisation; their random keys are checked elsewhere."""
    wanted = {"jax_debug_key_reuse": False, **cached(tmp_path_factory)}
    before = {name: jax.config.values[name] for name in wanted}
    for name, value in wanted.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
