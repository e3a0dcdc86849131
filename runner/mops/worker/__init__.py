"""What a Dask worker does for a job: runs tasks in child processes."""
