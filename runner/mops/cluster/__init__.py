"""Where the tasks of a job run: in threads of this process, or on a Dask cluster."""
