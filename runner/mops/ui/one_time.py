"""Makes each change once, however often a browser sends its form."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Hashable
from typing import Any

_MOST_KEPT = 1000
_VALUE_BYTES = 16


def one_time_value() -> str:
    """Return a value for one form."""
    return secrets.token_urlsafe(_VALUE_BYTES)


class OneTimeChanges:
    """The last changes, by the values of their forms."""

    def __init__(self) -> None:
        self._changes: dict[Hashable, asyncio.Task[str]] = {}

    async def once(self, key: Hashable, change: Callable[[], Coroutine[Any, Any, str]]) -> str:
        """Make a change, or wait for the same change; return its result, or raise its error."""
        if key not in self._changes:
            self._changes[key] = asyncio.create_task(change())
            if len(self._changes) > _MOST_KEPT:
                del self._changes[next(iter(self._changes))]
        return await asyncio.shield(self._changes[key])  # a client that leaves does not stop the change
