"""Decides what follows when a child process, a task or a worker ends badly. Pure: the callers count, log and act.

On a worker, for its child processes (`worker/task_progress.py` and `worker/pool.py` count and act):

| what ended | how | how often before | what follows |
|---|---|---|---|
| a child during a step (a simulation or target) | its result had arrived before | | the result counts |
| | forked, and hung at its start | | the step runs again in a child that is not forked; no try |
| | over its memory limit, with memory of earlier steps | never so | again in a fresh child; no try |
| | over its memory limit | not alone, RETRIES > 0 | again at the end of the job, alone on a worker |
| | by a signal while the job stops | | not run; the next attempt runs it |
| | by a stop signal that mops has not sent | never so | again in a new child; no try |
| | `crashed` or `oom` | fewer than RETRIES tries, not alone | again in a new child |
| | `oom`, because the kernel killed it | not alone, RETRIES > 0 | again at the end of the job, alone on a worker |
| | otherwise: timeout, no try left, alone | | failed, with this verdict |
| a child between two steps | its files were removed | fewer than 5 times | the bundle is unpacked, then as below |
| | in any other way | fewer than 5 times | the rest of the task runs in a new child |
| | | 5 times in a row | the task raises |

In the runner, for tasks (`attempt/recovery.py` counts and acts):

| what ended | how | how often before | what follows |
|---|---|---|---|
| a task is lost | with the connection, or with workers that were removed on purpose | | it runs again |
| | 2 of its workers died while they ran it or sent its result | | it runs in smaller tasks, in the end alone |
| | the same, and an earlier task with its groups was lost so | | 1 dead worker is enough for smaller tasks |
| | the same, and it is a single simulation, alone on a worker | | failed: `oom` or `lost` |
| | in any way but with the connection | more than 100 in a row, or than can be in flight | the attempt ends |
| a task came back empty | | fewer than 5 times in a row | it runs again |
| | | 5 times in a row | as if it had lost its workers |
| a task raised | | fewer than 3 times | it runs on a worker on which it has not raised |
| | | 3 times | it runs in smaller tasks, in the end alone |
| | alone on a worker | 3 times | the attempt ends with its error |
| | | 3 tasks in a row on this worker | the worker is retired; without another one the attempt ends |
| | a MopsError, and nothing has succeeded | the same on all workers, at most 3 | the attempt ends |
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Collection, Set
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal

from mops.child.channel import FILES_LOST, Step
from mops.system.signals import STOP_SIGNALS
from mops.units import bytes_text

DEATHS = 2  # of a task's workers: then Dask returns the task to the runner, which looks for the cause
EMPTY_LIMIT = 5  # how often in a row a task may come back empty
FAULTS = 3  # how often a task raises before it is cut; how many tasks in a row raise on a worker before it is retired
_LOST_LIMIT = 100  # how many tasks in a row may be lost before the attempt ends; more if more can be in flight
DEATHS_BETWEEN = 5  # of children in a row that ran nothing
_RETIREMENT_SHARE = 0.9  # fraction of the size of a process that left a simulation too little memory
_RETRIED = frozenset({"crashed", "oom"})  # verdicts after which another process may succeed

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


@dataclass
class StepDeaths:
    """How a step has ended child processes of its task before."""

    tries: int = 0  # deaths that count
    size_in_first: int = 0  # bytes of the process in which it exceeded its memory; it then runs in a fresh one; 0: none
    was_stopped: bool = False  # a stop signal has ended its process once


class AfterStep(Enum):
    """What follows for the step during which a child process died, as the log says it."""

    KEPT = "it had finished before, so its result counts"
    ANOTHER_START = "retrying; MODELOPS_JOB_START=spawn avoids this"
    FRESH_PROCESS = "retrying in a fresh process ({left_over} were left over from earlier simulations)"
    ALONE_LATER = "retrying at the end of the job, alone on its worker"
    NOT_RUN = "it counts as not run, because the job is stopping"
    AGAIN = "retrying in a new process, because such a signal usually comes from outside"
    RETRY = "retrying in a new process (try {next_try} of {most_tries})"
    FAILED = "recorded as failed after {tries}"


def after_death_in_step(
    death: Death, reason: str, before: StepDeaths, *, arrived: bool, retries: int, alone: bool, is_stopping: bool
) -> AfterStep:
    """Decide about a step. ``reason``: see :func:`verdict_of`; ``arrived``: the worker has its result."""
    if death.by == "start":
        return AfterStep.ANOTHER_START
    if arrived:  # the child died on its way to the next step
        return AfterStep.KEPT
    # If the process was fresh (0), the step itself takes that much memory.
    if death.by == "memory" and death.size_before and not before.size_in_first:
        return AfterStep.FRESH_PROCESS
    if death.by == "memory" and retries and not alone:
        return AfterStep.ALONE_LATER
    if is_stopping and death.by_signal:
        return AfterStep.NOT_RUN
    # The signal may be for the whole job, and has not reached the runner yet.
    if death.by_stop_signal and not before.was_stopped:
        return AfterStep.AGAIN
    if reason in _RETRIED and before.tries < retries and not alone:
        return AfterStep.RETRY
    # The kernel has killed it: other simulations may have used the memory, and a larger pool may have more.
    if reason == "oom" and retries and not alone:
        return AfterStep.ALONE_LATER
    return AfterStep.FAILED


class BetweenSteps(Enum):
    """What follows after a child process died while it ran nothing."""

    ANOTHER_CHILD = auto()
    UNPACK_AGAIN = auto()
    RAISE = auto()


def after_death_between_steps(death: Death, n_in_a_row: int, *, has_bundle: bool) -> BetweenSteps:
    """Decide about the rest of a task. ``n_in_a_row`` counts this death."""
    if n_in_a_row >= DEATHS_BETWEEN:
        return BetweenSteps.RAISE
    if death.returncode == FILES_LOST or not has_bundle:
        return BetweenSteps.UNPACK_AGAIN
    return BetweenSteps.ANOTHER_CHILD


def replacement_size(now: int, too_large: int) -> int:
    """Return the size (bytes) at which children are replaced between two steps from now on; 0: at no size.

    ``too_large``: the size of a process that left a step too little memory, which a fresh process had; 0: none.
    """
    size = int(_RETIREMENT_SHARE * too_large)
    return min(now, size) if now and size else now or size


class Then(Enum):
    """What follows for a task."""

    AGAIN = "it runs again"
    ELSEWHERE = "it runs again, on another worker if there is one"
    SMALLER = "it is cut"
    FAILED = "recorded as failed"
    END = "the attempt ends"


def after_loss(*, blamed: bool, alone: bool, n_units: int, n_in_a_row: int, most_in_flight: int) -> Then:
    """Decide about a lost task of ``n_units`` simulations. ``n_in_a_row`` counts lost tasks of the whole job."""
    if n_in_a_row > max(_LOST_LIMIT, most_in_flight):
        return Then.END
    if not blamed:
        return Then.AGAIN
    # A task that runs alone has one group. It cannot be cut if it runs one simulation, or only targets.
    return Then.FAILED if alone and n_units <= 1 else Then.SMALLER


def deaths_to_blame(*, suspect: bool) -> int:
    """Return how many workers must die with a task before the task is blamed."""
    return 1 if suspect else DEATHS


def after_error(
    *,
    alone: bool,
    n_raised: int,  # how often the task has raised
    n_in_a_row: int,  # different tasks that have raised on this worker, with no success between them
    worker: str,  # its address; empty: the task reached none, because the scheduler cannot read it
    workers: Set[str],
    retired: Set[str],
    same_error: Set[str],  # workers on which the same MopsError was raised, if nothing has succeeded yet
) -> tuple[Then, bool]:
    """Decide about a task that raised on a worker, and whether the worker is retired."""
    is_retired = n_in_a_row >= FAULTS
    n_left = len(workers - retired - ({worker} if is_retired else set()))
    # Without any worker the attempt continues: a worker that restarts is missing for a moment.
    no_worker_left = (is_retired and not worker) or (bool(workers) and not n_left)
    if no_worker_left or len(same_error) >= min(FAULTS, max(len(workers), 1)):
        return Then.END, is_retired
    if n_raised < FAULTS:
        return Then.ELSEWHERE, is_retired
    return Then.END if alone else Then.SMALLER, is_retired
