"""``kill -9`` of a child process loses only its current simulation, which mops retries."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from contextlib import suppress

import pytest
from study_lab import Runner, StudyLab, betas, wait_for

from rows import rows_of
from soak import generator, repeats

KILLS = repeats(12)
ALLOWED = 12  # calls between two kills; the model holds later calls, so that the study outlasts all kills


def kill_one(runner: Runner, rng: random.Random) -> bool:
    """Kill a child. Return whether it was alive: a dead child may still be listed."""
    children = runner.children()
    with suppress(ProcessLookupError):
        if children:
            os.kill(rng.choice(children), signal.SIGKILL)
            return True
    return False


@pytest.mark.timeout(240)
def test_kills_of_children_change_no_row_and_are_reported(lab: StudyLab) -> None:
    lab.write("held:simulate", betas(160, sleep=0.005), n_replicates=2, targets=["scores:order"])
    rng = generator(20260715)
    runner = lab.submit(RETRIES=5, SLOTS=2, hold=20)
    for n in range(KILLS):
        # Some kills wait for a number of calls, so that simulations run; others come at any time. Every third kill
        # finds both children in a call, because a task that loses five children between simulations fails by design.
        before = len(runner.calls)
        more = ALLOWED + 2 if n % 3 == 2 else rng.choice([0, 0, 1, rng.randint(2, ALLOWED)])
        runner.hold_after(before + ALLOWED)
        wait_for(lambda least=before + more: len(runner.calls) >= max(least, 1), of=runner)
        time.sleep(rng.uniform(0, 0.3))
        wait_for(lambda: kill_one(runner, rng), of=runner)
    runner.let_go()
    assert runner.wait() == 0, runner.said
    assert lab.job().status().state == "succeeded"
    assert rows_of(lab.job()) == lab.serial()
    lab.assert_sound()
    said = " ".join(runner.said.split())  # lines may be wrapped
    assert re.search(
        r"(?i)warning:? job: crashed: group \d+ \([0-9a-f]{12}\) replicate \d ended with SIGKILL \(Killed\) "
        r"after .{1,20}, "
        r"probably because the system ran out of memory on .{1,99}; retrying in a new process \(try 2 of \d\)",
        said,
    ), runner.said


def test_a_crash_in_a_long_group_loses_only_its_simulation(lab: StudyLab) -> None:
    # 0.3 s is longer than a child buffers finished simulations.
    params = {"beta": 0.3, "sleep": 0.3, "crash_at_call": 4}
    lab.write("held:crashes_once", [params], n_replicates=6, targets=["scores:order"])
    runner = lab.run(SLOTS=1)
    calls = lab.called(runner)
    assert calls == {(0, replicate): 2 if replicate == 3 else 1 for replicate in range(6)}, runner.said
    assert rows_of(lab.job()) == lab.serial()  # so the target has read all six in order
