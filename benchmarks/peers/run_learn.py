"""Run all rows and seeds of `learn_sb3.py` and `learn_sbx.py`, a few single-threaded processes at a time.

    python benchmarks/peers/run_learn.py [--peer sb3] [--row ROW] [--jobs 2] [--pause-file PATH]

The processes run at the lowest priority. Finished results are kept, so the command continues where it was
stopped. SIGTERM or Ctrl-C stops the children and exits. While the pause file exists, the children are
suspended and none is started.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parents[1] / "docs" / "results" / "learn"
ORDER = {
    "sb3": (
        "cartpole-ppo",
        "pendulum-ppo",
        "cartpole-a2c",
        "lunarlander-ppo",
        "mountaincar-ppo",
        "mountaincar-ppo-stack4",
        "lunarlander-dqn",
        "mountaincar-dqn",
        "cartpole-dqn",
        "pendulum-sac",
        "pendulum-td3",
    ),
    "sbx": ("hopper-sac", "hopper-td3", "lunarlandercontinuous-sac", "lunarlandercontinuous-td3"),
}
SINGLE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

Job = tuple[str, str, int]
"""A peer, one of its rows and a seed."""


def result_path(job: Job) -> Path:
    """Where the result of a job lies."""
    peer, row, seed = job
    return RESULTS / f"{peer}-{row}-{seed}.json"


def start(job: Job) -> subprocess.Popen[bytes]:
    """Start one training process."""
    peer, row, seed = job
    script = str(HERE / f"learn_{peer}.py")
    command = [sys.executable, script, "--row", row, "--seed", str(seed), "--out", str(result_path(job))]
    return subprocess.Popen(command, env=os.environ | SINGLE_THREAD)


def say(text: str) -> None:
    """One line of the log, with the time."""
    print(time.strftime("%H:%M:%S"), text, flush=True)


def run_all(waiting: list[Job], jobs: int, pause_file: Path | None) -> list[Job]:
    """Run the jobs in order, `jobs` at a time; the ones that failed are returned."""
    running: dict[Job, subprocess.Popen[bytes]] = {}
    failed: list[Job] = []
    paused = False
    try:
        while waiting or running:
            for job, process in list(running.items()):
                if process.poll() is not None:
                    del running[job]
                    if process.returncode != 0:
                        failed.append(job)
                        say(f"{job} failed with status {process.returncode}")
            wanted = pause_file is not None and pause_file.exists()
            if wanted != paused:
                paused = wanted
                say("paused" if paused else "continued")
                for process in running.values():
                    process.send_signal(signal.SIGSTOP if paused else signal.SIGCONT)
            while waiting and not paused and len(running) < jobs:
                job = waiting.pop(0)
                running[job] = start(job)
                say(f"{job} started as process {running[job].pid}")
            time.sleep(1.0)
    finally:
        for process in running.values():
            process.terminate()
            process.send_signal(signal.SIGCONT)  # a suspended process sees the termination only when it runs
        for process in running.values():
            process.wait()
    return failed


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--peer", choices=ORDER, help="only this peer")
    parser.add_argument(
        "--row", choices=[row for rows in ORDER.values() for row in rows], help="only this row"
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--pause-file", type=Path, help="suspend everything while this file exists")
    args = parser.parse_args()
    os.nice(19)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped; run the same command to continue"))
    jobs = [
        (peer, row, seed)
        for peer, rows in ORDER.items()
        for row in rows
        for seed in range(args.seeds)
        if args.peer in (None, peer) and args.row in (None, row)
    ]
    missing = [job for job in jobs if not result_path(job).exists()]
    say(f"{len(jobs) - len(missing)} of {len(jobs)} results exist, {len(missing)} to run")
    if failed := run_all(missing, args.jobs, args.pause_file):
        sys.exit(f"failed: {failed}")


if __name__ == "__main__":
    main()
