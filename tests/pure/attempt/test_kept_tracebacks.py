"""The tracebacks of an attempt's failures."""

from __future__ import annotations

from mops.attempt.results import Tracebacks
from mops.task import Failure, failures_bytes


def failures(*texts: str) -> list[Failure]:
    return [Failure(0, i, i, None, "error", "no", "".join(list(text)), 1) for i, text in enumerate(texts)]


def test_equal_tracebacks_share_one_string():
    tracebacks = Tracebacks()
    first, second = (tracebacks.shared(failures("x" * 8000, "y" * 8000)) for _ in range(2))
    assert [one.traceback for one in first] == ["x" * 8000, "y" * 8000]
    assert all(one.traceback is other.traceback for one, other in zip(first, second, strict=True))
    assert failures_bytes([*first, *second] * 100) < 16_000 + 400 * 1000, "each text counts once"
