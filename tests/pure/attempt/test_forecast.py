"""What an attempt is expected to take and to give, and when a storage is too small for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from mops.attempt.checkpoint.open_checkpoint import Limits
from mops.attempt.planning.forecast import (
    Expected,
    Forecast,
    OutputPerSimulation,
    check_room,
    expected,
    output_per_simulation,
    seconds_per_simulation,
)
from mops.errors import StorageError
from mops.storage.backends.spool import Spool
from mops.storage.files import Files
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.records import Part
from mops.storage.joblog.view import LogView
from mops.storage.parquet import encode
from mops.storage.paths import JobPaths
from mops.study.ranges import Ranges
from mops.study.study_file import parse_study
from mops.verdicts import Counts

LIMITS = Limits(seconds=30, bytes=64 << 20, groups=200)
KINDS = {"daily": {"day": "number", "y": "number"}}
PATHS = JobPaths("job")


def committed(n_groups: int, rows: int, *, parts: int = 1, failed: int = 0) -> LogView:
    """Return a log that has committed real parts: groups of two simulations with so many rows each."""
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
def test_one_group_tells_the_bytes_of_thousands(rows: int) -> None:
    """A file of one group is mostly headers and footer: taken as it is, it would say ten times too much."""
    one, many = output_per_simulation(committed(1, rows), KINDS), output_per_simulation(committed(400, rows), KINDS)
    assert one is not None
    assert many is not None
    assert one.rows == many.rows == rows
    assert one.bytes == pytest.approx(many.bytes, rel=0.6)
    assert one.file_bytes == many.file_bytes > 0


def test_many_small_files_count_as_what_they_hold() -> None:
    together, apart = (
        output_per_simulation(committed(60, 20), KINDS),
        output_per_simulation(committed(60, 20, parts=60), KINDS),
    )
    assert together is not None
    assert apart is not None
    assert apart.bytes == pytest.approx(together.bytes, rel=0.6)


def test_nothing_is_known_before_a_good_simulation() -> None:
    assert output_per_simulation(LogView(), KINDS) is None
    assert output_per_simulation(committed(1, 10, failed=2), KINDS) is None


def test_the_time_is_that_of_the_work_left_on_all_slots() -> None:
    of = {"n_simulations": 1000, "n_left": 600, "n_groups": 200, "slots": 4}
    assert expected(OutputPerSimulation(365, 1000, 0), LIMITS, each_s=2.0, **of) == Expected(300.0, 365_000, 1_000_000)
    assert expected(OutputPerSimulation(365, 1000, 0), LIMITS, each_s=None, **of).seconds is None


def test_each_checkpoint_adds_what_its_files_take_besides_rows() -> None:
    few = expected(
        OutputPerSimulation(1, 100, 500), LIMITS, n_simulations=1000, n_left=0, n_groups=1000, each_s=1.0, slots=1
    )
    assert few.bytes == 100_000 + 6 * 500
    alone = Limits(0, 64 << 20, 200)  # each group as it finishes
    each = expected(
        OutputPerSimulation(1, 100, 500), alone, n_simulations=900, n_left=900, n_groups=9, each_s=1.0, slots=1
    )
    assert each.bytes == 90_000 + 9 * 500


def test_the_first_call_of_a_child_is_left_out_of_the_time() -> None:
    """It imports and compiles; on two slots two tasks hold one, whichever comes back first."""
    tasks = [(5.1, 1), (0.1, 1), (0.1, 1), (5.2, 1), (1.0, 10), (1.0, 10)]
    assert seconds_per_simulation(tasks, slots=2) == pytest.approx(0.1)
    assert seconds_per_simulation([(5.1, 1), (0.1, 1)], slots=8) == pytest.approx(0.1)
    assert seconds_per_simulation([(5.1, 1)], slots=2) == pytest.approx(5.1)
    assert seconds_per_simulation([], slots=2) is None


def test_seconds_of_targets_count_to_the_simulations() -> None:
    assert seconds_per_simulation([(9.0, 1), (2.0, 2), (1.0, 0)], slots=1) == pytest.approx(1.5)


class Disk:
    """A storage with so much room."""

    url = "/somewhere"

    def __init__(self, free: int | None):
        self.free = free

    def free_bytes(self) -> int | None:
        return self.free


def test_too_little_room_is_an_error_that_says_how_much_where_and_what_to_do() -> None:
    with pytest.raises(StorageError) as refused:
        check_room(Disk(100 << 20), "job", 220 << 20)  # type: ignore[arg-type]
    assert str(refused.value) == (
        "there is not enough room for the results: about 242.0 MiB more are needed, 100.0 MiB are free\n"
        "  at: /somewhere\n"
        "hint: what is finished is kept: make room, then mops jobs resume job"
    )
    assert refused.value.exit_code == 4
    check_room(Disk(300 << 20), "job", 220 << 20)  # type: ignore[arg-type]
    check_room(Disk(None), "job", 220 << 20)  # type: ignore[arg-type]


def forecast(files: Files | Disk, inherited: LogView | None = None, now: list[float] | None = None) -> Forecast:
    clock = (now or [0.0]).__getitem__
    of = {"n_groups": 400, "n_simulations": 800}
    return Forecast(files, "job", LIMITS, inherited or LogView(), **of, clock=lambda: clock(0))  # type: ignore[arg-type]


def test_an_expectation_is_drawn_up_once_when_it_is_settled(tmp_path: Path) -> None:
    now = [1.0]
    found = forecast(Files.open(str(tmp_path)), now=now)
    found.measured(0.5, 2)
    assert found.estimate(798, 2) is None, "nothing is committed"
    found.committed(committed(1, 100), KINDS)
    assert found.estimate(798, 2) is None, "it has only begun"
    now[0] = 3.5
    drawn_up = found.estimate(700, 2)
    assert drawn_up is not None
    assert (drawn_up.rows, drawn_up.more) == (80_000, False)
    assert drawn_up.seconds == pytest.approx(700 * 0.25 / 2)
    assert found.estimate(1, 2) is drawn_up


def test_a_job_that_is_over_before_is_spared_the_expectation(tmp_path: Path) -> None:
    now = [1.0]
    found = forecast(Files.open(str(tmp_path)), now=now)
    found.measured(0.5, 2)
    found.committed(committed(1, 100), KINDS)
    now[0] = 9.0
    assert found.estimate(0, 2) is None


def test_an_attempt_that_goes_on_looks_for_room_at_once_by_what_is_committed() -> None:
    view = committed(100, 1000)
    with pytest.raises(StorageError, match="not enough room"):
        forecast(Disk(1 << 20), view).committed(view, KINDS)
    forecast(Disk(1 << 30), view).committed(view, KINDS)
    assert forecast(Disk(1 << 30), view)._expected(OutputPerSimulation(1, 1, 1), 1, 1).more
