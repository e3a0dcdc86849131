"""The plugin that an attempt installs on the Dask scheduler. It runs in the scheduler's process."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any
from weakref import WeakValueDictionary

from distributed import SchedulerPlugin
from distributed.protocol.pickle import dumps

from mops.cluster.shares import METADATA, FairQueue
from mops.recovery import deaths_to_blame
from mops.worker.run_task import leave_pool

# Annotations of tasks.
SUSPECT = "mops_suspect"  # part of a task whose workers died
COST = "mops_cost"  # in the fair queue: the expected time on the slots, divided by the weight of the job
AVOID = "mops_avoid"  # addresses of workers that must not run the task while other workers are there

_BROADCAST_SECONDS = 60.0  # for which the scheduler keeps the request to a frozen worker that it ends child processes


class AttemptPlugin(SchedulerPlugin):
    """Serves one attempt on the scheduler.

    - When the runner disconnects, for whatever reason, the plugin ends the attempt's child processes on every worker,
      and removes the runner's record, so that other jobs get its share.
    - It makes Dask return a task after two workers died while running it, and a suspect task after one. Dask's default
      is four (``allowed-failures``), which is a setting of the whole cluster.
    - It orders the tasks of several jobs in the scheduler's queue (:mod:`mops.cluster.shares`).
    - It keeps a task away from workers on which it must not run (:mod:`mops.attempt.recovery`).
    """

    def __init__(
        self,
        pool_id: str,  # of the connection's pools
        client: str,  # the connection's id
    ):
        self._pool_id, self._client = pool_id, client
        self.name = f"mops-{pool_id}-{client}"
        self.queue = FairQueue()

    async def start(self, scheduler: Any) -> None:
        """Add what exists only on the scheduler: Dask calls this there, on a pickled copy."""
        self._scheduler = scheduler
        self._allowed: WeakValueDictionary[frozenset[str], _Allowed] = WeakValueDictionary()

    def update_graph(
        self, scheduler: Any, *, client: str, tasks: list[Any], annotations: dict[str, Any], **_: Any
    ) -> None:
        """Prepare new tasks of this connection: their place in the queue, allowed deaths, and workers to avoid."""
        if client != self._client:
            return
        suspects, costs = annotations.get(SUSPECT, {}), annotations.get(COST, {})
        avoided = annotations.get(AVOID, {})
        attempts = [plugin for plugin in scheduler.plugins.values() if isinstance(plugin, AttemptPlugin)]
        highest_taken = max(attempt.queue.highest_taken for attempt in attempts)
        for key in tasks:
            task, allowed = scheduler.tasks[key], deaths_to_blame(suspect=key in suspects)
            if task.priority is None:  # the input of a task
                continue
            task.suspicious = max(scheduler.allowed_failures + 1 - allowed, 0)
            if key in avoided:
                avoid = frozenset(avoided[key])
                workers = self._allowed.get(avoid)  # one set for all tasks that avoid the same workers
                if workers is None:
                    workers = self._allowed[avoid] = _Allowed(set(scheduler.workers) - avoid)
                # An empty set would mean no restriction. Dask's loose restrictions do not hold back work stealing.
                task.worker_restrictions = workers
            tag = self.queue.tag(key, costs.get(key, 0.0), highest_taken)
            # Dask has the graph's number in this place, which makes its queue first in, first out.
            task.priority = (task.priority[0], tag, *task.priority[2:])
        _trim_spans(scheduler, tasks)

    def add_worker(self, scheduler: Any, worker: str) -> None:
        """Allow a new worker to the tasks that are waiting already."""
        for avoid, allowed in self._allowed.items():
            if worker not in avoid:
                allowed.add(worker)

    def transition(self, key: Any, start: Any, finish: Any, *_: Any, stimulus_id: str, **__: Any) -> None:
        """Follow a task through the queue; let it run anywhere if no worker is left that it may use."""
        if finish == "no-worker":
            task = self._scheduler.tasks[key]
            if isinstance(task.worker_restrictions, _Allowed):
                task.worker_restrictions = None
                asyncio.get_running_loop().call_soon(self._schedule_again, key)
        elif finish == "processing":
            self.queue.taken(key)
        elif finish == "forgotten":
            self.queue.removed(key)

    def _schedule_again(self, key: Any) -> None:
        task = self._scheduler.tasks.get(key)
        if task is not None and task.state == "no-worker":
            self._scheduler.transitions({key: "processing"}, f"mops-unrestrict-{self._pool_id}")

    def remove_client(self, scheduler: Any, client: str) -> None:
        """End what the attempt has on the cluster when its connection ends."""
        if client != self._client:
            return
        scheduler.task_metadata.get(METADATA, {}).pop(self._pool_id, None)
        message = {"op": "run", "function": dumps(leave_pool), "args": dumps((self._pool_id,)), "wait": True}
        self._ending = asyncio.ensure_future(
            asyncio.wait_for(scheduler.broadcast(msg=message, on_error="ignore"), _BROADCAST_SECONDS)
        )
        scheduler.remove_plugin(self.name)


class _Allowed(set[str]):
    """Addresses of workers, in a set to which weak references are possible."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def _trim_spans(scheduler: Any, tasks: list[Any]) -> None:
    """Remove what Dask's spans would keep of tasks for the life of the scheduler."""
    # A span keeps an entry for each graph, and the last entry is that of these tasks. It also keeps each group of
    # tasks, although Dask has forgotten the group with its last task.
    groups = {scheduler.tasks[key].group for key in tasks}
    names = {group.name for group in groups}
    with contextlib.suppress(AttributeError, KeyError, TypeError):  # spans may differ in another version of Dask
        spans = scheduler.extensions["spans"].spans
        for span in {spans[group.span_id] for group in groups}:
            del span.metadata["collections"][-1:]
            span.groups -= {old for old in span.groups if old.name in names} - groups
