"""Jobs in a storage as a runner leaves them, made without a runner, and storages that fail or call back."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable

import pytest

from mops.project.bundle import Bundle
from mops.project.project import ModelSpec
from mops.storage.files import Files
from mops.storage.job_options import NO_OPTIONS
from mops.storage.job_records import JobRecord, create_job, keep_finished
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.records import Part, State
from mops.storage.params_file import encode_groups
from mops.storage.paths import JobPaths, NamePaths
from mops.storage.progress_record import Progress, write_live
from mops.study.ranges import Ranges
from mops.study.study_file import parse_study
from mops.verdicts import Counts

ID = "0123456789abcdef"
"""The id of every job that is made here. Jobs of one name have it one after the other, unless a test says otherwise."""

on_disk = pytest.mark.parametrize("storage", ["local"], indirect=True)
"""Runs a test on the local storage only: what it checks is above the contract that test_storage_files.py checks."""

N_GROUPS = 3
BUNDLE = Bundle("00" * 32, b"a zip", ("model.py",))


def created(
    files: Files,
    name: str = "job",
    at: str = "2026-01-02T03:04:05+00:00",
    study: str | None = None,
    job_id: str = ID,
) -> JobRecord:
    """Create a job."""
    spec = ModelSpec("model:run", "baseline", (), None)
    record = JobRecord(name, job_id, at, BUNDLE.digest, spec, N_GROUPS, N_GROUPS, NO_OPTIONS, study="", project="")
    sets = [{"params": {"x": n}, "seed": n} for n in range(N_GROUPS)]
    groups = parse_study({"model": "model:run", "parameter_sets": sets}, where="study.json").groups
    create_job(
        files, record, BUNDLE, study or json.dumps({"study": "of " + name}), encode_groups(groups, files.spool())
    )
    return record


def claimed(
    files: Files, name: str = "job", host: str = "elsewhere", at: float | None = None, job_id: str = ID
) -> JobLog:
    """Claim a job, by default long ago."""
    when = time.time() - 1000 if at is None else at
    log = JobLog(files, JobPaths(name, job_id), host=host, clock=lambda: when)
    log.claim("person")
    return log


def part(files: Files, name: str, n: int, c: int, data: bytes = b"rows") -> Part:
    """Write a part, which counts as soon as a commit names it."""
    path = JobPaths(name, ID).part("outputs", "daily", n, c)
    files.put(path, data)
    return Part(path, 3, len(data), hashlib.sha256(data).hexdigest())


def commit(files: Files, log: JobLog, name: str, *groups: int, failed: int = 0) -> None:
    """Commit groups of one simulation each, with a part each. The last ``failed`` of them have failed."""
    for i, group in enumerate(groups):
        bad = i >= len(groups) - failed
        log.commit(Ranges.of([group]), [part(files, name, log.view.attempt, group)], Counts(int(not bad), int(bad)))


def lives(files: Files, name: str, n: int, *, host: str = "elsewhere", pid: int = 1, age_s: float = 1000.0) -> None:
    """Write a live record."""
    write_live(files, JobPaths(name, ID), n, Progress(time.time() - age_s, Counts(), host=host, pid=pid))


def texts(files: Files, name: str, **pieces: str) -> None:
    """Write pieces of the text log: ``a2_10="text"`` is number 10 of attempt 2."""
    for number, text in pieces.items():
        n, c = map(int, number.removeprefix("a").split("_"))
        files.put(JobPaths(name, ID).text(n, c), text.encode())


def finished(files: Files, name: str = "job", *, failed: int = 0, at: str | None = None) -> JobRecord:
    """Create and complete a job."""
    record = created(files, name, *([at] if at else []))
    log = claimed(files, name)
    lives(files, name, 1)
    commit(files, log, name, *range(N_GROUPS), failed=failed)
    texts(files, name, a1_9="began\nended\n")
    ended(files, log, record, "partial" if failed else "succeeded")
    return record


def ended(files: Files, log: JobLog, record: JobRecord | None, state: State) -> None:
    """End an attempt. Only a complete end needs the record."""
    log.end(state, log.view.counts)
    if log.view.complete and record is not None:
        keep_finished(files, record.paths, log.view.end)


def below(files: Files, name: str = "job") -> list[str]:
    """Return the paths of all files of a name, in the folder of the name or of the job."""
    root = NamePaths(name).root
    return [entry.path.removeprefix(f"{root}/").removeprefix(f"{ID}/") for entry in files.list(root)]


class Hooked:
    """A backend that calls ``before(name, path)`` before each request."""

    def __init__(self, backend, before):
        self._backend, self._before = backend, before

    def __getattr__(self, name):
        def ask(*asked):
            self._before(name, asked[0] if asked else None)
            return getattr(self._backend, name)(*asked)

        return ask


def hooked(files: Files, before: Callable[[str, str | None], object]) -> Files:
    """Return the storage, with a call of ``before(name, path)`` before each request."""
    return Files(Hooked(files._backend, before), files.url)


def refusing(files: Files, path: str) -> Files:
    """Return the storage, which refuses all requests for a path."""

    def refuse(_: str, asked: str | None) -> None:
        if asked == path:
            raise PermissionError(13, "Permission denied")

    return hooked(files, refuse)


class AtRequest:
    """Calls a function at the ``number``-th request to a storage."""

    def __init__(self, number: int, act: Callable[[], object]):
        self._number, self._act, self._n_requests = number, act, 0

    def __call__(self, *_: object) -> None:
        self._n_requests += 1
        if self._n_requests == self._number:
            self._act()

    @property
    def has_acted(self) -> bool:
        return self._n_requests >= self._number


def timeless(error: BaseException) -> str:
    """Return the text of an error without times."""
    return re.sub(r"\d+ s ago", "(some) s ago", str(error))
