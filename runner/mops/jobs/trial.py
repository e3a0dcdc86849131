"""``mops.check()``: whether a study would run.

It runs one simulation several times, to find out whether the model is reproducible, and more. mops/jobs/compare.py
compares results, and mops/cli/study.py shows them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Unpack

import pyarrow as pa

from mops.attempt.attempt import check_import, job_context, started_children
from mops.attempt.results import check_outputs
from mops.child.buffers import read_segment
from mops.child.texts import without_headings
from mops.errors import TrialFailed
from mops.jobs.compare import Difference, Losses, differing_losses, differing_tables
from mops.jobs.launch import StudyParts
from mops.jobs.prepare import PreparedStudy, prepare, refuse_in_import
from mops.jobs.submit import study_of_call
from mops.settings import Settings
from mops.study.groups import Group
from mops.study.ids_and_seeds import canonical_json, replicate_seed
from mops.task import Failure, JobContext, TaskRequest, TaskResult
from mops.worker.environment import ChildEnvironment, Variables, child_environment, given_variables
from mops.worker.pool import Pool
from mops.worker.run_task import bundle_folder

Instability = Literal["unseeded", "kept"]
_NO_LIMIT = 1 << 60
_REPLICATES = 10  # a result of a few whole numbers may be equal by chance in two
_REPLICATES_SECONDS = 10.0  # to run more than two
SAME_PROCESS = "again in the same process"
AFTER_ANOTHER = "after another simulation"
OTHER_PROCESS = "in another process"


@dataclass(frozen=True)
class OutputSize:
    """The rows of one output of one simulation, and their bytes as Arrow."""

    name: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class Varying:
    """The simulation gives different results.

    Parameters
    ----------
    when
        The run that differs from the first run, as text.
    cause
        ``unseeded``: two fresh processes differ too. ``kept``: they agree, so the process keeps something of an earlier
        simulation.
    """

    when: str
    cause: Instability
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class Trial:
    """The results of the trial of a study's first simulation.

    Parameters
    ----------
    group
        The parameter set; the simulation is its replicate 0.
    import_seconds
        The time from the start of a process until the model is imported, while another process starts too.
    first_seconds, warm_seconds
        The time of the simulation in a fresh process, and again in the same process.
    failures
        Why the simulation, another replicate or a target of its set failed; empty: none did.
    other
        Why the other simulation, which process 2 runs first, failed; None: it did not.
    losses
        Losses by target and name.
    varying
        How the outputs differ between runs; None: they do not, or there are none.
    varying_losses
        Losses that differ although the target got the same tables.
    prints
        The last output of a process in which something failed.
    reads_written
        Files that the simulation writes in its working folder, and reads if they exist already.
    equal_replicates
        How many replicates are equal although their seeds differ, each in a fresh process; 0: they differ, or there is
        only one.
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
    equal_replicates: int = 0


def try_model(
    prepared: PreparedStudy,
    settings: Settings,
    child: ChildEnvironment,
    on_imported: Callable[[], None] = lambda: None,  # called when the model is imported, before anything runs
) -> Trial:
    """Run the study's first simulation three times from the bundle, another one in between, and the targets twice.

    It stores nothing. ModelError: the model cannot be imported.
    """
    # Process 1: the simulation, then the simulation again; once more if it differs and has written files.
    # Process 2: another simulation, then the simulation with all its replicates, then each target twice.
    # Process 3: the simulation, only if something differed; it starts like a process of a job, which may be forked.
    # Process 4 and further ones: like process 3, the next replicates of the simulation's set, while they are equal.
    # If two fresh processes give different results, something is not seeded. If they agree, and a process that has run
    # something gives another result, that process has kept something. The second run finds in its working folder what
    # the first run wrote there, which does not happen in a job: if only that run differs, the model reads what it
    # wrote. If replicates are equal in fresh processes, the outputs do not depend on the seed: the model draws nothing
    # at random, or it draws from a generator with a fixed seed.
    groups = prepared.study.groups
    context, group = context_of_check(prepared, settings, child), groups.group(0)
    like_a_job = replace(context, slots=1, retries=0, held_bytes=_NO_LIMIT)
    # Spawned, because what an import draws at random differs between fresh processes only.
    alone = replace(like_a_job, start="spawn")
    with _started(alone) as one, _started(replace(alone, targets=2 * context.targets)) as two:
        import_seconds = one.ready()
        two.ready()  # both import at the same time, before anything is measured
        on_imported()
        first = one.simulate(group, keep_folder=True)
        trial = Trial(group, import_seconds, first.result.seconds)
        if first.failure is not None:
            return replace(trial, failures=first.failures, prints=first.result.prints)
        check_outputs(context.outputs, first.result.reference or {})
        again, reads_written = _again(one, group, first)
        other = two.simulate(groups.group(1) if len(groups) > 1 else _with_another_seed(group))
        after = two.run(group) if context.targets else two.simulate(group)
    varying, equal_replicates = _in_fresh_processes(like_a_job, group, first, again, after)
    once, twice = after.losses_of_both_runs
    failing = again if again.failures else after
    return replace(
        trial,
        warm_seconds=again.result.seconds,
        outputs=tuple(OutputSize(name, table.num_rows, table.nbytes) for name, table in first.tables.items()),
        failures=failing.failures,
        other=other.failure,
        losses=once,
        varying=varying,
        varying_losses=tuple(differing_losses(once, twice)),
        prints=failing.result.prints if failing.failures else "",
        reads_written=reads_written,
        equal_replicates=equal_replicates,
    )


@dataclass(frozen=True)
class _Ran:
    result: TaskResult
    kept: tuple[str, ...] | None

    @property
    def failure(self) -> Failure | None:
        return next((failure for failure in self.result.failures if failure.replicate == 0), None)

    @property
    def tables(self) -> dict[str, pa.Table]:
        """The first replicate's outputs that the study keeps; a long simulation hands over all outputs."""
        found: dict[str, pa.Table] = {}
        for part in self.result.buffers:
            for segment in part.segments:
                replicates = [replicate for _, replicate in segment.simulations]
                if 0 in replicates and (self.kept is None or segment.output in self.kept):
                    position = replicates.index(0)
                    table = read_segment(part.buffer, {"offset": segment.offset, "length": segment.length})
                    found[segment.output] = table.slice(sum(segment.rows[:position]), segment.rows[position])
        return found

    @property
    def losses_of_both_runs(self) -> tuple[Losses, Losses]:
        """The losses of the first and the second run of the targets."""
        once: dict[tuple[str, str], float] = {}
        twice: dict[tuple[str, str], float] = {}
        for loss in self.result.losses:
            key = loss.target, loss.name
            (twice if key in once else once)[key] = loss.loss
        return once, twice

    @property
    def failures(self) -> tuple[Failure, ...]:
        """What failed; a target that failed in both runs counts once."""
        return tuple({(failure.replicate, failure.target): failure for failure in self.result.failures}.values())


@dataclass
class _Process:
    pool: Pool
    began: float
    n_requests: int = 0

    def ready(self) -> float:
        """Wait until the model is imported; return the seconds since the start."""
        self.pool.check_data()
        self.pool.check()
        return time.monotonic() - self.began

    def simulate(self, group: Group, *, keep_folder: bool = False) -> _Ran:
        """Run the first replicate, and no target."""
        return self.run(replace(group, seeds=group.seeds[:1]), with_targets=False, keep_folder=keep_folder)

    def run(self, group: Group, *, with_targets: bool = True, keep_folder: bool = False) -> _Ran:
        context = self.pool.context
        self.n_requests += 1
        request = TaskRequest(
            context if with_targets else replace(context, targets=()),
            self.n_requests,
            (group,),
            None,
            seconds=float(_NO_LIMIT),
            bytes=_NO_LIMIT,
            keep_folder=keep_folder,
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


def _with_another_seed(group: Group) -> Group:
    """Return a set with another first seed."""
    seeds = (replicate_seed(group.param_id, i) for i in range(2))
    return replace(group, seeds=(*group.seeds[1:], *(seed for seed in seeds if seed != group.seeds[0])))


def _again(process: _Process, group: Group, first: _Ran) -> tuple[_Ran, tuple[str, ...]]:
    """Run a simulation again as a job does; return its results, and the files that it reads although it wrote them."""
    kept = process.simulate(group, keep_folder=True)
    written = tuple(first.result.written)
    if not (written and _differing(first, kept)):
        return kept, ()
    again = process.simulate(group)
    reads = kept.failure is None and not _differing(first, again)
    return again, written if reads else ()


def _in_fresh_processes(
    context: JobContext, group: Group, first: _Ran, again: _Ran, after: _Ran
) -> tuple[Varying | None, int]:
    """Return how the simulation varies, and how many replicates are equal, by runs in further fresh processes."""
    runs = ((SAME_PROCESS, again), (AFTER_ANOTHER, after))
    changed = next(((when, found) for when, other in runs if (found := _differing(first, other))), None)
    if changed is None and group.n_replicates == 1:
        return None, 0
    with _started(replace(context, tasks_per_child=1)) as process:
        if changed is None:
            return None, _equal_replicates(process, group, first)
        when, differences = changed
        fresh = process.simulate(group)
        unlike = _differing(first, fresh)
        if unlike and when == AFTER_ANOTHER:  # the other simulation is not the cause
            when, differences = OTHER_PROCESS, unlike
        varying = Varying(when, "unseeded" if unlike else "kept", tuple(differences))
        return varying, _equal_replicates(process, group, fresh)


def _equal_replicates(process: _Process, group: Group, fresh: _Ran) -> int:
    """Return how many replicates are equal, each in a fresh process; 0: one differs, fails or has no rows."""
    deadline = time.monotonic() + _REPLICATES_SECONDS
    n_equal = 1
    while n_equal < min(group.n_replicates, _REPLICATES) and (n_equal == 1 or time.monotonic() < deadline):
        other = process.simulate(replace(group, seeds=group.seeds[n_equal:]))
        if not any(table.num_rows for table in fresh.tables.values()) or _differing(fresh, other):
            return 0
        n_equal += 1
    return n_equal if n_equal > 1 else 0


def _differing(first: _Ran, other: _Ran) -> list[Difference]:
    if other.failure is not None:
        return [Difference("the simulation", "good", f"{other.failure.reason} ({other.failure.message})")]
    return differing_tables(first.tables, other.tables)


def check_model(
    prepared: PreparedStudy,
    settings: Settings,
    child: ChildEnvironment,
    *,
    # The simulations run with other packages than this machine has, so a package may be missing here.
    other_packages: bool = False,
) -> None:
    """Import the model and the targets from the bundle, in a child process; raise ModelError."""
    with started_children(context_of_check(prepared, settings, child), warm=False) as pool:
        check_import(pool, other_packages=other_packages)


def context_of_check(prepared: PreparedStudy, settings: Settings, child: ChildEnvironment) -> JobContext:
    """Return the context for simulations of a study on this machine, without a job."""
    here = settings.over(prepared.limits).model_copy(update={"scheduler": None})
    context = child.of(job_context("check", prepared.bundle.digest, "", prepared.spec, here))
    return replace(context, parameters=prepared.parameters)


_LAST_PRINTS = 2_000  # characters
_PARAMS_SHOWN = 200  # characters


def raise_failure(trial: Trial) -> None:
    """Raise TrialFailed with the reason and the last output if a simulation or target of the first set failed."""
    if not trial.failures:
        return
    lines = []
    for failure in trial.failures:
        if failure.target == "*":  # the consequence of a failed simulation
            continue
        what = f"the simulation with seed {failure.seed}" if failure.target is None else f"target {failure.target}"
        lines.append(f"the trial failed: {what}: {why(failure)}")
    # The error has the traceback of a crash.
    last_prints = without_headings(trial.prints).partition("Fatal Python error")[0].strip()
    traces = [failure.traceback.rstrip() for failure in trial.failures if failure.traceback]
    output = [f"its last output: {last_prints[-_LAST_PRINTS:]}"] if last_prints else []
    raise TrialFailed(
        "\n".join([*lines, *traces[:1], *output]),
        where=f"the first parameter set, {canonical_json(trial.group.params)[:_PARAMS_SHOWN]}",
    )


def why(failure: Failure) -> str:
    """Return the verdict and the message of a failure."""
    return f"{failure.reason}: {failure.message}"


@dataclass(frozen=True)
class CheckedStudy:
    """A study that would run.

    Parameters
    ----------
    model, scenario, outputs, targets
        As in study.json; ``outputs`` None: all.
    project
        The folder with the model.
    n_parameter_sets, n_simulations
        What submit would run.
    warnings
        What you may not have meant.
    trial
        What the first simulation showed; None: it did not run.
    """

    model: str
    scenario: str
    outputs: tuple[str, ...] | None
    targets: tuple[str, ...]
    project: str
    n_parameter_sets: int
    n_simulations: int
    warnings: tuple[str, ...]
    trial: Trial | None

    @property
    def reproducible(self) -> bool | None:
        """Whether the simulation and the targets gave the same results again; None: they did not run twice."""
        if self.trial is None or self.trial.warm_seconds is None:
            return None
        return self.trial.varying is None and not self.trial.varying_losses


def check(
    study: str | Path | Mapping[str, Any] | None = None,
    *,
    project: str | Path | None = None,
    env: Variables | None = None,
    python: str | Path | None = None,
    run: bool = True,
    settings: Settings | None = None,
    **parts: Unpack[StudyParts],
) -> CheckedStudy:
    """Check a study and its model, and store nothing, as ``mops study check`` does.

    mops runs the first simulation three times, a second replicate once, and each target twice.

    Parameters
    ----------
    study, project, env, python, settings
        As for :func:`mops.submit`.
    run
        Run a simulation; False: only import the model.
    **parts
        ``model``, ``targets``, ``sets``, ``replicates``, ``scenario`` and ``outputs``, as for :func:`mops.submit`.

    Returns
    -------
    CheckedStudy
        What submit would run, whether the model is reproducible, how long a simulation takes, and how large its outputs
        are.

    Raises
    ------
    UsageError
        The study, the project or the model is wrong.
    TrialFailed
        The simulation or a target failed.

    Examples
    --------
    >>> checked = mops.check(model=sir.simulate, sets=sets)
    >>> checked.reproducible, checked.trial.warm_seconds
    """
    if run:
        refuse_in_import()
    settings = Settings.given(settings)
    child = child_environment(given_variables(env), None if python is None else str(python), install=settings.install)
    prepared = prepare(study_of_call(study, parts, "mops.check"), project, settings.storage)
    trial = try_model(prepared, settings, child) if run else None
    if trial is None:
        check_model(prepared, settings, child)
    else:
        raise_failure(trial)
    spec = prepared.spec
    return CheckedStudy(
        model=spec.model,
        scenario=spec.scenario,
        outputs=spec.outputs,
        targets=spec.targets,
        project=str(prepared.root),
        n_parameter_sets=len(prepared.study.groups),
        n_simulations=prepared.study.n_simulations,
        warnings=tuple(prepared.study.warnings),
        trial=trial,
    )
