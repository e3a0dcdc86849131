"""Peer: Dask with tasks that write Parquet themselves: a task runs a chunk of sets, and returns how many rows it wrote.

The jobs are tuned by hand (chunks.py). Rows never travel through the scheduler or the client.
"""

from pathlib import Path

from case import Stopwatch, parse_arguments, report, rows_on_disk
from chunks import ROW_GROUP_BYTES, Job, jobs_of, run_job, write
from dask_futures import connected


def main() -> None:
    """Run the case and print the line."""
    case, arguments = parse_arguments(__doc__)
    watch = Stopwatch()
    with connected() as client:
        watch.ready()
        jobs = jobs_of(case, ROW_GROUP_BYTES)
        futures = client.map(run_and_write, range(len(jobs)), jobs, out=arguments.out, pure=False)
        client.gather(futures)
        watch.finish()
    report(case, rows_on_disk(arguments.out), watch.figures)


def run_and_write(n: int, job: Job, out: Path) -> int:
    """Run a job and write its rows to a file; return their number."""
    return write([run_job(*job)], out, f"{n:05}.parquet")


if __name__ == "__main__":
    main()
