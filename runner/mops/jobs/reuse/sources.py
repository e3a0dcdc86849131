"""Finds the jobs of a storage whose simulations a new job may take (docs/internals/storage.md, "Reuse")."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mops.errors import UsageError
from mops.jobs.job import Job
from mops.jobs.prepare import PreparedStudy, listed_files
from mops.jobs.reuse.matching import Found, Numbers, Pieces, Refused, match
from mops.jobs.reuse.same_files import SameFiles
from mops.jobs.reuse.unreadable import UNREADABLE, warn_unreadable
from mops.storage.files import Files
from mops.storage.job_options import JobOptions
from mops.storage.job_records import JOB_RECORDS, JobRecord, job_names, load_job, options_records
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.records import LogView
from mops.storage.params_file import load_groups
from mops.storage.paths import NamePaths
from mops.storage.sources import FirstReplicates, families_of, source_logs
from mops.study.column_families import MIXED, Families, join_families
from mops.study.groups import GroupTable
from mops.study.ranges import Ranges
from mops.units import counted

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Offer:
    """The good simulations that a complete job has run itself, or has taken from other jobs by a reuse."""

    # Simulations that a derived job takes over belong to its sources.

    files: Files
    record: JobRecord
    view: LogView
    only: Ranges | None = None  # the groups of which the job offers simulations; None: all
    failures: pa.Table | None = None  # None: not read yet

    def open(self) -> None:
        """Read what the properties need. Their first use raises the errors of a job that cannot be read."""
        _ = self.groups, self.stored, self._failed, self._first

    @cached_property
    def groups(self) -> GroupTable:
        """The job's groups."""
        return load_groups(self.files, self.record.paths)

    @cached_property
    def stored(self) -> npt.NDArray[np.bool_]:
        """For each group, whether the job has some of its simulations."""
        stored = np.zeros(self.record.n_groups, np.bool_)
        committed = self.view.committed if self.only is None else self.view.committed & self.only
        for start, stop in committed.intervals:
            stored[start:stop] = True
        return stored

    def has(self, group: int, replicates: Numbers) -> npt.NDArray[np.bool_]:
        """Tell for each of these replicates of a stored group whether the job has its simulation, which is good."""
        found: npt.NDArray[np.bool_] = replicates >= self._first.n(group)
        return found & ~np.isin(replicates, self._failed.get(group, ()))

    @cached_property
    def _failed(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        if self.view.counts.simulations_failed:
            failures = self.failures if self.failures is not None else failures_of(Job(self.files, self.record.job))
            for row in failures.filter(failures["target"].is_null()).to_pylist():
                found.setdefault(row["group"], []).append(row["replicate"])
        return found

    @cached_property
    def _first(self) -> FirstReplicates:
        """The replicates of each group whose rows are in the parts of other jobs."""
        return FirstReplicates(self.files, self.record)


def find_reuse(files: Files, new: JobRecord, prepared: PreparedStudy) -> Found | None:
    """Find the simulations that a new job takes from other jobs; None: there are none."""
    # A warning names the newest job that is left out because of its files or variables and has simulations that no
    # other job offers.
    offers, reasons = find_offers(files, new, prepared)
    refused = Refused(list(reasons))
    found = match(prepared.study.groups, offers, files.spool, refused)
    if refused.source is not None:
        message = "job %s is not reused, because %s; to run again: %s"
        reason = reasons[refused.source]  # type: ignore[index]
        logger.warning(message, refused.source.record.job, reason, counted(refused.n_lost, "simulation"))
    elif found is None and not _without_value([new.options]):
        logger.warning("no simulation is reused, because no complete job has run one of this study")
    return found


def find_offers(files: Files, new: JobRecord, prepared: PreparedStudy) -> tuple[list[Offer], dict[Offer, str]]:
    """Return the jobs whose simulations a new job may take, the newest first, and those left out, with the reasons."""
    # They are complete, and have the model, scenario, variables, interpreter and files of the new job. A job that
    # cannot be read is left out with a warning. A study that stores only some outputs is a UsageError, because its
    # targets cannot be evaluated on stored rows.
    if new.spec.outputs is not None:
        raise UsageError(
            "a study that stores only some outputs cannot reuse simulations, because its targets may need the others",
            where="$.outputs",
            hint="remove 'outputs' from the study, or submit without --reuse",
        )
    if unknown := _without_value([new.options]):
        logger.warning("no simulation is reused, because mops does not store the value of --env %s", unknown)
        return [], {}
    search = _Search(files, new, SameFiles(files, new, prepared))
    found: list[Offer] = []
    families: Families = {}
    for record in _like(files, new):
        offer, theirs = search.offer(record)
        if offer is not None and (joined := _joined(families or theirs, theirs)) is not None:
            families = joined
            found.append(offer)
    return found, search.refused


def failures_of(job: Job) -> pa.Table:
    """Return the simulations, targets and verdicts of a job's failures."""
    return job.failures(columns=["group", "replicate", "target", "reason"]).to_arrow()


def find_good_simulations(
    job: Job,
    view: LogView,  # the job's log
    groups: Pieces,  # of the derived job, which have the numbers of the job's groups
    wanted: Ranges,  # the numbers of the groups
    failures: pa.Table,  # from `failures_of`
) -> Found | None:
    """Find the good simulations of some groups of a complete job, for a job derived from it; None: there are none."""
    offers = [Offer(job.files, job.record, view, wanted, failures)]
    for one in reversed(source_logs(job.files, job.record)):
        record = load_job(job.files, one.source.job)
        offers.append(Offer(job.files, record, one.log.view, wanted & one.source.outputs))
    return match(groups, offers, job.files.spool)


def _like(files: Files, new: JobRecord) -> Iterator[JobRecord]:
    """Yield the jobs with the code names of the new job, the newest first."""
    names = [name for name in job_names(files) if name != new.job]
    contents = files.get_many([NamePaths(name).record for name in names])
    records = []
    for name, data in zip(names, contents, strict=True):
        try:
            if data is not None:
                records.append(JOB_RECORDS.decode(data, f"{files.url}/{NamePaths(name).record}"))
        except UNREADABLE as bad:
            warn_unreadable(name, bad)
    for record in sorted(records, key=lambda one: (one.created, one.job), reverse=True):
        if _code(record) == _code(new):
            yield record


class _Search:
    def __init__(self, files: Files, new: JobRecord, same: SameFiles):
        self._files, self._new, self._same = files, new, same
        # The jobs that are left out because of their files or variables, and why, as the end of a sentence.
        self.refused: dict[Offer, str] = {}

    def offer(self, record: JobRecord) -> tuple[Offer | None, Families]:
        """Return what a job offers, and the families of its columns; None: nothing."""
        try:
            view = JobLog(self._files, record.paths).read()
            if not view.complete:
                return None, {}
            offer = Offer(self._files, record, view)
            if not self._may_use(offer):
                return None, {}
            families = families_of(self._files, record.paths, [view]) or {}
            offer.open()
        except UNREADABLE as bad:
            warn_unreadable(record.job, bad)
            return None, {}
        return (offer if families else None), families

    def _may_use(self, offer: Offer) -> bool:
        """Tell whether every attempt of a job had the variables, the interpreter and the files of the new job."""
        record, new = offer.record, self._new.options
        every = [kept.options for kept in options_records(self._files, record)]
        if unknown := _without_value(every):
            reason = f"mops does not store the value of --env {unknown}"
        elif any((dict(one.env), one.python) != (dict(new.env), new.python) for one in every):
            return False
        elif different := self._same.different(record):
            reason = f"its files differ: {listed_files(different)}"
        else:
            return True
        self.refused[offer] = reason
        return False


def _without_value(options: Iterable[JobOptions]) -> str:
    """Return the variables whose values come from the environment of the runner, as a text."""
    return ", ".join(sorted({name for one in options for name, value in one.env.items() if value is None}))


def _joined(known: Families, theirs: Families) -> Families | None:
    """Return the families of two jobs' columns; None: they have other columns, or values that no type holds."""
    if {name: columns.keys() for name, columns in known.items()} != {n: c.keys() for n, c in theirs.items()}:
        return None
    both = join_families(known, theirs)
    return None if any(MIXED in columns.values() for columns in both.values()) else both


def _code(record: JobRecord) -> tuple[object, ...]:
    spec = record.spec
    return spec.model, spec.scenario, spec.outputs, spec.import_folders
