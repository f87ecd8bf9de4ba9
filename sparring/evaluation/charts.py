"""Pictures of learning curves and performance profiles, drawn with matplotlib (extra `plot`)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sparring.errors import ConfigError, StorageError, missing_extra
from sparring.evaluation.bands import Axis, Line

if TYPE_CHECKING:
    from sparring.evaluation.behaviours import Map
    from sparring.evaluation.comparison import Comparison, Table

FORMATS = ("png", "svg", "pdf")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours, which colour-blind readers can tell apart."""
DASHES = ("-", "--", ":", "-.")
"""Once the colours are used up."""


class Chart:
    """A drawn figure; a notebook shows it, `save` writes it."""

    def __init__(self, figure: Any) -> None:
        self.figure = figure

    def save(self, path: Path | str) -> Path:
        """Writes a PNG, SVG or PDF, by the file's ending."""
        file = Path(path)
        check_format(file)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            self.figure.savefig(file, dpi=150)
        except OSError as error:
            raise StorageError(
                f"The picture {str(file)!r} cannot be written: {error.strerror}. Choose another with -o."
            ) from error
        return file

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png", dpi=100)
        return buffer.getvalue()


def check_format(file: Path) -> None:
    """Refuses a file that is no picture of a known kind."""
    if file.suffix.lower().removeprefix(".") not in FORMATS:
        raise ConfigError(f"{file.name!r} is no picture's name. End it with .{', .'.join(FORMATS)}.")


def learning_curves(lines: Sequence[Line], axis: Axis = "steps", root_scale: bool = False) -> Chart:
    """A panel for every environment (columns) and metric (rows); `root_scale` draws signed square roots."""
    envs = list(dict.fromkeys(line.env for line in lines))
    metrics = list(dict.fromkeys(line.metric for line in lines))
    letters = list(dict.fromkeys(line.unit.letter for line in lines))
    figure, panels = _panels(len(metrics), len(envs))
    for row, metric in enumerate(metrics):
        for column, env in enumerate(envs):
            panel = panels[row, column]
            for line in lines:
                if (line.env, line.metric) == (env, metric):
                    _draw(panel, line, letters.index(line.unit.letter))
            if root_scale:
                _root_scale(panel, [line for line in lines if (line.env, line.metric) == (env, metric)])
            panel.set_title(env)
            panel.set_ylabel(f"{metric}, IQM{' (square-root scale)' if root_scale else ''}")
            panel.set_xlabel("environment steps" if axis == "steps" else "seconds of training")
            if axis == "steps":
                panel.xaxis.set_major_formatter(_thousands())
            if panel.lines:
                panel.legend(frameon=False, fontsize="small")
    return Chart(figure)


def profiles(comparison: Comparison) -> Chart:
    """Share of seeds above each score, a panel for every environment."""
    figure, panels = _panels(1, len(comparison.tables))
    texts = {unit.letter: unit.text for unit in comparison.units}
    for panel, table in zip(panels[0], comparison.tables, strict=True):
        _draw_profile(panel, table, texts)
        panel.set(
            title=table.env, xlabel=comparison.metric, ylabel="share of seeds above", ylim=(-0.02, 1.02)
        )
        panel.legend(frameon=False, fontsize="small")
    return Chart(figure)


def behaviour_map(found: Map) -> Chart:
    """Mean returns by cells of every pair of coordinates, or of the one there is."""
    count, names = len(found.space.coordinates), found.space.names
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)] or [(0, 0)]
    figure, panels = _panels(1, len(pairs))
    for panel, (a, b) in zip(panels.flat, pairs, strict=True):
        if a == b:
            panel.plot(range(found.space.cells[a]), found.mean(a), marker="o", color=COLOURS[0])
            panel.set(xlabel=f"{names[a]} (cell)", ylabel="mean return")
            continue
        panel.grid(visible=False)
        image = panel.imshow(found.mean(a, b), origin="lower", aspect="auto", cmap="viridis")
        panel.set(xlabel=f"{names[b]} (cell)", ylabel=f"{names[a]} (cell)")
        figure.colorbar(image, ax=panel, label="mean return")
    return Chart(figure)


def _panels(rows: int, columns: int) -> tuple[Any, Any]:
    """An empty figure that needs no display and no global state."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing_extra("matplotlib", "plot") from error
    figure = Figure(figsize=(max(6.4, 4.8 * columns), 4.2 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    for panel in panels.flat:
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    return figure, panels


def _style(index: int) -> dict[str, str]:
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": DASHES[index // len(COLOURS) % len(DASHES)],
    }


def _draw(panel: Any, line: Line, index: int) -> None:
    style = _style(index)
    label = _label(line.unit.text, line.n)
    marker = "o" if len(line.x) <= 20 else None
    panel.plot(line.x, line.value, label=label, marker=marker, markersize=3, **style)
    if line.low is not None:
        panel.fill_between(line.x, line.low, line.high, color=style["color"], alpha=0.2, linewidth=0)


def _draw_profile(panel: Any, table: Table, texts: dict[str, str]) -> None:
    for index, row in enumerate(table.rows):
        style = _style(index)
        label = _label(texts[row.letter], len(row.scores))
        panel.step(table.thresholds, row.profile, where="post", label=label, **style)
        if row.profile_band is not None:
            _, low, high = row.profile_band
            shade = {"color": style["color"], "alpha": 0.2, "linewidth": 0}
            panel.fill_between(table.thresholds, low, high, step="post", **shade)


def _label(text: str, n: int) -> str:
    """A unit's name, as it is: `$` starts no formula and a leading underscore hides nothing."""
    shown = text if len(text) <= 48 else f"{text[:47]}…"
    seeds = "1 seed, no band" if n == 1 else f"{n} seeds, 95 % band"
    hidden = " " if shown.startswith("_") else ""
    return f"{hidden}{shown} ({seeds})".replace("$", r"\$")


def _thousands() -> Any:
    from matplotlib.ticker import EngFormatter

    return EngFormatter(sep="")


def _root_scale(panel: Any, lines: Sequence[Line]) -> None:
    """Signed square root: what is small stays visible beside what is large, on both sides of zero."""
    from matplotlib.ticker import FixedLocator

    panel.set_yscale("function", functions=(signed_root, signed_square))
    values = [part for line in lines for part in (line.value, line.low, line.high) if part is not None]
    if not values:
        return
    low, high = (float(pick(np.concatenate(values))) for pick in (np.min, np.max))
    panel.yaxis.set_major_locator(FixedLocator(root_ticks(low, high)))


def signed_root(x: np.ndarray) -> np.ndarray:
    """sign(x) √|x|"""
    return np.asarray(np.sign(x) * np.sqrt(np.abs(x)))


def signed_square(x: np.ndarray) -> np.ndarray:
    """The inverse of `signed_root`."""
    return np.asarray(np.sign(x) * np.square(x))


def root_ticks(low: float, high: float, count: int = 7) -> list[float]:
    """Round numbers about evenly far apart on the square-root scale."""
    first, last = signed_root(np.array([low, high])).tolist()
    at = np.linspace(first, last, count)
    if first < 0 < last:  # zero takes the place of what lies beside it
        at = np.append(at[np.abs(at) > (last - first) / (2 * count)], 0.0)
    return sorted({float(f"{x:.1g}") for x in signed_square(at).tolist()})
