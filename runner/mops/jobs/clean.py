"""Removes parts that no commit names and that none can name any more, and old temporary files.

This is rule 13 of docs/internals/storage.md. Whole jobs are jobs/delete.py's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from mops.errors import Superseded
from mops.jobs.job import Job
from mops.storage.backends.base import Entry
from mops.storage.job_records import load_job
from mops.storage.joblog.log import JobLog, WholeLog, read_whole
from mops.storage.joblog.records import Asked
from mops.storage.joblog.view import LogView
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
        Also what the last attempt left, if no runner is at the job: behind a claim (:func:`fenced`). A job
        that nobody has claimed has none, and stays as it is.
    dry_run
        Write and remove nothing.

    Raises
    ------
    JobError
        There is no such job; or, with ``last_attempt``, a runner is at it.
    """
    load_job(job.files, job.name)
    if not last_attempt:
        return _clean(job, dry_run=dry_run)
    hint = f"without --last-attempt it can be cleaned while it runs: mops jobs clean {job.name}"
    dead = job.require_no_runner(hint)
    if dry_run or dead.complete or not dead.attempt:
        return _clean(job, dry_run=dry_run, foreseen=dead.attempt if dry_run else 0)
    with fenced(job, dead):
        return _clean(job, dry_run=False)


def _clean(job: Job, *, dry_run: bool, foreseen: int = 0) -> Cleaned:
    """Remove what no commit names and none can name.

    Parameters
    ----------
    foreseen
        For a dry run, which claims nothing: attempts up to this one would be over.
    """
    files, paths = job.files, JobPaths(job.name)
    scraps = [entry for entry in files.scraps(paths.root, SCRAP_SECONDS) if not entry.path.startswith(f"{paths.log}/")]
    # Listed before the log is read: it then shows every commit of these that there will ever be, if theirs is over.
    parts = [entry for kind in PART_KINDS for entry in files.list(f"{paths.root}/{kind}")]
    log = read_whole(files, paths)
    loose = unnamed(parts, log)
    over = max(foreseen, over_attempts(log.view))
    found = [entry for entry, n in loose if n <= over]
    kept = len(loose) - len(found)
    found += scraps
    if not dry_run:
        files.remove([entry.path for entry in found])
    return Cleaned(job.name, tuple(entry.path for entry in found), sum(entry.size for entry in found), kept)


def over_attempts(view: LogView) -> int:
    """Return the last attempt that can commit no more: the one before the last claim, or after a complete end all.

    The view that shows which parts are named is the one that decides: it has every commit before its last claim.
    """
    return view.attempt if view.complete else view.attempt - 1


def unnamed(parts: Iterable[Entry], log: WholeLog) -> list[tuple[Entry, int]]:
    """Return the parts that no commit names, each with its attempt's number; files that are no parts are left out."""
    named = {part.path for commit in log.commits for part in commit.parts}
    loose = ((entry, numbers_of(entry.path)) for entry in parts if entry.path not in named)
    return [(entry, numbers[0]) for entry, numbers in loose if numbers]


@contextmanager
def fenced(job: Job, dead: LogView) -> Iterator[JobLog]:
    """Claim a job that no runner is at, so that one that was silent stops when it wakes up; yield the log.

    The attempt that this begins runs nothing. It ends with the body, in the state that the job was in before; a job
    that was interrupted is cancelled by this. Until then the job counts as running, so that nobody resumes it.

    Parameters
    ----------
    dead
        The log that shows that there is no runner (:meth:`Job.require_no_runner`), and that the job is not complete.

    Raises
    ------
    Overtaken
        Somebody has gone on with the job, cancelled it, or ended it since.
    """
    log = JobLog(job.files, JobPaths(job.name))
    log.claim("person", asked=Asked.behind(dead.k))
    try:
        yield log
    finally:
        with suppress(Superseded):  # somebody goes on with the job: as good a fence
            log.end(dead.state or "cancelled", totals=log.view.counts)
