"""A trial: one simulation of a study run three times, before hundreds of thousands run once.

::

    a fresh process        the simulation, the simulation again; once more if it differs and has written files
    another fresh process  another simulation, the simulation with all its replicates, each target twice
    a third one            the simulation, only if something differed: it tells why

What differs between fresh processes is not seeded; what is the same there and differs in one that has run something was
kept from it. The second run finds in its working folder what the first has written there, which no simulation of a job
does: if it differs for that, the model reads what it wrote. Comparing is :mod:`mops.jobs.trial.compare`'s; how to show
it is the caller's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

import pyarrow as pa

from mops.attempt.attempt import job_context, started_children
from mops.attempt.results import check_outputs
from mops.child.buffers import read_segment
from mops.jobs.prepare import PreparedStudy, context_for
from mops.jobs.trial.compare import Difference, Losses, differing_losses, differing_tables
from mops.settings import Settings
from mops.study.groups import Group
from mops.study.ids_and_seeds import replicate_seed
from mops.task import Failure, JobContext, TaskRequest, TaskResult
from mops.worker.environment.options import ChildEnvironment
from mops.worker.pool import Pool
from mops.worker.run_task import bundle_folder

Instability = Literal["unseeded", "kept"]
_NO_LIMIT = 1 << 60
AGAIN = "again in the same process"
AFTER_ANOTHER = "after another simulation"
ELSEWHERE = "in another process"


@dataclass(frozen=True)
class OutputSize:
    """What one simulation gave of one output: rows, and bytes as Arrow."""

    name: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class Varying:
    """The simulation is not the same each time.

    Parameters
    ----------
    when
        The run that differs from the first, for people.
    cause
        ``unseeded``: two fresh processes differ too. ``kept``: they do not, so that something of an earlier simulation
        was kept in the process.
    """

    when: str
    cause: Instability
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class Trial:
    """What the trial of a study's first simulation showed.

    Parameters
    ----------
    group
        The parameter set; the simulation is its replicate 0.
    import_seconds
        From the start of a process until the model is imported, beside another one.
    first_seconds, warm_seconds
        The simulation in a fresh process, and again in it.
    failures
        Why it, or another replicate or a target of its set, failed; empty when all is well.
    other
        Why the simulation that ran in between failed, if it did.
    losses
        By target and name.
    varying
        Whether its outputs differ between runs; None: they are the same, or there are none.
    varying_losses
        Losses that differ though the target got the same tables.
    prints
        What a process printed last, where something failed.
    reads_written
        The files that the simulation wrote in its working folder, where it reads them if they are there before.
    """

    group: Group
    import_seconds: float
    first_seconds: float
    warm_seconds: float | None = None
    outputs: tuple[OutputSize, ...] = ()
    failures: tuple[Failure, ...] = ()
    other: Failure | None = None
    losses: Losses = field(default_factory=dict)
    varying: Varying | None = None
    varying_losses: tuple[Difference, ...] = ()
    prints: str = ""
    reads_written: tuple[str, ...] = ()


def try_out(context: JobContext, groups: Sequence[Group], on_imported: Callable[[], None] = lambda: None) -> Trial:
    """Run the first simulation three times, another one in between, and the first set's targets twice.

    Parameters
    ----------
    context
        As for a job.
    groups
        The study's first two, or its only one.
    on_imported
        Called when the model is imported, before anything runs.

    Raises
    ------
    ModelError, InstallError
        The model or a target cannot be imported, or what they need cannot be installed.
    UsageError
        The study keeps an output that the model does not return.
    """
    # Spawned: what the import draws at random differs between fresh processes only.
    alone = replace(context, slots=1, retries=0, held_bytes=_NO_LIMIT, start="spawn")
    group = groups[0]
    with _started(alone) as one, _started(replace(alone, targets=2 * context.targets)) as two:
        import_seconds = one.ready()
        two.ready()  # side by side, and through before anything is measured
        on_imported()
        first = one.simulate(group, keep_folder=True)
        trial = Trial(group, import_seconds, first.result.seconds)
        if first.failure is not None:
            return replace(trial, failures=first.failures, prints=first.result.prints)
        check_outputs(context.outputs, first.result.reference or {})
        again, reads_written = _again(one, group, first)
        other = two.simulate(_other(groups))
        after = two.run(group) if context.targets else two.simulate(group)
    once, twice = after.passes
    failing = again if again.failures else after
    return replace(
        trial,
        warm_seconds=again.result.seconds,
        outputs=tuple(OutputSize(name, table.num_rows, table.nbytes) for name, table in first.tables.items()),
        failures=failing.failures,
        other=other.failure,
        losses=once,
        varying=_varying(alone, group, first, again, after),
        varying_losses=tuple(differing_losses(once, twice)),
        prints=failing.result.prints if failing.failures else "",
        reads_written=reads_written,
    )


@dataclass(frozen=True)
class _Ran:
    """What came of a set's simulations."""

    result: TaskResult
    kept: tuple[str, ...] | None

    @property
    def failure(self) -> Failure | None:
        """Why the first replicate failed, if it did."""
        return next((failure for failure in self.result.failures if failure.replicate == 0), None)

    @property
    def tables(self) -> dict[str, pa.Table]:
        """The outputs of the first replicate that the study keeps; a long simulation hands over all of them."""
        found: dict[str, pa.Table] = {}
        for part in self.result.parts:
            for segment in part.segments:
                replicates = [replicate for _, replicate in segment.simulations]
                if 0 in replicates and (self.kept is None or segment.output in self.kept):
                    place = replicates.index(0)
                    table = read_segment(part.buffer, {"offset": segment.offset, "length": segment.length})
                    found[segment.output] = table.slice(sum(segment.rows[:place]), segment.rows[place])
        return found

    @property
    def passes(self) -> tuple[Losses, Losses]:
        """The losses of the first and of the second pass through the targets."""
        once: dict[tuple[str, str], float] = {}
        twice: dict[tuple[str, str], float] = {}
        for loss in self.result.losses:
            key = loss.target, loss.name
            (twice if key in once else once)[key] = loss.loss
        return once, twice

    @property
    def failures(self) -> tuple[Failure, ...]:
        """What failed, a target that failed in both passes once."""
        return tuple({(failure.replicate, failure.target): failure for failure in self.result.failures}.values())


@dataclass
class _Process:
    """A process that imports the model and has run nothing."""

    pool: Pool
    began: float
    n_orders: int = 0

    def ready(self) -> float:
        """Wait until the model is imported; return the seconds since the start."""
        self.pool.check()
        return time.monotonic() - self.began

    def simulate(self, group: Group, *, keep_folder: bool = False) -> _Ran:
        """Run a set's first replicate, without targets."""
        return self.run(replace(group, seeds=group.seeds[:1]), targets=(), keep_folder=keep_folder)

    def run(self, group: Group, *, targets: tuple[str, ...] | None = None, keep_folder: bool = False) -> _Ran:
        """Run all replicates of a set, and its targets."""
        context = self.pool.context
        asked = context if targets is None else replace(context, targets=targets)
        self.n_orders += 1
        request = TaskRequest(
            asked, self.n_orders, (group,), None, seconds=float(_NO_LIMIT), bytes=_NO_LIMIT, keep_folder=keep_folder
        )
        return _Ran(self.pool.run(request), context.outputs)


@contextmanager
def _started(context: JobContext) -> Iterator[_Process]:
    pool = Pool(context, str(bundle_folder(context)), 1)
    try:
        pool.install()
        began = time.monotonic()
        pool.warm()
        yield _Process(pool, began)
    finally:
        pool.close()


def _other(groups: Sequence[Group]) -> Group:
    """Return another simulation than the first set's first: the next set's, else another seed of the first."""
    if len(groups) > 1:
        return groups[1]
    only = groups[0]
    seeds = (replicate_seed(only.param_id, i) for i in range(2))
    return replace(only, seeds=(*only.seeds[1:], *(seed for seed in seeds if seed != only.seeds[0])))


def _again(process: _Process, group: Group, first: _Ran) -> tuple[_Ran, tuple[str, ...]]:
    """Run a simulation again as a job would; return with it the files that it reads although it wrote them."""
    kept = process.simulate(group, keep_folder=True)
    written = tuple(first.result.written)
    if not (written and _differing(first, kept)):
        return kept, ()
    again = process.simulate(group)
    reads = kept.failure is None and not _differing(first, again)
    return again, written if reads else ()


def _varying(context: JobContext, group: Group, first: _Ran, again: _Ran, after: _Ran) -> Varying | None:
    for when, other in ((AGAIN, again), (AFTER_ANOTHER, after)):
        if differences := _differing(first, other):
            with _started(context) as process:
                elsewhere = _differing(first, process.simulate(group))
            if elsewhere and when == AFTER_ANOTHER:  # it needed no other simulation
                return Varying(ELSEWHERE, "unseeded", tuple(elsewhere))
            return Varying(when, "unseeded" if elsewhere else "kept", tuple(differences))
    return None


def _differing(first: _Ran, other: _Ran) -> list[Difference]:
    if other.failure is not None:
        return [Difference("the simulation", "good", f"{other.failure.reason} ({other.failure.message})")]
    return differing_tables(first.tables, other.tables)


def check_model(prepared: PreparedStudy, settings: Settings, given: ChildEnvironment) -> None:
    """Import the model and the targets in a child, from the bundle.

    Raises
    ------
    ModelError
        They cannot be imported, or are not what STUDY.md asks for.
    """
    with started_children(_context_of_check(prepared, settings, given), warm=False) as pool:
        pool.check()


def try_model(
    prepared: PreparedStudy, settings: Settings, given: ChildEnvironment, on_imported: Callable[[], None] = lambda: None
) -> Trial:
    """Run the study's first simulation three times, from the bundle; nothing is stored.

    Parameters
    ----------
    on_imported
        Called when the model is imported, before anything runs.

    Raises
    ------
    ModelError
        The model or a target cannot be imported, or is not what STUDY.md asks for.
    """
    groups = prepared.study.groups
    first = groups.groups(range(min(len(groups), 2)))
    return try_out(_context_of_check(prepared, settings, given), first, on_imported)


def _context_of_check(prepared: PreparedStudy, settings: Settings, given: ChildEnvironment) -> JobContext:
    here = settings.model_copy(update={"scheduler": None})
    return context_for(prepared, given.of(job_context("check", prepared.bundle.digest, "", prepared.spec, here)))
