"""A report reads each part of its job once, so that its sections tell of one moment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from job_folders import folder_of
from job_reads import with_counts
from mops.jobs.job import Job
from mops.storage.files import Files

from .report_lab import WEIGHTS, design, submit

# mops reads the schema of a part when it opens a table, and then its rows.
OPENS_OF_A_PART = 2


def read_of(job: Job, use: Callable[[Job], Any]) -> dict[str, int]:
    """Return how often each file was read, without the parts."""
    files, counts = with_counts(job.files)
    use(Job(files, job.name, local=True))
    found = counts.of("")
    parts = {path: n for path, n in found.items() if path.endswith(".parquet") and "params" not in path}
    assert set(parts.values()) <= {OPENS_OF_A_PART}
    return {path: n for path, n in found.items() if path not in parts}


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_a_report_reads_nothing_twice(partial: Job, weights: dict[str, float] | None) -> None:
    """Regression: the report of a job of 64 sets read the storage 772 times, and its record 141 times."""
    found = read_of(partial, lambda job: job.report(weights=weights))
    assert max(found.values()) == 1, found
    root = folder_of(partial.files.url, partial.name)
    names = {path.rpartition("/")[2] for path in found if (Path(partial.files.url) / path).exists()}
    n_log = len(list((root / "log").iterdir()))
    others = {"job.json", "1.json", "compacted.json", "params.parquet", "schema.json", f"{partial.record.bundle}.zip"}
    assert names - {f"{k:08}.json" for k in range(1, n_log + 1)} <= others | {"1-1.json"}


def test_no_table_and_no_picture_reads_a_record_twice(partial: Job, subtests: pytest.Subtests) -> None:
    for use in [
        lambda job: job.status(),
        lambda job: job.reasons(),
        lambda job: job.causes().to_arrow(),
        lambda job: job.best(3, weights=WEIGHTS).to_arrow(),
        lambda job: job.failures(params=True, where={"reason": "error"}).to_arrow(),
        lambda job: job.tables(),
        lambda job: job.plot.fan(best=3, weights=WEIGHTS),
        lambda job: job.plot.sensitivity(),
    ]:
        with subtests.test(use=use):
            assert max(read_of(partial, use).values()) == 1


def test_a_report_of_a_job_that_grows_tells_of_one_moment(tmp_path: Path) -> None:
    """Regression: sections that read the log again counted simulations that the head of the report did not have."""
    job = submit(tmp_path, design(40))
    root = folder_of(job.files.url, job.name)
    log = sorted((root / "log").iterdir())
    kept = {path: path.read_bytes() for path in log[2:]}
    for path in kept:
        path.unlink()
    finished = job.status().counts.simulations
    files, counts = with_counts(Files.open(job.files.url))
    first, calls = counts.count, []

    def count(call: str, path: str) -> None:
        first(call, path)
        calls.append(path)
        if path.endswith("params.parquet"):  # read after the log
            for there, content in kept.items():
                there.write_bytes(content)

    counts.count = count  # type: ignore[method-assign]
    page = Job(files, job.name, local=True).report(weights=WEIGHTS).html
    assert job.status().counts.simulations > finished
    assert f"<dt>Simulations</dt><dd>{finished}<" in page
