"""The pages of a job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mops.jobs.listing import Listed
from mops.jobs.runners import phase_text, with_runner
from mops.jobs.status import Status
from mops.jobs.summary import TONES, Reason, summary_of
from mops.k8s.job_phase import Phase
from mops.storage.progress_record import BestLoss, Progress, RunnerError
from mops.ui.reading import GAP, JobList, JobNow, ListQuery, joined_tail
from mops.ui.views import ACTIONS, actions_for, job_view, jobs_view
from mops.verdicts import Counts

ENDED = Status("waves", "partial", 1, 10, 10, 30, Counts(27, 3, 0, 0, {"error": 3}), "2026-11-25T09:00:00+00:00", None)
LIVE = Progress(
    at=100.0,
    host="vm",
    pid=7,
    finished=Counts(9, 3, verdicts={"error": 2, "oom": 1}),
    rate=2.0,
    seconds_left=9.0,
    memory_bytes=1 << 20,
    settings={},
)
RUNNING = replace(ENDED, state="running", groups=2, counts=Counts(5, 1, verdicts={"error": 1}), live=LIVE)


def seen(status: Status) -> JobNow:
    return JobNow(status, 103.0, (), (), 0, ("a line",))


def test_a_running_job_shows_what_has_finished_and_the_time_to_go() -> None:
    view = job_view(seen(RUNNING))
    assert [one.text for one in view.summary.segments] == ["9 good", "3 failed", "18 to run"]
    assert [round(one.start) for one in view.summary.segments] == [0, 30, 40]
    tiles = {tile.name: tile for tile in view.summary.tiles}
    assert (tiles["Simulations"].value, tiles["Simulations"].note) == ("12", "of 30, 3 failed")
    assert (tiles["Rate"].value, tiles["Rate"].note) == ("2.0/s", "6.0 s to go"), "the record is 3 s old"
    assert view.summary.runner == "Attempt 1, process 7 on vm, last seen 3 s ago."


def test_the_best_losses_are_shown_from_the_last_sign_of_life() -> None:
    best = tuple(BestLoss("m:fit", name, 0.123456 * n, "ab" * 32) for n, name in enumerate("abcd", 1))
    tiles = job_view(replace(seen(RUNNING), last=replace(LIVE, best=best))).summary.tiles
    losses = [(tile.value, tile.note) for tile in tiles if tile.name == "Best loss"]
    assert losses == [
        ("0.1235", "fit.a (abababababab)"),
        ("0.2469", "fit.b (abababababab)"),
        ("0.3704", "fit.c (abababababab)"),
    ]


def test_the_headline_says_why_a_runner_ended(subtests: pytest.Subtests) -> None:
    for state in ["failed", "interrupted"]:
        with subtests.test(state=state):
            ended = replace(ENDED, state=state, error=RunnerError("ClusterError", "the scheduler is gone."))
            assert ": the scheduler is gone. " in summary_of(ended, 0.0).headline


def test_failures_that_are_not_committed_are_counted_by_verdict() -> None:
    assert job_view(seen(RUNNING)).pending == "1 error, 1 oom"
    assert job_view(seen(ENDED)).pending == ""


def test_a_job_in_which_every_simulation_failed_is_bad() -> None:
    every = replace(ENDED, counts=Counts(0, 30, 0, 10, {"error": 30}))
    assert (job_view(seen(every)).summary.tone, job_view(seen(ENDED)).summary.tone) == ("bad", "warning")
    assert job_view(seen(every)).summary.headline.startswith("Every simulation failed.")
    assert job_view(seen(every)).summary.state == "every simulation failed"
    listed = Listed("waves", "partial", 8, 10, 24, simulations_durable=24, n_simulations=30)
    some = replace(listed, job="some", simulations_failed=6)
    bad, partial = jobs_view(JobList((listed, some), False), ListQuery()).rows
    assert (bad.tone, partial.tone) == ("bad", "warning")
    assert (bad.share, bad.share_failed) == (80, 80)
    assert (partial.share, partial.share_failed) == (80, 20)


def test_a_job_without_simulations_so_far_has_a_bar() -> None:
    waiting = replace(ENDED, state="submitted", attempt=0, groups=0, counts=Counts())
    assert [one.percent for one in job_view(seen(waiting)).summary.segments] == [100]


def test_every_state_has_a_sentence(subtests: pytest.Subtests) -> None:
    for state in [name for name in TONES if name != "unreadable"]:
        with subtests.test(state=state):
            found = summary_of(replace(ENDED, state=state), 0.0)
            assert found.headline.endswith(".")
            assert found.tone == TONES[state]


COMMANDS = {
    "submitted": ["resume"],
    "running": ["watch"],
    "interrupted": ["resume"],
    "succeeded": ["results"],
    "partial": ["results"],
    "failed": ["logs", "resume"],
    "cancelled": ["resume"],
}


def test_every_state_has_its_next_steps(subtests: pytest.Subtests) -> None:
    """Terminals, reports and the page said different things about what to do next."""
    for state in COMMANDS:
        with subtests.test(state=state):
            verbs = [step.command[0] for step in summary_of(replace(ENDED, state=state), 0.0).steps if step.command]
            assert verbs == [
                *COMMANDS[state],
                *(["results"] if state not in ("running", "succeeded", "partial") else []),
            ]
            waits = summary_of(replace(ENDED, state=state, counts=Counts()), 0.0, is_waiting=True)
            assert not waits.steps or state in ("running", "failed"), "Kubernetes has a runner that continues the job"


@pytest.mark.parametrize(
    ("verdicts", "command", "text"),
    [
        (["error"], "retry waves --verdict error --with-new-code", "After a repair, run the failed sets again"),
        (["oom"], "retry waves --verdict oom", "It keeps the limits of this job"),
        (["timeout", "crashed"], "retry waves --verdict crashed,timeout --with-new-code", "After a repair"),
        (["lost"], "retry waves --verdict lost", "Run the failed sets again"),
    ],
)
@pytest.mark.parametrize("good", [0, 5])
def test_the_verdicts_say_how_failed_sets_run_again(verdicts: list[str], command: str, text: str, good: int) -> None:
    reasons = [Reason(1, verdicts[0], "no")]  # only the most frequent are listed; the counts have all
    counts = replace(ENDED.counts, simulations_good=good, verdicts=dict.fromkeys(verdicts, 1))
    summary = summary_of(replace(ENDED, counts=counts), 0.0, reasons=reasons, place="model.py:3 in run")
    (retry,) = [both for both in summary.todo("waves") if "retry" in both[1]]
    assert retry[1] == f"mops jobs {command}"
    assert text in retry[0]
    advice = f"Most frequent failure: {verdicts[0]}. "
    assert any(step.text.startswith(advice) for step in summary.steps)


def test_actions_fit_the_state() -> None:
    found = {state: [action.verb for action in actions_for(state)] for state in TONES}
    assert found["running"] == ["cancel"]
    assert found["interrupted"] == ["resume"]
    assert found["partial"] == ["retry"]
    assert found["succeeded"] == []
    assert all(state in TONES for action in ACTIONS.values() for state in action.states)


def test_a_running_job_that_was_cancelled_says_so_and_offers_no_other_cancel() -> None:
    """Until the runner had stopped, the page looked as before, as if the click had no effect."""
    assert [action.verb for action in job_view(seen(RUNNING)).actions] == ["cancel"]
    view = job_view(seen(replace(RUNNING, cancel_requested=True)))
    assert view.summary.headline.startswith(
        "Cancel requested: the runner commits what is finished, and stops. 12 of 30"
    )
    assert view.actions == []
    ended = job_view(seen(replace(RUNNING, state="cancelled", live=None, cancel_requested=True)))
    assert "Cancel requested" not in ended.summary.headline
    assert [action.verb for action in ended.actions] == ["resume"]


def test_the_log_continues_with_the_lines_of_the_sign_of_life(subtests: pytest.Subtests) -> None:
    for stored, live, joined in [
        ([], [], []),
        (["a"], [], ["a"]),
        ([], ["a"], ["a"]),
        (["a", "b"], ["b", "c"], ["a", "b", "c"]),
        (["a", "b", "c"], ["a", "b"], ["a", "b", "c"]),  # the sign of life is older than the last commit
        (["a"], ["c"], ["a", GAP, "c"]),
        (["a", "b", "b"], ["b", "b", "c"], ["a", "b", "b", "c"]),
    ]:
        with subtests.test(stored=stored, live=live, joined=joined):
            assert joined_tail(stored, live, 10) == joined
            assert joined_tail(stored, live, 2) == joined[-2:]


def test_the_list_links_to_its_next_pages_with_the_same_filter() -> None:
    jobs = [Listed("waves", "running", 1, 4, 2, ENDED.created), Listed("bad", "unreadable", error="damaged\n  at: x")]
    view = jobs_view(JobList(jobs, has_more=True), ListQuery("a b", "", 2))
    assert (view.newer, view.older) == ("name=a+b&state=&page=1", "name=a+b&state=&page=3")
    assert (view.rows[0].share, view.rows[0].sets, view.rows[0].failed) == (25.0, "1 of 4", "2")
    assert (view.rows[1].share, view.rows[1].sets, view.rows[1].error) == (None, "-", "damaged")
    first = jobs_view(JobList(jobs, has_more=False), ListQuery())
    assert (first.newer, first.older) == (None, None)


FAILED = Phase("failed", "OOMKilled", pod="vm")


def test_only_the_pod_of_the_last_sign_of_life_interrupts_its_job(subtests: pytest.Subtests) -> None:
    for host, phase, state, text in [
        ("vm", FAILED, "interrupted", "failed: OOMKilled"),  # before its sign of life is old
        ("", FAILED, "running", ""),  # regression: every pod has a name that starts with an empty host
        ("vm", None, "running", ""),
        ("vm", Phase("running", pod="vm"), "running", ""),
        ("vm", Phase("failed", pod="other"), "running", ""),
        ("vm", Phase("gone"), "running", ""),
        ("vm", Phase("pending", pod="vm-2", restarts=1), "running", "pending, its pod ended once before"),
    ]:
        with subtests.test(host=host, phase=phase):
            running = replace(RUNNING, live=replace(LIVE, host=host))
            now = with_runner(running, phase)
            assert (now.state, phase_text(now, phase)) == (state, text)
            assert (now is running) == (state == "running")
            assert [action.verb for action in job_view(seen(now)).actions] == (
                ["resume"] if state != "running" else ["cancel"]
            )


def test_the_list_shows_the_phases_of_runners() -> None:
    job = Listed("waves", "submitted", 0, 3, 0, "2026-11-25T09:00:00+00:00")
    (row,) = jobs_view(
        JobList([job], has_more=False, kubernetes={"waves": "queued: in the queue small"}), ListQuery()
    ).rows
    assert row.kubernetes == "queued: in the queue small"


def test_the_list_and_the_page_of_a_job_show_its_owner() -> None:
    listed = Listed("waves", "submitted", 0, 3, 0, "2026-11-25T09:00:00+00:00", owner="ada@example.org")
    assert jobs_view(JobList([listed], has_more=False), ListQuery()).rows[0].owner == "ada@example.org"
    assert job_view(seen(replace(RUNNING, owner="ada@example.org"))).owner == "ada@example.org"
