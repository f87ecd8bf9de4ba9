"""Alerts of a running training: said, stored, posted, and stopped for."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from sparring.errors import ConfigError
from sparring.metrics import sqlite
from sparring.metrics.alerts import HealthSink, parse_policy
from sparring.metrics.health import Alert
from sparring.metrics.sink import Sink, Tee
from sparring.metrics.sqlite import SqliteSink


def run(sink: Sink, kl: float = 0.3, count: int = 40, first: int = 1) -> None:
    for i in range(first, first + count):
        sink.write(i * 1000, float(i), {"train/approx_kl": kl, "train/learning_rate": 3e-4})


@contextmanager
def listener(delay: float = 0.0, code: int = 200) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    got: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            time.sleep(delay)
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(code)
            self.end_headers()

        def log_message(self, *words: Any) -> None:
            """Quiet."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_alert_is_said_once_and_stored_with_its_onset(tmp_path: Path) -> None:
    path = tmp_path / "metrics.sqlite"
    SqliteSink(path).close()
    said: list[str] = []
    config = {"learning_rate": 0.01}
    sink = HealthSink(path, "ppo", config, total=100_000, env="CartPole-v1", say=said.append)
    assert isinstance(sink, Sink)
    run(sink)
    sink.close()
    sink.close()
    assert len(said) == 1
    assert "R02 kl_high" in said[0]
    assert said[0].endswith("Try: sparring train ppo CartPole-v1 --set learning_rate=0.003")
    (alert,) = sqlite.alerts(path)
    assert (alert.rule, alert.name, alert.level, alert.seed) == ("R02", "kl_high", "error", 0)
    assert alert.onset == 10_000  # the first full window
    assert alert.last == 40_000
    assert alert.cleared is None
    assert "approx_kl 0.3" in alert.evidence


def test_it_works_beside_the_writer_of_metrics(tmp_path: Path) -> None:
    path = tmp_path / "metrics.sqlite"
    writer = SqliteSink(path, flush_seconds=0.01)
    health = HealthSink(path, "ppo", {}, say=lambda _: None)
    for i in range(200):
        values = {"train/approx_kl": 0.3 if (i // 50) % 2 else 0.001}
        writer.write(i * 10, 0.0, values)
        health.write(i * 10, 0.0, values)
    writer.close()
    health.close()
    assert len(sqlite.read(path, "train/approx_kl").steps) == 200
    alerts = sqlite.alerts(path)
    high = [a for a in alerts if a.name == "kl_high"]
    assert len(high) == 2
    assert high[0].cleared is not None
    assert high[0].cleared > high[0].last > high[0].onset


def test_a_file_from_before_there_were_alerts_can_be_read_and_written(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    SqliteSink(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE alerts")
    connection.close()
    assert sqlite.alerts(path) is None
    sink = HealthSink(path, "ppo", {}, say=lambda _: None)
    run(sink)
    sink.close()
    assert len(sqlite.alerts(path)) == 1


def test_a_resumed_run_forgets_alerts_of_steps_it_takes_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.sqlite"
    writer = SqliteSink(path)
    first = HealthSink(path, "ppo", {}, say=lambda _: None)
    for sink in (writer, first):
        run(sink, kl=0.001, count=20)
        run(sink, kl=0.3, count=20, first=21)
    first.close()
    writer.truncate_after(20_000)
    assert sqlite.alerts(path) == []
    said: list[str] = []
    again = HealthSink(path, "ppo", {}, say=said.append)
    again.catch_up()
    assert again.engine.history(0)["train/approx_kl"].count == 20
    run(again, kl=0.001, count=20, first=21)
    again.close()
    writer.close()
    assert said == []


@pytest.mark.parametrize(("size", "rate"), [(2.0, "0.0003"), (1e-9, "0.003")])
def test_what_is_said_answers_the_bound_that_was_crossed(size: float, rate: str) -> None:
    said: list[str] = []
    sink = HealthSink(None, "ppo", {"learning_rate": 1e-3}, total=40_000, env="CartPole-v1", say=said.append)
    for i in range(1, 41):
        sink.write(i * 1000, float(i), {"stats/update_size": size, "train/learning_rate": 1e-3})
    sink.close()
    assert [line.rpartition(" ")[2] for line in said] == [f"learning_rate={rate}"]


def test_a_policy_can_stop_or_ignore(tmp_path: Path) -> None:
    stopped: list[Alert] = []
    sink = HealthSink(
        None, "ppo", {}, say=lambda _: None, on_stop=stopped.append, on_alert={"R02.kl_high": "stop"}
    )
    run(sink)
    sink.close()
    assert [a.rule.key for a in stopped] == ["R02.kl_high"]
    quiet = HealthSink(None, "ppo", {}, say=stopped.append, on_alert={"R02": "ignore"})  # type: ignore[arg-type]
    run(quiet)
    quiet.close()
    assert quiet.alerts == []
    with pytest.raises(ConfigError, match=r"R02\.kl_high"):
        HealthSink(None, "ppo", {}, on_alert={"R02.kl_hihg": "stop"})
    with pytest.raises(ConfigError, match="show, stop, ignore"):
        HealthSink(None, "ppo", {}, on_alert={"R02": "panic"})


def test_a_rule_that_judges_a_whole_run_has_nothing_to_stop(tmp_path: Path) -> None:
    path = tmp_path / "metrics.sqlite"
    SqliteSink(path).close()
    said: list[str] = []

    def stop(alert: Alert) -> None:
        raise RuntimeError(alert.rule.id)

    policy = parse_policy("R27=stop R26=stop")
    sink = HealthSink(path, "ppo", {}, total=40_000, say=said.append, on_stop=stop, on_alert=policy)
    for i in range(1, 41):
        for seed in range(6):
            values = {"rollout/ep_rew_mean": 9.0 if seed == 2 else float(i), "rollout/window_episodes": 99.0}
            sink.write(i * 1000, float(i), values, seed)
    sink.close()
    assert {(alert.rule, alert.seed) for alert in sqlite.alerts(path) if alert.rule != "R29"} == {
        ("R26", 2),
        *(("R27", seed) for seed in range(6) if seed != 2),
    }
    assert any("R26 outlier_seed" in line for line in said)


def test_a_webhook_gets_the_alert(tmp_path: Path) -> None:
    with listener() as (address, got):
        sink = HealthSink(None, "ppo", {}, say=lambda _: None, webhook=address, run="my-run")
        run(sink)
        sink.close()
    assert [m["rule"] for m in got] == ["R02"]
    assert got[0]["run"] == "my-run"
    assert got[0]["step"] == 10_000
    assert "kl_high" in got[0]["text"]


def test_a_webhook_that_is_slow_dead_or_refuses_costs_no_time_and_is_reported() -> None:
    for kind in ("slow", "dead", "refuses"):
        said: list[str] = []
        with listener(delay=0.5 if kind == "slow" else 0.0, code=500) as (alive, _):
            address = "http://127.0.0.1:9/" if kind == "dead" else alive
            sink = HealthSink(None, "ppo", {}, say=said.append, webhook=address, post_seconds=0.1)
            began = time.perf_counter()
            run(sink)
            assert time.perf_counter() - began < 0.4
            sink.close()
        assert "webhook did not take" in said[-1], kind
        assert "127.0.0.1" not in said[-1]


def test_a_webhook_must_be_an_address() -> None:
    for wrong in ("file:///etc/passwd", "slack", "http://"):
        with pytest.raises(ConfigError, match="http or https"):
            HealthSink(None, "ppo", {}, webhook=wrong)


def test_a_faulty_rule_ends_the_rules_and_not_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    sink = HealthSink(None, "ppo", {}, say=said.append)
    monkeypatch.setattr(sink.engine, "feed", lambda *_: 1 / 0)
    run(sink, count=3)
    sink.close()
    assert len(said) == 1
    assert "ZeroDivisionError" in said[0]


def test_a_disk_that_fails_is_reported_and_not_raised(tmp_path: Path) -> None:
    said: list[str] = []
    sink = HealthSink(tmp_path / "no" / "such" / "metrics.sqlite", "ppo", {}, say=said.append)
    run(sink)
    sink.close()
    assert "could not be written" in said[-1]


class Board:
    """A tracker that remembers alerts."""

    def __init__(self) -> None:
        self.got: list[tuple[Any, ...]] = []

    def alert(self, step: int, title: str, text: str, level: str = "warning", seed: int = 0) -> None:
        self.got.append((step, title, text, level, seed))


def test_trackers_get_what_is_said_and_no_notes() -> None:
    board = Board()
    sink = HealthSink(None, "ppo", {}, total=40_000, say=lambda _: None, trackers=[board], run="mine")
    run(sink, kl=0.1)
    for i in range(1, 41):
        values = {"rollout/ep_rew_mean": float(i), "rollout/ep_len_mean": 50.0}
        sink.write(i * 1000, float(i), values, seed=1)
    sink.close()
    assert any(alert.level == "note" for alert in sink.alerts)
    ((step, title, text, level, seed),) = board.got
    assert (step, title, level, seed) == (10_000, "R02 kl_high", "warning", 0)
    assert text.startswith("mine: warn: R02 kl_high at step 10,000")
    assert "learning rate too high" in text


def test_every_sink_gets_a_record_also_when_one_of_them_stops_the_run() -> None:
    class Counter:
        count = 0

        def write(self, step: int, seconds: float, values: Any, seed: int = 0) -> None:
            self.count += 1

        def close(self) -> None:
            """Nothing to do."""

    def stop(alert: Alert) -> None:
        raise RuntimeError(alert.rule.id)

    health = HealthSink(None, "ppo", {}, say=lambda _: None, on_stop=stop, on_alert={"R01": "stop"})
    after = Counter()
    with pytest.raises(RuntimeError, match="R01"):
        Tee([health, after]).write(1, 0.0, {"train/loss": float("nan")})
    assert after.count == 1
