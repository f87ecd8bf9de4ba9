"""SIGKILLs of actors and of the learner of an asynchronous run, at random moments; then it must end normally.

python benchmarks/kills_async.py [--actors 50] [--learners 10] [--json FILE]

The run checkpoints all the time and hands weights over as files. After each kill of the learner every
checkpoint is read back and checked, the metrics are checked by SQLite, and the run is resumed. Linux only: it
finds actors in /proc.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sparring.runs import checkpoint

PROGRAM = """
import sys
from pathlib import Path
from sparring import launch
from sparring.runs import directory
folder, total = Path(sys.argv[1]), int(sys.argv[3])
values = dict(net_arch=[16], train_freq=8, sequence_length=8, batch_size=8, sample_reuse=2, n_envs=4,
              learning_starts=64, buffer_size=4000, driver="async", actors=2, slot="file",
              slot_folder=sys.argv[2], evaluation="inline", eval_freq=-1, n_eval_episodes=2,
              total_timesteps=total, checkpoint_freq=320)
say = lambda text: print(text, flush=True)
if folder.exists():
    launch.resume(directory.find(folder), say=say, total_timesteps=total)
else:
    plan = launch.plan("gdi", "gym:CartPole-v1", (0,), values=values, use_preset=False)
    launch.train(plan, run_dir=folder, say=say)
"""
ENDLESS = 100_000_000


def actors_of(pid: int) -> list[int]:
    """The actor processes of a learner."""
    found = []
    for place in Path("/proc").iterdir():
        try:
            parent = int((place / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if place.name.isdigit() and parent == pid and b"spawn_main" in (place / "cmdline").read_bytes():
                found.append(int(place.name))
        except (OSError, IndexError, ValueError):
            continue
    return found


class Run:
    """One asynchronous run and the process that trains it at the moment."""

    def __init__(self, place: Path) -> None:
        self.folder, self.slots, self.log = place / "run", place / "slots", place / "log"
        self.process: Any = None

    def start(self, total: int) -> None:
        command = [sys.executable, "-c", PROGRAM, str(self.folder), str(self.slots), str(total)]
        with self.log.open("a") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out)

    def step(self) -> int:
        """Of the newest checkpoint."""
        found = checkpoint.listing(self.folder / "checkpoints")
        return int(found[0].name.removeprefix("step-").partition(".")[0]) if found else 0

    def replaced(self) -> int:
        return self.log.read_text().count("and was replaced")

    def wait(self, what: Callable[[], bool], seconds: float = 240.0) -> None:
        end = time.monotonic() + seconds
        while not what():
            if self.process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"The run stopped or hangs:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.02)

    def corrupt(self) -> int:
        """Files that are not what was written; checks everything there is."""
        bad = len(list((self.folder / "checkpoints").glob(".corrupt-*")))
        for place in checkpoint.listing(self.folder / "checkpoints"):
            try:
                checkpoint.verify(place)
            except checkpoint.CheckpointError:
                bad += 1
        metrics = sqlite3.connect(f"file:{self.folder / 'metrics.sqlite'}?mode=ro", uri=True)
        bad += metrics.execute("PRAGMA integrity_check").fetchone()[0] != "ok"
        metrics.close()
        return bad


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--actors", type=int, default=50)
    parser.add_argument("--learners", type=int, default=10)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    random.seed(0)
    killed = {"actors": 0, "learners": 0}
    corrupt = lost = 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        run = Run(Path(place))
        for life in range(options.learners):
            run.start(ENDLESS)
            before = run.step()
            run.wait(lambda before=before: run.step() > before)
            goal = options.actors * (life + 1) // options.learners
            while killed["actors"] < goal:
                seen, step = run.replaced(), run.step()
                time.sleep(random.random())
                victim = random.choice(actors_of(run.process.pid))
                os.kill(victim, signal.SIGKILL)
                killed["actors"] += 1
                run.wait(lambda seen=seen, step=step: run.replaced() > seen and run.step() > step + 320)
            time.sleep(random.random())
            reached = run.step()
            run.process.kill()
            run.process.wait()
            killed["learners"] += 1
            corrupt += run.corrupt()
            lost += run.step() < reached
            print(f"life {life}: {killed}, at step {run.step():,}, corrupt files {corrupt}", flush=True)
        end = run.step() + 3200
        run.start(end)
        code = run.process.wait(600)
        corrupt += run.corrupt()
        left = len(list(run.slots.iterdir()))
        result = {
            **{f"{name}_killed": count for name, count in killed.items()},
            "actors_replaced": run.replaced(),
            "exit_code": code,
            "steps": run.step(),
            "ended_at_goal": run.step() >= end,
            "corrupt_files": corrupt,
            "checkpoints_lost": lost,
            "weights_left_behind": left,
            "seconds": round(time.monotonic() - began),
        }
        print(json.dumps(result))
        if options.json is not None:
            options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if code == corrupt == lost == left == 0 and result["ended_at_goal"] else 1


if __name__ == "__main__":
    sys.exit(main())
