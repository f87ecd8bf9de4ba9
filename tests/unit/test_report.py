"""Reports: what is read of a run, how curves are summed up, and a page that nobody can smuggle code into."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from fnmatch import fnmatch
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_help import Shell

from sparring.errors import ConfigError, StorageError
from sparring.evaluation.statistics import curve_band
from sparring.evaluation.statistics import interval as one_interval
from sparring.metrics.sqlite import Curve, SqliteSink, StoredAlert
from sparring.runs import directory, sealed
from sparring.runs.directory import RunDirectory, Status
from sparring.web import curves, gather, report
from sparring.web.films import films
from sparring.web.html import Html, tag

ROOT = Path(__file__).parents[2]
EVIL = '"></td></script><script>document.title="hacked"</script><img src=x onerror=alert(1)>\u2028${title}'


@pytest.fixture
def sparring(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


def made_run(
    path: Path,
    seeds: int = 3,
    values: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    sources: Mapping[str, str] | None = None,
    **status: Any,
) -> RunDirectory:
    """A run's folder as training leaves it, with a return that grows and one loss."""
    run = directory.create("ppo", "CartPole-v1", 0, path=path, total=1000)
    run.write_config(
        {
            "algorithm": "ppo",
            "env": "CartPole-v1",
            "seeds": list(range(7, 7 + seeds)),
            "config": {"gamma": 0.9, "learning_rate": {"schedule": "linear", "start": 0.001, "end": 0.0}},
            **(config or {}),
        },
        sources or {"config.gamma": "preset ppo/CartPole-v1", "config.learning_rate": "default"},
    )
    told = {"state": "finished", "steps": 1000, "total": 1000, "started": 1.7e9, **status}
    run.write_status(Status("ppo", "CartPole-v1", 7, **told))
    sink = SqliteSink(run.metrics)
    for seed in range(seeds):
        for step in range(100, 1001, 100):
            found = {"rollout/ep_rew_mean": step / 10 + seed, "train/value_loss": 1 / step, **(values or {})}
            if step % 500 == 0:
                found |= {"eval/mean_reward": 50.0 + seed - step / 100, "eval/stochastic_mean_reward": 30.0}
            sink.write(step, 0.01 * step, found, seed)
    sink.close()
    run.unlock()
    return run


def island(page: str) -> dict[str, Any]:
    """The data that a page's charts are drawn from."""
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert match is not None
    found: dict[str, Any] = json.loads(match[1])
    return found


def words(page: str) -> str:
    """What a page shows as text, scripts and styles left out."""
    body = re.sub(r"<(script|style)[^>]*>.*?</\1>", "", page, flags=re.S)
    parser = HTMLParser()
    parts: list[str] = []
    parser.handle_data = parts.append  # type: ignore[method-assign]
    parser.feed(body)
    return re.sub(r"\s+", " ", " ".join(parts))


# -- curves ------------------------------------------------------------------------------------------------


def test_thinning_keeps_ends_extremes_and_gaps() -> None:
    values = np.sin(np.arange(5000) / 50)
    values[1234], values[4321], values[3000] = 9.0, -9.0, np.nan
    kept = curves.thin(values, 200)
    assert len(kept) <= 200
    assert {0, 1234, 4321, 3000, 4999} <= set(kept.tolist())
    assert (np.diff(kept) > 0).all()
    assert curves.thin(values[:200], 200).tolist() == list(range(200))


def test_a_band_is_the_bootstrap_interval_of_the_iqm() -> None:
    values = np.random.default_rng(1).normal(size=(6, 9)).cumsum(0)
    _, low, high = curve_band(values.T, samples=20_000)
    for row, a, b in zip(values, low, high, strict=True):
        exact = one_interval(row, samples=20_000, seed=3)
        np.testing.assert_allclose([a, b], [exact.low, exact.high], atol=0.06)


def test_one_seed_has_no_band_and_several_are_joined_where_all_have_values() -> None:
    alone = Curve(np.array([10, 20, 30]), np.array([1.0, 2.0, 3.0]), np.array([1.0, np.nan, 3.0]))
    band = curves.summarise([alone], 500)
    assert band.low is None
    assert band.high is None
    np.testing.assert_array_equal(band.middle, alone.values)
    late = Curve(np.array([20, 40]), np.array([2.0, 4.0]), np.array([10.0, 30.0]))
    band = curves.summarise([alone._replace(values=np.array([1.0, 2.0, 3.0])), late], 500)
    assert band.n == 2
    assert band.steps.tolist() == [20, 30]
    np.testing.assert_allclose(band.middle, [6.0, 11.5])
    assert band.low is not None
    np.testing.assert_allclose(band.low, [2.0, 3.0])


def test_points_of_one_device_call_get_times_of_their_own() -> None:
    curve = Curve(np.array([10, 20, 30, 40]), np.array([1.0, 1.0, 3.0, 3.0]), np.zeros(4))
    np.testing.assert_allclose(curves.spread_times(curve), [0.5, 1.0, 2.0, 3.0])


# -- what is read of a run ---------------------------------------------------------------------------------


def test_settings_come_with_their_sources(tmp_path: Path) -> None:
    sources = {"config.gamma": "preset ppo/x", "config.network": "a file # of mine"}
    run = made_run(tmp_path / "a", config={"config": {"gamma": 0.9, "network": "x  # y"}}, sources=sources)
    found = {s.key: s for s in gather.gather([run]).runs[0].settings}
    assert found["config.gamma"] == ("config.gamma", "0.9", "preset ppo/x")
    assert found["config.network"] == ("config.network", "x  # y", "a file # of mine")
    assert found["env"].source == ""


def test_the_machine_is_that_of_the_agent_or_of_the_newest_whole_checkpoint(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a")
    assert gather.machine(run) == {}
    place = run.checkpoints / "step-000000000100"
    place.mkdir()
    (place / "manifest.json").write_bytes(sealed.seal({"provenance": {"jax": "1.2.3", "cores": 2}}))
    broken = run.checkpoints / "step-000000000200"
    broken.mkdir()
    (broken / "manifest.json").write_bytes(b"{")
    assert gather.machine(run) == {"cores": "2", "jax": "1.2.3"}
    run.last.mkdir()
    (run.last / "agent.json").write_bytes(sealed.seal({"provenance": {"jax": "4.5.6", "x64": False}}))
    assert gather.machine(run) == {"jax": "4.5.6", "x64": "false"}


def test_best_and_final_evaluation_of_both_kinds(tmp_path: Path) -> None:
    scores = {(s.kind, s.which): s for s in gather.gather([made_run(tmp_path / "a")]).runs[0].scores}
    assert scores["deterministic", "best"].step == 500
    assert scores["deterministic", "best"].by_seed == (45.0, 46.0, 47.0)
    final = scores["deterministic", "final"]
    assert (final.step, final.evaluations) == (1000, 2)
    assert final.interval is not None
    assert (final.interval.low, final.interval.value, final.interval.high) == (40.0, 41.0, 42.0)
    alone = gather.gather([made_run(tmp_path / "b", seeds=1)]).runs[0].scores
    assert len(alone) == 4
    assert all(score.interval is None for score in alone)


def test_what_the_kept_agents_earn_on_fresh_episodes_is_shown() -> None:
    steps = np.array([1000])
    curves = {
        name: [Curve(steps, np.array([1.0]), np.array([value]))]
        for name, value in (("eval/best_fresh_reward", 41.5), ("eval/last_fresh_reward", 40.0))
    }
    found = list(gather.scores(curves))
    assert [(s.which, s.step, s.by_seed) for s in found] == [
        ("best, fresh episodes", 1000, (41.5,)),
        ("last, fresh episodes", 1000, (40.0,)),
    ]


def add_alerts(run: RunDirectory, *rows: tuple[Any, ...]) -> None:
    """Alerts as (rule, level, onset, last, seed, evidence), in a table that takes anything."""
    fields = StoredAlert._fields
    with sqlite3.connect(run.metrics) as connection:
        connection.execute("DROP TABLE IF EXISTS alerts")
        connection.execute(f"CREATE TABLE alerts ({', '.join(fields)})")
        for rule, level, onset, last, seed, evidence in rows:
            kept = StoredAlert(rule, "collapse", seed, onset, level, last, None, None, evidence)
            connection.execute(f"INSERT INTO alerts VALUES ({', '.join('?' * len(fields))})", kept)
    connection.close()


def test_alerts_are_read_where_there_is_a_table(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a")
    assert gather.gather([run]).runs[0].alerts == ()
    with sqlite3.connect(run.metrics) as connection:  # a file from before there were any
        connection.execute("DROP TABLE alerts")
    connection.close()
    assert gather.gather([run]).runs[0].alerts is None
    add_alerts(run, ("R05", "error", 500, 900, 1, "entropy 0.03"), ("R02", "odd", 200, None, 0, None))
    alerts = gather.gather([run]).runs[0].alerts
    assert alerts is not None
    first, second = alerts
    assert first[:5] == ("R02 collapse", "warn", 200, 200, 7)
    assert (second.rule, second.level, second.seed, second.evidence) == (
        "R05 collapse",
        "error",
        8,
        "entropy 0.03",
    )
    assert (second.onset_time, second.last_time) == pytest.approx((5.0, 9.0))


def test_a_bandits_choices_and_what_it_expects_of_them_are_maps(tmp_path: Path) -> None:
    shares = {f"bandit/probability/epsilon/{cell:02d}": (0.1, 0.7, 0.2)[cell] for cell in range(3)}
    means = {f"bandit/mean/epsilon/{cell:02d}": (-1.0, 2.0, 0.5)[cell] for cell in range(3)}
    run = made_run(tmp_path / "a", values={**shares, **means})
    often, good = gather.gather([run]).choices
    assert (often.kind, often.coordinate, good.kind) == ("probability", "epsilon", "mean")
    assert often.values[:, 0] == pytest.approx([0.1, 0.7, 0.2])
    assert good.values[:, -1] == pytest.approx([-1.0, 2.0, 0.5])
    page = words(report.write_report([run], tmp_path / "r.html").path.read_text())
    assert "darkest is 70%" in page
    assert "-1 to 2" in page


@pytest.mark.parametrize(
    "told",
    ["", "[]", "{", '{"maps": 3}', '{"maps": [{"means": [[[1]]], "names": ["a"]}], "episodes": 1}',
     '{"maps": [{"means": ["<b>"], "names": ["a"]}], "episodes": 1}',
     '{"maps": [{"means": [1], "names": ["a"]}], "episodes": Infinity}'],
)  # fmt: skip
def test_a_spoilt_map_of_indices_is_left_out(told: str, tmp_path: Path) -> None:
    run = made_run(tmp_path / "a")
    run.behaviours.write_text(told)
    assert gather.gather([run]).indices == ()
    run.behaviours.write_text('{"maps": [{"means": [1, null, 3], "names": ["<i>"]}], "episodes": 4}')
    page = report.write_report([run], tmp_path / "r.html").path.read_text()
    assert "&lt;i&gt; to the right" in page


def test_a_map_has_all_cells_of_a_coordinate_in_their_order(tmp_path: Path) -> None:
    shares = {f"bandit/probability/n/{cell:02d}": cell / 1000 for cell in range(120)}
    story = gather.gather([made_run(tmp_path / "a", values=shares)])
    (often,) = story.choices
    assert often.values[:, 0] == pytest.approx(np.arange(120) / 1000)
    assert not [metric.name for metric in story.metrics if metric.name.startswith("bandit/")]
    assert often.values.shape[1] == len(often.steps) > 1


def test_a_map_of_many_cells_has_fewer_columns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = made_run(tmp_path / "a", values={f"bandit/mean/n/{cell:02d}": 1.0 for cell in range(110)})
    before = gather.gather([run]).choices[0].steps
    monkeypatch.setattr(gather, "MOST_SQUARES", 230)
    (good,) = gather.gather([run]).choices
    assert good.values.shape == (110, 2)
    assert good.steps.tolist() == [before[0], before[-1]]


def test_metrics_that_describe_a_distribution_are_one_fan(tmp_path: Path) -> None:
    spread = {"stats/obs_min": -3.0, "stats/obs_p25": -1.0, "stats/obs_p50": 0.5, "stats/obs_p75": 1.0}
    run = made_run(tmp_path / "a", values={**spread, "stats/obs_max": 4.0, "stats/alone_min": 0.0})
    metrics = {metric.name: metric for metric in gather.gather([run]).metrics}
    assert metrics["stats/obs"].group == "distributions"
    (series,) = metrics["stats/obs"].series
    assert [(low[0], high[0]) for low, high in series.fan] == [(-3.0, 4.0), (-1.0, 1.0)]
    assert series.band.middle[0] == 0.5
    assert metrics["stats/alone_min"].group == "stats"
    assert "stats/obs_min" not in metrics


def test_a_run_without_metrics_or_configuration_still_has_a_report(tmp_path: Path) -> None:
    run = directory.create("ppo", "X", 0, path=tmp_path / "new", total=10)
    run.unlock()
    page = report.write_report([run], tmp_path / "r.html").path.read_text()
    assert "No evaluation was recorded." in page
    assert "killed" in words(page)


def test_metrics_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a")
    with sqlite3.connect(run.metrics) as connection:
        connection.execute("UPDATE points SET value = 'much' WHERE step = 100")
    connection.close()
    with pytest.raises(StorageError, match="not numbers"):
        gather.gather([run])


# -- films -------------------------------------------------------------------------------------------------


def test_films_are_embedded_while_there_is_room(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "videos"
    (folder / "eval").mkdir(parents=True)
    film = b"\0\0\0\x18ftypisom"
    (folder / "a.mp4").write_bytes(film + bytes(100))
    (folder / "b: ü.mp4").write_bytes(film + bytes(1000))
    (folder / "eval" / "c.mp4").write_bytes(film)
    (folder / "no-film.mp4").write_text("<script>")
    secret = tmp_path / "secret.mp4"
    secret.write_bytes(film)
    (folder / "link.mp4").symlink_to(secret)
    found = films([folder], tmp_path / "pages" / "r.html", room=200)
    assert [(f.name, f.embedded) for f in found] == [
        ("a.mp4", True),
        ("b: ü.mp4", False),
        ("eval/c.mp4", True),
    ]
    assert found[0].address.startswith("data:video/mp4;base64,AAAAGGZ0eXBpc29t")
    assert found[1].address == "./../run/videos/b%3A%20%C3%BC.mp4"


# -- the page ----------------------------------------------------------------------------------------------


def test_text_is_escaped_and_html_is_not() -> None:
    made = tag("p", "a<b", tag("b", "&"), Html("<i></i>"), title='"', hidden=True, open=False, class_="x")
    assert made == '<p title="&quot;" hidden class="x">a&lt;b<b>&amp;</b><i></i></p>'


def hostile_run(path: Path) -> RunDirectory:
    """A run in which everything that can be a text is an attack."""
    run = made_run(
        path / "<b>evil",
        values={f"env/{EVIL}": 1.0, EVIL: 2.0},
        config={"env": EVIL, "algorithm": EVIL, "config": {"network": EVIL, EVIL: EVIL}},
        sources={"config.network": EVIL},
        message=EVIL,
    )
    add_alerts(run, (EVIL, EVIL, 500, 900, EVIL, EVIL))
    run.last.mkdir()
    (run.last / "agent.json").write_bytes(sealed.seal({"provenance": {EVIL: EVIL}}))
    return run


def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    page = report.write_report([hostile_run(tmp_path)], tmp_path / "r.html").path.read_text()
    assert page.count("<script") == 2
    assert page.count("</script") == 2
    assert "<img" not in page
    assert "<b>evil" not in page
    assert words(page).count('document.title="hacked"') >= 7
    assert any(EVIL in metric["name"] for metric in island(page)["metrics"])


def test_a_status_of_wrong_types_is_no_trouble(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a")
    odd = {"state": EVIL, "steps": EVIL, "total": [1], "started": 1e300, "seed": None, "message": {"a": EVIL}}
    (run.path / "status.json").write_text(json.dumps(odd))
    page = report.write_report([run], tmp_path / "r.html").path.read_text()
    assert "unknown" in words(page)


def test_the_page_is_complete_and_its_policy_lets_nothing_in(tmp_path: Path) -> None:
    page = report.write_report([made_run(tmp_path / "a")], tmp_path / "r.html").path.read_text()
    assert not re.search(r"""(src|href)=["'](?!data:|\./)""", page)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)
    assert " style=" not in page
    match = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert match is not None
    rules = match[1].split("; ")
    assert "default-src 'none'" in rules
    assert "unsafe" not in match[1]
    shown = words(page)
    for text in (
        "41 [40, 42]",
        "preset ppo/CartPole-v1",
        "linear: start 0.001, end 0.0",
        "deterministic",
        "stochastic",
        "7, 8, 9",
    ):
        assert text in shown
    assert page.index("Content-Security-Policy") < page.index("<style>")


def test_charts_get_a_band_only_from_several_seeds(tmp_path: Path) -> None:
    runs = [made_run(tmp_path / "three"), made_run(tmp_path / "one", seeds=1)]
    data = island(report.write_report(runs, tmp_path / "r.html").path.read_text())
    (metric,) = [m for m in data["metrics"] if m["name"] == "rollout/ep_rew_mean"]
    three, one = metric["series"]
    assert (three["n"], one["n"]) == (3, 1)
    assert three["low"][0] == 10.0
    assert three["middle"][0] == 11.0
    assert three["high"][0] == 12.0
    assert len(three["seeds"]) == 3
    assert "low" not in one
    assert "seeds" not in one
    assert three["times"][0] == pytest.approx(1.0)


@pytest.mark.slow
def test_the_page_stays_small(tmp_path: Path) -> None:
    many = {f"mine/{i:04d}": 0.123456789 * i for i in range(150)}
    first = made_run(tmp_path / "0", seeds=1, values=many)
    with sqlite3.connect(first.metrics) as connection:
        connection.execute("DELETE FROM points")
        points = [
            (key, seed, step, step / 7, float(np.sin(step * key)) * 1234.5678)
            for key in range(1, 130)
            for seed in range(2)
            for step in range(1, 200)
        ]
        connection.executemany("INSERT INTO points VALUES (?, ?, ?, ?, ?)", points)
    connection.close()
    for copy in range(1, 4):
        shutil.copytree(first.path, tmp_path / str(copy))
    written = report.write_report([RunDirectory(tmp_path / str(i)) for i in range(4)], tmp_path / "r.html")
    assert written.story.left_out == 9
    assert 500_000 < written.size < 2_000_000


def test_the_script_is_small_and_every_asset_is_packaged() -> None:
    assets = ROOT / "sparring" / "web" / "assets"
    scripts = [asset for asset in assets.iterdir() if asset.suffix == ".js"]
    assert sum(asset.stat().st_size for asset in scripts) < 40_000
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    for asset in assets.iterdir():
        name = asset.relative_to(ROOT / "sparring").as_posix()
        assert any(fnmatch(name, pattern) for pattern in patterns["sparring"]), name


# -- the verb ----------------------------------------------------------------------------------------------


def test_the_verb_writes_into_the_run_or_where_it_is_told(
    sparring: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        made_run(tmp_path / "runs" / name)
    said = sparring("report", "a", "--json")
    assert said.code == 0
    assert Path(said.last["path"]) == Path("runs/a/report.html")
    assert said.last["bytes"] == Path("runs/a/report.html").stat().st_size
    said = sparring("report", "a", "b", "runs/a", "-o", "pages/both.html", "--json")
    assert said.last["path"] == "pages/both.html"
    assert said.last["runs"] == ["runs/a", "runs/b"]
    assert "rollout/ep_rew_mean" in said.last["metrics"]
    assert sparring("report", "nothing").code == 2
    assert sparring("report", "a", "-o", "runs/a").code == 5


def test_too_many_runs_are_refused(tmp_path: Path) -> None:
    names = [made_run(tmp_path / str(i), seeds=1).path for i in range(3)]
    with pytest.raises(ConfigError, match="at most 2 runs"):
        gather.find_all(map(str, names), 2)


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    runs = [made_run(tmp_path / place / "run", seeds=1) for place in ("x", "y")]
    assert gather.labels(runs) == ["x/run", "y/run"]


def test_a_report_needs_no_jax(tmp_path: Path) -> None:
    made_run(tmp_path / "a")
    code = "import sys; from sparring.cli.main import main; print(main(sys.argv[1:]), 'jax' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, "report", str(tmp_path / "a")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "0 False"
