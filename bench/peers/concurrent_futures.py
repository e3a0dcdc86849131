"""Peer: the standard library's process pool, streamed into one Parquet file; jobs are tuned by hand (chunks.py).

A rolling window of futures: `Executor.map` would submit everything at once, and results would pile up.
"""

from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice

from case import N_WORKERS, Stopwatch, parse_arguments, report, rows_on_disk
from chunks import WARM_UP, Job, Result, jobs_of, run_job, write

WINDOW = 4 * N_WORKERS


def main() -> None:
    """Run the case and print the line."""
    case, arguments = parse_arguments(__doc__)
    watch = Stopwatch()
    with ProcessPoolExecutor(N_WORKERS) as executor:
        list(results_of(executor, WARM_UP))
        watch.ready()
        write(results_of(executor, jobs_of(case)), arguments.out)
        watch.finish()
    report(case, rows_on_disk(arguments.out), watch.figures)


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
