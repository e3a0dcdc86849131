"""Asks the Dask worker of this process, from the thread of a task. Without Dask, nothing calls this."""

from __future__ import annotations

import contextlib
from typing import Any

_ANNOUNCE_SECONDS = 10.0


def current_worker() -> Any:
    """Return the Dask worker whose task calls this."""
    from distributed import get_worker  # noqa: PLC0415 - the runner's process on one machine does without Dask

    return get_worker()


def announce_alone(key: str) -> None:
    """Tell the scheduler that a task runs alone here: if the worker ends now, only that task is to blame."""
    # Not before: while the task still waits to be alone, the worker may end because of another job's simulations.
    from distributed.utils import sync  # noqa: PLC0415 - see above

    worker = current_worker()
    with contextlib.suppress(OSError, TimeoutError):  # the scheduler is lost, and the task with it
        keys = [key, worker.id]
        sync(worker.loop, worker.scheduler.set_metadata, keys=keys, value=True, callback_timeout=_ANNOUNCE_SECONDS)


def tell_runner(pool_id: str, line: str) -> None:
    """Log a line at once at the runner of a pool."""
    current_worker().log_event(topic_of(pool_id), {"line": line})


def topic_of(pool_id: str) -> str:
    """Return the topic of Dask's events for a pool's lines that must reach the job's log at once."""
    return f"mops-lines-{pool_id}"
