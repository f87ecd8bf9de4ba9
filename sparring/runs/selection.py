"""Which runs are meant: a path, a name, `last`, several with commas, or a filter: `algo=ppo env=Hopper*`.

No numpy here: `sparring runs` lists runs quickly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from sparring.errors import ConfigError, UnknownName, nearest
from sparring.runs import directory
from sparring.runs.directory import ROOT, RunDirectory, Status

BACKENDS = ("gym:", "envpool:")


class Listed(NamedTuple):
    """A run with its status and settings; the seeds of a `--seeds M` run belong together."""

    run: RunDirectory
    status: Status
    config: dict[str, Any]

    @property
    def seeds(self) -> tuple[int, ...]:
        seeds = self.config.get("seeds")
        if isinstance(seeds, list) and seeds and all(isinstance(s, int) for s in seeds):
            return tuple(seeds)
        return (self.status.seed,)

    @property
    def env(self) -> str:
        """The environment without the word for who runs it: `gym:X` is the same task as `X`."""
        env = self.status.env
        for backend in BACKENDS:
            env = env.removeprefix(backend)
        return env

    @property
    def facts(self) -> dict[str, Any]:
        """Everything a filter may ask for."""
        status = self.status
        named = {"algo": status.algo, "env": self.env, "state": status.state, "name": self.run.name}
        sections = (self.config.get(part, {}) for part in ("env_kwargs", "settings", "config"))
        settings = {k: v for section in sections if isinstance(section, Mapping) for k, v in section.items()}
        return {**settings, **named, "seed": self.seeds}


def listed(run: RunDirectory) -> Listed:
    """A run's status and settings; a folder without readable settings has none."""
    try:
        config = run.read_config()
    except ConfigError:
        config = {}
    return Listed(run, run.read_status(), config)


def everything(root: Path | str = ROOT) -> list[Listed]:
    """All runs under a folder, newest first."""
    return [listed(RunDirectory(path)) for path in directory.paths(Path(root))]


def select(text: str, root: Path | str = ROOT) -> list[Listed]:
    """The runs that a user named or described, each once; there is at least one."""
    if "=" in text and not directory.is_run(Path(text)):
        found = filtered(everything(root), parse_filter(text.split()))
        if not found:
            raise UnknownName(f"No run under {str(root)!r} matches {text!r}. See all with: sparring runs")
        return found
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UnknownName("A run's name is empty. See all with: sparring runs")
    runs = {run.path.resolve(): run for run in (directory.find(name, root) for name in names)}
    return [listed(run) for run in runs.values()]


def parse_filter(words: Sequence[str]) -> dict[str, list[str]]:
    """`algo=ppo,sac env=Hopper*` as patterns by name; a comma means either."""
    patterns: dict[str, list[str]] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (equals and name and value):
            raise ConfigError(f"{word!r} is no filter. Write NAME=PATTERN, for example: algo=ppo env=Hopper*")
        patterns[name] = value.split(",")
    return patterns


def filtered(runs: Sequence[Listed], patterns: Mapping[str, Sequence[str]]) -> list[Listed]:
    """The runs that match every pattern; a name that no run knows is an error."""
    facts = [run.facts for run in runs]
    known = {name for each in facts for name in each}
    for name in patterns:
        if facts and name not in known:
            raise UnknownName(f"No run has a setting {name!r} to filter by.{nearest(name, known)}")
    return [
        run
        for run, each in zip(runs, facts, strict=True)
        if all(name in each and _matches(each[name], wanted) for name, wanted in patterns.items())
    ]


def _matches(value: Any, wanted: Sequence[str]) -> bool:
    """Whether a value, or one of several, fits a pattern: as a number where both are, else as text."""
    values = value if isinstance(value, (tuple, list)) else [value]
    return any(_fits(one, pattern) for one in values for pattern in wanted)


def _fits(value: Any, pattern: str) -> bool:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(pattern) == value
        except ValueError:
            pass  # a glob such as 1e-*
    return fnmatchcase(str(value).lower(), pattern.lower())
