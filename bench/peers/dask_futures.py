"""The common code of the two Dask peers: the cluster, a future for each replicate and target, and writing a batch."""

import logging
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
from case import (
    N_WORKERS,
    TARGETS,
    Case,
    Stopwatch,
    joined,
    loss_table,
    output_rows,
    param_id,
    report,
    rows_on_disk,
    score,
    seeds_of,
    simulate,
)
from distributed import Client, Future, LocalCluster


def run_in_batches(case: Case, arguments: Namespace, batch_size: int) -> None:
    """Run the case in strict batches and print the line."""
    for name in ("outputs", "losses"):
        (arguments.out / name).mkdir()
    watch = Stopwatch()
    with connected() as client:
        watch.ready()
        sets = case.parameter_sets()
        for n, first in enumerate(range(0, len(sets), batch_size)):
            run_batch(client, n, sets[first : first + batch_size], case.replicates, arguments.out)
        watch.finish()
    report(case, rows_on_disk(arguments.out), watch.figures)


@contextmanager
def connected() -> Iterator[Client]:
    """Start a cluster of worker processes that have imported the model; yield a client."""
    with (
        LocalCluster(
            n_workers=N_WORKERS,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            silence_logs=logging.CRITICAL,  # a heartbeat to a closing scheduler prints 50 lines
        ) as cluster,
        Client(cluster) as client,
    ):
        client.run(simulate, {"beta": 0.1, "gamma": 0.1, "ms": 0, "rows": 9}, 0)
        yield client


def run_batch(client: Client, n: int, batch: list[dict], replicates: int, out: Path) -> None:
    """Submit all, gather all, write."""
    futures = [submit_group(client, params, replicates) for params in batch]
    outputs, losses = [], []
    for params, (tables, scores) in zip(batch, client.gather(futures), strict=True):
        identity = param_id(params)
        outputs.append(output_rows(identity, seeds_of(identity, replicates), tables))
        losses += [(identity, target, loss) for target, loss in zip(TARGETS, scores, strict=True)]
    pq.write_table(joined(outputs), out / "outputs" / f"{n:05}.parquet", use_dictionary=["param_id"])
    pq.write_table(loss_table(losses), out / "losses" / f"{n:05}.parquet")


def submit_group(client: Client, params: dict, replicates: int) -> tuple[list[Future], list[Future]]:
    """Return the futures of one set: its replicates, and its targets which wait for them."""
    seeds = seeds_of(param_id(params), replicates)
    tables = [client.submit(simulate, params, seed, pure=False) for seed in seeds]
    scores = [client.submit(score, target, params, tables, pure=False) for target in TARGETS]
    return tables, scores
