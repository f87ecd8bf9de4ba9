"""`sparring doctor`: this machine and installation, with a fix for every problem."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sparring.cli.output import Output, paragraph
from sparring.cli.parser import Options, Parser
from sparring.evaluation import graphics

EXTRAS = {
    "classic": ("pygame",),
    "box2d": ("Box2D",),
    "mujoco": ("mujoco",),
    "atari": ("ale_py", "cv2"),
    "envpool": ("envpool",),
    "video": ("av", "pygame"),
    "plot": ("matplotlib",),
    "track": ("tensorboardX",),
    "wandb": ("wandb",),
    "hub": ("huggingface_hub",),
    "export": ("flatbuffers",),
    "parquet": ("pyarrow",),
    "sweep": ("optuna",),
}
PACKAGES = ("sparring", "jax", "jaxlib", "equinox", "optax", "numpy", "gymnasium", "safetensors")
LITTLE = 2 * 2**30
"""Bytes of disk or memory below which a run may not end well."""


class Symptom(NamedTuple):
    """One thing that was looked at."""

    name: str
    level: Literal["ok", "warning", "problem"]
    found: str
    fix: str = ""


def parser() -> Parser:
    return Parser("doctor", "Look at this machine and installation, and say what to fix.")


def run(options: Options, out: Output) -> int:
    symptoms = []
    for look in (python, packages, extras, legacy_gym, opencv, memory, disk, video, gl, devices, speed):
        try:
            found = list(look())
        except Exception as error:  # noqa: BLE001  (a doctor reports whatever breaks)
            found = [Symptom(look.__name__, "problem", f"{type(error).__name__}: {error}", "see the message")]
        for symptom in found:
            mark = {"ok": "ok     ", "warning": "warning", "problem": "PROBLEM"}[symptom.level]
            fix = f" → {symptom.fix}" if symptom.fix else ""
            out.say(paragraph(f"{mark} {symptom.name:<9} {symptom.found}{fix}", 18))
        symptoms += found
    problems = sum(symptom.level == "problem" for symptom in symptoms)
    out.say("No problems." if not problems else f"{problems} problems.")
    out.result({"ok": not problems, "checks": [symptom._asdict() for symptom in symptoms]})
    return 1 if problems else 0


def python() -> Iterator[Symptom]:
    version = platform.python_version()
    system = f"{platform.system()} {platform.machine()}, {_cores()} cores"
    yield Symptom("python", "ok", f"{version} on {system}")


def packages() -> Iterator[Symptom]:
    found = {name: _version(name) for name in PACKAGES}
    yield Symptom("packages", "ok", ", ".join(f"{n} {v}" for n, v in found.items() if v))
    for name in (name for name, version in found.items() if version is None):
        yield Symptom("packages", "problem", f"{name} is not installed", f"pip install {name}")
    jax, jaxlib = found["jax"], found["jaxlib"]
    if jax and jaxlib and jax.split(".")[:2] != jaxlib.split(".")[:2]:
        yield Symptom(
            "packages",
            "problem",
            f"jax {jax} and jaxlib {jaxlib} do not belong together",
            "pip install -U jax jaxlib",
        )


def extras() -> Iterator[Symptom]:
    present = [name for name, needs in EXTRAS.items() if all(map(importlib.util.find_spec, needs))]
    absent = [name for name in EXTRAS if name not in present]
    yield Symptom("extras", "ok", f"installed: {', '.join(present) or 'none'}")
    if absent:
        yield Symptom(
            "extras", "ok", f"absent: {', '.join(absent)}", f"pip install 'sparring[{','.join(absent)}]'"
        )


def legacy_gym() -> Iterator[Symptom]:
    if importlib.util.find_spec("gym") is None:
        return
    from sparring.envs.source import legacy_gym as sentence

    yield Symptom("gym", "warning", sentence() or "", "pip uninstall gym")


def opencv() -> Iterator[Symptom]:
    """OpenCV's several packages overwrite each other, and old ones break with numpy 2."""
    names = (
        "opencv-python",
        "opencv-python-headless",
        "opencv-contrib-python",
        "opencv-contrib-python-headless",
    )
    there = [name for name in names if _version(name)]
    if len(there) > 1:
        fix = f"pip uninstall {' '.join(there)}; pip install opencv-python-headless"
        yield Symptom("opencv", "warning", f"{' and '.join(there)} overwrite each other", fix)
    if there:
        try:
            import cv2

            yield Symptom("opencv", "ok", f"cv2 {cv2.__version__} works with numpy {_version('numpy')}")
        except Exception as error:  # noqa: BLE001  (a binary built for another numpy fails in its own ways)
            fix = "pip install -U opencv-python-headless"
            yield Symptom("opencv", "problem", f"cv2 cannot be imported: {error}", fix)


def memory() -> Iterator[Symptom]:
    table = Path("/proc/meminfo")
    if not table.is_file():
        return
    sizes = {
        key: int(value.split()[0]) * 1024
        for key, _, value in (line.partition(":") for line in table.read_text().splitlines())
        if value.split()
    }
    free, total = sizes.get("MemAvailable", 0), sizes.get("MemTotal", 0)
    text = f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB available"
    if free < LITTLE:
        yield Symptom("memory", "warning", text, "close other programs or use fewer environments")
    else:
        yield Symptom("memory", "ok", text)


def disk() -> Iterator[Symptom]:
    usage = shutil.disk_usage(Path.cwd())
    text = f"{usage.free / 2**30:.1f} GiB free where runs/ lies"
    if usage.free < LITTLE:
        yield Symptom("disk", "warning", text, "free some space, or use --run-dir on another disk")
    elif not os.access(Path.cwd(), os.W_OK):
        yield Symptom(
            "disk", "problem", "this folder cannot be written to", "change folder, or use --run-dir"
        )
    else:
        yield Symptom("disk", "ok", text)


def video() -> Iterator[Symptom]:
    if importlib.util.find_spec("av") is None:
        yield Symptom(
            "video", "warning", "PyAV is not installed: no `record`", "pip install 'sparring[video]'"
        )
        return
    import av

    if "libx264" in av.codecs_available:
        yield Symptom("video", "ok", f"PyAV {av.__version__} with libx264")
    else:
        yield Symptom("video", "problem", "PyAV has no libx264", "pip install --force-reinstall av")


def gl() -> Iterator[Symptom]:
    screen = "a display" if graphics.has_display() else "no display"
    if importlib.util.find_spec("mujoco") is None:
        yield Symptom("graphics", "ok", f"{screen}; MuJoCo is not installed")
        return
    backend = graphics.headless_backend()
    if backend is not None:
        yield Symptom("graphics", "ok", f"{screen}; MuJoCo draws headless with {backend}")
        return
    packages = " or ".join(f"apt install {names}" for names in graphics.BACKENDS.values())
    yield Symptom("graphics", "warning", f"{screen}; MuJoCo cannot draw without one", packages)


def devices() -> Iterator[Symptom]:
    import jax

    found = jax.devices()
    kinds = ", ".join(sorted({f"{device.platform} ({device.device_kind})" for device in found}))
    yield Symptom("devices", "ok", f"jax computes on {len(found)} × {kinds}")
    if found[0].platform == "cpu" and shutil.which("nvidia-smi"):
        fix = "pip install 'sparring[cuda]'"
        yield Symptom("devices", "warning", "there is an NVIDIA driver, but jax sees no GPU", fix)


def speed() -> Iterator[Symptom]:
    import jax
    import jax.numpy as jnp

    @jax.jit
    def multiply(matrix: Any) -> Any:
        return matrix @ matrix

    size = 1024
    matrix = jnp.ones((size, size))
    compiling = _seconds(lambda: multiply.lower(matrix).compile())
    multiply(matrix).block_until_ready()
    multiplying = min(_seconds(lambda: multiply(matrix).block_until_ready()) for _ in range(3))
    rate = 2 * size**3 / multiplying / 1e9
    yield Symptom(
        "speed",
        "ok",
        f"a compile took {compiling * 1e3:.0f} ms, a product of {size}² {multiplying * 1e3:.1f} ms "
        f"({rate:.0f} GFLOP/s)",
    )


def _seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
