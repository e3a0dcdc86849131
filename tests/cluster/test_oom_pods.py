"""Pods that die while jobs run: the reason is logged, and only the cause is blamed."""

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
    with contextlib.suppress(OSError):  # processes that end
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
"""Uses memory that belongs to no process, until the kernel kills the process with the given id for it. If process 1
dies, all others end too.

If the killed process does not exit within 40 ms, the kernel kills the next one: this program, which frees all of that
memory. A point of oom_score_adj is a thousandth of the memory of the container. Ten points are more than this program
uses, which is larger than the init process of a container.
"""

MEMORY = "2560Mi"
"""The memory of a worker's pod. With that much, oom_score_adj decides which process the kernel kills. (A process may
raise oom_score_adj up to 1000 from the value of kubelet, which is lower for larger pods: here by a tenth.)"""

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
"""Kills the worker of a nanny and stops the next ones, so that no worker runs until the pod is deleted. (Process 1 of a
container cannot be stopped from inside.)"""

MODEL = f"""
import pathlib, subprocess, sys, time

FILL = {FILL!r}

def fill(victim):
    subprocess.run([sys.executable, "-c", FILL, victim], check=True)
    time.sleep(3600)  # a minute was too short on a busy machine

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
    """Install a service with new workers, because kubelet waits longer before each restart of a container."""
    with installed("pods", cluster, worker={**VALUES["worker"], "memory": MEMORY}) as found:
        yield found


def write(service: Service, name: str, *, sets: int = 12, seconds: float = 0.1, **does: int) -> Path:
    """Write a study; ``does`` has the parameter sets that do something special."""
    special = {number: what.replace("_", " ") for what, number in does.items()}
    of_all = {"study": name, "seconds": seconds}
    parameters = [of_all | {"i": i, "does": special.get(i, "")} for i in range(sets)]
    return service.write(name, MODEL, {"parameter_sets": parameters, "n_replicates": 1})


def log_of(service: Service, job: str) -> str:
    """Return the log of a job as one line."""
    return " ".join(service.mops("jobs", "logs", job).out.split())


def test_simulations_for_which_the_kernel_kills_a_container_or_a_process_are_found(service: Service) -> None:
    study = write(service, "greedy", ends_its_container=3, ends_its_worker=5, takes_too_much=7)
    # More than the machine has, so that the kernel acts before mops.
    service.submit(study, "greedy", BATCH_SIZE="12", SIM_MEMORY="64GiB", TASK_SECONDS="0.1")
    service.wait("greedy", "partial", patience_s=600)
    failures = {row["group"]: row for row in service.job("greedy").failures().to_arrow().to_pylist()}
    said = log_of(service, "greedy")
    assert {group: row["reason"] for group, row in failures.items()} == {3: "oom", 5: "oom", 7: "oom"}, said
    assert "kills for memory in its container at that time: " in failures[5]["signals"], (failures[5]["signals"], said)
    pods = service.pods("worker")
    named = [
        pod for pod in pods if f"the container of pod {pod} was OOMKilled (exit code 137)" in failures[3]["signals"]
    ]
    assert len(named) == 1, (failures[3]["signals"], said)
    assert any(f"ran out of memory: the container of pod {pod} was OOMKilled" in said for pod in pods), said
    assert "window: 6 parameter sets (before: 12)" in said
    assert "Kubernetes does not tell" not in said


def test_simulations_on_deleted_pods_are_not_blamed(service: Service) -> None:
    """A worker that has time is retired. These die first, like on a lost node."""
    study = write(service, "robbed", sets=2, takes_long=1)
    service.submit(study, "robbed", TASK_SECONDS="0.1")
    # After two deaths, Dask gives a task back.
    first = _lost_where_it_runs(service, "robbed", 1)
    second = _lost_where_it_runs(service, "robbed", 1, but=first)
    service.wait("robbed", patience_s=400)
    said = log_of(service, "robbed")
    for pod in (first, second):
        assert f"was lost: pod {pod} was deleted; tasks to run again: 1" in said, said
    assert "2 workers died while running it, but pod mops-worker-" in said, said
    assert "killed its workers" not in said


def _lost_where_it_runs(service: Service, job: str, number: int, but: str = "") -> str:
    """Kill the worker that runs a parameter set, and delete its pod; return the name of the pod."""

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


def test_the_attempt_after_an_oom_killed_runner_starts_with_half_the_window(service: Service) -> None:
    study = write(service, "crowded", sets=60, seconds=1)
    service.submit(study, "crowded", BATCH_SIZE="16", CHECKPOINT_SECONDS="1", TASK_SECONDS="0.1")
    begun(service, "crowded", 3)
    (pod,) = service.runner_pods("crowded")
    service.run("kubectl", "-n", service.namespace, "exec", pod, "--", "python", "-c", FILL, "1")
    status = service.wait("crowded", patience_s=400)
    assert status["attempt"] == 2
    said = log_of(service, "crowded")
    assert f"the container of pod {pod} was OOMKilled (exit code 137); window: 8 parameter sets (before: 16)" in said
