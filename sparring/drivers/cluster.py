"""The cluster driver: the asynchronous driver with its actors, weight slot and replay shards on Ray.

The learner is the process that trains, here or as an actor of its own (remote.py), and keeps the replay
unless shards do. Actors run wherever Ray finds a free core; one whose node leaves is replaced, on another
node or on one that joins later, and learning goes on meanwhile.
"""

from __future__ import annotations

import contextlib
import math
import queue
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from sparring.drivers import loop
from sparring.drivers.acting import Acting, Job, decode, encode
from sparring.drivers.async_ import Async, Crew
from sparring.drivers.collector import Chunk
from sparring.drivers.ray_library import end, library, losses
from sparring.drivers.seats import CLOSE_SECONDS, DEPTH, Seat, Trouble, raised
from sparring.drivers.shards import ShardedRing, ShardLost
from sparring.drivers.slot import Slot, Weights
from sparring.drivers.tree_shards import ShardedTree
from sparring.envs.api import HostEnv
from sparring.envs.workers import THREAD_VARIABLES
from sparring.errors import CheckpointError, ConfigError, SparringError
from sparring.replay import offpolicy
from sparring.runs import tensors
from sparring.types import Algorithm, Batch, Transition

STORE_BYTES = 512 << 20
"""Shared memory that a local Ray takes: chunks and weights are small."""
GET_SECONDS = 1.0
PATIENCE = 3.0
"""Times the longest chunk of an actor that it may be silent, if that is longer than its deadline."""


def connect(address: str, cores: int, gpus: float = 0.0) -> bool:
    """Joins the cluster at an address, or starts one in this machine; True when it is ours to end.

    A local one has no dashboard, and as many cores as there are actors, and one for a learner: they share
    what the machine has.
    """
    ray = library()
    if ray.is_initialized():
        return False
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if address:
        try:
            ray.init(address=address, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"There is no Ray cluster at {address!r}: {error}. Start one with `ray start --head`, or "
                "leave address out for one in this machine."
            ) from error
    else:
        ray.init(
            num_cpus=cores + 1,
            num_gpus=math.ceil(gpus),
            include_dashboard=False,
            object_store_memory=STORE_BYTES,
            **quiet,
        )
    return True


class Board:
    """Holds the newest weights as bytes, for whoever asks; it runs as a Ray actor beside the learner."""

    def __init__(self) -> None:
        self._newest: tuple[int, bytes] | None = None

    def publish(self, version: int, data: bytes) -> None:
        if self._newest is None or version > self._newest[0]:
            self._newest = (version, data)

    def pull(self, newer_than: int) -> tuple[int, bytes] | None:
        newest = self._newest
        return newest if newest is not None and newest[0] > newer_than else None


class ClusterSlot:
    """Weights for actors of a cluster, through a Ray actor that holds the newest."""

    def __init__(self, board: Any) -> None:
        self._board = board

    @classmethod
    def beside_me(cls) -> ClusterSlot:
        """A slot on this node: it lives as long as the learner."""
        ray = library()
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        board = ray.remote(Board).options(
            num_cpus=0, scheduling_strategy=here, max_restarts=-1, max_task_retries=-1
        )
        return cls(board.remote())

    def __reduce__(self) -> tuple[type[ClusterSlot], tuple[Any]]:
        return ClusterSlot, (self._board,)

    def publish(self, version: int, weights: Weights) -> None:
        self._board.publish.remote(version, b"".join(tensors.encode(weights)))

    def pull(self, newer_than: int) -> tuple[int, Weights] | None:
        found = library().get(self._board.pull.remote(newer_than))
        return None if found is None else (found[0], tensors.decode(found[1], f"weights {found[0]}"))

    def close(self) -> None:
        library().kill(self._board)


class Performer:
    """An actor of the cluster: makes a chunk each time it is asked."""

    def __init__(self, job: Job, slot: Slot) -> None:
        """Does nothing yet: once it is there it has a place, and what then takes long is its own affair."""
        self._job, self._slot = job, slot
        self._acting: Acting | None = None
        self._chunks: Iterator[Chunk]
        self._since: float
        self._well = True

    def make(self) -> bytes:
        """A chunk; nothing once a call has raised, whose error says all."""
        if not self._well:
            return b""
        self._well = False
        if self._acting is None:
            self._begin()
        began = time.perf_counter()
        chunk = next(self._chunks)
        chunk.seconds[1] = began - self._since
        self._since, self._well = time.perf_counter(), True
        return encode(chunk)

    def close(self) -> None:
        if self._acting is not None:
            self._acting.close()

    def _begin(self) -> None:
        from sparring.drivers.platform import prepare

        prepare("cpu")  # accelerators belong to the learner
        self._acting = Acting(self._job, self._slot)
        self._chunks = self._acting.chunks()
        self._since = time.perf_counter()


class RaySeat(Seat):
    """An actor on some node; each permit is a call, and calls are answered in order."""

    SIGN = "chunk"

    def __init__(self, job: Job, slot: Slot, template: Chunk, arrived: threading.Condition) -> None:
        super().__init__(job, slot, template, arrived)
        self._ray = library()
        threads = dict.fromkeys(THREAD_VARIABLES, "1") | {"JAX_PLATFORMS": "cpu"}
        actor = self._ray.remote(Performer).options(num_cpus=1, runtime_env={"env_vars": threads})
        self._actor = actor.remote(job, slot)
        self._ready = self._actor.__ray_ready__.remote()
        self._closed: Any = None
        self._ends_by = math.inf
        self._longest = 0.0
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._asked = 0
        self._stop = threading.Event()
        self._reader = threading.Thread(target=self._read, name=f"actor-{job.number}-reader", daemon=True)
        for _ in range(DEPTH):
            self.permit()
        self._reader.start()

    def permit(self) -> None:
        self._asked += 1
        self._calls.put(self._actor.make.remote())

    def patience(self, deadline: float) -> float:
        """Steps are not heard of, only chunks, which may take longer than the deadline of a step."""
        return max(super().patience(deadline), PATIENCE * self._longest)

    def dismiss(self) -> None:
        if self._closed is None:
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._closed = self._actor.close.remote()
            self._ends_by = time.monotonic() + CLOSE_SECONDS

    def close(self) -> None:
        """One that is slow to finish what it was asked for, or has no place yet, is ended as it is."""
        self.dismiss()
        self._stop.set()
        if self._closed is not None:
            self._ray.wait([self._closed], timeout=max(self._ends_by - time.monotonic(), 0.0))
        end(self._actor)
        self._reader.join(2 * GET_SECONDS)

    def _pulse(self) -> int:
        """Silent is who owes a chunk; one that waits for a node with a free core cannot make any."""
        waits = not self.made and not self._ray.wait([self._ready], timeout=0)[0]
        return time.monotonic_ns() if waits or self._asked <= self.made else self.made

    def _read(self) -> None:
        ray = self._ray
        while not self._stop.is_set():
            try:
                call = self._calls.get(timeout=GET_SECONDS)
            except queue.Empty:
                continue
            while not self._stop.is_set():
                try:
                    data = ray.get(call, timeout=GET_SECONDS)
                    chunk = decode(self._template, data, f"a chunk of actor {self.job.number}")
                    self._longest = max(self._longest, float(chunk.seconds[0]))
                    self._arrive(chunk)
                    break
                except ray.exceptions.GetTimeoutError:
                    continue
                except (ray.exceptions.RayError, CheckpointError) as error:
                    self._fail(_trouble(error, ray))
                    return


def _trouble(error: Exception, ray: Any) -> Trouble:
    """Why an actor of the cluster is gone, in a line."""
    if isinstance(error, ray.exceptions.RayTaskError):
        cause = getattr(error, "cause", error)
        details = re.sub(r"\x1b\[\d+m", "", str(error))  # Ray colours it
        return raised(type(cause).__name__, str(cause), details, isinstance(cause, SparringError))
    if isinstance(error, losses()):
        return Trouble("died, or its node left the cluster,", str(error), killed=True)
    return Trouble(f"could not be reached ({type(error).__name__})", str(error))


class ClusterRun(Async):
    """An asynchronous run whose actors are Ray's."""

    def __init__(
        self,
        algo: Algorithm,
        env: HostEnv,
        source: str,
        seed: int,
        window: int = 100,
        crew: Crew | None = None,
        address: str = "",
    ) -> None:
        self._started = connect(address, (crew or Crew()).actors)
        try:
            super().__init__(algo, env, source, seed, window, crew)
        except BaseException:
            self._leave()
            raise

    def _open_slot(self) -> Slot:
        return ClusterSlot.beside_me()

    def _made_seat(self, job: Job) -> Seat:
        assert self._slot is not None
        return RaySeat(job, self._slot, self._template, self._arrived)

    def _open_ring(self, example: Transition, copies: int) -> Any:
        if not self.crew.shards:
            return super()._open_ring(example, copies)
        c = self.algo.config
        if offpolicy.on_host(c, self.algo.spec):
            return ShardedRing(example, c.buffer_size, c.n_steps, c.frame_stack, self.crew.shards)
        return ShardedTree(self.algo.replay, example, self.crew.shards)

    def _drawn(self) -> Batch:
        ring: Any = self._ring
        while True:
            with contextlib.suppress(ShardLost):  # what is left is drawn from
                if not isinstance(ring, ShardedTree):
                    return super()._drawn()
                return ring.draw(self.algo.plan.updates, np.random.default_rng((self._seed, self.iteration)))

    def _renew_priorities(self, errors: Any) -> None:
        ring: Any = self._ring
        if errors is not None and isinstance(ring, ShardedTree):
            ring.renew(np.asarray(errors), loop.replay_now(self.algo, self.learner.train))

    def events(self) -> list[str]:
        ring: Any = self._ring
        news, lost = super().events(), ring.news[:] if self.crew.shards else []
        if lost:
            ring.news.clear()
        return news + lost

    def close(self) -> None:
        super().close()
        ring: Any = self._ring
        if self.crew.shards:
            ring.close()
        self._leave()

    def _leave(self) -> None:
        """Ends the Ray that was started for this run."""
        if self._started:
            self._started = False
            library().shutdown()
