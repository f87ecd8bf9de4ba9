"""Agents on the Hugging Face Hub: safetensors, JSON, a card. Pulling checks every byte and runs nothing."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from sparring.errors import CheckpointError, ConfigError, SparringError, StorageError, missing_extra
from sparring.export import card
from sparring.export.metrics import alerts
from sparring.runs import artefact, directory, sealed
from sparring.runs.directory import RunDirectory, Status
from sparring.runs.durable import temporary
from sparring.secrets import redact

SCHEMA = 1
MANIFEST, CONFIG, RESULTS, HEALTH, CARD, FILM = (
    "manifest.json",
    "config.json",
    "results.json",
    "health.json",
    "README.md",
    "replay.mp4",
)
NAMES = (*artefact.MEMBERS, CONFIG, RESULTS, HEALTH, FILM)
"""All that is ever pulled, besides the manifest and the card."""
SMALL = 16 * 2**20
"""Bytes of JSON or Markdown that are accepted."""


class HubError(SparringError):
    """The Hub refused, is not reachable, or does not know the name."""

    exit_code = 7


class Pushed(NamedTuple):
    """Where an agent went."""

    repo: str
    url: str
    files: list[str]


class Pulled(NamedTuple):
    """What came from the Hub."""

    run: RunDirectory
    revision: str
    files: list[str]
    results: dict[str, Any]


def contents(
    run: RunDirectory, place: Path, repo: str, results: Mapping[str, Any], video: Path | None
) -> dict[str, bytes]:
    """The files of a repository, by name; the agent is read and checked on the way."""
    agent = artefact.load(place)
    config = run.read_config()
    files = {name: (place / name).read_bytes() for name in artefact.MEMBERS if (place / name).is_file()}
    files[CONFIG] = _json(config)
    files[RESULTS] = _json(results)
    raised = alerts(run)
    if raised:
        files[HEALTH] = _json({"alerts": [alert._asdict() for alert in raised]})
    if video is not None:
        files[FILM] = video.read_bytes()
    listing = {name: {"size": len(body), "sha256": _digest(body)} for name, body in files.items()}
    files[MANIFEST] = sealed.seal({"schema": SCHEMA, "files": listing})
    files[CARD] = card.card(repo, agent, config, results, raised, video is not None).encode()
    return files


def push(repo: str, files: Mapping[str, bytes], *, private: bool | None = None, message: str = "") -> Pushed:
    """Uploads files in one commit, into a new repository or a known one."""
    hub = _hub()
    api = hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
    operations = [hub.CommitOperationAdd(name, body) for name, body in files.items()]
    with _explained(repo):
        made = api.create_repo(repo, private=private, exist_ok=True)
        done = api.create_commit(
            made.repo_id, operations, commit_message=message or "Agent trained by sparring"
        )
    return Pushed(made.repo_id, str(done.commit_url), sorted(files))


def pull(
    repo: str,
    path: Path | None = None,
    *,
    revision: str = "main",
    trust_code: bool = False,
    root: Path = directory.ROOT,
) -> Pulled:
    """Downloads an agent into a new run folder; every file has a known name and the hash of the manifest."""
    hub = _hub()
    api = hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
    target = path or root / repo.rpartition("/")[2]
    if target.exists():
        raise StorageError(f"{str(target)!r} exists already. Choose another folder with -o.")
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = temporary(target)
    try:
        draft.mkdir()
        with _explained(repo):
            info = api.model_info(repo, revision=revision, files_metadata=True)
            sizes = {file.rfilename: int(file.size or 0) for file in info.siblings or []}

            def fetch(name: str, limit: int) -> bytes:
                if name not in sizes:
                    raise CheckpointError(
                        f"{repo} holds no {name}: it is not an agent of sparring, or cut short."
                    )
                if sizes[name] > limit:
                    raise CheckpointError(
                        f"{repo}: {name} has {sizes[name]:,} bytes; {limit:,} are accepted."
                    )
                file = api.hf_hub_download(repo, name, revision=info.sha, local_dir=draft)
                return Path(file).read_bytes()

            files = _checked(repo, fetch)
            if CARD in sizes:  # people edit it, so it is not in the manifest
                files[CARD] = fetch(CARD, SMALL)
        return _settle(repo, target, files, str(info.sha), trust_code)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _checked(repo: str, fetch: Any) -> dict[str, bytes]:
    """The files that the manifest lists, each of the size and the hash that it says."""
    manifest = sealed.unseal(fetch(MANIFEST, SMALL), f"{repo}/{MANIFEST}")
    listing = manifest.get("files")
    if manifest.get("schema") != SCHEMA or not isinstance(listing, dict):
        raise CheckpointError(
            f"{repo}: this version of sparring reads manifests of schema {SCHEMA}, not "
            f"{manifest.get('schema')!r}. Update sparring: pip install -U sparring"
        )
    if strange := sorted(set(listing) - set(NAMES)):
        raise CheckpointError(f"{repo}: its manifest lists {strange[:3]}, which no agent of sparring has.")
    files: dict[str, bytes] = {}
    for name, entry in listing.items():
        body = fetch(name, SMALL if name.endswith(".json") else artefact.SIZE_LIMIT)
        if not isinstance(entry, dict) or (len(body), _digest(body)) != (
            entry.get("size"),
            entry.get("sha256"),
        ):
            raise CheckpointError(
                f"{repo}: {name} is not the file that was pushed: its hash differs. Nothing was kept."
            )
        files[name] = body
    return files


def _settle(repo: str, target: Path, files: dict[str, bytes], revision: str, trust_code: bool) -> Pulled:
    """A run folder of checked files."""
    config, results = (_object(repo, name, files) for name in (CONFIG, RESULTS))
    members = {name: body for name, body in files.items() if name in artefact.MEMBERS}
    draft = temporary(target)
    try:
        draft.mkdir()
        for name, body in members.items():
            (draft / name).write_bytes(body)
        agent = artefact.load(draft)
        needed = card.own_code(agent, config)
        if needed and not trust_code:
            raise ConfigError(
                f"{repo} needs code that it does not hold ({', '.join(needed)}). If you have that file and "
                "trust it, add --trust-code."
            )
        try:
            run = _run(repo, target, files, agent, config, results, draft, revision)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return Pulled(run, revision, sorted(files), results)


def _run(
    repo: str,
    target: Path,
    files: Mapping[str, bytes],
    agent: artefact.Artefact,
    config: dict[str, Any],
    results: Mapping[str, Any],
    members: Path,
    revision: str,
) -> RunDirectory:
    seeds = config.get("seeds")
    seed = seeds[0] if isinstance(seeds, list) and seeds and isinstance(seeds[0], int) else 0
    steps, mean = results.get("steps"), results.get("mean_reward")
    steps = steps if isinstance(steps, int) else 0
    name = card.algorithm_name(agent).lower()
    run = directory.create(name, agent.spec.id, seed, path=target, total=steps)
    with run:
        try:
            run.write_config(config)
            kept = run.read_config()
        except ConfigError as error:
            raise CheckpointError(f"{repo}: its {CONFIG} cannot be kept as settings: {error}") from error
        if kept != config:
            raise CheckpointError(f"{repo}: its {CONFIG} cannot be kept as the settings of a run.")
        os.rename(members, run.last)
        for file, place in ((CARD, run.path), (RESULTS, run.path), (HEALTH, run.path), (FILM, run.videos)):
            if file in files:
                (place / file).write_bytes(files[file])
        score = float(mean) if isinstance(mean, (int, float)) else None
        origin = f"pulled from {repo} at {revision[:12]}"
        started = run.read_status().started
        run.write_status(Status(name, agent.spec.id, seed, "finished", steps, steps, score, origin, started))
    return run


def _object(repo: str, name: str, files: Mapping[str, bytes]) -> dict[str, Any]:
    try:
        found = json.loads(files[name])
    except (KeyError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{repo}: {name} is missing or not JSON.") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{repo}: {name} is not a JSON object.")
    return found


@contextmanager
def _explained(repo: str) -> Iterator[None]:
    """The Hub's errors in words that say what to do."""
    from huggingface_hub import errors

    try:
        yield
    except errors.HFValidationError as error:
        raise ConfigError(f"{repo!r} is not a name on the Hub; write it as user/name.") from error
    except errors.RepositoryNotFoundError as error:
        raise HubError(
            f"There is no {repo!r} on the Hub, or it is private. Check the name, or log in: hf auth login"
        ) from error
    except errors.HfHubHTTPError as error:
        code = getattr(getattr(error, "response", None), "status_code", None)
        advice = " Log in with a token that may write: hf auth login" if code in (401, 403) else ""
        raise HubError(redact(f"The Hub refused ({str(error).splitlines()[0]}).{advice}")) from error
    except (errors.LocalTokenNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise HubError(redact(f"{error} Log in with: hf auth login")) from error
    except (
        errors.HTTPError,
        OSError,
        RuntimeError,
    ) as error:  # RuntimeError is the client's word for an upload that failed
        cause = error.__cause__ or error
        raise HubError(redact(f"The Hub could not be reached or a file not written: {cause}")) from error


def require() -> None:
    """Says that the client is missing before anything takes time."""
    _hub()


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise missing_extra("huggingface_hub", "hub") from error
    return huggingface_hub


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=1, allow_nan=False).encode() + b"\n"


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
