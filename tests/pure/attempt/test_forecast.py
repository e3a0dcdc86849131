"""The expected size of a job, and the check for enough room in the storage."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest

from claimed_jobs import claimed_job, groups_of
from mops.attempt.checkpoint.open_checkpoint import Limits
from mops.attempt.planning.forecast import (
    Forecast,
    OutputPerSimulation,
    check_room,
    expected_bytes,
    output_per_simulation,
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
    assert expected_bytes(one, LIMITS, n_simulations=1000, n_groups=1000) == 100_000 + 6 * 500
    assert expected_bytes(one, LIMITS, n_simulations=900, n_groups=200) == 90_000 + 2 * 500
    assert expected_bytes(one, LIMITS, n_simulations=900, n_groups=1) == 90_000 + 500


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


def forecast(files: Files | Disk | None = None, view: LogView | None = None) -> Forecast:
    """Return the forecast of an attempt that has 400 groups of 2 simulations to run."""
    job = claimed_job(f"memory://forecast-{next(_names)}", groups_of([2] * 400))
    job.files, job.inherited = files or job.files, view or job.inherited  # type: ignore[assignment]
    return Forecast(job)


_names = itertools.count()


def test_the_forecast_is_made_once_from_the_first_commit() -> None:
    found = forecast()
    found.committed(LogView(), KINDS)
    assert found.expected is None, "nothing is committed"
    found.committed(committed(1, 100), KINDS)
    assert found.expected is not None
    assert (found.expected.rows, found.expected.more) == (80_000, False)
    first = found.expected
    found.committed(committed(2, 50), KINDS)
    assert found.expected is first


def test_a_job_whose_first_commit_is_its_last_has_no_forecast_and_needs_no_room() -> None:
    """Regression: a job whose only commit held all its results failed, because they would not have fitted again."""
    whole = forecast(Disk(1000))
    whole.committed(committed(400, 100), KINDS)
    assert whole.expected is None
    half = forecast(Disk(1000))
    with pytest.raises(StorageError, match="not enough room"):
        half.committed(committed(200, 100), KINDS)


def test_a_resumed_attempt_checks_the_room_at_once_from_what_is_committed() -> None:
    view = committed(100, 1000)
    with pytest.raises(StorageError, match="not enough room"):
        forecast(Disk(1 << 20), view).committed(view, KINDS)
    found = forecast(Disk(1 << 30), view)
    found.committed(view, KINDS)
    assert found.expected is not None
    assert found.expected.more
