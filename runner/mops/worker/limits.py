"""The limits of one child: the time and the memory of what it runs. docs/internals/limits.md has the reasons."""

from __future__ import annotations

from collections.abc import Callable

from mops.child.channel import Running, Step
from mops.recovery import Breach, reading_seconds
from mops.system import process_memory
from mops.system.clock import monotonic
from mops.system.process_tree import is_deadlocked

LONG_SECONDS = 10.0
"""How long a simulation or target must have run to be reported, and to release what waits behind it in its task."""

START_SECONDS = 60.0
"""How long a forked process must do no work in its first simulation before mops asks the kernel why."""

_CHECK_SECONDS = 0.5  # between two looks at a child, at most
_PAUSE_SECONDS = 1.0  # a gap between two looks that is longer by this much is a pause
_MEASURE_SECONDS = 0.02  # between two measurements of a child's memory, at least
_WORK_SECONDS = 0.1  # between two looks at the CPU time of a forked process
_ALLOCATES = 2.5e9  # bytes a second at most: sets how soon a child can exceed its limit


class LimitWatch:
    """Watches the time and the memory of what one child runs, and whether a forked process hangs at its start."""

    def __init__(
        self,
        pid: int,
        timeout_s: float | None,  # MODELOPS_JOB_SIM_TIMEOUT
        template: LimitWatch | None = None,  # of the template that forked the child
        clock: Callable[[], float] = monotonic,  # the clock of the child's progress page
    ):
        self._pid, self._timeout_s, self._template, self._clock = pid, timeout_s, template, clock
        self.limit_bytes: int | None = None
        """The memory limit of each simulation of the present task, with all processes that it starts."""
        self.peak_bytes = 0
        """The peak memory of the simulations of the present task."""
        self._usage = process_memory.Usage()
        self._measure_at = 0.0
        self._peak_of: Step | None = None
        self._step_peak_bytes = 0
        self._shared_bytes: int | None = None
        """What forked processes share with this one, a template; None: not measured yet."""
        self._is_starting = template is not None
        self._first: Step | None = None
        self._work_at = self._worked_s = 0.0
        self._idle_since = self._looked_at = clock()
        self._pauses: list[tuple[float, float]] = []  # when each ended, and its seconds

    @property
    def is_exact(self) -> bool:
        """Whether the memory above the limit excludes files, and pages that the child shares with others."""
        return self._usage.is_exact

    def start_task(self, limit_bytes: int) -> None:
        """Measure from now on for another task."""
        self._idle_since = self._looked_at = self._clock()
        self._pauses.clear()
        self.limit_bytes, self.peak_bytes = limit_bytes, 0
        self._usage = process_memory.Usage()
        self._measure(limit_bytes)
        process_memory.reset_peak(self._pid)

    def end_task(self) -> None:
        """Set the peak memory. The kernel's own peak includes peaks between two measurements."""
        file_bytes = process_memory.file_bytes(self._pid)  # at the peak there were probably as many
        peak_bytes = max(self._usage.resident_peak_bytes, process_memory.peak_bytes(self._pid)) - file_bytes
        if self._template is not None:
            # Pages shared with the template do not count. Measured once for all children of the template.
            if self._template._shared_bytes is None:
                own, all_bytes = self._own_bytes(), process_memory.tree_bytes(self._pid) - file_bytes
                self._template._shared_bytes = 0 if own is None else max(all_bytes - own, 0)
            peak_bytes -= self._template._shared_bytes
        self.peak_bytes = max(peak_bytes, 0)
        self._is_starting = False

    def wait_s(self) -> float:
        """Return the seconds for which nothing can break a limit."""
        poll_s = min(_CHECK_SECONDS, (self._timeout_s or 1.0) / 4)
        if self.limit_bytes is None:
            return poll_s
        return min(poll_s, max(self._measure_at - self._clock(), _MEASURE_SECONDS))

    def look(self) -> None:
        """Notice a pause: if this process stood still since the last look, the child probably did too."""
        now = self._clock()
        pause_s = now - self._looked_at - _CHECK_SECONDS
        if pause_s > _PAUSE_SECONDS:
            self._pauses.append((now, pause_s))
        self._looked_at = now

    def seconds_since(self, began: float) -> float:
        """Return the seconds since ``began`` (s, by the clock) without the pauses that :meth:`look` noticed."""
        paused_s = sum(min(pause_s, ended - began) for ended, pause_s in self._pauses if ended > began)
        return self._clock() - began - paused_s

    def breach(self, running: Running) -> Breach | None:
        """Return which limit a step breaks; None: none."""
        exceeds_memory = self._exceeds_memory(running.step)
        if self._timeout_s is not None and not running.has_ended:  # copying and sending what was read has no time limit
            if running.returned_at:
                if self.seconds_since(running.returned_at) > reading_seconds(self._timeout_s):
                    return "reading"
            elif self.seconds_since(running.since) > self._timeout_s:
                return "timeout"
        if exceeds_memory:
            return "memory"
        return "start" if self._hangs_at_start(running.step) else None

    def peak_of(self, step: Step) -> int | None:
        """Return the peak memory that was measured during a step; None: it was not measured."""
        return self._step_peak_bytes if step == self._peak_of else None

    def _exceeds_memory(self, step: Step) -> bool:
        # By the clock, and not whenever the child prints: a measurement takes as long as a short simulation.
        if self.limit_bytes is None or self._clock() < self._measure_at:
            return False
        n_bytes = self._measure(self.limit_bytes)
        if step != self._peak_of:
            self._peak_of, self._step_peak_bytes = step, 0
        self._step_peak_bytes = max(self._step_peak_bytes, n_bytes)
        self.peak_bytes = max(self.peak_bytes, n_bytes)
        return n_bytes > self.limit_bytes

    def _measure(self, limit_bytes: int) -> int:
        """Return the child's memory, and set the next measurement to when the child could be over its limit."""
        n_bytes = self._usage.look(limit_bytes, lambda: process_memory.tree_bytes(self._pid), self._own_bytes)
        seconds_to_limit = max((limit_bytes - n_bytes) / _ALLOCATES, _MEASURE_SECONDS)
        self._measure_at = self._clock() + min(seconds_to_limit, _CHECK_SECONDS)
        return n_bytes

    def _own_bytes(self) -> int | None:
        return process_memory.own_bytes(self._pid, template=self._template._pid if self._template else None)

    def _hangs_at_start(self, step: Step) -> bool:
        """Tell whether a forked process waits in its first simulation for a lock of a thread that it does not have."""
        if not self._is_starting:
            return False
        self._first = self._first or step
        if step != self._first:
            self._is_starting = False
            return False
        now = self._clock()
        if now < self._work_at:
            return False
        self._work_at = now + _WORK_SECONDS
        worked_s = process_memory.tree_cpu_seconds(self._pid)
        if worked_s > self._worked_s:
            self._worked_s, self._idle_since = worked_s, self._clock()
            return False
        return self.seconds_since(self._idle_since) > START_SECONDS and is_deadlocked(self._pid)
