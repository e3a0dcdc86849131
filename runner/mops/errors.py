"""Every error that mops raises on purpose: what failed, where, and what to do.

::

    MopsError                      exit
    ├── UsageError                 2     what was asked for cannot be done; nothing was written
    │   ├── StudyError             2     problems of a study file, all at once
    │   ├── SettingsError          2     problems of MODELOPS_* variables, all at once
    │   ├── OptionsError           2     problems of --env and --python, all at once
    │   ├── BundleError            2     the project folder cannot be packed
    │   ├── ModelError             2     the model or a target cannot be found, imported or called
    │   ├── InstallError           2     the model's dependencies cannot be installed
    │   └── JobError               2     no such job, or the job's state does not allow it
    ├── StorageError               4     the storage refuses, is out of reach, or is full
    │   ├── StorageUnavailable     4     transient faults that outlasted the retries
    │   └── CorruptRecord          4     a stored object is not what was written
    ├── NewerFormat                2     a record was written by a newer mops
    ├── ClusterError               4     the Dask cluster is out of reach
    ├── ServiceError               4     Kubernetes is out of reach, refuses, or lacks what is needed
    ├── JobFailed                  1     the job ended in state ``failed``
    ├── RunnerEnded                its   a detached runner ended before it had begun
    ├── TrialFailed                1     the simulation that ``study check`` ran failed
    ├── Terminated                 143   SIGTERM: the runner left the job to the next one
    ├── Superseded                 5     a newer attempt owns the job; nothing is to be restarted
    └── InternalError              70    a defect: what mops counts contradicts itself, and going on would harm results

Only the command line turns an error into an exit code; anything outside this tree is a bug and keeps its
traceback. Errors of other libraries are translated where that library is called, and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_PATH_SHOWN = 200  # characters


class MopsError(Exception):
    """Base of the tree.

    Parameters
    ----------
    what
        What failed, one sentence without a full stop.
    where
        The file, key, object or host it failed at.
    hint
        What the reader can do about it.
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
    """What was asked for cannot be done as asked."""

    exit_code = 2


def path_refused(path: object, what: str, reason: Exception, *, hint: str = "name another path") -> UsageError:
    """Return what to say of a path that a user gave and the system refuses: too long, a circle of links, no access.

    Parameters
    ----------
    what
        What the path was to be: ``the project folder``.
    reason
        What was raised: OSError; ValueError for a null character; RuntimeError for a home folder that nobody has.
    """
    return UsageError(f"{what} cannot be used: {path_fault(reason)}", where=path_shown(path), hint=hint)


def path_fault(reason: Exception) -> str:
    """Return the reason in the system's words."""
    return (reason.strerror if isinstance(reason, OSError) else None) or str(reason)


def path_shown(path: object) -> str:
    """Return a path for one line of a terminal."""
    text = str(path)
    text = text if text.isprintable() else ascii(text)
    half = _PATH_SHOWN // 2
    return text if len(text) <= _PATH_SHOWN else f"{text[:half]}...{text[-half:]}"


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a file or a setting.

    Parameters
    ----------
    path
        Where in the input, as a JSON path (``$.parameter_sets[3].params.beta``) or a variable's name.
    message
        What is wrong and what would be right.
    """

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class _Problems(UsageError):
    """Carries every problem of one input."""

    def __init__(self, what: str, problems: Sequence[Problem], *, where: str | None = None, hint: str | None = None):
        super().__init__(what, where=where, hint=hint)
        self.problems = tuple(problems)

    def __str__(self) -> str:
        first, *rest = super().__str__().split("\n")
        return "\n".join([first, *(f"  {problem}" for problem in self.problems), *rest])


class StudyError(_Problems):
    """Problems of a study file, all of them."""


class SettingsError(_Problems):
    """Problems of the environment's MODELOPS_* variables, all of them."""


class OptionsError(_Problems):
    """Problems of ``--env`` and ``--python``, all of them."""

    def __init__(self, problems: Sequence[Problem], *, where: str | None = None, hint: str | None = None):
        super().__init__("simulations cannot be started with these options", problems, where=where, hint=hint)


class BundleError(UsageError):
    """The project folder cannot be packed, or a bundle cannot be unpacked."""


class ModelError(UsageError):
    """The model or a target cannot be found, imported or called."""


class InstallError(UsageError):
    """The model's dependencies cannot be installed."""


class JobError(UsageError):
    """There is no such job, or its state does not allow what was asked."""


class NewerFormat(UsageError):
    """A record was written by a newer mops."""


class StorageError(MopsError):
    """The storage refused, or is full."""

    exit_code = 4


class StorageUnavailable(StorageError):
    """Transient faults of the storage that outlasted the retries."""


class CorruptRecord(StorageError):
    """A stored object is not what was written."""


class ClusterError(MopsError):
    """The Dask cluster is out of reach."""

    exit_code = 4


class ServiceError(MopsError):
    """Kubernetes is out of reach, refuses, or lacks what the cluster service needs."""

    exit_code = 4


class JobFailed(MopsError):
    """The job ended in state ``failed``."""

    exit_code = 1


class RunnerEnded(MopsError):
    """A detached runner ended before it had begun.

    Parameters
    ----------
    returncode
        Its exit code, which becomes this error's; negative: the signal that ended it.
    said
        What it wrote.
    """

    def __init__(self, returncode: int, said: str, *, where: str, hint: str):
        how = f"with exit code {returncode}" if returncode >= 0 else f"by signal {-returncode}"
        what = f"the runner ended {how} before it had begun; it said: {said.strip() or '(nothing)'}"
        super().__init__(what, where=where, hint=hint)
        self.exit_code = returncode if returncode >= 0 else 128 - returncode


class TrialFailed(MopsError):
    """The simulation that ``mops study check`` ran, or a target of its set, failed."""

    exit_code = 1


class Terminated(MopsError):
    """The runner was asked by SIGTERM to end: what is finished is committed, the job goes on with the next runner."""

    exit_code = 143  # 128 + SIGTERM, as shells have it

    def __init__(self, job: str, *, where: str):
        what = f"the runner of job {job!r} was asked to end (SIGTERM); what is finished is committed"
        super().__init__(what, where=where, hint=f"the job goes on with its next runner, or: mops jobs resume {job}")


class Superseded(MopsError):
    """A newer attempt owns the job: this runner stops and nothing restarts it."""

    exit_code = 5


class InternalError(MopsError):
    """What mops counts contradicts itself: a defect of mops, found before it harms results."""

    exit_code = 70  # EX_SOFTWARE of sysexits.h


_NUMBER = re.compile(r"\d[\d.,]*( [KMG]?i?B)?")


def without_numbers(message: str) -> str:
    """Return a message as those that differ in their numbers and sizes only have it too: such are told once."""
    return _NUMBER.sub("#", message)
