"""Run simulation studies on Dask, with bounded memory and durable results.

Names are imported at their first use: child processes import this package too, and must stay small.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mops.calibration.calibrate import calibrate
    from mops.jobs.job import Job, open_job
    from mops.jobs.submit import resume, retry, submit

__all__ = ["Job", "calibrate", "open_job", "resume", "retry", "submit"]
__version__ = "0.1.0"

# Arrow reads this at its first use. Its default, mimalloc, reserves huge pages, which costs up to 40 MiB and CPU time
# (docs/internals/memory.md). malloc_trim works on the system's allocator only.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

_HOMES = {
    "calibrate": "mops.calibration.calibrate",
    **dict.fromkeys(("Job", "open_job"), "mops.jobs.job"),
    **dict.fromkeys(("resume", "retry", "submit"), "mops.jobs.submit"),
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'mops' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
