"""The parts of a report that are text and tables: readable without any script."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

import numpy as np

from sparring.web.films import Film
from sparring.web.gather import GROUPS, MOST_ALERTS, Choices, Facts, IndexMap, Score, Story
from sparring.web.html import Html, join, tag, text

__all__ = [
    "alerts",
    "choices",
    "evaluation",
    "footer",
    "groups",
    "headline",
    "machine",
    "runs",
    "settings",
    "text",
    "toolbar",
    "videos",
]

LEVEL_WORDS = {"error": "✖ error", "warn": "▲ warning", "note": "● note"}
CLOSED = ("rollout", "eval", "time", "other")
"""Groups that are folded at first."""


def runs(story: Story) -> Html:
    """One card per run: what it is and how far it came."""
    return tag("div", *(_card(index, run) for index, run in enumerate(story.runs)), class_="cards")


def _card(index: int, run: Facts) -> Html:
    many = "seed" if len(run.seeds) == 1 else "seeds"
    rows = [
        ("algorithm", run.algorithm),
        ("environment", run.env),
        (many, ", ".join(map(str, run.seeds[:20])) + (" …" if len(run.seeds) > 20 else "")),
        ("steps", f"{run.steps:,} of {run.goal:,}" if run.goal else f"{run.steps:,}"),
        ("training time", duration(run.seconds)),
        ("started", _date(run.started)),
    ]
    rows += [("speed", run.speed)] if run.speed else []
    final = next((s for s in run.scores if s.which == "final" and s.kind == "deterministic"), None)
    health = "not recorded" if run.alerts is None else _counts(run)
    return tag(
        "article",
        tag("h2", swatch(index), run.label),
        tag("p", tag("span", run.state, class_=f"state {run.state}"), " ", run.message),
        tag("p", tag("b", shown(final)), tag("span", "final evaluation"), class_="big") if final else "",
        tag("dl", *(join(tag("dt", name), tag("dd", value)) for name, value in [*rows, ("health", health)])),
        class_="card",
    )


def _counts(run: Facts) -> str:
    found = [alert.level for alert in run.alerts or ()]
    words = {"error": "error", "warn": "warning", "note": "note"}
    counts = [plural(found.count(level), word) for level, word in words.items() if level in found]
    return ", ".join(counts) or "no alerts"


def swatch(index: int) -> Html:
    """The colour and dash of a run, as in the charts."""
    line = tag("line", x1=0, y1=5, x2=22, y2=5, class_="line")
    return tag("svg", line, class_=f"swatch c{index}", viewBox="0 0 22 10", aria_hidden="true")


def toolbar(story: Story) -> Html:
    """The switches of all charts; the script brings them to life."""
    legend: list[object] = []
    if len(story.runs) > 1:
        legend = [
            tag("button", swatch(i), run.label, type="button", data_run=i, aria_pressed="true")
            for i, run in enumerate(story.runs)
        ]
    choices = [
        tag("label", tag("input", type="radio", name="axis", value=value, checked=value == "steps"), word)
        for value, word in (("steps", "steps"), ("times", "training time"))
    ]
    root = tag("label", tag("input", type="checkbox", id="root"), "signed √ axis")
    return tag(
        "div",
        tag("fieldset", tag("legend", "against"), *choices),
        tag("fieldset", tag("legend", "values"), root),
        tag("div", *legend, class_="legend", role="group", aria_label="runs") if legend else "",
        class_="toolbar",
        hidden=True,
    )


def headline(story: Story) -> Html:
    """Where the script puts the learning curves and the health strip."""
    seeds = [len(run.seeds) for run in story.runs]
    how = (
        "Line: interquartile mean over the seeds; band: 95 % stratified bootstrap; thin lines: single seeds. "
        if max(seeds) > 1
        else ""
    )
    single = "One seed has no band. " if min(seeds) == 1 else ""
    explanation = f"{how}{single}Point at a chart, or focus it and use the arrow keys, to read values."
    return _section(
        "learning",
        "Learning curves",
        tag("p", explanation, class_="note"),
        tag("div", class_="grid wide", data_group="return"),
        tag("div", class_="strip", data_strip=True),
        tag("noscript", tag("p", "The charts need JavaScript; all tables are below.", class_="note")),
    )


def evaluation(story: Story) -> Html:
    """Best and final evaluation, deterministic and stochastic."""
    rows = []
    for index, run in enumerate(story.runs):
        for score in run.scores:
            seeds = ", ".join(number(value) for value in score.by_seed[:10])
            more = " …" if len(score.by_seed) > 10 else ""
            cells = [score.kind, score.which, shown(score), str(len(score.by_seed)), f"{score.step:,}"]
            name = tag("th", swatch(index), run.label, scope="row")
            rows.append(tag("tr", name, *(tag("td", c) for c in cells), tag("td", seeds + more)))
    if not rows:
        return _section("evaluation", "Evaluation", tag("p", "No evaluation was recorded.", class_="note"))
    most = max(score.evaluations for run in story.runs for score in run.scores)
    note = (
        f"The best is the highest mean of up to {most} evaluations, and choosing it flatters it; the final "
        "one was not chosen, and fresh episodes are played after all choices. A value over several seeds is "
        "their interquartile mean with its 95 % interval."
    )
    head = ("run", "actions", "which", "mean return", "seeds", "step", "by seed")
    return _section("evaluation", "Evaluation", _table(head, rows), tag("p", note, class_="note"))


def alerts(story: Story) -> Html:
    """What the health rules saw, numbered as in the charts."""
    rows, number_, notes = [], 0, []
    for index, run in enumerate(story.runs):
        if run.alerts is None:
            notes.append(tag("p", f"{run.label}: no health rules were recorded.", class_="note"))
        elif not run.alerts:
            notes.append(tag("p", f"{run.label}: no alerts.", class_="note"))
        for alert in run.alerts or ():
            number_ += 1
            level = tag("span", LEVEL_WORDS[alert.level], class_=f"level {alert.level}")
            cells = [
                tag("td", number_),
                tag("th", swatch(index), run.label, scope="row"),
                tag("td", level),
                tag("td", alert.rule),
                tag("td", f"{alert.onset:,}"),
                tag("td", f"{alert.last:,}"),
                tag("td", alert.seed),
                tag("td", alert.evidence, class_="prose"),
            ]
            rows.append(tag("tr", *cells))
        if len(run.alerts or ()) == MOST_ALERTS:
            notes.append(tag("p", f"{run.label}: the first {MOST_ALERTS} alerts are shown.", class_="note"))
    head = ("#", "run", "level", "rule", "from step", "to step", "seed", "evidence")
    return _section("health", "Health", _table(head, rows) if rows else "", *notes)


def choices(story: Story) -> Html:
    """Maps of what bandits chose and found good: time to the right, cells upwards, dark where it is much."""
    if not story.choices and not story.indices:
        return Html("")
    over_time = [_map(chosen, story) for chosen in story.choices]
    by_index = [_index_map(found, story) for found in story.indices]
    return _section("behaviour", "Behaviour", *over_time, *by_index)


def _map(chosen: Choices, story: Story) -> Html:
    cells = chosen.values.shape[0]
    least = 0.0 if chosen.kind == "probability" else float(chosen.values.min())
    most = float(chosen.values.max())
    label = f"{chosen.kind} of each cell of {chosen.coordinate} over time"
    picture = _squares(chosen.values, least, most, chosen.run, label)
    span = f"{least:.3g} to {most:.3g}"
    darkest = {
        "probability": f"how often each was chosen, darkest is {most:.0%}",
        "mean": f"what the bandit expects of each, by rank or return, {span}",
        "return": f"what episodes earned in each, {span}",
    }[chosen.kind]
    words = (
        f"{story.runs[chosen.run].label}: {chosen.coordinate}, {cells} cells from the lowest (bottom) to the "
        f"highest, step {int(chosen.steps[0]):,} to {int(chosen.steps[-1]):,}; {darkest}."
    )
    return tag("figure", picture, tag("figcaption", words), class_="choices")


def _index_map(found: IndexMap, story: Story) -> Html:
    """Mean returns by cells of two coordinates, the first upwards, or of the one there is."""
    if not np.isfinite(found.values).any():
        return Html("")
    least, most = float(np.nanmin(found.values)), float(np.nanmax(found.values))
    across, names = found.names[-1], " and ".join(found.names)
    picture = _squares(found.values, least, most, found.run, f"mean return by cells of {names}")
    upwards = f", {found.names[0]} upwards" if len(found.names) > 1 else ""
    words = (
        f"{story.runs[found.run].label}: evaluation by index, {across} to the right{upwards}; mean return of "
        f"{found.episodes:,} fresh episodes, {least:.3g} (pale) to {most:.3g} (dark), empty where none was."
    )
    return tag("figure", picture, tag("figcaption", words), class_="choices")


def _squares(values: np.ndarray, least: float, most: float, run: int, label: str) -> Html:
    """A picture of a table, its first row at the bottom, dark where it is much; none where it is NaN."""
    rows, columns = values.shape
    shade = np.clip((values - least) / max(most - least, 1e-9), 0.0, 1.0)
    squares = [
        tag(
            "rect",
            x=column,
            y=rows - 1 - row,
            width=1,
            height=1,
            fill_opacity=f"{float(shade[row, column]):.2f}",
        )
        for row in range(rows)
        for column in range(columns)
        if np.isfinite(shade[row, column])
    ]
    return tag(
        "svg",
        *squares,
        viewBox=f"0 0 {columns} {rows}",
        preserveAspectRatio="none",
        class_=f"map c{run}",
        role="img",
        aria_label=label,
    )


def groups(story: Story) -> Html:
    """Places for all other charts, in groups."""
    made = []
    for group, name in GROUPS.items():
        count = sum(metric.group == group for metric in story.metrics)
        if group == "return" or not count:
            continue
        summary = tag("summary", tag("h2", name), tag("span", count, class_="count"))
        grid = tag("div", class_="grid", data_group=group)
        made.append(tag("details", summary, grid, open=group not in CLOSED, class_="part"))
    if story.left_out:
        made.append(tag("p", f"{story.left_out} more metrics are in metrics.sqlite.", class_="note"))
    return join(*made)


def videos(story: Story, shown_films: Sequence[Film]) -> Html:
    """Films, inside the page or as links."""
    if not shown_films:
        return Html("")
    made = []
    for film in shown_films:
        caption = tag(
            "figcaption", swatch(film.run), f"{story.runs[film.run].label}: {film.name}, {size(film.size)}"
        )
        if film.embedded:
            made.append(
                tag(
                    "figure",
                    tag("video", src=film.address, controls=True, loop=True, muted=True, preload="metadata"),
                    caption,
                )
            )
        else:
            link = tag("a", film.name, href=film.address)
            note = tag("p", link, " is too large to be inside this file; the link works beside the run.")
            made.append(tag("figure", note, caption))
    return _section("videos", "Videos", tag("div", *made, class_="grid films"))


def settings(story: Story) -> Html:
    """Every setting and where it came from; what was chosen, or differs between runs, comes first."""
    tables = [{setting.key: setting for setting in run.settings} for run in story.runs]
    keys = list(dict.fromkeys(key for table in tables for key in table))
    several = len(tables) > 1
    first, head = [], ["setting"]
    for run in story.runs:
        head += [run.label if several else "value", "from"]
    rows = {}
    for key in keys:
        found = [table.get(key) for table in tables]
        cells: list[object] = []
        for setting in found:
            source = "" if setting is None else setting.source
            cells.append(tag("td", "–" if setting is None else tag("code", setting.value)))
            cells.append(tag("td", source, class_="source"))
        rows[key] = tag("tr", tag("th", tag("code", breakable(key)), scope="row"), *cells)
        present = [setting for setting in found if setting is not None]
        chosen = any(setting.source not in ("", "default") for setting in present)
        differs = len({setting.value for setting in present}) > 1 or (chosen and len(present) < len(found))
        if differs if several else chosen:
            first.append(rows[key])
    if not rows:
        return _section("settings", "Settings", tag("p", "No configuration was found.", class_="note"))
    what = "Different between the runs" if several else "Chosen by a preset, a file or a flag"
    everything = tag(
        "details", tag("summary", f"All {len(rows)} settings"), _table(head, list(rows.values()))
    )
    nothing = tag("p", "Nothing: " + ("the runs agree." if several else "all are defaults."), class_="note")
    return _section(
        "settings", "Settings", tag("h3", what), _table(head, first) if first else nothing, everything
    )


def machine(story: Story) -> Html:
    """Versions and hardware."""
    keys = list(dict.fromkeys(key for run in story.runs for key in run.machine))
    if not keys:
        return _section(
            "machine", "Versions and machine", tag("p", "No agent or checkpoint names them.", class_="note")
        )
    head = ["", *(run.label for run in story.runs)]
    rows = [
        tag(
            "tr",
            tag("th", key.replace("_", " "), scope="row"),
            *(tag("td", run.machine.get(key) or "–") for run in story.runs),
        )
        for key in keys
    ]
    return _section("machine", "Versions and machine", _table(head, rows))


def footer(version: str, now: datetime, story: Story) -> Html:
    """Who made this page, and when."""
    when = now.strftime("%Y-%m-%d %H:%M")
    return tag("p", f"Written by sparring {version} on {when}. This file is complete and loads nothing.")


# -- small things ------------------------------------------------------------------------------------------


def _section(name: str, title: str, *parts: object) -> Html:
    return tag("section", tag("h2", title), *parts, id=name)


def _table(head: Sequence[object], rows: Sequence[Html]) -> Html:
    columns = tag("tr", *(tag("th", name, scope="col") for name in head))
    return tag(
        "div",
        tag("table", tag("thead", columns), tag("tbody", *rows)),
        class_="scroll",
        tabindex=0,
        role="group",
        aria_label="table",
    )


def shown(score: Score) -> str:
    """A score with its interval, where there are seeds enough for one."""
    if score.interval is None:
        return number(score.by_seed[0])
    return f"{number(score.interval.value)} [{number(score.interval.low)}, {number(score.interval.high)}]"


def number(value: float) -> str:
    """Four digits, and no fewer than the whole part has."""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def breakable(name: str) -> Html:
    """A dotted name that may be broken behind its dots and underscores."""
    parts = re.split(r"(?<=[._])", name)
    return join(*(join(tag("wbr"), part) if i else part for i, part in enumerate(parts)))


def plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def size(count: int) -> str:
    return f"{count / 2**20:.1f} MB" if count >= 2**20 else f"{count / 2**10:.0f} kB"


def duration(seconds: float | None) -> str:
    """Seconds as people say them."""
    if seconds is None:
        return "–"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def _date(stamp: float) -> str:
    try:
        return datetime.fromtimestamp(stamp).strftime("%Y-%m-%d %H:%M") if stamp else "–"
    except (OverflowError, ValueError, OSError):
        return "–"
