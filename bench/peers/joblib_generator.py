"""Peer: joblib with results as they come, streamed into one Parquet file; jobs are tuned by hand (chunks.py)."""

import time

from case import N_WORKERS, parse_arguments, report, rows_on_disk
from chunks import WARM_UP, jobs_of, run_job, write
from joblib import Parallel, delayed


def main() -> None:
    """Run the case and print the line."""
    case, arguments = parse_arguments(__doc__)
    started = time.perf_counter()
    with Parallel(n_jobs=N_WORKERS, return_as="generator_unordered", batch_size=1) as parallel:
        list(parallel(delayed(run_job)(*job) for job in WARM_UP))
        ready = time.perf_counter()
        write(parallel(delayed(run_job)(*job) for job in jobs_of(case)), arguments.out)
        seconds = time.perf_counter() - ready
    report(case, rows_on_disk(arguments.out), seconds, ready - started)


if __name__ == "__main__":
    main()
