"""The preStop hook of a worker's pod, with real schedulers and workers in separate processes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from distributed import Client

from programs import free_port
from waiting import until
from warm import WarmProcess, warm, warm_dask


@dataclass
class Cluster:
    """A scheduler, and workers with nannies, as in pods."""

    folder: Path
    port: int = field(default_factory=free_port)
    processes: list[WarmProcess] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def start_scheduler(self) -> WarmProcess:
        return self._start("scheduler", "--host=127.0.0.1", f"--port={self.port}", "--dashboard-address=127.0.0.1:0")

    def start_worker(self, name: str) -> WarmProcess:
        folder = f"--local-directory={self.folder}"
        return self._start("worker", self.address, f"--name={name}", "--nthreads=1", "--no-dashboard", folder)

    def _start(self, *arguments: str) -> WarmProcess:
        log = (self.folder / f"{len(self.processes)}.log").open("wb")
        with log:
            started = warm_dask().start([*arguments], dict(os.environ), self.folder, out=log, err=log)
        self.processes.append(started)
        return started

    def retire(self, name: str, *options: str, seconds: float = 30, address: str = "") -> str:
        """Run the hook in a warm process, check that it succeeds, and return its output."""
        env = os.environ | {"DASK_SCHEDULER_ADDRESS": address or self.address, "DASK_WORKER_NAME": name}
        argv = ["mops.worker.retire", f"--seconds={seconds}", *options]
        program = f"import runpy, sys; sys.argv = {argv!r}; runpy.run_module(sys.argv[0], run_name='__main__')"
        code, out, err = warm().run(["-c", program], env, self.folder, timeout_s=60)
        assert (code, out) == (0, ""), err
        return err

    def end(self) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):  # the worker and its subprocesses have ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.end()


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    """A connection to a cluster of two workers, a and b."""
    cluster.start_scheduler()
    for name in ("a", "b"):
        cluster.start_worker(name)
    with Client(cluster.address, timeout=120, set_as_default=False) as connected:
        connected.wait_for_workers(2, timeout=120)
        yield connected


def addresses(client: Client) -> dict[str, str]:
    return {worker["name"]: address for address, worker in client.scheduler_info(n_workers=-1)["workers"].items()}


def counted(calls: Path, seconds: float = 0) -> Callable[[], str]:
    """Return a task that records its call and returns a result on one worker. Pickle sends a local function by value.

    Parameters
    ----------
    seconds
        The duration of its first call.
    """

    def task() -> str:
        import time

        is_first = not calls.exists()
        with calls.open("a") as file:
            file.write("x")
        time.sleep(seconds if is_first else 0)
        return "result"

    return task


def test_a_retired_worker_stops_and_its_results_are_kept(cluster: Cluster, client: Client, tmp_path: Path) -> None:
    """Without the hook, the result is lost with the pod, and Dask computes it again."""
    # Worker c has already ended, or has never connected.
    assert "c is not among the scheduler's 2 workers" in cluster.retire("c")
    assert set(addresses(client)) == {"a", "b"}
    calls = tmp_path / "calls"
    on_a = addresses(client)["a"]
    future = client.submit(counted(calls), workers=[on_a], allow_other_workers=True, pure=False)
    future.result(30)
    said = cluster.retire("a")
    assert said == "mops.worker.retire: a is retired\n"
    assert set(addresses(client)) == {"b"}
    cluster.processes[1].wait(30)  # it stops by itself
    assert future.result(30) == "result"
    assert calls.read_text() == "x"
    assert "b is not retired: no other worker takes its results" in cluster.retire("b")
    assert set(addresses(client)) == {"b"}


def test_tasks_of_a_retired_worker_run_on_another(cluster: Cluster, client: Client, tmp_path: Path) -> None:
    """The task does not become a suspect, because the worker did not die of it."""
    calls = tmp_path / "calls"
    on_a = addresses(client)["a"]
    future = client.submit(counted(calls, 600), workers=[on_a], allow_other_workers=True, pure=False)
    until(calls.exists)
    cluster.retire("a")
    assert future.result(30) == "result"
    assert calls.read_text() == "xx"
    assert client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.tasks[future.key].suspicious) == 0


def test_a_name_that_is_a_number_is_found(cluster: Cluster) -> None:
    """Dask converts a name of digits to a number."""
    cluster.start_scheduler()
    cluster.start_worker("7")
    with Client(cluster.address, timeout=120, set_as_default=False) as connected:
        connected.wait_for_workers(1, timeout=60)
    assert "7 is retired" in cluster.retire("7")


def test_a_missing_scheduler_does_not_fail_the_stop(cluster: Cluster, tmp_path: Path) -> None:
    said_to = tmp_path / "log"
    said = cluster.retire("a", f"--say-to={said_to}")
    assert said.startswith("mops.worker.retire: not retired, so Dask computes its results again: ")
    assert (
        "ConnectionRefusedError" in said or "Timed out trying to connect" in said
    )  # the last attempt may have no time
    assert said_to.read_text() == said


def test_a_log_that_cannot_be_written_does_not_fail_the_stop(cluster: Cluster, tmp_path: Path) -> None:
    assert "not retired" in cluster.retire("a", f"--say-to={tmp_path / 'none' / 'log'}")


@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\n\r\n[]", bytes(64)])
def test_another_server_in_the_schedulers_place_does_not_fail_the_stop(cluster: Cluster, answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", cluster.port)) as server:

        def serve() -> None:
            with server.accept()[0] as connection:
                connection.recv(4096)
                connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        assert "not retired, so Dask computes its results again" in cluster.retire("a")


def test_the_hook_waits_for_a_hanging_scheduler_only_until_its_timeout(cluster: Cluster) -> None:
    """A process stopped by SIGSTOP accepts connections and answers nothing, like a scheduler with a blocked loop."""
    scheduler = cluster.start_scheduler()
    with Client(cluster.address, timeout=120, set_as_default=False):
        pass  # the scheduler answers
    scheduler.send_signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        assert "the scheduler has not answered within 1 s" in cluster.retire("a", seconds=1)
        assert time.monotonic() - began < 15
    finally:
        scheduler.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("scheme", ["tcp", "tls"])
def test_a_server_that_says_nothing_does_not_hold_up_the_stop(cluster: Cluster, scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"{scheme}://127.0.0.1:{server.getsockname()[1]}"
        assert "not retired, so Dask computes its results again" in cluster.retire("a", seconds=2, address=address)


def test_without_its_variables_the_hook_names_the_missing_one() -> None:
    env = {key: value for key, value in os.environ.items() if not key.startswith("DASK_")}
    command = [sys.executable, "-m", "mops.worker.retire"]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert ran.stderr == "mops.worker.retire: not retired: DASK_SCHEDULER_ADDRESS is not set\n"
