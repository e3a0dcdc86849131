"""Peer: Dask in the most obvious form that bounds memory: strict batches of 200 sets, submit, gather, write, next."""

from case import parse_arguments
from dask_futures import run_in_batches

BATCH_SIZE = 200

if __name__ == "__main__":
    run_in_batches(*parse_arguments(__doc__), batch_size=BATCH_SIZE)
