"""Which time counts against the limits of a simulation, by a clock that the test sets."""

from __future__ import annotations

import math
import os

from clocks import Clock
from mops.child.channel import Running, Step
from mops.worker.limits import LimitWatch

STEP = Step(0, 0)


class Watched:
    """A watch with a limit of 10 s, at which the worker looks every quarter of a second."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.watch = LimitWatch(os.getpid(), 10.0, clock=self.clock)

    def passes(self, seconds: float) -> None:
        for _ in range(int(seconds / 0.25)):
            self.clock.now += 0.25
            self.watch.look()

    def stands_still(self, seconds: float) -> None:
        self.clock.now += seconds + 0.25
        self.watch.look()


def test_time_counts_from_the_start_of_the_step() -> None:
    one = Watched()
    one.passes(60.0)
    began = one.clock()
    one.passes(10.0)
    assert one.watch.breach(Running(STEP, began)) is None
    one.passes(0.25)
    assert one.watch.breach(Running(STEP, began)) == "timeout"


def test_a_pause_does_not_count() -> None:
    """Regression: a job whose processes were all stopped for a while recorded good simulations as `timeout`."""
    one = Watched()
    began = one.clock()
    for seconds in (8.0, 3600.0):
        one.passes(4.0)
        one.stands_still(seconds)
    assert one.watch.breach(Running(STEP, began)) is None
    assert one.watch.seconds_since(began) == 9.0
    one.passes(2.0)
    assert one.watch.breach(Running(STEP, began)) == "timeout"


def test_a_pause_before_a_step_does_not_prolong_it() -> None:
    one = Watched()
    one.stands_still(3600.0)
    began = one.clock()
    one.passes(10.25)
    assert one.watch.breach(Running(STEP, began)) == "timeout"


def test_a_step_that_began_in_a_gap_has_run_for_no_less_than_nothing() -> None:
    one = Watched()
    began = one.clock() + 1.0
    one.stands_still(3600.0)
    assert one.watch.seconds_since(began) == 0.0


def test_a_busy_worker_has_no_pause() -> None:
    one = Watched()
    began = one.clock()
    for _ in range(11):
        one.clock.now += 1.0
        one.watch.look()
    assert one.watch.breach(Running(STEP, began)) == "timeout"


def test_only_the_time_of_the_model_counts() -> None:
    """Regression: a model that returned in time was a `timeout` while mops copied its result or handed it over."""
    one = Watched()
    began = one.clock()
    one.passes(9.0)
    returned_at = one.clock()
    one.passes(50.0)
    assert one.watch.breach(Running(STEP, began, returned_at)) is None
    assert one.watch.breach(Running(STEP, began, math.inf)) is None
    one.passes(10.25)
    assert one.watch.breach(Running(STEP, began, returned_at)) == "reading", "a lazy result runs code of the model"
    assert one.watch.breach(Running(STEP, began, math.inf)) is None
