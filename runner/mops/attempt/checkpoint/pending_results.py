"""Counts the results that are finished but not durable, and the bytes that are stored, for the metrics."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable


class PendingResults:
    """The results that are finished but not durable, oldest first. Thread-safe.

    Results without a finished group do not count, because they will never be durable.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._lock = threading.Lock()
        self._results: deque[tuple[float, int]] = deque()
        self._bytes = 0
        self.written_bytes = 0
        """Bytes of parts that are stored."""

    def add(self, n_bytes: int) -> None:
        """Count a result with finished groups."""
        with self._lock:
            self._results.append((self._clock(), n_bytes))
            self._bytes += n_bytes

    def add_written(self, n_bytes: int) -> None:
        """Count a part that is stored, whether or not a record names it yet. Called by one thread."""
        self.written_bytes += n_bytes

    def remove_oldest(self, n_results: int) -> None:
        """Remove the oldest results, which are durable."""
        with self._lock:
            for _ in range(n_results):
                self._bytes -= self._results.popleft()[1]

    @property
    def bytes(self) -> int:
        """Bytes of the results that are finished but not durable."""
        return self._bytes

    @property
    def lag_s(self) -> float:
        """The age of the oldest result that is not durable, in seconds; 0 if all are."""
        with self._lock:
            return self._clock() - self._results[0][0] if self._results else 0.0
