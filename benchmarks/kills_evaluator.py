"""SIGKILLs of the evaluating process of a run, at random moments; the run must not notice.

python benchmarks/kills_evaluator.py [--kills 20] [--out docs/results/kills_evaluator.json]

A PPO on CartPole trains with evaluations and films in the background, slowed down until all kills are done
(a pause after each iteration changes nothing that is computed). The moments are random: while the process
starts, compiles, plays, films or has nothing to do; some kills follow at once on the last one. After the
others the next evaluation is waited for. A run without kills trains the same steps: agents, checkpoints and
all numbers of training must be equal to the last bit. Linux only: it finds processes in /proc.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sparring.metrics import sqlite
from sparring.runs import artefact, checkpoint

PROGRAM = """
import sys, time
from pathlib import Path
from sparring import launch
folder, hold, steps = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
values = dict(n_steps=16, batch_size=64, n_epochs=2, n_envs=4, total_timesteps=steps, eval_freq=640,
              n_eval_episodes=10, evaluation="background", video_freq=steps // 5, video_grid=1,
              checkpoint_freq=steps // 4, backend="inline")

class Pause:
    seen = 0
    def write(self, step, seconds, values, seed=0):
        if hold.exists() and "train/loss" in values:
            time.sleep(0.004 * (step - self.seen))
            self.seen = step
    def close(self):
        pass

plan = launch.plan("ppo", "gym:CartPole-v1", (0,), values=values, use_preset=False)
say = lambda text: print(text, flush=True)
launch.train(plan, run_dir=folder, say=say, device="cpu", display=lambda *_: [Pause()])
"""
EVALUATED = "eval/mean_reward"
BY_THE_CLOCK = ("time/", "eval/")
"""How names begin of what is written when it is time; the rest is written at fixed steps."""


class Run:
    """One run, the process that trains it, and every evaluating process that it was seen to have."""

    def __init__(self, place: Path, steps: int, held: bool) -> None:
        place.mkdir()
        self.folder, self.hold, self.log = place / "run", place / "hold", place / "log"
        if held:
            self.hold.touch()
        command = [sys.executable, "-c", PROGRAM, str(self.folder), str(self.hold), str(steps)]
        with self.log.open("w") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out)
        self.seen: set[int] = set()

    def evaluator(self) -> int | None:
        """The evaluating process, if there is one now."""
        for place in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((place / "stat").read_text().rsplit(")", 1)[1].split()[1])
                if parent == self.process.pid and b"spawn_main" in (place / "cmdline").read_bytes():
                    self.seen.add(int(place.name))
                    return int(place.name)
            except (OSError, IndexError, ValueError):
                continue
        return None

    def evaluated(self) -> list[int]:
        """Steps whose evaluations are in the file."""
        return [int(step) for step in sqlite.read(self.folder / "metrics.sqlite", EVALUATED).steps]

    def told(self) -> int:
        """Deaths of the evaluating process that the run spoke of."""
        text = self.log.read_text()
        return text.count("and was started again") + text.count("was given up: its process died")

    def wait(self, what: Callable[[], Any], seconds: float = 240.0) -> Any:
        end = time.monotonic() + seconds
        while not (found := what()):
            if self.process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"The run stopped or hangs:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.02)
        return found

    def finish(self) -> int:
        self.hold.unlink(missing_ok=True)
        return self.process.wait(600)

    def corrupt(self) -> int:
        """Files that are not what was written."""
        bad = len(list(self.folder.rglob(".tmp-*"))) + len(list(self.folder.rglob(".corrupt-*")))
        for place in checkpoint.listing(self.folder / "checkpoints"):
            bad += not _reads(lambda place=place: checkpoint.verify(place))
        for name in ("best", "last"):
            bad += not _reads(lambda name=name: artefact.load(self.folder / name))
        bad += not _reads(lambda: json.loads((self.folder / "evaluation.json").read_text()))
        for film in (self.folder / "videos").glob("*.mp4"):
            bad += not _reads(lambda film=film: _frames(film))
        metrics = sqlite3.connect(f"file:{self.folder / 'metrics.sqlite'}?mode=ro", uri=True)
        bad += metrics.execute("PRAGMA integrity_check").fetchone()[0] != "ok"
        metrics.close()
        return bad

    def numbers(self) -> dict[tuple[str, int], float]:
        """What training wrote at fixed steps, by name and step."""
        return {
            (name, record.step): value
            for record in sqlite.written(self.folder / "metrics.sqlite")
            for name, value in record.values.items()
            if not name.startswith(BY_THE_CLOCK)
        }

    def weights(self) -> list[bytes]:
        """The last agent and the whole state of training at the end."""
        newest = checkpoint.listing(self.folder / "checkpoints")[0]
        return [
            (self.folder / "last" / "policy.safetensors").read_bytes(),
            (newest / "state.safetensors").read_bytes(),
            newest.name.encode(),
        ]


def _reads(read: Callable[[], Any]) -> bool:
    try:
        read()
    except Exception as error:  # noqa: BLE001  (whatever is wrong with a file is counted)
        print(f"corrupt: {type(error).__name__}: {error}", flush=True)
        return False
    return True


def _frames(film: Path) -> None:
    import av

    with av.open(str(film)) as opened:
        if not sum(1 for _ in opened.decode(video=0)):
            raise ValueError(f"{film} has no frames")


def harass(run: Run, kills: int) -> list[dict[str, Any]]:
    """Kills the evaluating process; what was known at each kill, and when evaluations went on."""
    found = []
    run.wait(run.evaluator)  # the run has begun
    run.wait(run.evaluated)
    for number in range(kills):
        victim = run.wait(run.evaluator)
        again = number % 4 == 3  # at once after the last one, which was not waited for
        time.sleep(random.uniform(0.0, 1.0 if again else 6.0))
        known, told = run.evaluated(), run.told()
        os.kill(victim, signal.SIGKILL)
        began = time.monotonic()
        run.wait(lambda told=told: run.told() > told)
        entry: dict[str, Any] = {"at_step": known[-1], "at_once": again}
        if number % 4 != 2:
            time.sleep(1.0)  # what the dead one answered is in the file by now
            known = run.evaluated()
            new = run.wait(lambda known=known: run.evaluated()[len(known) :])
            entry |= {"next_at_step": new[0], "seconds_to_next": round(time.monotonic() - began, 1)}
        found.append(entry)
        print(f"kill {number + 1}: {entry}", flush=True)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=128_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    random.seed(options.seed)
    began, load = time.monotonic(), os.getloadavg()
    with tempfile.TemporaryDirectory() as place:
        run = Run(Path(place) / "killed", options.steps, held=True)
        try:
            kills = harass(run, options.kills)
            run.evaluator()
            code = run.finish()
        finally:
            run.process.kill()
        plain = Run(Path(place) / "plain", options.steps, held=False)
        try:
            plain_code = plain.finish()
        finally:
            plain.process.kill()
        status = json.loads((run.folder / "status.json").read_text())
        ours, theirs = run.numbers(), plain.numbers()
        waits = [kill["seconds_to_next"] for kill in kills if "seconds_to_next" in kill]
        result: dict[str, Any] = {
            "kills": len(kills),
            "kills_at_once_after_another": sum(kill["at_once"] for kill in kills),
            "told": run.told(),
            "given_up": run.log.read_text().count("was given up"),
            "restarts_in_metrics": int(sqlite.last(run.folder / "metrics.sqlite", "eval/restarts") or 0),
            "resumed": len(waits),
            "followed_by_another": len(kills) - len(waits),
            "seconds_to_next_evaluation": {"median": statistics.median(waits), "max": max(waits)},
            "evaluations": len(run.evaluated()),
            "evaluated_at_the_end": run.evaluated()[-1] == status["steps"],
            "exit_codes": [code, plain_code],
            "state": status["state"],
            "steps": status["steps"],
            "weights_equal": run.weights() == plain.weights(),
            "numbers": len(theirs),
            "numbers_missing": len(theirs.keys() - ours.keys()),
            "numbers_different": sum(ours.get(key) != value for key, value in theirs.items()),
            "corrupt_files": run.corrupt(),
            "films": len(list((run.folder / "videos").glob("*.mp4"))),
            "snapshots_left": len(list((run.folder / "snapshots").glob("*"))),
            "processes_left": sum(Path(f"/proc/{pid}").exists() for pid in run.seen),
            "seconds": round(time.monotonic() - began),
            "load": [round(load[0], 1), round(os.getloadavg()[0], 1)],
            "cores": os.cpu_count(),
        }
        sane = (
            result["exit_codes"] == [0, 0]
            and result["state"] == "finished"
            and result["weights_equal"]
            and result["evaluated_at_the_end"]
            and result["told"] == result["kills"] == result["restarts_in_metrics"]
            and not any(result[name] for name in result if name.endswith(("_missing", "_different", "_left")))
            and not result["corrupt_files"]
            and result["films"] > 0
        )
        result["unharmed"] = sane
        print(json.dumps(result, indent=1))
        if options.out is not None:
            options.out.write_text(json.dumps(result, indent=1) + "\n")
        if not sane:
            print(run.log.read_text()[-4000:])
    return 0 if sane else 1


if __name__ == "__main__":
    sys.exit(main())
