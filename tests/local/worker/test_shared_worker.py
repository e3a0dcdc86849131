"""Pools of several jobs on one worker share one limit each for slots, memory and children."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from pool_lab import PoolLab, limit_bytes, n_waiting, request_for, values

from mops.study.groups import Group
from mops.system.process_tree import tree
from mops.task import TaskResult
from mops.worker.pool import Pool
from mops.worker.results import held_bytes
from mops.worker.slots import TEMPLATES, WorkerSlots, counts
from processes import alive
from waiting import until

WARM_CHILDREN = True
MIB = 1 << 20

HOLDS = """
import os, time
from pathlib import Path

def run(p, s):
    (HERE / f"started-{p['a']}").touch()
    while p.get("holds") and not (HERE / f"go-{p['a']}").exists():
        time.sleep(0.005)
    return {"x": s, "pid": os.getpid()}
"""


@pytest.fixture
def worker() -> WorkerSlots:
    return WorkerSlots()


def begun(lab: PoolLab, pool: Pool, **params: Any) -> tuple[threading.Thread, list[TaskResult]]:
    """Run one simulation in a thread, which appends the result to the returned list."""
    got: list[TaskResult] = []
    thread = threading.Thread(target=lambda: got.append(lab.run(pool, [params])), daemon=True)
    thread.start()
    return thread, got


def held(lab: PoolLab, pool: Pool, name: str) -> tuple[threading.Thread, list[TaskResult]]:
    """Run a simulation until the body ends."""
    found = begun(lab, pool, a=name, holds=True)
    until((lab.folder / f"started-{name}").exists)
    return found


def let_go(lab: PoolLab, name: str, thread: threading.Thread) -> None:
    (lab.folder / f"go-{name}").touch()
    thread.join(30)
    assert not thread.is_alive()


def pid(result: TaskResult) -> int:
    return int(values(result, "pid")[0, 0][0])


def processes() -> set[int]:
    """Return the descendants of this process that the kernel lists as alive."""
    return {pid for pid in tree(os.getpid()) if alive(pid)} - {os.getpid()}


def command_line(pid: int) -> str:
    """Return the number and the command line of a process, which may have ended."""
    with suppress(OSError):
        return f"{pid} {Path(f'/proc/{pid}/cmdline').read_text()}".replace("\0", " ")
    return str(pid)


@contextmanager
def most_processes(pools: list[Pool], others: set[int]) -> Iterator[list[str]]:
    """Yield a list that gets the most concurrent child processes, as the kernel lists them: a command line of each.

    Parameters
    ----------
    others
        Descendants that do not belong to the pools, such as servers of other tests.
    """
    seen: list[str] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.005):
            starters = [pool._starter for pool in pools]
            idle = {one.pid for its in starters for one in (its._slots.template(), its._reaper) if one is not None}
            if len(found := processes() - idle - others) > len(seen):
                seen[:] = map(command_line, found)

    watching = threading.Thread(target=look)
    watching.start()
    try:
        yield seen
    finally:
        over.set()
        watching.join()


@pytest.mark.usefixtures("real_children")
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_there_are_never_more_children_than_slots_with_any_number_of_pools(
    lab: PoolLab, worker: WorkerSlots, start: str
) -> None:
    others = processes()
    pools = [lab.pool(HOLDS, slots=2, worker=worker, start=start, job=f"job-{i}") for i in range(3)]
    for pool in pools:
        pool._starter._living_reaper()  # a reaper is not a child either
    for pool in pools if start == "fork" else ():
        pool.check()  # start the template first, so that this test can tell it from children
    results: list[tuple[threading.Thread, list[TaskResult]]] = []
    with most_processes(pools, others) as most:
        for turn in range(2 if start == "fork" else 1):
            results += [begun(lab, pool, a=f"{turn}-{i}-{n}") for i, pool in enumerate(pools) for n in range(2)]
        for thread, _ in results:
            thread.join(60)
    assert [result.done for _, got in results for result in got] == [{0}] * len(results)
    assert len(most) == 2, most


def test_the_child_that_has_idled_longest_is_ended_first(lab: PoolLab, worker: WorkerSlots) -> None:
    one, two, three = (lab.pool(HOLDS, slots=2, worker=worker, job=f"job-{i}") for i in range(3))
    for pool in (one, two, three):
        pool.check()
    first, second = pid(lab.run(one, [{"a": 1}])), pid(lab.run(two, [{"a": 2}]))
    assert pid(lab.run(one, [{"a": 3}])) == first, "a child is kept as long as there is room"
    made_room = counts()[1]["room"]
    lab.run(three, [{"a": 4}])
    assert counts()[1]["room"] == made_room + 1
    assert (one.pids(), two.pids()) == ([first], []), "that of the second pool had idled longest"
    assert not psutil.pid_exists(second)


def test_a_job_with_more_threads_per_simulation_uses_more_of_the_worker(lab: PoolLab, worker: WorkerSlots) -> None:
    """On a worker with four threads, one simulation with two threads leaves room for exactly two with one thread."""
    wide = lab.pool(HOLDS, slots=2, threads=2, worker=worker, job="wide")
    narrow = lab.pool(HOLDS, slots=4, worker=worker, job="narrow")
    running = {name: held(lab, pool, name) for name, pool in {"w": wide, "a": narrow, "b": narrow}.items()}
    waits, _ = begun(lab, narrow, a="c", holds=True)
    until(lambda: n_waiting(worker) == 1)
    assert not (lab.folder / "started-c").exists()
    let_go(lab, "w", running["w"][0])
    until((lab.folder / "started-c").exists)
    for name, thread in {"a": running["a"][0], "b": running["b"][0], "c": waits}.items():
        let_go(lab, name, thread)


@pytest.mark.usefixtures("real_children")
def test_a_task_that_runs_alone_waits_for_all_pools_and_gets_all_memory(
    lab: PoolLab, worker: WorkerSlots, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = lab.pool(HOLDS, slots=2, worker=worker, job="other")
    pool = lab.pool(HOLDS, slots=2, worker=worker, worker_limit=8 << 30)
    runs, _ = held(lab, other, "o")
    got: list[TaskResult] = []
    begun_alone: list[int] = []
    request = request_for(pool.context, (Group(0, "0", {"a": "alone", "holds": True}, (1,)),), alone=True)
    on_a_cluster = replace(request, context=replace(request.context, slots=None))
    monkeypatch.setattr("mops.worker.pool.announce_alone", lambda _: begun_alone.append(len(other.pids())))
    alone = threading.Thread(target=lambda: got.append(pool.run(on_a_cluster)), daemon=True)
    alone.start()
    until(lambda: n_waiting(worker) == 1)
    assert begun_alone == []
    after, _ = begun(lab, other, a="after")
    let_go(lab, "o", runs)
    until((lab.folder / "started-alone").exists)
    assert begun_alone == [0], "the other pool's child has given its memory back"
    assert limit_bytes(pool, alone=True) > 6 << 30, "its share is 4 GiB; the process of the tests takes up to 1.5 GiB"
    assert not (lab.folder / "started-after").exists()
    let_go(lab, "alone", alone)
    after.join(30)
    assert (lab.folder / "started-after").exists()
    assert got[0].done == {0}


def test_a_pool_that_warms_up_on_a_full_worker_keeps_no_child(lab: PoolLab, worker: WorkerSlots) -> None:
    """Regression: an idle child counted as busy without end, so other tasks could not wait for free memory."""
    other, pool = (lab.pool(HOLDS, worker=worker, start="spawn", job=job) for job in ("other", "job"))
    runs, _ = held(lab, other, "o")
    pool.warm()
    assert pool.pids() == []
    let_go(lab, "o", runs)
    assert not worker.any_busy


@pytest.mark.parametrize("way", ["stop", "close"])
def test_a_stopped_pool_does_not_wait_for_the_simulations_of_another(
    lab: PoolLab, worker: WorkerSlots, way: str
) -> None:
    other, pool = (lab.pool(HOLDS, slots=1, worker=worker, job=job) for job in ("other", "job"))
    runs, _ = held(lab, other, "o")
    waits, got = begun(lab, pool, a="w")
    until(lambda: n_waiting(worker) == 1)
    pool.close() if way == "close" else pool.stop(600.0)
    waits.join(30)
    assert (got[0].done, got[0].failures) == (set(), [])
    let_go(lab, "o", runs)


def test_a_job_whose_results_are_not_fetched_does_not_delay_others(lab: PoolLab, worker: WorkerSlots) -> None:
    idle = lab.pool(HOLDS, worker=worker, job="idle")
    unfetched = lab.run(idle, [{"a": 1}])
    pool = lab.pool(HOLDS, worker=worker, job="busy", held_bytes=0)
    assert held_bytes() > 0
    assert lab.run(pool, [{"a": 2}]).done == {0}
    del unfetched


def test_templates_of_idle_jobs_are_ended_and_started_again(lab: PoolLab, worker: WorkerSlots) -> None:
    pools = [lab.pool(HOLDS, slots=1, worker=worker, start="fork", job=f"job-{i}") for i in range(4)]
    for pool in pools:
        lab.run(pool, [{"a": 1}])
    assert [pool.slots.template() is not None for pool in pools] == [False] * (4 - TEMPLATES) + [True] * TEMPLATES
    assert lab.run(pools[0], [{"a": 2}]).done == {0}
    assert pools[0].slots.template() is not None


@pytest.mark.usefixtures("real_children")
def test_memory_of_another_pools_template_is_not_shared_out(lab: PoolLab, worker: WorkerSlots) -> None:
    large = "ballast = bytes(range(256)) * (200 << 12)\n" + HOLDS
    (lab.folder / "large.py").write_text(large)
    pool = lab.pool(HOLDS, slots=2, worker=worker, worker_limit=8 << 30, start="fork")
    pool.check()
    before = limit_bytes(pool, alone=False)
    lab.pool(None, "large:run", str(lab.folder), slots=2, worker=worker, start="fork", job="large").check()
    assert 90 * MIB < before - limit_bytes(pool, alone=False) < 300 * MIB


@pytest.mark.usefixtures("real_children")
def test_a_full_worker_ends_idle_children_of_every_pool(lab: PoolLab, worker: WorkerSlots) -> None:
    idle = lab.pool(HOLDS, slots=2, worker=worker, job="idle")
    lab.run(idle, [{"a": 1}])
    pool = lab.pool(HOLDS, slots=2, worker=worker, worker_limit=1, memory_bytes=2 << 30)
    runs, _ = held(lab, pool, "r")
    assert len(idle.pids()) == 1
    waits, _ = begun(lab, pool, a="w")
    until(lambda: not idle.pids())
    assert not (lab.folder / "started-w").exists(), "a second simulation started without free memory"
    let_go(lab, "r", runs)
    waits.join(30)
    assert (lab.folder / "started-w").exists()


def test_warming_a_pool_beside_a_busy_one_ends(lab: PoolLab, worker: WorkerSlots) -> None:
    """Regression: each new child replaced an idle one of the same pool, without end."""
    busy, other = (lab.pool(HOLDS, slots=4, worker=worker, start="spawn", job=job) for job in ("busy", "other"))
    running = {name: held(lab, busy, name)[0] for name in ("a", "b")}
    warming = threading.Thread(target=other.warm, daemon=True)
    warming.start()
    warming.join(30)
    assert not warming.is_alive()
    for name, thread in running.items():
        let_go(lab, name, thread)
