"""Decides the verdict for a child process that died, from all signals of its death. Pure (docs/internals/limits.md).

What a model says itself (``error``, ``invalid_output``) never comes here, nor what only the runner sees (``lost``).
"""

from __future__ import annotations

import contextlib
import signal
from dataclasses import dataclass

from mops.child.channel import Step
from mops.units import bytes_text


@dataclass(frozen=True)
class Death:
    """How a child ended.

    Parameters
    ----------
    returncode
        Negative: a signal; None: nobody can tell.
    unit
        What it ran.
    by
        Who ended it: "itself", "silence" (it closed its socket and stayed), "timeout", "memory" or "stop".
    seconds
        How long the unit ran.
    tail
        The last that it printed.
    peak_bytes, limit_bytes
        Of its process tree while the unit ran, as far as it was seen; and what it might take.
    kernel_kills
        Processes of its container, or of the machine, that the kernel killed for memory meanwhile; None: unknown.
    pid
        The process.
    size_before
        Its resident bytes after the simulations that it had run before; 0: it had run none.
    own
        Whether pages that others have too are left out of ``peak_bytes``.
    """

    returncode: int | None
    unit: Step | None
    by: str
    seconds: float
    tail: str
    peak_bytes: int | None = None
    limit_bytes: int | None = None
    kernel_kills: int | None = None
    pid: int = 0
    size_before: int = 0
    own: bool = False

    @property
    def by_kernel(self) -> bool:
        """Whether the kernel killed it for memory, or whoever knows how it ended together with it."""
        killed = self.by == "itself" and self.returncode in (None, -signal.SIGKILL)
        return killed and bool(self.kernel_kills)

    @property
    def how(self) -> str:
        """Say how, for people."""
        if self.returncode is None:
            return "ended, and nobody can tell how"
        if self.returncode >= 0:
            return f"ended by itself with exit code {self.returncode} (os._exit?)"
        number = -self.returncode
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(number).name} ({signal.strsignal(number)})"
        return f"was ended by signal {number}"


@dataclass(frozen=True)
class Verdict:
    """Why a unit failed; the fields are those of :class:`mops.task.Failure`.

    Parameters
    ----------
    happened, meaning, remedy
        What was seen, what it means, and what to do; of what a model says itself only the first.
    """

    reason: str
    happened: str
    traceback: str = ""
    signals: str = ""
    peak_bytes: int | None = None
    peak_at_least: bool | None = None
    limit_bytes: int | None = None
    meaning: str = ""
    remedy: str = ""

    @property
    def message(self) -> str:
        """All that there is to say, for a row of failures."""
        return "; ".join(filter(None, (self.happened, self.meaning, self.remedy)))


def verdict_of(death: Death, timeout_s: float | None) -> Verdict:
    """Return why the unit that ran has failed.

    Parameters
    ----------
    timeout_s
        MODELOPS_JOB_SIM_TIMEOUT.
    """
    reason, happened, meaning, remedy = _judged(death, timeout_s)
    return Verdict(
        reason,
        happened,
        death.tail,
        _signals(death),
        death.peak_bytes,
        None if death.peak_bytes is None else True,
        death.limit_bytes,
        meaning,
        remedy,
    )


def _judged(death: Death, timeout_s: float | None) -> tuple[str, str, str, str]:
    """Return the verdict, what happened, what it means and what to do."""
    if death.by == "timeout":
        return (
            "timeout",
            f"ran for more than {timeout_s:g} s (MODELOPS_JOB_SIM_TIMEOUT) and was ended",
            "it hangs, or needs more time",
            "the traceback shows where it was",
        )
    if death.by == "silence":
        return (
            "crashed",
            "it closed the socket to its worker, a descriptor that was not its own, and was ended",
            "its code, or a library, closes descriptors by their numbers",
            "close only what was opened there",
        )
    if death.by == "memory":
        took, limit = bytes_text(death.peak_bytes or 0), bytes_text(death.limit_bytes or 0)
        took += " of their own" if death.own else ""
        return (
            "oom",
            f"its processes took {took}, more than the {limit} of one simulation, and were ended",
            "ended before the kernel, or Dask's nanny, would choose whom to end",
            "set MODELOPS_JOB_SIM_MEMORY higher if the machine has it, or run fewer at once (MODELOPS_JOB_SLOTS)",
        )
    happened = f"the process that ran it {death.how} after {death.seconds:.1f} s"
    if death.by_kernel:
        return (
            "oom",
            happened,
            "the kernel killed it, since the memory of the container or the machine was used up",
            "run fewer at once (MODELOPS_JOB_SLOTS), or give it more memory",
        )
    if death.returncode != -signal.SIGKILL:
        return "crashed", happened, "native code or an exit, which no exception could tell of", "see its last output"
    return (
        "crashed",
        happened,
        "mops did not send that: probably the system ran out of memory",
        "lower MODELOPS_JOB_SLOTS or MODELOPS_JOB_BATCH_SIZE, or give it more memory",
    )


def _signals(death: Death) -> str:
    """Say what was seen, in the order in which it was."""
    seen = []
    if death.by in ("timeout", "memory", "silence"):
        seen.append(f"ended by the worker ({death.by})")
    if death.kernel_kills:
        seen.append(f"the kernel counts {death.kernel_kills} more killed for memory")
    seen.append(f"return code {death.returncode}")
    return "; ".join(seen)
