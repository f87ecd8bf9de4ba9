"""Advice as commands: what to run next, with the run's own names and settings in it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sparring.metrics.health import Advice, Rule

HARMLESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./:+-]{0,79}")
"""Names that may stand in a command as they are."""
OPTION = re.compile(r"([a-z_]{1,40})=([0-9]{1,12}(?:\.[0-9]{1,12})?)")
"""An entry of `controller_options` that is repeated in a command."""


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
        if any(str(self._config.get(name)) != value for name, value in advice.given):
            return ""
        alone = self.env.startswith("object:")  # what a script made has no id to train on
        if advice.verb:
            if alone and "{env}" in advice.verb:
                return ""
            more = 2 * max(self._total, 1)
            return advice.verb.format(run=self.run, env=self.env, algorithm=self.algorithm, more=more)
        chosen = {}
        for name, wanted in advice.settings:
            if new := adjusted(self._config.get(name), wanted):
                chosen[name] = new
        if not chosen:
            return ""
        values = {**self._kept, **chosen}
        if alone:
            told = ", ".join(f"{n}={_literal(v)}" for n, v in values.items())
            return f"{self.algorithm.upper()}(policy, env, {told})"
        pairs = " ".join(f"{name}={value}" for name, value in values.items())
        return f"sparring train {self.algorithm} {self.env} --set {pairs}"

    def first(self, rule: Rule, value: float) -> str:
        """The first command that a rule suggests here against a measured value; empty when there is none."""
        return next(filter(None, map(self.of, rule.advice_for(value))), "")


def harmless(text: str, placeholder: str) -> str:
    """A name that may stand in a command, or a placeholder for one that looks like anything else."""
    if not HARMLESS.fullmatch(text):
        return placeholder
    return shlex.quote(text)


def adjusted(value: Any, wanted: str) -> str:
    """A setting after advice, as `Advice.settings` writes it; empty where nothing would change or fit."""
    if value is None:
        return ""
    if isinstance(value, (list, tuple)) and OPTION.fullmatch(wanted):
        return _with_option(value, wanted)
    if wanted.startswith(">="):
        return wanted[2:] if _is_number(value) and value < float(wanted[2:]) else ""
    if wanted == "//":
        return str(_largest_divisor(value)) if isinstance(value, int) and value > 1 else ""
    if not wanted.startswith("*"):
        return "" if str(value).lower() == wanted.lower() else wanted
    factor = float(wanted[1:])
    if _is_number(value) and value:
        return f"{value * factor:.3g}"
    if isinstance(value, Mapping) and value.get("schedule") == "linear":
        return f"lin_{float(value['start']) * factor:.3g}"
    if isinstance(value, str) and re.fullmatch(r"lin_[0-9.e+-]+", value):
        return f"lin_{float(value[4:]) * factor:.3g}"
    return ""


def _literal(text: str) -> str:
    """A setting's text as Python writes it."""
    try:
        float(text)
    except ValueError:
        return {"true": "True", "false": "False"}.get(text, repr(text))
    return text


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _largest_divisor(value: int) -> int:
    """The largest proper divisor of a whole number above 1: what was shared evenly still is."""
    return next(value // d for d in range(2, value + 1) if value % d == 0)


def _with_option(options: Sequence[Any], wanted: str) -> str:
    """A list of `name=number` with one of them raised to what is wanted; empty when it is as large already.

    Entries of any other form are left out: they may come from anywhere, and this becomes part of a command.
    """
    name, _, number = wanted.partition("=")
    found = [match for text in options if (match := OPTION.fullmatch(str(text)))]
    known = {match[1]: match[2] for match in found}
    if name in known and float(known[name]) >= float(number):
        return ""
    pairs = [f"{k}={v}" for k, v in {**known, name: number}.items()]
    return pairs[0] if len(pairs) == 1 else shlex.quote(str(pairs).replace(" ", ""))
