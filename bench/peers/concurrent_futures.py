"""Peer: the standard library's process pool, streamed into one Parquet file; jobs are tuned by hand (chunks.py).

A rolling window of futures: `Executor.map` would submit everything at once, and results would pile up.
"""

import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice

from case import N_WORKERS, parse_arguments, report, rows_on_disk
from chunks import WARM_UP, Job, Result, jobs_of, run_job, write

WINDOW = 4 * N_WORKERS


def main() -> None:
    """Run the case and print the line."""
    case, arguments = parse_arguments(__doc__)
    started = time.perf_counter()
    with ProcessPoolExecutor(N_WORKERS) as executor:
        list(results_of(executor, WARM_UP))
        ready = time.perf_counter()
        write(results_of(executor, jobs_of(case)), arguments.out)
        seconds = time.perf_counter() - ready
    report(case, rows_on_disk(arguments.out), seconds, ready - started)


def results_of(executor: ProcessPoolExecutor, jobs: list[Job]) -> Iterator[Result]:
    """Yield results as they come. Submit the next jobs before yielding, so that workers stay busy."""
    waiting = iter(jobs)
    flying: set[Future[Result]] = {executor.submit(run_job, *job) for job in islice(waiting, WINDOW)}
    while flying:
        done, flying = wait(flying, return_when=FIRST_COMPLETED)
        flying |= {executor.submit(run_job, *job) for job in islice(waiting, len(done))}
        while done:
            yield done.pop().result()


if __name__ == "__main__":
    main()
