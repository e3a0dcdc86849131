"""Reads a job's text log: all of it, its last lines, or as it grows.

The runner keeps it in pieces, one with each checkpoint (attempt/reporting/text_log.py,
attempt/checkpoint/committer.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

from mops.errors import JobError
from mops.jobs.job import Job
from mops.jobs.status import job_state
from mops.storage import advisory
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.view import LogView
from mops.storage.paths import JobPaths, numbers_of

LOOK_SECONDS = 2.0
_AT_ONCE = 16  # pieces in memory, each of about 1 MiB at most


def read(job: Job, attempt: int | None = None, *, tail: int | None = None, follow: bool = False) -> Iterator[str]:
    """Yield the log in pieces, in their order.

    Parameters
    ----------
    attempt
        Only this attempt's; None: all.
    tail
        Only so many lines of what is there now.
    follow
        Go on with what comes, until no runner is at the job (or, with ``attempt``, a newer attempt has begun).

    Raises
    ------
    JobError
        There is no such attempt.
    """
    log = JobLog(job.files, JobPaths(job.name))
    if attempt is not None:
        _check(job, attempt, log.read())
    over = not follow or _is_over(job, attempt, log.read())
    seen = _there(job, attempt)
    yield from _texts(job, seen) if tail is None else [_last_lines(_texts_backwards(job, seen), tail)]
    while not over:
        time.sleep(LOOK_SECONDS)
        over = _is_over(job, attempt, log.read())  # looked at first: what a runner that has ended wrote is there
        new = [path for path in _there(job, attempt) if path not in seen]
        yield from _texts(job, new)
        seen += new


def _check(job: Job, attempt: int, view: LogView) -> None:
    if not 1 <= attempt <= view.attempt:
        hint = f"its attempts are 1 to {view.attempt}" if view.attempt else "it has not begun"
        raise JobError(f"job {job.name!r} has no attempt {attempt}", where=job.files.url, hint=hint)


def _is_over(job: Job, attempt: int | None, view: LogView) -> bool:
    state, _ = job_state(job.files, job.name, view)
    return state not in ("submitted", "running") or (attempt is not None and view.attempt > attempt)


def _there(job: Job, attempt: int | None) -> list[str]:
    """Return the paths of the pieces, in the order in which they were written."""
    entries = advisory.listed(job.files, JobPaths(job.name).texts)
    listed = {entry.path: numbers_of(entry.path) for entry in entries}
    found = {path: numbers for path, numbers in listed.items() if numbers and attempt in (numbers[0], None)}
    return sorted(found, key=found.__getitem__)


def _texts(job: Job, paths: Sequence[str]) -> Iterator[str]:
    for start in range(0, len(paths), _AT_ONCE):
        texts = advisory.read_many(job.files, paths[start : start + _AT_ONCE], _text)
        yield from (text for text in texts if text)


def _text(data: bytes, _where: str) -> str:
    return data.decode(errors="replace")


def _texts_backwards(job: Job, paths: Sequence[str]) -> Iterator[str]:
    for path in reversed(paths):
        yield from _texts(job, [path])


def _last_lines(texts: Iterable[str], n: int) -> str:
    """Return the last ``n`` lines of texts that come in reverse order, and take no more of them than that needs."""
    taken, n_ends = [], 0
    for text in texts:
        taken.append(text)
        n_ends += text.count("\n")
        if n_ends > n:
            break
    lines = "".join(reversed(taken)).split("\n")
    count = n + (not lines[-1])  # behind the last end of line stands an empty string
    return "\n".join(lines[max(len(lines) - count, 0) :])
