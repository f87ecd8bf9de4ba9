"""Drawing without a screen: which OpenGL MuJoCo can use here, and whether there is a display."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from functools import cache

from sparring.errors import MissingExtra

BACKENDS = {"egl": "libegl1 libgl1-mesa-dri", "osmesa": "libosmesa6"}
"""MuJoCo's headless backends and the Debian packages that bring them, best first."""
PROBE = "import mujoco; c = mujoco.GLContext(8, 8); c.make_current(); c.free()"


def has_display() -> bool:
    """Whether a window can be opened."""
    if sys.platform in ("win32", "darwin"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


@cache
def headless_backend() -> str | None:
    """The first backend with which MuJoCo can draw here, tried in a process of its own."""
    for name in BACKENDS:
        try:
            done = subprocess.run(
                [sys.executable, "-c", PROBE],
                env={**os.environ, "MUJOCO_GL": name},
                capture_output=True,
                timeout=60,
                check=False,
            )
        except subprocess.TimeoutExpired:
            continue
        if done.returncode == 0:
            return name
    return None


def is_mujoco(env: str) -> bool:
    """Whether an id of Gymnasium's is a MuJoCo environment, found without importing mujoco."""
    if importlib.util.find_spec("gymnasium") is None or importlib.util.find_spec("mujoco") is None:
        return False
    import gymnasium

    registered = gymnasium.registry.get(env.removeprefix("gym:"))
    return "mujoco" in str(getattr(registered, "entry_point", ""))


def prepare(env: str) -> None:
    """Makes drawing work without a display: SDL without a window, and a backend for MuJoCo.

    Gymnasium reads MuJoCo's variable when it first draws; one that the user set is kept.
    """
    if has_display():
        return
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    if os.environ.get("MUJOCO_GL") or not is_mujoco(env):
        return
    found = headless_backend()
    if found is None:
        packages = " or ".join(f"`apt install {names}`" for names in BACKENDS.values())
        raise MissingExtra(
            f"{env} cannot be drawn: there is no display, and neither EGL nor OSMesa works here. On Debian "
            f"or Ubuntu: {packages}."
        )
    os.environ["MUJOCO_GL"] = found
