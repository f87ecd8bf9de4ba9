"""Where a Gymnasium environment comes from, as data that can travel to a worker process.

Every source is called to build one environment. Imports no jax.
"""

from __future__ import annotations

import copy
import importlib
import importlib.metadata
import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium

from sparring.envs.atari import MOST_NOOPS, LateStart
from sparring.errors import (
    ConfigError,
    EnvironmentFailure,
    MissingExtra,
    SparringError,
    UnknownName,
    missing_extra,
    nearest,
)
from sparring.reference import load

# What an import error mentions, and the extra that brings it.
EXTRAS = (
    ("box2d", "Box2D", "box2d"),
    ("swig", "Box2D", "box2d"),
    ("mujoco", "mujoco", "mujoco"),
    ("ale_py", "ale_py", "atari"),
    ("ale-py", "ale_py", "atari"),
    ("atari", "ale_py", "atari"),
    ("cv2", "opencv-python-headless", "atari"),
    ("opencv", "opencv-python-headless", "atari"),
    ("pygame", "pygame", "classic"),
)

ATARI_RAM = re.compile(r"(ALE/\w+|\w+)-ram((?:NoFrameskip)?-v[045])")


@dataclass(frozen=True)
class GymId:
    """An id in Gymnasium's registry with keyword arguments.

    The wrappers that `gymnasium.make` adds are left out: the time limit is kept by the rows that step the
    environment, and the checks belong to `check-env`.
    """

    id: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    atari_wrap: bool = False
    """Atari preprocessing: up to 30 no-ops, skip 4; of the screen the maximum of 2 frames, 84 x 84 grey"""
    life_ends_episode: bool = False

    @property
    def label(self) -> str:
        return self.id

    def registered(self) -> Any:
        """Gymnasium's specification of the id; `ALE/Pong-ram-v5` is `ALE/Pong-v5` seen through its RAM, and
        so are the older `Pong-ram-v4` and `Pong-ramNoFrameskip-v4`."""
        _register_atari(self.id)
        try:
            ram = ATARI_RAM.fullmatch(self.id)
            if ram is None or self.id in gymnasium.registry:
                return gymnasium.spec(self.id)
            spec = copy.deepcopy(gymnasium.spec(ram[1] + ram[2]))
            spec.kwargs["obs_type"] = "ram"
            return spec
        except gymnasium.error.DeprecatedEnv as error:
            raise UnknownName(f"{self.id!r} does not exist in this Gymnasium any more. {error}") from error
        except gymnasium.error.UnregisteredEnv as error:
            if _is_atari(self.id) and importlib.util.find_spec("ale_py") is None:
                raise missing_extra("ale_py", "atari") from error
            raise UnknownName(
                f"Gymnasium knows no environment {self.id!r}.{nearest(self.id, gymnasium.registry)}"
            ) from error
        except ImportError as error:  # "module:Env-v0" imports the module first
            raise UnknownName(f"{self.id!r} cannot be registered: {error}") from error

    def __call__(self) -> Any:
        spec = copy.deepcopy(self.registered())
        spec.order_enforce = False
        kwargs = dict(self.kwargs)
        ram = (spec.kwargs | kwargs).get("obs_type") == "ram"
        if self.atari_wrap:
            kwargs.setdefault("frameskip", 4 if ram else 1)
        try:
            env = gymnasium.make(spec, max_episode_steps=-1, disable_env_checker=True, **kwargs)
            if not self.atari_wrap:
                return env
            if not ram:
                return self._preprocess(env)
            if self.life_ends_episode:
                raise ConfigError(f"life_ends_episode is for screens: leave it out for {self.id}.")
            return LateStart(env)
        except SparringError:
            raise
        except Exception as error:
            raise explain(self.id, self.kwargs, error) from error

    def _preprocess(self, env: Any) -> Any:
        return gymnasium.wrappers.AtariPreprocessing(
            env,
            noop_max=MOST_NOOPS,
            frame_skip=4,
            screen_size=84,
            terminal_on_life_loss=self.life_ends_episode,
            grayscale_obs=True,
            grayscale_newaxis=True,
        )


@dataclass(frozen=True)
class InFile:
    """A callable in the user's own file that returns an environment: `file.py:name`."""

    reference: str
    kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return self.reference

    def __call__(self) -> Any:
        return load(self.reference)(**self.kwargs)


@dataclass(frozen=True)
class Factory:
    """A callable that returns an environment; it reaches a worker only when it can be imported there."""

    function: Callable[[], Any]

    @property
    def label(self) -> str:
        return getattr(self.function, "__qualname__", type(self.function).__name__)

    def __call__(self) -> Any:
        return self.function()

    @property
    def importable(self) -> bool:
        """Whether another process can find the function by its module and name."""
        module, name = getattr(self.function, "__module__", None), getattr(self.function, "__qualname__", "")
        return bool(module) and "<" not in name and "." not in name

    @property
    def in_main(self) -> bool:
        """Whether the function lives in the script itself, which a worker would have to import again."""
        return getattr(self.function, "__module__", None) == "__main__"


def explain(label: str, kwargs: dict[str, Any], error: Exception) -> SparringError:
    """What to tell the user when an environment could not be built."""
    text = str(error)
    if isinstance(error, gymnasium.error.DependencyNotInstalled | ModuleNotFoundError):
        said = text.lower()
        for part in (said.partition(" is not installed")[0], said):  # "pygame is not installed, … [box2d]"
            for hint, package, extra in EXTRAS:
                if hint in part:
                    return missing_extra(package, extra)
        name = getattr(error, "name", None) or "a package"
        return MissingExtra(f"{label!r} needs {name}, which is not installed: {text}")
    if isinstance(error, ImportError):  # Gymnasium's MuJoCo v2 and v3 raise it to say that they moved
        return UnknownName(f"{label!r} does not exist in this Gymnasium any more: {text}")
    if isinstance(error, TypeError) and "argument" in text:
        return ConfigError(f"{label!r} does not take these arguments {kwargs!r}: {text}. Mend env_kwargs.")
    return EnvironmentFailure(f"{label!r} could not be built: {type(error).__name__}: {text}")


def _is_atari(env_id: str) -> bool:
    """Whether an id that nobody registered can only be one of ale_py's."""
    base = env_id.partition("-v")[0]
    old = base.endswith(("NoFrameskip", "Deterministic")) or ATARI_RAM.fullmatch(env_id) is not None
    return old or env_id.startswith("ALE/")


def _register_atari(env_id: str) -> None:
    """Atari ids exist only once ale_py is imported."""
    missing = _is_atari(env_id) and env_id not in gymnasium.registry
    if missing and importlib.util.find_spec("ale_py") is not None:
        ale = importlib.import_module("ale_py")
        ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)  # a banner for every row otherwise
        gymnasium.register_envs(ale)


def legacy_gym() -> str | None:
    """A sentence about a legacy `gym` beside gymnasium, found without importing it, or None."""
    if importlib.util.find_spec("gym") is None:
        return None
    try:
        version = importlib.metadata.version("gym")
    except importlib.metadata.PackageNotFoundError:
        version = "of unknown version"
    return (
        f"The legacy package gym {version} is installed beside gymnasium. It is unmaintained, its `step` "
        "returns four values and it does not tell truncation from termination. sparring never imports it: "
        "write `import gymnasium as gym`, and `pip uninstall gym` when nothing else needs it."
    )


def refuse_legacy(env: Any) -> None:
    """Raises when an object is an environment of the legacy gym package."""
    if any(base.__module__.partition(".")[0] == "gym" for base in type(env).__mro__):
        raise EnvironmentFailure(
            f"{type(env).__name__} is an environment of the legacy gym package, which cannot tell truncation "
            "from termination. Make it with `gymnasium.make`, or convert it with shimmy: "
            "`shimmy.GymV21CompatibilityV0(env=env)`."
        )
