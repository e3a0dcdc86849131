"""Reads the outputs of the trials of a calibration from the jobs of its rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mops.calibration.calibration import Calibration
from mops.calibration.rounds import differs_from_round
from mops.figures.calibration import thinned
from mops.figures.columns import Floats
from mops.figures.fan import MOST_SETS, MOST_VALUES
from mops.jobs.data import JobData
from mops.jobs.job import Job
from mops.jobs.scan import Selection
from mops.report.damage import READING_FAULTS, damage_of
from mops.storage.calibration_records import CalibrationRecords
from mops.storage.files import Files
from mops.storage.job_records import job_names


@dataclass(frozen=True)
class TrialRows:
    """Rows of an output, of sets with weights."""

    # ``group`` (int32): the number of the set, over all rounds; ``replicate``, and the columns that were asked for
    rows: pa.Table
    weights: dict[int, float]  # of each set; equal sets of a round are one set with the sum of their weights
    # The sets with a weight. If they are too many to read, ``rows`` has a sample of them, drawn by their weights.
    n_sets: int


def lost_jobs(files: Files, found: Calibration, names: Iterable[str]) -> list[str]:
    """Return those of these jobs of rounds that have been deleted, or whose name another job has now."""
    record, existing = CalibrationRecords(files, found.name).calibration(), set(job_names(files))
    asked = {each.job: each for each in found.rounds}

    def is_there(name: str) -> bool:
        if record is None or name not in existing:
            return False
        return not differs_from_round(Job(files, name, local=True), record, asked[name])

    return [name for name in names if not is_there(name)]


def trial_rows(
    data_of: Callable[[str], JobData],  # returns a job of a round
    trials: pa.Table,
    weights: Floats,
    output: str,
    columns: Sequence[str],
) -> TrialRows:
    """Return the rows of an output of all trials with a weight above 0; none of their jobs is lost."""
    pairs = zip(trials["job"].to_pylist(), trials["param_id"].to_pylist(), weights.tolist(), strict=True)
    of_set: dict[tuple[str, str], float] = {}
    for job, identity, weight in pairs:
        if weight > 0:
            of_set[job, identity] = of_set.get((job, identity), 0.0) + weight
    names = list(dict.fromkeys(name for name, _ in of_set))
    rows_of_job = {name: _n_rows(data_of(name), output, columns) for name in names}
    n_trials = sum(name in names for name in trials["job"].to_pylist())
    most = min(MOST_SETS, max(MOST_VALUES * n_trials // max(sum(rows_of_job.values()), 1), 1))
    kept = thinned(np.array(list(of_set.values())), most)
    number = {key: i for i, key in enumerate(of_set) if kept[i] > 0}
    tables = [
        _rows_of(data_of(name), output, columns, {at: i for (of, at), i in number.items() if of == name})
        for name, n in rows_of_job.items()
        if n
    ]
    rows = pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})
    return TrialRows(rows, {i: float(kept[i]) for i in number.values()}, len(of_set))


def _n_rows(data: JobData, output: str, columns: Sequence[str]) -> int:
    """Return the rows of an output; 0 if it lacks a column, or if every simulation of the round has failed."""
    with _damage_of(data):
        if output not in data.output_names or not set(columns) <= set(data.dataset("outputs", output).schema.names):
            return 0
        return data.n_rows(output)


def _rows_of(data: JobData, output: str, columns: Sequence[str], number: dict[str, int]) -> pa.Table:
    """Return the rows of sets, with the number of each set as its group."""
    numbers = np.array([number.get(identity, -1) for identity in data.parameters.ids().to_pylist()], np.int32)
    with _damage_of(data):
        # Not `data.rows`, which would keep a sample of each round.
        where = pc.field("group").isin(pa.array(np.flatnonzero(numbers >= 0), pa.int32()))
        wanted = Selection(where=where, columns=list(dict.fromkeys(("group", "replicate", *columns))))
        scan = data.scan(wanted, "outputs", output)
        rows = pa.Table.from_batches(scan.batches(), scan.schema)
    return rows.set_column(0, "group", pa.array(numbers[rows["group"].to_numpy()], pa.int32()))


@contextmanager
def _damage_of(data: JobData) -> Iterator[None]:
    """Raise CorruptRecord instead of what reading a damaged part raises."""
    try:
        yield
    except READING_FAULTS as fault:
        raise damage_of(data, fault) from fault
