"""A report in a real browser: it draws, answers pointer and keys, asks for nothing and runs no other code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from browser import Browser, Page, executable
from test_report import add_alerts, hostile_run, made_run

from sparring.evaluation.video import write_video
from sparring.web.report import write_report

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(executable() is None, reason="no Chromium: apt-get install chromium"),
]

RETURN = '[data-metric="rollout/ep_rew_mean"]'


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as started:
        yield started


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of two runs, one of them ill and filmed."""
    folder = tmp_path_factory.mktemp("report")
    ill, well = made_run(folder / "ill"), made_run(folder / "well", seeds=1)
    add_alerts(ill, ("R05", "error", 500, 900, 1, "entropy 0.03"), ("R02", "warn", 200, 300, 0, "kl"))
    frames = [np.full((64, 64, 3), 20 * i, np.uint8) for i in range(12)]
    write_video(ill.videos / "best.mp4", frames, fps=12)
    return write_report([ill, well], folder / "r.html").path.as_uri()


def assert_quiet(page: Page, address: str) -> None:
    """Nothing was complained about and nothing but the file was asked for."""
    assert page.problems == []
    assert [asked for asked in page.requests if not asked.startswith("data:")] == [address]


def test_curves_bands_seeds_alerts_and_the_film_are_there(browser: Browser, both: str) -> None:
    page = browser.open(both)
    assert page.value("document.documentElement.dataset.ready") == "yes"
    assert page.value(f"document.querySelectorAll('{RETURN} path.line').length") == 2
    assert page.value(f"document.querySelectorAll('{RETURN} path.band').length") == 1
    assert page.value(f"document.querySelectorAll('{RETURN} path.seed').length") == 3
    assert page.value(f"document.querySelector('{RETURN} path.line').getAttribute('d').length") > 50
    assert page.value(f"document.querySelectorAll('{RETURN} .mark').length") == 2
    assert page.value("document.querySelectorAll('.strip .flag').length") == 2
    assert page.value("document.querySelectorAll('figure.chart').length") == 4
    film = "new Promise(done => { const v = document.querySelector('video'); const look = () => "
    film += "v.readyState ? done(v.duration) : setTimeout(look, 20); look(); })"
    assert page.value(film) == pytest.approx(1.0, abs=0.1)
    assert_quiet(page, both)


def test_switches_redraw(browser: Browser, both: str) -> None:
    page = browser.open(both)
    path = f"document.querySelector('{RETURN} .c0 .line').getAttribute('d')"
    labels = f"[...document.querySelectorAll('{RETURN} svg text')].map(t => t.textContent).join()"
    before = page.value(path)
    assert " s" not in page.value(labels)
    page.value("document.querySelector('[value=times]').click()")
    assert "10 s" in page.value(labels)
    page.value("document.querySelector('#root').click()")
    assert page.value(path) != before
    page.value("document.querySelector('[data-run=\"0\"]').click()")
    assert page.value(f"document.querySelectorAll('{RETURN} path.line').length") == 1
    assert page.value("document.querySelector('[data-run=\"0\"]').getAttribute('aria-pressed')") == "false"
    page.value("document.querySelector('[data-run=\"1\"]').click()")
    assert "nothing to show" in page.value(labels)
    assert_quiet(page, both)


def test_values_are_read_by_pointer_keys_and_table(browser: Browser, both: str) -> None:
    page = browser.open(both)
    tip = f"document.querySelector('{RETURN} .tip')"
    assert page.value(f"{tip}.hidden") is True
    page.value(f"document.querySelector('{RETURN} svg').focus()")
    page.press("End")
    assert page.value(f"{tip}.hidden") is False
    said = page.value(f"{tip}.textContent")
    assert "step 1,000 · 10 s" in said
    assert "101" in said
    assert page.value(f"{tip}.offsetHeight") < 100
    assert "[100, 102]" in said
    page.press("ArrowLeft")
    assert "step 900" in page.value(f"{tip}.textContent")
    page.press("Escape")
    assert page.value(f"{tip}.hidden") is True
    box = page.value(f"document.querySelector('{RETURN} svg').getBoundingClientRect().toJSON()")
    page.point(box["left"] + box["width"] / 2, box["top"] + 60)
    page.settle()
    assert "step 500" in page.value(f"{tip}.textContent")
    assert "#2 R05" in page.value(f"{tip}.textContent")
    page.value(f"document.querySelector('{RETURN} details').open = true")
    page.settle()
    cells = page.value(f"document.querySelector('{RETURN} tbody tr').textContent")
    assert cells == "ill1001 s11[10, 12]"
    assert_quiet(page, both)


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_shows_it_without_scrolling_sideways(browser: Browser, both: str, dark: bool) -> None:
    page = browser.open(both, width=360, height=740, dark=dark)
    assert page.value("document.documentElement.scrollWidth") <= 360
    colour = page.value("getComputedStyle(document.body).backgroundColor")
    assert (sum(json.loads(f"[{colour[4:-1]}]")) < 384) is dark
    assert len(page.screenshot()) > 5_000
    assert_quiet(page, both)


def test_hostile_texts_do_nothing(browser: Browser, tmp_path: Path) -> None:
    address = write_report([hostile_run(tmp_path)], tmp_path / "r.html").path.as_uri()
    page = browser.open(address)
    page.value("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    page.settle()
    assert "sparring report" in page.value("document.title")
    assert page.value("document.images.length") == 0
    assert page.value("document.scripts.length") == 2
    assert page.value("document.querySelectorAll('figure.chart').length") == 6
    assert "onerror=alert(1)" in page.value("document.querySelector('main').innerText")
    assert_quiet(page, address)


def test_the_policy_stops_what_would_slip_through(browser: Browser, both: str) -> None:
    page = browser.open(both)
    page.value("document.body.append(Object.assign(document.createElement('script'), {text: 'window.in=1'}))")
    page.value("document.body.append(Object.assign(new Image(), {src: 'https://example.invalid/x.png'}))")
    page.settle()
    assert page.value("'in' in window") is False
    assert len(page.problems) == 2
    assert all("Content Security Policy" in problem for problem in page.problems)
