"""Texts about a job that several commands print."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from mops.cli import terminal
from mops.errors import absolute
from mops.jobs import summary
from mops.jobs.location import locate
from mops.jobs.status import ALL_FAILED, JobState, Status
from mops.jobs.summary import Reason, summary_of
from mops.settings import PREFIX, limit_texts
from mops.units import counted, shortened_in_middle

_REASONS_SHOWN = 5
_MESSAGE_COLUMNS = 240


def command(verb: str, job: JobState) -> str:
    """Return a command for a job, to run in the working directory."""
    return summary.command([verb], job.name, *options(job))


def options(job: JobState) -> list[str]:
    """Return the options with which a command in the working directory finds a job."""
    storage, local = _needed_options(job)
    return [*(["--storage", storage] if storage else []), *(["--local"] if local else [])]


def in_python(job: JobState) -> str:
    """Return the Python expression that opens a job, to run in the working directory."""
    storage, local = _needed_options(job)
    arguments = (f", {storage!r}" if storage else "") + (", local=True" if local else "")
    return f"mops.open_job({job.name!r}{arguments})"


def _needed_options(job: JobState) -> tuple[str, bool]:
    """Return the storage option that finds a job (empty: none is needed), and whether --local is needed."""
    url, found = job.files.url, locate()
    storage = "" if url in (found.url(), found.here.url()) else nearby(url)
    return storage, url != found.url() and found.profile is not None and not found.reached_from_pods(url)


def nearby(url: str) -> str:
    """Return a folder relative to the working directory if it is below it."""
    here = absolute()
    return str(Path(url).relative_to(here)) if Path(url).is_relative_to(here) else url


def origins_of(origins: Mapping[str, int]) -> str:
    """Return how many simulations come from which other jobs."""
    parts = ", ".join(f"{n:,} from {job}" for job, n in origins.items())
    return f"{counted(sum(origins.values()), 'simulation')}: {parts}"


def limits_of(
    limits: Mapping[str, object],  # as `mops.settings.Settings.limits`
    source: Callable[[str], str] | None = None,  # returns where the value of a field comes from
) -> str:
    """Return the limits of simulations by the names of their variables; empty: none is set."""
    texts = zip(limits, limit_texts(limits), strict=True)
    return ", ".join(f"{text} ({source(field)})" if source else text for field, text in texts)


def counts_of(status: Status) -> Iterator[tuple[str, str]]:
    """Yield what is committed."""
    counts = status.counts
    yield "parameter sets", f"{status.groups:,} of {status.n_groups:,} committed"
    yield (
        "simulations",
        f"{counts.simulations_good:,} good, {counts.simulations_failed:,} failed, of {status.n_simulations:,}",
    )
    if counts.targets_good or counts.targets_failed:
        yield "targets", counts.targets_text


def state_of(status: Status, took: str = "") -> str:
    """Return the state of a job, and whether every simulation failed."""
    return f"{status.state}{took}{f': {ALL_FAILED}' if status.all_failed else ''}"


def ended_of(job: JobState, status: Status, reasons: list[Reason]) -> Iterator[tuple[str, str]]:
    """Yield what a job that has ended has done, and what to do next."""
    if status.error:
        yield "error", status.error.what
    yield from counts_of(status)
    yield from reasons_of(reasons)
    yield from slow_of(status)
    if status.peak_bytes:
        yield "peak memory", f"{terminal.size(status.peak_bytes)}, all processes of the runner"
    yield from steps_of(job, status, reasons)


def steps_of(
    job: JobState, status: Status, reasons: list[Reason], *, is_waiting: bool = False
) -> Iterator[tuple[str, str]]:
    """Yield what to do next with a job; ``is_waiting`` as for :func:`mops.jobs.summary.summary_of`."""
    for step in summary_of(status, time.time(), reasons=reasons, is_waiting=is_waiting).steps:
        if step.label:
            before = "repair the cause, then: " if step.is_after_repair else ""
            yield step.label, f"{before}{summary.command(step.command, job.name, *options(job))}"


def slow_of(status: Status) -> Iterator[tuple[str, str]]:
    """Yield what runs much longer than the rest, or ran when the job stopped."""
    for i, text in enumerate(status.slow_texts):
        yield "" if i else "slow", text
    if status.slow and not (status.live and status.live.settings.get("sim_timeout")):
        yield "", f"{PREFIX}SIM_TIMEOUT=SECONDS limits their time"


def reasons_of(reasons: list[Reason]) -> Iterator[tuple[str, str]]:
    """Yield why simulations and targets failed, the most frequent reasons first."""
    for i, reason in enumerate(reasons[:_REASONS_SHOWN]):
        message = shortened_in_middle(reason.message, _MESSAGE_COLUMNS)
        yield "" if i else "failures", f"{reason.n:,} x {reason.verdict}: {message}"
    if len(reasons) > _REASONS_SHOWN:
        yield "", f"and {counted(len(reasons) - _REASONS_SHOWN, 'other reason')}"
