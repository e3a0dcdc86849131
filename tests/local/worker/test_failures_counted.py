"""Failures count in the bytes of a task like results, and their texts are bounded."""

from __future__ import annotations

from pool_lab import PoolLab, values

from mops.task import failures_bytes

WARM_CHILDREN = True
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
        resident = [n_bytes for (n_bytes,) in values(result, "bytes", "resident").values()]
        assert len(resident) == 40
        assert max(resident) - min(resident) < 80_000_000, "160 MB of results came by"


HOSTILE = """
class Hostile(PermissionError):
    __cause__ = __notes__ = property(lambda self: 1 / 0)
    def __str__(self):
        raise SystemExit("of the text")

def run(params, seed):
    if params["kind"] == "bytes":
        raise SyntaxError("bad token", ("deck.inp", 3, 5, b"line of the deck\\n"))
    if params["kind"] == "file":
        raise PermissionError(13, "denied", "\\0")
    if params["kind"] == "hostile":
        raise Hostile(13, "denied", object())
    return {"pid": [__import__("os").getpid()]}

def score(params, replicates):
    if params["kind"] == "good":
        raise Hostile(13, "denied", object())
    return 1.0
"""


def test_an_exception_that_cannot_be_described_is_an_error_and_no_crash(lab: PoolLab) -> None:
    """Regression: the text of the exception ended the child process, so that the failure was `crashed` in two tries."""
    kinds = ["good", "bytes", "file", "hostile"]
    result = lab.run(lab.pool(HOSTILE, targets=("model:score",)), [{"kind": kind} for kind in kinds])
    failures = {(failure.group, failure.target): failure for failure in result.failures if failure.target != "*"}
    assert [(key, failure.reason, failure.attempts) for key, failure in sorted(failures.items(), key=str)] == [
        ((0, "model:score"), "error", 1),
        *(((i, None), "error", 1) for i in (1, 2, 3)),
    ]
    assert failures[1, None].message == "SyntaxError: bad token (deck.inp, line 3)"
    assert failures[3, None].message == "Hostile (its text cannot be written)"
    assert "in run" in failures[3, None].traceback
    assert failures[0, "model:score"].message.startswith("Hostile (its text cannot be written)\nthe target got params")
