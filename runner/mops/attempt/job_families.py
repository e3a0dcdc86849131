"""The families of a job's columns. Each result narrows them, and all workers get the same ones.

A child process checks the results of its task against the families that were known when the task was sent. The runner
checks them against what other tasks have fixed meanwhile. Groups that no longer fit run again, and the child process
then refuses them by name, because it knows the narrower families. So nothing runs again twice for the same reason.
``schema.json`` and the commits hold the durable families.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace

from mops.child.buffers import read_segment
from mops.study.column_families import Columns, Families, Family, join_columns, join_families, misfits, news
from mops.study.column_types import families_in
from mops.task import (
    ResultBuffer,
    Segment,
    TaskResult,
    without_groups,
    without_work,
)


class JobFamilies:
    """The families of a job's columns. Thread-safe."""

    # ``known``: of this job and its sources; None: no simulation was good. ``stored``: by this job's log, which names
    # the families of its rows although the logs of its sources may name them too: a reader may not have those.
    def __init__(self, known: Families | None, stored: Families | None):
        self._lock = threading.Lock()
        self._stored = stored or {}
        self._known = known  # replaced and never changed, because tasks that were sent hold it

    @property
    def known(self) -> Families | None:
        """The families that results must fit now; None before the first good simulation."""
        return self._known

    def of(self, output: str) -> Mapping[str, Family]:
        """Return the families of one output's columns."""
        return (self._known or {}).get(output, {})

    def set_reference(self, reference: Families) -> None:
        """Start from the reference schema, which is stored."""
        with self._lock:
            self._stored = join_families(reference, self._stored)
            self._known = join_families(reference, self._known or {})

    def accept(self, result: TaskResult) -> tuple[TaskResult, str]:
        """Narrow the families by a result; return the result without what does not fit, and the first misfit, or ''."""
        misfitting: dict[int, str] = {}
        with self._lock:
            for file in result.files:
                if wrong := misfits(self.of(file.output), file.families):
                    misfitting |= dict.fromkeys(file.groups, f"output {file.output!r}, column {wrong[0]!r}")
                else:
                    self._narrow(file.output, file.families)
            for each in result.buffers:
                each.segments[:] = [self._accept_segment(each, segment, misfitting) for segment in each.segments]
        if not misfitting:
            return result, ""
        misfit = next(iter(misfitting.values()))
        if result.replicates:
            return without_work(result), misfit
        # The child process may have checked these groups against the values that do not fit.
        refused = {failure.group for failure in result.failures if failure.reason == "invalid_output"}
        return without_groups(result, misfitting.keys() | refused), misfit

    def unstored(self, found: Families) -> Families:
        """Return what is not durable yet of the families of these columns, for the commit of their rows."""
        # Of all that is known of the columns, because their parts have types for that: integers are stored as floats if
        # another result, or a source, has floats. With the family "integers" a reader would find no value in floats.
        return news(self._stored, join_families(found, {output: self.of(output) for output in found}))

    def store(self, families: Families) -> None:
        """Note that these families are durable."""
        with self._lock:
            self._stored = join_families(self._stored, families)

    def _accept_segment(self, held: ResultBuffer, segment: Segment, misfitting: dict[int, str]) -> Segment:
        known = self.of(segment.output)
        if not misfits(known, segment.families):
            self._narrow(segment.output, segment.families)
            return segment
        fitting: Columns = {}
        table, start = read_segment(held.buffer, {"offset": segment.offset, "length": segment.length}), 0
        for (group, _), rows in zip(segment.simulations, segment.rows, strict=True):
            found = families_in(table.slice(start, rows))
            start += rows
            if wrong := misfits(self.of(segment.output), found):
                misfitting[group] = f"output {segment.output!r}, column {wrong[0]!r}"
            else:
                fitting = join_columns(fitting, found)
                self._narrow(segment.output, found)
        return replace(segment, families=fitting)

    def _narrow(self, output: str, found: Columns) -> None:
        known = self.of(output)
        narrowed = join_columns(known, found)
        if narrowed != known:
            self._known = {**(self._known or {}), output: narrowed}
