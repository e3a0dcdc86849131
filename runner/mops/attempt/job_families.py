"""The families of a job's columns, as its runner knows them: narrowed by each result, the same for all workers.

A child holds its task's results against what was known when the task was sent. What another task has fixed meanwhile
is seen here: groups whose values no longer fit run again, and the child refuses them by name, because it then knows.
So nothing runs again twice for the same reason. What is durable of it is in ``schema.json`` and in the commits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Set
from dataclasses import replace

import pyarrow as pa

from mops.child.buffers import read_segment
from mops.study.column_families import Columns, Families, Family, join_columns, join_families, misfits, news
from mops.study.column_types import families_in
from mops.task import ResultBuffer, Segment, TaskResult


class JobFamilies:
    """What is known of a job's columns. Used from several threads.

    Parameters
    ----------
    stored
        What ``schema.json`` and the commits of this job and its ancestors say; None: there was no good simulation.
    """

    def __init__(self, stored: Families | None):
        self._lock = threading.Lock()
        self._stored = stored or {}
        self._known = stored  # replaced, never changed: tasks that were sent hold what it was

    @property
    def known(self) -> Families | None:
        """What results must fit now; None before the first good simulation."""
        return self._known

    def of(self, output: str) -> Mapping[str, Family]:
        """Return what is known of one output's columns."""
        return (self._known or {}).get(output, {})

    def begin(self, reference: Families) -> None:
        """Take the reference schema, which is stored."""
        with self._lock:
            self._stored = join_families(reference, self._stored)
            self._known = self._stored

    def accept(self, result: TaskResult) -> tuple[TaskResult, str]:
        """Take in what a result's values fix; return it without those that do not fit, and why (empty: all do).

        Of whole groups, those with such values are taken out, and those that may have failed only because of them: the
        child held them against values that do not count now. A piece of a group is taken out as a whole.
        """
        misfitting: dict[int, str] = {}
        with self._lock:
            for part in result.parts:
                part.segments[:] = [self._taken(part, segment, misfitting) for segment in part.segments]
        if not misfitting:
            return result, ""
        why = next(iter(misfitting.values()))
        if result.replicates:
            return replace(result, replicates=frozenset(), parts=[], failures=[], losses=[]), why
        refused = {failure.group for failure in result.failures if failure.reason == "invalid_output"}
        return _without(result, misfitting.keys() | refused), why

    def unstored(self, found: Families) -> Families:
        """Return what these values fix beyond what is durable."""
        return news(self._stored, found)

    def store(self, families: Families) -> None:
        """Note that this is durable."""
        with self._lock:
            self._stored = join_families(self._stored, families)

    def _taken(self, part: ResultBuffer, segment: Segment, misfitting: dict[int, str]) -> Segment:
        known = self.of(segment.output)
        if not misfits(known, segment.families):
            self._narrow(segment.output, segment.families)
            return segment
        fitting: Columns = {}
        for group, table in _simulations(part, segment):
            found = families_in(table)
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


def _simulations(part: ResultBuffer, segment: Segment) -> Iterator[tuple[int, pa.Table]]:
    """Yield the group and the rows of each simulation."""
    table, start = read_segment(part.buffer, {"offset": segment.offset, "length": segment.length}), 0
    for (group, _), rows in zip(segment.simulations, segment.rows, strict=True):
        yield group, table.slice(start, rows)
        start += rows


def _without(result: TaskResult, groups: Set[int]) -> TaskResult:
    return replace(
        result,
        done=result.done - groups,
        failures=[failure for failure in result.failures if failure.group not in groups],
        losses=[loss for loss in result.losses if loss.group not in groups],
    )
