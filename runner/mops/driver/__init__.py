"""Runs in the runner: plans a job, drives it on Dask, and commits what is finished."""
