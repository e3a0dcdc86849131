"""The embedded cluster."""

from __future__ import annotations

import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from mops.attempt.attempt import embedded_slots, started_children
from mops.cluster import embedded
from mops.cluster.embedded import EmbeddedCluster, start_embedded
from mops.errors import ClusterError, ModelError
from mops.settings import Settings
from mops.study.groups import Group
from mops.task import JobContext, TaskRequest, TaskResult
from mops.worker import run_task as worker_tasks
from waiting import until


def test_slots_are_the_processors_divided_by_threads_and_at_least_one() -> None:
    processors = embedded_slots(Settings())
    assert processors >= 1
    assert embedded_slots(Settings(sim_threads=processors)) == 1
    assert embedded_slots(Settings(sim_threads=10 * processors)) == 1
    assert embedded_slots(Settings(slots=3, sim_threads=10 * processors)) == 3


def slot_threads() -> list[threading.Thread]:
    """Return the threads of slots. Those of other libraries may come and go."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("mops-slot-")]


def request(number: int, *, has_input: bool = False) -> TaskRequest:
    context = JobContext("job", "1", "ab" * 32, "storage", "model:run", "baseline", targets=(), outputs=None, slots=1)
    return TaskRequest(context, number, (), None, 1.0, 1, replicates=() if has_input else None)


class Worker:
    """Stands in for `run_task`: keeps the order of tasks, and lets a test say when the first one ends."""

    def __init__(self) -> None:
        self.ran: list[int] = []
        self.may_end = threading.Event()

    def __call__(self, request: TaskRequest, *given: Any) -> TaskResult:
        self.ran.append(request.number)
        self.may_end.wait(30)
        if request.number == 13:
            raise ModelError("cannot be imported")
        return TaskResult(request.keys, frozenset(), 0.1, None)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    made = Worker()
    monkeypatch.setattr(embedded, "run_task", made)
    return made


def submit(cluster: EmbeddedCluster, *numbers: int, has_input: bool = False) -> list[Any]:
    task: Any = None  # the scheduler of a Dask cluster reads it
    return [cluster.submit(task, request(number, has_input=has_input), None, frozenset()) for number in numbers]


def test_a_slot_runs_one_task_at_a_time_and_those_with_input_first(worker: Worker) -> None:
    """A group's targets need its results, which take room until then."""
    done = threading.Semaphore(0)
    with start_embedded("1", 1) as cluster:
        first = submit(cluster, 1)
        until(lambda: worker.ran == [1])
        rest = [*submit(cluster, 2, 3), *submit(cluster, 4, has_input=True)]
        for sent in (*first, *rest):
            sent.add_done_callback(lambda _: done.release())
        assert worker.ran == [1]
        worker.may_end.set()
        assert all(done.acquire(timeout=30) for _ in range(4))
    assert worker.ran == [1, 4, 2, 3]


def test_a_result_is_taken_once_and_an_error_is_kept_apart(worker: Worker) -> None:
    worker.may_end.set()
    with start_embedded("1", 2) as cluster:
        good, bad = submit(cluster, 1, 13)
        until(lambda: good.status == "finished" and bad.status == "error")
        ((found,),) = cluster.results([good], lambda _: False)
        assert found[0] is good
        assert isinstance(found[1], TaskResult)
        task: Any = None
        assert isinstance(cluster.error_of(bad, task), ModelError)
        told: list[Any] = []
        good.add_done_callback(told.append)
        assert told == [good]


def test_a_released_task_is_kept_nowhere_and_does_not_run(worker: Worker) -> None:
    with start_embedded("1", 1) as cluster:
        (running,) = submit(cluster, 1)
        until(lambda: worker.ran == [1])
        waiting = submit(cluster, 2)
        cluster.release(waiting)
        assert waiting[0].request is None
        worker.may_end.set()
        until(lambda: running.status == "finished")
        (last,) = submit(cluster, 3)
        until(lambda: last.status == "finished")
    assert worker.ran == [1, 3]


def test_a_callback_that_raises_does_not_end_the_thread_of_a_slot(worker: Worker) -> None:
    def raises(_: object) -> None:
        raise ZeroDivisionError

    with start_embedded("1", 1) as cluster:
        (first,) = submit(cluster, 1)
        first.add_done_callback(raises)
        worker.may_end.set()
        (second,) = submit(cluster, 2)
        until(lambda: second.status == "finished")


def test_a_cluster_that_gets_no_thread_says_so_and_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, []

    def start_one(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_one)
    with pytest.raises(ClusterError, match="each of 3 slots"), start_embedded("1", 3):
        pass
    assert started
    until(lambda: not slot_threads())


def test_a_closed_cluster_starts_no_task(worker: Worker) -> None:
    with start_embedded("1", 1) as cluster:
        submit(cluster, 1)
        until(lambda: worker.ran == [1])
        (waiting,) = submit(cluster, 2)
    worker.may_end.set()
    until(lambda: not slot_threads())
    assert worker.ran == [1]
    assert waiting.request is None


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The digest of a bundle that is unpacked on this machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    digest = "ab" * 32
    project = tmp_path / "mops" / "bundles" / digest
    project.mkdir(parents=True)
    (project / "model.py").write_text("def run(p, s):\n    return {'x': s}\n")
    return digest


def context_of(bundle: str, run: str) -> JobContext:
    return JobContext("job", run, bundle, "storage", "model:run", "baseline", targets=(), outputs=None, slots=2)


@pytest.mark.parametrize(("module", "name"), [(embedded, "run_task"), (worker_tasks, "bundle_folder")])
def test_a_task_that_a_thread_starts_after_the_pool_is_closed_makes_no_pool(
    bundle: str, monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str
) -> None:
    """Regression: such a task made the pool again. Nothing closed it, and it took room from later jobs."""
    context, has_begun, is_closed = context_of(bundle, f"late {name}"), threading.Event(), threading.Event()
    function = getattr(module, name)

    def late(*args: Any) -> Any:
        has_begun.set()
        assert is_closed.wait(30)
        return function(*args)

    with started_children(context), start_embedded(context.run_id, 1) as cluster:
        monkeypatch.setattr(module, name, late)
        request = TaskRequest(context, 1, (Group(0, "1a99", {}, (1,)),), None, 60.0, 1)
        task: Any = None
        sent = cluster.submit(task, request, None, frozenset())
        assert has_begun.wait(30)
    is_closed.set()
    until(lambda: sent.status == "finished")
    ((found,),) = cluster.results([sent], lambda _: False)
    assert isinstance(found[1], TaskResult)
    assert (found[1].done, found[1].failures) == (frozenset(), [])
    assert context.run_id not in worker_tasks._pools


def test_an_attempt_that_is_done_has_its_children_ended_beside_it(bundle: str) -> None:
    context = context_of(bundle, "done")
    with started_children(context) as pool, start_embedded(context.run_id, 2) as cluster:
        pool.check()
        (child,) = map(psutil.Process, pool.pids())
        cluster.finish()
        child.wait(30)
