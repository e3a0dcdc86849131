"""Groups that run in pieces: their rows wait on disk until the group is whole."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pyarrow as pa

from mops.attempt.partial_groups import PartialGroups
from mops.storage.backends.base import Spool
from mops.task import Failure, Loss, ResultBuffer, Segment, TaskResult

MIB = 1 << 20


def partial_groups(n_replicates: int, *, has_targets: bool = False) -> PartialGroups:
    return PartialGroups(lambda _: range(n_replicates), has_targets=has_targets, spool=Spool)


def piece(group: int, *replicates: int, size: int = 1000, **fields: object) -> TaskResult:
    content = np.full(size, replicates[0] if replicates else 0, np.uint8)
    part = ResultBuffer(pa.py_buffer(content), [Segment("out", 0, size, [(group, i) for i in replicates], [1])])
    given = {"buffers": [part] if replicates else []} | fields
    key = f"sim-{group}-{replicates}"
    return TaskResult((key,), frozenset(), 1.5, {"out": {}}, replicates=frozenset(replicates), **given)  # type: ignore[arg-type]


def failure(group: int, replicate: int | None, target: str | None = None) -> Failure:
    return Failure(group, replicate, 7, target, "error", "it raised", "Traceback: " + "x" * 8000, 1)


def add(pieces: PartialGroups, group: int, result: TaskResult) -> bool:
    return pieces.add(group, pieces.keep(result))


def test_a_group_is_whole_when_its_last_replicate_is_there():
    pieces = partial_groups(3)
    assert not add(pieces, 0, piece(0, 1))
    assert not add(pieces, 1, piece(1, 0, 1))
    assert add(pieces, 0, piece(0, 0, 2))
    whole = pieces.take(0)
    assert (whole.done, whole.seconds, whole.keys) == ({0}, 3.0, ("sim-0-(1,)", "sim-0-(0, 2)"))
    assert [part.segments[0].simulations for part in whole.buffers] == [[(0, 1)], [(0, 0), (0, 2)]]
    assert [part.buffer.to_pybytes() for part in whole.buffers] == [b"\1" * 1000, b"\0" * 1000]


def test_targets_get_the_rows_that_wait_on_disk_and_their_losses_join_the_group():
    pieces = partial_groups(2, has_targets=True)
    assert not add(pieces, 0, piece(0, 0))
    assert not pieces.targets_due(0)
    assert not add(pieces, 0, piece(0, 1))
    assert pieces.targets_due(0)
    assert [part.buffer.to_pybytes()[0] for part in pieces.results(0)] == [0, 1]
    loss = Loss(0, "t:f", "loss", 0.5, 2)
    scored = piece(0, losses=[loss])
    scored.done = frozenset({0})
    assert add(pieces, 0, scored)
    assert pieces.take(0).losses == [loss]


def test_a_failed_replicate_leaves_the_group_without_losses_and_a_failure_row_says_so():
    pieces = partial_groups(3, has_targets=True)
    add(pieces, 0, piece(0, 2, failures=[failure(0, 2)]))
    add(pieces, 0, piece(0, 0))
    assert add(pieces, 0, piece(0, 1, failures=[failure(0, 1)])), "a group with a failed simulation is not scored"
    assert not pieces.targets_due(0)
    assert [(row.replicate, row.target) for row in pieces.take(0).failures] == [(1, None), (2, None), (None, "*")]


def test_failures_of_replicates_and_of_targets_keep_the_study_order():
    pieces = partial_groups(2)
    add(pieces, 0, piece(0, 1, failures=[failure(0, 1)]))
    add(pieces, 0, piece(0, 0, failures=[failure(0, 0)]))
    assert [row.replicate for row in pieces.take(0).failures] == [0, 1]
    pieces = partial_groups(1, has_targets=True)
    add(pieces, 0, piece(0, 0))
    add(pieces, 0, piece(0, failures=[failure(0, None, "t:second"), failure(0, None, "t:first")]))
    assert [row.target for row in pieces.take(0).failures] == ["t:second", "t:first"]


def test_a_group_whose_first_replicate_failed_is_not_scored():
    pieces = partial_groups(2, has_targets=True)
    add(pieces, 0, piece(0, 0, failures=[failure(0, 0)]))
    assert add(pieces, 0, piece(0, 1)), "nothing is left to do: the group is not scored"
    assert not pieces.targets_due(0)


def test_a_piece_that_is_kept_holds_no_rows_in_memory():
    kept = partial_groups(1).keep(piece(0, 0, failures=[failure(0, 0)], losses=[Loss(0, "t:f", "loss", 0.5, 1)]))
    assert (kept.result.buffers, kept.result.failures, kept.result.losses) == ([], [], [])
    assert kept.failed


def test_a_piece_may_have_no_rows():
    pieces = partial_groups(3)
    add(pieces, 0, piece(0, 0))
    add(pieces, 0, piece(0, 1, buffers=[]))
    assert len(pieces.results(0)) == 1
    assert add(pieces, 0, piece(0, 2))
    assert len(pieces.take(0).buffers) == 2


def test_groups_may_have_different_numbers_of_replicates():
    pieces = PartialGroups({0: range(2), 1: range(1)}.__getitem__, has_targets=False, spool=Spool)
    assert add(pieces, 1, piece(1, 0))
    assert not add(pieces, 0, piece(0, 0))
    assert add(pieces, 0, piece(0, 1))


def test_half_done_groups_take_no_memory_for_results_and_failures():
    """No limit held for half-done long groups: 10 replicates of 1 MB in 280 groups used 2.8 GB."""
    pieces = partial_groups(10)
    add(pieces, 0, piece(0, 9))
    tracemalloc.start()
    try:
        for group in range(1, 51):
            for replicate in range(4):
                add(pieces, group, piece(group, replicate, size=MIB // 2))
            add(pieces, group, piece(group, 4, failures=[failure(group, 4) for _ in range(50)]))
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < MIB, "100 MiB of results and 20 MB of tracebacks wait"
    finally:
        tracemalloc.stop()
    for replicate in range(5, 10):
        whole = add(pieces, 50, piece(50, replicate))
    assert whole
    result = pieces.take(50)
    assert len(result.failures) == 50
    assert len(result.buffers) == 10


def test_half_done_groups_take_no_memory_for_prints_and_schemas():
    """The prints and a copy of the schema of each piece stayed in memory until the group was whole."""
    pieces = partial_groups(200)
    add(pieces, 0, piece(0, 0))
    tracemalloc.start()
    try:
        for replicate in range(1, 200):
            result = piece(0, replicate, prints=f"{replicate} " * 20_000, notes=["n" * 10_000 + str(replicate)])
            result.reference = {"out": {f"column {i} {replicate}": "boolean" for i in range(100)}}
            add(pieces, 0, result)
        del result
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < MIB
    finally:
        tracemalloc.stop()
    assert len(pieces.take(0).keys) == 200


def test_groups_that_are_taken_or_dropped_free_their_room_on_disk():
    pieces = partial_groups(1)
    kept = pieces.keep(piece(0, 0, size=MIB))
    pieces.drop(kept)
    pieces.drop(pieces.keep(piece(0)))  # without rows
    assert add(pieces, 1, piece(1, 0, size=MIB))
    pieces.take(1)
    assert pieces._shelf.file_bytes == 0
