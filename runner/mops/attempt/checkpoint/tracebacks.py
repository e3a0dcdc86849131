"""Bounds the memory of failures' tracebacks: equal ones share one text, and new ones are cut after many different ones.

Many failures have few different tracebacks, unless these contain values, such as the last output of a program.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from mops.task import Failure

MOST_WHOLE = 1000
_HEAD_CHARACTERS, _TAIL_CHARACTERS = 200, 500


class Tracebacks:
    """Makes failures with equal tracebacks refer to one text. Thread-safe.

    Parameters
    ----------
    most_whole
        How many different tracebacks are kept whole. Later ones lose their middle.
    """

    def __init__(self, most_whole: int = MOST_WHOLE):
        self._most_whole = most_whole
        self._lock = threading.Lock()
        self._known: dict[str, str] = {}

    def shared(self, failures: Iterable[Failure]) -> list[Failure]:
        """Return the failures with their tracebacks shared or cut."""
        with self._lock:
            return [failure._replace(traceback=self._shared(failure.traceback)) for failure in failures]

    def _shared(self, text: str) -> str:
        if (known := self._known.get(text)) is not None:
            return known
        if len(self._known) < self._most_whole:
            return self._known.setdefault(text, text)
        if len(text) <= _HEAD_CHARACTERS + _TAIL_CHARACTERS:
            return text
        left_out = f"\n[shortened: this attempt has kept {self._most_whole:,} other tracebacks whole]\n"
        return text[:_HEAD_CHARACTERS] + left_out + text[-_TAIL_CHARACTERS:]
