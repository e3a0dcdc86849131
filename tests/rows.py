"""The rows of a job, and those of the same study in one plain process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mops.jobs.job import Job
from programs import environment
from warm import warm

SERIAL = Path(__file__).with_name("serial.py")
REPLICATES = [("group", "ascending"), ("replicate", "ascending")]
LOSSES = [("group", "ascending"), ("target", "ascending"), ("name", "ascending")]


@dataclass
class Rows:
    """The sorted results of a job or of the serial run: outputs by name, and losses."""

    outputs: dict[str, pa.Table]
    losses: pa.Table

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Rows)
        same = self.outputs.keys() == other.outputs.keys()
        return same and all(t.equals(other.outputs[n]) for n, t in self.outputs.items()) and self.losses == other.losses

    def without(self, *groups: int) -> Rows:
        """Return the rows of all other groups."""
        keep = pc.invert(pc.field("group").isin(list(groups)))
        return Rows({name: table.filter(keep) for name, table in self.outputs.items()}, self.losses.filter(keep))


def rows_of(job: Job) -> Rows:
    """Return a job's committed rows."""
    outputs = {name: _sorted(job.outputs(name).to_arrow(), REPLICATES) for name in job.output_names()}
    return Rows(outputs, _sorted(job.losses().to_arrow(), LOSSES))


def serial_rows(study: Path, folder: Path, **variables: str) -> Rows:
    """Run a study in one plain process, which writes its tables to a folder."""
    folder.mkdir(exist_ok=True)
    command = [str(SERIAL), str(study.parent), str(study), str(folder)]
    code, _, err = warm().run(command, environment() | variables, folder, timeout_s=90)
    assert code == 0, err
    tables = {path.stem: pq.read_table(path) for path in folder.glob("*.parquet")}
    losses = _sorted(tables.pop("losses"), LOSSES)
    return Rows({name: _sorted(table, REPLICATES) for name, table in tables.items()}, losses)


def _sorted(table: pa.Table, request: list[tuple[str, str]]) -> pa.Table:
    # The storage chooses widths and nullability. Arrow's sort is stable, so the order within a table counts.
    wide = {pa.int32(): pa.int64(), pa.float32(): pa.float64(), pa.large_string(): pa.string()}
    fields = [pa.field(field.name, wide.get(field.type, field.type)) for field in table.schema]
    return table.take(pc.sort_indices(table, request)).cast(pa.schema(fields)).combine_chunks()
