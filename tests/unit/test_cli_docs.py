"""The documentation agrees with the code: metrics, options, links and commands."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import pytest

from sparring.cli.main import VERBS
from sparring.cli.parser import spread_assignments
from sparring.metrics.registry import METRICS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
GENERATED = {"benchmarks.md"}  # written by the benchmarks


def test_the_metrics_page_is_the_registry() -> None:
    rows = re.findall(r"^\| `(.+?)` \| (.+) \|$", (ROOT / "docs" / "metrics.md").read_text(), re.M)
    assert dict(rows) == METRICS


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_is_documented(verb: str) -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    assert f"## {verb}" in text
    parser = importlib.import_module(f"sparring.cli.{verb.replace('-', '_')}").parser()
    options = {name for name in parser._option_string_actions if name.startswith("--")}
    hidden = {"--help", "--trust-code", "--n-envs"} | ({"--seed"} if verb.startswith("check") else set())
    assert {option for option in options - hidden if f"`{option}" not in text} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)", page.read_text()):
        assert (page.parent / target).exists() or Path(target).name in GENERATED, target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_on_the_pages_can_be_read(page: Path) -> None:
    for command in re.findall(r"^sparring ([\w-]+) ?([^#\n]*)", page.read_text(), re.M):
        verb, rest = command
        assert verb in VERBS, command
        module = importlib.import_module(f"sparring.cli.{verb.replace('-', '_')}")
        module.parser().parse_args(spread_assignments(shlex.split(rest)))
