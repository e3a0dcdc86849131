"""Collects a job's text log: the log lines of mops, and what the models print."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

LIMIT_BYTES = 1 << 20
LAST_LINES = 8
_LINE_CHARACTERS = 300
_FORMAT = "%(asctime)s %(levelname)s %(message)s"


class TextLogBuffer(logging.Handler):
    """Collects lines until they are written to the storage. It is bounded, and keeps the newest."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(logging.Formatter(_FORMAT))
        self._text: list[str] = []
        self._size = self._dropped = 0
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._guard = threading.RLock()  # reentrant, because a signal handler may log while its thread is in here

    def emit(self, record: logging.LogRecord) -> None:
        """Take a log record."""
        self.add(self.format(record) + "\n")

    def add(self, text: str) -> None:
        """Take text that a model printed."""
        if not text:
            return
        with self._guard:
            self._text.append(text)
            lines = text.rsplit("\n", LAST_LINES + 1)[-LAST_LINES - 1 :]  # the last one is mostly empty
            self._last += [line[:_LINE_CHARACTERS] for line in lines if line.strip()]
            self._size += len(text)
            while self._size > LIMIT_BYTES and len(self._text) > 1:
                first = self._text.pop(0)
                self._size -= len(first)
                self._dropped += len(first)

    def last_lines(self) -> list[str]:
        """Return the newest lines, whether taken or not, each cut to a length that fits a terminal."""
        with self._guard:
            return list(self._last)

    def take(self) -> str:
        """Return the text since the last call."""
        with self._guard:
            text, dropped = "".join(self._text), self._dropped
            self._text, self._size, self._dropped = [], 0, 0
        return f"({dropped} characters left out)\n{text}" if dropped else text


@contextmanager
def collecting() -> Iterator[TextLogBuffer]:
    """Collect the log lines of mops at INFO and above while the body runs."""
    buffer, logger = TextLogBuffer(), logging.getLogger("mops")
    if logger.level == logging.NOTSET and logger.getEffectiveLevel() > logging.INFO:  # else the program has chosen
        logger.setLevel(logging.INFO)  # for good: another thread may run a job
    logger.addHandler(buffer)
    try:
        yield buffer
    finally:
        logger.removeHandler(buffer)
