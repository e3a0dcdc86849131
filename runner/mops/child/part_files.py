"""Encodes the rows of a task's finished groups as Parquet: one file without a name for each output.

So the rows of large results are copied once less, and the runner need not encode them. Runs in children: the standard
library, numpy and pyarrow only; Parquet is imported only where a task returns enough rows (child/task_run.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from mops.child.blocks import Output, joined
from mops.child.buffers import GroupName, Simulation
from mops.child.channel import anonymous_file
from mops.parquet.output_file import OutputFile, StoredTypes
from mops.study.column_families import Columns, Families, join_columns
from mops.study.column_types import families_in
from mops.study.groups import identity_columns, with_identity
from mops.system.folders import nameless_file


class _NamelessFile:
    """The content of a file without a name."""

    def __init__(self, folder: str | None, name: str):
        # In a folder, so that the runner can link it; else, or if the folder can have no such files, in memory.
        descriptor = None if folder is None else nameless_file(Path(folder))
        descriptor = anonymous_file(name) if descriptor is None else descriptor
        self.file: IO[bytes] = os.fdopen(descriptor, "w+b")

    def write(self, data: Any) -> None:
        """Add to the content."""
        self.file.write(data)

    def opened(self) -> pa.NativeFile:
        """Return the content as a file for reading at any position."""
        self.file.seek(0)
        return pa.PythonFile(self.file, mode="r")


class PartFiles:
    """The files of one task."""

    def __init__(
        self,
        name: str,  # of files in memory
        groups: Mapping[int, GroupName],  # by position in the task
        known: Callable[[str], Columns],  # returns the families of an output's columns, as far as they are known
        folder: str | None,  # None: in memory
    ):
        self._groups = groups
        families: dict[str, Columns] = {}
        # These two do not hold this object: in a cycle, encoders would stay until Python's next collection of garbage.
        self._types = StoredTypes(lambda output: join_columns(known(output), families[output]))
        self._content = partial(_NamelessFile, folder, name)
        self._families = families
        self._files: dict[str, OutputFile[_NamelessFile]] = {}
        self._row_bytes: dict[str, int] = {}

    def add(self, simulations: Sequence[Simulation], outputs: Sequence[str] | None) -> Families:
        """Encode the rows of simulations, of these outputs or of all; return the families of their values."""
        names = {name for simulation in simulations for name in simulation.outputs} if outputs is None else outputs
        found: Families = {}
        for output in names:
            pairs = [(each, each.outputs[output]) for each in simulations if output in each.outputs]
            for _, same in groupby(pairs, lambda pair: pair[1].schema):
                found[output] = join_columns(found.get(output, {}), self._write(output, list(same)))
        return found

    def _write(self, output: str, pairs: list[tuple[Simulation, Output]]) -> Columns:
        simulations, outputs = zip(*pairs, strict=True)
        table = pa.concat_tables(joined(outputs))
        families = families_in(table)
        self._families[output] = join_columns(self._families.get(output, {}), families)
        self._row_bytes[output] = self._row_bytes.get(output, 0) + table.nbytes
        positions, codes = np.unique([simulation.position for simulation in simulations], return_inverse=True)
        groups = [self._groups[position] for position in positions.tolist()]
        indices = np.array([group.number for group in groups])[codes]
        replicates = np.array([simulation.replicate for simulation in simulations])
        seeds = np.array([simulation.seed for simulation in simulations], np.uint64)
        ids = pa.array([group.param_id for group in groups], pa.string())
        rows = [one.num_rows for one in outputs]
        identity = identity_columns(ids, codes, np.stack([indices, replicates], axis=1), seeds, rows)
        if output not in self._files:
            self._files[output] = OutputFile(self._content)
        self._files[output].write(with_identity(self._types.stored(output, table), identity))
        return families

    def finish(self) -> Iterator[tuple[dict[str, Any], IO[bytes]]]:
        """Yield each file with its facts: those of :class:`mops.task.PartFile`."""
        for output, file in self._files.items():
            encoded = file.finish()
            encoded.content.file.flush()
            facts = {"rows": encoded.rows, "bytes": encoded.bytes, "digest": encoded.digest}
            families, row_bytes = self._families[output], self._row_bytes[output]
            yield {"output": output, **facts, "families": families, "row_bytes": row_bytes}, encoded.content.file
