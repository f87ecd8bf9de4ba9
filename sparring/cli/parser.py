"""Arguments: argparse whose mistakes are errors of ours, with the nearest name offered."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from sparring.errors import SparringError, nearest

OTHER_WORDS = dict.fromkeys(("--steps", "--timesteps", "--n-timesteps", "--total-steps"), "--total-timesteps")
"""Options by the names that other programs give them."""
ALGORITHMS = "ppo, a2c, reinforce, dqn, pqn, gdi, sac, td3, crossq, or file.py:Name"


class UsageError(SparringError):
    """A command line that cannot be read."""


class Parser(argparse.ArgumentParser):
    """A verb's parser; every verb takes --json."""

    def __init__(self, verb: str, summary: str, examples: Sequence[str] = ()) -> None:
        shown = "\n".join(f"  sparring {line}" for line in examples)
        super().__init__(
            prog=f"sparring {verb}",
            description=summary,
            epilog=f"examples:\n{shown}" if shown else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.add_argument(
            "--json", action="store_true", help="print the result as one JSON object, last on stdout"
        )

    def error(self, message: str) -> NoReturn:
        """Argparse's message with the nearest option, as an error that the command line shows."""
        unknown = re.search(r"unrecognized arguments: (--[\w-]+)", message)
        hint = self._hint(unknown.group(1)) if unknown else ""
        message = message[:1].upper() + message[1:]
        raise UsageError(f"{message}.{hint} See: {self.prog} --help")

    def _hint(self, option: str) -> str:
        """What an unknown option may have meant: another option, or a setting."""
        known = self._option_string_actions
        if OTHER_WORDS.get(option) in known:
            return f" Did you mean {OTHER_WORDS[option]!r}?"
        setting = option.removeprefix("--").replace("-", "_")
        return nearest(option, known) + (
            f" A setting is given as --set {setting}=…" if "--set" in known else ""
        )

    def run_argument(self) -> None:
        """The RUN that most verbs take."""
        self.add_argument("run", metavar="RUN", help="path or name of a run, or `last`")
        self.add_argument(
            "--trust-code", action="store_true", help="run Python files that lie inside the run's own folder"
        )

    def acting_arguments(self, episodes: int | None, seed: int = 0) -> None:
        """How a trained agent is shown; without a number of episodes as many as the other options ask for."""
        known = f"episodes (default {episodes or 'as many as are shown'})"
        self.add_argument("--episodes", type=positive, default=episodes, metavar="N", help=known)
        self.add_argument("--seed", type=whole, default=seed, metavar="S", help=f"seed (default {seed})")
        self.add_argument(
            "--stochastic", action="store_true", help="sample actions instead of taking the best"
        )
        self.add_argument(
            "--best", action="store_true", help="the agent with the best evaluation, not the last"
        )


def whole(text: str) -> int:
    """A whole number; `1e6` and `100_000` are some."""
    try:
        value = float(text.replace("_", ""))
        if value == int(value):
            return int(value)
    except (ValueError, OverflowError):
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")


def positive(text: str) -> int:
    """A whole number above zero."""
    value = whole(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not above zero")
    return value


def spread_assignments(arguments: Sequence[str]) -> list[str]:
    """`--set a=1 b=2` as `--set a=1 --set b=2`, so that what follows an assignment is not swallowed."""
    spread: list[str] = []
    assigning = False
    for argument in arguments:
        if assigning and "=" in argument and not argument.startswith("-") and spread[-1] != "--set":
            spread.append("--set")
        assigning = argument == "--set" or (assigning and "=" in argument and not argument.startswith("-"))
        spread.append(argument)
    return spread


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Where a run's settings come from, besides its defaults."""
    parser.add_argument("--config", metavar="FILE", help="settings from a TOML file")
    parser.add_argument(
        "--set",
        dest="assignments",
        metavar="K=V",
        action="append",
        default=[],
        help="one setting; repeatable",
    )
    parser.add_argument(
        "--preset",
        choices=("auto", "none"),
        default="auto",
        help="the tuned settings of the environment where there are any (auto), or library defaults (none)",
    )


def add_track(parser: argparse.ArgumentParser) -> None:
    """Who else hears of a run."""
    parser.add_argument(
        "--track",
        action="append",
        choices=("tensorboard", "wandb"),
        default=[],
        metavar="NAME",
        help="also keep metrics for `tensorboard` or `wandb` (offline unless WANDB_MODE=online); repeatable",
    )


Options = Any
"""What argparse returns."""
