"""`sparring doctor`: this machine and installation, with a fix for every problem."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sparring import secrets
from sparring.cli.output import Output, paragraph
from sparring.cli.parser import Options, Parser, UsageError
from sparring.cli.pins import installed, unmet
from sparring.evaluation import graphics
from sparring.machine import usable_cores

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
    "onnx": ("onnx", "onnxruntime"),
    "parquet": ("pyarrow",),
    "sweep": ("optuna",),
}
PACKAGES = ("sparring", "jax", "jaxlib", "equinox", "optax", "numpy", "gymnasium", "safetensors")
DEEP = "ppo,dqn,sac"
"""Algorithms that --deep examines: one of each family."""
LITTLE = 2 * 2**30
"""Bytes of disk or memory below which a run may not end well."""
MOST_PINS = 8
"""Clashes of versions that are listed."""


class Symptom(NamedTuple):
    """One thing that was looked at."""

    name: str
    level: Literal["ok", "warning", "problem"]
    found: str
    fix: str = ""


def parser() -> Parser:
    made = Parser(
        "doctor",
        "Look at this machine and installation, and say what to fix. --deep also trains on the probe\n"
        "environments, where every right answer is known, and says which part of an algorithm fails first.",
        ("doctor", "doctor --deep ppo"),
    )
    made.add_argument(
        "--deep",
        nargs="?",
        const=DEEP,
        metavar="ALGO,…",
        help=f"train algorithms on the probes (default {DEEP}); takes minutes the first time",
    )
    return made


def run(options: Options, out: Output) -> int:
    algorithms = [] if options.deep is None else [name for name in options.deep.split(",") if name]
    if options.deep is not None and not algorithms:
        raise UsageError(f"--deep names no algorithm. Write --deep ppo, or --deep alone for {DEEP}.")
    classes = find_algorithms(algorithms)
    symptoms = []
    for look in LOOKS:
        try:
            found = list(look())
        except Exception as error:  # noqa: BLE001  (a doctor reports whatever breaks)
            found = [Symptom(look.__name__, "problem", f"{type(error).__name__}: {error}", "see the message")]
        for symptom in found:
            mark = {"ok": "ok     ", "warning": "warning", "problem": "PROBLEM"}[symptom.level]
            fix = f" → {symptom.fix}" if symptom.fix else ""
            out.say(paragraph(secrets.redact(f"{mark} {symptom.name:<9} {symptom.found}{fix}"), 18))
        symptoms += found
    problems = sum(symptom.level == "problem" for symptom in symptoms)
    out.say("No problems." if not problems else f"{problems} problem{'s' if problems > 1 else ''}.")
    deep = {name: examine(name, cls, out) for name, cls in classes.items()}
    sick = [name for name, found in deep.items() if not found["ok"]]
    result: dict[str, Any] = {
        "ok": not problems and not sick,
        "checks": [
            s._replace(found=secrets.redact(s.found), fix=secrets.redact(s.fix))._asdict() for s in symptoms
        ],
    }
    out.result(result | ({"deep": deep} if deep else {}))
    return 1 if problems or sick else 0


def find_algorithms(names: list[str]) -> dict[str, Any]:
    """The classes of algorithms, before anything takes time; an unknown name is an error."""
    if not names:
        return {}
    from sparring.model import algorithm_class

    return {name: algorithm_class(name) for name in names}


def examine(algorithm: str, cls: Any, out: Output) -> dict[str, Any]:
    """Trains an algorithm on the probes in order, up to the first one that fails."""
    from sparring.drivers.platform import prepare
    from sparring.evaluation import checks

    prepare("auto")
    verdicts = []
    for number, name in enumerate(checks.PROBES, 1):
        out.say(f"{algorithm}: probe {number} of {len(checks.PROBES)}, {name} …")
        began = time.perf_counter()
        verdict = checks.run_probe(cls, name)
        verdicts.append(verdict)
        measured = verdict.measured if verdict.result != "skip" else "not for this algorithm"
        out.say(f"  {verdict.result} in {time.perf_counter() - began:.0f} s: {measured}")
        if verdict.result == "fail":
            break
    sentence = checks.localise(algorithm, verdicts)
    out.say(paragraph(sentence))
    failed = next((v.probe for v in verdicts if v.result == "fail"), None)
    return {
        "ok": failed is None and any(v.result == "pass" for v in verdicts),
        "first_failure": failed,
        "sentence": sentence,
        "probes": [v._asdict() for v in verdicts],
    }


def python() -> Iterator[Symptom]:
    version = platform.python_version()
    system = f"{platform.system()} {platform.machine()}, {usable_cores()} cores"
    yield Symptom("python", "ok", f"{version} on {system}")


def packages() -> Iterator[Symptom]:
    found = {name: installed(name) for name in PACKAGES}
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


def _present() -> list[str]:
    """The extras whose modules are installed."""
    return [name for name, needs in EXTRAS.items() if all(map(importlib.util.find_spec, needs))]


def extras() -> Iterator[Symptom]:
    present = _present()
    absent = [name for name in EXTRAS if name not in present]
    yield Symptom("extras", "ok", f"installed: {', '.join(present) or 'none'}")
    if absent:
        yield Symptom(
            "extras", "ok", f"absent: {', '.join(absent)}", f"pip install 'sparring[{','.join(absent)}]'"
        )


def pins() -> Iterator[Symptom]:
    """Versions that sparring, its installed extras and their own packages ask for."""
    if importlib.util.find_spec("packaging") is None:
        yield Symptom("pins", "ok", "not checked: packaging is not installed", "pip install packaging")
        return
    found = list(unmet("sparring", _present()))
    for pin in found[:MOST_PINS]:
        fix = f"pip install '{pin.needs}'"
        yield Symptom("pins", "problem" if pin.by == "sparring" else "warning", pin.text, fix)
    if len(found) > MOST_PINS:
        more = len(found) - MOST_PINS
        yield Symptom("pins", "warning", f"and {more} more packages do not fit", "pip check")
    if not found:
        yield Symptom("pins", "ok", "every package has the versions that it asks for")


def cache() -> Iterator[Symptom]:
    """Where compiled programs are kept between runs."""
    import jax

    from sparring.drivers.platform import CACHE_BYTES, keep_programs

    keep_programs()
    folder = jax.config.values["jax_compilation_cache_dir"]
    if folder is None:
        off = os.environ.get("SPARRING_CACHE_DIR") == ""
        why = "SPARRING_CACHE_DIR is empty" if off else "its folder cannot be made"
        fix = "unset SPARRING_CACHE_DIR" if off else "set SPARRING_CACHE_DIR to a folder that can be written"
        yield Symptom("cache", "warning", f"programs are compiled anew in every run: {why}", fix)
        return
    place = Path(folder)
    if place.is_dir() and not os.access(place, os.W_OK):
        fix = "set SPARRING_CACHE_DIR to a folder that can be written"
        yield Symptom("cache", "warning", f"{folder} cannot be written to", fix)
        return
    sizes = [path.stat().st_size for path in place.glob("*") if path.is_file()]
    held = f"{len(sizes)} files, {sum(sizes) / 2**20:.0f} of {CACHE_BYTES / 2**20:.0f} MiB"
    yield Symptom("cache", "ok", f"compiled programs are kept in {folder} ({held})")


def tokens() -> Iterator[Symptom]:
    """Which services this machine can log in to; the tokens themselves are never read or shown."""
    known = [name for name in secrets.VARIABLES if os.environ.get(name)]
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    places = {"the Hub's login file": home / "token", "~/.netrc": Path.home() / ".netrc"}
    known += [name for name, place in places.items() if place.is_file()]
    yield Symptom("tokens", "ok", f"present: {', '.join(known) or 'none'}")
    mode = os.environ.get("WANDB_MODE", "")
    if mode:
        yield Symptom("tokens", "ok", f"WANDB_MODE is {mode[:20]!r}")


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
    there = [name for name in names if installed(name)]
    if len(there) > 1:
        fix = f"pip uninstall {' '.join(there)}; pip install opencv-python-headless"
        yield Symptom("opencv", "warning", f"{' and '.join(there)} overwrite each other", fix)
    if there:
        try:
            import cv2

            yield Symptom("opencv", "ok", f"cv2 {cv2.__version__} works with numpy {installed('numpy')}")
        except Exception as error:  # noqa: BLE001  (a binary built for another numpy fails in its own ways)
            fix = "pip install -U opencv-python-headless"
            yield Symptom("opencv", "problem", f"cv2 cannot be imported: {error}", fix)


def memory() -> Iterator[Symptom]:
    from sparring.replay.size import free_bytes

    free = free_bytes()
    if free is None:
        return
    text = f"{free / 2**30:.1f} GiB available to this process"
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
    held = (found[0].memory_stats() or {}).get("bytes_limit") if found[0].platform != "cpu" else None
    if held:
        share = "in advance" if os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE") != "false" else "as needed"
        yield Symptom("devices", "ok", f"jax takes up to {held / 2**30:.1f} GiB of its memory, {share}")
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


LOOKS: tuple[Callable[[], Iterator[Symptom]], ...] = (
    python,
    packages,
    extras,
    pins,
    legacy_gym,
    opencv,
    memory,
    disk,
    tokens,
    video,
    gl,
    devices,
    cache,
    speed,
)
"""Everything that is looked at, what needs jax last."""
