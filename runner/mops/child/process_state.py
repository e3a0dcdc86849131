"""Gives each process its temporary folder, and undoes what a simulation changes in its process.

docs/reference/models.md has the table of what mops undoes and what it does not. Runs in children: the standard library
and numpy.
"""

from __future__ import annotations

import _locale
import _signal  # type: ignore[import-not-found]  # signal.getsignal takes 0.6 us for each signal
import contextlib
import decimal
import locale
import os
import signal
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np

_HANDLED = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGFPE, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE),
    *(signal.SIGALRM, signal.SIGTERM, signal.SIGCHLD, signal.SIGVTALRM, signal.SIGPROF, signal.SIGXCPU),
)
_NUMBERS = tuple(number.value for number in _HANDLED)


def enter_temporary_folder(folder: Path) -> None:
    """Make a folder for the temporary files of this process and of the processes that it starts.

    joblib would use /dev/shm, which is small in a container, and where killed processes leave their files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["TMPDIR"] = os.environ["JOBLIB_TEMP_FOLDER"] = str(folder)
    tempfile.tempdir = None  # tempfile reads TMPDIR again


class ProcessState:
    """What a simulation may change in its process, as the imports have left it."""

    def __init__(self) -> None:
        self._keep()

    def _keep(self) -> None:
        self._n_modules = len(sys.modules)
        self._umask = os.umask(0o77)
        os.umask(self._umask)
        self._environ = dict(os.environ._data)  # type: ignore[attr-defined]  # os.environ itself takes 20 us to compare
        self._handlers = [_signal.getsignal(number) for number in _NUMBERS]
        self._filters = list(warnings.filters)
        self._decimal = decimal.getcontext().copy()
        self._locale = _locale.setlocale(locale.LC_ALL)
        self._float_errors = np.geterr()
        self._streams = sys.stdout, sys.stderr

    def restore(self) -> None:
        """Undo the changes of a simulation. A module that it has imported counts as imported with the model.

        A module is imported once in a process, so what its import has set must stay.
        """
        if len(sys.modules) != self._n_modules:
            self._keep()
            return
        os.umask(self._umask)
        if os.environ._data != self._environ:  # type: ignore[attr-defined]
            self._restore_environ()
        if [*map(_signal.getsignal, _NUMBERS)] != self._handlers:
            self._restore_handlers()
        if warnings.filters != self._filters:
            with contextlib.suppress(TypeError, AttributeError):  # the model has put something else there
                warnings.filters[:] = self._filters  # type: ignore[index]
                warnings._filters_mutated()  # type: ignore[attr-defined]
        context, kept = decimal.getcontext(), self._decimal
        if (context.prec, context.rounding, context.traps) != (kept.prec, kept.rounding, kept.traps):
            decimal.setcontext(kept.copy())
        if _locale.setlocale(locale.LC_ALL) != self._locale:
            _locale.setlocale(locale.LC_ALL, self._locale)
        if np.geterr() != self._float_errors:
            np.seterr(**self._float_errors)
        sys.stdout, sys.stderr = self._streams

    def _restore_environ(self) -> None:
        kept = {os.fsdecode(name): os.fsdecode(value) for name, value in self._environ.items()}
        for name in os.environ.keys() - kept.keys():
            del os.environ[name]
        os.environ.update(kept)

    def _restore_handlers(self) -> None:
        for number, handler in zip(_HANDLED, self._handlers, strict=True):
            if handler is not None and signal.getsignal(number) != handler:  # None: native code has set it
                signal.signal(number, handler)
