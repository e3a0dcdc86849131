"""The Dask cluster of a job: embedded or at an address, its workers, and its share among other jobs."""
