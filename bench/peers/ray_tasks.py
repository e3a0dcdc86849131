"""Peer: Ray with results as they come, streamed into one Parquet file; jobs are tuned by hand (chunks.py).

A rolling window of tasks, as Ray's documentation advises: all tasks at once would fill the object store. The programs
of the benchmark do not install Ray: `pip install ray`.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # Ray would report the run to its makers
os.environ["RAY_AUTH_MODE"] = "disabled"  # Ray would write a token to the user's home

import ray
from case import N_WORKERS, Stopwatch, parse_arguments, report, rows_on_disk
from chunks import WARM_UP, Job, Result, jobs_of, run_job, write

WINDOW = 4 * N_WORKERS


def main() -> None:
    """Run the case and print the line."""
    case, arguments = parse_arguments(__doc__)
    watch = Stopwatch()
    with connected():
        for _ in results_of(WARM_UP):
            pass
        watch.ready()
        write(results_of(jobs_of(case)), arguments.out)
        watch.finish()
    report(case, rows_on_disk(arguments.out), watch.figures)


@contextmanager
def connected() -> Iterator[None]:
    """Start Ray with two slots; leave nothing of it behind."""
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # the path of its sockets may have 107 characters
    try:
        ray.init(num_cpus=N_WORKERS, include_dashboard=False, logging_level="ERROR", _temp_dir=folder)
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def results_of(jobs: list[Job]) -> Iterator[Result]:
    """Yield results as they come. Submit the next jobs before yielding, so that workers stay busy."""
    run = ray.remote(run_job)
    waiting = iter(jobs)
    flying = [run.remote(*job) for job in islice(waiting, WINDOW)]
    while flying:
        (done,), flying = ray.wait(flying)
        flying += [run.remote(*job) for job in islice(waiting, 1)]
        yield ray.get(done)


if __name__ == "__main__":
    main()
