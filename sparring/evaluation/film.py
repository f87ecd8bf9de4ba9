"""Films of episodes: one or several side by side, with or without what the agent thinks written on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from sparring.evaluation import frames
from sparring.evaluation.episode import Episode, Performer, Thought
from sparring.evaluation.evaluator import LONGEST
from sparring.evaluation.lettering import Line, card, overlaid

CARD_SECONDS = 1.5
OPTIONS = 6
"""Choices whose chances are shown, at most."""
NUMBERS = 12
"""Numbers of a continuous action that are shown, at most."""
PICKS = ("best", "median", "worst")


class Take(NamedTuple):
    """An episode to film."""

    seed: int
    label: str = ""


class Played(NamedTuple):
    """How an episode went."""

    seed: int
    total: float
    length: int
    label: str = ""


class Look(NamedTuple):
    """How a film looks."""

    grid: int = 1
    """episodes side by side"""
    overlay: bool = False
    deterministic: bool = True
    most: int = LONGEST
    """steps of an episode that are filmed, at most"""


class Part(NamedTuple):
    """Episodes of one agent; a title is shown before them."""

    performer: Performer
    takes: tuple[Take, ...]
    title: tuple[str, ...] = ()


def score(performer: Performer, env: Any, seeds: Sequence[int], deterministic: bool = True) -> list[Played]:
    """Episodes of these seeds without a picture."""
    played = []
    for seed in seeds:
        episode = Episode(performer, env, seed, deterministic)
        while not episode.over and episode.step < LONGEST:
            episode.decide()
            episode.advance()
        played.append(Played(seed, episode.total, episode.step))
    return played


def picked(played: Sequence[Played], pick: str) -> tuple[Take, ...]:
    """The best, median or worst episode, or `all` three; of two in the middle the worse one."""
    order = sorted(played, key=lambda one: -one.total)
    chosen = {"best": order[0], "median": order[len(order) // 2], "worst": order[-1]}
    names = PICKS if pick == "all" else (pick,)
    return tuple(Take(chosen[name].seed, name) for name in names)


def film(
    parts: Sequence[Part], envs: Sequence[Any], look: Look, rate: float, tell: Callable[[Played], None]
) -> Iterator[np.ndarray]:
    """The pictures of all parts; `envs` are one-row environments, as many as are shown side by side."""
    for part in parts:
        for start in range(0, len(part.takes), look.grid):
            takes = part.takes[start : start + look.grid]
            title = part.title or _titles(takes)
            for index, picture in enumerate(_shots(part.performer, takes, envs, look, tell)):
                if index == 0 and title and (start == 0 or not part.title):
                    titled = card(picture.shape, title)
                    yield from (titled for _ in range(max(round(CARD_SECONDS * rate), 1)))
                yield picture


def _titles(takes: Sequence[Take]) -> tuple[str, ...]:
    return tuple(f"{take.label} episode" for take in takes if take.label) if len(takes) == 1 else ()


def _shots(
    performer: Performer,
    takes: Sequence[Take],
    envs: Sequence[Any],
    look: Look,
    tell: Callable[[Played], None],
) -> Iterator[np.ndarray]:
    """Every step of episodes side by side; one that has ended stays, dimmed, until the last one ends."""
    cells = [Cell(performer, env, take, look) for env, take in zip(envs, takes, strict=False)]
    while any(not cell.done for cell in cells):
        for cell in cells:
            cell.look_and_decide()
        yield frames.tiled([cell.shown for cell in cells], look.grid)
        for cell in cells:
            cell.advance(tell)


class Cell:
    """One place of the grid and the episode in it."""

    def __init__(self, performer: Performer, env: Any, take: Take, look: Look) -> None:
        self.episode = Episode(performer, env, take.seed, look.deterministic)
        self.take = take
        self.look = look
        self.done = False
        self.shown = np.zeros((0, 0, 3), np.uint8)
        self._bare = self.shown
        self._names = frames.action_names(env) if look.overlay else []
        self._columns = frames.columns_of(look.grid)

    def look_and_decide(self) -> None:
        """Draws the state and the decision that is made in it."""
        if self.done:
            return
        self._bare = frames.fitted(frames.picture(self.episode.env), self._columns, self.look.overlay)
        action = self.episode.decide()
        self.shown = self._bare
        if self.look.overlay:
            thought = self.episode.think()
            self.shown = overlaid(self._bare, [*self._head(), *_decision(thought, action, self._names)])

    def advance(self, tell: Callable[[Played], None]) -> None:
        """Takes the step; the picture of an episode that ends by it stays behind, dimmed."""
        if self.done:
            return
        episode = self.episode
        episode.advance()
        if not episode.over and episode.step < self.look.most:
            return
        self.done = True
        tell(Played(self.take.seed, episode.total, episode.step, self.take.label))
        # The environment shows the next episode already: the last picture stands for the end.
        self.shown = frames.dimmed(self._bare)
        if self.look.overlay:
            self.shown = overlaid(self.shown, [*self._head(), Line("ended" if episode.over else "cut")])

    def _head(self) -> list[Line]:
        name = self.take.label or (f"seed {self.take.seed}" if self.look.grid > 1 else "")
        lines = [Line(name, bright=True)] if name else []
        return [*lines, Line(f"step {self.episode.step}"), Line(f"return {_short(self.episode.total)}")]


def _decision(thought: Thought, action: Any, names: Sequence[str]) -> list[Line]:
    """V(s) and the choices, or the action where there are none."""
    lines = [] if thought.value is None else [Line(f"V {_short(thought.value)}")]
    if thought.chances is not None:
        shares = thought.chances
        return lines + _choices(shares, [f"{share:.0%}" for share in shares], action, names)
    if thought.scores is not None:
        scores = thought.scores
        real = scores > -1e8  # the others are not legal
        low, high = scores[real].min(), scores[real].max()
        shares = np.where(real, (scores - low) / max(high - low, 1e-9), 0.0)
        words = [f"Q {_short(float(q))}" if fine else "-" for q, fine in zip(scores, real, strict=True)]
        return lines + _choices(shares, words, action, names)
    return lines + [Line(words) for words in _numbers(np.asarray(action), names)]


def _choices(shares: np.ndarray, words: Sequence[str], action: Any, names: Sequence[str]) -> list[Line]:
    """A bar for each choice, the one that is taken bright; of many, it and the likeliest."""
    taken = int(np.asarray(action))
    order = sorted(range(len(shares)), key=lambda i: (i != taken, -shares[i]))
    return [
        Line(_name(i, names), float(shares[i]), words[i], bright=i == taken) for i in sorted(order[:OPTIONS])
    ]


def _numbers(action: np.ndarray, names: Sequence[str]) -> list[str]:
    flat = action.reshape(-1)
    if action.dtype.kind in "iub":
        words = [_name(int(flat[0]), names)] if flat.size == 1 else [str(int(x)) for x in flat]
    else:
        words = [f"{x:+.2f}" for x in flat]
    kept = words[:NUMBERS]
    return [" ".join([*(["action"] if start == 0 else ["      "]), *kept[start : start + 3]]) for start in
            range(0, len(kept), 3)]  # fmt: skip


def _name(choice: int, names: Sequence[str]) -> str:
    return names[choice] if choice < len(names) else str(choice)


def _short(number: float) -> str:
    return (
        f"{number:.0f}" if abs(number) >= 1000 else f"{number:.1f}" if abs(number) >= 10 else f"{number:.2f}"
    )
