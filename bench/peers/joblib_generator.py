"""Peer: joblib with results as they come, streamed into one Parquet file; jobs are tuned by hand (chunks.py)."""

from case import N_WORKERS, Stopwatch, parse_arguments, report, rows_on_disk
from chunks import WARM_UP, jobs_of, run_job, write
from joblib import Parallel, delayed


def main() -> None:
    """Run the case and print the line."""
    case, arguments = parse_arguments(__doc__)
    watch = Stopwatch()
    with Parallel(n_jobs=N_WORKERS, return_as="generator_unordered", batch_size=1) as parallel:
        list(parallel(delayed(run_job)(*job) for job in WARM_UP))
        watch.ready()
        write(parallel(delayed(run_job)(*job) for job in jobs_of(case)), arguments.out)
        watch.finish()
    report(case, rows_on_disk(arguments.out), watch.figures)


if __name__ == "__main__":
    main()
