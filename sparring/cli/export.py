"""`sparring export RUN --to KIND`: metrics for tables and trackers, the agent for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.cli import agents
from sparring.cli.output import Output
from sparring.cli.parser import Options, Parser
from sparring.errors import StorageError

if TYPE_CHECKING:
    from sparring.runs.directory import RunDirectory

TABLES = ("csv", "parquet")
TRACKERS = ("tensorboard", "wandb")
POLICIES = ("safetensors", "stablehlo", "onnx")
KINDS = (*TABLES, *TRACKERS, *POLICIES)


def parser() -> Parser:
    made = Parser(
        "export",
        "Hand a run's metrics to tables and trackers, or its agent to other programs.",
        ("export last --to csv -o metrics.csv", "export last --to stablehlo -o policy.stablehlo"),
    )
    made.run_argument()
    made.add_argument("--to", required=True, choices=KINDS, metavar="KIND", help=", ".join(KINDS))
    made.add_argument(
        "-o", "--output", type=Path, metavar="PATH", help="file or folder (default: named after the run)"
    )
    made.add_argument("--best", action="store_true", help="the agent with the best evaluation, not the last")
    return made


def run(options: Options, out: Output) -> int:
    from sparring.runs import directory

    found = directory.find(options.run)
    path = options.output or Path(
        f"{found.name}-{options.to}" if options.to in TRACKERS else f"{found.name}.{options.to}"
    )
    try:
        if options.to in POLICIES:
            return _policy(options, path, out)
        return _metrics(found, options.to, path, out)
    except OSError as error:
        raise StorageError(f"{str(path)!r} cannot be written: {error.strerror or error}.") from error


def _metrics(found: RunDirectory, kind: str, path: Path, out: Output) -> int:
    from sparring.export import metrics

    if kind in TRACKERS:
        points = metrics.replay(found, kind, path)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        write = metrics.write_csv if kind == "csv" else metrics.write_parquet
        points = write(found, path)
    out.say(f"{path}: {points:,} points of {found.name}")
    if kind == "wandb":
        out.say(f"Send them with: wandb sync {path}/wandb/offline-run-*")
    out.result({"run": str(found.path), "to": kind, "path": str(path), "points": points})
    return 0


def _policy(options: Options, path: Path, out: Output) -> int:
    if options.to == "onnx":
        from sparring.export import onnx_graph  # noqa: F401  (says at once what is not installed)
    loaded = agents.load(options.run, best=options.best, trust_code=options.trust_code, say=out.say)

    from sparring.envs import registry
    from sparring.export import policy

    env = registry.host(agents.environment(loaded.plan, 1), 1)
    try:
        decisions = policy.record(loaded.agent, env)
    finally:
        env.close()
    path.parent.mkdir(parents=True, exist_ok=True)
    writers = {
        "onnx": policy.write_onnx,
        "safetensors": policy.write_safetensors,
        "stablehlo": policy.write_stablehlo,
    }
    parity, about = writers[options.to](path, loaded.agent, decisions)
    out.say(f"{path}: {path.stat().st_size:,} bytes; how to call it: {policy.beside(path)}")
    rows = about.get("batch", "rows")
    for way, ports in (("in ", about["inputs"]), ("out", about["outputs"])):
        for port in ports:
            out.say(f"  {way}  {port['name']:<24} {port['dtype']}{[rows, *port['shape']]}".replace("'", ""))
    if rows == 1:
        out.say(
            "It takes one row at a time: an operation of the network does not work for any number of them."
        )
    out.say(f"Against the agent: {parity}")
    result: dict[str, Any] = {"to": options.to, "path": str(path), "parity": parity._asdict()}
    out.result(
        {"run": str(loaded.run.path), **result, "inputs": about["inputs"], "outputs": about["outputs"]}
    )
    return 0
