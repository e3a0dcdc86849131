"""``kill -9`` of a runner loses only uncommitted work."""

from __future__ import annotations

import random
import signal
import time

import pytest
from study_lab import Runner, StudyLab, betas, wait_for

from mops.storage.joblog.records import Claim
from rows import rows_of
from soak import generator, repeats

KILLS = repeats(20)
SEED = 20260714
MOST_CALLS = 20
MOST_COMMITS = 8
CALLS_AFTER = 15
"""An attempt makes at most MOST_CALLS + CALLS_AFTER calls of the model, so no killed attempt completes the job."""


@pytest.mark.timeout(240)
def test_kills_of_a_runner_lose_nothing_and_repeat_nothing(lab: StudyLab) -> None:
    n_groups = (MOST_CALLS + CALLS_AFTER + 2) * KILLS // 2 + 40
    lab.write("held:simulate", betas(n_groups, sleep=0.004), n_replicates=2, targets=["scores:order"])
    rng = generator(SEED)
    moments = (["any time", "calls", "commits"] * KILLS)[:KILLS]
    whole_group = ([True, False] * KILLS)[:KILLS]
    rng.shuffle(moments)
    rng.shuffle(whole_group)
    committed: set[int] = set()
    for moment, whole in zip(moments, whole_group, strict=True):
        runner = start(lab, rng, moment)
        wait_for_the_moment(lab, runner, rng, moment, len(committed))
        runner.signal(signal.SIGKILL, whole_group=whole)
        assert runner.wait() == -signal.SIGKILL, runner.said
        lab.assert_nothing_lives(runner)
        assert not {group for group, _ in lab.called(runner)} & committed, "a committed group ran again"
        committed = set(lab.view().committed) if lab.exists() else set()
    assert KILLS // 3 < len(committed) < n_groups
    last = lab.resume(take_over=True)
    assert last.wait() == 0, last.said
    assert not {group for group, _ in lab.called(last)} & committed
    assert rows_of(lab.job()) == lab.serial()
    lab.assert_sound()
    claims = sum(isinstance(record, Claim) for record in lab.records())
    assert claims > KILLS - moments.count("any time")


def start(lab: StudyLab, rng: random.Random, moment: str) -> Runner:
    seconds = 0 if moment == "commits" else rng.choice([0, 1])
    settings = {"CHECKPOINT_SECONDS": seconds, "BATCH_SIZE": rng.choice([4, 200]), "hold": MOST_CALLS + CALLS_AFTER}
    # --take-over, because a runner killed between its claim and its first live record counts as running for a while.
    return lab.resume(take_over=True, **settings) if lab.exists() else lab.submit(**settings)


def wait_for_the_moment(lab: StudyLab, runner: Runner, rng: random.Random, moment: str, committed: int) -> None:
    """Wait for the moment of the kill. The runner may be anywhere in its work, but it has not finished."""
    if moment == "any time":
        time.sleep(rng.uniform(0, 2.5))
        return
    least = rng.randint(1, MOST_CALLS if moment == "calls" else MOST_COMMITS)
    if moment == "calls":
        wait_for(lambda: len(runner.calls) >= least, of=runner)
    else:
        wait_for(lambda: lab.exists() and len(lab.view().committed) >= committed + least, of=runner)
    time.sleep(rng.uniform(0, 0.1))
