"""Encodes the rows of a job as Parquet: in child processes, and in the runner."""
