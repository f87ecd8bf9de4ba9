"""Writes docs/benchmarks.md from docs/results: nothing in it is typed by hand.

python benchmarks/report.py
"""

from __future__ import annotations

import json
import statistics
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from sparring.evaluation.statistics import interval, probability_of_improvement

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs"
RESULTS = DOCS / "results"
KINDS = ("deterministic", "greedy", "training")
"""By what a row of GDI is held against its control: the final greedy policy, greedy evaluations over the run,
and the episodes that were played to learn."""


def load(pattern: str) -> dict[str, list[dict[str, Any]]]:
    """Learning results by row, in order of the seed."""
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in RESULTS.glob(f"learn/{pattern}-*.json"):
        result = json.loads(path.read_text())
        rows[result["row"]].append(result)
    return {name: sorted(found, key=lambda r: r["seed"]) for name, found in rows.items()}


def score(results: list[dict[str, Any]], kind: str = "deterministic") -> str:
    """IQM and interval over seeds of the mean over 100 episodes; one seed has no interval."""
    found = interval(np.array([r[kind]["mean"] for r in results]))
    return f"{found.value:.1f}" + (f" [{found.low:.1f}, {found.high:.1f}]" if len(results) > 1 else "")


def learning() -> list[str]:
    """One line per row of learn.toml that has results."""
    ours, theirs, jax_peers = load("sparring"), load("sb3"), load("sbx")
    rows = tomllib.loads((HERE / "learn.toml").read_text())
    lines = [
        "| row | environment | steps | seeds | deterministic | stochastic | RL-Zoo | SB3 or SBX, same "
        "protocol (seeds) | target | met | steps/s | cores, date |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        if name not in ours:
            lines.append(f"| {name} | {row['env']} | | 0 | not run | | | | {row['target']} | no | | |")
            continue
        results = ours[name]
        value = interval(np.array([r["deterministic"]["mean"] for r in results])).value
        peer = f"{score(theirs[name])} ({len(theirs[name])})" if name in theirs else "not run"
        if name in jax_peers:
            peer = f"SBX {score(jax_peers[name])} ({len(jax_peers[name])})"
        met = ""
        if "minimum" in row:
            met = "yes" if value >= row["minimum"] else f"no, by {row['minimum'] - value:.1f}"
        elif "SB3" in row["target"] and name in theirs:
            other = interval(np.array([r["deterministic"]["mean"] for r in theirs[name]])).value
            met = "yes" if value >= other else f"no, by {other - value:.1f}"
        elif "SBX" in row["target"] and len(jax_peers.get(name, ())) > 1:
            low = interval(np.array([r["deterministic"]["mean"] for r in jax_peers[name]])).low
            met = "yes" if value >= low else f"no, by {low - value:.1f}"
        zoo = ""
        if "zoo" in row:
            zoo = f"{row['zoo']:g}" + (
                f", we are {row['zoo'] - value:.1f} below" if value < row["zoo"] else ""
            )
        lines.append(
            f"| {name} | {row['env']} | {results[0]['steps']:,} | {len(results)} | {score(results)} "
            f"| {score(results, 'stochastic')} | {zoo} | {peer} | {row['target']} | {met} "
            f"| {rate(results)} | {where(results)} |"
        )
    return lines


def study() -> list[str]:
    """GDI's study on LunarLander, and its controls: the chance that a seed beats one of a uniform index."""
    ours = load("sparring")
    rows = tomllib.loads((HERE / "learn.toml").read_text())
    lines = [
        "| row | what | greedy at the end | better | greedy while learning | better "
        "| episodes played to learn | better |",
        "|---|---|---|---|---|---|---|---|",
    ]

    def chance_of(name: str, base: str, kind: str) -> str:
        if name.endswith("-uniform"):
            return ""
        x, y = (np.array([[result[kind]["mean"]] for result in ours[row]]) for row in (name, base))
        return f"{float(probability_of_improvement(x, y)):.2f}"

    for name, row in rows.items():
        base = row.get("beside", name.partition("-gdi")[0] + "-gdi-uniform")
        if "-gdi" not in name or name not in ours or base not in ours:
            continue
        cells = [name, row["target"]]
        for kind in KINDS:
            told = all(r.get(kind) for r in [*ours[name], *ours[base]])
            cells += [score(ours[name], kind), chance_of(name, base, kind)] if told else ["", ""]
        lines.append(f"| {' | '.join(cells)} |")
    for path in sorted((RESULTS / "fixed").glob("*.json")):
        found = json.loads(path.read_text())
        base = f"{found['env'].partition('-')[0].lower()}-gdi-uniform"
        cells = [f"{base.removesuffix('-uniform')}, fixed"]
        best = ", ".join(f"{x:g}" for x in found["best"])
        cells.append(f"best of {len(found['tried'])} fixed indices: {best}")
        for kind, means in zip(KINDS, (found["means"], None, found.get("earned")), strict=True):
            if means is None:
                cells += ["", ""]
                continue
            known = np.array([r[kind]["mean"] for r in ours[base]])
            better = float(probability_of_improvement(np.array(means)[:, None], known[:, None]))
            middle = interval(np.array(means))
            cells += [f"{middle.value:.1f} [{middle.low:.1f}, {middle.high:.1f}]", f"{better:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def time_to() -> list[str]:
    """Steps and minutes until a greedy evaluation first reaches a score, by algorithm."""
    runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in sorted((RESULTS / "time_to").glob("*.json")):
        result = json.loads(path.read_text())
        runs[result["algorithm"]].append(result)
    if not runs:
        return ["Not measured yet."]
    some = next(iter(runs.values()))[0]
    lines = [
        f"`python benchmarks/time_to.py`: {some['env']}, the first of the evaluations every 10,000 steps (20 "
        f"greedy episodes) that reaches {some['reward']:g}; presets, one core of {some['processor']}, "
        f"{some['date']}. Median (lowest to highest) of the seeds that reached it.",
        "",
        "| algorithm | seeds that reached it | steps | minutes of training |",
        "|---|---|---|---|",
    ]
    for algorithm, found in runs.items():
        reached = [r for r in found if r["steps"] is not None]
        cells = ["", ""]
        if reached:
            steps, minutes = [r["steps"] for r in reached], [r["seconds"] / 60 for r in reached]
            cells = [
                f"{statistics.median(steps):,.0f} ({min(steps):,} to {max(steps):,})",
                f"{statistics.median(minutes):.1f} ({min(minutes):.1f} to {max(minutes):.1f})",
            ]
        lines.append(f"| {algorithm} | {len(reached)} of {len(found)} | {cells[0]} | {cells[1]} |")
    return lines


def rate(results: list[dict[str, Any]]) -> str:
    """Median steps per second of training, evaluation at the end and compilation included."""
    known = [r["steps"] / r["train_seconds"] for r in results if r.get("train_seconds")]
    return f"{statistics.median(known):,.0f}" if known else ""


def where(results: list[dict[str, Any]]) -> str:
    """The machines' cores, and when the newest seed was learned."""
    cores = sorted({r["cores"] for r in results})
    return f"{' and '.join(str(n) for n in cores)}, {max(r['date'] for r in results)}"


def speed() -> list[str]:
    """Medians, spread and ratios of the last `make bench`."""
    path = RESULTS / "bench.json"
    if not path.exists():
        return ["Not measured yet."]
    results = json.loads(path.read_text())["results"]
    lines = [
        "`make bench`. Systems take turns; median (lowest to highest) of the rounds.",
        "",
        "| case | system | steps/s | sparring is | machine |",
        "|---|---|---|---|---|",
    ]
    for case in dict.fromkeys(r["case"] for r in results if "steps_per_second" in r and r["case"] != "seeds"):
        speeds: dict[str, list[float]] = defaultdict(list)
        for r in results:
            if r["case"] == case:
                speeds[r["system"]].append(r["steps_per_second"])
        ours = statistics.median(speeds["sparring"])
        machine = next(r["machine"] for r in results if r["case"] == case)
        where = f"{machine['cores']} cores of {machine['processor']}, {machine['date']}"
        for system, values in speeds.items():
            middle = statistics.median(values)
            spread = f"{middle:,.0f} ({min(values):,.0f} to {max(values):,.0f})"
            lines.append(f"| {case} | {system} | {spread} | {ours / middle:.2f} × | {where} |")
    lines += ["", "| what | median | spread |", "|---|---|---|"]
    one = [r["seconds"] for r in results if r["case"] == "seeds" and r["system"] == "1 seeds"]
    eight = [r["seconds"] for r in results if r["case"] == "seeds" and r["system"] == "8 seeds"]
    if one and eight:
        ratios = [b / a for a, b in zip(one, eight, strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        lines.append(f"| eight seeds against one, fused | {statistics.median(ratios):.2f} × | {spread} |")
    fused = [r for r in results if r["case"] == "cartpole-fused" and r["system"] == "sparring"]
    for what, values in (
        (
            "fresh process to the end of the first update, cold",
            [r["seconds"] for r in results if r["case"] == "first-update"],
        ),
        ("compilation of the fused program and its start", [r["compile_seconds"] for r in fused]),
        ("`make demo` after installation, cold", [r["seconds"] for r in results if r["case"] == "demo"]),
    ):
        if values:
            spread = f"{min(values):.1f} to {max(values):.1f} s"
            lines.append(f"| {what} | {statistics.median(values):.1f} s | {spread} |")
    return lines


def memory() -> list[str]:
    """Who remembers: IQM and interval of the memory tasks, per core."""
    found = [json.loads(p.read_text()) for p in sorted((RESULTS / "memory").glob("*.json"))]
    if not found:
        return ["Not measured yet."]
    lines = [
        "`python benchmarks/learn_memory.py`: PPO, five seeds, 100 greedy episodes each; the best is 1.",
        "",
        "| task | core | steps | return | seeds above 0.95 | seconds, device |",
        "|---|---|---|---|---|---|",
    ]
    for r in found:
        scores = interval(np.array(r["means"]))
        solved = sum(x > 0.95 for x in r["means"])
        lines.append(
            f"| {r['env']} | {r['core']} | {r['steps']:,} | {scores.value:.2f} [{scores.low:.2f}, "
            f"{scores.high:.2f}] | {solved} of {len(r['means'])} | {r['seconds']:.0f}, {r['device']} |"
        )
    return lines


def cores() -> list[str]:
    """Time of one training step through a sequence, per core and length."""
    lines = [
        "`python benchmarks/speed_cores.py --out FILE`: forward and backward through one sequence, 16 rows, "
        "size 128, one layer; medians.",
        "",
        "| device | length | S5 | GRU | S5 is |",
        "|---|---|---|---|---|",
    ]
    for path in sorted(RESULTS.glob("cores-*.json")):
        data = json.loads(path.read_text())
        times = {(r["core"], r["length"]): r["seconds"] for r in data["results"]}
        for length in sorted({n for _, n in times}):
            s5, gru = times.get(("s5", length)), times.get(("gru", length))
            if s5 and gru:
                row = (
                    data["device"],
                    length,
                    f"{1e3 * s5:.2f} ms",
                    f"{1e3 * gru:.2f} ms",
                    f"{gru / s5:.1f} ×",
                )
                lines.append(f"| {' | '.join(map(str, row))} |")
    if (RESULTS / "cores.png").exists():
        lines += ["", "![Time of one training step by length](results/cores.png)"]
    return lines


def device() -> list[str]:
    """The fused driver on an accelerator."""
    path = RESULTS / "h200.json"
    if not path.exists():
        return []
    lines = [
        "`python benchmarks/speed_fused.py [--rows N] [--seeds M]`, best of three repetitions.",
        "",
        "| device | rows × steps | seeds | steps/s | compile |",
        "|---|---|---|---|---|",
    ]
    for line in path.read_text().splitlines():
        r = json.loads(line)
        lines.append(
            f"| {r['device']} | {r['rows']} × {r['n_steps']} | {r['seeds']} | {r['steps_per_second']:,.0f} "
            f"| {r['compile_seconds']:.1f} s |"
        )
    return lines


def learner() -> list[str]:
    """GDI's learner on an accelerator beside the device's own limits."""
    path = RESULTS / "learner-h200.json"
    if not path.exists():
        return []
    data = json.loads(path.read_text())
    matrix, copy = data["operations_per_second"] / 1e12, data["bytes_per_second"] / 1e12
    shape = f"{data['batch']} sequences of {data['length']} steps, {data['layers']} layers"
    lines = [
        f"`python benchmarks/speed_learner.py --out FILE` on {data['device']}: GDI's learner, updates of",
        f"{shape}, {data['updates']} updates per dispatch. In the same run a large matrix product",
        f"reaches {matrix:.0f} TFLOP/s and a copy {copy:.1f} TB/s; the floor is what the compiler counts",
        "for an update over these. It counts every read, cached or not, so that the true floor is lower.",
        "",
        "| core | size | update | steps/s | floor | kernels / wall |",
        "|---|---|---|---|---|---|",
    ]
    for r in data["results"]:
        share = "not seen" if r["kernels_of_wall"] is None else f"{r['kernels_of_wall']:.0%}"
        floor = f"{1e3 * r['floor_seconds']:.2f} ms ({r['of_floor']:.0%})"
        update, rate = f"{1e3 * r['seconds_per_update']:.2f} ms", f"{r['steps_per_second']:,.0f}"
        lines.append(f"| {r['core']} | {r['size']} | {update} | {rate} | {floor} | {share} |")
    return lines


def main() -> None:
    notes = (RESULTS / "notes.md").read_text() if (RESULTS / "notes.md").exists() else ""
    text = [
        "# Benchmarks",
        "",
        "Made by `python benchmarks/report.py` from docs/results; do not edit.",
        "",
        "## Learning",
        "",
        "`make learn`, or `make learn ROW=cartpole-ppo` for one row. Every seed trains once on one core with",
        "the preset of the command line; its *final* policy plays 100 episodes on fresh seeds. Scores are",
        "the interquartile mean over seeds with a 95 % bootstrap interval. SB3 2.9.2 with RL-Zoo's settings",
        "(`benchmarks/peers/run_learn.py`) is evaluated alike. RL-Zoo's own table is one run of each, on",
        "older versions of some environments (LunarLander-v2, MuJoCo v3).",
        "",
        *learning(),
        "",
        "## GDI: the study of LunarLander, and what the bandit is worth",
        "",
        "`python benchmarks/learn.py --row '*-gdi-*'`. *Better* is the probability of improvement over a",
        "uniform index: the share of pairs of seeds in which the row has the higher score, half of the ties",
        "with it. *Greedy at the end* is the final policy; *greedy while learning* the mean over the run of",
        "greedy evaluations (10 episodes) of the policy of the moment; *episodes played to learn* the mean",
        "over the run of what the behaviours earned that were chosen.",
        "",
        *study(),
        "",
        *time_to(),
        "",
        "## Speed",
        "",
        *speed(),
        "",
        "## Memory",
        "",
        *memory(),
        "",
        *cores(),
        "",
        "## Speed on an accelerator",
        "",
        *device(),
        "",
        *learner(),
        "",
        notes,
    ]
    (DOCS / "benchmarks.md").write_text("\n".join(text).rstrip() + "\n")
    print(DOCS / "benchmarks.md")


if __name__ == "__main__":
    main()
