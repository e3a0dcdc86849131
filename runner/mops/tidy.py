"""Removes what a job does not need: parts that no commit names and none can name any more, and old temporary files.

This is rule 13 of docs/storage.md. Whole jobs are deletion.py's.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from mops.errors import Superseded
from mops.job import Job
from mops.storage.files import Entry
from mops.storage.jobs import load_job
from mops.storage.log import JobLog, LogView
from mops.storage.paths import PART_KINDS, JobPaths, numbers_of

SCRAP_SECONDS = 3600.0
"""What a writer left unfinished is removed after this long: writing it takes seconds."""


@dataclass(frozen=True)
class Cleaned:
    """What was removed, or would be.

    Parameters
    ----------
    bytes
        Of all these files.
    kept
        Files of the last attempt that no commit names: its runner may yet commit them.
    """

    job: str
    paths: tuple[str, ...]
    bytes: int
    kept: int


def clean(job: Job, *, last_attempt: bool = False, dry_run: bool = False) -> Cleaned:
    """Remove what a job does not need, while it runs or afterwards.

    Parameters
    ----------
    last_attempt
        Also what the last attempt left, if no runner is at the job: :func:`fence` comes first.
    dry_run
        Write and remove nothing.

    Raises
    ------
    JobError
        There is no such job; or, with ``last_attempt``, a runner is at it.
    """
    load_job(job.files, job.name)
    if last_attempt:
        hint = f"without --last-attempt it can be cleaned while it runs: mops jobs clean {job.name}"
        view = job.require_no_runner(hint)
        if view.attempt and not dry_run:
            fence(job, hint)
    files, paths = job.files, JobPaths(job.name)
    scraps = [entry for entry in files.scraps(paths.root, SCRAP_SECONDS) if not entry.path.startswith(f"{paths.log}/")]
    # Listed before the log is read: it then shows every commit of these that there will ever be, if theirs is over.
    parts = [entry for kind in PART_KINDS for entry in files.list(f"{paths.root}/{kind}")]
    view = JobLog(files, paths).read()
    loose = unnamed(parts, view)
    over = view.attempt if view.complete or last_attempt else view.attempt - 1
    found = [entry for entry, n in loose if n <= over]
    kept = len(loose) - len(found)
    found += scraps
    if not dry_run:
        files.remove([entry.path for entry in found])
    return Cleaned(job.name, tuple(entry.path for entry in found), sum(entry.size for entry in found), kept)


def unnamed(parts: Iterable[Entry], view: LogView) -> list[tuple[Entry, int]]:
    """Return the parts that no commit names, each with its attempt's number; files that are no parts are left out."""
    named = {part.path for table in view.parts.values() for part in table}
    loose = ((entry, numbers_of(entry.path)) for entry in parts if entry.path not in named)
    return [(entry, numbers[0]) for entry, numbers in loose if numbers]


def fence(job: Job, hint: str) -> JobLog | None:
    """Claim a job that no runner is at, so that one that was silent stops when it wakes up; end in the state found.

    A job that was interrupted is cancelled by this. None: it is complete, so that no runner can do anything to it.

    Parameters
    ----------
    hint
        What the user can do if there is a runner.

    Raises
    ------
    JobError
        A runner is at it, or begins to be just now.
    """
    found = job.require_no_runner(hint)
    if found.complete:
        return None
    log = JobLog(job.files, JobPaths(job.name))
    log.claim("person", after=found.attempt)
    with suppress(Superseded):  # somebody goes on with it: as good a fence
        log.end(found.state or "cancelled", totals=log.view.counts)
    return log
