"""Peer: two processes that take chunks of sets from a queue and write Parquet themselves.

Rows never travel. Each worker writes one file of outputs and one of losses, and returns only how many rows it wrote.
The jobs are tuned by hand (chunks.py). No program with two processes can do much less.
"""

import multiprocessing
from collections.abc import Iterator
from multiprocessing.queues import SimpleQueue
from pathlib import Path

from case import N_WORKERS, Stopwatch, parse_arguments, report, rows_on_disk
from chunks import ROW_GROUP_BYTES, WARM_UP, Job, Result, jobs_of, run_job, write


def main() -> None:
    """Run the case and print the line."""
    case, arguments = parse_arguments(__doc__)
    watch = Stopwatch()
    jobs, counts = multiprocessing.SimpleQueue(), multiprocessing.SimpleQueue()
    workers = [multiprocessing.Process(target=work, args=(n, jobs, counts, arguments.out)) for n in range(N_WORKERS)]
    for worker in workers:
        worker.start()
    for _ in workers:
        counts.get()  # the worker is warm
    watch.ready()
    for job in (*jobs_of(case, ROW_GROUP_BYTES), *[None] * N_WORKERS):
        jobs.put(job)
    for _ in workers:
        counts.get()
    watch.finish()
    for worker in workers:
        worker.join()
    report(case, rows_on_disk(arguments.out), watch.figures)


def work(n: int, jobs: SimpleQueue[Job | None], counts: SimpleQueue[int], out: Path) -> None:
    """Warm up; then run jobs until there are none, and write their rows."""
    for job in WARM_UP:
        run_job(*job)
    counts.put(0)
    counts.put(write(results_of(jobs), out, f"{n}.parquet"))


def results_of(jobs: SimpleQueue[Job | None]) -> Iterator[Result]:
    """Run jobs as they come."""
    while (job := jobs.get()) is not None:
        yield run_job(*job)


if __name__ == "__main__":
    main()
