"""What runs inside an environment worker: a slice of rows, told what to do through a pipe.

Imports no jax: a worker starts quickly and never touches an accelerator.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from sparring.envs.board import Board
from sparring.envs.gymnasium import GymRows
from sparring.errors import SparringError
from sparring.types import TimeStep


@dataclass(frozen=True)
class Assignment:
    """The slice of rows that a worker hosts."""

    sources: tuple[Callable[[], Any], ...]
    first_row: int
    label: str | None
    time_limit: int | None = None
    fresh_every_episode: bool | None = None


def serve(pipe: Connection, assignment: Assignment) -> None:
    """Builds the rows and answers requests until the supervisor goes away."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the supervisor decides
    threading.Thread(target=follow_parent, daemon=True).start()
    board: Board | None = None
    try:
        rows = GymRows(
            assignment.sources,
            label=assignment.label,
            time_limit=assignment.time_limit,
            first_row=assignment.first_row,
            fresh_every_episode=assignment.fresh_every_episode,
        )
        pipe.send(("ready", rows.spec))
        span = slice(assignment.first_row, assignment.first_row + rows.spec.rows)
        while True:
            request, *arguments = pipe.recv()
            if request == "attach":
                board = Board(*arguments)
                pipe.send(("done", None))
            elif request == "close":
                rows.close()
                return
            else:
                pipe.send(("done", _answer(rows, board, span, request, arguments)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the supervisor is gone
    except SparringError as error:
        pipe.send(("refused", type(error).__name__, str(error), traceback.format_exc()))
    except Exception as error:  # noqa: BLE001  (whatever an environment raises is told to the supervisor)
        pipe.send(("raised", type(error).__name__, str(error), traceback.format_exc()))
    finally:
        if board is not None:
            board.close()


def _answer(rows: GymRows, board: Board | None, span: slice, request: str, arguments: Sequence[Any]) -> Any:
    if request == "snapshot":
        return rows.snapshot()
    if request == "render":
        return rows.render()
    assert board is not None, "a worker is attached before it is started"
    if request == "step":
        _post(board.arrays, span, rows, rows.step(board.arrays["action"][span]))
        return [_numeric(info) for info in rows.last_infos]
    if request == "start":
        seed, episodes = arguments
        _post(board.arrays, span, rows, rows.start(seed, episodes))
        return None
    snapshot, seed = arguments
    time_step = rows.restore(snapshot, seed)
    _post(board.arrays, span, rows, time_step)
    return time_step.lost, rows.events()


def _post(arrays: Mapping[str, np.ndarray], span: slice, rows: GymRows, time_step: TimeStep) -> None:
    """Writes a step's outcome into this worker's slice of the shared arrays."""
    arrays["reward"][span] = time_step.reward
    arrays["terminated"][span] = time_step.terminated
    arrays["truncated"][span] = time_step.truncated
    arrays["episode"][span] = rows.episodes
    for kind, obs in (("obs", time_step.obs), ("next_obs", time_step.next_obs)):
        for name, part in obs.items() if isinstance(obs, dict) else [("", obs)]:
            arrays[f"{kind}.{name}"][span] = part
    if time_step.legal is not None:
        arrays["legal"][span] = time_step.legal
        arrays["next_legal"][span] = time_step.next_legal


def _numeric(info: Mapping[str, Any]) -> dict[str, float]:
    """The entries that are numbers; anything else stays in the worker."""
    return {
        name: float(value)
        for name, value in info.items()
        if isinstance(value, int | float | np.integer | np.floating | np.bool_)
    }


def follow_parent() -> None:
    """Ends this process when its supervisor dies, even while an environment hangs."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
