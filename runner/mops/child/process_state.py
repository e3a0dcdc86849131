"""Gives each process its temporary folder, and undoes what a simulation changes in its process.

docs/reference/models.md has the table: what is restored, and what stays. Runs in children: the standard library only.
"""

from __future__ import annotations

import _locale
import _signal  # type: ignore[import-not-found]  # signal.getsignal takes 0.6 us for each signal
import contextlib
import contextvars
import locale
import operator
import os
import signal
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

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
        self._environ_object, self._environ = os.environ, dict(_VARIABLES)
        self._keep_imports()

    def _keep_imports(self) -> None:
        """Keep what an import may set for later: new variables, handlers of signals, filters of warnings."""
        self._n_modules = len(sys.modules)
        self._environ = _VARIABLES | self._environ
        self._handlers = [_signal.getsignal(number) for number in _NUMBERS]
        self._filters = list(warnings.filters)
        for variable, value in self._last_context.items():
            if variable not in self._context and variable.name not in _OF_SIMULATION:
                self._context.run(variable.set, value)

    def call(self, step: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        """Call a step in a new context (:mod:`contextvars`), in which numpy and decimal keep their settings."""
        self._last_context = self._context.copy()
        return self._last_context.run(step, *arguments, **named)

    def restore(self) -> None:
        """Undo the changes of a simulation. A module that it has imported counts as imported with the model."""
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
