"""What processes still hold for committed tasks: keys of Dask, and buffers.

A process counts the buffers that it has read, and those that it has mapped or open have names in /proc (Linux only).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mops.worker.result_buffers import held_names
from mops.worker.run_task import child_pids

_PART = re.compile(r"mops-part-(\S+)\.")


def on_scheduler(dask_scheduler: Any, keys: frozenset[str]) -> list[str]:
    """Describe what the scheduler still holds for these keys. Runs on the scheduler."""
    kept = [dask_scheduler.tasks[key] for key in keys if key in dask_scheduler.tasks]
    return [
        f"key {task.key} on the scheduler ({task.state}, wanted by {len(task.who_wants or ())} clients)"
        for task in kept
    ]


def on_worker(dask_worker: Any, pool: str, keys: frozenset[str]) -> list[str]:
    """Describe what a worker and its child processes still hold for these keys. Runs on the worker."""
    worker = f"worker {dask_worker.address}"
    kept = {*dask_worker.data, *dask_worker.state.tasks}
    left = [f"key {key} on {worker}" for key in keys if key in kept]
    return left + in_this_process(worker, keys) + in_children(worker, pool, keys)


def in_this_process(name: str, keys: frozenset[str]) -> list[str]:
    """Describe the buffers of these keys that this process has read and keeps."""
    parts = {key for held in held_names() for key in _PART.findall(held)}
    return [f"a buffer of {key} in {name}" for key in sorted(parts & keys)]


def in_children(of: str, pool: str, keys: frozenset[str]) -> list[str]:
    """Describe the buffers of these keys in the child processes of this process in a pool."""
    return [line for pid in child_pids(pool) for line in in_process(f"child {pid} of {of}", pid, keys)]


def in_process(name: str, pid: int, keys: frozenset[str]) -> Iterator[str]:
    """Describe the buffers of these keys that a process has mapped or open."""
    process, names = Path("/proc", str(pid)), []
    with contextlib.suppress(OSError):  # the process has ended, or there is no /proc
        names.append(process.joinpath("maps").read_text())
        for fd in process.joinpath("fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile, which says nothing about the others
                names.append(str(fd.readlink()))
    for key in sorted({key for each in names for key in _PART.findall(each)} & keys):
        yield f"a buffer of {key} in {name}"
