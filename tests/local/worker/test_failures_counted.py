"""Failures count in the bytes of a task like results, and their texts are bounded."""

from __future__ import annotations

from collections.abc import Iterator

from pool_lab import PoolLab

from mops.child.buffers import read_segment
from mops.task import TaskResult, failures_bytes

RAISES = """
def deep(n):
    if n:
        deep(n - 1)
    else:
        raise ValueError("x" * {message})

def run(params, seed):
    deep(20 + seed % 7)
"""


def test_a_repeated_traceback_is_sent_once(lab: PoolLab) -> None:
    """Regression: tracebacks did not count, although each of 1,000 replicates of each group had one of 10 KB."""
    result = lab.run(lab.pool(RAISES.format(message=10)), [{"a": 1}], n_replicates=1000)
    assert result.done == {0}
    assert len(result.failures) == 1000
    assert all("in deep" in failure.traceback for failure in result.failures)
    assert len({id(failure.traceback) for failure in result.failures}) <= 7
    assert result.nbytes == failures_bytes(result.failures) < 1_000_000


def test_a_task_of_failures_ends_at_its_limit_of_bytes(lab: PoolLab) -> None:
    """Regression: a task with only failures had no limit of bytes."""
    sets = [{"a": i} for i in range(50)]
    result = lab.run(lab.pool(RAISES.format(message=1500)), sets, n_replicates=10, bytes=100_000)
    assert 1 <= len(result.done) < 50
    assert result.nbytes < 200_000


def test_a_long_message_is_cut_in_the_child(lab: PoolLab) -> None:
    """A model can raise an exception with a message of 100 MB."""
    result = lab.run(lab.pool(RAISES.format(message=20_000_000)), [{"a": 1}])
    (failure,) = result.failures
    assert failure.message.startswith("ValueError: xxx")
    assert len(failure.message) <= 2_000
    assert len(failure.traceback) <= 8_000


def test_results_of_a_group_without_targets_are_not_held_until_it_is_done(lab: PoolLab) -> None:
    """Regression: a child kept every replicate of a split group, and of a group without targets."""
    code = (
        "import numpy as np\n\n"
        "def run(params, seed):\n"
        "    with open('/proc/self/statm') as file:\n"
        "        resident = int(file.read().split()[1]) * 4096\n"
        "    return {'resident': {'bytes': [resident]}, 'rows': {'x': np.ones(500_000)}}\n"
    )
    for fields in ({}, {"replicates": tuple(range(40))}):
        result = lab.run(lab.pool(code), [{"a": 1}], n_replicates=40, **fields)
        assert result.nbytes > 40 * 4_000_000
        resident = [n_bytes for rows in bytes_of(result) for n_bytes in rows]
        assert max(resident) - min(resident) < 80_000_000, "160 MB of results came by"


def bytes_of(result: TaskResult) -> Iterator[list[int]]:
    for part in result.parts:
        for segment in part.segments:
            if segment.output == "resident":
                yield read_segment(part.buffer, {"offset": segment.offset, "length": segment.length})[
                    "bytes"
                ].to_pylist()
