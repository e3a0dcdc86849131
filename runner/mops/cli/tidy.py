"""``mops jobs verify``, ``compact``, ``clean`` and ``delete``, ``mops calibrations``: the files of a storage."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from mops import units
from mops.cli import terminal
from mops.cli.options import HERE, OLD, ForceOption, JobArgument, JsonOption, Place, read_age, read_states
from mops.errors import UsageError
from mops.jobs.location import service_with
from mops.jobs.removal import Deleted, DeletionPlan, delete, find_old, plan_deletion
from mops.jobs.removal import clean as clean_job
from mops.options import Option
from mops.storage.files import Files
from mops.storage.joblog.records import COMPLETE

if TYPE_CHECKING:
    from mops.calibration.stored import Listed as StoredCalibration
    from mops.jobs.job import Job
    from mops.service.service import Service
    from mops.storage.compaction import Compacted

_AGE_HINT = "add --older-than, like --older-than 30d"


def verify(job: JobArgument, place: Place = HERE, as_json: JsonOption = False) -> None:
    """Check a job's log, and its parts by size and SHA-256.

    The command prints a line for each problem.

    Example:

        mops jobs verify waves

    Exit codes: 0 no problem, 1 problems.
    """
    problems = place.open(job).verify()
    if as_json:
        terminal.data_json({"job": job, "problems": problems})
    else:
        for problem in problems:
            terminal.data(problem)
    found = units.counted(len(problems), "problem")
    terminal.say(f"job {job} has {found}" if problems else f"job {job} has no problems")
    raise typer.Exit(1 if problems else 0)


def compact(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB", help="The names of the jobs")],
    place: Place = HERE,
    as_json: JsonOption = False,
) -> None:
    """Merge small parts of complete jobs into larger ones.

    A job is merged once. Results do not change. The small parts stay until `mops jobs clean` removes them.

    Example:

        mops jobs compact waves
    """
    opened = [place.open(job) for job in jobs]
    done = []
    for job in opened:
        done.append(job.compact())
        terminal.say(_told(done[-1]))
    if as_json:
        terminal.data_json([asdict(one) for one in done])


def _told(done: Compacted) -> str:
    before, now = units.counted(done.parts_before, "part"), units.counted(done.parts, "part")
    if done.parts == done.parts_before:
        return f"job {done.job}: no small parts to merge ({before}, {terminal.size(done.bytes)})"
    was, is_now = terminal.size(done.bytes_before), terminal.size(done.bytes)
    how = f"to remove the small ones: mops jobs clean {done.job}"
    return f"job {done.job}: had {before} ({was}), has {now} ({is_now}); {how}"


def clean(
    job: Annotated[str | None, typer.Argument(metavar="JOB", help="The job's name")] = None,
    last_attempt: Annotated[bool, Option("Also remove files of the last attempt; cancel an interrupted job")] = False,
    dry_run: Annotated[bool, Option("List what would be removed without removing it")] = False,
    older_than: Annotated[str | None, Option("Delete all jobs that ended longer ago than this", "AGE", OLD)] = None,
    state: Annotated[
        list[str] | None, Option("Delete jobs in these states; default: succeeded,partial", "STATES", OLD)
    ] = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Delete without asking", rich_help_panel=OLD)] = False,
    force: ForceOption = False,
    place: Place = HERE,
    as_json: JsonOption = False,
) -> None:
    """Remove files that are not results; or delete old jobs.

    Killed runners leave such files, and `mops jobs compact` leaves the small parts that it has merged. Results do not
    change. You can clean a job while it runs, but --last-attempt needs a job without a runner.

    With --older-than, the command deletes jobs as `mops jobs delete` does, and finishes deletions that were killed.
    It keeps jobs that may still run, and jobs with rows that other jobs read. AGE is a number of days or hours, such
    as 30d or 12h.

    Example:

        mops jobs clean waves --dry-run

        mops jobs clean --older-than 30d --dry-run
    """
    if older_than is not None:
        if job is not None or last_attempt:
            what = "--older-than is for all jobs of a storage, so it takes no " + ("JOB" if job else "--last-attempt")
            raise UsageError(what, where="--older-than", hint="leave out one of the two")
        _clean_old(older_than, read_states(state) or COMPLETE, place, yes, dry_run, force, as_json)
    elif state or yes:
        raise UsageError("this option needs --older-than", where="--state" if state else "--yes", hint=_AGE_HINT)
    elif job is None:
        hint = f"name a job: mops jobs clean JOB; to delete old jobs, {_AGE_HINT}"
        raise UsageError("the command does not say which job to clean", where="the options", hint=hint)
    else:
        _clean_one(place.open(job), last_attempt, dry_run, force, as_json)


def _clean_one(job: Job, last_attempt: bool, dry_run: bool, force: bool, as_json: bool) -> None:
    done = clean_job(job, last_attempt=last_attempt, dry_run=dry_run, force=force)
    if as_json:
        terminal.data_json(asdict(done) | {"dry_run": dry_run})
        return
    for path in done.paths:
        terminal.data(path)
    verb = "would remove" if dry_run else "removed"
    terminal.say(f"{verb} {units.counted(len(done.paths), 'file')}, {terminal.size(done.bytes)}")
    if done.kept:
        terminal.say(
            f"kept {units.counted(done.kept, 'file')} that a runner or mops jobs compact may still need; "
            "if neither runs, add --last-attempt"
        )


def _clean_old(
    age: str, states: Collection[str], place: Place, yes: bool, dry_run: bool, force: bool, as_json: bool
) -> None:
    now = time.time()
    before = now - read_age(age)
    files, service = _opened(place)
    old = find_old(files.brief(), before, states, service, force=force)
    for name, readers in old.kept.items():
        terminal.say(f"kept job {name}, because jobs that stay read its rows: {', '.join(readers)}")
    for error in old.of_others:
        terminal.say(f"kept: {error.what}")
    if old.of_others:
        terminal.say(f"hint: {old.of_others[0].hint}")
    if old.jobs and not as_json:
        columns = ("job", "state", "ended", "files", "size")
        terminal.data_table(columns, [_old_row(job, now) for job in old.jobs], right=("files", "size"))
    total = f"{units.counted(len(old.jobs), 'job')}, {terminal.size(sum(job.bytes for job in old.jobs))}"
    if not old.jobs:
        terminal.say("no job is older: nothing was deleted")
    elif dry_run:
        terminal.say(f"would delete {total}")
    else:
        _ask_to_delete(total, yes=yes)
        done = delete_jobs(files, old.jobs, service, ended_before=before)
        deleted = units.counted(len(done), "job")
        terminal.say(f"deleted {deleted}, {terminal.size(sum(job.bytes for job in done))}")
    if as_json:
        terminal.data_json({"dry_run": dry_run, "jobs": [asdict(job) for job in old.jobs], "kept": old.kept})


def _old_row(job: DeletionPlan, now: float) -> tuple[str, ...]:
    ended = "-" if job.ended is None else f"{units.age(now - job.ended)} ago"
    return job.job, job.state, ended, f"{job.files:,}", terminal.size(job.bytes)


def delete_(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB", help="The names of the jobs")],
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Delete without asking")] = False,
    force: ForceOption = False,
    place: Place = HERE,
    as_json: JsonOption = False,
) -> None:
    """Delete jobs with their results.

    mops does not delete a running job. If a deletion was killed, run the command again to finish it.

    Example:

        mops jobs delete waves waves-retry
    """
    files, service = _opened(place)
    found = plan_deletion(files.brief(), jobs, service, force=force)
    say_plan(found)
    _ask_to_delete(units.counted(len(found), "job"), yes=yes)
    done = delete_jobs(files, found, service)
    if as_json:
        terminal.data_json([asdict(deleted) for deleted in done])


def _opened(place: Place) -> tuple[Files, Service | None]:
    """Return a storage, and the connected service whose runners reach it."""
    files = place.locate().open()
    return files, service_with(files, local=place.local)


def _ask_to_delete(what: str, *, yes: bool) -> None:
    """Exit with 1 if a person does not confirm a deletion; ``yes``: do not ask."""
    if not (yes or terminal.confirmed(f"delete {what} permanently?", option="--yes")):
        terminal.say("nothing was deleted")
        raise typer.Exit(1)


def say_plan(plan: Iterable[DeletionPlan]) -> None:
    """Print what a deletion would remove."""
    for job in plan:
        terminal.say(f"job {job.job}: {job.state}, {units.counted(job.files, 'file')}, {terminal.size(job.bytes)}")


def delete_jobs(
    files: Files, plan: Sequence[DeletionPlan], service: Service | None, *, ended_before: float | None = None
) -> list[Deleted]:
    """Delete jobs, print each, and return what was deleted; otherwise as :func:`mops.jobs.removal.delete`."""
    # Delete queued Kubernetes Jobs before the files: such a Job may start a runner a day later, without its files.
    for job in plan:
        for name in service.delete_idle_jobs(job.job) if service else ():
            terminal.say(f"deleted its Kubernetes Job {name}, which had not started")
    done = []
    for deleted in delete(files, [job.job for job in plan], ended_before=ended_before):
        done.append(deleted)
        terminal.say(f"deleted job {deleted.job}")
    return done


def list_calibrations(place: Place = HERE, as_json: JsonOption = False) -> None:
    """List the calibrations of a storage, newest first.

    Example:

        mops calibrations list
    """
    from mops.calibration.stored import list_calibrations as listed  # noqa: PLC0415 - Arrow, which `delete` does without

    files = place.locate().open()
    found = listed(files.brief())
    if as_json:
        terminal.data_json([asdict(one) for one in found])
    elif found:
        columns = ("calibration", "method", "rounds", "sets", "failed", "began", "open round")
        terminal.data_table(columns, map(_row, found), right=("rounds", "sets", "failed"))
    else:
        terminal.say(f"no calibrations in {files.url}")
    for one in found:
        if one.error is not None:
            terminal.say(f"warning: calibration {one.calibration} cannot be read: {one.error}")


def _row(one: StoredCalibration) -> tuple[str, ...]:
    if one.scored is None or one.failed is None or one.created is None:
        return one.calibration, *("-" for _ in range(6))
    counts = (f"{one.rounds:,}", f"{one.scored + one.failed:,}", f"{one.failed:,}")
    return one.calibration, str(one.method), *counts, units.moment(one.created), one.open_job or ""


def delete_calibrations(
    calibrations: Annotated[list[str], typer.Argument(metavar="CALIBRATION", help="The names of the calibrations")],
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Delete without asking")] = False,
    force: ForceOption = False,
    place: Place = HERE,
    as_json: JsonOption = False,
) -> None:
    """Delete calibrations with the jobs of their rounds.

    mops does not delete a calibration whose job runs. If a deletion was killed, run the command again to finish it.

    Example:

        mops calibrations delete fit
    """
    from mops.calibration.stored import jobs_of, stored_calibration  # noqa: PLC0415 - as above

    files = place.locate().open()
    records = [stored_calibration(files.brief(), name) for name in dict.fromkeys(calibrations)]
    service = service_with(files, local=place.local)
    command = f"mops calibrations delete {' '.join(calibrations)}"
    rounds = [job for one in records for job in jobs_of(one)]
    plan = plan_deletion(files.brief(), rounds, service, force=force, command=command)
    for one in records:
        terminal.say(f"calibration {one.name}: {units.counted(len(one.begun()), 'round')}")
    say_plan(plan)
    _ask_to_delete(f"{units.counted(len(records), 'calibration')} with {units.counted(len(plan), 'job')}", yes=yes)
    done = delete_jobs(files, plan, service)
    for one in records:
        one.remove()
        terminal.say(f"deleted calibration {one.name}")
    if as_json:
        names = [one.name for one in records]
        terminal.data_json({"calibrations": names, "jobs": [asdict(deleted) for deleted in done]})
