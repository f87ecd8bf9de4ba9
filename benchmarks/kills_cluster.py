"""Nodes that die, and ones that join, while runs train on a local Ray cluster of several nodes.

python benchmarks/kills_cluster.py [actor | learner] [--json FILE]

`actor`: the head has no core for actors; two nodes have one each. The second is killed in training: the
learner goes on with what the first actor makes, and when another node joins, the lost actor is started there.

`learner`: the learner is a Ray actor that asks for a (pretended) GPU, and its replay is in two shards. The
only node with a GPU is killed after the first checkpoint. The run says so and waits; when another node joins,
a learner there takes over and the run ends at its goal by itself.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

STORE = 100 << 20
GOAL = 6000


def started_cluster() -> Any:
    """A head that has no core for anybody."""
    from ray.cluster_utils import Cluster

    return Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False},
    )


def kill_an_actors_node() -> dict[str, Any]:
    import ray
    from speed_cluster import ENV, TINY

    from sparring.config import from_mapping
    from sparring.model import algorithm_class, assemble
    from sparring.session import Settings

    cluster = started_cluster()
    cluster.add_node(num_cpus=1, object_store_memory=STORE)
    doomed = cluster.add_node(num_cpus=1, object_store_memory=STORE)
    settings = Settings(n_envs=4, driver="cluster", actors=2, address=cluster.address)
    cls = algorithm_class("gdi")
    run: Any = assemble(cls, ENV, settings, from_mapping(cls.Config, TINY), (0,), eval_env=False).driver
    run.reschedule(1000.0)
    told: dict[str, Any] = {}
    try:
        run.advance(4)
        assert run.replaced == 0
        cluster.remove_node(doomed, allow_graceful=False)
        began = time.perf_counter()
        while run.replaced == 0:
            run.advance(1)
        told["seconds_to_notice"] = round(time.perf_counter() - began, 1)
        alone = run.iteration
        run.advance(3)  # one node is left, and learning goes on
        told["iterations_on_one_node"] = run.iteration - alone
        told["actors_made"] = [seat.made for seat in run._seats]
        cluster.add_node(num_cpus=1, object_store_memory=STORE)
        while min(seat.made for seat in run._seats) == 0:
            run.advance(1)
        run.advance(3)
        told["events"] = run.events()
        told["replaced"] = run.replaced
        told["iterations"] = run.iteration
        told["steps_in_replay"] = int(run.learner.replay.data.store.written.sum())
        told["steps"] = run.iteration * run.steps_per_iteration
    finally:
        run.close()
        ray.shutdown()
        cluster.shutdown()
    told["passed"] = told["steps"] == told["steps_in_replay"] and told["replaced"] >= 1
    return told


def kill_the_learners_node() -> dict[str, Any]:
    from speed_cluster import ENV, TINY

    from sparring import launch
    from sparring.drivers import remote
    from sparring.metrics import sqlite
    from sparring.runs import checkpoint

    remote.PLACE_SECONDS = 10.0  # a node joins as soon as somebody waits for it
    cluster = started_cluster()
    cluster.add_node(num_cpus=2, object_store_memory=STORE)
    doomed = cluster.add_node(num_cpus=1, num_gpus=1, object_store_memory=STORE)
    values = {**TINY, "n_envs": 4, "driver": "cluster", "learner": "cluster", "learner_gpus": 1.0}
    values |= {"actors": 2, "replay_shards": 2, "address": cluster.address, "total_timesteps": GOAL}
    values |= {"checkpoint_freq": 1000, "eval_freq": -1}
    said: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"

        def strike() -> None:
            while not checkpoint.listing(path / "checkpoints"):
                time.sleep(0.05)
            cluster.remove_node(doomed, allow_graceful=False)

        def say(line: str) -> None:
            said.append(line)
            if "Waiting for a node" in line:
                cluster.add_node(num_cpus=1, num_gpus=1, object_store_memory=STORE)

        striker = threading.Thread(target=strike, daemon=True)
        striker.start()
        plan = launch.plan("gdi", ENV, values=values, use_preset=False)
        began = time.perf_counter()
        try:
            run, result = launch.train(plan, run_dir=path, say=say)
            striker.join()
        finally:
            cluster.shutdown()
        steps = sqlite.read(run.metrics, "train/n_updates").steps
        lost = [line for line in said if "Doing that now" in line]
        return {
            "outcome": result.outcome,
            "seconds": round(time.perf_counter() - began, 1),
            "steps": run.read_status().steps,
            "goal": GOAL,
            "learners_lost": len(lost),
            "events": [line for line in said if "learner" in line],
            "steps_told_twice": sum(int(b <= a) for a, b in pairwise(steps)),
            "passed": result.outcome == "finished" and len(lost) >= 1,
        }


SCENES: dict[str, Callable[[], dict[str, Any]]] = {
    "actor": kill_an_actors_node,
    "learner": kill_the_learners_node,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scene", nargs="?", choices=SCENES, help="only this one")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    sys.path.insert(0, str(Path(__file__).parent))
    told = {scene: SCENES[scene]() for scene in ([options.scene] if options.scene else SCENES)}
    print(json.dumps(told))
    if options.json is not None:
        options.json.write_text(json.dumps(told, indent=1) + "\n")
    return 0 if all(scene["passed"] for scene in told.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
