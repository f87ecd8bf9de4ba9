"""A node that dies, and one that joins, while a run trains on a local Ray cluster of several nodes.

python benchmarks/kills_cluster.py [--json FILE]

The head has no core for actors; two nodes have one each. The second node is killed in training: the learner
goes on with what the first actor makes, and when another node joins, the lost actor is started there.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

STORE = 100 << 20


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)

    import ray
    from ray.cluster_utils import Cluster

    from sparring.config import from_mapping
    from sparring.model import algorithm_class, assemble
    from sparring.session import Settings

    sys.path.insert(0, str(Path(__file__).parent))
    from speed_cluster import ENV, TINY

    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False},
    )
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
    print(json.dumps(told))
    if options.json is not None:
        options.json.write_text(json.dumps(told, indent=1) + "\n")
    return 0 if told["steps"] == told["steps_in_replay"] and told["replaced"] >= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
