"""Follows a job that another process runs: its progress, its end and its log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace

from mops import errors
from mops.attempt.display import displayed
from mops.errors import (
    ClusterError,
    DataError,
    InstallError,
    JobError,
    JobFailed,
    ModelError,
    RunnerEnded,
    SystemUnfit,
    UsageError,
)
from mops.jobs.runners import Phases
from mops.jobs.status import JobState, Status, job_state
from mops.storage import advisory
from mops.storage.files import Files
from mops.storage.job_records import check_not_deleted
from mops.storage.joblog.log import JobLog
from mops.storage.paths import JobPaths, numbers_of
from mops.storage.progress_record import Progress

POLL_SECONDS = 1.0
LOG_SECONDS = 2.0  # the pause between two looks for new text
_OBJECTS_AT_ONCE = 16  # of the log in memory, each about 1 MiB at most

# The errors that an attempt may end with; those that derive from them take other arguments.
_KINDS = (ModelError, InstallError, DataError, SystemUnfit, JobError, UsageError, ClusterError, JobFailed)


def follow(
    job: JobState,
    phases: Phases,
    on_progress: Callable[[Progress], None] | None,  # None: a terminal or a notebook shows it
) -> Status:
    """Show the progress of a job until it is over, and return its last status. Ctrl-C ends only this call."""
    status = job.follower()
    try:
        with nullcontext(on_progress) if on_progress else displayed() as show:
            while phases.may_continue(now := status()):
                show(progress_of(now))
                time.sleep(POLL_SECONDS)
            show(progress_of(now))
    except KeyboardInterrupt:
        raise errors.Interrupted(
            f"stopped waiting; job {job.name!r} continues: job.wait() waits again, job.cancel() stops the job"
        ) from None
    return now


def wait_for(job: JobState, phases: Phases, on_progress: Callable[[Progress], None] | None) -> None:
    """Follow a job; if it ended without a result, raise the error that its runner has stored, or one that says so."""
    now = follow(job, phases, on_progress)
    if now.state not in ("failed", "submitted", "interrupted", "running"):  # running: its pod has ended just now
        return
    error = now.error
    kind = getattr(errors, error.kind, None) if error else None
    bases = kind.__mro__ if isinstance(kind, type) else ()
    expected = next((one for one in bases if one in _KINDS), None)  # the class that a program can expect
    resume = f"run the rest: mops jobs resume {job.name}"
    if now.state == "failed":
        what, hint = f"job {job.name!r} has failed", f"read the log: mops jobs logs {job.name}"
        raise (expected or JobFailed)(
            error.what if error else what, where=job.name, hint=(error and error.hint) or hint
        )
    if error and expected is ClusterError:
        raise ClusterError(error.what, where=job.name, hint=resume)
    why = f": {error.what}" if error else ", and its storage does not say why, as after a kill"
    output = last_lines(job.files, job.record.paths, 5)
    raise RunnerEnded(None, output, when=f"before the end of the job{why}", where=job.files.url, hint=resume)


def progress_of(now: Status) -> Progress:
    """Return a status as the progress that a runner in this process would show."""
    time_s = time.time()
    live = now.live.aged(time_s) if now.live else Progress(time_s, now.finished, job=now.job)
    return replace(
        live,
        finished=now.finished,
        durable=now.counts,
        total=now.n_simulations,
        seconds=now.seconds or 0.0,
        peak_bytes=now.peak_bytes or 0,
        children=now.children,
        sizing=now.sizing,
        n_groups=now.n_groups,
        n_groups_durable=now.groups,
    )


# The text log, of which the runner writes an object with each checkpoint (mops/attempt/commit.py)


def read_log(
    job: JobState,
    *,
    tail: int | None = None,  # only this many last lines of the present log
    follow: bool = False,  # also yield new text, until no runner runs the job
) -> Iterator[str]:
    """Yield the log's text in order."""
    paths = job.record.paths
    log = JobLog(job.files, paths)

    def is_over() -> bool:
        state, _ = job_state(job.files, paths, log.read())
        if state == "submitted":  # that of a deleted job, too
            check_not_deleted(job.files, paths)
        return state not in ("submitted", "running")

    over = not follow or is_over()
    seen = _objects(job.files, paths)
    yield from _texts(job.files, seen) if tail is None else [_end_of(job.files, seen, tail)]
    while not over:
        time.sleep(LOG_SECONDS)
        # Before the listing, so that the listing has all that an ended runner wrote.
        over = is_over()
        new = [path for path in _objects(job.files, paths) if path not in seen]
        yield from _texts(job.files, new)
        seen += new


def last_lines(files: Files, paths: JobPaths, n: int) -> str:
    """Return the last ``n`` lines of the present log of all attempts."""
    return _end_of(files, _objects(files, paths), n)


def _end_of(files: Files, objects: Sequence[str], n: int) -> str:
    return last_of((text for path in reversed(objects) for text in _texts(files, [path])), n)


def _objects(files: Files, paths: JobPaths) -> list[str]:
    """Return the paths of the log's objects, in the order of writing."""
    listed = {entry.path: numbers_of(entry.path) for entry in advisory.listed(files, paths.texts)}
    found = {path: numbers for path, numbers in listed.items() if numbers}
    return sorted(found, key=found.__getitem__)


def _texts(files: Files, paths: Sequence[str]) -> Iterator[str]:
    for start in range(0, len(paths), _OBJECTS_AT_ONCE):
        some = paths[start : start + _OBJECTS_AT_ONCE]
        texts = advisory.read_many(files, some, lambda data, _: data.decode(errors="replace"))
        yield from (text for text in texts if text)


def last_of(texts: Iterable[str], n: int) -> str:
    """Return the last ``n`` lines of texts that come in reverse order; read only as many texts as needed."""
    taken, n_ends = [], 0
    for text in texts:
        taken.append(text)
        n_ends += text.count("\n")
        if n_ends > n:
            break
    lines = "".join(reversed(taken)).split("\n")
    count = n + (not lines[-1])  # an empty string follows the last line end
    return "\n".join(lines[max(len(lines) - count, 0) :])
