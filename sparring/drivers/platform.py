"""What jax must be told before its backend starts."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax

from sparring.errors import ConfigError
from sparring.ops.minibatch import ALONE, shared_rows
from sparring.runs.durable import replace_file
from sparring.runs.provenance import processor

# Programs that run once: compiling them well would cost more than running them badly.
ONCE: dict[str, Any] = {"xla_backend_optimization_level": 0}


def once_options() -> dict[str, Any] | None:
    """Compiler options for a program that runs once; only the CPU backend gains from them."""
    return ONCE if jax.default_backend() == "cpu" else None


CACHE_BYTES = 1 << 30
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"


def prepare(device: str = "auto", large: bool = False, alone: bool = False) -> None:
    """Chooses the device and makes small CPU calls cheap.

    They run synchronously, which halves the cost of acting, and on the calling thread: handing the kernels
    of a small network to a pool costs more than computing them. `large` networks (images) keep the pool.
    `alone` leaves the process without one, for a single run whose products nobody would divide: what is
    left to share are sums over some 10,000 numbers, and where the cores are not all free waiting for each
    other takes a third of the time.
    OpenBLAS, which finds the rank of features now and then, keeps to that thread too: its pool goes on
    spinning for milliseconds after every call and takes the core that learning needs.
    Without effect on what jax has already fixed by starting its backend, on an OpenBLAS that is loaded, and
    on a choice made in XLA_FLAGS, PJRT_NPROC or OPENBLAS_NUM_THREADS.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    flags = os.environ.get("XLA_FLAGS", "")
    if not large and "xla_cpu_multi_thread_eigen" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {ONE_THREAD}".strip()
    if alone and not large:
        os.environ.setdefault("PJRT_NPROC", "1")
    if device not in ("auto", "cpu", "cuda", "gpu", "tpu"):
        raise ConfigError(f"device must be auto, cpu or cuda, got {device!r}.")
    if device == "cpu":
        jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    keep_programs()
    if device in ("cuda", "gpu") and jax.default_backend() == "cpu":
        raise ConfigError(
            "device='cuda' was asked for, but jax sees no GPU. Install it with: "
            "pip install 'sparring[cuda]', or use device='cpu'."
        )


def divided(config: Any) -> bool:
    """Whether cores share a product of an update's hidden layers.

    Batches of sequences, of GDI or for a core, are taken for large ones.
    """
    rows = getattr(config, "batch_size", None)
    if not rows or getattr(config, "core", "none") != "none" or hasattr(config, "sample_reuse"):
        return True
    layers = [getattr(config, name) for name in ("pi", "vf", "qf", "net_arch") if hasattr(config, name)]
    weights = max((a * b for each in layers for a, b in pairwise(each)), default=0)
    return shared_rows(rows, weights) * weights > ALONE


def keep_programs() -> None:
    """Keeps compiled programs on disk, so that the second run of a kind starts in a second or two.

    Under SPARRING_CACHE_DIR (empty: off), else the user's cache folder, apart for each kind of processor,
    at most a gibibyte. A cache that the user chose in jax itself is left alone.
    """
    chosen = os.environ.get("SPARRING_CACHE_DIR")
    if chosen == "" or jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    base = chosen or os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    kind = hashlib.sha256(f"{platform.machine()} {processor('flags')}".encode()).hexdigest()[:12]
    folder = Path(base) / "sparring" / f"xla-{kind}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # nowhere to keep them: everything works, and compiles each time
    prune(folder, CACHE_BYTES)
    publish_whole()
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def publish_whole() -> None:
    """Lets jax put entries into its cache of programs by a rename.

    It writes them in place: another process that starts meanwhile reads half of one, and what a killed writer
    leaves is never replaced, only warned about at every start. A cache with a limit of its own has a lock.
    """
    try:
        from jax._src.lru_cache import LRUCache
    except ImportError:  # another jax: it writes as it does
        return
    put = LRUCache.put
    if put.__name__ == "put_whole":
        return

    def put_whole(self: LRUCache, key: str, value: bytes) -> None:
        path = Path(self.path) / f"{key}-cache"
        if self.eviction_enabled:
            put(self, key, value)
        elif not path.exists():
            replace_file(path, [value])

    LRUCache.put = put_whole  # type: ignore[method-assign]


def prune(folder: Path, limit: int) -> None:
    """Deletes the oldest files until the rest fits; another process may do the same."""
    entries = []
    for path in folder.glob("*"):
        with contextlib.suppress(FileNotFoundError):
            entries.append((path.stat().st_mtime, path.stat().st_size, path))
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total <= limit:
            return
        path.unlink(missing_ok=True)
        total -= size


class _Compiling:
    """When this process traced, lowered or compiled: disjoint intervals in order of time, and their sum."""

    def __init__(self) -> None:
        self.intervals: list[tuple[float, float]] = []
        self.seconds = 0.0

    def note(self, start: float, end: float) -> None:
        """Adds an interval; an outer trace ends after the inner ones it contains."""
        while self.intervals and self.intervals[-1][1] > start:
            earlier, until = self.intervals.pop()
            self.seconds -= until - earlier
            start = min(start, earlier)
        self.intervals.append((start, end))
        self.seconds += end - start


_compiling = _Compiling()


def _note_compilation(event: str, duration_secs: float, **_: str | int) -> None:
    if event.startswith("/jax/core/compile/"):
        end = time.perf_counter()
        _compiling.note(end - duration_secs, end)


def compile_seconds() -> float:
    """Seconds that this process has spent compiling so far; cheap enough to ask in every iteration."""
    return _compiling.seconds


jax.monitoring.register_event_duration_secs_listener(_note_compilation)
