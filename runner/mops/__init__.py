"""Run simulation studies on Dask: memory bounded by configuration, durable as they go.

Names are loaded when they are first used, because children of the workers import this package too and are to stay
small.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mops.jobs.job import Job, open_job
    from mops.jobs.submit import resume, retry, submit

__all__ = ["Job", "open_job", "resume", "retry", "submit"]
__version__ = "0.1.0"

# Arrow reads this when it is first used. Its default, mimalloc, takes huge pages for itself: 40 MiB more at the
# highest, and CPU time to clear them (docs/internals/memory.md). The system's allocator also hears of malloc_trim.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

_HOMES = {
    **dict.fromkeys(("Job", "open_job"), "mops.jobs.job"),
    **dict.fromkeys(("resume", "retry", "submit"), "mops.jobs.submit"),
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'mops' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
