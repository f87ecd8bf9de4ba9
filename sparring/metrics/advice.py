"""Advice as commands: what to run next, with the run's own names and settings in it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from sparring.metrics.health import Advice, Rule

HARMLESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./:+-]{0,79}")
"""Names that may stand in a command as they are."""


class Commands:
    """The next commands, with the run's names where they are harmless and placeholders where not."""

    def __init__(
        self,
        algorithm: str,
        env: str,
        run: str,
        config: Mapping[str, Any],
        total: int,
        changed: Iterable[str] = (),
    ) -> None:
        self.algorithm = harmless(algorithm, "ALGO")
        self.env = harmless(env, "ENV")
        self.run = harmless(run, "RUN")
        self._config = config
        self._total = total
        self._kept = {
            name: str(value)
            for name in sorted(changed)
            if isinstance(value := config.get(name), (int, float)) and name.isidentifier()
        }
        """what the user set, repeated in every command"""

    def of(self, advice: Advice) -> str:
        """A piece of advice as a command; empty when its settings do not exist here or change nothing."""
        if advice.verb:
            more = 2 * max(self._total, 1)
            return advice.verb.format(run=self.run, env=self.env, algorithm=self.algorithm, more=more)
        chosen = {}
        for name, wanted in advice.settings:
            if new := adjusted(self._config.get(name), wanted):
                chosen[name] = new
        if not chosen:
            return ""
        pairs = " ".join(f"{name}={value}" for name, value in {**self._kept, **chosen}.items())
        return f"sparring train {self.algorithm} {self.env} --set {pairs}"

    def first(self, rule: Rule) -> str:
        """The first command that a rule suggests here; empty when there is none."""
        return next(filter(None, map(self.of, rule.advice)), "")


def harmless(text: str, placeholder: str) -> str:
    """A name that may stand in a command, or a placeholder for one that looks like anything else."""
    if not HARMLESS.fullmatch(text):
        return placeholder
    return shlex.quote(text)


def adjusted(value: Any, wanted: str) -> str:
    """A setting after advice: `*0.3` multiplies a number or the start of a schedule; empty if it is none."""
    if value is None:
        return ""
    if not wanted.startswith("*"):
        return "" if str(value).lower() == wanted.lower() else wanted
    factor = float(wanted[1:])
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value:
        return f"{value * factor:.3g}"
    if isinstance(value, Mapping) and value.get("schedule") == "linear":
        return f"lin_{float(value['start']) * factor:.3g}"
    if isinstance(value, str) and re.fullmatch(r"lin_[0-9.e+-]+", value):
        return f"lin_{float(value[4:]) * factor:.3g}"
    return ""
