"""The cluster driver on a local Ray cluster of several nodes, one of which is killed during training."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparring.drivers.cluster import Board, connect
from sparring.errors import ConfigError

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kills_cluster.py"


def test_the_board_keeps_the_newest() -> None:
    board = Board()
    assert board.pull(-1) is None
    board.publish(3, b"three")
    board.publish(2, b"two")
    assert board.pull(2) == (3, b"three")
    assert board.pull(3) is None


def played(scene: str, tmp_path: Path) -> Any:
    """What the script told of a scene that it passed."""
    command = [sys.executable, str(SCRIPT), scene, "--json", str(tmp_path / "told.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((tmp_path / "told.json").read_text())[scene]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_an_actors_node_is_killed_and_another_joins(tmp_path: Path) -> None:
    told = played("actor", tmp_path)
    assert told["iterations_on_one_node"] == 3
    assert told["steps"] == told["steps_in_replay"] == told["iterations"] * 100
    assert "its node left the cluster, and was replaced" in told["events"][0]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_learners_node_is_killed_and_another_joins(tmp_path: Path) -> None:
    told = played("learner", tmp_path)
    assert told["steps"] >= told["goal"]
    assert told["learners_lost"] >= 1
    assert any("Waiting for a node that joins" in line for line in told["events"])
    assert told["steps_told_twice"] == 0


def test_no_cluster_at_an_address() -> None:
    with pytest.raises(ConfigError, match="There is no Ray cluster at"):
        connect("nobody-here", 1)
