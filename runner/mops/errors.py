"""Every error that mops raises on purpose: what failed, where, and what to do.

::

    MopsError                      exit code
    ├── UsageError                 2     the input or the request is wrong
    │   ├── StudyError             2     a study file has problems; lists all of them
    │   ├── SettingsError          2     MODELOPS_* variables have problems; lists all of them
    │   ├── OptionsError           2     options of a command have problems; lists all of them
    │   ├── BundleError            2     the project folder cannot be packed, or a bundle cannot be unpacked
    │   ├── ModelError             2     the model or a target cannot be found, imported or called
    │   │   └── ImportTimeout      2     the import of the model takes longer than MODELOPS_JOB_IMPORT_TIMEOUT
    │   ├── InstallError           2     the model's dependencies cannot be installed
    │   ├── DataError              2     a machine lacks data that the project declares in mops.toml
    │   ├── SystemUnfit            2     a machine lacks what child processes need of its kernel
    │   ├── JobError               2     the job does not exist, or its state does not allow the request
    │   └── OtherFormat            2     another version of mops wrote the record
    ├── StorageError               4     the storage refuses, is out of reach, or is full
    │   ├── StorageUnavailable     4     the storage still failed after all retries
    │   └── CorruptRecord          4     a stored object differs from what mops wrote
    │       └── PartMissing        4     a part that counts does not exist
    ├── ClusterError               4     the Dask cluster is out of reach
    │   └── NoAnswer               4     the Dask cluster, or one of its workers, does not answer in time
    ├── ServiceError               4     Kubernetes is out of reach, refuses, or lacks a component
    ├── JobFailed                  1     the job ended in the state failed
    ├── RunnerEnded                any   the runner ended too early; its exit code, or 1 if it is unknown
    ├── TrialFailed                1     a simulation that 'mops study check' or 'mops study run' ran has failed
    ├── Terminated                 128+  a signal such as SIGTERM stopped the runner; its next runner continues the job
    ├── Superseded                 5     a newer attempt owns the job; nothing restarts this runner
    └── InternalError              70    mops found a contradiction in its own counts and stopped

Only the command line turns an error into an exit code. Any other exception is a bug and keeps its traceback. mops
translates errors of other libraries where it calls them, and nowhere else.
"""

from __future__ import annotations

import difflib
import errno
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PATH_SHOWN = 200  # characters
_OF_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG}


class MopsError(Exception):
    """The base class of every error that mops raises on purpose.

    Parameters
    ----------
    what
        What failed: lower case, without a full stop.
    where
        The file, key, object or host where it failed.
    hint
        One thing that the reader can do.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None):
        super().__init__(what, where, hint)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  at: {self.where}")
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process borders (Dask); the default would call __init__ with one tuple.
        return _rebuild, (type(self), self.__dict__)


def _rebuild(kind: type[MopsError], state: dict[str, object]) -> MopsError:
    error = kind.__new__(kind)
    error.__dict__.update(state)
    return error


class UsageError(MopsError):
    """The input or the request is wrong."""

    exit_code = 2


def path_refused(path: object, what: str, reason: Exception, *, hint: str = "use another path") -> UsageError:
    """Return the error for a user's path that the system refuses: too long, a circle of links, no access."""
    # ``what``: what the path names: ``the project folder``
    # ``reason``: OSError; ValueError for a null character; RuntimeError for an unknown home folder
    return UsageError(f"{what} cannot be used: {path_fault(reason)}", where=printable_path(path), hint=hint)


def check_text_path(path: object, what: str) -> None:
    """Refuse a path that is not UTF-8 text, which neither records nor Arrow can hold; ``what`` as for path_refused."""
    try:
        str(path).encode()
    except UnicodeEncodeError as bad:
        raise path_refused(path, what, ValueError("its name is not UTF-8 text"), hint="rename it") from bad


def absolute(path: Path = Path()) -> Path:
    """Return a path, or the working folder, as an absolute path. UsageError: the working folder does not exist."""
    try:
        return path.absolute()
    except OSError as bad:
        raise path_refused(Path(), "the working folder", bad, hint="change to a folder that exists") from bad


def check_type(value: object, kind: type[Any] | tuple[type[Any], ...], argument: str, what: str, hint: str) -> None:
    """Refuse a value of a Python caller that has another type than the argument takes; ``what`` describes the type."""
    if not isinstance(value, kind):
        raise UsageError(f"{argument} is a {type(value).__name__}, not {what}", where=argument, hint=hint)


def path_fault(reason: Exception) -> str:
    """Return the system's text for a path error."""
    return (reason.strerror if isinstance(reason, OSError) else None) or str(reason)


def printable_path(path: object) -> str:
    """Return a path for one line of a terminal: escaped, and shortened in the middle."""
    text = str(path)
    text = text if text.isprintable() else ascii(text)
    half = _PATH_SHOWN // 2
    return text if len(text) <= _PATH_SHOWN else f"{text[:half]}...{text[-half:]}"


def not_written(path: Path, what: str, reason: OSError, *, hint: str) -> MopsError:
    """Return the error for a user's file that cannot be written: of usage if the path is wrong, else of storage."""
    # ``what``: what the file holds: ``the report``
    # ``hint``: what to do, unless the folder is missing
    if isinstance(reason, FileNotFoundError):
        hint = f"create the folder, or {hint}"
    where = printable_path(path)
    if reason.errno in _OF_DISK:
        return StorageError(f"{what} cannot be written: {path_fault(reason)}", where=where, hint=hint)
    return UsageError(f"{what} cannot be written: {path_fault(reason)}", where=where, hint=hint)


@dataclass(frozen=True)
class Problem:
    """One problem of a file or a setting.

    Parameters
    ----------
    path
        Where in the input: a JSON path (``$.parameter_sets[3].params.beta``) or a variable's name.
    message
        What is wrong, and what to write instead.
    """

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class _Problems(UsageError):
    """Lists every problem of one input."""

    def __init__(self, what: str, problems: Sequence[Problem], *, where: str | None = None, hint: str | None = None):
        super().__init__(what, where=where, hint=hint)
        self.problems = tuple(problems)

    def __str__(self) -> str:
        first, *rest = super().__str__().split("\n")
        return "\n".join([first, *(f"  {problem}" for problem in self.problems), *rest])


class StudyError(_Problems):
    """A study file has problems."""


class SettingsError(_Problems):
    """MODELOPS_* variables have problems."""


class OptionsError(_Problems):
    """Options of a command have problems."""

    def __init__(
        self,
        problems: Sequence[Problem],
        *,
        where: str | None = None,
        hint: str | None = None,
    ):
        super().__init__("these options cannot start simulations", problems, where=where, hint=hint)


class BundleError(UsageError):
    """The project folder cannot be packed, or a bundle cannot be unpacked."""


class ModelError(UsageError):
    """The model or a target cannot be found, imported or called."""


class ImportTimeout(ModelError):
    """The import of the model takes longer than MODELOPS_JOB_IMPORT_TIMEOUT."""


class InstallError(UsageError):
    """The model's dependencies cannot be installed."""


class DataError(UsageError):
    """A machine lacks data that the project declares in mops.toml."""


class SystemUnfit(UsageError):
    """A machine lacks what child processes need of its kernel."""


class JobError(UsageError):
    """The job does not exist, or its state does not allow the request."""


class OtherFormat(UsageError):
    """Another version of mops wrote the record, in a format that this one does not read."""


class StorageError(MopsError):
    """The storage refuses, is out of reach, or is full."""

    exit_code = 4


class StorageUnavailable(StorageError):
    """The storage still failed after all retries."""


class CorruptRecord(StorageError):
    """A stored object differs from what mops wrote."""


class PartMissing(CorruptRecord):
    """A part that counts does not exist, or `mops jobs clean` has removed it since its job was read."""


class ClusterError(MopsError):
    """The Dask cluster is out of reach."""

    exit_code = 4


class NoAnswer(ClusterError):
    """The Dask cluster, or one of its workers, does not answer in time."""


class ServiceError(MopsError):
    """Kubernetes is out of reach, refuses, or lacks a component."""

    exit_code = 4


class JobFailed(MopsError):
    """The job ended in the state ``failed``."""

    exit_code = 1


class RunnerEnded(MopsError):
    """A runner in another process ended too early: before it claimed the job, or before the end of the job.

    Parameters
    ----------
    returncode
        The runner's exit code, which becomes this error's; negative: the signal that ended the runner; None: unknown.
    output
        What the runner printed last.
    when
        What it did not reach.
    """

    def __init__(
        self, returncode: int | None, output: str, *, when: str = "before it claimed the job", where: str, hint: str
    ):
        code = 1 if returncode is None else returncode
        how = "" if returncode is None else f" with exit code {code}" if code >= 0 else f" by signal {-code}"
        what = f"the runner ended{how} {when}; its output: {output.strip() or '(none)'}"
        super().__init__(what, where=where, hint=hint)
        self.exit_code = code if code >= 0 else 128 - code


class TrialFailed(MopsError):
    """A simulation or a target that ``mops study check`` or ``mops study run`` ran has failed."""

    exit_code = 1


class Terminated(MopsError):
    """A signal stopped the runner after it committed what was finished; the job's next runner continues the job."""

    exit_code = 143  # of SIGTERM

    def __init__(self, job: str, number: int, *, where: str):
        what = f"{signal.Signals(number).name} stopped the runner of job {job!r}; finished parameter sets are committed"
        super().__init__(what, where=where, hint=f"to continue it: mops jobs resume {job}")
        self.exit_code = 128 + number  # as shells report it


class Superseded(MopsError):
    """A newer attempt owns the job."""

    exit_code = 5


class JobDeleted(Superseded):
    """Someone has deleted the job while this process wrote to it."""


class InternalError(MopsError):
    """mops found a contradiction in its own counts, a defect, and stopped before it harmed results."""

    exit_code = 70  # EX_SOFTWARE of sysexits.h


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in a user's program has stopped what mops did, in order. Not a MopsError: programs do not catch it."""

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows: the frames of mops say nothing about an interrupt."""
        return [f"KeyboardInterrupt: {self}"]


def nearest(name: str, known: Iterable[str], least_ratio: float = 0.6) -> str | None:
    """Return the known name that the user may have meant, in upper or lower case; None: no name is similar."""
    # ``least_ratio``: of the similarity of two names, from 0 to 1, as difflib.SequenceMatcher measures it
    return next(iter(similar(name, known, 1, least_ratio)), None)


def similar(name: str, known: Iterable[str], n: int, least_ratio: float = 0.6) -> list[str]:
    """Return up to ``n`` known names that the user may have meant, as :func:`nearest`; the most similar first."""
    by_lower: dict[str, list[str]] = {}
    for one in map(str, known):
        by_lower.setdefault(one.lower(), []).append(one)
    near = difflib.get_close_matches(name.lower(), by_lower, n, least_ratio)
    return [one for lower in near for one in by_lower[lower]][:n]


def known_name(name: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """Return the hint for an unknown name: the nearest known one; without one, ``otherwise``, or all names."""
    names = [str(one) for one in known]
    near = nearest(name, names)
    if near is not None:
        return f"did you mean {near!r}?"
    return otherwise or f"use one of {', '.join(names)}"


def message_of(fault: Mapping[str, Any]) -> str:
    """Return the message of one fault that pydantic found, without the name of Python's exception."""
    return str(fault["msg"]).removeprefix("Value error, ")
