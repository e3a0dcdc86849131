"""The Dask cluster of a job: the embedded one, in the runner's own process, or one that is running already."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar, cast
from weakref import WeakValueDictionary

import dask.config
from dask.system import cpu_count
from distributed import CancelledError, Client, Future, Scheduler, SchedulerPlugin, SpecCluster, Worker
from distributed.client import ClosedClientError
from distributed.protocol.pickle import dumps
from distributed.versions import VersionMismatchWarning

from mops.attempt.planning.plan import Submit
from mops.cluster.fair_queue import Turns
from mops.cluster.other_jobs import METADATA, Card, Neighbours
from mops.cluster.shares import WEIGHTS, Claim
from mops.cluster.worker_losses import (
    JOIN_SECONDS,
    POD_SECONDS,
    UNKNOWN,
    Cause,
    Counters,
    Departure,
    Departures,
    Nannies,
    Pods,
    Source,
    host_of,
)
from mops.errors import ClusterError, UsageError
from mops.settings import Settings
from mops.system.process_memory import Kills, container_kills
from mops.task import Order, Outcome
from mops.worker.run_task import leave_pool, stop_pool

logger = logging.getLogger(__name__)
T = TypeVar("T")

# One process and no memory limit: the simulations' own child processes are the isolation, and Dask's limits
# measure the worker's own process only, which here is the whole runner.
_CONFIG = {
    "distributed.scheduler.worker-saturation": 1.0,  # what does not run waits on the scheduler, not on a worker
    "distributed.scheduler.work-stealing": False,  # there is one worker
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    # How Dask watches itself: with its defaults its loop took 3.6 % of a core from 10 ms simulations, with these 1.5 %.
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "10s",
    # Of its last messages it keeps a thousand for debugging, and with them the groups of each order: 50 MiB.
    "distributed.admin.low-level-log-length": 10,
    "distributed.scheduler.http.routes": [],  # nobody asks an embedded cluster over HTTP
    "distributed.worker.http.routes": [],
}

# Nobody asks an embedded cluster for locks, queues, events or spans, and spans note every task for good. HTTP servers
# start in any case: by default they listen on every interface, and the scheduler's on port 8787, with a warning where
# another job has it (LocalCluster(dashboard_address=None) leaves that as it is).
_BARE = {"protocol": "inproc://", "extensions": {}, "dashboard": False, "dashboard_address": "127.0.0.1:0"}

# What goes from client to scheduler to worker waits for more to go with it, by default 10 and 5 ms after what went
# before: a release held up the next task, a group's last simulation its targets.
_SEND_SECONDS = 0.001

FETCH_SECONDS = 300.0
"""For a result to come from the worker that has it; after that it is computed elsewhere."""

_FETCH_LOOK_SECONDS = 0.25
GONE = (ClosedClientError, CancelledError, OSError, TimeoutError, ValueError)
"""What Dask raises where a connection ends, or a worker on the other side of it, whether or not it has noted that."""

_LOOK_SECONDS = 2.0
_SOURCES_EVERY = 5  # looks: each asks every nanny
_CONNECT_SECONDS = 10.0
_SAY_SECONDS = 30.0
_CLOSE_SECONDS = 5.0


def embedded_slots(settings: Settings) -> int:
    """Return how many simulations run at once on an embedded worker.

    As set, else the processors that this process may use (its affinity and its container's quota count) divided by
    the threads of a simulation.
    """
    return settings.slots or max(cpu_count() // settings.sim_threads, 1)


class Cluster(Protocol):
    """Where a job's tasks run."""

    @property
    def client(self) -> Client:
        """The connection. It may be another one after :meth:`reconnect`."""

    @property
    def slots(self) -> int:
        """Simulations that run at once, as last counted; 0: there is no worker."""

    @property
    def workers(self) -> int:
        """Workers, as last counted, without those that are avoided."""

    @property
    def addresses(self) -> frozenset[str]:
        """The addresses of all workers, as last counted, also of those that are avoided."""

    @property
    def pool(self) -> str:
        """The name of the attempt's pools of children on the workers; another one after :meth:`reconnect`."""

    @property
    def alive(self) -> bool:
        """Whether the connection stands."""

    def others(self, claim: Claim) -> list[Claim]:
        """Return what other jobs ask for, as last heard; what this one asks for is said to them soon."""

    def notes(self, submit: Submit, avoid: frozenset[str]) -> dict[str, Any]:
        """Return what the scheduler is to know of a task: annotations.

        Parameters
        ----------
        avoid
            Workers on which it is not to run, while there are others.
        """

    def carried(self, order: Order) -> Any:
        """Return an order as Dask is to carry it; whoever sends it holds the order until it has come back."""

    def result(self, future: Future[Any], given_up: Callable[[], bool]) -> Outcome:
        """Return what a finished task gave.

        Parameters
        ----------
        given_up
            Whether nobody waits for it any more: asked several times a second.

        Raises
        ------
        RunsAgain
            Its worker is gone, and Dask computes it again.
        KilledWorker
            Bringing it here has ended its worker, and the next one that ran it.
        CancelledError, OSError, TimeoutError
            The connection has ended meanwhile, it was given up, or its worker gives nothing.
        """

    def raised_on(self, key: str) -> str:
        """Return the address of the worker on which a task has raised; empty: it came to none."""

    def avoid(self, workers: frozenset[str]) -> None:
        """Count the slots of all workers but these, to which nothing more is sent."""

    def departed(self) -> list[Departure]:
        """Return the workers that went without being asked to, since the last call."""

    def cause(self, key: str, worker: str, asked_at: float, given_up: Callable[[], bool]) -> Cause:
        """Return why the workers of a task died, the last of which had just gone ``asked_at`` (s, monotonic).

        May wait seconds, but not once ``given_up()``.
        """

    def reconnect(self) -> None:
        """Connect anew after the scheduler was lost; tasks that were there are gone.

        Raises
        ------
        ClusterError
            It stays out of reach.
        """

    def stop(self, grace_s: float) -> None:
        """Run nothing new of this attempt on any worker; what runs gets ``grace_s`` seconds. Does not wait."""

    def done(self) -> None:
        """Note that nothing of this attempt is to run any more: its children may end. Does not wait."""


class RunsAgain(Exception):
    """What a task gave is gone with its worker, and Dask computes it again."""


_orders: WeakValueDictionary[str, Order] = WeakValueDictionary()


class _Here:
    """An order for a worker of this very process: pickled it is its key, unpickled the order itself.

    Dask pickles a task's arguments wherever they go.
    """

    def __init__(self, order: Order):
        self._key = order.key
        _orders[order.key] = order

    def __reduce__(self) -> tuple[Callable[[str], Order], tuple[str]]:
        return _order_here, (self._key,)


def _order_here(key: str) -> Order:
    return _orders[key]


class Embedded:
    """The in-process cluster, which dies with the runner."""

    alive = True
    workers = 1

    def __init__(self, client: Client, worker: Worker, run: str, slots: int):
        self.client, self._worker, self.slots, self.pool = client, worker, slots, run
        self.addresses = frozenset({worker.address})

    def others(self, claim: Claim) -> list[Claim]:
        """As :meth:`Cluster.others`: there are none."""
        return []

    def notes(self, submit: Submit, avoid: frozenset[str]) -> dict[str, Any]:
        """As :meth:`Cluster.notes`: nobody reads them."""
        return {}

    def carried(self, order: Order) -> Any:
        """As :meth:`Cluster.carried`: it stays where it is."""
        return _Here(order)

    def result(self, future: Future[Any], given_up: Callable[[], bool]) -> Outcome:
        """As :meth:`Cluster.result`: it lies in this process, and the ways of a distributed one take 2 ms."""
        try:
            return cast("Outcome", self._worker.data[future.key])
        except KeyError as gone:  # the cluster has closed
            raise CancelledError(future.key) from gone

    def raised_on(self, key: str) -> str:
        """As :meth:`Cluster.raised_on`: there is one worker."""
        return self._worker.address

    def avoid(self, workers: frozenset[str]) -> None:
        """As :meth:`Cluster.avoid`: there is no other one."""

    def departed(self) -> list[Departure]:
        """As :meth:`Cluster.departed`: its worker goes with this process only."""
        return []

    def cause(self, key: str, worker: str, asked_at: float, given_up: Callable[[], bool]) -> Cause:
        """As :meth:`Cluster.cause`."""
        return UNKNOWN

    def reconnect(self) -> None:
        """As :meth:`Cluster.reconnect`."""
        raise ClusterError("the embedded Dask cluster has closed", hint="mops jobs resume goes on")

    def stop(self, grace_s: float) -> None:
        """As :meth:`Cluster.stop`."""
        stop_pool(self.pool, grace_s)

    def done(self) -> None:
        """As :meth:`Cluster.done`: they end while the job's end is written."""
        leave_pool(self.pool)


@contextmanager
def embedded(run: str, slots: int) -> Iterator[Embedded]:
    """Start an in-process scheduler and worker with a thread for each slot.

    Parameters
    ----------
    run
        Names the attempt.
    slots
        Simulations that run at once.
    """
    _quiet()
    scheduler = {"cls": Scheduler, "options": _BARE}
    worker = {"cls": Worker, "options": {"nthreads": slots, "memory_limit": 0, **_BARE}}
    with (
        dask.config.set(_CONFIG),
        SpecCluster({0: worker}, scheduler, silence_logs=False) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        there = cluster.workers[0]
        with contextlib.suppress(AttributeError, KeyError):  # a Dask that has them elsewhere is slower, and no worse
            for stream in (client.scheduler_comm, cluster.scheduler.stream_comms[there.address]):
                stream.interval = _SEND_SECONDS
        yield Embedded(client, there, run, slots)


def _quiet() -> None:
    """Silence Dask's own log: what it knows of our tasks and connections, our own errors say."""
    names = [name for name in logging.root.manager.loggerDict if name.startswith("distributed.")]
    for name in ("distributed", "tornado.application", *names):  # Dask's loop is tornado's: what fails in its callbacks
        logging.getLogger(name).setLevel(logging.CRITICAL)


SUSPECT = "mops_suspect"
"""An annotation: the task is part of one that took down its workers."""

SECONDS = "mops_seconds"
"""An annotation: what the task will take on one slot, as far as it is known."""

AVOID = "mops_avoid"
"""An annotation: addresses of workers on which the task is not to run, while there are others."""

DEATHS = 2
"""Workers that a task may take down before it is given back, so that the one who did it is looked for."""


class OnScheduler(SchedulerPlugin):
    """What the scheduler does for an attempt.

    It ends the attempt's children on every worker as soon as the runner is gone, however it went, and gives its share
    to the others. It gives a task back as soon as two workers have died of it, a suspect's as soon as one has: by
    default Dask has four die (``allowed-failures``), which is a setting of the whole cluster. It puts the task in its
    turn among those of other jobs. And it keeps the task from workers that are faulty (:mod:`mops.attempt.faulty_workers`).

    Parameters
    ----------
    pool
        Names the pools of children that the connection has on the workers.
    client
        The connection's id.
    price
        What a second on a slot costs in turns.
    """

    def __init__(self, pool: str, client: str, price: float):
        self._pool, self._client, self._price = pool, client, price
        self.name = f"mops-{pool}-{client}"
        self.turns = Turns()
        self._allowed: WeakValueDictionary[frozenset[str], _Allowed] = WeakValueDictionary()
        self._scheduler: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what only a scheduler has, and what cannot go there: weak references."""
        return {name: value for name, value in vars(self).items() if name not in ("_allowed", "_scheduler")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _allowed=WeakValueDictionary(), _scheduler=None)

    def update_graph(
        self, scheduler: Any, *, client: str, tasks: list[Any], annotations: dict[str, Any], **_: Any
    ) -> None:
        """Give tasks their turns; count deaths from where only so many are left until Dask gives the task back."""
        if client != self._client:
            return
        self._scheduler = scheduler
        suspects, seconds = annotations.get(SUSPECT, {}), annotations.get(SECONDS, {})
        avoided = annotations.get(AVOID, {})
        for key in tasks:
            task, allowed = scheduler.tasks[key], 1 if key in suspects else DEATHS
            if task.priority is None:  # data that a task is given
                continue
            task.suspicious = max(scheduler.allowed_failures + 1 - allowed, 0)
            if key in avoided:
                # None left, and empty: no restriction. Not Dask's loose ones: stealing would not heed them.
                task.worker_restrictions = self._all_but(scheduler, frozenset(avoided[key]))
            tag = self.turns.tag(key, self._price * seconds.get(key, 0.0), _reached(scheduler))
            # Dask has the number of the graph here, by which its queue is first in, first out.
            task.priority = (task.priority[0], tag, *task.priority[2:])
        _leave_spans(scheduler, tasks)

    def _all_but(self, scheduler: Any, avoid: frozenset[str]) -> _Allowed:
        """Return the workers that a task may have: one set for all tasks that avoid the same ones."""
        allowed = self._allowed.get(avoid)
        if allowed is None:
            allowed = self._allowed[avoid] = _Allowed(worker for worker in scheduler.workers if worker not in avoid)
        return allowed

    def _loosen(self, key: Any) -> None:
        """Let a task run anywhere whose last worker has gone but for those that it avoids."""
        task = self._scheduler.tasks[key]
        if isinstance(task.worker_restrictions, _Allowed):
            task.worker_restrictions = None
            asyncio.get_running_loop().call_soon(self._schedule_again, key)

    def _schedule_again(self, key: Any) -> None:
        task = self._scheduler.tasks.get(key)
        if task is not None and task.state == "no-worker":
            self._scheduler.transitions({key: "processing"}, f"mops-loosen-{self._pool}")

    def add_worker(self, scheduler: Any, worker: str) -> None:
        """Let a worker that has come have the tasks that are waiting already."""
        for avoid, allowed in self._allowed.items():
            if worker not in avoid:
                allowed.add(worker)

    def transition(self, key: Any, start: Any, finish: Any, *_: Any, stimulus_id: str, **__: Any) -> None:
        """Note which tasks are taken from the queue, and which find no worker."""
        if finish == "no-worker":
            self._loosen(key)
        elif finish == "processing":
            self.turns.taken(key)
        elif finish == "forgotten":
            self.turns.gone(key)

    def remove_client(self, scheduler: Any, client: str) -> None:
        """Note that a connection has ended."""
        if client != self._client:
            return
        scheduler.task_metadata.get(METADATA, {}).pop(self._pool, None)
        message = {"op": "run", "function": dumps(leave_pool), "args": dumps((self._pool,)), "wait": True}
        self._ending = asyncio.ensure_future(scheduler.broadcast(msg=message, on_error="ignore"))
        scheduler.remove_plugin(self.name)


class _Allowed(set[str]):
    """Addresses of workers: a set that can be referred to weakly."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def _leave_spans(scheduler: Any, tasks: list[Any]) -> None:
    """Drop what Dask's spans would keep of tasks as long as the scheduler lives.

    That is a note of each graph, the last of which is this one's, and each group that was forgotten with its last task.
    """
    groups = {scheduler.tasks[key].group for key in tasks}
    names = {group.name for group in groups}
    with contextlib.suppress(AttributeError, KeyError, TypeError):  # a Dask whose spans are others, or that has none
        spans = scheduler.extensions["spans"].spans
        for span in {spans[group.span_id] for group in groups}:
            del span.metadata["collections"][-1:]
            span.groups -= {old for old in span.groups if old.name in names} - groups


def _reached(scheduler: Any) -> float:
    """Return the highest turn that any job has had."""
    return max(plugin.turns.reached for plugin in scheduler.plugins.values() if isinstance(plugin, OnScheduler))


class External:
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

    def __init__(self, address: str, card: Card, *, threads: int, patience_s: float, pods: Pods | None = None):
        self._address, self._run, self._threads, self._patience_s = address, card.run, threads, patience_s
        self._weight = WEIGHTS[card.priority]
        self._neighbours = Neighbours(card)
        self._claim: Claim | None = None
        self._others: list[Claim] = []
        self._over = threading.Event()
        self._slots = self._workers = self._n_connections = 0
        self._avoided: frozenset[str] = frozenset()
        self._addresses: frozenset[str] = frozenset()
        self._client: Client | None = None
        self._stream: object = None
        self._nannies = Nannies()
        late_s = POD_SECONDS if pods else JOIN_SECONDS
        counters = Counters(self._kills)
        sources: list[Source] = [self._nannies, *([pods] if pods else []), counters]
        self._departures = Departures(sources, late_s=late_s, likely=counters.likely)
        self.reconnect()

    @property
    def client(self) -> Client:
        """As :attr:`Cluster.client`."""
        assert self._client is not None
        return self._client

    @property
    def slots(self) -> int:
        """As :attr:`Cluster.slots`."""
        return self._slots

    @property
    def pool(self) -> str:
        """As :attr:`Cluster.pool`: the scheduler ends those of a connection with it, sooner or later."""
        return f"{self._run}.{self._n_connections}"

    @property
    def workers(self) -> int:
        """As :attr:`Cluster.workers`."""
        return self._workers

    @property
    def addresses(self) -> frozenset[str]:
        """As :attr:`Cluster.addresses`."""
        return self._addresses

    def others(self, claim: Claim) -> list[Claim]:
        """As :meth:`Cluster.others`."""
        is_first, self._claim = self._claim is None, claim
        if is_first:
            self._meet()
        return self._others

    def carried(self, order: Order) -> Any:
        """As :meth:`Cluster.carried`."""
        return order

    def result(self, future: Future[Any], given_up: Callable[[], bool]) -> Outcome:
        """As :meth:`Cluster.result`."""
        return cast("Outcome", future.client.sync(_gathered, future, given_up))

    def raised_on(self, key: str) -> str:
        """As :meth:`Cluster.raised_on`."""
        return cast("str", self.client.run_on_scheduler(_raised_on, key=key))

    def avoid(self, workers: frozenset[str]) -> None:
        """As :meth:`Cluster.avoid`."""
        self._avoided = workers
        self.count()

    def notes(self, submit: Submit, avoid: frozenset[str]) -> dict[str, Any]:
        """As :meth:`Cluster.notes`."""
        notes: dict[str, Any] = {SECONDS: submit.seconds}
        if submit.suspect:
            notes[SUSPECT] = True
        if avoid:
            notes[AVOID] = sorted(avoid)
        return notes

    def departed(self) -> list[Departure]:
        """As :meth:`Cluster.departed`."""
        return self._departures.take()

    def cause(self, key: str, worker: str, asked_at: float, given_up: Callable[[], bool]) -> Cause:
        """As :meth:`Cluster.cause`."""
        return self._departures.cause(key, worker, asked_at, given_up)

    @property
    def alive(self) -> bool:
        """As :attr:`Cluster.alive`.

        Dask connects a client anew by itself, at once where it can. Its tasks are gone all the same, and the
        scheduler has ended this connection's pools: nobody is to take that for the connection that it was.
        """
        return bool(self.client.status == "running" and self.client.scheduler_comm is self._stream)

    def reconnect(self) -> None:
        """As :meth:`Cluster.reconnect`; also for the first time.

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
                timeout=_CONNECT_SECONDS,
                set_as_default=False,
                direct_to_workers=True,  # results need not pass through the scheduler; where they must, Dask knows
            )
        except GONE:
            return False
        self._n_connections += 1
        self._stream = client.scheduler_comm
        return bool(self._asked(self._equip))

    def _equip(self) -> bool:
        plugin = OnScheduler(self.pool, self.client.id, self._threads / self._weight)
        self.client.register_plugin(plugin, name=plugin.name)
        self.client.subscribe_topic("all", self._departures.hear)
        self.client.subscribe_topic(Nannies.TOPIC, self._nannies.hear)
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

    def _waited_for(self, look: Callable[[], Any], what: str) -> Any:
        """Look until something is there; say every 30 s what is missing.

        Raises
        ------
        ClusterError
            The time is over.
        """
        deadline, said_at = time.monotonic() + self._patience_s, time.monotonic() - _SAY_SECONDS
        while not (found := look()):
            if time.monotonic() > deadline or self._over.wait(min(_LOOK_SECONDS, self._patience_s)):
                raise ClusterError(
                    f"{what}, for {self._patience_s:g} s",
                    where=self._address,
                    hint="start it, or correct MODELOPS_SCHEDULER; MODELOPS_JOB_CLUSTER_TIMEOUT is how long to wait",
                )
            if time.monotonic() - said_at >= _SAY_SECONDS:
                said_at = time.monotonic()
                logger.warning("%s; waiting up to %g s", what, deadline - said_at)
        return found

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
            others = self._asked(lambda: self._neighbours.meet(self.client, self.pool, claim))
            self._others = self._others if others is None else others

    def _kills(self) -> dict[str, Kills]:
        """Return what the kernel has killed for memory in the containers of the nannies, by host; those that answer."""
        counted = self._asked(lambda: self.client.run(container_kills, nanny=True, on_error="ignore")) or {}
        return {host_of(worker): kills for worker, kills in counted.items() if isinstance(kills, Kills)}

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
        """As :meth:`Cluster.stop`."""
        self._over.set()  # who waits for the cluster to come back need not
        if self.alive:
            threading.Thread(target=self._stop_pools, args=(grace_s,), name="mops-stop", daemon=True).start()

    def done(self) -> None:
        """As :meth:`Cluster.done`: they end with the connection, which is left soon."""

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
    """Fetch a finished task's result, as :meth:`Cluster.result`. Runs in the client's loop.

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
        (outcome,) = fetching.result()
    finally:
        fetching.cancel()
    return outcome


def _raised_on(key: str, dask_scheduler: Any) -> str:
    """Return where a task has raised last. Runs on the scheduler."""
    task = dask_scheduler.tasks.get(key)
    return next(iter(task.erred_on), "") if task is not None else ""


@contextmanager
def external(address: str, run: str, settings: Settings, job: str = "", pods: Pods | None = None) -> Iterator[External]:
    """Connect to a cluster that is running; leave it as it was.

    Parameters
    ----------
    run
        Names the attempt.
    job
        What other jobs are told.
    pods
        As for :class:`External`.

    Raises
    ------
    UsageError
        The address is none.
    ClusterError
        The scheduler does not answer, or has no workers, for MODELOPS_JOB_CLUSTER_TIMEOUT seconds.
    """
    _quiet()
    _check_address(address)
    card, patience_s = Card(job, run, settings.priority), settings.cluster_timeout
    cluster = External(address, card, threads=settings.sim_threads, patience_s=patience_s, pods=pods)
    threading.Thread(target=cluster.watch, name="mops-workers", daemon=True).start()
    try:
        yield cluster
    finally:
        cluster.leave()


@contextmanager
def visited(address: str, timeout_s: float = _CONNECT_SECONDS) -> Iterator[Client]:
    """Connect to a cluster that is running, to look at it and no more: also without workers, or with other versions.

    Raises
    ------
    ClusterError
        The scheduler does not answer, or goes meanwhile.
    """
    _quiet()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VersionMismatchWarning)  # who looks says so
            client = Client(address, timeout=timeout_s, set_as_default=False)
        with client:
            yield client
    except (OSError, TimeoutError) as lost:
        raise ClusterError(
            f"the Dask scheduler does not answer ({' '.join(str(lost).split()) or type(lost).__name__})",
            where=address,
            hint="is it running, and of the same Dask as this client?",
        ) from lost


def _check_address(address: str) -> None:
    scheme, separator, rest = address.partition("://")
    host, _, port = rest.rpartition(":")
    if not (separator and scheme in {"tcp", "tls", "ws", "wss"} and host and port.isdigit()):
        raise UsageError(
            f"{address!r} is not the address of a Dask scheduler",
            where="MODELOPS_SCHEDULER",
            hint="write it as Dask does, like tcp://host:8786; leave it unset to run on this machine",
        )
