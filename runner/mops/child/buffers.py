"""Hands finished simulations from a child process to its worker: as buffers, or as parts of large tasks.

A buffer is many simulations in one table, in one anonymous file. The worker reads it, and so does a later child if an
earlier one died or left a group unfinished. A part is a Parquet file without a name, with an output of finished groups:
so the rows of large results are copied once less, and the runner need not encode them. Runs in children: the standard
library, numpy and pyarrow only.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from mops.child.blocks import BlockRows, Output, Outputs, joined
from mops.child.channel import Channel, Message, anonymous_file
from mops.study.column_families import Columns, Families, join_columns
from mops.study.column_types import families_in
from mops.study.output_schema import narrowed
from mops.system.folders import nameless_file

if TYPE_CHECKING:
    from mops.parquet.output_file import OutputFile

FAILURE_BYTES = 500  # about what a failure takes in memory, without its message and traceback
LOSS_BYTES = 200  # about what a loss takes in memory
_ALIGN = 64  # Arrow's recommended alignment, so that readers map and need not copy
Tables = dict[str, pa.Table]
_Placed: TypeAlias = tuple[int, int, Output]  # with its group's position and its replicate


class Simulation(NamedTuple):
    """A good simulation: its group by position in the task, its replicate and seed, and what it returned."""

    position: int
    replicate: int
    seed: int
    outputs: Outputs


class GroupName(NamedTuple):
    """What rows say about their group: its number in the study, and its param_id."""

    number: int
    param_id: str


class BufferWriter:
    """Collects what a child has finished and hands it to the worker."""

    def __init__(self, channel: Channel, keep: list[str] | None, name: str):
        self._keep = keep  # the outputs that the study keeps; None: all
        self._channel, self._name = channel, name  # of the task's files and messages, which tells whose they are
        self._open: list[Simulation] = []
        self._files: PartFiles | None = None
        self._encoded: list[Simulation] = []  # in the files, without what they returned
        self._events: dict[str, list[Any]] = {"failures": [], "losses": [], "done": []}
        self._tracebacks: dict[str, int] = {}
        self.reference: Families | None = None
        self.bytes_open = 0
        self.bytes_total = 0
        self.kept_bytes = 0  # of all rows of the outputs that the study keeps
        self.groups_done = 0

    def finished(self, position: int, replicate: int, seed: int, outputs: Outputs) -> None:
        """Take what a good simulation returned."""
        self._open.append(Simulation(position, replicate, seed, outputs))
        for name, output in outputs.items():
            size = _size(output)
            self._count(size)
            if self._keep is None or name in self._keep:
                self.kept_bytes += size

    def failed(self, position: int, replicate: int | None, target: int | None, failure: dict[str, str]) -> None:
        """Take the failure of a simulation or of a target; failures with the same traceback share it."""
        traceback = failure["traceback"]
        size = FAILURE_BYTES + len(failure["message"]) + (len(traceback) if traceback not in self._tracebacks else 0)
        number = self._tracebacks.setdefault(traceback, len(self._tracebacks))
        what = {"position": position, "replicate": replicate, "target": target}
        self._events["failures"].append(failure | what | {"traceback": number})
        self._count(size)

    def scored(self, position: int, target: int, losses: dict[str, float]) -> None:
        """Take the losses of a target."""
        self._events["losses"].append([position, target, losses])
        self._count(LOSS_BYTES * len(losses))

    def _count(self, n_bytes: int) -> None:
        self.bytes_open += n_bytes
        self.bytes_total += n_bytes

    def done(self, position: int) -> None:
        """Record that this group is done."""
        self._events["done"].append(position)
        self.groups_done += 1

    @property
    def holds_whole_groups(self) -> bool:
        """Whether there are open rows, and all their groups are done."""
        return bool(self._open) and {simulation.position for simulation in self._open} <= {*self._events["done"]}

    def encode(self, groups: Mapping[int, GroupName], known: Callable[[str], Columns], folder: str | None) -> Families:
        """Encode the open rows, whose groups are all done, as Parquet until the next flush; return their families."""
        self._files = self._files or PartFiles(self._name, groups, known, folder)
        families = self._files.add(self._open, self._keep)
        self._encoded += [simulation._replace(outputs={}) for simulation in self._open]
        self._open, self.bytes_open = [], 0
        return families

    def flush(self) -> Families:
        """Hand over the results taken since the last call, if any; return the families of the values in buffers."""
        taken = [*self._encoded, *self._open]
        if not taken and not any(self._events.values()):
            return {}
        message: Message = {"kind": "results", "name": self._name, "reference": self.reference, **self._events}
        message["tracebacks"] = list(self._tracebacks)
        message["simulations"] = [[simulation.position, simulation.replicate] for simulation in taken]
        message["encoded"] = sorted({simulation.position for simulation in self._encoded})
        message["files"] = []
        for facts, file in self._files.finish() if self._files is not None else ():
            with file:  # in a separate message, because a message carries one descriptor
                self._channel.send({"kind": "file", "name": self._name}, file.fileno())
            message["files"].append(facts)
        send_tables(self._channel, message, self._kept(), self._name)
        self._open, self._encoded, self._files, self.bytes_open, self._tracebacks = [], [], None, 0, {}
        self._events = {"failures": [], "losses": [], "done": []}
        return narrowed({}, message["outputs"])

    def _kept(self) -> Iterator[tuple[int, int, Outputs]]:
        # All outputs of an unfinished group, because its targets may have to run in another child.
        done = set(self._events["done"])
        for position, replicate, _, outputs in self._open:
            if self._keep is not None and position in done:
                outputs = {name: outputs[name] for name in self._keep if name in outputs}
            yield position, replicate, outputs

    def end(self, seconds: float, replace_reason: str, replace_code: str, written: list[str]) -> None:
        """Tell the worker that this task has no further results."""
        reasons = {"replace_reason": replace_reason, "replace_code": replace_code}
        self._channel.send({"kind": "ended", "name": self._name, "seconds": seconds, "written": written, **reasons})


def _size(output: Output) -> int:
    if isinstance(output, BlockRows):
        return output.nbytes
    try:  # nbytes of a table looks into every buffer, which takes 7 us for four columns
        row_bits = sum(kind.bit_width for kind in output.schema.types)
    except ValueError:  # strings, lists: no fixed width
        return int(output.nbytes)
    return int(output.num_rows * row_bits // 8)


def send_tables(
    channel: Channel, message: Message, simulations: Iterable[tuple[int, int, Mapping[str, Output]]], name: str
) -> None:
    """Send a message with tables in an anonymous file; ``message["outputs"]`` lists the contents."""
    by_output: dict[str, list[_Placed]] = {}
    for position, replicate, outputs in simulations:
        for output_name, output in outputs.items():
            by_output.setdefault(output_name, []).append((position, replicate, output))
    fd = anonymous_file(name)
    try:
        # Buffered: the kernel writes at most 2 GiB at once, and a raw file would not write the rest.
        with os.fdopen(os.dup(fd), "wb") as buffered, pa.PythonFile(buffered, "w") as file:
            message["outputs"] = {output: list(_segments(file, rows)) for output, rows in by_output.items()}
        channel.send(message, fd)
    finally:
        os.close(fd)


def _segments(file: pa.NativeFile, simulations: list[_Placed]) -> Iterator[dict[str, Any]]:
    # An Arrow stream of one batch for each schema.
    by_schema: dict[pa.Schema, list[_Placed]] = {}
    for schema, group in groupby(simulations, lambda simulation: simulation[2].schema):
        by_schema.setdefault(schema, []).extend(group)  # types that change back and forth make only a few segments
    for schema, rows in by_schema.items():
        file.write(b"\0" * (-file.tell() % _ALIGN))
        start = file.tell()
        table = pa.concat_tables(joined(output for _, _, output in rows)).combine_chunks()
        with pa.ipc.new_stream(file, schema) as stream:
            stream.write_table(table)
        yield {
            "offset": start,
            "length": file.tell() - start,
            "simulations": [[position, replicate] for position, replicate, _ in rows],
            "rows": [output.num_rows for _, _, output in rows],
            "families": families_in(table),
        }


def map_buffer(fd: int) -> mmap.mmap | None:
    """Map a buffer's file and close its descriptor; None if it is empty. The last reader frees the memory."""
    try:
        size = os.fstat(fd).st_size
        return mmap.mmap(fd, size, prot=mmap.PROT_READ) if size else None
    finally:
        os.close(fd)


def read_segment(buffer: pa.Buffer, segment: dict[str, Any]) -> pa.Table:
    """Return a segment's table, without a copy."""
    return pa.ipc.open_stream(buffer.slice(segment["offset"], segment["length"])).read_all()


def tables_of(outputs: dict[str, list[dict[str, Any]]], fd: int) -> dict[tuple[int, int], Tables]:
    """Return each simulation's tables, by its group's position and its replicate."""
    mapped = map_buffer(fd)
    found: dict[tuple[int, int], Tables] = {}
    if mapped is None:
        return found
    buffer = pa.py_buffer(mapped)
    for name, segments in outputs.items():
        for segment in segments:
            table, start = read_segment(buffer, segment), 0
            for (position, replicate), rows in zip(segment["simulations"], segment["rows"], strict=True):
                found.setdefault((position, replicate), {})[name] = table.slice(start, rows)
                start += rows
    return found


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
    """Encodes the rows of a task's finished groups as Parquet: one part for each output."""

    def __init__(
        self,
        name: str,  # of files in memory
        groups: Mapping[int, GroupName],  # by position in the task
        known: Callable[[str], Columns],  # returns the families of an output's columns, as far as they are known
        folder: str | None,  # None: in memory
    ):
        from mops.parquet.output_file import OutputFile, StoredTypes  # noqa: PLC0415 - 2 MiB, which few children need

        self._groups = groups
        families: dict[str, Columns] = {}
        # These two do not hold this object: in a cycle, encoders would stay until Python's next collection of garbage.
        self._types = StoredTypes(lambda output: join_columns(known(output), families[output]))
        self._new_file = partial(OutputFile, partial(_NamelessFile, folder, name))
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
        from mops.study.groups import identified  # noqa: PLC0415 - as in __init__

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
        if output not in self._files:
            self._files[output] = self._new_file()
        stored, simulated = self._types.stored(output, table), np.stack([indices, replicates], axis=1)
        self._files[output].write(identified(stored, ids, codes, simulated, seeds, rows))
        return families

    def finish(self) -> Iterator[tuple[dict[str, Any], IO[bytes]]]:
        """Yield each file with its facts: those of :class:`mops.task.PartFile`."""
        for output, file in self._files.items():
            encoded = file.finish()
            encoded.content.file.flush()
            facts = {"rows": encoded.rows, "bytes": encoded.bytes, "digest": encoded.digest}
            families, row_bytes = self._families[output], self._row_bytes[output]
            yield {"output": output, **facts, "families": families, "row_bytes": row_bytes}, encoded.content.file
