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


def test_after_the_first_few_whole_tracebacks_later_ones_lose_their_middle():
    tracebacks = Tracebacks(most_whole=2)
    texts = [f"{i} begins {'x' * 8000} ends {i}" for i in range(4)]
    short = "x" * 700  # as long as a shortened traceback
    found = [one.traceback for one in tracebacks.shared(failures(*texts, short, texts[1]))]
    assert found[:2] == texts[:2]
    assert found[4:] == [short, texts[1]]
    for i in (2, 3):
        assert found[i].startswith(f"{i} begins")
        assert found[i].endswith(f"ends {i}")
        assert "shortened" in found[i]
        assert len(found[i]) < 1000
