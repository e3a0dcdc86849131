"""Run simulation studies on Dask, with bounded memory and durable results.

Names are imported at their first use: child processes import this package too, and must stay small.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mops.calibration.calibrate import calibrate
    from mops.jobs.calls import connect, disconnect, jobs, sample, settings
    from mops.jobs.derive import extend, rescore, retry
    from mops.jobs.job import Job, open_job
    from mops.jobs.submit import resume, submit
    from mops.jobs.table import Table
    from mops.jobs.trial import CheckedStudy, check
    from mops.report.render import Report

__all__ = [
    "CheckedStudy",
    "Job",
    "Report",
    "Table",
    "calibrate",
    "check",
    "connect",
    "disconnect",
    "extend",
    "jobs",
    "open_job",
    "rescore",
    "resume",
    "retry",
    "sample",
    "settings",
    "submit",
]
__version__ = "0.1.0"

# Arrow reads this at its first use. Its default, mimalloc, reserves huge pages, which costs up to 40 MiB and CPU time
# (docs/internals/memory.md). malloc_trim works on the system's allocator only.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

_HOMES = {
    "calibrate": "mops.calibration.calibrate",
    **dict.fromkeys(("Job", "open_job"), "mops.jobs.job"),
    **dict.fromkeys(("resume", "submit"), "mops.jobs.submit"),
    **dict.fromkeys(("extend", "rescore", "retry"), "mops.jobs.derive"),
    "Table": "mops.jobs.table",
    "Report": "mops.report.render",
    **dict.fromkeys(("CheckedStudy", "check"), "mops.jobs.trial"),
    "connect": "mops.jobs.calls",
    "disconnect": "mops.jobs.calls",
    "sample": "mops.jobs.calls",
}
_CALLS = "mops.jobs.calls"


class CallableModule(ModuleType):
    """A module that is also a public function of the same name: ``mops.jobs()`` and ``mops.settings()``."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call the public function; ``mops.jobs.calls`` describes it."""
        function = getattr(importlib.import_module(_CALLS), self.__name__.rpartition(".")[2])
        return function(*arguments, **options)


def __getattr__(name: str) -> object:
    if name in ("jobs", "settings"):
        return importlib.import_module(f"mops.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'mops' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
