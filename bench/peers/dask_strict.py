"""Peer: the pattern to beat. Strict batches of 200 sets, a future for each replicate and each target."""

import logging
import time
from pathlib import Path

import pyarrow.parquet as pq
from case import (
    N_WORKERS,
    TARGETS,
    joined,
    loss_table,
    output_rows,
    param_id,
    parse_arguments,
    report,
    rows_on_disk,
    score,
    seeds_of,
    simulate,
)
from distributed import Client, Future, LocalCluster

BATCH_SIZE = 200


def main() -> None:
    """Run the case and print the line."""
    case, arguments = parse_arguments(__doc__)
    for name in ("outputs", "losses"):
        (arguments.out / name).mkdir()
    started = time.perf_counter()
    with (
        LocalCluster(
            n_workers=N_WORKERS,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            silence_logs=logging.CRITICAL,  # a heartbeat that meets the closing scheduler prints 50 lines
        ) as cluster,
        Client(cluster) as client,
    ):
        client.run(simulate, {"beta": 0.1, "gamma": 0.1, "ms": 0, "rows": 9}, 0)  # imports, on every worker
        ready = time.perf_counter()
        sets = case.parameter_sets()
        for n, first in enumerate(range(0, len(sets), BATCH_SIZE)):
            run_batch(client, n, sets[first : first + BATCH_SIZE], arguments.out)
        seconds = time.perf_counter() - ready
    report(case, rows_on_disk(arguments.out), seconds, ready - started)


def run_batch(client: Client, n: int, batch: list[dict], out: Path) -> None:
    """Submit all, gather all, write."""
    futures = [submit_group(client, params) for params in batch]
    outputs, losses = [], []
    for params, (replicates, scores) in zip(batch, client.gather(futures), strict=True):
        identity = param_id(params)
        outputs.append(output_rows(identity, seeds_of(identity), replicates))
        losses += [(identity, target, loss) for target, loss in zip(TARGETS, scores, strict=True)]
    pq.write_table(joined(outputs), out / "outputs" / f"{n:05}.parquet", use_dictionary=["param_id"])
    pq.write_table(loss_table(losses), out / "losses" / f"{n:05}.parquet")


def submit_group(client: Client, params: dict) -> tuple[list[Future], list[Future]]:
    """Return the futures of one set: its replicates, and its targets which wait for them."""
    seeds = seeds_of(param_id(params))
    replicates = [client.submit(simulate, params, seed, pure=False) for seed in seeds]
    scores = [client.submit(score, target, params, replicates, pure=False) for target in TARGETS]
    return replicates, scores


if __name__ == "__main__":
    main()
