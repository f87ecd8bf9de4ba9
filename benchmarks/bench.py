"""Speed beside peers, in one run on the same cores: `make bench`.

Builds the peers' environment (.venv-peers) when it is missing, runs every case several times with the systems
taking turns, keeps all numbers in docs/results/bench.json and prints one table. Absolute times mean little on
a shared machine; ratios of the same run are what counts. `benchmarks/report.py` writes docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparring.runs.provenance import processor

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PEERS = ROOT / ".venv-peers"
RESULTS = ROOT / "docs" / "results" / "bench.json"
COLD = {**os.environ, "SPARRING_CACHE_DIR": ""}
"""No program compiled before is used."""
STEPS = {
    "cartpole-host": 50_000,
    "lunarlander-host": 65_536,
    "hopper-host": 16_384,
    "cartpole-dqn": 12_000,
    "cartpole-dqn-host": 12_000,
    "hopper-sac-host": 2_400,
}
PEERS_CASE = {"cartpole-dqn": "cartpole-dqn-host"}
"""What peers run beside a case of ours that has no Gymnasium in it."""


def peers_python() -> Path:
    """The interpreter of the peers' environment, made on first use."""
    python = PEERS / "bin" / "python"
    if not python.exists():
        print("Setting up the peers' environment (SB3, SBX, rejax) …", flush=True)
        subprocess.run([sys.executable, "-m", "venv", PEERS], check=True)
        install = [python, "-m", "pip", "install", "--progress-bar", "on"]
        subprocess.run([*install, "torch==2.13.0"], check=True)  # first: an unpinned torch pulls gigabytes
        subprocess.run([*install, "-r", HERE / "peers" / "requirements.txt"], check=True)
    return python


def measure(command: Sequence[Any]) -> dict[str, Any]:
    """What a speed script says in its last line."""
    done = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, check=False, cwd=ROOT, env=COLD
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def host_case(case: str, repeat: int, peers: Path) -> list[dict[str, Any]]:
    """One case: ours, and SB3 and SBX through Gymnasium, each with its default threads and with one."""
    steps = ["--steps", str(STEPS[case])]
    systems: dict[str, list[Any]] = {"sparring": [sys.executable, HERE / "speed_host.py", case, *steps]}
    for name in ("sb3", "sbx"):
        command = [peers, HERE / "peers" / f"speed_{name}.py", PEERS_CASE.get(case, case), *steps]
        systems |= {name: command, f"{name}-1-thread": [*command, "--threads", "1"]}
    return take_turns(case, systems, repeat)


def take_turns(case: str, systems: dict[str, list[Any]], repeat: int) -> list[dict[str, Any]]:
    """Each system once per round, so that a slow minute hits all of them."""
    found = []
    for turn in range(repeat):
        for name, command in systems.items():
            result = {**measure(command), "system": name, "case": case, "round": turn}
            found.append(result)
            print(f"{case:18s} {name:14s} {result['steps_per_second']:>12,.0f} steps/s", flush=True)
    return found


def seeds_case(repeat: int) -> list[dict[str, Any]]:
    """Eight seeds against one, fused."""
    script = HERE / "speed_fused.py"
    found = []
    for turn in range(repeat):
        for count in (1, 8):
            steps = ["--steps", "300000", "--repeat", "2", "--seeds", count]
            result = measure([sys.executable, script, *steps])
            found.append({**result, "system": f"{count} seeds", "case": "seeds", "round": turn})
            print(f"{'seeds':18s} {count} seeds in {result['seconds']:.2f} s", flush=True)
    return found


def first_update(repeat: int) -> list[dict[str, Any]]:
    """A fresh process to the end of its first update of PPO on CartPole, nothing cached."""
    code = (
        "import dataclasses\n"
        "from sparring.algos.ppo import PPO, PPOConfig\n"
        "from sparring.drivers.fused import Fused\n"
        "from sparring.drivers.platform import prepare\n"
        "from sparring.envs.classic.cartpole import CartPole\n"
        "prepare('cpu'); env = CartPole()\n"
        "config = PPOConfig(n_steps=32, batch_size=256, n_epochs=20)\n"
        "driver = Fused(PPO(dataclasses.replace(env.spec, rows=8), config), env, 8, (0,))\n"
        "driver.advance(1)\n"
    )
    found = []
    for turn in range(repeat):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env=COLD)
        seconds = time.perf_counter() - began
        found.append({"case": "first-update", "system": "sparring", "seconds": seconds, "round": turn})
        print(f"first update after {seconds:.2f} s", flush=True)
    return found


def demo(repeat: int) -> list[dict[str, Any]]:
    """`make demo` after installation: train until solved, evaluate, film; nothing compiled before is used."""
    found = []
    for turn in range(repeat):
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            done = subprocess.run(
                [sys.executable, ROOT / "examples" / "demo.py"],
                capture_output=True,
                text=True,
                check=True,
                cwd=folder,
                env=COLD,
            )
            seconds = time.perf_counter() - began
        score = re.search(r"reward +([\d.]+) ±", done.stdout)
        result = {"case": "demo", "system": "sparring", "seconds": seconds, "round": turn}
        found.append({**result, "mean": float(score[1]) if score else None})
        print(f"demo in {seconds:.1f} s, mean reward {found[-1]['mean']}", flush=True)
    return found


def table(results: list[dict[str, Any]]) -> str:
    """Medians and ratios of every case with steps per second."""
    lines = []
    for case in dict.fromkeys(r["case"] for r in results if "steps_per_second" in r and r["case"] != "seeds"):
        speeds = {}
        for r in results:
            if r["case"] == case:
                speeds.setdefault(r["system"], []).append(r["steps_per_second"])
        ours = statistics.median(speeds["sparring"])
        for name, values in speeds.items():
            middle = statistics.median(values)
            lines.append(
                f"{case:18s} {name:14s} {middle:>12,.0f} steps/s  ({min(values):,.0f} to {max(values):,.0f})"
                f"  sparring is {ours / middle:.2f} ×"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--only", action="append", help="cases: cartpole-host, …, cartpole-fused, seeds, first, demo"
    )
    a = parser.parse_args()
    peers = peers_python()
    wanted = a.only or [*STEPS, "cartpole-fused", "seeds", "first", "demo"]
    results: list[dict[str, Any]] = []
    for case in STEPS:
        if case in wanted:
            results += host_case(case, a.repeat, peers)
    if "cartpole-fused" in wanted:
        ours = [sys.executable, HERE / "speed_fused.py", "--steps", "500000", "--repeat", "2"]
        rejax = [peers, HERE / "peers" / "speed_rejax.py", "--steps", "500000"]
        results += take_turns("cartpole-fused", {"sparring": ours, "rejax": rejax}, a.repeat)
    if "seeds" in wanted:
        results += seeds_case(a.repeat)
    if "first" in wanted:
        results += first_update(a.repeat)
    if "demo" in wanted:
        results += demo(a.repeat)
    print("\n" + table(results))
    kept = json.loads(RESULTS.read_text())["results"] if RESULTS.exists() else []
    cases = {r["case"] for r in results}
    machine = {
        "cores": os.cpu_count(),
        "processor": processor(),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    merged = [r for r in kept if r["case"] not in cases] + [{**r, "machine": machine} for r in results]
    RESULTS.write_text(json.dumps({"results": merged}, indent=1) + "\n")


if __name__ == "__main__":
    main()
