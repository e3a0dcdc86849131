"""Measures the list of jobs of ``mops ui``: time and requests to the storage, of the first list and of a refresh.

A refresh is measured right after the first list, and when all records are old.
The storage is a folder, or Azurite, which tests/local/storage/azurite.py installs. Most jobs are complete.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path

from azure.storage.blob import BlobServiceClient

from mops.jobs.listing import RECORD_SECONDS, JobLists
from mops.storage.files import Files
from mops.ui.reading import PAGE_JOBS

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "local" / "storage")]

import azurite  # noqa: E402 - its folder is in the path only now
from made import claimed, commit, created, finished, hooked, lives  # noqa: E402

N_OPEN = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--refreshes", type=int, default=20)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure("folder", f"{folder}/storage", given.jobs, given.refreshes)
        with azurite.running(Path(folder, "azurite.log")) as port:
            os.environ["AZURE_STORAGE_CONNECTION_STRING"] = azurite.connection_string(port)
            container = uuid.uuid4().hex
            BlobServiceClient.from_connection_string(azurite.connection_string(port)).create_container(container)
            measure("Azurite", f"abfs://{container}/mops", given.jobs, given.refreshes)


def measure(storage: str, url: str, n_jobs: int, n_refreshes: int) -> None:
    files = Files.open(url)
    make_jobs(files, n_jobs)
    requests: Counter[str] = Counter()
    now_s = 0.0
    lists = JobLists(hooked(files, lambda name, _: requests.update([name])), lambda: now_s)

    def refresh() -> tuple[float, int]:
        requests.clear()
        start = time.perf_counter()
        assert len(lists.read(limit=PAGE_JOBS + 1)) == PAGE_JOBS + 1
        return time.perf_counter() - start, requests.total()

    print(f"{storage}, {n_jobs:,} jobs, {N_OPEN} of the newest run:")
    print_medians("first list", [refresh()])
    print_medians("refresh", [refresh() for _ in range(n_refreshes)])
    old = []
    for _ in range(n_refreshes):
        now_s += RECORD_SECONDS + 1
        old.append(refresh())
    print_medians("refresh, old records", old)


def print_medians(what: str, measured: list[tuple[float, int]]) -> None:
    seconds, counts = (statistics.median(some) for some in zip(*measured, strict=True))
    print(f"  {what:20}  {seconds:.3f} s, {counts:,.0f} requests")


def make_jobs(files: Files, n: int) -> None:
    for i in range(n):
        name, at = f"job-{i}", f"2026-01-{1 + i // 1440:02}T{i // 60 % 24:02}:{i % 60:02}:00+00:00"
        if i < n - N_OPEN:
            finished(files, name, failed=i % 10 == 0, at=at)
        else:
            created(files, name, at)
            commit(files, claimed(files, name, at=time.time()), name, 0)
            lives(files, name, 1, age_s=0)


if __name__ == "__main__":
    main()
