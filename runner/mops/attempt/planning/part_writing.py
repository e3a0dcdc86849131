"""Decides whether tasks write their rows as parts themselves, and how many rows such a task has. Pure."""

from __future__ import annotations

from typing import Literal

from mops.attempt.planning.task_size import limit_bytes
from mops.child.task_run import PART_BYTES

RUNNER_BYTES_PER_SECOND = 32 << 20
"""Rows per second, as Arrow, up to which the runner of a cluster encodes them itself.

It encodes about 90 MiB/s on one core, and receives and uploads rows meanwhile."""

_DECAY = 0.8


class PartWriting:
    """The processes that encode and store rows: child processes and workers, or the runner.

    Parameters
    ----------
    setting
        MODELOPS_JOB_PERSIST.
    is_embedded
        Whether the worker is the runner's process. If so, the runner stores the files of child processes.
    checkpoint_bytes
        MODELOPS_JOB_CHECKPOINT_BYTES.
    """

    def __init__(self, setting: Literal["runner", "worker", "auto"], *, is_embedded: bool, checkpoint_bytes: int):
        self._setting, self._is_embedded, self._checkpoint_bytes = setting, is_embedded, checkpoint_bytes
        self._bytes = self._seconds = 0.0

    def add(self, row_bytes: int, seconds: float) -> None:
        """Take a measurement: a task made so many bytes of rows in ``seconds`` on one slot."""
        self._bytes = self._bytes * _DECAY + row_bytes
        self._seconds = self._seconds * _DECAY + seconds

    def in_tasks(self, slots: int) -> bool:
        """Tell whether a task encodes its rows, if it has at least PART_BYTES."""
        if self._setting == "auto" and not self._is_embedded:
            return slots * self._bytes >= RUNNER_BYTES_PER_SECOND * self._seconds > 0
        return self._setting != "runner"

    def by_workers(self, slots: int) -> bool:
        """Tell whether workers store these files."""
        return not self._is_embedded and self.in_tasks(slots)

    def task_bytes(self, slots: int) -> int:
        """Return after how many bytes of rows a task comes back early."""
        least = 2 * PART_BYTES if self.in_tasks(slots) else 0
        return max(limit_bytes(self._checkpoint_bytes, slots), least)
