"""How tasks end when results, workers or the connection are lost, when tasks raise, and when on_progress fails."""

from __future__ import annotations

import logging
import pickle
import re
import signal
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from runner_lab import RunnerLab, SimFuture, result_of

from mops.attempt.sizing import TASKS_PER_SLOT
from mops.cluster.worker_losses import WorkerLoss
from mops.errors import ClusterError, ModelError
from mops.recovery import EMPTY_LIMIT
from mops.study.ranges import Ranges
from mops.task import RunningStep
from mops.verdicts import LossCause


def started(lab: RunnerLab) -> RunnerLab:
    """Finish one task, after which the runner knows how long tasks take, and fills the window."""
    lab.turn()
    lab.answer(lab.cluster.running[0])
    lab.settle()
    return lab


def holds(future: SimFuture, group: int) -> bool:
    return any(one.index == group for one in future.request.groups)


def targets_of(lab: RunnerLab) -> list[SimFuture]:
    """Return the first tasks with targets only."""
    while True:
        lab.settle()
        if found := [future for future in lab.cluster.running if future.request.replicates == ()]:
            return found
        for future in lab.cluster.running:
            lab.answer(future)


def before_giving(lab: RunnerLab) -> RunnerLab:
    """Run until the data of a task with targets only wait to be sent."""
    while not lab.threads.waiting["send"]:
        for future in lab.cluster.running:
            lab.answer(future)
        for thread in lab.threads.due:
            if thread != "send":
                lab.threads.step(thread)
        lab.turn()
    return lab


def long_step(future: SimFuture, released: set[int]) -> RunningStep:
    """Return the first step of a task that has released groups."""
    groups = Ranges.of(released).intervals
    first = future.request.groups[0]
    return RunningStep(first.index, first.param_id, 0, None, "vm", 20.0, future.request.number, groups)


def released(lab: RunnerLab) -> tuple[SimFuture, set[int]]:
    """Return a task of several groups, and those that other tasks run from now on."""
    lab = started(lab)
    task = next(future for future in lab.cluster.running if len(future.request.groups) > 1)
    rest = {group.index for group in task.request.groups[1:]}
    lab.cluster.steps = [long_step(task, rest)]
    lab.runner._slow._look_at = 0.0
    for other in [future for future in lab.cluster.running if future is not task]:
        lab.answer(other)
    lab.settle()
    return task, rest


@pytest.mark.parametrize(("n_finished", "postponed"), [(1, False), (None, False), (1, True)])
def test_what_waits_behind_a_long_simulation_runs_in_other_tasks(
    tmp_path: Path, n_finished: int | None, *, postponed: bool
) -> None:
    """Regression: a simulation that hung held the other groups of its task.

    Dask may run the whole task again, if its worker is lost. Then the groups of the others do not count twice, and do
    not run alone if they exceed their memory there.
    """
    lab = RunnerLab(tmp_path, [1] * 100, targets=False)
    task, rest = released(lab)
    first = task.request.groups[0].index
    while len(lab.kept.done) < 99:
        lab.settle()
        for future in [future for future in lab.cluster.running if future is not task]:
            lab.answer(future)
    assert set(range(100)) - {*lab.kept.done} == {first}
    assert rest
    assert not lab.over
    lab.answer(task, n_finished, postponed=postponed)
    lab.settle()
    assert lab.over
    assert sorted(lab.kept.done) == list(range(100))


@pytest.mark.parametrize(("n_finished", "postponed"), [(1, False), (None, False), (1, True)])
def test_what_waits_behind_a_long_replicate_runs_in_other_tasks(
    tmp_path: Path, n_finished: int | None, *, postponed: bool
) -> None:
    """Regression: if Dask ran the task again and a replicate was postponed there, it came twice (InternalError)."""
    lab = RunnerLab(tmp_path, [60], targets=False)
    lab.turn()
    (quick, *_) = lab.cluster.running
    quick.result = replace(result_of(quick.request, None), seconds=0.001)
    quick.become("finished")
    lab.settle()
    task = next(future for future in lab.cluster.running if len(future.request.replicates or ()) > 1)
    replicates = task.request.replicates
    assert replicates is not None
    first, group = replicates[0], task.request.groups[0]
    rest = Ranges.of(replicates[1:]).intervals
    lab.cluster.steps = [RunningStep(0, group.param_id, first, None, "vm", 20.0, task.request.number, rest)]
    lab.runner._slow._look_at = 0.0
    lab.settle()
    for _ in range(100):
        lab.settle()
        for future in [future for future in lab.cluster.running if future is not task]:
            lab.answer(future)
    lab.answer(task, n_finished, postponed=postponed)
    lab.cluster.steps = []
    lab.finish()
    assert lab.kept.done == [0]


def test_a_task_that_two_workers_list_keeps_something(tmp_path: Path) -> None:
    """Dask has run the task again, and the list of the lost worker is still there."""
    lab = started(RunnerLab(tmp_path, [1] * 100, targets=False))
    task = next(future for future in lab.cluster.running if len(future.request.groups) > 1)
    first, *rest = [group.index for group in task.request.groups]
    lab.cluster.steps = [long_step(task, {*rest}), long_step(task, {first})]
    lab.runner._slow._look_at = 0.0
    lab.settle()
    assert lab.runner._plan.tasks_in_flight[task.request.number].groups == (first,)
    lab.finish()
    assert sorted(lab.kept.done) == list(range(100))


def test_groups_of_a_task_that_comes_back_before_they_are_released_run_once(tmp_path: Path) -> None:
    lab = RunnerLab(tmp_path, [1] * 100, targets=False)
    lab = started(lab)
    task = next(future for future in lab.cluster.running if len(future.request.groups) > 1)
    lab.cluster.steps = [long_step(task, {group.index for group in task.request.groups[1:]})]
    lab.runner._slow._look_at = 0.0
    lab.turn()
    assert lab.threads.waiting["deliver"]
    lab.answer(task, 1)
    lab.threads.finish("fetch")  # the result overtakes the release
    lab.finish()
    assert sorted(lab.kept.done) == list(range(100))


def test_targets_that_come_back_empty_are_sent_again(tmp_path: Path) -> None:
    """Their pool had been replaced, and the job never ended."""
    lab = RunnerLab(tmp_path, [3])
    targets = targets_of(lab)
    lab.answer(targets[0], 0)
    lab.finish()
    assert lab.kept.done == [0]
    assert lab.kept.failures == []


@pytest.mark.parametrize("replicates", [[1], [3]])
def test_a_task_that_always_comes_back_empty_fails_and_the_other_groups_run(
    tmp_path: Path, replicates: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """It was sent again without end, as fast as it came back."""
    caplog.set_level(logging.INFO, "mops")
    lab = started(RunnerLab(tmp_path, [1, *replicates, 1]))
    lab.drive(lambda future: lab.answer(future, 0 if holds(future, 1) and future.request.replicates != () else None))
    assert sorted(lab.kept.done) == [0, 1, 2]
    failed = [failure for failure in lab.kept.failures if failure.replicate is not None]
    assert [(failure.group, failure.replicate) for failure in failed] == [(1, i) for i in range(replicates[0])]
    assert all(f"came back without a result {EMPTY_LIMIT} times" in failure.message for failure in failed)
    assert {failure.signals for failure in failed} == {"no result"}
    assert "ran alone" not in caplog.text, "nothing ran, so the log has no memory to report"


def test_targets_that_come_back_empty_after_a_stop_are_not_sent_again(tmp_path: Path) -> None:
    lab = started(RunnerLab(tmp_path, [3]))
    targets = targets_of(lab)
    lab.runner.stop(0.0)
    lab.settle()
    lab.answer(targets[0], 0)
    lab.settle()
    assert lab.over
    assert lab.kept.done == []


def test_a_task_whose_data_cannot_be_sent_during_a_reconnect_runs_again(tmp_path: Path) -> None:
    """Dask raised AttributeError in the executor, where no code handled it."""
    lab = before_giving(started(RunnerLab(tmp_path, [2])))
    lab.cluster.connection.is_open = False
    lab.threads.step("send")
    lab.finish()
    assert lab.kept.done == [0]


@pytest.mark.parametrize("error", [ConnectionError("gone"), ValueError("no worker"), TimeoutError("silent")], ids=repr)
def test_a_task_whose_worker_leaves_while_it_gets_data_runs_again(tmp_path: Path, error: Exception) -> None:
    """An error of the scheduler killed the runner."""
    lab = before_giving(started(RunnerLab(tmp_path, [2])))
    lab.cluster.connection.input_errors.append(error)
    lab.finish()
    assert lab.cluster.is_connected
    assert lab.kept.done == [0]


def test_a_lost_connection_with_hundreds_of_tasks_in_flight_does_not_end_the_attempt(tmp_path: Path) -> None:
    """Dask cancels all futures at once, which counted as a hundred losses in a row and ended the attempt."""
    lab = started(RunnerLab(tmp_path, [1] * 1500, slots=100, workers=100, batch_size=1500, checkpoint_seconds=0))
    assert len(lab.cluster.running) >= 400
    lab.cluster.cut()
    # The loop hears of each loss before it notices the lost connection.
    for thread in lab.threads.due:
        lab.threads.finish(thread)
    while lab.runner._events.qsize():
        lab.runner._handle(lab.runner._next_event(0.0))
    lab.finish()
    assert sorted(lab.kept.done) == list(range(1500))


def lose_all(lab: RunnerLab) -> None:
    for _ in range(200):
        lab.settle()
        for future in lab.cluster.running:
            future.become("cancelled")


def test_many_lost_tasks_in_a_row_end_the_attempt(tmp_path: Path) -> None:
    lab = started(RunnerLab(tmp_path, [1] * 30))
    with pytest.raises(ClusterError, match="tasks in a row"):
        lose_all(lab)


def test_a_result_that_dask_computes_again_does_not_delay_the_others(tmp_path: Path) -> None:
    """The one thread that fetches waited inside Dask, as long as the simulation took."""
    lab = started(RunnerLab(tmp_path, [1] * 8))
    first, second, *_ = lab.cluster.running
    lab.answer(first)
    first.status = "pending"  # its worker dies before the fetch
    lab.threads.step("fetch")
    assert lab.threads.due == []
    lab.answer(second)
    lab.settle()
    assert len(lab.kept.done) >= 2
    lab.answer(first)
    lab.finish()
    assert sorted(lab.kept.done) == list(range(8))


def test_results_that_are_ready_are_fetched_together(tmp_path: Path) -> None:
    """Each result cost three round trips, so that a job on 160 slots waited for the runner."""
    lab = started(RunnerLab(tmp_path, [1] * 12, slots=4, workers=4))
    lab.answer(lab.cluster.running[0])
    lab.settle()  # from now on the size of a result is known
    running = list(lab.cluster.running)
    for future in running:
        lab.answer(future)
    assert len(running) > 2
    before = len(lab.kept.done)
    lab.threads.step("fetch")
    assert len(lab.kept.done) - before == len(running)
    assert not any(future.key in lab.cluster.connection.futures for future in running), "released before the next tasks"
    lab.finish()
    assert sorted(lab.kept.done) == list(range(12))


@pytest.mark.parametrize(
    "cause",
    [LossCause("gone"), LossCause("gone", removed=True), LossCause("its nanny restarted it at 600 MiB", memory=True)],
    ids=["lost", "removed", "memory"],
)
def test_a_task_whose_result_kills_the_worker_that_sends_it_is_quarantined(
    tmp_path: Path, cause: LossCause, caplog: pytest.LogCaptureFixture
) -> None:
    """Dask ran it without end. Workers that are removed on purpose say nothing about the task."""
    lab = started(RunnerLab(tmp_path, [1] * 8, batch_size=16))
    n_lost = 0

    def answer_or_lose(future: SimFuture) -> None:
        nonlocal n_lost
        if holds(future, 5) and n_lost < 20:
            n_lost += 1
            lab.cluster.losses.append(WorkerLoss("tcp://gone:1", frozenset(), frozenset({future.key}), cause))
        else:
            lab.answer(future)

    lab.drive(answer_or_lose)
    assert sorted(lab.kept.done) == list(range(8))
    failed = [failure for failure in lab.kept.failures if failure.target is None]
    # All tasks were in flight when the window was halved.
    assert caplog.text.count("window: 8 parameter sets (before: 16)") == caplog.text.count("window: ") == cause.memory
    if cause.removed:
        assert failed == []
        return
    (failure,) = failed
    assert (failure.group, failure.reason) == (5, "oom" if cause.memory else "lost")
    assert failure.message == "alone on a worker: 2 workers died while sending its result"
    assert ("its nanny restarted it at 600 MiB" in str(failure.signals)) == cause.memory
    assert n_lost == 4, "two workers for the task, and two for the group alone on a worker"
    assert not any(holds(future, 5) for future in lab.cluster.connection.futures.values()), "Dask would run it again"


def test_a_defect_in_a_thread_is_raised_by_the_loop(tmp_path: Path) -> None:
    lab = started(RunnerLab(tmp_path, [1] * 8))

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a defect")

    lab.runner._tasks_in_flight._receiver.receive = broken
    with pytest.raises(ZeroDivisionError):
        lab.finish()


def test_an_error_in_on_progress_becomes_one_warning_and_the_job_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It ended the job as interrupted. Later it was in the job's log only, where no caller of submit looks."""

    def raises(_: object) -> None:
        raise ValueError("a bar that cannot be drawn")

    lab = RunnerLab(tmp_path, [1] * 8, on_progress=raises)
    with caplog.at_level(logging.WARNING, "mops"), pytest.warns(RuntimeWarning, match="cannot be drawn") as warned:
        lab.finish()
    assert sorted(lab.kept.done) == list(range(8))
    assert len(warned) == 1
    (logged,) = [record for record in caplog.records if "on_progress" in record.message]
    assert logged.exc_info is not None


@pytest.mark.filterwarnings("error")
def test_an_error_in_on_progress_does_not_end_a_job_where_warnings_are_errors(tmp_path: Path) -> None:
    def raises(_: object) -> None:
        raise ValueError("a bar that cannot be drawn")

    lab = RunnerLab(tmp_path, [1] * 8, on_progress=raises)
    lab.finish()
    assert sorted(lab.kept.done) == list(range(8))


def test_an_interrupt_in_on_progress_is_a_stop(tmp_path: Path) -> None:
    def interrupts(_: object) -> None:
        raise KeyboardInterrupt

    lab = RunnerLab(tmp_path, [1] * 8, on_progress=interrupts)
    lab.finish()
    assert lab.cluster.graces
    assert len(lab.kept.done) < 8


def test_a_task_of_a_long_group_carries_only_the_seeds_of_its_replicates(tmp_path: Path) -> None:
    """Each task carried the seeds of the whole group: 600 KB."""
    lab = RunnerLab(tmp_path, [100_000])
    requests = []
    for _ in range(20):
        lab.settle()
        for future in lab.cluster.running:
            requests.append(future.request)
            lab.answer(future)
    assert len(requests) > 10
    for request in requests:
        (group,) = request.groups
        assert dict(group.seeds.items()) == {i: i for i in request.replicates}  # type: ignore[union-attr]
        assert group.n_replicates == 100_000
        assert len(pickle.dumps(request)) < 2000 + 20 * len(request.replicates)


DISK_FULL = OSError(28, "No space left on device")


def allowed(lab: RunnerLab, future: SimFuture) -> list[str]:
    """Return the workers on which Dask may run a task: all of them if it must avoid all."""
    avoid = lab.runner._tasks_in_flight._flights[future.request.number].avoid
    return [worker for worker in lab.cluster.all_workers if worker not in avoid] or lab.cluster.all_workers


def all_raise(lab: RunnerLab, error: Exception) -> None:
    """Let every task raise until the attempt ends."""
    lab.drive(lambda future: lab.fail(future, error, allowed(lab, future)[0]), limit=2000)


def test_a_faulty_worker_is_avoided_and_its_tasks_run_on_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One full disk among a thousand ended the job, and its finished results were lost."""
    lab = started(RunnerLab(tmp_path, [1] * 40, slots=4, workers=4, checkpoint_seconds=0))
    bad = lab.cluster.all_workers[0]
    sent_there = []

    def raise_there(future: SimFuture) -> None:
        if allowed(lab, future)[0] == bad:
            sent_there.append(future)
            lab.fail(future, DISK_FULL, bad)
        else:
            lab.answer(future)

    lab.drive(raise_there)
    assert sorted(lab.kept.done) == list(range(40))
    assert lab.kept.failures == []
    assert lab.cluster.avoided == {bad}
    assert len(sent_there) <= TASKS_PER_SLOT * 4, "only what was in flight at the third fault"
    assert f"worker {bad} is faulty; it gets no more tasks; workers left: 3" in caplog.text


def test_the_attempt_ends_with_the_reason_if_every_worker_is_faulty(tmp_path: Path) -> None:
    lab = started(RunnerLab(tmp_path, [1] * 40, slots=4, workers=4))
    with pytest.raises(
        ClusterError, match=r"no worker can run task .*; the last error, from tcp://worker-\d: .*No space"
    ):
        all_raise(lab, DISK_FULL)
    assert lab.kept.done == [0], "finished groups are committed"


def test_a_task_that_raises_on_every_worker_ends_the_attempt_after_the_others(tmp_path: Path) -> None:
    """No worker is avoided, and the other groups of its task are committed first."""
    lab = started(RunnerLab(tmp_path, [1] * 200, slots=4, workers=4, checkpoint_seconds=0))

    def raise_in_group_30(future: SimFuture) -> None:
        if holds(future, 30):
            lab.fail(future, RuntimeError("only this one"), allowed(lab, future)[0])
        else:
            lab.answer(future)

    with pytest.raises(ClusterError) as ended:
        lab.drive(raise_in_group_30)
    assert sorted({*range(200)} - {*lab.kept.done}) == [30]
    assert lab.cluster.avoided == set()
    first, *_ = str(ended.value).splitlines()
    last = (
        r"no worker can run task \d+ with group 30; the last error, from tcp://worker-\d: RuntimeError: only this one"
    )
    assert re.fullmatch(last, first)


def test_tasks_that_the_scheduler_cannot_read_end_the_attempt_at_once(tmp_path: Path) -> None:
    """A scheduler with other packages cannot read them: they reached no worker and were sent a hundred times."""
    lab = started(RunnerLab(tmp_path, [1] * 40, slots=4, workers=4))
    lab.cluster.all_workers.insert(0, "")
    with pytest.raises(ClusterError, match="Error during deserialization"):
        all_raise(lab, RuntimeError("Error during deserialization of the task graph"))
    assert lab.n_turns < 50


def test_a_model_that_three_workers_cannot_import_ends_the_attempt(tmp_path: Path) -> None:
    lab = RunnerLab(tmp_path, [1] * 40, slots=100, workers=100)
    with pytest.raises(ModelError):
        all_raise(lab, ModelError("the model cannot be imported"))
    assert lab.runner._recovery._first_errors[ModelError] == {*lab.cluster.all_workers[:3]}


def test_the_result_of_a_task_that_is_given_up_is_no_success(tmp_path: Path) -> None:
    """The runner makes that result itself. It reset the losses in a row, and looked like proof that tasks can run."""
    lab = started(RunnerLab(tmp_path, [1] * 8))
    recovery = lab.runner._recovery
    recovery._n_lost_in_a_row, recovery._has_succeeded = 7, False
    task = lab.runner._plan.tasks_in_flight[min(lab.runner._plan.tasks_in_flight)]
    recovery.came_back(task, "", is_empty=False)
    assert (recovery._n_lost_in_a_row, recovery._has_succeeded) == (7, False)
    recovery.came_back(task, "tcp://worker-0", is_empty=False)
    assert (recovery._n_lost_in_a_row, recovery._has_succeeded) == (0, True)


def test_an_interrupt_in_on_progress_does_not_change_an_earlier_stop(tmp_path: Path) -> None:
    """SIGTERM leaves the job to the next runner. An interrupt in the meantime cancelled the job."""
    interrupted = []

    def on_progress(_: object) -> None:
        if lab.runner._stops:
            interrupted.append(True)
            raise KeyboardInterrupt

    lab = RunnerLab(tmp_path, [1] * 8, on_progress=on_progress)
    lab.runner.stop(30.0, by=signal.SIGTERM)
    lab.settle()
    assert interrupted
    assert lab.runner._handed_over_by == signal.SIGTERM


def test_a_closed_attempt_keeps_no_task_and_takes_no_late_result(tmp_path: Path) -> None:
    """In a notebook, results that were not fetched stayed in memory after the attempt."""
    lab = started(RunnerLab(tmp_path, [1] * 8))
    tasks_in_flight = lab.runner._tasks_in_flight
    first, second, *_ = lab.cluster.running
    lab.answer(first)
    tasks_in_flight.close()
    lab.answer(second)
    assert tasks_in_flight._flights == {}
    assert not tasks_in_flight._ready


def test_the_progress_says_what_the_runner_waits_for_and_since_when(tmp_path: Path) -> None:
    """Regression: a job without workers or scheduler was "running, 2 min to go"."""
    lab = started(RunnerLab(tmp_path, [1] * 40))
    assert lab.runner.look().waits_for == ""
    there, lab.cluster.all_workers = lab.cluster.all_workers, []
    began = time.time()
    for _ in range(2):
        lab.turn()
        now = lab.runner.look()
        assert (now.waits_for, now.seconds_left) == ("workers", None)
        assert now.waits_since == pytest.approx(began, abs=5)
        began = now.waits_since
        assert now.outlook == f"waits for workers since {datetime.fromtimestamp(began):%H:%M:%S}"
    lab.cluster.all_workers = there
    lab.cluster.cut()
    lab.turn()
    assert lab.runner.look().waits_for == "the Dask scheduler"
    lab.finish()
    lab.turn()
    assert lab.runner.look().waits_for == ""
