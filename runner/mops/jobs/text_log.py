"""Reads a job's text log, of which the runner writes an object with each checkpoint (mops/attempt/commit.py)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

from mops.errors import JobError
from mops.jobs.status import JobState, job_state
from mops.storage import advisory
from mops.storage.files import Files
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.records import LogView
from mops.storage.paths import JobPaths, numbers_of

POLL_SECONDS = 2.0
_OBJECTS_AT_ONCE = 16  # in memory, each about 1 MiB at most


def read(
    job: JobState,
    attempt: int | None = None,  # None: all
    *,
    tail: int | None = None,  # only this many last lines of the present log
    # Also yield new text, until no runner runs the job (or, with `attempt`, until a newer attempt starts).
    follow: bool = False,
) -> Iterator[str]:
    """Yield the log's text in order; raise JobError if the attempt does not exist."""
    paths = job.record.paths
    log = JobLog(job.files, paths)
    if attempt is not None:
        newest = log.read().attempt
        if not 1 <= attempt <= newest:
            last = f"use an attempt from 1 to {newest}" if newest > 1 else "its only attempt is 1"
            hint = last if newest else "wait until a runner starts the job"
            raise JobError(f"job {job.name!r} has no attempt {attempt}", where=job.files.url, hint=hint)
    over = not follow or _is_over(job.files, paths, attempt, log.read())
    seen = _objects(job.files, paths, attempt)
    yield from _texts(job.files, seen) if tail is None else [_end_of(job.files, seen, tail)]
    while not over:
        time.sleep(POLL_SECONDS)
        # Before the listing, so that the listing has all that an ended runner wrote.
        over = _is_over(job.files, paths, attempt, log.read())
        new = [path for path in _objects(job.files, paths, attempt) if path not in seen]
        yield from _texts(job.files, new)
        seen += new


def last_lines(files: Files, paths: JobPaths, n: int) -> str:
    """Return the last ``n`` lines of the present log of all attempts."""
    return _end_of(files, _objects(files, paths, None), n)


def _end_of(files: Files, objects: Sequence[str], n: int) -> str:
    return _last_lines((text for path in reversed(objects) for text in _texts(files, [path])), n)


def _is_over(files: Files, paths: JobPaths, attempt: int | None, view: LogView) -> bool:
    state, _ = job_state(files, paths, view)
    return state not in ("submitted", "running") or (attempt is not None and view.attempt > attempt)


def _objects(files: Files, paths: JobPaths, attempt: int | None) -> list[str]:
    """Return the paths of the log's objects, in the order of writing."""
    entries = advisory.listed(files, paths.texts)
    listed = {entry.path: numbers_of(entry.path) for entry in entries}
    found = {path: numbers for path, numbers in listed.items() if numbers and attempt in (numbers[0], None)}
    return sorted(found, key=found.__getitem__)


def _texts(files: Files, paths: Sequence[str]) -> Iterator[str]:
    for start in range(0, len(paths), _OBJECTS_AT_ONCE):
        some = paths[start : start + _OBJECTS_AT_ONCE]
        texts = advisory.read_many(files, some, lambda data, _: data.decode(errors="replace"))
        yield from (text for text in texts if text)


def _last_lines(texts: Iterable[str], n: int) -> str:
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
