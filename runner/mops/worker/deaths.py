"""Decides the verdict for a child process that died, from all signs of its death. Pure (docs/internals/limits.md).

The child itself reports ``error`` and ``invalid_output``, and only the runner sees ``lost``.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from mops.child.channel import Step
from mops.system.signals import STOP_SIGNALS
from mops.units import bytes_text

# The limits that a child can break. reading: the time to read what the model has returned. start: as a forked process,
# it waits for a lock that nothing releases.
Breach = Literal["timeout", "reading", "memory", "start"]

# What ended a child. silence: mops, after the child closed its socket. stop: mops, for another reason. import: mops,
# because the import of the model took too long.
EndedBy = Breach | Literal["itself", "silence", "stop", "import"]

ABORTED: Collection[EndedBy] = ("timeout", "reading", "start", "import")
"""A child that ended for one of these reasons has written where it hung."""

_READING_SECONDS = 60.0


@dataclass(frozen=True)
class Death:
    """How a child ended."""

    returncode: int | None  # negative: a signal; None: unknown
    step: Step | None  # the simulation or target that it ran
    by: EndedBy
    seconds: float  # how long the step ran, without pauses of all processes
    tail: str  # the last that the child printed
    peak_bytes: int | None = None  # the highest measured memory of its process tree while the step ran
    limit_bytes: int | None = None
    # Processes killed meanwhile because memory ran out, in the container or machine; None: unknown.
    kernel_kills: int | None = None
    pid: int = 0
    size_before: int = 0  # resident bytes of the process after earlier simulations; 0: there were none
    is_exact: bool = False  # whether peak_bytes leaves out pages that other processes have too
    is_left: bool = False  # mops has killed it and it has not ended: it may wait for a file server

    @property
    def by_kernel(self) -> bool:
        """Whether the kernel killed it because memory ran out, perhaps together with the process that knows its end."""
        killed = self.by == "itself" and self.returncode in (None, -signal.SIGKILL)
        return killed and bool(self.kernel_kills)

    @property
    def by_signal(self) -> bool:
        """Whether a signal ended it that mops has not sent."""
        return self.by == "itself" and (self.returncode is None or self.returncode < 0)

    @property
    def by_stop_signal(self) -> bool:
        """Whether a signal ended it with which a batch system or a person stops processes, and mops has not sent it."""
        # The return code is unknown if the signal has also ended the process that knows it.
        codes = (None, *(-number for number in (signal.SIGINT, *STOP_SIGNALS)))
        return self.by == "itself" and not self.by_kernel and self.returncode in codes

    @property
    def how(self) -> str:
        """How the process ended, as a verb with its object."""
        return how_it_ended(self.returncode)

    @property
    def last_output(self) -> str:
        """The last output of the child, as the end of a message; empty: it printed nothing."""
        return f"; its last output: {self.tail}" if self.tail else ""


def reading_seconds(timeout_s: float) -> float:
    """Return how long mops may read what a model has returned, which may run code of the model (lazy tables)."""
    return max(timeout_s, _READING_SECONDS)


def how_it_ended(returncode: int | None) -> str:
    """Return how a process ended, as a verb with its object; None: unknown."""
    if returncode is None:
        return "ended in an unknown way"
    if returncode >= 0:
        return f"ended with exit code {returncode} (os._exit?)"
    with contextlib.suppress(ValueError):
        return f"ended with {signal.Signals(-returncode).name} ({signal.strsignal(-returncode)})"
    return f"ended with signal {-returncode}"


@dataclass(frozen=True)
class Verdict:
    """Why a simulation or a target failed; the fields are those of :class:`mops.task.Failure`."""

    reason: str
    happened: str  # what the simulation did, as a verb with its object, or the exception that the model raised
    traceback: str = ""
    signals: str = ""
    peak_bytes: int | None = None
    peak_at_least: bool | None = None
    limit_bytes: int | None = None
    hint: str = ""  # the meaning, and what the user can do; empty if the model raised an exception

    @property
    def message(self) -> str:
        """The message of a row of failures."""
        return "; ".join(filter(None, (self.happened, self.hint)))


def verdict_of(death: Death, timeout_s: float | None) -> Verdict:
    """Return why the simulation or target failed that ran when the child died."""
    reason, happened, hint = _judged(death, timeout_s)
    seen = []
    if death.by in ("timeout", "reading", "memory", "silence"):
        seen.append(f"ended by the worker ({death.by})")
    if death.kernel_kills:
        seen.append(f"the kernel counts {death.kernel_kills} more killed for memory")
    seen.append("killed, and has not ended" if death.is_left else f"return code {death.returncode}")
    return Verdict(
        reason=reason,
        happened=happened,
        traceback=death.tail,
        signals="; ".join(seen),
        peak_bytes=death.peak_bytes,
        peak_at_least=None if death.peak_bytes is None else True,
        limit_bytes=death.limit_bytes,
        hint=hint,
    )


def _judged(death: Death, timeout_s: float | None) -> tuple[str, str, str]:
    """Return the reason, what the simulation did, and a hint."""
    if death.by == "timeout":
        return (
            "timeout",
            f"ran for more than {timeout_s:g} s",
            "'mops jobs failures' shows the line; if it needs more time, set MODELOPS_JOB_SIM_TIMEOUT higher",
        )
    if death.by == "reading":
        return (
            "timeout",
            f"returned a result that mops could not read within {reading_seconds(timeout_s or 0.0):g} s",
            "return tables that are computed, not lazy ones",
        )
    if death.by == "silence":
        return (
            "crashed",
            "closed the socket to its worker",
            "the model or a library closes file descriptors by number: close only those that it opened",
        )
    if death.by == "memory":
        shared = " (shared pages count in part)" if death.is_exact else ""
        return (
            "oom",
            f"used {bytes_text(death.peak_bytes or 0)} of its {bytes_text(death.limit_bytes or 0)} limit",
            f"set MODELOPS_JOB_SIM_MEMORY higher, or, if it is unset, MODELOPS_JOB_SLOTS lower{shared}",
        )
    happened = f"{death.how} after {death.seconds:.1f} s"
    if death.by_kernel:
        return (
            "oom",
            f"was killed by the kernel after {death.seconds:.1f} s because memory ran out",
            "set MODELOPS_JOB_SLOTS lower, or give the container or machine more memory",
        )
    if death.returncode != -signal.SIGKILL:
        return (
            "crashed",
            happened,
            "native code or os._exit ended the process; 'mops jobs failures' shows its last output",
        )
    return (
        "crashed",
        f"{happened}, probably because the system ran out of memory",
        "set MODELOPS_JOB_SLOTS lower, or give the container or machine more memory",
    )
