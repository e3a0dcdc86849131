"""Simulations of other jobs are found by parameter set and seed, exactly and in bounded memory."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mops.jobs import reuse
from mops.jobs.reuse import Refused, match
from mops.study.groups import GroupChunk


class Memory(io.BytesIO):
    """A file in memory, as the encoder writes it."""


@dataclass
class Sets:
    """Parameter sets with their seeds, in chunks of three."""

    sets: Sequence[tuple[str, list[int]]]

    def pieces(self) -> Iterator[GroupChunk]:
        for start in range(0, len(self.sets), 3):
            some = self.sets[start : start + 3]
            ids = pa.array([identity for identity, _ in some])
            seeds = np.array([0, *(seed for _, seeds in some for seed in seeds)], np.uint64)
            offsets = np.cumsum([1, *(len(seeds) for _, seeds in some)])
            yield GroupChunk(start, ids, ids, seeds, offsets)


@dataclass
class Job:
    """A job with simulations."""

    name: str
    groups: Sets
    stored: Any
    first: list[int]
    failed: int = -1

    @property
    def record(self) -> Any:
        return SimpleNamespace(job=self.name, id="")

    @property
    def view(self) -> Any:
        return SimpleNamespace(k=1, end=SimpleNamespace(nonce="nonce"))

    def has(self, group: int, replicates: Any) -> Any:
        return (replicates >= self.first[group]) & (replicates != self.failed)


SETS = st.lists(
    st.tuples(st.sampled_from("abcdefgh"), st.lists(st.integers(0, 5), min_size=1, unique=True)),
    min_size=1,
    unique_by=lambda one: one[0],
)


@st.composite
def jobs(draw: st.DrawFn) -> list[Job]:
    found = []
    for number, sets in enumerate(draw(st.lists(SETS, max_size=3))):
        stored = np.array(draw(st.lists(st.booleans(), min_size=len(sets), max_size=len(sets))), np.bool_)
        first = draw(st.lists(st.integers(0, 2), min_size=len(sets), max_size=len(sets)))
        found.append(Job(f"job{number}", Sets(sets), stored, first, draw(st.integers(-1, 2))))
    return found


def expected(sets: Sequence[tuple[str, list[int]]], offers: Sequence[Job]) -> list[tuple[Any, ...]]:
    rows = []
    for group, (identity, seeds) in enumerate(sets):
        for replicate, seed in enumerate(seeds):
            found = (
                (group, replicate, job.name, theirs, n)
                for job in offers
                for theirs, (other, others) in enumerate(job.groups.sets)
                for n, one in enumerate(others)
                if (other, one) == (identity, seed)
                and job.stored[theirs]
                and n >= job.first[theirs]
                and n != job.failed
            )
            rows += [next(found, None)]
    return [row for row in rows if row is not None]


@given(sets=SETS, offers=jobs(), at_once=st.integers(1, 10))
def test_each_simulation_comes_from_the_first_job_that_has_it(
    sets: list[tuple[str, list[int]]], offers: list[Job], at_once: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reuse, "_GROUPS_AT_ONCE", at_once)
        found = match(Sets(sets).pieces(), offers, Memory)  # type: ignore[arg-type]
    wanted = expected(sets, offers)
    if found.table is None:
        assert wanted == []
        return
    table = pq.read_table(io.BytesIO(found.table.content.getvalue()))  # type: ignore[attr-defined]
    assert [tuple(row.values()) for row in table.to_pylist()] == wanted
    assert {one.job: one.simulations for one in found.reuse} == {
        job.name: n for job in offers if (n := sum(row[2] == job.name for row in wanted))
    }


@given(sets=SETS, offers=jobs(), refused=jobs(), at_once=st.integers(1, 10))
def test_the_refused_job_has_what_no_other_job_offers(
    sets: list[tuple[str, list[int]]], offers: list[Job], refused: list[Job], at_once: int
) -> None:
    looked = Refused(refused)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reuse, "_GROUPS_AT_ONCE", at_once)
        found = match(Sets(sets).pieces(), offers, Memory, looked)  # type: ignore[arg-type]
    assert (found.table is None) == (expected(sets, offers) == [])
    offered = {row[:2] for row in expected(sets, offers)}
    lost = {id(job): sum(row[:2] not in offered for row in expected(sets, [job])) for job in refused}
    assert looked.n_lost == (lost[id(looked.source)] if looked.source is not None else 0)
    assert looked.source is None or looked.n_lost


class Read(Sets):
    """Parameter sets that count how often they are read."""

    n_reads = 0

    def pieces(self) -> Iterator[GroupChunk]:
        self.n_reads += 1
        return super().pieces()


def refused_jobs(sets: Sequence[tuple[str, list[int]]]) -> list[Job]:
    return [Job(f"old{n}", Read([one]), np.ones(1, np.bool_), [0]) for n, one in enumerate(sets)]


def looked_at(refused: list[Job], monkeypatch: pytest.MonkeyPatch) -> tuple[Refused, list[int]]:
    """Match a study of three batches with one offer for the first; return how often each refused job was read."""
    monkeypatch.setattr(reuse, "_GROUPS_AT_ONCE", 3)
    looked = Refused(refused)  # type: ignore[arg-type]
    offers = [Job("offer", Sets([(name, [1]) for name in "abc"]), np.ones(3, np.bool_), [0] * 3)]
    match(Sets([(name, [1]) for name in "abcdefghi"]).pieces(), offers, Memory, looked)  # type: ignore[arg-type]
    return looked, [job.groups.n_reads for job in refused]  # type: ignore[attr-defined]


def test_only_a_few_refused_jobs_are_read_once_if_none_has_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: one warning read every refused job, for each batch."""
    looked, n_reads = looked_at(refused_jobs([("z", [1])] * 7), monkeypatch)
    assert (looked.source, n_reads) == (None, [1, 1, 1, 1, 1, 0, 0])


def test_later_batches_read_only_the_refused_job_that_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = refused_jobs([("z", [1]), ("f", [1]), ("d", [1])])
    looked, n_reads = looked_at(refused, monkeypatch)
    assert (looked.source, looked.n_lost, n_reads) == (refused[1], 1, [1, 2, 0])
