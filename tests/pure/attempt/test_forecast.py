"""The expected time and size of a job, and the check for enough room in the storage."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest

from claimed_jobs import claimed_job, groups_of
from clocks import Clock
from mops.attempt.checkpoint.open_checkpoint import Limits
from mops.attempt.planning.forecast import (
    Forecast,
    OutputPerSimulation,
    check_room,
    expected_bytes,
    output_per_simulation,
    seconds_per_simulation,
)
from mops.errors import StorageError
from mops.parquet.encoder import encode
from mops.storage.backends.spool import Spool
from mops.storage.files import Files
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.records import Part
from mops.storage.joblog.view import LogView
from mops.storage.paths import JobPaths
from mops.study.ranges import Ranges
from mops.study.study_file import parse_study
from mops.verdicts import Counts

LIMITS = Limits(seconds=30, bytes=64 << 20, groups=200)
KINDS = {"daily": {"day": "number", "y": "number"}}
PATHS = JobPaths("job", "0123456789abcdef")


def committed(n_groups: int, rows: int, *, parts: int = 1, failed: int = 0) -> LogView:
    """Return a log with real committed parts: groups of two simulations with ``rows`` rows each."""
    files = Files.open("memory://expected")
    files.remove([entry.path for entry in files.list("")])
    sets = [{"params": {"a": i}, "seed": 2 * i + replicate} for i in range(n_groups) for replicate in (0, 1)]
    groups = parse_study({"model": "m:f", "parameter_sets": sets}, where="study.json").groups
    log = JobLog(files, PATHS)
    log.claim(by="person")
    rng = np.random.default_rng(1)
    for c, some in enumerate(np.array_split(np.arange(n_groups), parts)):
        simulations = [(int(group), replicate) for group in some for replicate in (0, 1)]
        n = rows * len(simulations)
        table = pa.table({"day": np.arange(n), "y": rng.random(n)})
        file = encode(groups.identify(table, simulations, [rows] * len(simulations)), Spool())
        part = Part(PATHS.part("outputs", "daily", 1, c), file.rows, file.bytes, file.digest)
        counts = Counts(len(simulations) - failed, failed)
        log.commit(Ranges.of(map(int, some)), [part] if not failed else [], counts)
    return log.view


@pytest.mark.parametrize("rows", [1, 10, 100, 1000])
def test_one_group_forecasts_the_bytes_of_thousands(rows: int) -> None:
    """A file of one group is mostly header and footer: its size alone would forecast ten times too much."""
    one, many = output_per_simulation(committed(1, rows), KINDS), output_per_simulation(committed(400, rows), KINDS)
    assert one is not None
    assert many is not None
    assert one.rows == many.rows == rows
    assert one.bytes == pytest.approx(many.bytes, rel=0.6)
    assert one.file_bytes == many.file_bytes > 0


def test_many_small_files_forecast_the_same_bytes_as_one_file() -> None:
    one_file, many_files = (output_per_simulation(committed(60, 20, parts=parts), KINDS) for parts in (1, 60))
    assert one_file is not None
    assert many_files is not None
    assert many_files.bytes == pytest.approx(one_file.bytes, rel=0.6)


def test_nothing_is_known_before_a_good_simulation() -> None:
    assert output_per_simulation(LogView(), KINDS) is None
    assert output_per_simulation(committed(1, 10, failed=2), KINDS) is None


def test_each_checkpoint_adds_the_fixed_size_of_its_files() -> None:
    one = OutputPerSimulation(rows=1, bytes=100, file_bytes=500)
    few = expected_bytes(one, LIMITS, n_simulations=1000, n_groups=1000, seconds=0.0)
    assert few == 100_000 + 6 * 500
    each_group = Limits(seconds=0, bytes=64 << 20, groups=200)
    many = expected_bytes(one, each_group, n_simulations=900, n_groups=9, seconds=900.0)
    assert many == 90_000 + 9 * 500
    assert expected_bytes(one, LIMITS, n_simulations=900, n_groups=200, seconds=None) == 90_000 + 2 * 500


def test_the_first_call_in_each_child_process_is_not_measured() -> None:
    """The first call imports and compiles. With two slots, two tasks contain a first call."""
    tasks = [(5.1, 1), (0.1, 1), (0.1, 1), (5.2, 1), (1.0, 10), (1.0, 10)]
    assert seconds_per_simulation(tasks, slots=2) == pytest.approx(0.1)
    assert seconds_per_simulation([(5.1, 1), (0.1, 1)], slots=8) == pytest.approx(0.1)
    assert seconds_per_simulation([(5.1, 1)], slots=2) == pytest.approx(5.1)
    assert seconds_per_simulation([], slots=2) is None


def test_the_seconds_of_targets_count() -> None:
    assert seconds_per_simulation([(9.0, 1), (2.0, 2), (1.0, 0)], slots=1) == pytest.approx(1.5)


class Disk:
    """A storage with ``free`` bytes of room."""

    url = "/somewhere"

    def __init__(self, free: int | None):
        self.free = free

    def free_bytes(self) -> int | None:
        return self.free


def test_too_little_room_is_an_error_with_the_missing_bytes_and_a_hint() -> None:
    with pytest.raises(StorageError) as refused:
        check_room(Disk(100 << 20), "job", 220 << 20)  # type: ignore[arg-type]
    assert str(refused.value) == (
        "there is not enough room for the results: they need about 242.0 MiB, and 100.0 MiB are free\n"
        "  at: /somewhere\n"
        "hint: make room, then continue the job: mops jobs resume job"
    )
    assert refused.value.exit_code == 4
    check_room(Disk(300 << 20), "job", 220 << 20)  # type: ignore[arg-type]
    check_room(Disk(None), "job", 220 << 20)  # type: ignore[arg-type]


def forecast(files: Files | Disk | None = None, view: LogView | None = None, clock: Clock | None = None) -> Forecast:
    """Return the forecast of an attempt that has 400 groups of 2 simulations to run."""
    job = claimed_job(f"memory://forecast-{next(_names)}", groups_of([2] * 400))
    job.files, job.inherited = files or job.files, view or job.inherited  # type: ignore[assignment]
    return Forecast(job, clock=clock or Clock(0.0))


_names = itertools.count()


def test_the_forecast_is_made_once_after_the_first_seconds() -> None:
    clock = Clock(1.0)
    found = forecast(clock=clock)
    found.task_finished(0.5, 2)
    assert found.estimate(798, 2) is None, "nothing is committed"
    found.committed(committed(1, 100), KINDS)
    assert found.estimate(798, 2) is None, "the attempt has just started"
    clock.now = 3.5
    estimate = found.estimate(700, 2)
    assert estimate is not None
    assert (estimate.rows, estimate.more) == (80_000, False)
    assert estimate.seconds == pytest.approx(700 * 0.25 / 2)
    assert found.estimate(1, 2) is estimate


def test_a_job_that_ends_before_the_forecast_gets_none() -> None:
    clock = Clock(1.0)
    found = forecast(clock=clock)
    found.task_finished(0.5, 2)
    found.committed(committed(1, 100), KINDS)
    clock.now = 9.0
    assert found.estimate(0, 2) is None


def test_only_what_is_left_needs_room() -> None:
    """Regression: a job whose only commit held all its results failed, because they would not have fitted again."""
    whole = forecast(Disk(1000))
    whole.committed(committed(400, 100), KINDS)
    half = forecast(Disk(1000))
    with pytest.raises(StorageError, match="not enough room"):
        half.committed(committed(200, 100), KINDS)


def test_a_resumed_attempt_checks_the_room_at_once_from_what_is_committed() -> None:
    view = committed(100, 1000)
    with pytest.raises(StorageError, match="not enough room"):
        forecast(Disk(1 << 20), view).committed(view, KINDS)
    forecast(Disk(1 << 30), view).committed(view, KINDS)
    clock = Clock(1.0)
    found = forecast(Disk(1 << 30), view, clock)
    found.committed(view, KINDS)
    found.task_finished(0.5, 0)
    clock.now = 9.0
    estimate = found.estimate(1, 1)
    assert estimate is not None
    assert (estimate.more, estimate.seconds) == (True, None), "no simulation was measured"
