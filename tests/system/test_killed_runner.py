"""``kill -9`` of a runner costs what was not committed, and nothing else."""

from __future__ import annotations

import random
import signal
import time

import pytest
from study_lab import Lab, Runner, betas, rows_of, wait_for

from mops.storage.log import Claim

KILLS = 20
MOST_CALLS = 20
CALLS_AFTER = 15
"""Calls of the model that an attempt may make after the moment was chosen: so no attempt can finish the job."""
GONE_SECONDS = 3.0


@pytest.mark.timeout(240)
def test_twenty_kills_of_a_runner_lose_nothing_and_repeat_nothing(lab: Lab) -> None:
    n_groups = (MOST_CALLS + CALLS_AFTER + 2) * KILLS // 2 + 40
    lab.write("held:simulate", betas(n_groups, sleep=0.004), n_replicates=2, targets=["scores:order"])
    rng = random.Random(20260714)
    whole_group = [True, False] * (KILLS // 2)
    rng.shuffle(whole_group)
    committed: list[int] = []
    for whole in whole_group:
        n_calls = rng.choice([None, None, 0, rng.randint(1, MOST_CALLS), rng.randint(1, MOST_CALLS)])
        runner = start(lab, rng, (n_calls or 0) + CALLS_AFTER)
        wait_for_the_moment(runner, rng, n_calls)
        runner.signal(signal.SIGKILL, whole_group=whole)
        assert runner.wait() == -signal.SIGKILL, runner.said
        lab.assert_nothing_lives(runner, GONE_SECONDS)
        assert not {group for group, _ in lab.called(runner)} & set(committed), "a committed group ran again"
        committed = list(lab.view().committed) if lab.exists() else []
    assert len(committed) < n_groups
    last = lab.resume()
    assert last.wait() == 0, last.said
    assert not {group for group, _ in lab.called(last)} & set(committed)
    assert rows_of(lab.job()) == lab.serial()
    lab.assert_sound()
    claims = sum(isinstance(record, Claim) for record in lab.records())
    assert claims > KILLS // 2, "most kills should have hit an attempt that was at work"
    assert committed, "and some of them after a commit"


def start(lab: Lab, rng: random.Random, hold: int) -> Runner:
    settings = {"CHECKPOINT_SECONDS": rng.choice([0, 0, 1]), "BATCH_SIZE": rng.choice([4, 200]), "hold": hold}
    return lab.resume(**settings) if lab.exists() else lab.submit(**settings)


def wait_for_the_moment(runner: Runner, rng: random.Random, n_calls: int | None) -> None:
    """Wait until the model was called so often; None: a time after the start, whatever is going on then."""
    if n_calls is None:
        time.sleep(rng.uniform(0, 2.5))
        return
    wait_for(lambda: len(runner.calls) >= n_calls, of=runner)
    time.sleep(rng.uniform(0, 0.1))


def test_a_submit_killed_before_the_job_stood_can_be_repeated(lab: Lab) -> None:
    lab.write("counted:simulate", betas(3))
    lab.run()
    for path in sorted(lab.storage.joinpath("jobs", "job").rglob("*"), reverse=True):
        if path.name != "study.json":  # the first thing that a submit writes
            path.unlink() if path.is_file() else path.rmdir()
    lab.run()
    assert lab.job().status().state == "succeeded"
    lab.write("counted:simulate", betas(4))
    again = lab.submit()
    assert again.wait() == 2
    assert "there is a job 'job' already" in again.said
