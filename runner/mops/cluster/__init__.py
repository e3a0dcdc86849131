"""The Dask cluster of a job: embedded or external, its workers, its slots."""
