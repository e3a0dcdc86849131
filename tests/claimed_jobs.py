"""Claimed jobs without a project, for tests of a runner."""

from __future__ import annotations

from typing import Any

from mops.attempt.claimed_job import ClaimedJob
from mops.project.project import ModelSpec
from mops.settings import Settings
from mops.storage.files import Files
from mops.storage.job_options import NO_OPTIONS
from mops.storage.job_records import JobRecord
from mops.storage.joblog.log import JobLog
from mops.study.groups import GroupBuilder, GroupTable, json_column
from mops.task import JobContext

ID = "0123456789abcdef"
"""The id of every job that is made here."""


def groups_of(replicates: list[int]) -> GroupTable:
    """Return a group for each number of replicates. Replicate k of group i has the seed 1000 i + k."""
    builder, first = GroupBuilder(1), 0
    for i, n in enumerate(replicates):
        rows = list(range(first, first + n))
        builder.add({"a": json_column([i] * n)}, [1000 * i + k for k in range(n)], rows)
        first += n
    return builder.build()[0]


def claimed_job(
    url: str, groups: GroupTable, *, name: str = "job", targets: tuple[str, ...] = (), **settings: Any
) -> ClaimedJob:
    """Claim a job of these groups in a storage; return it with these settings."""
    spec = ModelSpec("model:run", "baseline", targets, None)
    numbers = (len(groups), groups.n_simulations)
    record = JobRecord(name, ID, "2026-01-02", "00" * 32, spec, *numbers, NO_OPTIONS, study="", project="")
    files = Files.open(url)
    log = JobLog(files, record.paths, host="here")
    log.claim("person")
    context = JobContext(name, "1", "00" * 32, url, "model:run", "baseline", targets, None, slots=None)
    return ClaimedJob(files, record, groups, log, context, Settings.model_validate(settings))
