"""Every call to Dask that waits for an answer, with a deadline for each.

A process that is frozen or overloaded keeps its connections open and answers nothing, so Dask itself would wait
without end. tests/pure/cluster/test_deadlines.py refuses such calls in other modules.
"""

from __future__ import annotations

import asyncio
import logging
import time
import warnings
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, TypeVar, cast

from distributed import CancelledError, Client, Future, SchedulerPlugin, Security
from distributed.client import ClosedClientError
from distributed.versions import VersionMismatchWarning
from distributed.worker import get_data_from_worker

from mops.errors import ClusterError, NoAnswer

logger = logging.getLogger(__name__)
T = TypeVar("T")

CONNECTION_ERRORS = (ClosedClientError, CancelledError, NoAnswer, OSError, TimeoutError, ValueError)
"""The errors of these calls when the connection to a scheduler or to a worker breaks, or does not answer."""

# How long each has to answer.
SCHEDULER_SECONDS = 10.0  # it is busy when many workers come or leave
WORKER_SECONDS = 4.0  # also a nanny
FETCH_SECONDS = 300.0  # a worker that hands a result over, or accepts data

CONNECT_SECONDS = 10.0
_LOOP_SECONDS = 5.0  # more, because the client's own event loop may be busy
_CLOSE_SECONDS = 2.5
_REFUSAL_SECONDS = 0.25  # between two looks for a reason to stop waiting


class DaskCalls:
    """The calls of one client. Thread-safe.

    Each method raises :class:`mops.errors.NoAnswer` if no answer comes in time, or after :meth:`give_up`. If the
    connection breaks, it raises another one of :data:`CONNECTION_ERRORS`.
    """

    def __init__(self, client: Client):
        self.client = client
        self._client: Any = client  # Dask types its methods for callers outside of the event loop
        self._has_given_up = False

    def run(self, function: Callable[[], Awaitable[T]], within_s: float = SCHEDULER_SECONDS) -> T:
        """Call a coroutine function, or a method of the client, in the client's event loop; return its result."""
        return self._in_loop(lambda: self._answer(function, within_s), within_s + _LOOP_SECONDS)

    async def _answer(self, function: Callable[[], Awaitable[T]], within_s: float) -> T:
        calling = asyncio.ensure_future(function())
        try:
            return await self.watched(calling, within_s)
        finally:
            calling.cancel()

    def _in_loop(self, function: Callable[[], Awaitable[T]], within_s: float) -> T:
        try:
            return cast("T", self._client.sync(function, callback_timeout=within_s))
        except TimeoutError as late:
            raise _no_answer(f"in time ({late or 'timeout'})") from late

    async def watched(
        self, calling: asyncio.Future[T], within_s: float, refusal: Callable[[], Exception | None] = lambda: None
    ) -> T:
        """Await a call in the event loop, without cancelling it.

        ``refusal`` is called several times a second. An error that it returns ends the wait, and is raised.
        """
        deadline = time.monotonic() + within_s
        while not calling.done():
            if (refused := refusal()) is not None:
                raise refused
            if self._has_given_up:
                raise NoAnswer("the attempt ends, and waits for no answer of the Dask cluster")
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise _no_answer(f"within {within_s:g} s")
            await asyncio.wait({calling}, timeout=min(left_s, _REFUSAL_SECONDS))
        if calling.cancelled():
            raise CancelledError("Dask gave the call up")
        return calling.result()

    def on_scheduler(self, function: Callable[..., T], within_s: float = SCHEDULER_SECONDS, **named: object) -> T:
        """Call a function on the scheduler."""
        return cast("T", self.run(lambda: self._client.run_on_scheduler(function, **named), within_s))

    def on_workers(
        self,
        function: Callable[..., Any],
        *arguments: object,
        only: Collection[str] | None = None,  # addresses; None: all workers
        nannies: bool = False,  # call the function on the nannies of these workers
        within_s: float = WORKER_SECONDS,
        **named: object,
    ) -> dict[str, Any]:
        """Call a function on workers; return, by their addresses, what each call returned or raised.

        A worker that does not answer has :class:`mops.errors.NoAnswer`, and holds up no other one.
        """

        async def ask(worker: str) -> Any:
            options = {"workers": [worker], "nanny": nannies, "on_error": "return"}
            call = partial(self._client.run, function, *arguments, **options, **named)
            try:
                answers = await self._answer(call, within_s)
            except Exception as error:  # noqa: BLE001 - the caller decides what an error of a worker means
                return error
            return next(iter(answers.values()), None)

        async def ask_all() -> list[Any]:
            return await asyncio.gather(*map(ask, workers))

        workers = list(self.threads() if only is None else only)
        return dict(zip(workers, self._in_loop(ask_all, within_s + _LOOP_SECONDS), strict=True))

    def threads(self, within_s: float = SCHEDULER_SECONDS) -> Mapping[str, int]:
        """Return the threads of each worker, by its address."""
        return cast("Mapping[str, int]", self.run(lambda: self._client.nthreads(), within_s))

    def known_workers(self) -> Mapping[str, Mapping[str, Any]]:
        """Return what the scheduler knows of each worker, by its address."""
        info = self.run(lambda: self._client.scheduler.identity(n_workers=-1))
        return cast("Mapping[str, Mapping[str, Any]]", info["workers"])

    def metadata(self, keys: Sequence[object]) -> Mapping[str, Any]:
        """Return a record in the scheduler's metadata; empty if there is none."""
        return cast("Mapping[str, Any]", self.run(lambda: self._client.get_metadata(list(keys), {})))

    def set_metadata(self, keys: Sequence[str], record: Mapping[str, Any]) -> None:
        """Write a record to the scheduler's metadata."""
        self.run(lambda: self._client.set_metadata(list(keys), record))

    def register(self, plugin: SchedulerPlugin, name: str) -> None:
        """Install a plugin on the scheduler."""
        self.run(lambda: self._client.register_plugin(plugin, name=name))

    def scatter(self, key: str, data: object) -> Future[Any]:
        """Send data to a worker, which has it as long as what is returned exists."""
        sent = self.run(lambda: self._client.scatter({key: data}, hash=False), FETCH_SECONDS)
        return cast("Future[Any]", sent[key])

    def error_of(self, future: Future[Any]) -> BaseException | None:
        """Return the error of a task; None: it has none."""
        # Not by Future.result, because the traceback of a raised error keeps every future alive.
        error: BaseException | None = self.run(lambda: future.exception())
        return error

    def take_turn(self) -> None:
        """Let the event loop send what waits there."""
        self.run(lambda: asyncio.sleep(0))

    def holders(self, keys: Sequence[object]) -> Awaitable[Mapping[Any, Sequence[str]]]:
        """Ask the scheduler for the addresses of the workers with these results, for :meth:`watched`."""
        return cast("Awaitable[Mapping[Any, Sequence[str]]]", self._client.scheduler.who_has(keys=list(keys)))

    def held_by(self, worker: str, keys: Sequence[Any]) -> Awaitable[Mapping[str, Any]]:
        """Ask a worker for results, for :meth:`watched`. Without ``data``, the worker is busy."""
        return cast("Awaitable[Mapping[str, Any]]", get_data_from_worker(self._client.rpc, list(keys), worker))

    def gathered(self, future: Future[Any]) -> Awaitable[list[Any]]:
        """Fetch a result as Dask does, for :meth:`watched`. The scheduler learns if the result is lost."""
        return cast("Awaitable[list[Any]]", self._client.gather([future], asynchronous=True))

    def give_up(self) -> None:
        """End all calls that wait, and those that follow, with :class:`mops.errors.NoAnswer`."""
        self._has_given_up = True

    def close(self) -> None:
        """Give up all calls and close the client, whatever Dask does."""
        self.give_up()
        try:
            self._client.close(timeout=_CLOSE_SECONDS)
        except Exception as error:  # noqa: BLE001 - the connection is not used again
            logger.debug("cannot close the connection to Dask: %r", error)


def _no_answer(when: str) -> NoAnswer:
    return NoAnswer(f"the Dask cluster does not answer {when}", hint="look at the load and the log of its scheduler")


def new_client(
    address: str,
    timeout_s: float = CONNECT_SECONDS,
    *,
    direct_to_workers: bool | None = None,
    security: Security | None = None,  # None: as Dask's configuration says
) -> Client:
    """Connect to a scheduler, and silence Dask's log: the errors of mops say the same about tasks and connections."""
    names = [name for name in list(logging.root.manager.loggerDict) if name.startswith("distributed.")]
    for name in ("distributed", "tornado.application", *names):  # for callbacks in Dask's event loop
        logging.getLogger(name).setLevel(logging.CRITICAL)
    options = {"direct_to_workers": direct_to_workers, "security": security}
    return Client(address, timeout=timeout_s, set_as_default=False, **options)


def security_of(certificate: Mapping[str, str]) -> Security:
    """Return what encrypts a client's connections; the certificate as for :func:`connect_to_look`."""
    return Security(
        require_encryption=True,
        tls_ca_file=certificate["ca.crt"],  # Dask also takes the text
        tls_client_cert=certificate["tls.crt"],
        tls_client_key=certificate["tls.key"],
    )


@contextmanager
def connect_to_look(
    address: str, timeout_s: float = CONNECT_SECONDS, *, certificate: Mapping[str, str] | None = None
) -> Iterator[DaskCalls]:
    """Connect to a running cluster to inspect it. It may have no workers, or other versions of mops and Dask.

    ``certificate`` has the texts ``ca.crt``, ``tls.crt`` and ``tls.key``; None: Dask's configuration decides.
    ClusterError: the scheduler does not answer, or the connection breaks.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VersionMismatchWarning)  # the caller reports it
            client = new_client(address, timeout_s, security=security_of(certificate) if certificate else None)
        with closing(DaskCalls(client)) as calls:
            yield calls
    except NoAnswer as silent:
        raise NoAnswer(silent.what, where=address, hint=silent.hint) from silent
    except (OSError, TimeoutError) as lost:
        what = f"the Dask scheduler does not answer ({' '.join(str(lost).split()) or type(lost).__name__})"
        hint = "check that it is running, with the same version of Dask as this client"
        raise ClusterError(what, where=address, hint=hint) from lost
