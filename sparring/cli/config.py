"""`sparring config show ALGO ENV`: every setting, its value, where it came from and what it means."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import textwrap
from typing import Any

from sparring.cli.output import Output, width
from sparring.cli.parser import Options, Parser, add_settings
from sparring.cli.train import make_plan, preset_name


def parser() -> Parser:
    made = Parser("config", "Show every setting and where it came from.", ("config show ppo CartPole-v1",))
    made.add_argument("action", choices=("show",), metavar="show")
    made.add_argument("algorithm", metavar="ALGO")
    made.add_argument("env", metavar="ENV")
    add_settings(made)
    return made


def run(options: Options, out: Output) -> int:
    from sparring.config import as_mapping

    plan = make_plan(options)
    parts = {"run": plan.settings, "algorithm": plan.config}
    shown: dict[str, dict[str, dict[str, Any]]] = {}
    for title, part in parts.items():
        meanings, values = field_help(type(part)), as_mapping(part)
        shown[title] = {
            name: {"value": value, "from": plan.provenance[name], "help": meanings.get(name, "")}
            for name, value in values.items()
        }
    name = preset_name(plan)
    out.say(f"Preset {name}" if plan.preset else f"No preset for {name}: library defaults")
    columns = [
        max(len(cells(key, setting)[i]) for part in shown.values() for key, setting in part.items())
        for i in range(3)
    ]
    for title, settings in shown.items():
        out.say(f"\n[{title}]")
        for key, setting in settings.items():
            out.say(line(key, setting, columns, width()))
    if plan.env_kwargs:
        out.say(f"\n[env_kwargs]\n{plan.env_kwargs}")
    out.result({"preset": plan.preset, **shown, "env_kwargs": plan.env_kwargs})
    return 0


def cells(name: str, setting: dict[str, Any]) -> tuple[str, str, str]:
    """Name, value and source as they are shown."""
    return name, spelled(setting["value"]), setting["from"]


def line(name: str, setting: dict[str, Any], widths: list[int], columns: int) -> str:
    """Name, value and source, with the meaning behind them or, where that is too wide, below."""
    left = "  ".join(f"{cell:<{wide}}" for cell, wide in zip(cells(name, setting), widths, strict=True))
    if len(left) + len(setting["help"]) + 2 <= columns:
        return f"{left}  {setting['help']}".rstrip()
    meaning = textwrap.fill(setting["help"], columns - 1, initial_indent="    ", subsequent_indent="    ")
    return f"{left.rstrip()}\n{meaning}"


def spelled(value: Any) -> str:
    """A value as `--set` takes it."""
    if isinstance(value, dict) and "schedule" in value:
        arguments = ", ".join(
            f"{v:g}" for k, v in value.items() if k != "schedule" and not isinstance(v, list)
        )
        if value["schedule"] == "piecewise":
            knots = value["value"]
            return f"piecewise({len(knots)} knots, {knots[0]:g} to {knots[-1]:g})"
        return f"{value['schedule']}({arguments})"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) or '""'


def field_help(cls: type[Any]) -> dict[str, str]:
    """The docstring under each field of a dataclass and its bases, read from their source."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError, SyntaxError):  # no source at hand
            continue
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for field, below in itertools.pairwise(body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
                and isinstance(below.value.value, str)
            ):
                found[field.target.id] = " ".join(below.value.value.split())
    return found
