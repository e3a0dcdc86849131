"""Removes parts that no record can name, and old temporary files (docs/internals/storage.md, rules 13 and 20)."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from mops.errors import Superseded
from mops.jobs.status import JobState
from mops.storage.joblog.log import JobLog, WholeLog, read_whole
from mops.storage.joblog.records import COMPACTIONS, Compaction, LogView, RunRequest
from mops.storage.paths import PART_KINDS, is_compacted, numbers_of

LEFTOVER_SECONDS = 3600.0  # the age after which a temporary file is removed; writing one takes seconds


@dataclass(frozen=True)
class Cleaned:
    """What ``clean`` removed, or would remove."""

    job: str
    paths: tuple[str, ...]
    bytes: int  # of all these files
    # Files of the last attempt or of a compaction that do not count yet: their process may still make them count.
    kept: int


def clean(
    job: JobState,
    *,
    # Also remove files of the last attempt, after a claim that stops its runner (`claimed`), or of a killed compaction
    # of a complete job, which then can no longer be compacted. A job without an attempt does not change.
    last_attempt: bool = False,
    dry_run: bool = False,
) -> Cleaned:
    """Remove files that do not count from a job, while it runs or afterwards."""
    if not last_attempt:
        return _clean(job, dry_run=dry_run)
    hint = f"leave out --last-attempt to clean a job while it runs: mops jobs clean {job.name}"
    idle = job.require_no_runner(hint)
    if dry_run or not idle.attempt:
        return _clean(job, dry_run=dry_run, assumed_over=dry_run)
    if idle.complete:
        if _clean(job, dry_run=True).kept:  # with this record no other compaction can count
            nothing = Compaction(time=time.time(), host=socket.gethostname(), merges=())
            job.files.put_new(job.record.paths.compaction, COMPACTIONS.encode(nothing))
        return _clean(job, dry_run=False)
    with claimed(job, idle):
        return _clean(job, dry_run=False)


def _clean(
    job: JobState,
    *,
    dry_run: bool,
    # For a dry run, which claims nothing: whether a claim would end the last attempt, or a record every compaction.
    assumed_over: bool = False,
) -> Cleaned:
    files, paths = job.files, job.record.paths
    scraps = files.scraps(paths.root, LEFTOVER_SECONDS)
    leftovers = [entry for entry in scraps if not entry.path.startswith(f"{paths.log}/")]
    # Parts first, then the records: so these have every record that can ever name the parts of what is over.
    parts = [entry for kind in PART_KINDS for entry in files.list(f"{paths.root}/{kind}")]
    log = read_whole(files, paths)
    current = {one.part.path for one in log.parts}
    not_current = [(entry, _is_over(entry.path, log, assumed_over)) for entry in parts if entry.path not in current]
    found = [entry for entry, is_over in not_current if is_over]
    kept = sum(is_over is False for _, is_over in not_current)
    found += leftovers
    if not dry_run:
        files.remove([entry.path for entry in found])
    return Cleaned(job.name, tuple(entry.path for entry in found), sum(entry.size for entry in found), kept)


def _is_over(path: str, log: WholeLog, assumed_over: bool) -> bool | None:
    """Tell whether a part that does not count can never count; None: the file does not belong to this job."""
    if numbers := numbers_of(path):
        return numbers[0] <= last_attempt_over(log.view) + assumed_over
    if not (is_compacted(path) and log.view.complete):
        return None
    # Only the first compaction counts. Without its record, one may still come.
    return assumed_over or log.compaction is not None


def last_attempt_over(view: LogView) -> int:
    """Return the last attempt that can commit no more: the last one of a complete job, else the last but one."""
    # The view must be the one that shows which parts are named: it has every commit before its last claim.
    return view.attempt if view.complete else view.attempt - 1


@contextmanager
def claimed(
    job: JobState,
    idle: LogView,  # shows that the job has no runner (`JobState.require_no_runner`) and is not complete
) -> Iterator[JobLog]:
    """Claim a job without a runner, so that a silent runner stops when it wakes up; yield the log."""
    # The claim begins an attempt that runs nothing. It ends with the body, in the job's state from before; an
    # interrupted job becomes cancelled. Until then the job counts as running, and no one can resume it. Raises
    # Overtaken if someone has resumed, cancelled or ended the job since `idle` was read.
    log = JobLog(job.files, job.record.paths)
    log.claim("person", asked=RunRequest.behind(idle.k))
    try:
        yield log
    finally:
        with suppress(Superseded):  # a newer attempt stops the silent runner as well
            log.end(idle.state or "cancelled", totals=log.view.counts)
