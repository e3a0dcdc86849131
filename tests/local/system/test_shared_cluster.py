"""Several jobs on one Dask cluster of real processes have equal shares and do not disturb each other."""

from __future__ import annotations

import contextlib
import json
import queue
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from dask_processes import DaskProcesses, dask_in
from distributed import Client
from study_lab import Runner, StudyLab, betas, lab_in, wait_for

from mops.attempt.tasks import TaskLost, TasksInFlight
from mops.attempt.threads import Events, TaskThreads
from mops.cluster.dask_calls import DaskCalls
from mops.cluster.external import DaskConnection
from mops.cluster.shares import METADATA, TASKS_PER_SHARED_SLOT
from mops.cluster.worker_losses import UNKNOWN
from mops.task import Task
from rows import rows_of

WARM_CHILDREN = True
WORKERS, THREADS = 2, 2
SLOTS = WORKERS * THREADS


@pytest.fixture
def dask(tmp_path: Path) -> Iterator[DaskProcesses]:
    with dask_in(tmp_path / "dask", n_workers=0) as processes:
        processes.pace_file.touch()
        for _ in range(WORKERS):
            processes.add_worker(threads=THREADS)
        processes.await_workers()
        yield processes


@pytest.fixture
def labs(tmp_path: Path, dask: DaskProcesses) -> Iterator[tuple[StudyLab, StudyLab]]:
    """Two users, each with a separate project, storage and bundle."""
    with lab_in(tmp_path / "one") as one, lab_in(tmp_path / "two") as two:
        (two.project / "more.py").write_text("# makes a separate bundle\n")
        for lab, person in ((one, "ada"), (two, "bob")):
            lab.more_env = {"MODELOPS_SCHEDULER": dask.address, "LOGNAME": person}
        yield one, two


def calls(dask: DaskProcesses) -> Counter[str]:
    """Count the model's calls by the job in their parameters."""
    return Counter("one" if json.loads(key)["one"] else "two" for key, _ in dask.tally)


def sets(n: int, job: str, **more: Any) -> list[dict[str, Any]]:
    return betas(n, one=int(job == "one"), **more)


def lookers() -> tuple[Callable[..., Any], Callable[..., int]]:
    """Return functions that run on the scheduler and on a worker. Pickle sends local functions by value."""

    def on_scheduler(dask_scheduler: Any) -> tuple[dict[str, int], dict[str, dict[str, Any]]]:
        """Return the number of unfinished tasks of each job, and the records that jobs share."""
        of: dict[str, int] = {}
        for key, task in dask_scheduler.tasks.items():
            word, _, rest = str(key).partition("-")
            if word in ("sim", "targets") and task.state in ("waiting", "queued", "no-worker", "processing"):
                job = rest.partition("-")[0]
                of[job] = of.get(job, 0) + 1
        return of, {said["job"]: said for said in dask_scheduler.task_metadata.get(METADATA, {}).values()}

    def on_worker() -> int:
        """Return the number of children in all pools of this process, without templates."""
        from mops.worker import run_task

        return sum(len(pool.pids()) for pool in list(run_task._pools.values()))

    return on_scheduler, on_worker


@dataclass
class Watch:
    """Samples of a cluster: tasks in flight by job, the records that jobs share, and the children of each worker."""

    client: Client
    dask: DaskProcesses
    in_flight: list[dict[str, int]] = field(default_factory=list)
    said: list[dict[str, dict[str, Any]]] = field(default_factory=list)
    children: int = 0
    processes: int = 0

    def look(self) -> None:
        on_scheduler, on_worker = lookers()
        in_flight, said = self.client.run_on_scheduler(on_scheduler)
        self.in_flight.append(in_flight)
        self.said.append(said)
        self.children = max(self.children, *self.client.run(on_worker).values())
        self.processes = max(self.processes, *(len(below(worker.pid)) for worker in self.dask.workers))

    def until(self, what: Callable[[], object], *, of: Runner) -> None:
        def looked() -> object:
            self.look()
            return what()

        wait_for(looked, of=of)

    def most(self, job: str, since: int) -> int:
        """Return the largest number of tasks in flight of a job since a sample."""
        return max(seen.get(job, 0) for seen in self.in_flight[since:])


def below(pid: int) -> list[int]:
    """Return the child and template processes of a worker."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        try:
            if "mops.child.main" in " ".join(process.cmdline()):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


@pytest.fixture
def watch(dask: DaskProcesses) -> Iterator[Watch]:
    with Client(dask.address, set_as_default=False) as client:
        yield Watch(client, dask)


def meet(watch: Watch, *, of: Runner) -> int:
    """Wait until both jobs know each other and keep to their shares. Return the number of samples so far."""
    bound = TASKS_PER_SHARED_SLOT * SLOTS // 2
    watch.until(lambda: len(watch.said[-1]) == 2 and watch.in_flight[-1].get("two"), of=of)
    watch.until(lambda: watch.in_flight[-1].get("one", 0) <= bound, of=of)
    return len(watch.in_flight)


@pytest.mark.usefixtures("real_children")
def test_a_short_job_gets_its_share_and_ends_before_a_long_job(
    labs: tuple[StudyLab, StudyLab], dask: DaskProcesses, watch: Watch
) -> None:
    """The tasks of the long job take ten times as long, so in first-in-first-out order they would use all slots."""
    one, two = labs
    one.write("paced:simulate", sets(600, "one", seconds=1), targets=["scores:order"])
    two.write("paced:simulate", sets(240, "two", seconds=0.1), targets=["scores:order"])
    long = one.submit("one", TASK_SECONDS=1, CHECKPOINT_SECONDS=1)
    bound = TASKS_PER_SHARED_SLOT * SLOTS // 2
    watch.until(lambda: watch.most("one", 0) > bound, of=long)  # by itself it has all slots
    short = two.submit("two", TASK_SECONDS=0.1, CHECKPOINT_SECONDS=1)
    met = meet(watch, of=short)
    before = calls(dask)
    watch.until(lambda: calls(dask)["two"] >= 200, of=short)
    done = calls(dask) - before
    assert max(watch.most("one", met), watch.most("two", met)) <= bound
    assert short.wait() == 0, short.said
    assert long.process.poll() is None, "the short job came later and ends first"
    # A simulation of the long job takes as long as ten of the short job, and four of the long job ran already.
    assert done["one"] <= 2 * done["two"] / 10 + SLOTS, done
    watch.until(lambda: list(watch.said[-1]) == ["one"], of=long)
    watch.until(lambda: watch.in_flight[-1].get("one", 0) > bound, of=long)
    assert watch.children <= THREADS
    assert watch.processes <= THREADS + 2, "each job has a template besides"
    dask.let_go()
    assert long.wait() == 0, long.said
    for lab, name in ((one, "one"), (two, "two")):
        assert rows_of(lab.job(name)) == lab.serial()
        lab.assert_sound(name)
    assert Counter(dask.tally).most_common(1)[0][1] == 1, "nothing ran twice"
    log = one.job("one").logs()
    assert "other jobs on this cluster: 1; share of this job: 2 of 4 slots" in log
    assert "other jobs on this cluster: 0; share of this job: 4 of 4 slots" in log


def test_a_job_of_high_priority_gets_most_slots_and_a_normal_job_continues(
    labs: tuple[StudyLab, StudyLab], dask: DaskProcesses, watch: Watch
) -> None:
    one, two = labs
    one.write("paced:simulate", sets(1000, "one", seconds=0.2))
    two.write("paced:simulate", sets(150, "two", seconds=0.2))
    normal = one.submit("one", TASK_SECONDS=0.2, CHECKPOINT_SECONDS=1)
    watch.until(lambda: calls(dask)["one"] > SLOTS, of=normal)
    study = str(two.project / "study.json")
    high = two.start("submit", study, "--name", "two", "--priority", "high", TASK_SECONDS=0.2, CHECKPOINT_SECONDS=1)
    watch.until(lambda: len(watch.said[-1]) == 2 and watch.in_flight[-1].get("one", 0) <= 1, of=high)
    met, before = len(watch.in_flight), calls(dask)
    watch.until(lambda: calls(dask)["two"] >= 100, of=high)
    done = calls(dask) - before
    assert watch.most("one", met) == 1
    assert 4 < watch.most("two", met) <= 6
    said = {job: (it["owner"], it["priority"]) for job, it in watch.said[-1].items()}
    assert said == {"one": ("ada", "normal"), "two": ("bob", "high")}
    assert 0 < done["one"] < done["two"] / 2, done
    dask.let_go()
    assert (high.wait(), normal.wait()) == (0, 0)


def test_a_job_that_ends_early_does_not_change_the_rows_of_another_and_frees_its_share(
    labs: tuple[StudyLab, StudyLab], dask: DaskProcesses, watch: Watch
) -> None:
    one, two = labs
    one.write("paced:simulate", sets(300, "one", seconds=0.2), n_replicates=2, targets=["scores:order"])
    two.write("paced:simulate", sets(1000, "two", seconds=0.2), targets=["scores:order"])
    stays = one.submit("one", CHECKPOINT_SECONDS=1, TASK_SECONDS=0.3)
    goes = two.submit("two", CHECKPOINT_SECONDS=0, TASK_SECONDS=0.3)
    watch.until(lambda: two.exists("two") and len(two.view("two").committed) > 3, of=goes)
    meet(watch, of=stays)
    goes.signal(signal.SIGKILL)
    watch.until(lambda: "two" not in watch.said[-1] and not watch.in_flight[-1].get("two"), of=stays)
    watch.until(lambda: watch.in_flight[-1].get("one", 0) > TASKS_PER_SHARED_SLOT * SLOTS // 2, of=stays)
    dask.let_go()
    assert stays.wait() == 0, stays.said
    assert rows_of(one.job("one")) == one.serial()
    one.assert_sound("one")
    assert calls(dask)["one"] == 600, "nothing ran twice"
    again = two.resume("two")
    assert again.wait() == 0, again.said
    assert rows_of(two.job("two")) == two.serial()
    two.assert_sound("two")


@pytest.mark.usefixtures("real_children")
@pytest.mark.timeout(280)
def test_a_job_that_kills_its_workers_does_not_change_the_rows_of_another(tmp_path: Path) -> None:
    """mops retries the simulations that the other job killed, and quarantines only those that kill workers."""
    with (
        dask_in(tmp_path / "dask", n_workers=0) as dask,
        lab_in(tmp_path / "one") as one,
        lab_in(tmp_path / "two") as two,
    ):
        dask.pace_file.touch()
        for _ in range(WORKERS):
            dask.add_worker("--nanny", threads=THREADS)
        dask.await_workers()
        for lab in (one, two):
            lab.more_env = {"MODELOPS_SCHEDULER": dask.address}
        one.write("paced:simulate", sets(300, "one", seconds=0.4), n_replicates=2, targets=["scores:order"])
        poison = [{"a": i, "kills": int(i == 2)} for i in range(8)]
        two.write("takes_down:simulate", poison, targets=["scores:rows"])
        good = one.submit("one", CHECKPOINT_SECONDS=1, TASK_SECONDS=0.4)
        wait_for(lambda: len(dask.tally) > 4, of=good)
        bad = two.submit("two", START="spawn")
        assert bad.wait(patience_s=200) == 3, bad.said
        assert good.process.poll() is None, "the good job ended before the last death of a worker"
        dask.let_go()
        assert good.wait(patience_s=200) == 0, good.said
        wait_for(lambda: dask.nanny_restarts() >= 5)
    assert one.job("one").failures().to_arrow().num_rows == 0
    assert rows_of(one.job("one")) == one.serial()
    one.assert_sound("one")
    failures = [row for row in two.job("two").failures().to_arrow().to_pylist() if row["target"] is None]
    assert [(row["group"], row["reason"]) for row in failures] == [(2, "lost")], bad.said
    rows = two.job("two").outputs("output", columns=["group"]).to_arrow()["group"].to_pylist()
    assert sorted(rows) == [0, 1, *range(3, 8)]


def ending(*, runs: bool) -> Callable[..., None]:
    """Return a task function that kills its worker, before or after it announces that it runs."""

    def end(request: Any) -> None:
        import os

        from mops.worker.dask_worker import announce_alone

        if runs:
            announce_alone(request.key)
        os._exit(1)

    return end


def nannies_know_their_workers(client: Client) -> bool:
    """Return whether each nanny has heard from its first worker. If that one dies before, the nanny gives up."""

    def status(dask_worker: Any) -> str:
        return str(dask_worker.process.status.name)

    return set(client.run(status, nanny=True).values()) == {"running"}


@pytest.mark.parametrize("runs", [True, False])
def test_a_task_that_waits_to_run_alone_is_not_blamed_for_another_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, runs: bool
) -> None:
    """Two workers die with the task. If the task did not announce that it runs, it is not to blame."""
    monkeypatch.setattr("mops.cluster.external.run_task", ending(runs=runs))
    events: Events = queue.SimpleQueue()
    more = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1"}
    with (
        dask_in(tmp_path / "dask", n_workers=0, **more) as dask,
        Client(dask.address, set_as_default=False) as client,
    ):
        dask.add_worker("--nanny")
        wait_for(lambda: nannies_know_their_workers(client))
        connection = DaskConnection(DaskCalls(client))
        cluster: Any = SimpleNamespace(connection=connection, is_connected=True, loss_cause=lambda *_: UNKNOWN)
        with contextlib.closing(
            TasksInFlight(cluster, SimpleNamespace(), events, TaskThreads(events), 1 << 20)
        ) as tasks_in_flight:
            request: Any = SimpleNamespace(key="sim-job-1-1")
            tasks_in_flight.send(Task(1, (0,), alone=True), request)
            event = events.get(timeout=60)
    assert isinstance(event, TaskLost)
    assert event.blamed is runs
