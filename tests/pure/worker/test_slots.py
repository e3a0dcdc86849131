"""Parts of a worker, in whole numbers."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from mops.worker.slots import fits

parts = st.lists(st.integers(1, 64).flatmap(lambda n: st.tuples(st.integers(0, n + 1), st.just(n))), max_size=6)


@given(parts)
def test_parts_fit_if_they_add_up_to_at_most_the_whole_worker(of: list[tuple[int, int]]) -> None:
    assert fits(of) == (sum(Fraction(k, n) for k, n in of) <= 1)
