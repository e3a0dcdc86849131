"""Retries, extends and rescores jobs: each is a new job that takes over rows of another one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from numbers import Integral
from pathlib import Path
from typing import Unpack

import pyarrow as pa
import pyarrow.compute as pc

from mops.errors import JobError, Problem, StudyError, UsageError, check_type, nearest
from mops.jobs.chosen_groups import (
    Choice,
    ExtendedGroups,
    choose,
    groups_of,
    n_replicates_of,
    sources_of,
    taken_over_counts,
)
from mops.jobs.job import Job
from mops.jobs.launch import Launch, RunOptions, Started, shows_options
from mops.jobs.new_code import NewCode, changed_model, present_code
from mops.jobs.prepare import checked_name, derived_name, listed_files, unpacked
from mops.jobs.reuse import Found, failures_of, find_good_simulations
from mops.jobs.submit import changed_files, changed_settings
from mops.parquet.encoder import Encoded
from mops.project.functions import Code
from mops.project.study_source import given_study
from mops.storage.backends.base import Spool
from mops.storage.job_records import DerivedFiles, JobRecord, create_derived, read_options
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.records import LogView
from mops.storage.params_file import encode_groups, load_groups, parameter_columns
from mops.storage.paths import new_job_id
from mops.study.groups import SIMULATIONS_LIMIT, GroupTable
from mops.study.study_file import REPLICATES_LIMIT, Study, parse_study
from mops.units import counted
from mops.verdicts import VERDICTS


@shows_options(RunOptions)
def retry(
    job: Job,
    verdicts: str | Iterable[str] = "all",
    *,
    name: str | None = None,
    new_code: bool = False,
    model: Code | None = None,
    project: str | Path | None = None,
    on_start: Started = None,
    **options: Unpack[RunOptions],
) -> Job:
    """Rerun the parameter sets that have certain failures, in a new job that takes over all other results.

    If only targets of a set have failed, its stored simulations are scored again. With ``new_code`` or ``model``, the
    failed sets run with the repaired code, and the simulations that the job takes over ran with the old code. If the
    repair changes results of good simulations too, submit the study again instead.

    Parameters
    ----------
    job
        A complete job. The retry does not change it.
    verdicts
        The failures to retry, by their ``reason``: names, ``"oom,timeout"``, or ``"all"``.
    name
        The new job's name; None: mops makes one from the job's name.
    new_code
        Use the present files of the project. A function that a notebook or program defined stays that of the submit.
    model
        The model in place of the job's, as for :func:`submit`: so a notebook replaces a function that it has repaired.
        With it, mops uses the present files of the project.
    project
        The folder of the project; None: where it was at the submit.
    on_start
        Called with the new job when it exists and before it runs, and with a line for each setting, option or file that
        differs from the old job's. None: these lines are warnings of Python.
    **options
        As for :func:`submit`. ``env``, ``python`` and ``pod`` replace what mops keeps with the old job. Entries of
        ``env`` and ``pod`` that are not given keep their values, and so do the limits of simulations in ``settings``.
        mops does not keep the other settings: None reads the environment.

    Returns
    -------
    Job
        The new job.

    Raises
    ------
    UsageError
        A verdict does not exist, or the project is not on this machine.
    JobError
        The job is not complete, or has no failure with one of the verdicts.
    JobFailed, StorageError, ClusterError, ServiceError, RunnerEnded
        As for :func:`submit`.
    """
    new = _Derivation(job, "retry")
    names = wanted(verdicts)
    choice = choose(new.parent, new.failures, verdicts=names)
    if not choice.again:
        raise _nothing_to_retry(job, names, new.failures)
    if new_code or model is not None:
        new.spec, new.code = present_code(job, project, model=model)
    name, launch = new.checked(name, options)
    return new.start(name, launch, choice, on_start, advice="; to run the present files: --with-new-code")


@shows_options(RunOptions)
def rescore(
    job: Job,
    *,
    targets: Sequence[Code] = (),
    name: str | None = None,
    trust_model: bool = False,
    project: str | Path | None = None,
    on_start: Started = None,
    **options: Unpack[RunOptions],
) -> Job:
    """Evaluate the targets again on the stored simulations, with the present code of the project, in a new job.

    No simulation runs. The model must be the same as at the submit: mops compares the files of the project, and refuses
    if one has changed that may belong to the model.

    Parameters
    ----------
    job
        A complete job. It does not change.
    targets
        Targets in place of the job's, as for :func:`extend`: so a notebook replaces a function that it has mended. Not
        given: the job's targets. A function that a notebook or program defined is then the one of the submit.
    trust_model
        Accept changes of files that may belong to the model.
    name, project, on_start, **options
        As for :func:`retry`.

    Returns
    -------
    Job
        The new job. It has all outputs of the old one, and new losses.

    Raises
    ------
    UsageError
        The project is not on this machine, or a target names no function.
    JobError
        The job is not complete, has no targets, does not store all outputs, or its model may have changed.
    JobFailed, StorageError, ClusterError, ServiceError, RunnerEnded
        As for :func:`submit`.
    """
    new = _Derivation(job, "rescore")
    _require_stored_inputs(job, new.failures)
    if not new.spec.targets:
        hint = f"add one: mops jobs extend {job.name} --target MODULE:NAME"
        raise JobError(f"job {job.name!r} has no targets", where=job.files.url, hint=hint)
    new.spec, new.code = present_code(job, project, targets=targets, replaced=True)
    new.code.check_model(job, trust_model=trust_model)
    name, launch = new.checked(name, options)
    return new.start(name, launch, choose(new.parent, new.failures, all_targets=True), on_start)


@shows_options(RunOptions)
def extend(
    job: Job,
    *,
    replicates: int | None = None,
    sets: object = None,
    targets: Sequence[Code] = (),
    name: str | None = None,
    trust_model: bool = False,
    project: str | Path | None = None,
    on_start: Started = None,
    **options: Unpack[RunOptions],
) -> Job:
    """Add replicates, parameter sets or targets to a study, in a new job that computes only what is missing.

    The new job takes over every good simulation of the old one, and its results are those of the whole study. Failed
    simulations run again if their parameter sets get more replicates. With ``targets``, mops uses the present code of
    the project and evaluates all targets again; otherwise the job's own code.

    Parameters
    ----------
    job
        A complete job. It does not change.
    replicates
        The replicates of each parameter set without an own seed, in all; None: as many as before.
    sets : table, sequence of mappings, or path
        More parameter sets, as for :func:`submit`.
    targets
        More targets: functions, or text like ``"module:name"``.
    trust_model
        With ``targets``, as for :func:`rescore`.
    name, project, on_start, **options
        As for :func:`retry`.

    Returns
    -------
    Job
        The new job.

    Raises
    ------
    UsageError
        Nothing is added, or what is added is wrong.
    StudyError
        The parameter sets have problems; the error lists all of them.
    JobError
        The job is not complete, does not store all outputs that a new target needs, or its model may have changed.
    JobFailed, StorageError, ClusterError, ServiceError, RunnerEnded
        As for :func:`submit`.
    """
    if replicates is None and sets is None and not targets:
        raise UsageError("nothing is added", where="extend", hint="add replicates, sets or targets")
    new = _Derivation(job, "extend")
    if targets:
        _require_stored_inputs(job, new.failures)
        new.spec, new.code = present_code(job, project, targets=targets)
        new.code.check_model(job, trust_model=trust_model)
    groups, notes = _extended(job, replicates, sets)
    name, launch = new.checked(name, options)
    params = encode_groups(groups, job.files.spool()) if groups is not None else None
    choice = choose(new.parent, new.failures, all_targets=bool(targets), extended=groups)
    if not choice.again:
        has_seeds = groups is not None and replicates is not None and replicates > 1 and not groups.longer
        hint = "the sets have explicit seeds: add seeds with --sets" if has_seeds else "ask for more replicates or sets"
        raise UsageError("nothing is missing", where=f"job {job.name}", hint=hint)
    return new.start(name, launch, choice, on_start, groups=groups, params=params, notes=notes)


def wanted(verdicts: str | Iterable[str]) -> frozenset[str]:
    """Return the verdicts to retry, from names or a text like ``oom,timeout`` or ``all``; raise UsageError."""
    words = verdicts.split(",") if isinstance(verdicts, str) else verdicts
    names = [text for word in words if (text := word.strip())]
    unknown = [repr(name) for name in names if name not in (*VERDICTS, "all")]
    if unknown or not names:
        raise UsageError(
            f"unknown verdict: {', '.join(unknown)}" if unknown else "no verdict is named",
            where="the verdicts to retry",
            hint=f"use {', '.join(VERDICTS)}, or all",
        )
    return frozenset(VERDICTS) if "all" in names else frozenset(names)


def _nothing_to_retry(job: Job, verdicts: frozenset[str], failures: pa.Table) -> JobError:
    if failures.num_rows:
        found = {v: len(groups_of(failures.filter(pc.equal(failures["reason"], v)))) for v in VERDICTS}
        counts = ", ".join(f"{n:,} with {verdict}" for verdict, n in found.items() if n)
        what = f"job {job.name!r} has no failure with the verdict {' or '.join(v for v in VERDICTS if v in verdicts)}"
        hint = f"name a verdict that the job has; parameter sets with failures: {counts}"
    else:
        what = f"no simulation or target of job {job.name!r} has failed"
        hint = f"read the results: mops jobs results {job.name}"
    return JobError(what, where=job.files.url, hint=hint)


def _complete_view(job: Job) -> LogView:
    """Return the view of a job's log; raise JobError if the job is not complete."""
    view = JobLog(job.files, job.record.paths).read()
    if view.complete:
        return view
    state = job.status().state
    complete = f"mops jobs watch {job.name}" if state == "running" else f"mops jobs resume {job.name}"
    raise JobError(
        f"job {job.name!r} is {state}: only a complete job can be retried, extended or scored again",
        where=job.files.url,
        hint=f"complete the job first: {complete}",
    )


def _require_stored_inputs(job: Job, failures: pa.Table) -> None:
    """Raise JobError if no target can be evaluated on the stored simulations."""
    record = job.record
    if record.spec.outputs is not None:
        raise JobError(
            f"job {job.name!r} stores only the outputs {', '.join(record.spec.outputs)}, and targets may need others",
            where=job.files.url,
            hint="submit the study again without 'outputs'",
        )
    if len(groups_of(failures.filter(pc.is_null(failures["target"])))) == record.n_groups:
        raise JobError(
            f"every parameter set of job {job.name!r} has a failed simulation",
            where=job.files.url,
            hint=f"run it again: mops jobs retry {job.name} --verdict all",
        )


class _Derivation:
    """A job that is derived from a complete one."""

    def __init__(self, job: Job, verb: str):
        self._job, self._verb = job, verb
        check_type(job, Job, "job", "a job", f"open the job: mops.{verb}(mops.open_job(name))")
        self._view = _complete_view(job)
        self.parent, self.failures = job.record, failures_of(job)
        self.spec = self.parent.spec
        self.code: NewCode | None = None  # new files of the project; None: the parent's

    def checked(self, name: str | None, options: RunOptions) -> tuple[str, Launch]:
        """Return the name of the new job, and how it runs."""
        name = checked_name(name) if name else derived_name(self.parent.job, self._verb, datetime.now(UTC))
        return name, Launch.of(options, job=self._job, kept=read_options(self._job.files, self.parent).options)

    def start(
        self,
        name: str,
        launch: Launch,
        choice: Choice,
        on_start: Started,
        *,
        groups: ExtendedGroups | None = None,  # None: the parent's
        params: Encoded[Spool] | None = None,  # the file of these groups
        notes: Sequence[str] = (),  # for people
        advice: str = "",  # what a person may want if the project has changed and the parent's files run
    ) -> Job:
        """Create and run the new job."""
        job, record, spec, code = self._job, self.parent, self.spec, self.code
        files = job.files
        unused = [line + advice for line in changed_files(job, record)] if code is None else []
        of_settings = changed_settings(job, self._view, launch)
        changes = [*notes, *of_settings, *(code.changes if code else unused), *launch.changes]
        counts = taken_over_counts(choice, load_groups(files, record.paths), self.failures, len(spec.targets))
        of_model = changed_model(record, spec, code) if counts.simulations else []
        if of_model:
            changes.append(
                f"{counted(counts.simulations, 'simulation')} of {job.name} ran with other versions of "
                f"{listed_files(of_model)}; if the change matters for good simulations too, submit the study again"
            )
        copied = Found()
        if groups is not None and choice.mended:
            copied = find_good_simulations(job, self._view, groups, choice.mended, self.failures)
        derived = replace(
            record,
            job=name,
            id=new_job_id(),
            round_of="",
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            parent=record.job,
            sources=sources_of(record, choice),
            taken_over_counts=counts,
            options=launch.options,
            owner=launch.owner,
            reuse=copied.reuse,
            spec=spec,
            bundle=code.bundle.digest if code else record.bundle,
            mixed_code=tuple(dict.fromkeys([*record.mixed_code, *of_model])) if counts.simulations else (),
            project=str(code.root) if code else record.project,
            n_groups=groups.n_groups if groups else record.n_groups,
            n_simulations=groups.n_simulations if groups else record.n_simulations,
        )
        its = DerivedFiles(params, code.bundle if code else None, copied.table)
        unpacked(files, derived.bundle)

        def write() -> None:
            create_derived(files, derived, record.paths, its)

        return launch.start(files, derived, write, changes, on_start)


def _extended(job: Job, replicates: int | None, sets: object) -> tuple[ExtendedGroups | None, list[str]]:
    """Return the groups with more replicates and sets, and notes on the sets; None: nothing is added to them."""
    if replicates is None and sets is None:
        return None, []
    notes: list[str] = []
    old, added = load_groups(job.files, job.record.paths), None
    n_replicates = n_now = n_replicates_of(old)
    if replicates is not None:
        _check_replicates(job, replicates, n_now, len(old))
        n_replicates = replicates
    if sets is not None:
        added = _added_sets(job.record, n_replicates, sets)
        notes = [*added.warnings, *_new_names(old, added)]
    columns = parameter_columns(job.files, job.record.paths)
    return ExtendedGroups(old, replicates, added.groups if added else None, columns), notes


def _check_replicates(job: Job, replicates: int, n_now: int, n_sets: int) -> None:
    check_type(replicates, Integral, "replicates", "a whole number", "write a number, like replicates=10")
    if not 1 <= replicates <= REPLICATES_LIMIT:
        raise UsageError(
            f"{replicates:,} replicates are not possible", where="extend", hint=f"name 1 to {REPLICATES_LIMIT:,}"
        )
    if replicates < n_now:
        raise UsageError(
            f"job {job.name!r} has {n_now:,} replicates of each parameter set, and an extension removes none",
            where=f"{replicates:,} replicates",
            hint=f"ask for more than {n_now:,}",
        )
    if replicates * n_sets > SIMULATIONS_LIMIT:
        raise UsageError(
            f"{n_sets:,} parameter sets with {replicates:,} replicates are too many",
            where="extend",
            hint=f"the limit is {SIMULATIONS_LIMIT:,} simulations",
        )


def _new_names(old: GroupTable, added: Study) -> list[str]:
    """Return a note on parameters of added sets that the job's first set lacks."""
    # A UsageError, if a parameter of the job is missing, and a new one has nearly its name.
    known, there = old.group(0).params, added.groups.kinds
    missing, new = [name for name in known if name not in there], [name for name in there if name not in known]
    for name in new:
        if near := nearest(name, missing):
            raise UsageError(
                f"the added sets have no parameter {near!r}, but {name!r}, which the job does not have",
                where="the added sets",
                hint=f"did you mean {near!r}? Rename the column or key {name!r}",
            )
    return [f"the job has no parameter {', '.join(map(repr, new))}, which the added sets have"] if new else []


def _added_sets(record: JobRecord, n_replicates: int, sets: object) -> Study:
    study = {"model": record.spec.model, "parameter_sets": sets, "n_replicates": n_replicates}
    source = given_study(study, None)
    try:
        return parse_study(source.data, where=source.where, folder=source.folder)
    except StudyError as bad:
        option = "--sets" if isinstance(sets, str | Path) else "$.parameter_sets"
        problems = [Problem(one.path.replace("$.parameter_sets", option, 1), one.message) for one in bad.problems]
        raise StudyError("the added parameter sets are not valid", problems, where="the added sets") from None
