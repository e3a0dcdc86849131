"""An external Dask cluster: workers come and go, and the connection may break and be made again.

:mod:`mops.cluster.dask_calls` makes all calls that wait for an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar, cast

from dask.base import annotate
from distributed import CancelledError, Client, Future, KilledWorker

from mops.cluster.base import Outcomes, RunsAgain, SentTask, ShareRequest, WorkersDied
from mops.cluster.dask_calls import CONNECT_SECONDS, CONNECTION_ERRORS, FETCH_SECONDS, DaskCalls, new_client
from mops.cluster.scheduler_plugin import AVOID, COST, SUSPECT, AttemptPlugin
from mops.cluster.shares import WEIGHTS, OtherJobs, at_most, of_pool, pool_of, queue_weight, resource_of
from mops.cluster.worker_losses import (
    JOIN_SECONDS,
    POD_SECONDS,
    LossSource,
    NannyRestarts,
    OomKillCounters,
    Pods,
    WorkerLoss,
    WorkerLosses,
    host_of,
)
from mops.errors import ClusterError, NoAnswer, UsageError
from mops.settings import Settings
from mops.system.process_memory import trim_heap
from mops.system.resources import OomKills, container_kills
from mops.task import ResultBuffer, RunningStep, Task, TaskRequest
from mops.verdicts import LossCause
from mops.waiting import polls
from mops.worker.dask_worker import topic_of
from mops.worker.run_task import LONG_STEPS, buffers_left, run_task, stop_pool

logger = logging.getLogger(__name__)
T = TypeVar("T")

GivenUp = Callable[[Any], bool]

_NO_CLUSTER = "start the cluster, or correct MODELOPS_SCHEDULER"
_YIELD_SECONDS = 0.25  # between two lists of fetched results, at most
_WATCH_SECONDS = 2.0
_SOURCES_EVERY = 5  # rounds of the watching thread, because each asks every nanny
_MOST_SILENCES = 6  # questions in a row that the scheduler has not answered: then the connection counts as broken


def check_address(address: str) -> None:
    """Raise UsageError if an address of a scheduler is malformed."""
    scheme, separator, rest = address.partition("://")
    host, _, port = rest.rpartition(":")
    hint = ""
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        hint = "write an IPv6 address in brackets, like tcp://[fd00::1]:8786"
    elif not (separator and scheme in {"tcp", "tls", "ws", "wss"} and host and port.isdigit()):
        hint = "use a form like tcp://host:8786, or unset MODELOPS_SCHEDULER to run on this machine"
    if hint:
        what = f"{address!r} is not the address of a Dask scheduler"
        raise UsageError(what, where="MODELOPS_SCHEDULER", hint=hint)


@contextmanager
def connect_external(
    address: str, run_id: str, settings: Settings, job: str = "", pods: Pods | None = None
) -> Iterator[ExternalCluster]:
    """Connect to a running cluster for the body of a ``with`` statement; ``run_id`` names the attempt.

    UsageError: the address is malformed. ClusterError: the scheduler does not answer, or has no workers, for
    MODELOPS_JOB_CLUSTER_TIMEOUT seconds.
    """
    check_address(address)
    cluster = ExternalCluster(address, run_id, settings, job, pods)
    threading.Thread(target=cluster.watch, name="mops-workers", daemon=True).start()
    try:
        yield cluster
    finally:
        cluster.close()


class ExternalCluster:
    """A :class:`mops.cluster.base.Cluster` that mops did not start, at the address of its scheduler."""

    def __init__(
        self,
        address: str,  # as Dask writes it: tcp://host:8786
        run_id: str,
        settings: Settings,
        job: str,
        pods: Pods | None,  # None: the workers are not pods, or Kubernetes cannot be asked
    ):
        self._address, self._run_id, self._job_name = address, run_id, job
        self._pools = pool_of(settings, alone=False), pool_of(settings, alone=True)
        self._threads, self.timeout_s = settings.sim_threads, settings.cluster_timeout
        self._jobs_there = OtherJobs(job, run_id, settings.priority)
        # Until the job begins: it takes nothing from other jobs, and asks an autoscaler for a worker.
        weight, pool = WEIGHTS[settings.priority], self._pools[False]
        self._request = ShareRequest(weight, 0.0, slots=1, sim_threads=self._threads, pool=pool)
        self._has_begun = False
        self._other_requests: list[ShareRequest] = []
        self._long_steps: list[RunningStep] = []
        self._hint = "see what the service lacks: mops cluster status" if pods else _NO_CLUSTER
        self._closing = threading.Event()
        self.slots = self.workers = self._avoided_slots = self._n_connections = 0
        self._avoided: frozenset[str] = frozenset()
        self.addresses: frozenset[str] = frozenset()
        self._connection: DaskConnection | None = None
        self._n_silences = 0
        self._stream: object = None
        self._nannies = NannyRestarts()
        late_s = POD_SECONDS if pods else JOIN_SECONDS
        counters = OomKillCounters(self._oom_kills)
        sources: list[LossSource] = [self._nannies, *([pods] if pods else []), counters]
        self._losses = WorkerLosses(sources, late_s=late_s, likely=counters.likely_cause)
        self.reconnect()

    @property
    def connection(self) -> DaskConnection:
        assert self._connection is not None
        return self._connection

    @property
    def calls(self) -> DaskCalls:
        return self.connection.calls

    @property
    def client(self) -> Client:
        return self.calls.client

    @property
    def pool_id(self) -> str:  # another one for each connection: the scheduler ends the pools of a broken one
        return f"{self._run_id}.{self._n_connections}"

    def other_jobs(self, request: ShareRequest) -> list[ShareRequest]:
        had_begun, self._has_begun = self._has_begun, True
        has_moved = request.pool != self._request.pool
        self._request = replace(request, slots=request.slots + self._avoided_slots)  # others run in their place
        if has_moved:
            logger.info("%s: continues on the workers of pool %s", self._job_name, request.pool or "any")
            self.count_slots()
        if has_moved or not had_begun:
            self._exchange_requests()
        return self._other_requests

    def results(self, sent: Sequence[SentTask], given_up: Callable[[SentTask], bool]) -> Iterator[Outcomes]:
        return fetched(self.calls, cast("Sequence[Future[Any]]", sent), given_up)

    def worker_that_raised(self, key: str) -> str:
        return self.calls.on_scheduler(_worker_that_raised, key=key)

    def avoid(self, workers: frozenset[str]) -> None:
        self._avoided = workers
        self.count_slots()

    def worker_losses(self) -> list[WorkerLoss]:
        return self._losses.take()

    def loss_cause(self, key: str, worker: str, asked_at: float, given_up: Callable[[], bool]) -> LossCause:
        return self._losses.cause(key, worker, asked_at, given_up)

    def long_steps(self) -> Sequence[RunningStep]:
        return self._long_steps

    @property
    def is_connected(self) -> bool:
        # Dask may reconnect a client by itself, at once. By then the scheduler has dropped the client's tasks and ended
        # the connection's pools, so that the new stream counts as another connection. A scheduler that answers nothing
        # for a minute counts as lost too.
        is_silent = self._n_silences >= _MOST_SILENCES
        return bool(not is_silent and self.client.status == "running" and self.client.scheduler_comm is self._stream)

    def reconnect(self) -> None:  # also makes the first connection
        self._wait_until(self._connect, f"the Dask scheduler at {self._address} does not answer")
        workers = f"workers{of_pool(self._request.pool)}"
        self._wait_until(self._has_workers, f"the Dask cluster at {self._address} has no {workers}")
        self._losses.look()

    def _has_workers(self) -> bool:
        self._exchange_requests()
        return self.count_slots() > 0

    def _connect(self) -> bool:
        """Make a new connection with all that the attempt needs on the scheduler; return whether that worked."""
        if self._connection is not None:
            self._connection.calls.close()
        try:
            # Results do not pass through the scheduler where the workers can be reached.
            client = new_client(self._address, min(CONNECT_SECONDS, self.timeout_s), direct_to_workers=True)
        except CONNECTION_ERRORS:
            return False
        self._connection = DaskConnection(DaskCalls(client), self._pools)
        self._n_silences = 0
        self._n_connections += 1
        self._stream = client.scheduler_comm
        return bool(self._ask(self._register))

    def _register(self) -> bool:
        plugin = AttemptPlugin(self.pool_id, self.client.id)
        self.calls.register(plugin, plugin.name)
        self.client.subscribe_topic("all", self._losses.on_event)
        self.client.subscribe_topic(NannyRestarts.TOPIC, self._nannies.on_event)
        self.client.subscribe_topic(topic_of(self.pool_id), self._log_line)
        return self.is_connected

    def _log_line(self, event: tuple[float, Mapping[str, Any]]) -> None:
        # A worker sends a line that cannot wait for a result.
        logger.warning("%s: %s", self._job_name, event[1]["line"])

    def _ask(self, question: Callable[[], T]) -> T | None:
        """Ask the cluster something; return None if the connection is broken, or no answer comes in time."""
        connection = self._connection
        try:
            answer = question()
        except Exception as error:
            # A client that reconnects by itself, or is closed, may raise any error, because its attributes are missing.
            # While the connection works, other errors are defects.
            if self._connection is connection and self.is_connected and not isinstance(error, CONNECTION_ERRORS):
                raise
            self._n_silences += isinstance(error, NoAnswer)
            logger.debug("the Dask cluster does not answer: %r", error)
            return None
        self._n_silences = 0
        return answer

    def _wait_until(self, condition: Callable[[], object], problem: str) -> None:
        """Wait until a condition holds, and log the problem every 30 s; ClusterError: too long, or stopped."""
        every_s, closing = min(_WATCH_SECONDS, self.timeout_s), self._closing
        for poll in polls(every_s, self.timeout_s, stopped=closing.is_set, pause=closing.wait, log_at_once=True):
            if condition():
                return
            left_s = self.timeout_s - poll.waited_s
            if poll.log_is_due and left_s > 0:
                logger.warning("%s; waiting%s", problem, at_most(left_s))
        raise ClusterError(f"{problem} (waited {self.timeout_s:g} s)", where=self._address, hint=self._hint)

    def count_slots(self) -> int:
        """Count the slots of the pool's workers that are there now, without avoided ones; return their number."""
        pool = self._request.pool
        threads = self._ask(lambda: self.calls.on_scheduler(_threads_in, pool=pool) if pool else self.calls.threads())
        if threads is not None:
            slots = {worker: max(n // self._threads, 1) for worker, n in threads.items()}
            counted = [n for worker, n in slots.items() if worker not in self._avoided]
            self.addresses = frozenset(slots)
            self.slots, self.workers = sum(counted), len(counted)
            self._avoided_slots = sum(slots.values()) - self.slots
        return self.slots

    def _exchange_requests(self) -> None:
        others = self._ask(lambda: self._jobs_there.exchange(self.calls, self.pool_id, self._request))
        if others is not None:
            own = self._request.pool  # a job without a pool uses the workers of all pools
            self._other_requests = [one for one in others if one.wants and (not own or one.pool in (own, ""))]
        self.connection.price = self._threads / queue_weight(self._request, self._other_requests)

    def _oom_kills(self) -> dict[str, OomKills]:
        """Return the kernel's kills for memory in the container of each nanny that answers, by host."""
        counted = self._ask(lambda: self.calls.on_workers(container_kills, nannies=True)) or {}
        return {host_of(worker): kills for worker, kills in counted.items() if isinstance(kills, OomKills)}

    def watch(self) -> None:
        """Keep slots, requests of other jobs and causes of losses up to date, until the attempt ends; in a thread."""
        for n in itertools.count(1):
            if self._closing.wait(_WATCH_SECONDS):
                return
            try:
                if self.is_connected:
                    self._look(ask_sources=n % _SOURCES_EVERY == 0)
            except Exception:  # without this thread slots would never change, and losses would stay unexplained
                logger.warning("cannot look at the Dask cluster; retrying in %g s", _WATCH_SECONDS, exc_info=True)

    def _look(self, *, ask_sources: bool) -> None:
        self.count_slots()
        self._exchange_requests()
        steps = self._ask(lambda: self.calls.on_scheduler(_long_steps, pool_id=self.pool_id)) or []
        self._long_steps = [RunningStep(**step) for step in steps]
        self._losses.judge()
        if ask_sources:
            self._losses.look()

    def stop(self, grace_s: float) -> None:
        self._closing.set()  # ends a wait for the cluster
        if self.is_connected:

            def stop_pools() -> None:
                self._ask(lambda: self.calls.on_workers(stop_pool, self.pool_id, grace_s))

            threading.Thread(target=stop_pools, name="mops-stop", daemon=True).start()

    def finish(self) -> None:
        self.calls.give_up()  # the connection closes soon: the plugin on the scheduler then ends the child processes

    def close(self) -> None:
        """End the attempt's child processes, by the plugin on the scheduler, and the connection."""
        self._closing.set()
        self.calls.close()


class DaskConnection:
    """A :class:`mops.cluster.base.Connection` by the calls of a client of Dask."""

    errors = CONNECTION_ERRORS

    def __init__(
        self,
        calls: DaskCalls,
        pools: tuple[str, str] = ("", ""),  # of workers: for tasks, and for tasks that run alone; empty: all workers
    ):
        self.calls, self._client, self._pools = calls, calls.client, pools
        self.price = 1.0  # of a second on a slot, in the fair queue

    def submit(self, task: Task, request: TaskRequest, given: object, avoid: frozenset[str]) -> SentTask:
        with annotate(**annotations_of(task, avoid, self.price, self._pools[task.alone])):
            arguments = () if given is None else (given,)
            future = self._client.submit(run_task, request, *arguments, key=request.key, pure=False)
        return cast("SentTask", future)

    def send_input(self, request: TaskRequest, results: list[ResultBuffer]) -> object:
        try:
            return self.calls.scatter(request.input_key, results)
        except (KeyError, RuntimeError) as left:  # of the scheduler, if the worker has just left
            raise ConnectionError(repr(left)) from left

    def error_of(self, sent: SentTask, task: Task) -> BaseException:
        future = cast("Future[Any]", sent)
        error = self.calls.error_of(future)
        if future.status != "error" or error is None:  # the connection broke meanwhile
            raise CancelledError(future.key)
        if isinstance(error, KilledWorker):
            # run_task notes in the scheduler's metadata that a task runs alone.
            n_running = len(self.calls.metadata([future.key])) if task.alone else 0
            return WorkersDied(error.last_worker.address, n_running)
        return error

    def release(self, sent: Sequence[SentTask]) -> None:
        # Dask sends a release after two turns of the client's event loop, and a task after one. Without a turn between
        # them the next tasks would reach the scheduler first, which would then hold more than the window.
        try:
            for future in sent:
                cast("Future[Any]", future).release()
            self.calls.take_turn()
        except Exception as error:
            # A closed or reconnecting client has nothing to release.
            if self._client.status == "running" and not isinstance(error, CONNECTION_ERRORS):
                raise

    def leftovers(
        self, keys: frozenset[str], pool_id: str, answer_s: float, holders: Collection[str] | None = None
    ) -> dict[str, list[str]]:
        try:
            workers = [worker for worker in self.calls.threads(answer_s) if holders is None or worker in holders]
            found = {"the scheduler": self.calls.on_scheduler(_left_on_scheduler, answer_s, keys=keys)}
            answers = self.calls.on_workers(
                _left_on_worker, only=workers, within_s=answer_s, pool_id=pool_id, keys=keys
            )
        except NoAnswer:
            return {"the scheduler": ["the scheduler does not answer"]}
        for worker, answer in answers.items():
            if isinstance(answer, NoAnswer):
                answer = [f"{worker} does not answer"]
            elif isinstance(answer, Exception):
                answer = [f"{worker} cannot be asked ({type(answer).__name__}: {answer})"]
            found[worker] = answer
        return {name: lines for name, lines in found.items() if lines}

    def trim(self) -> None:
        try:
            self.calls.on_workers(_trim_worker)
        except CONNECTION_ERRORS as error:  # the loop will notice
            logger.debug("cannot trim the heaps of workers: %r", error)


def annotations_of(task: Task, avoid: frozenset[str], price: float, pool: str = "") -> dict[str, Any]:
    """Return what tells the scheduler, and the plugin there, about a task."""
    annotations: dict[str, Any] = {COST: price * task.seconds}
    if pool:  # only the workers with this resource run the task, which takes nothing of it
        annotations["resources"] = {resource_of(pool): 0}
    if task.suspect:
        annotations[SUSPECT] = True
    if avoid:
        annotations[AVOID] = sorted(avoid)
    return annotations


def _left_on_scheduler(dask_scheduler: Any, keys: frozenset[str]) -> list[str]:
    """Describe what the scheduler still holds for these keys. Runs there."""
    tasks = [dask_scheduler.tasks[key] for key in keys if key in dask_scheduler.tasks]
    return [
        f"key {task.key} on the scheduler ({task.state}, wanted by {len(task.who_wants or ())} clients)"
        for task in tasks
    ]


def _left_on_worker(dask_worker: Any, pool_id: str, keys: frozenset[str]) -> list[str]:
    """Describe what a worker and its child processes still hold for these keys. Runs there."""
    worker = f"worker {dask_worker.address}"
    kept = {*dask_worker.data, *dask_worker.state.tasks}
    return [f"key {key} on {worker}" for key in keys if key in kept] + buffers_left(worker, pool_id, keys)


def _threads_in(pool: str, dask_scheduler: Any) -> dict[str, int]:
    """Return the threads of each worker of a pool. Runs on the scheduler."""
    workers = dask_scheduler.workers.items()
    return {address: worker.nthreads for address, worker in workers if resource_of(pool) in worker.resources}


async def _trim_worker() -> None:
    """Trim a worker's heap, outside of its event loop. Runs on the worker."""
    await asyncio.to_thread(trim_heap)


def _worker_that_raised(key: str, dask_scheduler: Any) -> str:
    """Run on the scheduler."""
    task = dask_scheduler.tasks.get(key)
    return next(iter(task.erred_on), "") if task is not None else ""


def _long_steps(pool_id: str, dask_scheduler: Any) -> list[dict[str, Any]]:
    """Run on the scheduler."""
    return [
        step
        for worker in dask_scheduler.workers.values()
        for step in worker.metrics.get(LONG_STEPS, {}).get(pool_id, ())
    ]


def fetched(calls: DaskCalls, futures: Sequence[Future[Any]], given_up: GivenUp) -> Iterator[Outcomes]:
    """Fetch results as :meth:`mops.cluster.base.Cluster.results` does.

    A worker that does not answer holds up only its own results: what has come after a quarter of a second is yielded.
    """
    arrived: deque[tuple[Any, Any]] = deque()
    fetching: list[asyncio.Task[None]] = []

    async def wait() -> None:
        if not fetching:
            fetching.append(asyncio.ensure_future(_Fetch(calls, given_up, arrived).all(futures)))
        await asyncio.wait(fetching, timeout=_YIELD_SECONDS)

    n_left = len(futures)
    while n_left:
        calls.run(wait)
        is_over = fetching[0].done()
        if outcomes := [arrived.popleft() for _ in range(len(arrived))]:
            n_left -= len(outcomes)
            yield outcomes
        if is_over and n_left:
            if fetching[0].cancelled():
                raise CancelledError("the connection has closed")
            fetching[0].result()


class _Fetch:
    """One fetch of several results, which puts outcomes into ``arrived``. It runs in the client's event loop."""

    def __init__(self, calls: DaskCalls, given_up: GivenUp, arrived: deque[tuple[Any, Any]]):
        self._calls, self._given_up, self._arrived = calls, given_up, arrived
        # One at a time: Dask puts more than five gathers of a client into one request, and giving up one would end all.
        self._gathering = asyncio.Semaphore(1)

    async def all(self, futures: Sequence[Future[Any]]) -> None:
        who_has: Mapping[Any, Sequence[str]] = {}
        with contextlib.suppress(Exception):  # gathering tells what is wrong
            asked = self._calls.holders([future.key for future in futures])
            who_has = await self._watched(asked, futures, of_one_worker=False)
        by_worker: dict[str, list[Future[Any]]] = {}
        for future in futures:
            by_worker.setdefault(next(iter(who_has.get(future.key, ())), ""), []).append(future)
        await asyncio.gather(*(self._from_worker(worker, some) for worker, some in by_worker.items()))

    async def _from_worker(self, worker: str, futures: Sequence[Future[Any]]) -> None:
        found: dict[Any, Any] = {}
        if worker:
            with contextlib.suppress(Exception):  # gathering tells what is wrong
                asked = self._calls.held_by(worker, [future.key for future in futures])
                found = (await self._watched(asked, futures)).get("data", {})  # without data: the worker is busy
        for future in futures:
            outcome = found.pop(future.key, None)
            if outcome is None:
                try:
                    # Dask's own gathering tells the scheduler if the result is lost. Alone it would wait until a lost
                    # result is computed again, which may take hours.
                    async with self._gathering:
                        (outcome,) = await self._watched(self._calls.gathered(future), [future])
                except Exception as error:  # noqa: BLE001 - the caller tells defects from lost tasks
                    outcome = error
            self._arrived.append((future, outcome))

    async def _watched(
        self,
        call: Awaitable[Any],
        futures: Sequence[Future[Any]],
        *,
        of_one_worker: bool = True,  # whether one worker has all results: then a lost result means a lost worker
    ) -> Any:
        """Await a call, or raise RunsAgain, CancelledError or NoAnswer if the futures cannot come any longer."""

        def refusal() -> Exception | None:
            if of_one_worker and any(future.status == "pending" for future in futures):
                return RunsAgain()
            return CancelledError(futures[0].key) if all(map(self._given_up, futures)) else None

        calling = asyncio.ensure_future(call)
        try:
            return await self._calls.watched(calling, FETCH_SECONDS, refusal)
        finally:
            calling.cancel()
