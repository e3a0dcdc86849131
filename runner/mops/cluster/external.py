"""An external Dask cluster: workers come and go, and the connection may be lost and made again."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from distributed import CancelledError, Client, Future

from mops.cluster.base import AVOID, FETCH_SECONDS, GONE, SECONDS, SUSPECT, RunsAgain
from mops.cluster.connect import CONNECT_SECONDS, check_address, silence_dask
from mops.cluster.other_jobs import JobCard, OtherJobs
from mops.cluster.scheduler_plugin import AttemptPlugin
from mops.cluster.shares import WEIGHTS, ShareRequest
from mops.cluster.worker_losses import (
    JOIN_SECONDS,
    POD_SECONDS,
    LossCause,
    LossSource,
    NannyRestarts,
    OomKillCounters,
    Pods,
    WorkerLoss,
    WorkerLosses,
    host_of,
)
from mops.errors import ClusterError
from mops.settings import Settings
from mops.system.cgroup import OomKills, container_kills
from mops.task import Task, TaskRequest, TaskResult
from mops.waiting import polls
from mops.worker.run_task import stop_pool

logger = logging.getLogger(__name__)
T = TypeVar("T")


_FETCH_LOOK_SECONDS = 0.25

_LOOK_SECONDS = 2.0
_SOURCES_EVERY = 5  # looks: each asks every nanny
_CLOSE_SECONDS = 5.0


class ExternalCluster:
    """A cluster that others run, reached by its scheduler's address.

    Parameters
    ----------
    address
        As Dask has it: ``tcp://host:8786``.
    card
        What this runner says of itself to others; its ``run`` names the attempt.
    threads
        Threads of a simulation: a worker's are divided by it.
    patience_s
        Seconds for which a scheduler, or a first worker, is waited for.
    pods
        Tells why workers' pods ended; None: they are none, or nobody can tell.
    """

    def __init__(self, address: str, card: JobCard, *, threads: int, patience_s: float, pods: Pods | None = None):
        self._address, self._run, self._threads, self._patience_s = address, card.run, threads, patience_s
        self._weight = WEIGHTS[card.priority]
        self._other_jobs = OtherJobs(card)
        self._claim: ShareRequest | None = None
        self._others: list[ShareRequest] = []
        self._over = threading.Event()
        self._slots = self._workers = self._n_connections = 0
        self._avoided: frozenset[str] = frozenset()
        self._addresses: frozenset[str] = frozenset()
        self._client: Client | None = None
        self._stream: object = None
        self._nannies = NannyRestarts()
        late_s = POD_SECONDS if pods else JOIN_SECONDS
        counters = OomKillCounters(self._kills)
        sources: list[LossSource] = [self._nannies, *([pods] if pods else []), counters]
        self._departures = WorkerLosses(sources, late_s=late_s, likely=counters.likely)
        self.reconnect()

    @property
    def client(self) -> Client:
        """As :attr:`mops.cluster.base.Cluster.client`."""
        assert self._client is not None
        return self._client

    @property
    def slots(self) -> int:
        """As :attr:`mops.cluster.base.Cluster.slots`."""
        return self._slots

    @property
    def pool(self) -> str:
        """As :attr:`mops.cluster.base.Cluster.pool`: the scheduler ends those of a connection with it."""
        return f"{self._run}.{self._n_connections}"

    @property
    def workers(self) -> int:
        """As :attr:`mops.cluster.base.Cluster.workers`."""
        return self._workers

    @property
    def addresses(self) -> frozenset[str]:
        """As :attr:`mops.cluster.base.Cluster.addresses`."""
        return self._addresses

    def others(self, claim: ShareRequest) -> list[ShareRequest]:
        """As :meth:`mops.cluster.base.Cluster.others`."""
        is_first, self._claim = self._claim is None, claim
        if is_first:
            self._meet()
        return self._others

    def carried(self, request: TaskRequest) -> Any:
        """As :meth:`mops.cluster.base.Cluster.carried`."""
        return request

    def result(self, future: Future[Any], given_up: Callable[[], bool]) -> TaskResult:
        """As :meth:`mops.cluster.base.Cluster.result`."""
        return cast("TaskResult", future.client.sync(_gathered, future, given_up))

    def raised_on(self, key: str) -> str:
        """As :meth:`mops.cluster.base.Cluster.raised_on`."""
        return cast("str", self.client.run_on_scheduler(_raised_on, key=key))

    def avoid(self, workers: frozenset[str]) -> None:
        """As :meth:`mops.cluster.base.Cluster.avoid`."""
        self._avoided = workers
        self.count()

    def notes(self, task: Task, avoid: frozenset[str]) -> dict[str, Any]:
        """As :meth:`mops.cluster.base.Cluster.notes`."""
        notes: dict[str, Any] = {SECONDS: task.seconds}
        if task.suspect:
            notes[SUSPECT] = True
        if avoid:
            notes[AVOID] = sorted(avoid)
        return notes

    def departed(self) -> list[WorkerLoss]:
        """As :meth:`mops.cluster.base.Cluster.departed`."""
        return self._departures.take()

    def cause(self, key: str, worker: str, asked_at: float, given_up: Callable[[], bool]) -> LossCause:
        """As :meth:`mops.cluster.base.Cluster.cause`."""
        return self._departures.cause(key, worker, asked_at, given_up)

    @property
    def alive(self) -> bool:
        """As :attr:`mops.cluster.base.Cluster.alive`.

        Dask connects a client anew by itself, at once where it can. Its tasks are gone all the same, and the
        scheduler has ended this connection's pools: nobody is to take that for the connection that it was.
        """
        return bool(self.client.status == "running" and self.client.scheduler_comm is self._stream)

    def reconnect(self) -> None:
        """As :meth:`mops.cluster.base.Cluster.reconnect`; also for the first time.

        A connection that is lost again before it has its plugin is made anew: that is the cluster's state, and neither
        a task's error nor a defect.
        """
        self._waited_for(self._connected, f"the Dask scheduler at {self._address} does not answer")
        self._waited_for(self._counted, f"the Dask cluster at {self._address} has no workers")
        self._meet()
        self._departures.look()

    def _connected(self) -> bool:
        """Connect, and have on the scheduler what the attempt needs there; tell whether it has worked."""
        self._disconnect()
        try:
            self._client = client = Client(
                self._address,
                timeout=CONNECT_SECONDS,
                set_as_default=False,
                direct_to_workers=True,  # results need not pass through the scheduler; where they must, Dask knows
            )
        except GONE:
            return False
        self._n_connections += 1
        self._stream = client.scheduler_comm
        return bool(self._asked(self._equip))

    def _equip(self) -> bool:
        plugin = AttemptPlugin(self.pool, self.client.id, self._threads / self._weight)
        self.client.register_plugin(plugin, name=plugin.name)
        self.client.subscribe_topic("all", self._departures.hear)
        self.client.subscribe_topic(NannyRestarts.TOPIC, self._nannies.hear)
        return self.alive

    def _asked(self, ask: Callable[[], T]) -> T | None:
        """Ask the cluster something; None where the connection is lost.

        While it does not stand, whatever Dask raises is the loss of it: of a client that connects again by itself, or
        is closed, any attribute may be missing.

        Raises
        ------
        Exception
            It is something else: a defect.
        """
        client = self._client
        try:
            return ask()
        except Exception as error:
            if self._client is client and self.alive and not isinstance(error, GONE):
                raise
            logger.debug("the cluster does not answer: %r", error)
            return None

    def _waited_for(self, look: Callable[[], object], what: str) -> None:
        """Look until something is there; say every 30 s what is missing.

        Raises
        ------
        ClusterError
            The time is over.
        """
        every_s, over = min(_LOOK_SECONDS, self._patience_s), self._over
        for poll in polls(every_s, self._patience_s, stopped=over.is_set, pause=over.wait, log_at_once=True):
            if look():
                return
            if poll.log_is_due:
                logger.warning("%s; waiting up to %g s", what, self._patience_s - poll.waited_s)
        raise ClusterError(
            f"{what}, for {self._patience_s:g} s",
            where=self._address,
            hint="start it, or correct MODELOPS_SCHEDULER; MODELOPS_JOB_CLUSTER_TIMEOUT is how long to wait",
        )

    def _counted(self) -> int:
        self.count()
        return self._slots

    def count(self) -> None:
        """Count the slots of the workers that are there now, without those that are avoided."""
        threads = self._asked(lambda: self.client.nthreads())
        if threads is not None:
            counted = [n for worker, n in threads.items() if worker not in self._avoided]
            self._addresses = frozenset(threads)
            self._slots, self._workers = sum(max(n // self._threads, 1) for n in counted), len(counted)

    def _meet(self) -> None:
        """Say what this job asks for, if it asks for anything; hear what others do."""
        if (claim := self._claim) is not None:
            others = self._asked(lambda: self._other_jobs.meet(self.client, self.pool, claim))
            self._others = self._others if others is None else others

    def _kills(self) -> dict[str, OomKills]:
        """Return what the kernel has killed for memory in the containers of the nannies, by host; those that answer."""
        counted = self._asked(lambda: self.client.run(container_kills, nanny=True, on_error="ignore")) or {}
        return {host_of(worker): kills for worker, kills in counted.items() if isinstance(kills, OomKills)}

    def watch(self) -> None:
        """Count slots, meet the others, look why workers went, until the cluster is left. Runs in a thread.

        A look that fails is said, and the next one is taken: without this thread slots would stay as they were, and
        departures unseen.
        """
        for n in itertools.count(1):
            if self._over.wait(_LOOK_SECONDS):
                return
            try:
                if self.alive:
                    self._look(sources=n % _SOURCES_EVERY == 0)
            except Exception:
                logger.warning("a look at the cluster failed; the next one is in %g s", _LOOK_SECONDS, exc_info=True)

    def _look(self, *, sources: bool) -> None:
        self.count()
        self._meet()
        self._departures.judge()
        if sources:
            self._departures.look()

    def stop(self, grace_s: float) -> None:
        """As :meth:`mops.cluster.base.Cluster.stop`."""
        self._over.set()  # who waits for the cluster to come back need not
        if self.alive:
            threading.Thread(target=self._stop_pools, args=(grace_s,), name="mops-stop", daemon=True).start()

    def done(self) -> None:
        """As :meth:`mops.cluster.base.Cluster.done`: they end with the connection, which is left soon."""

    def _stop_pools(self, grace_s: float) -> None:
        # No connection: nothing of ours runs there.
        self._asked(lambda: self.client.run(stop_pool, self.pool, grace_s, on_error="ignore"))

    def leave(self) -> None:
        """End this attempt's children and the connection."""
        self._over.set()
        self._disconnect()

    def _disconnect(self) -> None:
        if self._client is not None:  # the plugin ends the children
            try:
                self._client.close(timeout=_CLOSE_SECONDS)
            except Exception as error:  # noqa: BLE001 - whatever Dask makes of it, nobody uses this connection again
                logger.debug("the connection did not close well: %r", error)


async def _gathered(future: Future[Any], given_up: Callable[[], bool]) -> Any:
    """Fetch a finished task's result, as :meth:`mops.cluster.base.Cluster.result`. Runs in the client's loop.

    Dask's own gathering waits where a result is lost until it is computed again, which may take hours.
    """
    fetching = asyncio.ensure_future(future.client.gather([future], asynchronous=True))
    deadline = time.monotonic() + FETCH_SECONDS
    try:
        while not (await asyncio.wait({fetching}, timeout=_FETCH_LOOK_SECONDS))[0]:
            if future.status == "pending":
                raise RunsAgain
            if given_up():
                raise CancelledError(future.key)
            if time.monotonic() > deadline:
                raise TimeoutError(f"its result did not come within {FETCH_SECONDS:g} s")
        if fetching.cancelled():
            raise CancelledError(future.key)
        (result,) = fetching.result()
    finally:
        fetching.cancel()
    return result


def _raised_on(key: str, dask_scheduler: Any) -> str:
    """Return where a task has raised last. Runs on the scheduler."""
    task = dask_scheduler.tasks.get(key)
    return next(iter(task.erred_on), "") if task is not None else ""


@contextmanager
def connect_external(
    address: str, run: str, settings: Settings, job: str = "", pods: Pods | None = None
) -> Iterator[ExternalCluster]:
    """Connect to a cluster that is running; leave it as it was.

    Parameters
    ----------
    run
        Names the attempt.
    job
        What other jobs are told.
    pods
        As for :class:`ExternalCluster`.

    Raises
    ------
    UsageError
        The address is none.
    ClusterError
        The scheduler does not answer, or has no workers, for MODELOPS_JOB_CLUSTER_TIMEOUT seconds.
    """
    silence_dask()
    check_address(address)
    card, patience_s = JobCard(job, run, settings.priority), settings.cluster_timeout
    cluster = ExternalCluster(address, card, threads=settings.sim_threads, patience_s=patience_s, pods=pods)
    threading.Thread(target=cluster.watch, name="mops-workers", daemon=True).start()
    try:
        yield cluster
    finally:
        cluster.leave()
