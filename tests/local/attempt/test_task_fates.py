"""What becomes of each task, whatever becomes of its answer, its worker or its connection."""

from __future__ import annotations

import logging
import pickle
import re
from pathlib import Path

import pytest
from runner_lab import RunnerLab, SimFuture

from mops.attempt.lost_tasks import EMPTY_LIMIT
from mops.attempt.planning.task_size import TASKS_PER_SLOT
from mops.errors import ClusterError, ModelError


def started(lab: RunnerLab) -> RunnerLab:
    """Run the pilot: from here on the whole window is sent."""
    while lab.runner._reference is None:
        for future in lab.cluster.running:
            lab.answer(future)
        lab.settle()
    return lab


def targets_of(lab: RunnerLab) -> list[SimFuture]:
    """Return the first targets that are sent by themselves."""
    while True:
        lab.settle()
        found = [
            future for future in lab.cluster.running if future.request is not None and future.request.replicates == ()
        ]
        if found:
            return found
        for future in lab.cluster.running:
            lab.answer(future)


def at_giving(lab: RunnerLab) -> RunnerLab:
    """Run until data for targets wait to be given."""
    while not lab.lanes.waiting["give"]:
        for future in lab.cluster.running:
            lab.answer(future)
        for lane in lab.lanes.due:
            if lane != "give":
                lab.lanes.step(lane)
        lab.turn()
    return lab


def test_targets_that_come_back_empty_are_sent_again(tmp_path: Path) -> None:
    """Their pool had been replaced: the job waited for ever."""
    lab = RunnerLab(tmp_path, [3])
    targets = targets_of(lab)
    lab.answer(targets[0], 0)
    lab.finish()
    assert lab.kept.done == [0], "and once"
    assert lab.kept.failures == []


@pytest.mark.parametrize("replicates", [[1], [3]])
def test_what_comes_back_empty_for_ever_is_failed_by_name_and_the_rest_goes_on(
    tmp_path: Path, replicates: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """It was sent again and again, as fast as it came back."""
    caplog.set_level(logging.INFO, "mops")
    lab = started(RunnerLab(tmp_path, [1, *replicates, 1]))
    while not lab.over:
        assert lab.n_turns < 2000
        lab.settle()
        for future in lab.cluster.running:
            assert future.request is not None
            bad = any(group.index == 1 for group in future.request.groups)
            lab.answer(future, 0 if bad and future.request.replicates != () else None)
    assert sorted(lab.kept.done) == [0, 1, 2]
    failed = [failure for failure in lab.kept.failures if failure.replicate is not None]
    assert [(failure.group, failure.replicate) for failure in failed] == [(1, i) for i in range(replicates[0])]
    assert all(f"came back without one {EMPTY_LIMIT} times" in failure.message for failure in failed)
    assert {failure.signals for failure in failed} == {"no result"}
    assert "ran alone" not in caplog.text, "it took 0 MiB, the log said of a task that nothing ran"


def test_targets_that_come_back_empty_after_a_stop_are_not_sent_again(tmp_path: Path) -> None:
    lab = started(RunnerLab(tmp_path, [3]))
    targets = targets_of(lab)
    lab.runner.stop(0.0)
    lab.settle()
    lab.answer(targets[0], 0)
    lab.settle()
    assert lab.over
    assert lab.kept.done == []


def test_data_that_cannot_be_given_while_dask_connects_again_do_not_leave_their_task_in_flight(tmp_path: Path) -> None:
    """Dask raised AttributeError in the executor, which nobody looked at."""
    lab = at_giving(started(RunnerLab(tmp_path, [2])))
    lab.cluster.client.status = "connecting"
    lab.lanes.step("give")
    lab.finish()
    assert lab.kept.done == [0]


@pytest.mark.parametrize("error", [KeyError("tcp://gone:1"), ValueError("no worker"), RuntimeError("closed")], ids=repr)
def test_a_worker_that_goes_while_it_is_given_data_is_a_loss(tmp_path: Path, error: Exception) -> None:
    """The scheduler's KeyError came back to the runner, and ended it."""
    lab = at_giving(started(RunnerLab(tmp_path, [2])))
    lab.cluster.client.scatter_errors.append(error)
    lab.finish()
    assert lab.cluster.alive
    assert lab.kept.done == [0]


def test_a_worker_that_takes_data_and_never_answers_is_a_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one thread that gives data waited for ever, and all targets with it."""
    monkeypatch.setattr("mops.attempt.tasks_in_flight.FETCH_SECONDS", 0.1)
    lab = at_giving(started(RunnerLab(tmp_path, [2])))
    lab.cluster.client.scatter_seconds = 3600.0
    lab.lanes.step("give")
    lab.cluster.client.scatter_seconds = 0.0
    lab.finish()
    assert lab.kept.done == [0]


def test_a_cut_with_hundreds_of_tasks_in_flight_is_no_row_of_losses(tmp_path: Path) -> None:
    """Dask cancels all futures at once, and a hundred losses in a row ended the attempt."""
    lab = started(RunnerLab(tmp_path, [1] * 1500, slots=100, workers=100, batch_size=1500, checkpoint_seconds=0))
    assert len(lab.cluster.running) >= 400
    lab.cluster.cut()
    # The loop hears of each of them before it notes that the connection is gone.
    for lane in lab.lanes.due:
        while lab.lanes.waiting[lane]:
            lab.lanes.step(lane)
    while lab.runner._events.qsize():
        lab.runner._handle(lab.runner._next_event(0.0))
    lab.finish()
    assert sorted(lab.kept.done) == list(range(1500))


def lose_all(lab: RunnerLab) -> None:
    for _ in range(200):
        lab.settle()
        for future in lab.cluster.running:
            future.become("cancelled")


def test_losses_in_a_row_on_a_connection_that_stands_end_the_attempt(tmp_path: Path) -> None:
    lab = started(RunnerLab(tmp_path, [1] * 30))
    with pytest.raises(ClusterError, match="tasks in a row"):
        lose_all(lab)


def test_a_result_that_dask_computes_again_is_waited_for_beside_the_others(tmp_path: Path) -> None:
    """The one thread that fetched waited inside Dask, for as long as the simulation takes."""
    lab = started(RunnerLab(tmp_path, [1] * 8))
    first, second, *_ = lab.cluster.running
    lab.answer(first)
    first.status = "pending"  # its worker is gone before it is fetched
    lab.lanes.step("fetch")
    assert lab.lanes.due == []
    lab.answer(second)
    lab.settle()
    assert len(lab.kept.done) >= 2
    lab.answer(first)
    lab.finish()
    assert sorted(lab.kept.done) == list(range(8))


def test_a_defect_beside_the_loop_reaches_it(tmp_path: Path) -> None:
    lab = started(RunnerLab(tmp_path, [1] * 8))

    def broken(*_: object) -> None:
        raise ZeroDivisionError("ours")

    lab.runner._tasks_in_flight._deliver = broken
    with pytest.raises(ZeroDivisionError):
        lab.finish()


def test_an_error_in_on_progress_is_told_once_and_the_job_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It ended the job: interrupted, 0/100."""

    def raises(_: object) -> None:
        raise ValueError("a bar that cannot be drawn")

    lab = RunnerLab(tmp_path, [1] * 8, on_progress=raises)
    with caplog.at_level(logging.WARNING, "mops"):
        lab.finish()
    assert sorted(lab.kept.done) == list(range(8))
    told = [record for record in caplog.records if "on_progress" in record.message]
    assert len(told) == 1
    assert told[0].exc_info is not None


def test_an_interrupt_in_on_progress_is_a_stop(tmp_path: Path) -> None:
    def interrupts(_: object) -> None:
        raise KeyboardInterrupt

    lab = RunnerLab(tmp_path, [1] * 8, on_progress=interrupts)
    lab.finish()
    assert lab.cluster.graces
    assert len(lab.kept.done) < 8


def test_a_task_of_a_long_group_carries_the_seeds_of_what_it_runs(tmp_path: Path) -> None:
    """Each carried those of the whole group: 600 KB."""
    lab = RunnerLab(tmp_path, [100_000])
    requests = []
    for _ in range(20):
        lab.settle()
        for future in lab.cluster.running:
            assert future.request is not None
            requests.append(future.request)
            lab.answer(future)
    assert len(requests) > 10
    for request in requests:
        (group,) = request.groups
        assert request.replicates is not None
        assert dict(group.seeds.items()) == {i: i for i in request.replicates}  # type: ignore[union-attr]
        assert group.n_replicates == 100_000
        assert len(pickle.dumps(request)) < 2000 + 20 * len(request.replicates)


DISK_FULL = OSError(28, "No space left on device")


def allowed(lab: RunnerLab, future: SimFuture) -> list[str]:
    """Return the workers on which Dask may run a task, the least busy first: those that it is to avoid if all are."""
    assert future.request is not None
    avoid = lab.runner._tasks_in_flight._flights[future.request.number].avoid
    return [worker for worker in lab.cluster.all_workers if worker not in avoid] or lab.cluster.all_workers


def holds(future: SimFuture, group: int) -> bool:
    assert future.request is not None
    return any(one.index == group for one in future.request.groups)


def all_raise(lab: RunnerLab, error: Exception) -> list[str]:
    """Have every task raise, until the attempt ends; return where, in turn."""
    where = []
    while lab.n_turns < 2000:
        lab.settle()
        for future in lab.cluster.running:
            where.append(allowed(lab, future)[0])
            lab.fail(future, error, where[-1])
    return where


def test_a_faulty_worker_is_avoided_and_its_tasks_run_elsewhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One full disk among a thousand ended the job, and what was finished was thrown away."""
    lab = started(RunnerLab(tmp_path, [1] * 40, slots=4, workers=4, checkpoint_seconds=0))
    bad = lab.cluster.all_workers[0]
    n_sent_there = 0
    while not lab.over:
        lab.settle()
        for future in lab.cluster.running:
            if allowed(lab, future)[0] == bad:
                n_sent_there += 1
                lab.fail(future, DISK_FULL, bad)
            else:
                lab.answer(future)
    assert sorted(lab.kept.done) == list(range(40))
    assert lab.kept.failures == []
    assert lab.cluster.avoided == {bad}
    assert n_sent_there <= TASKS_PER_SLOT * 4, "what was in flight, and nothing after three faults"
    assert f"worker {bad} is faulty, and avoided from now on; 3 workers are left" in caplog.text


def test_when_every_worker_is_faulty_the_attempt_ends_and_says_why(tmp_path: Path) -> None:
    lab = started(RunnerLab(tmp_path, [1] * 40, slots=4, workers=4))
    with pytest.raises(ClusterError, match=r"on any worker; the last one, tcp://worker-\d, says: .*No space left"):
        all_raise(lab, DISK_FULL)
    assert lab.kept.done == [0], "what is finished is committed"


def test_a_task_that_raises_everywhere_is_failed_by_name_and_no_worker_is_avoided(tmp_path: Path) -> None:
    lab = started(RunnerLab(tmp_path, [1] * 200, slots=4, workers=4, checkpoint_seconds=0))
    while not lab.over:
        assert lab.n_turns < 5000
        lab.settle()
        bad = [future for future in lab.cluster.running if holds(future, 30)]
        for future in lab.cluster.running:
            if future not in bad:
                lab.answer(future)
        lab.settle()
        for future in bad:
            lab.fail(future, RuntimeError("only this one"), allowed(lab, future)[0])
    assert sorted(lab.kept.done) == list(range(200))
    named = [(f.group, f.reason, f.signals) for f in lab.kept.failures if f.target is None]
    assert named == [(30, "lost", "RuntimeError")]
    assert "it raised RuntimeError: only this one" in lab.kept.failures[0].message


def test_the_last_task_that_raises_everywhere_ends_the_attempt_with_what_it_raised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The error was that of faulty workers, which had run everything else."""
    lab = started(RunnerLab(tmp_path, [1] * 8, slots=4, workers=4, checkpoint_seconds=0))

    def run() -> None:
        while lab.n_turns < 5000:
            lab.settle()
            for future in lab.cluster.running:
                if holds(future, 7):
                    lab.fail(future, RuntimeError("only this one"), allowed(lab, future)[0])
                else:
                    lab.answer(future)

    with pytest.raises(ClusterError) as ended:
        run()
    assert sorted(lab.kept.done) == list(range(7))
    first, *_ = str(ended.value).splitlines()
    assert re.fullmatch(
        r"task \d+ with group 7 raised on every worker that ran it; on the last one, tcp://worker-\d: "
        r"RuntimeError: only this one",
        first,
    )
    assert "any worker" not in caplog.text


def test_tasks_that_the_scheduler_cannot_read_end_the_attempt_at_once(tmp_path: Path) -> None:
    """Its packages are others: they came to no worker, and were sent a hundred times."""
    lab = started(RunnerLab(tmp_path, [1] * 40, slots=4, workers=4))
    lab.cluster.all_workers.insert(0, "")
    with pytest.raises(ClusterError, match="Error during deserialization"):
        all_raise(lab, RuntimeError("Error during deserialization of the task graph"))
    assert lab.n_turns < 50


def test_a_model_that_no_worker_can_import_ends_the_job_after_three_of_them(tmp_path: Path) -> None:
    lab = RunnerLab(tmp_path, [1] * 40, slots=100, workers=100)
    with pytest.raises(ModelError):
        all_raise(lab, ModelError("the model cannot be imported"))
    assert lab.runner._faulty_workers._at_first == {*lab.cluster.all_workers[:3]}


def test_what_is_given_up_is_nothing_good(tmp_path: Path) -> None:
    """Its outcome is the runner's own: it ended a row of losses, and told that something could run."""
    lab = started(RunnerLab(tmp_path, [1] * 8))
    lab.runner._lost_tasks.n_in_a_row, lab.runner._faulty_workers._anything_good = 7, False
    task = lab.runner._plan.tasks_in_flight[min(lab.runner._plan.tasks_in_flight)]
    lab.runner._came_back(task, "", is_empty=False)
    assert (lab.runner._lost_tasks.n_in_a_row, lab.runner._faulty_workers._anything_good) == (7, False)
    lab.runner._came_back(task, "tcp://worker-0", is_empty=False)
    assert (lab.runner._lost_tasks.n_in_a_row, lab.runner._faulty_workers._anything_good) == (0, True)


def test_an_interrupt_in_on_progress_does_not_change_a_stop_that_was_asked_for(tmp_path: Path) -> None:
    """SIGTERM leaves the job to the next runner; an interrupt meanwhile made it a cancelled one."""
    interrupted = []

    def on_progress(_: object) -> None:
        if lab.runner._stopping:
            interrupted.append(True)
            raise KeyboardInterrupt

    lab = RunnerLab(tmp_path, [1] * 8, on_progress=on_progress)
    lab.runner.stop(30.0, to_go_on=True)
    lab.settle()
    assert interrupted
    assert lab.runner._to_go_on
