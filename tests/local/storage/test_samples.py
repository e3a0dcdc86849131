"""Samples and live records of running jobs, on every storage."""

from __future__ import annotations

import pyarrow as pa
from made import ID, on_disk

from mops.storage.files import Files
from mops.storage.paths import JobPaths
from mops.storage.progress_record import Progress
from mops.storage.samples import SAMPLES, as_table, read_samples, write_samples
from mops.verdicts import Counts

PATHS = JobPaths("job", ID)


def sample(at: float) -> Progress:
    finished = Counts(10, 2, 3, 1, {"error": 1, "oom": 1})
    return Progress(
        at, finished, durable=Counts(8), rate=1.5, memory_bytes=300 << 20, runner_bytes=150 << 20, in_flight=40, slots=2
    )


def test_samples_are_read_in_the_order_in_which_they_were_taken(files: Files) -> None:
    for n, c in ((1, 1), (1, 2), (1, 10), (2, 1)):
        write_samples(files, PATHS, n, c, [sample(100 * n + c), sample(100 * n + c + 0.5)])
    read = read_samples(files, PATHS)
    assert [n for n, _ in read] == [1, 1, 1, 1, 1, 1, 2, 2]
    assert [found.at for _, found in read] == [101, 101.5, 102, 102.5, 110, 110.5, 201, 201.5]
    assert [found.at for _, found in read_samples(files, PATHS, newest=2)] == [110, 110.5, 201, 201.5]
    assert read[0][1] == sample(101)


@on_disk
def test_a_job_without_samples_has_an_empty_table(files: Files) -> None:
    assert read_samples(files, PATHS) == []
    assert as_table([]).schema == SAMPLES


def test_the_table_of_samples_has_times_and_verdicts() -> None:
    table = as_table([(1, sample(1.7e9)), (2, sample(1.7e9 + 0.25))])
    assert table.schema == SAMPLES
    assert table["time"].type == pa.timestamp("ms", "UTC")
    assert table["time"][1].as_py().timestamp() == 1.7e9 + 0.25
    assert table["verdicts"].to_pylist() == [[("error", 1), ("oom", 1)]] * 2
    assert table["attempt"].to_pylist() == [1, 2]
    assert len(table.to_pandas()) == 2
