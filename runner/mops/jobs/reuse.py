"""Finds simulations that other jobs have already run, so that a new job need not run them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mops.attempt.reuse_plan import PLAN, encode_plan
from mops.errors import BundleError, CorruptRecord, JobError, OtherFormat, UsageError
from mops.jobs.chosen_groups import ExtendedGroups
from mops.jobs.job import Job
from mops.jobs.prepare import PreparedStudy, listed_files, unpacked
from mops.parquet.encoder import Encoded
from mops.project.bundle_cache import cache_folder, unpack
from mops.project.difference import Difference
from mops.storage.backends.base import Spool
from mops.storage.files import Files
from mops.storage.job_options import JobOptions
from mops.storage.job_records import JOB_RECORDS, JobRecord, ReuseSource, load_job, options_records, stored_records
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.records import LogView
from mops.storage.params_file import load_groups
from mops.storage.paths import NamePaths
from mops.storage.sources import FirstReplicates, families_of, source_logs
from mops.study.column_families import MIXED, Families, join_families
from mops.study.groups import GroupChunk, GroupTable
from mops.study.ranges import Ranges
from mops.units import counted

logger = logging.getLogger(__name__)

UNREADABLE = (CorruptRecord, OtherFormat, JobError, BundleError, OSError, pa.ArrowInvalid)
"""The errors of one damaged or just deleted job. OSError and ArrowInvalid come from a missing or damaged file."""


def warn_unreadable(job: str, bad: Exception) -> None:
    """Say that a job is left out."""
    logger.warning("job %s is not reused, because it cannot be read: %s", job, bad)


_GROUPS_AT_ONCE = 1 << 16
_SIMULATIONS_AT_ONCE = 1 << 20
_REFUSED = 1 << 30  # the number of a job from which nothing may be taken
_MOST_REFUSED = 5  # how many refused jobs are read for one warning

Numbers = npt.NDArray[np.intp]


class Found(NamedTuple):
    """The simulations that a new job takes from other jobs: for its record, and their table."""

    reuse: tuple[ReuseSource, ...] = ()
    table: Encoded[Spool] | None = None  # None: it takes none


class Refused:
    """Jobs from which a new job may take nothing. One of them may have simulations that no other job has."""

    # It reads only the first few jobs, and looks in them for the first missing simulations only.

    def __init__(
        self,
        sources: Sequence[Offer] = (),  # those to name first
    ):
        self._left = list(sources[:_MOST_REFUSED])
        self.n_lost = 0  # how many simulations only the job `source` has
        self.source: Offer | None = None

    def look(self, batch: _Batch) -> None:
        """Look for simulations that were not found elsewhere, in the first job that has any."""
        if batch.is_full:
            return
        sources = self._left if self.source is None else [self.source]
        self._left = []
        for source in sources:
            with suppress(*UNREADABLE):  # nothing is taken from it in any case
                batch.add(_REFUSED, source)
            if n_found := batch.drop(_REFUSED):
                self.n_lost += n_found
                self.source = source
                return


def match(
    groups: Iterable[GroupChunk],
    offers: Sequence[Offer],
    spool: Callable[[], Spool],
    refused: Refused | None = None,  # looks at what is not found
) -> Found:
    """Find each simulation of a study in the first of several jobs that has it."""
    counts: Counter[str] = Counter()
    readable = dict(enumerate(offers))

    def tables() -> Iterator[pa.Table]:
        for pieces in _batches(groups):
            batch = _Batch(pieces)
            for number, offer in list(readable.items()):
                if batch.is_full:
                    break
                try:
                    batch.add(number, offer)
                except UNREADABLE as bad:
                    warn_unreadable(offer.record.job, bad)
                    batch.drop(number)
                    del readable[number]
            if refused is not None:
                refused.look(batch)
            table = batch.table([offer.record.job for offer in offers])
            counts.update({one["values"]: one["counts"] for one in table["source"].value_counts().to_pylist()})
            yield table

    encoded = encode_plan(tables(), spool())
    found = [(offer.record, counts[offer.record.job]) for offer in offers]
    sources = tuple(ReuseSource(record.job, record.id, n) for record, n in found if n)
    return Found(sources, encoded) if sources else Found()


def _batches(groups: Iterable[GroupChunk]) -> Iterator[list[GroupChunk]]:
    some: list[GroupChunk] = []
    for piece in groups:
        n_groups, n_simulations = sum(map(len, some)), sum(len(one.seeds) for one in some)
        is_full = n_groups + len(piece) > _GROUPS_AT_ONCE or n_simulations + len(piece.seeds) > _SIMULATIONS_AT_ONCE
        if some and is_full:
            yield some
            some = []
        some.append(piece)
    if some:
        yield some


class _Batch:
    """Some groups of the new job, and where each of their simulations was found; -1: nowhere."""

    def __init__(self, pieces: Sequence[GroupChunk]):
        self.start = pieces[0].start
        self.ids = pa.concat_arrays([piece.ids for piece in pieces])
        self.seeds = np.concatenate([_own(piece) for piece in pieces])
        self.offsets = np.concatenate([[0], np.cumsum(np.concatenate([np.diff(piece.offsets) for piece in pieces]))])
        self.sources, self.groups, self.replicates = (np.full(len(self.seeds), -1, np.int32) for _ in range(3))

    @property
    def is_full(self) -> bool:
        return bool((self.sources >= 0).all())

    def add(self, number: int, source: Offer) -> None:
        for piece in source.groups.pieces():
            at = pc.index_in(piece.ids, self.ids)
            is_there = at.is_valid().to_numpy(zero_copy_only=False)
            is_there &= source.stored[piece.start : piece.start + len(piece)]
            seeds, offsets = _own(piece), piece.offsets - piece.offsets[0]
            for place in np.flatnonzero(is_there).tolist():
                mine = at[place].as_py()
                begin, end = self.offsets[mine : mine + 2].tolist()
                its = seeds[offsets[place] : offsets[place + 1]]
                _, ours, theirs = np.intersect1d(self.seeds[begin:end], its, assume_unique=True, return_indices=True)
                is_new = (self.sources[begin + ours] < 0) & source.has(piece.start + place, theirs)
                new = begin + ours[is_new]
                self.sources[new], self.groups[new], self.replicates[new] = number, piece.start + place, theirs[is_new]

    def drop(self, number: int) -> int:
        """Forget what was found in one job, and return how much it was."""
        found = self.sources == number
        self.sources[found] = -1
        return int(found.sum())

    def table(self, names: Sequence[str]) -> pa.Table:
        found = np.flatnonzero(self.sources >= 0)
        groups = np.searchsorted(self.offsets, found, side="right") - 1
        columns = [
            pa.array((self.start + groups).astype(np.int32)),
            pa.array((found - self.offsets[groups]).astype(np.int32)),
            pa.DictionaryArray.from_arrays(pa.array(self.sources[found]), pa.array(names, pa.string())),
            pa.array(self.groups[found]),
            pa.array(self.replicates[found]),
        ]
        return pa.table(columns, schema=PLAN)


def _own(piece: GroupChunk) -> npt.NDArray[np.uint64]:
    """Return the seeds of a chunk, whose array may have more."""
    return piece.seeds[piece.offsets[0] : piece.offsets[-1]]


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


def find_reuse(files: Files, new: JobRecord, prepared: PreparedStudy) -> Found:
    """Find the simulations that a new job takes from other jobs."""
    # A study that stores only some outputs is refused, because its targets cannot be evaluated on stored rows.
    if new.spec.outputs is not None:
        raise UsageError(
            "a study that stores only some outputs cannot reuse simulations, because its targets may need the others",
            where="$.outputs",
            hint="remove 'outputs' from the study, or submit without --reuse",
        )
    if unknown := _without_value([new.options]):
        logger.warning("no simulation is reused, because mops does not store the value of --env %s", unknown)
        return Found()
    offers, reasons = _offers(files, new, prepared)
    refused = Refused(list(reasons))
    found = match(prepared.study.groups.pieces(), offers, files.spool, refused)
    if refused.source is not None:
        its = refused.source
        message = "job %s is not reused, because %s; to run again: %s"
        logger.warning(message, its.record.job, reasons[its], counted(refused.n_lost, "simulation"))
    elif not found.reuse:
        logger.warning("no simulation is reused, because no complete job has run one of this study")
    return found


def _offers(files: Files, new: JobRecord, prepared: PreparedStudy) -> tuple[list[Offer], dict[Offer, str]]:
    """Return the jobs whose simulations a new job may take, the newest first, and those left out, with the reasons.

    They are complete, and in each of their attempts they had the model, scenario, variables, interpreter and files of
    the new job. A job that cannot be read is left out with a warning.
    """
    offers: list[Offer] = []
    refused: dict[Offer, str] = {}  # because of their files or variables; the reason is the end of a sentence
    families: Families = {}

    @cache
    def differing(bundle: str, targets: tuple[str, ...]) -> list[str]:
        """Return the files with which a model may compute other results."""
        # FileNotFoundError or BundleError: the job's bundle is missing or damaged.
        now = unpack(prepared.bundle.digest, lambda: prepared.bundle.data, cache_folder())
        difference = Difference(unpacked(files, bundle), prepared.bundle, now, new.spec, targets)
        how = difference.files
        return [f"{name} ({how.get(name, 'imported by one job only')})" for name in difference.of_model()]

    for record in _like(files, new):
        try:
            view = JobLog(files, record.paths).read()
            if not view.complete:
                continue
            offer = Offer(files, record, view)
            every = [kept.options for kept in options_records(files, record)]
            if unknown := _without_value(every):
                refused[offer] = f"mops does not store the value of --env {unknown}"
                continue
            if any((dict(one.env), one.python) != (dict(new.options.env), new.options.python) for one in every):
                continue
            if record.bundle != new.bundle and (files_of_model := differing(record.bundle, record.spec.targets)):
                refused[offer] = f"its files differ: {listed_files(files_of_model)}"
                continue
            theirs = families_of(files, record.paths, [view]) or {}
            offer.open()
        except UNREADABLE as bad:
            warn_unreadable(record.job, bad)
            continue
        if theirs and (joined := _joined(families or theirs, theirs)) is not None:
            families = joined
            offers.append(offer)
    return offers, refused


def failures_of(job: Job) -> pa.Table:
    """Return the simulations, targets and verdicts of a job's failures."""
    return job.failures(columns=["group", "replicate", "target", "reason"]).to_arrow()


def find_good_simulations(
    job: Job,
    view: LogView,  # the job's log
    groups: ExtendedGroups,  # of the derived job
    wanted: Ranges,  # the numbers of the groups
    failures: pa.Table,  # from `failures_of`
) -> Found:
    """Find the good simulations of some groups of a complete job, for a job derived from it."""
    offers = [Offer(job.files, job.record, view, wanted, failures)]
    for one in reversed(source_logs(job.files, job.record)):
        record = load_job(job.files, one.source.job)
        offers.append(Offer(job.files, record, one.log.view, wanted & one.source.outputs))
    return match(groups.pieces(), offers, job.files.spool)


def _like(files: Files, new: JobRecord) -> Iterator[JobRecord]:
    """Yield the jobs with the code names of the new job, the newest first."""
    records = []
    for name, data in stored_records(files).items():
        try:
            if data is not None and name != new.job:
                records.append(JOB_RECORDS.decode(data, f"{files.url}/{NamePaths(name).record}"))
        except UNREADABLE as bad:
            warn_unreadable(name, bad)
    for record in sorted(records, key=lambda one: (one.created, one.job), reverse=True):
        if replace(record.spec, targets=()) == replace(new.spec, targets=()):
            yield record


def _without_value(options: Iterable[JobOptions]) -> str:
    """Return the variables whose values come from the environment of the runner, as a text."""
    return ", ".join(sorted({name for one in options for name, value in one.env.items() if value is None}))


def _joined(known: Families, theirs: Families) -> Families | None:
    """Return the families of two jobs' columns; None: they have other columns, or values that no type holds."""
    if {name: columns.keys() for name, columns in known.items()} != {n: c.keys() for n, c in theirs.items()}:
        return None
    both = join_families(known, theirs)
    return None if any(MIXED in columns.values() for columns in both.values()) else both
