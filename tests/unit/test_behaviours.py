"""What an agent's heads and behaviours are worth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.bandit.space import Coordinate, Space
from sparring.cli.main import main
from sparring.evaluation.behaviours import Map


def test_means_by_cell() -> None:
    space = Space((Coordinate.interval("a", 0, 1, 2), Coordinate.interval("b", 0, 1, 3)))
    found = Map(space, np.array([[0, 0], [0, 2], [1, 2]]), np.array([1.0, 3.0, 5.0]))
    assert found.mean(0).tolist() == [2.0, 5.0]
    np.testing.assert_array_equal(found.mean(1), [1.0, np.nan, 4.0])
    np.testing.assert_array_equal(found.mean(0, 1), [[1.0, np.nan, 3.0], [np.nan, np.nan, 5.0]])
    assert found.as_json() == {"a": [2.0, 5.0], "b": [1.0, None, 4.0]}


@pytest.mark.slow
def test_a_trained_agents_map(tmp_path: Path, capsys: Any) -> None:
    run = tmp_path / "run"
    tiny = ["net_arch=[8]", "n_envs=4", "train_freq=8", "sequence_length=8", "batch_size=4", "eval_freq=-1"]
    start = ["train", "gdi", "CartPole-v1", "--total-timesteps", "256", "--run-dir", str(run), "--quiet"]
    assert main([*start, "--set", *tiny, "n_eval_episodes=2", "learning_starts=64"]) == 0
    capsys.readouterr()
    picture = tmp_path / "map.png"
    assert main(["behaviours", str(run), "--episodes", "32", "-o", str(picture), "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(told["heads"]) == {"1", "2", "1+2"}
    assert {name: len(cells) for name, cells in told["cells"].items()} == {
        "inverse_tau_1": 10,
        "inverse_tau_2": 10,
        "epsilon": 6,
    }
    assert told["episodes"] == 32
    assert picture.read_bytes().startswith(b"\x89PNG")
