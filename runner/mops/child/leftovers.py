"""What simulations leave in their process: undone before the next one, or a reason to replace the process.

docs/reference/models.md has the table: what mops restores, and what stays until it replaces the process. Runs in
children: the standard library and pyarrow only.
"""

from __future__ import annotations

import _locale
import _signal  # type: ignore[import-not-found]  # signal.getsignal takes 0.6 us for each signal
import contextlib
import contextvars
import errno
import fcntl
import functools
import gc
import locale
import operator
import os
import resource
import signal
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ParamSpec, TypeVar

from mops.child.copies import end_copy_of
from mops.system.clock import monotonic
from mops.system.process_memory import kept_bytes, trim_heap
from mops.system.process_tree import children_of
from mops.units import bytes_text

P = ParamSpec("P")
R = TypeVar("R")

# The variables that name a folder for temporary files of one process. joblib would use /dev/shm, which is small in a
# container, and where killed processes leave their files.
TEMPORARY_FOLDERS = ("TMPDIR", "JOBLIB_TEMP_FOLDER")

_HANDLED = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGFPE, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE),
    *(signal.SIGALRM, signal.SIGTERM, signal.SIGCHLD, signal.SIGVTALRM, signal.SIGPROF, signal.SIGXCPU),
)
_VARIABLES: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]  # os.environ takes 20 us to compare
_DECIMAL_FIELDS = ("prec", "rounding", "traps", "Emin", "Emax", "capitals", "clamp")
_DECIMAL = operator.attrgetter(*_DECIMAL_FIELDS)
_OF_SIMULATION = ("decimal_context", "numpy.ufunc.extobj", "format_options")  # the last two: seterr, set_printoptions
_LOCALES = (locale.LC_NUMERIC, locale.LC_TIME, locale.LC_COLLATE)  # all of them take 1.4 us to read
_NUMBERS = tuple(number.value for number in _HANDLED)

_LIMITS = {getattr(resource, name): name for name in dir(resource) if name.startswith("RLIMIT_")}
_LIMITS[resource.RLIMIT_NOFILE] = "RLIMIT_NOFILE"  # which has a second name
_set_limit = resource.setrlimit
_OF_MEMORY = {resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_STACK, resource.RLIMIT_RSS}
_limits_were_set = False  # since the last look at them

_SECONDS_BETWEEN_LOOKS = 0.02
_SIMULATIONS_PER_LOOK = 8
# Above those that run after the first simulation. An ended process has a number too, of which a container may have a
# thousand.
_MOST_PROCESSES = 32
_MOST_THREADS = 64  # a thread pool of Python has up to 32


def enter_temporary_folder(
    folder: Path,
    instead_of: Path | None = None,  # that of the template, if this process was forked; any other choice stays
) -> None:
    """Make a folder for the temporary files of this process and of the processes that it starts."""
    folder.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
    for name in TEMPORARY_FOLDERS:
        if instead_of is None or os.environ.get(name) == str(instead_of):
            os.environ[name] = str(folder)
    if instead_of is None or tempfile.tempdir == str(instead_of):
        tempfile.tempdir = None  # tempfile reads TMPDIR again


def note_limits() -> None:
    """Note from now on when Python code sets a limit of the system: a look at all limits takes 20 us."""

    def noted(change: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(change)
        def changed(*arguments: P.args, **named: P.kwargs) -> R:
            global _limits_were_set
            _limits_were_set = True
            return change(*arguments, **named)

        return changed

    resource.setrlimit = noted(resource.setrlimit)
    resource.prlimit = noted(resource.prlimit)


class ProcessState:
    """What a simulation may change in its process, as the imports have left it."""

    def __init__(self) -> None:
        self._umask = os.umask(0o77)
        os.umask(self._umask)
        self._context = self._last_context = contextvars.copy_context()
        self._decimal = next((value for key, value in self._context.items() if key.name == "decimal_context"), None)
        self._decimal_before = self._decimal.copy() if self._decimal else None  # its fields need it alive
        self._decimal_fields = _DECIMAL(self._decimal_before) if self._decimal else ()
        self._locale, self._locales = _locale.setlocale(locale.LC_ALL), [*map(_locale.setlocale, _LOCALES)]
        self._streams = sys.stdout, sys.stderr
        self._pid = os.getpid()
        self._environ_object, self._environ = os.environ, dict(_VARIABLES)
        self._keep_imports()

    def _keep_imports(self) -> None:
        """Keep what an import may set for later: new variables, handlers of signals, filters of warnings."""
        self._n_modules = len(sys.modules)
        self._environ = _VARIABLES | self._environ
        self._handlers = [_signal.getsignal(number) for number in _NUMBERS]
        self._filters = list(warnings.filters)
        self._limits = {number: resource.getrlimit(number) for number in _LIMITS}
        for variable, value in self._last_context.items():
            if variable not in self._context and variable.name not in _OF_SIMULATION:
                self._context.run(variable.set, value)

    def call(self, step: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        """Call a step in a new context (:mod:`contextvars`), in which numpy and decimal keep their settings."""
        self._last_context = self._context.copy()
        try:
            return self._last_context.run(step, *arguments, **named)
        finally:
            end_copy_of(self._pid)

    def restore(self) -> list[str]:
        """Undo the changes of a simulation; return the limits of the system that it has lowered for good.

        A module that it has imported counts as imported with the model.
        """
        if len(sys.modules) != self._n_modules:  # a process imports a module once, so what that has set must stay
            self._keep_imports()
        os.umask(self._umask)
        os.environ = self._environ_object  # noqa: B003 - if the model has put another object there
        if self._environ != _VARIABLES:
            self._restore_environ()
        if [*map(_signal.getsignal, _NUMBERS)] != self._handlers:
            self._restore_handlers()
        if warnings.filters != self._filters:
            with contextlib.suppress(TypeError, AttributeError):  # the model has put something else there
                warnings.filters[:] = self._filters  # type: ignore[index]
                warnings._filters_mutated()  # type: ignore[attr-defined]
        if self._decimal and _DECIMAL(self._decimal) != self._decimal_fields:  # of the import (pandas): in all contexts
            for name, value in zip(_DECIMAL_FIELDS, self._decimal_fields, strict=True):
                setattr(self._decimal, name, value)
        if [*map(_locale.setlocale, _LOCALES)] != self._locales:
            _locale.setlocale(locale.LC_ALL, self._locale)
        sys.stdout, sys.stderr = self._streams
        return list(self._restore_limits()) if _limits_were_set else []

    def _restore_limits(self) -> Iterator[str]:
        global _limits_were_set
        _limits_were_set = False
        for number, (soft, hard) in self._limits.items():
            _, most = now = resource.getrlimit(number)
            if now == (soft, hard):
                continue
            try:
                _set_limit(number, (soft, hard))
            except ValueError:  # only a privileged process can raise a hard limit
                _set_limit(number, (most if soft == resource.RLIM_INFINITY else min(soft, most), most))
                # Many models limit their memory in each call. A new process for each of them would take 80 ms.
                if number not in _OF_MEMORY:
                    yield _LIMITS[number]

    def _restore_environ(self) -> None:
        for name in _VARIABLES.keys() - self._environ.keys():
            os.unsetenv(name)
            del _VARIABLES[name]
        for name, value in self._environ.items():
            os.putenv(name, value)
            _VARIABLES[name] = value

    def _restore_handlers(self) -> None:
        for timer in (signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):  # without its handler, the signal ends the process
            signal.setitimer(timer, 0)
        for number, handler in zip(_HANDLED, self._handlers, strict=True):
            if handler is not None and signal.getsignal(number) != handler:  # None: native code has set it
                signal.signal(number, handler)


class ReplacementPolicy:
    """Watches what simulations do to their process."""

    def __init__(self, max_simulations: int, max_growth_bytes: int, temporary: Path):
        # 0: any number, any growth since the first simulation. `temporary` is the folder of this process.
        self._max_simulations, self._max_growth = max_simulations, max_growth_bytes
        self._n = 0
        self._first_bytes = self._first_threads = self._first_processes = 0
        self._most_descriptors = 0
        self._first_free: dict[str, int | None] = dict.fromkeys(("/dev/shm", str(temporary)))  # noqa: S108 - only measured
        self._looked_at = 0.0
        self._replacement_size = 0
        self.size_bytes = 0  # at the last look, without files; 0: it has run nothing, or may have any size
        self.reason = ""  # why the process should be replaced, for people; empty: it need not be
        self.code = ""  # the same in one word of mops.worker.slots.REPLACED_BETWEEN_SIMULATIONS
        self.is_limited = False  # a simulation has lowered limits for good: no other step may run, not even a target

    def replace_at(self, size_bytes: int) -> None:
        """Ask for a replacement when the process has this size between two simulations; 0: at no size."""
        self._replacement_size = size_bytes
        self._check_replacement_size()

    def _check_replacement_size(self) -> None:
        if self._replacement_size and self.size_bytes >= self._replacement_size:
            size = bytes_text(self.size_bytes)
            self.code, self.reason = "size", f"it takes {size}, which leaves a simulation too little memory"

    def lowered(self, limits: list[str]) -> None:
        """Ask for a replacement, because a simulation has lowered these limits of the system for good."""
        self.is_limited = True
        self.code, self.reason = "limits", f"a simulation or target has lowered the hard limit {', '.join(limits)}"

    def finished(self, held_bytes: int) -> None:
        """Count a simulation, and sometimes look at what is left; results to hand over do not count as growth."""
        self._n += 1
        if self._max_simulations and self._n >= self._max_simulations:
            self.code, self.reason = "simulations", f"it has run {self._n} simulations"
            return
        # Often, because a short simulation may open many files; not after each, because this takes 1 us.
        if self._n % _SIMULATIONS_PER_LOOK == 1 and (lowest := _lowest_free_descriptor()) >= self._most_descriptors:
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            if self._n == 1:
                self._most_descriptors = (lowest + limit) // 2
            else:
                self.code = "descriptors"
                self.reason = f"its simulations have left files open: {min(lowest, limit)} of at most {limit}"
        now = monotonic()
        if self._n > 1 and now - self._looked_at < _SECONDS_BETWEEN_LOOKS:
            return
        self._looked_at = now
        self._look_at_leftovers()
        if self._max_growth and not self.reason:
            self._look_at_size(held_bytes)

    def _look_at_leftovers(self) -> None:
        # This process adopts what its simulations leave. It cannot wait for those that end, because it cannot tell them
        # from the model's own children, whose exit status the model takes. The reaper waits for them once this process
        # has ended; else the system would run out of process numbers.
        n_threads, processes = _n_threads(), children_of(os.getpid()) if _has_child() else []
        if self._n == 1:  # a pool may stay, but no process that has ended belongs to one
            self._first_threads, self._first_processes = n_threads, sum(map(_is_alive, processes))
        more_threads, more_processes = n_threads - self._first_threads, len(processes) - self._first_processes
        if more_processes > _MOST_PROCESSES:
            self.code, self.reason = "processes", f"its simulations have left {more_processes} processes"
        elif more_threads > _MOST_THREADS:
            self.code, self.reason = "threads", f"its simulations have left {more_threads} threads"
        for folder, first in self._first_free.items():
            free = _free_bytes(folder)
            if first is None or free is None:
                self._first_free[folder] = free
            elif free < first // 2:
                self.code = "files"
                self.reason = f"the free space of {folder} has halved to {bytes_text(free)} since it started"

    def _look_at_size(self, held_bytes: int) -> None:
        self.size_bytes = kept_bytes() - held_bytes
        if self._n == 1:
            self._first_bytes = self.size_bytes
        if self.size_bytes - self._first_bytes > self._max_growth:
            gc.collect()
            trim_heap()
            self.size_bytes = kept_bytes() - held_bytes
            growth = self.size_bytes - self._first_bytes
            if growth > self._max_growth:
                self.code, self.reason = "growth", f"it has grown by {bytes_text(growth)} since its first simulation"
        if not self.reason:
            self._check_replacement_size()


def _has_child() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def _is_alive(pid: int) -> bool:
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # its parent has waited for it now
        return False


def _n_threads() -> int:
    try:
        return Path("/proc/self/task").stat().st_nlink - 2
    except OSError:
        return 0


def _lowest_free_descriptor() -> int:
    try:  # a lower bound of the number of open descriptors, in 0.5 us
        free = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 0)
    except OSError as refused:
        return 1 << 30 if refused.errno == errno.EMFILE else 0  # 0: the model has closed descriptor 0
    os.close(free)
    return free


def _free_bytes(folder: str) -> int | None:
    try:
        found = os.statvfs(folder)
    except OSError:  # there is none
        return None
    return found.f_bavail * found.f_frsize
