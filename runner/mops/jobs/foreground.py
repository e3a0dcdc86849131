"""Runs one simulation of a study or a job at the terminal, or one parameter set with its targets."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mops.attempt.attempt import job_context
from mops.errors import UsageError
from mops.jobs.conditions import full_ids
from mops.jobs.job import Job
from mops.jobs.new_code import present_bundle, present_project
from mops.jobs.prepare import PreparedStudy
from mops.jobs.trial import context_of_check
from mops.project.bundle_cache import in_project
from mops.recovery import how_it_ended
from mops.settings import Settings
from mops.storage.job_records import read_options
from mops.storage.joblog.log import JobLog
from mops.storage.params_file import load_groups
from mops.storage.sources import stored_families
from mops.study.column_families import Families
from mops.study.groups import Group, GroupTable
from mops.system.signals import STOP_SIGNALS, handled, signals_with_default_action
from mops.task import JobContext
from mops.worker.child_process import load_message
from mops.worker.environment import ChildEnvironment, cannot_start, child_environment, command, environment
from mops.worker.install import install
from mops.worker.processes import Scratch
from mops.worker.run_task import bundle_folder


@dataclass(frozen=True)
class Source:
    """A study or a job whose simulations can run alone."""

    context: JobContext
    groups: GroupTable
    reference: Families | None  # the families of the job's outputs, which a result must fit; None: no job has run

    def group(self, prefix: str | None) -> Group:
        """Return the only parameter set whose id begins with this text (None: the first set); else raise UsageError."""
        if prefix is None:
            return self.groups.group(0)
        ids = pa.concat_arrays([piece.ids for piece in self.groups.pieces()])
        hint = "use a param_id of the results, or run the stored study of the job: --job JOB"
        (found,) = full_ids([prefix.lower()], ids, where="--set", hint=hint)
        return self.groups.group(pc.index(ids, found).as_py())


@dataclass(frozen=True)
class Foreground:
    """What ran at the terminal."""

    group: Group
    replicates: list[dict[str, Any]]  # that succeeded, as in `mops.child.foreground.ForegroundRun`
    losses: list[dict[str, Any]]  # as `replicates`
    failed: str = ""  # the step that failed: `replicate 2 (seed 7)`; empty: none did
    message: str = ""  # why it failed
    traceback: str = ""


def of_study(prepared: PreparedStudy, settings: Settings, child: ChildEnvironment) -> Source:
    """Return the simulations of a study, with the present files of its project."""
    return Source(context_of_check(prepared, settings, child), prepared.study.groups, None)


def of_job(
    job: Job,
    settings: Settings,
    *,
    with_new_code: bool = False,  # use the present files of the project, not those that the job keeps
    project: str | Path | None = None,  # the folder of these files; None: where the project was at the submit
) -> Source:
    """Return the simulations of a job, with the options that the job keeps."""
    record = job.record
    options = read_options(job.files, record).options
    child = child_environment(options.env, options.python, where=f"job {job.name}", install=settings.install)
    here = settings.over(options.limits).model_copy(update={"scheduler": None})
    groups = load_groups(job.files, record.paths)
    bundle = record.bundle
    if with_new_code:
        bundle = present_bundle(job.files, record, present_project(record, project)).digest
    context = child.of(job_context(job.name, bundle, job.files.url, record.spec, here))
    context = replace(context, parameters=tuple(groups.group(0).params))
    return Source(context, groups, stored_families(job.files, record, JobLog(job.files, record.paths).read()))


def run_in_foreground(
    source: Source,
    group: Group,
    replicate: int | None = None,  # None: all
    *,
    debug: bool = False,  # start a debugger where an exception was raised
    prints_to_stderr: bool = False,  # whether the output of the model goes to stderr, because stdout is for data
) -> Foreground:
    """Run one replicate of a parameter set; or all of them, and then the targets."""
    if replicate is not None and not 0 <= replicate < group.n_replicates:
        raise UsageError(
            f"the parameter set has no replicate {replicate}",
            where="--replicate",
            hint=f"use a number from 0 to {group.n_replicates - 1}",
        )
    root = bundle_folder(source.context)
    context = source.context
    if context.install_s is not None and (found := install(context, root, lambda: False)) is not None:
        context = replace(context, python=found.python)
    replicates = range(group.n_replicates) if replicate is None else [replicate]
    with closing(Scratch()) as scratch, tempfile.TemporaryDirectory(prefix="mops-run-") as folder:
        request = load_message(context, str(root), scratch) | {
            "param_id": group.param_id,
            "params": group.params,
            "seeds": [[i, group.seeds[i]] for i in replicates],
            "reference": source.reference,
            "runs_targets": replicate is None,
            "debug": debug,
        }
        returncode, report = _run(context, request, Path(folder), prints_to_stderr=prints_to_stderr)
    failed, failure, message, traceback = report["running"], report["failure"], "", ""
    if failure is not None:
        text, traceback = (in_project(failure[name], context.bundle) for name in ("message", "traceback"))
        message = f"{failure['reason']}: {text}"
    elif failed:
        message = how_it_ended(returncode)
    return Foreground(group, report["replicates"], report["losses"], failed, message, traceback)


def _run(
    context: JobContext, request: dict[str, Any], folder: Path, *, prints_to_stderr: bool
) -> tuple[int, dict[str, Any]]:
    asked, report = folder / "request.json", folder / "report.json"
    asked.write_text(json.dumps(request))
    report.write_text(
        json.dumps({"running": "the start of the process", "replicates": [], "losses": [], "failure": None})
    )
    argv = [*command(context.python), "mops.child.foreground", str(asked), str(report)]
    env = environment(context.env, n_threads=context.threads, python=context.python)
    stdout = sys.stderr if prints_to_stderr else None
    try:
        # Ctrl-C is for the model or its debugger: the terminal sends it to both processes. A handler, unlike SIG_IGN,
        # does not pass to the new program.
        with (
            handled([signal.SIGINT], lambda *_: None),
            subprocess.Popen(argv, env=env, stdout=stdout) as process,  # noqa: S603
            _ended_by_stop_signals(process),
        ):
            returncode = process.wait()
    except (FileNotFoundError, PermissionError) as gone:
        raise cannot_start(argv[0], gone, installed=context.install_s is not None) from gone
    return returncode, json.loads(report.read_text())


@contextmanager
def _ended_by_stop_signals(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Let a signal that ends this process end the other one first, and then this one as its callers expect."""
    taken = signals_with_default_action(STOP_SIGNALS) if threading.current_thread() is threading.main_thread() else []

    def stop(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    with handled(taken, stop):
        try:
            yield
        except SystemExit:
            process.kill()
            raise
