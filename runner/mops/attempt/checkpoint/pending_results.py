"""Results that are finished and not durable yet, and bytes that are stored: two threads tell, metrics ask."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable


class PendingResults:
    """Results on their way to being durable, oldest first. Thread-safe.

    Results without a finished group are none of it: nothing of them is ever to be durable.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._lock = threading.Lock()
        self._came: deque[tuple[float, int]] = deque()
        self._bytes = 0
        self.written_bytes = 0
        """Bytes of parts that are stored."""

    def came(self, n_bytes: int) -> None:
        """Take a result with finished groups."""
        with self._lock:
            self._came.append((self._clock(), n_bytes))
            self._bytes += n_bytes

    def wrote(self, n_bytes: int) -> None:
        """Count a part that is stored, and may not be named by a record yet. Called by one thread."""
        self.written_bytes += n_bytes

    def durable(self, n_outcomes: int) -> None:
        """Note that the oldest so many results are durable."""
        with self._lock:
            for _ in range(n_outcomes):
                self._bytes -= self._came.popleft()[1]

    @property
    def bytes(self) -> int:
        """Bytes of results that are finished and not durable."""
        return self._bytes

    @property
    def lag_s(self) -> float:
        """The age of the oldest result that is not durable, in seconds; 0: all are."""
        with self._lock:
            return self._clock() - self._came[0][0] if self._came else 0.0
