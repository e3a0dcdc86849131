"""What the scheduler of a Dask cluster does for an attempt: it runs in the scheduler's process."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any
from weakref import WeakValueDictionary

from distributed import SchedulerPlugin
from distributed.protocol.pickle import dumps

from mops.cluster.base import AVOID, DEATHS, SECONDS, SUSPECT
from mops.cluster.fair_queue import FairQueue
from mops.cluster.other_jobs import METADATA
from mops.worker.run_task import leave_pool


class AttemptPlugin(SchedulerPlugin):
    """What the scheduler does for an attempt.

    It ends the attempt's children on every worker as soon as the runner is gone, however it went, and gives its share
    to the others. It gives a task back as soon as two workers have died of it, a suspect's as soon as one has: by
    default Dask has four die (``allowed-failures``), which is a setting of the whole cluster. It puts the task in its
    turn among those of other jobs. And it keeps the task from workers that are faulty
    (:mod:`mops.attempt.faulty_workers`).

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
        self.turns = FairQueue()
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
    return max(plugin.turns.reached for plugin in scheduler.plugins.values() if isinstance(plugin, AttemptPlugin))
