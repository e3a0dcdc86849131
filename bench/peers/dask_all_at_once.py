"""Peer: Dask in its most obvious form: submit everything, gather everything, write at the end."""

from case import parse_arguments
from dask_futures import run_in_batches

if __name__ == "__main__":
    case, arguments = parse_arguments(__doc__)
    run_in_batches(case, arguments, batch_size=case.sets)
