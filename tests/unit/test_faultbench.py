"""The bench of injected faults: its cases are possible, its arithmetic is right, and a fault is seen."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sparring.config import from_mapping
from sparring.metrics.rules import RULES
from sparring.model import algorithm_class


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "faultbench.py"
    spec = importlib.util.spec_from_file_location("faultbench", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["faultbench"] = module
    spec.loader.exec_module(module)
    return module


def test_there_are_enough_faults_and_every_case_can_be_made(bench: ModuleType) -> None:
    assert len(bench.FAULTS) >= 12
    assert len(bench.NEW_FAULTS) >= len(bench.FAULTS) / 2
    assert not set(bench.NEW_FAULTS) & set(bench.FAULTS)
    ids = {rule.id for rule in RULES}
    for name, cases in {"healthy": bench.HEALTHY, **bench.FAULTS, **bench.NEW_FAULTS}.items():
        for case in cases:
            algorithm, _, settings, _ = bench.BASES[case.base]
            base = algorithm_class(algorithm)
            values = {k: v for k, v in {**settings, **case.settings}.items() if k != "n_envs"}
            from_mapping(base.Config, values)
            assert set(case.right) <= ids, name
            assert bool(case.right) == (name != "healthy")
            if case.algorithm:
                assert case.algorithm in bench.faulty_algorithms(base)


def run(seed: int, alarms: dict[str, int], right: list[str], half: str = "held out") -> dict[str, Any]:
    return {"seed": seed, "half": half, "alarms": alarms, "right": right}


def test_recall_precision_and_false_alarms_are_counted(bench: ModuleType) -> None:
    results = {
        "healthy": [run(1, {}, []), run(3, {"R02.kl_high": 5}, []), run(0, {"R05.x": 1}, [], "tune")],
        "bug": [run(1, {"R02.kl_high": 3}, ["R02.kl_high"]), run(3, {"R29.no_progress": 3}, [])],
    }
    found = bench.summary(results, "held out")
    assert found["recall"] == 0.5
    assert found["false_alarm_rate"] == 0.5
    assert found["rules"]["R02.kl_high"] == {"on_faults": 1, "on_healthy": 1, "precision": 0.5}
    assert found["faults"]["bug"]["alarmed_at_all"] == 2
    assert "R05.x" not in found["rules"]


@pytest.mark.slow
def test_a_fault_is_seen_and_a_healthy_run_is_not_blamed(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm, env, settings, _ = bench.BASES["cartpole"]
    monkeypatch.setitem(bench.BASES, "cartpole", (algorithm, env, settings, 20_000))
    healthy = bench.Case("cartpole")
    scaled = bench.Case("cartpole", ("R06",), environment={"reward_scale": 1000.0})
    (good,) = bench.judge("healthy", healthy, bench.train(healthy, (0,)), (0,))
    (bad,) = bench.judge("scaled", scaled, bench.train(scaled, (0,)), (0,))
    assert good["alarms"] == {}
    assert "R06.value_scale" in bad["right"]
