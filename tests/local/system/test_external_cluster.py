"""Jobs on a Dask cluster of real processes, which the tests kill at any moment."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cut import way_to
from dask.base import annotate
from dask_processes import DaskProcesses, dask_in, free_port
from distributed import CancelledError, Client, Future, Scheduler
from study_lab import GONE_SECONDS, MOPS, Runner, StudyLab, betas, wait_for

from mops.attempt.sizing import TASKS_PER_SLOT
from mops.cluster.base import RunsAgain
from mops.cluster.dask_calls import connect_to_look
from mops.cluster.external import ExternalCluster, annotations_of, connect_external
from mops.cluster.shares import METADATA
from mops.service.autoscaler import busy_workers
from mops.settings import Settings
from mops.task import Task
from processes import alive
from rows import rows_of
from soak import generator, repeats, spread
from waiting import until

WARM_CHILDREN = True
WAYS: list[dict[str, object]] = spread([{"TASK_SECONDS": 0.2}, {"TASK_SECONDS": 0.06}, {"CHECKPOINT_SECONDS": 0}], 1)
KILLS_OF_A_JOB, SCHEDULER_KILLS = repeats(10), repeats(5)


@pytest.fixture
def dask(lab: StudyLab, tmp_path: Path) -> Iterator[DaskProcesses]:
    with dask_in(tmp_path / "dask") as processes:
        lab.more_env = {"MODELOPS_SCHEDULER": processes.address}
        yield processes


def test_whole_and_split_groups_give_the_rows_of_a_plain_loop(lab: StudyLab, tmp_path: Path) -> None:
    """The scheduler and the workers have IPv6 addresses."""
    lab.write("counted:simulate", betas(24, sleep=0.01), n_replicates=4, targets=["scores:order", "targets:number"])
    expected = lab.serial()
    with dask_in(tmp_path / "dask", host="::1") as dask:
        assert dask.address.startswith("tcp://[::1]:")
        lab.more_env = {"MODELOPS_SCHEDULER": dask.address}
        with Client(dask.address, set_as_default=False) as client:
            workers = client.scheduler_info(n_workers=-1)["workers"]
        assert all(worker.startswith("tcp://[::1]:") for worker in workers)
        for name, settings in {
            "fused": {"BATCH_SIZE": 7, "PERSIST": "worker"},
            "split": {"TASK_SECONDS": 0.025},
        }.items():
            lab.run(name, **settings)
            assert rows_of(lab.job(name)) == expected
            lab.assert_sound(name)
    assert len(dask.tally) == 2 * 24 * 4
    caches = [path.name for path in dask.folder.glob("cache-*/mops/bundles/*")]
    assert len(caches) == 2, "each worker has its own copy of the bundle"
    assert set(caches) == {lab.job("fused").record.bundle}


def test_stored_simulations_reach_the_targets_on_workers(lab: StudyLab, dask: DaskProcesses) -> None:
    targets = ["scores:order", "targets:number"]
    lab.write("counted:simulate", betas(24, sleep=0.01), n_replicates=2, targets=targets)
    lab.run("first")
    lab.write("counted:simulate", betas(24, sleep=0.01), n_replicates=4, targets=targets)
    expected = lab.serial()
    for name, settings in {"fused": {"BATCH_SIZE": 7}, "split": {"TASK_SECONDS": 0.01}}.items():
        longer = lab.start("extend", "first", "--replicates", "4", "--name", name, **settings)
        assert longer.wait() == 0, longer.said
        assert rows_of(lab.job(name)) == expected
        assert lab.job(name).verify() == []
    assert len(dask.tally) == 3 * 24 * 2
    wait_for(lambda: dask.children() == [])


def test_workers_check_the_data_that_the_project_declares(lab: StudyLab, dask: DaskProcesses) -> None:
    """The runner's machine may lack the data, so the workers report it. The job can continue with the data."""
    path = lab.folder / "shared" / "population.csv"
    (lab.project / "mops.toml").write_text(f'[data]\npaths = ["{path}"]\n')
    (lab.project / "reads.py").write_text(
        f"def run(params, seed):\n    return {{'y': [len(open({str(path)!r}).read())]}}\n"
    )
    lab.write("reads:run", [{"x": 1}, {"x": 2}])
    refused = lab.run(exit_code=2)
    assert "error: the data that mops.toml declares is missing or not readable on this machine" in refused.said
    assert f"  at: {socket.gethostname()}: {path}\n" in refused.said
    path.parent.mkdir()
    path.write_text("four")
    resumed = lab.resume()
    assert resumed.wait() == 0, resumed.said
    assert lab.job().outputs("output").to_arrow()["y"].to_pylist() == [4, 4]


def test_the_scheduler_keeps_no_state_of_a_jobs_tasks(lab: StudyLab, dask: DaskProcesses) -> None:
    """Dask's spans would keep tasks for the life of the scheduler. Tasks of other clients stay."""

    def kept(dask_scheduler: Scheduler) -> tuple[int, int, int]:
        spans = dask_scheduler.extensions["spans"].spans.values()
        notes = sum(len(span.metadata["collections"]) for span in spans if span.metadata)
        submitted = sum(event["action"] == "update-graph" for _, event in dask_scheduler.get_events("scheduler"))
        return notes, sum(len(span.groups) for span in spans), submitted

    lab.write("counted:simulate", betas(40, sleep=0.01), n_replicates=2, targets=["scores:order"])
    with Client(dask.address, set_as_default=False) as other:
        waits = other.submit(sum, [1, 2], resources={"what no worker has": 1})
        lab.run("job", BATCH_SIZE=4, TASK_SECONDS=0.001)
        notes, groups, submitted = other.run_on_scheduler(kept)
        assert waits.status == "pending"
    assert notes == 1
    assert groups <= 4  # theirs; the job's simulations, targets, and what targets are given
    assert submitted >= 10, "there was nothing to keep"  # ten batches; how many tasks each has depends on the machine


def places(lab: StudyLab) -> dict[int, int]:
    """Return each seed's group."""
    return {seed: group for group, seeds in enumerate(lab.seeds()) for seed in seeds}


class Committed:
    """Checks that no committed group runs again."""

    def __init__(self, lab: StudyLab, dask: DaskProcesses, name: str):
        self.lab, self.dask, self.name = lab, dask, name
        self.groups: set[int] = set()
        self.n_calls = len(dask.tally)
        self.places = places(lab)

    def look(self) -> None:
        tally = self.dask.tally
        again = {self.places[seed] for _, seed in tally[self.n_calls :]} & self.groups
        assert not again, f"committed groups ran again: {again}"
        # Read the log first: calls tallied after this read may belong to groups that the log does not contain yet.
        self.groups = set(self.lab.view(self.name).committed) if self.lab.exists(self.name) else set()
        self.n_calls = len(self.dask.tally)


@pytest.mark.usefixtures("real_children")
@pytest.mark.timeout(280)
def test_kills_of_workers_lose_nothing_and_repeat_no_committed_group(lab: StudyLab, dask: DaskProcesses) -> None:
    rng = generator(20261121)
    lab.write("paced:simulate", betas(200, seconds=0.03), n_replicates=3, targets=["scores:order"])
    expected = lab.serial()
    for number, settings in enumerate(WAYS):
        name = f"job-{number}"
        dask.pace_file.touch()
        runner = lab.submit(name, **{"CHECKPOINT_SECONDS": 1} | settings)
        wait_for(lambda name=name: lab.exists(name) and lab.view(name).attempt, of=runner)
        committed = Committed(lab, dask, name)
        kills = 0
        while kills < KILLS_OF_A_JOB and runner.process.poll() is None:
            least = len(dask.tally) + 1  # progress between kills, so that mops does not blame a simulation
            wait_for(lambda least=least: len(dask.tally) >= least, of=runner)
            time.sleep(rng.uniform(0, 0.5))
            dask.kill(rng.choice(dask.workers))
            dask.add_worker()
            kills += 1
            committed.look()
        dask.let_go()
        assert runner.wait() == 0, runner.said
        assert kills == KILLS_OF_A_JOB, "the job was over too soon for this test"
        committed.look()
        assert rows_of(lab.job(name)) == expected
        lab.assert_sound(name)


@pytest.mark.timeout(280)
def test_one_runner_survives_kills_of_the_scheduler(lab: StudyLab, dask: DaskProcesses) -> None:
    rng = generator(20261122)
    lab.write("paced:simulate", betas(150, seconds=0.02), n_replicates=3, targets=["scores:order"])
    dask.pace_file.touch()
    runner = lab.submit(CHECKPOINT_SECONDS=1, TASK_SECONDS=0.05)
    wait_for(lambda: lab.exists() and lab.view().attempt, of=runner)
    committed = Committed(lab, dask, "job")
    for _ in range(SCHEDULER_KILLS):
        least = len(dask.tally) + rng.randint(1, 60)
        wait_for(lambda least=least: len(dask.tally) >= least, of=runner)
        assert dask.scheduler is not None
        dask.kill(dask.scheduler)
        for worker in list(dask.workers):
            dask.await_end(worker)
        committed.look()
        dask.start_scheduler()
        dask.add_worker()
        dask.add_worker()
        dask.await_workers()  # an unregistered worker would not stop with the next scheduler
    dask.let_go()
    assert runner.wait() == 0, runner.said
    committed.look()
    assert rows_of(lab.job()) == lab.serial()
    lab.assert_sound()
    assert lab.view().attempt == 1
    assert "connected again" in runner.said


def test_a_cut_connection_is_replaced_and_the_workers_continue(lab: StudyLab, dask: DaskProcesses) -> None:
    """The scheduler survives and stops the children of the old connection. The new connection has other children."""
    lab.write("held:simulate", betas(40), targets=["scores:order"])
    with way_to(dask.port) as way:
        lab.more_env = {"MODELOPS_SCHEDULER": f"tcp://127.0.0.1:{way.port}", "MOPS_TEST_CALLS": str(dask.calls_file)}
        dask.hold_after(10)
        runner = lab.submit(CHECKPOINT_SECONDS=0)
        wait_for(lambda: lab.exists() and lab.view().committed, of=runner)
        way.cut()
        wait_for(lambda: "lost the connection to the Dask scheduler" in " ".join(runner.said.split()), of=runner)
        dask.let_go()
        assert runner.wait() == 0, runner.said
    assert "connected again" in runner.said
    assert rows_of(lab.job()) == lab.serial()
    lab.assert_sound()


def test_tasks_avoid_a_worker_that_cannot_unpack_the_bundle(lab: StudyLab, dask: DaskProcesses) -> None:
    """Regression: one faulty worker ended the job, and the runner discarded finished groups."""
    lab.write("counted:simulate", betas(60, sleep=0.05), targets=["scores:order"])
    runner = lab.submit(CHECKPOINT_SECONDS=0)
    wait_for(lambda: lab.exists() and len(lab.view().committed) > 5, of=runner)
    bundles = next(dask.folder.glob("cache-*/mops/bundles"))
    bundles.rename(bundles.with_name("gone"))
    bundles.write_text("as on a disk that lost its folders")
    assert runner.wait() == 0, runner.said
    said = " ".join(runner.said.split())
    assert "; it runs again, on another worker if there is one" in said
    _, avoided, after = said.partition("is faulty; it gets no more tasks; workers left: 1")
    assert avoided
    assert after.count("raised on") <= 2 * TASKS_PER_SLOT, "what was in flight; work stealing brought more"
    assert rows_of(lab.job()) == lab.serial()
    lab.assert_sound()


def test_a_task_runs_on_an_avoided_worker_if_there_is_no_other(dask: DaskProcesses) -> None:
    """Otherwise the task would wait without limit after the last other worker has left or has failed too."""
    task = Task(1, (0,))
    with connect_external(dask.address, "run", Settings()) as cluster:
        first, second = cluster.client.nthreads()
        process = dict(zip((ports := cluster.client.run(os.getpid)), ports.values(), strict=True))
        with annotate(**annotations_of(task, frozenset({first, second}), 1.0)):
            both = cluster.client.submit(int, 7, key="sim-job-1-1", pure=False)
        assert both.result(timeout=60) == 7
        with annotate(**annotations_of(task, frozenset({first}), 1.0)):
            waits = cluster.client.submit(time.sleep, 3, key="sim-job-1-2", pure=False)
        wait_for(lambda: cluster.client.processing()[second])
        assert cluster.client.processing()[first] == ()
        dask.kill(next(worker for worker in dask.workers if worker.pid == process[second]))
        assert waits.result(timeout=60) is None


def test_a_connection_that_dask_replaces_by_itself_counts_as_lost(dask: DaskProcesses) -> None:
    """The scheduler has dropped the tasks of the old connection, so a job that did not notice would never end."""
    with way_to(dask.port) as way, connect_external(f"tcp://127.0.0.1:{way.port}", "run", Settings()) as cluster:
        assert cluster.is_connected
        client, stream, pool = cluster.client, cluster.client.scheduler_comm, cluster.pool_id
        way.cut()
        wait_for(lambda: client.status == "running" and client.scheduler_comm not in (None, stream))
        assert not cluster.is_connected
        cluster.reconnect()
        assert cluster.is_connected
        assert cluster.pool_id != pool


@pytest.mark.usefixtures("real_children")
def test_the_children_of_a_killed_runner_end_while_their_workers_stay_alive(lab: StudyLab, dask: DaskProcesses) -> None:
    lab.write("counted:simulate", betas(20, sleep=600))
    runner = lab.submit()
    children = wait_for(lambda: len(dask.tally) >= 1 and dask.children(), of=runner)
    runner.signal(signal.SIGKILL)
    until(lambda: not any(alive(pid) for pid in children), GONE_SECONDS)
    assert all(worker.poll() is None for worker in dask.workers)


@pytest.mark.usefixtures("real_children")
def test_ctrl_c_ends_simulations_on_workers_and_the_job_resumes(lab: StudyLab, dask: DaskProcesses) -> None:
    lab.write("held:simulate", betas(60), targets=["scores:order"])
    dask.hold_after(10)
    runner = lab.submit(CHECKPOINT_SECONDS=0)
    wait_for(lambda: lab.exists() and len(lab.view().committed) > 3, of=runner)
    with Client(dask.address, set_as_default=False) as client:

        def children_bytes() -> list[int]:
            workers = client.scheduler_info()["workers"].values()
            return [worker["metrics"].get("mops_children_bytes", 0) for worker in workers]

        wait_for(lambda: min(children_bytes()) > 10 << 20, of=runner)
    runner.signal(signal.SIGINT)
    wait_for(lambda: "SIGINT" in runner.said, of=runner)
    dask.let_go()
    assert runner.wait() == 130, runner.said
    wait_for(lambda: dask.children() == [])
    again = lab.resume()
    assert again.wait() == 0, again.said
    assert rows_of(lab.job()) == lab.serial()
    assert len(dask.tally) == 60, "what was finished was committed"


def test_slots_increase_with_new_workers(lab: StudyLab, dask: DaskProcesses) -> None:
    lab.write("held:simulate", betas(60))
    dask.hold_after(2)
    runner = lab.start("submit", str(lab.project / "study.json"), "--name", "job", BATCH_SIZE=40, CHECKPOINT_SECONDS=0)
    wait_for(lambda: len(dask.tally) >= 4, of=runner)
    dask.add_worker(threads=3)
    wait_for(lambda: len(dask.tally) == 7, of=runner)
    wait_for(lambda: (live := lab.job().status().live) and live.slots == 5, of=runner)
    dask.let_go()
    assert runner.wait() == 0, runner.said
    assert "slots: 5 (before: 2)" in lab.job().logs()


def test_frozen_nannies_and_a_frozen_worker_stop_neither_the_start_of_a_job_nor_its_end(
    lab: StudyLab, tmp_path: Path
) -> None:
    """Regression: Dask waits without end for a process that is frozen, and mops waited for Dask."""
    with dask_in(tmp_path / "dask", n_workers=0) as dask:
        lab.more_env = {"MODELOPS_SCHEDULER": dask.address}
        nannies = [dask.add_worker("--nanny") for _ in range(2)]
        dask.await_workers()
        with Client(dask.address, set_as_default=False) as other:
            pids = other.run(os.getpid)
            for nanny in nannies:
                nanny.send_signal(signal.SIGSTOP)
            lab.write("held:simulate", betas(1), targets=["scores:order"])
            dask.hold_after(0)
            runner = lab.submit()
            wait_for(lambda: len(dask.tally) == 1, of=runner)
            (idle,) = [worker for worker, keys in other.processing().items() if not keys]
            os.kill(pids[idle], signal.SIGSTOP)
            dask.let_go()
            assert runner.wait() == 0, runner.said
        assert rows_of(lab.job()) == lab.serial()
        assert f"{idle} does not answer" in runner.said


@pytest.mark.usefixtures("real_children")
@pytest.mark.timeout(240)
def test_a_simulation_that_kills_its_workers_is_found_and_all_other_rows_are_complete(
    lab: StudyLab, tmp_path: Path
) -> None:
    with dask_in(tmp_path / "dask", n_workers=0) as dask:
        lab.more_env = {"MODELOPS_SCHEDULER": dask.address}
        for _ in range(2):
            dask.add_worker("--nanny")
        dask.await_workers()
        # The second set: at the start of the job a task has several sets, whatever the first one took.
        sets = [{"a": i, "kills": int(i == 1)} for i in range(12)]
        lab.write("takes_down:simulate", sets, n_replicates=2, targets=["scores:rows"])
        runner = lab.run(START="spawn", exit_code=3)
        wait_for(lambda: dask.nanny_restarts() >= 5)
    failures = lab.job().failures().to_arrow().to_pylist()
    of_simulations = [row for row in failures if row["target"] is None]
    named = [(row["group"], row["replicate"], row["reason"], row["attempts"]) for row in of_simulations]
    # Two workers died of the task with several sets, one of the task with its group, and two of the simulation alone.
    assert named == [(1, 0, "lost", 3)], runner.said
    assert failures[0]["message"] == "alone on a worker: 2 workers died while running it"
    assert failures[0]["signals"] == "KilledWorker"
    assert dask.nanny_restarts() == 5
    said = " ".join(runner.said.split())
    for part in ("run again one by one", "each alone on a worker", "recorded as failed"):
        assert part in said
    rows = lab.job().outputs("output").to_arrow()
    assert sorted(zip(rows["group"].to_pylist(), rows["replicate"].to_pylist(), strict=True)) == [
        (group, replicate) for group in range(12) for replicate in range(2) if (group, replicate) != (1, 0)
    ]


def test_a_worker_that_its_nanny_restarts_while_it_sends_a_result_ran_out_of_memory(tmp_path: Path) -> None:
    """Dask does not count these deaths, which happen after the task."""

    class Large:
        """Uses 400 MiB when the runner fetches it."""

        def __reduce__(self) -> tuple[Any, ...]:
            content = bytearray(b"x") * (400 << 20)
            time.sleep(60)
            return len, (content,)

    with dask_in(tmp_path / "dask", n_workers=0) as dask:
        dask.add_worker("--nanny", "--memory-limit", "300MiB")
        with connect_external(dask.address, "run", Settings()) as cluster:
            future = cluster.client.submit(Large, key="sim-job-1-1", pure=False)
            wait_for(future.done)
            next(cluster.results([future], lambda _: False))
            losses = wait_for(cluster.worker_losses)
    for loss in losses:  # Dask may have run the task again, on the process that the nanny has started
        assert loss.results == {"sim-job-1-1"}
        assert loss.cause.memory
        assert loss.cause.text.startswith("its nanny restarted it at ")


def test_a_job_says_how_many_slots_it_can_use_and_which_workers_are_busy(lab: StudyLab, tmp_path: Path) -> None:
    """Its first simulations are held, so that their time is not measured."""
    with dask_in(tmp_path / "dask", n_workers=0) as dask, connect_to_look(dask.address) as calls:

        def slots() -> list[int]:
            return [one["slots"] for one in calls.metadata([METADATA]).values()]

        lab.more_env = {"MODELOPS_SCHEDULER": dask.address}
        lab.write("held:simulate", betas(100))
        dask.hold_after(0)
        runner = lab.submit(SIM_THREADS=2)
        wait_for(slots, of=runner)
        wait_for(lambda: "has no workers; waiting up to" in runner.said, of=runner)
        assert slots() == [1], "for a first worker"
        dask.add_worker("--name", "first", threads=2)
        wait_for(lambda: calls.on_scheduler(busy_workers) == {"first": ""}, of=runner)
        wait_for(lambda: slots()[0] >= 10, of=runner)
        dask.let_go()
        assert runner.wait() == 0, runner.said
        wait_for(lambda: slots() == [] and calls.on_scheduler(busy_workers) == {})


def test_an_attempt_that_loses_all_workers_ends_and_the_job_resumes(lab: StudyLab, dask: DaskProcesses) -> None:
    lab.write("held:simulate", betas(100), targets=["scores:order"])
    dask.hold_after(10)
    runner = lab.submit(CHECKPOINT_SECONDS=0, CLUSTER_TIMEOUT=8)
    wait_for(lambda: lab.exists() and len(lab.view().committed) > 3, of=runner)
    for worker in list(dask.workers):
        dask.kill(worker)
    wait_for(lambda: lab.job().status().to_go(time.time()).startswith("waits for workers since "), of=runner)
    assert runner.wait() == 4, runner.said
    assert "has had no workers for 8 s" in runner.said
    assert lab.job().status().state == "interrupted"
    in_pod = lab.start("run", "job", "--pod")
    wait_for(lambda: "has no workers; waiting" in " ".join(in_pod.said.split()), of=in_pod)
    assert "waiting up to" not in " ".join(in_pod.said.split()), "a pod waits without end"
    in_pod.kill_all()
    dask.let_go()
    dask.add_worker()
    again = lab.resume()
    assert again.wait() == 0, again.said
    assert rows_of(lab.job()) == lab.serial()


def fetch(cluster: ExternalCluster, future: Future[Any]) -> Any:
    """Return the result, or the error that came instead."""
    ((_, outcome),) = next(cluster.results([future], lambda _: False))
    return outcome


def test_the_runner_does_not_wait_for_a_result_that_is_lost_with_all_workers(
    lab: StudyLab, dask: DaskProcesses
) -> None:
    """Dask must compute the finished task again, has no worker for it, and its gather() would wait for a worker."""
    with connect_external(dask.address, "run", Settings()) as cluster:
        future = cluster.client.submit(int, 7, key="sim-job-1-1", pure=False)
        wait_for(future.done)
        assert fetch(cluster, future) == 7
        for worker in list(dask.workers):
            dask.kill(worker)
        wait_for(lambda: not cluster.client.nthreads())
        if future.status == "finished":  # and perhaps lost before Dask is asked: then it is given up
            ((_, outcome),) = next(cluster.results([future], lambda one: one.status == "lost"))
            assert isinstance(outcome, (RunsAgain, CancelledError))
        assert future.status in ("pending", "lost")
        again = threading.Event()
        future.add_done_callback(lambda _: again.set())
        dask.add_worker()
        assert again.wait(60)
        assert fetch(cluster, future) == 7, "the same future brings it when it is there again"


def error_of(runner: Runner) -> list[str]:
    lines = runner.said.splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("error:"))
    return lines[first:]


UNUSABLE = [
    (
        "localhost:8786",
        None,
        2,
        [
            "error: 'localhost:8786' is not the address of a Dask scheduler",
            "  at: MODELOPS_SCHEDULER",
            "hint: use a form like tcp://host:8786, or unset MODELOPS_SCHEDULER to run on this machine",
        ],
    ),
    (
        "tcp://fd00::1:8786",
        None,
        2,
        [
            "error: 'tcp://fd00::1:8786' is not the address of a Dask scheduler",
            "  at: MODELOPS_SCHEDULER",
            "hint: write an IPv6 address in brackets, like tcp://[fd00::1]:8786",
        ],
    ),
    (
        "tcp://127.0.0.1:8786",
        "memory://here",
        2,
        [
            "error: workers in other processes cannot reach memory:// storage",
            "  at: memory://here",
            "hint: use a shared folder or abfs://container/prefix, or unset MODELOPS_SCHEDULER",
        ],
    ),
    (
        "tcp://127.0.0.1:{free}",
        None,
        4,
        [
            "error: the Dask scheduler at tcp://127.0.0.1:{free} does not answer (waited 1 s)",
            "  at: tcp://127.0.0.1:{free}",
            "hint: start the cluster, or correct MODELOPS_SCHEDULER",
        ],
    ),
]


def test_an_unusable_cluster_is_reported_before_anything_is_written(lab: StudyLab, subtests: pytest.Subtests) -> None:
    free = str(free_port())
    lab.write("counted:simulate", betas(4))
    for scheduler, storage, exit_code, expected in UNUSABLE:
        with subtests.test(scheduler):
            lab.more_env = {"MODELOPS_SCHEDULER": scheduler.format(free=free)}
            more = ["--storage", storage] if storage else []
            runner = lab.start("submit", str(lab.project / "study.json"), "--name", "job", *more, CLUSTER_TIMEOUT=1)
            assert runner.wait() == exit_code, runner.said
            assert error_of(runner) == [line.format(free=free) for line in expected]
            assert not lab.exists()


def test_a_storage_that_workers_cannot_read_is_named(lab: StudyLab, dask: DaskProcesses) -> None:
    """The runner mounts the folder privately, so workers cannot see it, as with a folder of a laptop."""
    lab.write("counted:simulate", betas(4))
    lab.storage.mkdir()
    private = ["unshare", "--mount", "--propagation", "private", "sh", "-c"]
    mounted = f"mount -t tmpfs none {lab.storage} && exec {MOPS} jobs submit {lab.project}/study.json --name job"
    try:
        subprocess.run([*private, f"mount -t tmpfs none {lab.storage}"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this machine allows no private mounts")
    env = (
        os.environ | lab.more_env | {"MODELOPS_STORAGE": str(lab.storage), "XDG_CACHE_HOME": str(lab.folder / "cache")}
    )
    ran = subprocess.run([*private, mounted], check=False, capture_output=True, text=True, env=env, timeout=90)
    assert ran.returncode == 4, ran.stderr
    assert "a worker cannot read the job's bundle" in ran.stderr
    assert "use a storage that every worker reaches at this URL" in ran.stderr
