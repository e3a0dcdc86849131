"""Parts of a worker, in whole numbers, and what wakes the tasks that wait for them."""

from __future__ import annotations

import threading
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from mops.worker.slots import PoolSlots, WorkerSlots, fits
from waiting import until

parts = st.lists(st.integers(1, 64).flatmap(lambda n: st.tuples(st.integers(0, n + 1), st.just(n))), max_size=6)


@given(parts)
def test_parts_fit_if_they_add_up_to_at_most_the_whole_worker(of: list[tuple[int, int]]) -> None:
    assert fits(of) == (sum(Fraction(k, n) for k, n in of) <= 1)


def test_only_what_may_free_memory_wakes_a_task_that_waits_for_memory() -> None:
    """Regression: each start and end of another task woke it, and it measured all processes again."""
    worker = WorkerSlots()
    pool = PoolSlots(2, worker)
    waiter = threading.Thread(target=worker.await_freed, args=(60.0,))
    waiter.start()
    until(lambda: worker._freed._waiters)
    for n in (1, 2):
        with pool.use(alone=False, only_targets=False):
            pool.limit(n)
    waiter.join(0.1)
    assert waiter.is_alive()
    pool.stop()
    waiter.join(30.0)
    assert not waiter.is_alive()
