"""The common code of the hand-tuned peers: jobs of several parameter sets, and the files for their rows.

Their author knows the cost of a simulation: a job is a chunk of sets worth about 50 ms, and its rows travel as one
Arrow table. With joblib at 0 ms, one job per set ran 9,000 simulations/s, and chunks ran 15,000.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from case import N_WORKERS, OUTPUTS, Case, joined, loss_table, run_group

JOB_MS = 50
MOST_BYTES_IN_A_RESULT = 3 * 2**20  # if rows travel to the main process
ROW_BYTES = 4 * 8  # four columns of floats
ROW_GROUP_BYTES = 8 * 2**20  # bytes that a process holds before it writes

Job = tuple[list[dict], int]
"""Parameter sets, and how many replicates each has."""
Result = tuple[pa.Table, list[tuple[str, str, float]]]

# Long enough that no worker finishes its share while another worker starts.
WARM_UP: list[Job] = [(Case(sets=1, ms=20).parameter_sets(), 5)] * (2 * N_WORKERS)


def jobs_of(case: Case, most_bytes: int = MOST_BYTES_IN_A_RESULT) -> list[Job]:
    """Cut the case into jobs of about JOB_MS, or less if outputs are large."""
    sets = case.parameter_sets()
    by_time = round(JOB_MS / (case.replicates * max(case.ms, 0.1)))
    by_bytes = most_bytes // (case.replicates * case.rows * ROW_BYTES)
    size = max(1, min(by_time, by_bytes))
    return [(sets[first : first + size], case.replicates) for first in range(0, len(sets), size)]


def run_job(sets: list[dict], replicates: int) -> Result:
    """Run some groups; return their rows as one table, and their losses."""
    results = [run_group(params, replicates) for params in sets]
    return joined([table for table, _ in results]), [loss for _, losses in results for loss in losses]


def write(results: Iterable[Result], out: Path, name: str = "all.parquet") -> int:
    """Stream outputs into a Parquet file as they come, and the few losses at the end; return the rows of outputs."""
    for part in ("outputs", "losses"):
        (out / part).mkdir(exist_ok=True)
    losses: list[tuple[str, str, float]] = []
    rows = 0
    with pq.ParquetWriter(out / "outputs" / name, OUTPUTS, use_dictionary=["param_id"]) as writer:
        for table in row_groups(results, losses):
            writer.write_table(table)
            rows += table.num_rows
    pq.write_table(loss_table(losses), out / "losses" / name)
    return rows


def row_groups(results: Iterable[Result], losses: list[tuple[str, str, float]]) -> Iterator[pa.Table]:
    """Yield the rows in pieces of about ROW_GROUP_BYTES; put the losses aside."""
    held: list[pa.Table] = []
    for table, some in results:
        losses += some
        held.append(table)
        if sum(table.nbytes for table in held) >= ROW_GROUP_BYTES:
            yield joined(held)
            held.clear()
    if held:
        yield joined(held)
