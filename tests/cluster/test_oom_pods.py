"""Pods that end while jobs run: why they did is said, and only what is to blame is blamed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from service_lab import VALUES, Service, begun, installed, wait_for

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(900)]

FILL = """
import contextlib, os, pathlib, select, sys
if os.fork():
    os._exit(0)
os.setsid()
as_it_was = pathlib.Path("/proc/1/oom_score_adj").read_text()
for process in pathlib.Path("/proc").glob("[0-9]*"):
    with contextlib.suppress(OSError):  # what is gone, or as good as gone
        (process / "oom_score_adj").write_text(as_it_was)
pathlib.Path("/proc", sys.argv[1], "oom_score_adj").write_text("1000")
pathlib.Path("/proc/self/oom_score_adj").write_text("990")
dead = os.pidfd_open(int(sys.argv[1]))
full = os.memfd_create("full")
block = bytes(16 << 20)
ends = select.poll()
ends.register(dead, select.POLLIN)
while not ends.poll(1):
    os.write(full, block)
"""
"""Takes memory that no process shows as its own, until the kernel has killed a process for it; with the first one
(process 1) all others end.

Where what it has killed is not gone within 40 ms the kernel kills the next: this one, with which all of that memory
is free again. A point of oom_score_adj is a thousandth of the container's memory. Ten points are more than this process
takes, which is larger than a container's init process.
"""

MEMORY = "2560Mi"
"""Of a worker's pod: enough for the kernel to take whom it is told to, whatever each process has. (A process may raise
oom_score_adj from what kubelet gave it, the less the more its pod asks for, up to 1000: here by a tenth of this.)"""

KILL = """
import contextlib, os, pathlib, signal, time

def workers():
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if b"\\0from multiprocessing.spawn import" in (process / "cmdline").read_bytes():
                yield int(process.name)
        except OSError:  # gone meanwhile
            pass

killed = list(workers())
for worker in killed:
    os.kill(worker, signal.SIGKILL)
if os.fork():
    os._exit(0)
os.setsid()
for stream in range(3):
    os.dup2(os.open(os.devnull, os.O_RDWR), stream)
while True:
    for worker in set(workers()).difference(killed):
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGSTOP)
    time.sleep(0.02)
"""
"""Kills a nanny's worker, and stops the next, so that none is there until the pod has gone. (A container's process 1
cannot be stopped from inside.)"""

MODEL = f"""
import pathlib, subprocess, sys, time

FILL = {FILL!r}

def fill(victim):
    subprocess.run([sys.executable, "-c", FILL, victim], check=True)
    time.sleep(3600)  # on a busy machine a minute was too short, and the simulation succeeded

def is_worker(process):
    return b"spawn_main" in (process / "cmdline").read_bytes()

def run(params, seed):
    pathlib.Path(f"/tmp/{{params['study']}}-{{params['i']}}").touch()
    if params["does"] == "ends its container":
        fill("1")
    if params["does"] == "ends its worker":
        fill(next(process.name for process in pathlib.Path("/proc").glob("[0-9]*") if is_worker(process)))
    if params["does"] == "takes too much":
        held = [b"x" * (8 << 20) for _ in range(1000)]
    if params["does"] == "takes long":
        time.sleep(40)
    time.sleep(params["seconds"])
    return {{"x": [seed]}}
"""


@pytest.fixture(scope="module")
def service(cluster: dict[str, str]) -> Iterator[Service]:
    """Have a service whose workers begin anew: kubelet waits ever longer before it starts a container again."""
    with installed("pods", cluster, worker={**VALUES["worker"], "memory": MEMORY}) as found:
        yield found


def write(service: Service, name: str, *, sets: int = 12, seconds: float = 0.1, **does: int) -> Path:
    """Write a study of so many sets, in which some do what others do not."""
    deeds = {number: what.replace("_", " ") for what, number in does.items()}
    of_all = {"study": name, "seconds": seconds}
    parameters = [of_all | {"i": i, "does": deeds.get(i, "")} for i in range(sets)]
    return service.write(name, MODEL, {"parameter_sets": parameters, "n_replicates": 1})


def log_of(service: Service, job: str) -> str:
    """Return a job's log in one line."""
    return " ".join(service.mops("jobs", "logs", job).out.split())


def test_who_ends_a_container_or_a_process_for_memory_is_found_and_named(service: Service) -> None:
    study = write(service, "greedy", ends_its_container=3, ends_its_worker=5, takes_too_much=7)
    # More than there is, so that the kernel is the first to say no.
    service.submit(study, "greedy", BATCH_SIZE="12", SIM_MEMORY="64GiB", TASK_SECONDS="0.1")
    service.wait("greedy", "partial", patience_s=600)
    failures = {row["group"]: row for row in service.job("greedy").failures().to_pylist()}
    said = log_of(service, "greedy")
    assert {group: row["reason"] for group, row in failures.items()} == {3: "oom", 5: "oom", 7: "oom"}, said
    assert "kills for memory in its container at that time: " in failures[5]["signals"], (failures[5]["signals"], said)
    pods = service.pods("worker")
    named = [
        pod for pod in pods if f"the container of pod {pod} was OOMKilled (exit code 137)" in failures[3]["signals"]
    ]
    assert len(named) == 1, (failures[3]["signals"], said)
    assert f"ran out of memory: the container of pod {pods[0]} was OOMKilled" in said or (
        f"ran out of memory: the container of pod {pods[1]} was OOMKilled" in said
    )
    assert "window: 6 parameter sets (before: 12)" in said
    assert "Kubernetes does not tell" not in said


def test_what_ran_on_pods_that_were_taken_away_is_not_to_blame(service: Service) -> None:
    """A worker that has time to say goodbye is retired: these die first, as on a node that is lost."""
    study = write(service, "robbed", sets=2, takes_long=1)
    service.submit(study, "robbed", TASK_SECONDS="0.1")
    # Two deaths, and Dask gives a task back.
    first = _lost_where_it_runs(service, "robbed", 1)
    second = _lost_where_it_runs(service, "robbed", 1, but=first)
    service.wait("robbed", patience_s=400)
    said = log_of(service, "robbed")
    for pod in (first, second):
        assert f"was lost: pod {pod} was deleted; tasks to run again: 1" in said, said
    assert "2 workers died while running it, and it is not to blame: pod mops-worker-" in said, said
    assert "killed its workers" not in said


def _lost_where_it_runs(service: Service, job: str, number: int, but: str = "") -> str:
    """Kill the worker where a set has begun to run, and delete its pod; return the pod's name."""

    def found() -> str:
        return next(
            (pod for pod in service.pods("worker") if pod != but and _has(service, pod, f"/tmp/{job}-{number}")), ""
        )

    pod = wait_for(found, said=lambda: service.what_is_wrong(job))
    service.kubectl("exec", pod, "--", "python", "-c", KILL)
    service.kubectl("delete", "pod", pod, "--grace-period=0", "--force")
    return pod


def _has(service: Service, pod: str, file: str) -> bool:
    return service.run("kubectl", "-n", service.namespace, "exec", pod, "--", "ls", file).code == 0


def test_an_attempt_after_a_runner_that_was_oom_killed_begins_with_half_the_window(service: Service) -> None:
    study = write(service, "crowded", sets=60, seconds=1)
    service.submit(study, "crowded", BATCH_SIZE="16", CHECKPOINT_SECONDS="1", TASK_SECONDS="0.1")
    begun(service, "crowded", 3)
    (pod,) = service.runner_pods("crowded")
    service.run("kubectl", "-n", service.namespace, "exec", pod, "--", "python", "-c", FILL, "1")
    status = service.wait("crowded", patience_s=400)
    assert status["attempt"] == 2
    said = log_of(service, "crowded")
    assert f"the container of pod {pod} was OOMKilled (exit code 137); window: 8 parameter sets (before: 16)" in said
