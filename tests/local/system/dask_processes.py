"""A Dask cluster of separate processes, as an operator starts them: ``dask scheduler``, ``dask worker``."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from distributed import Client
from study_lab import hold_after, leaves

from programs import environment, free_port
from warm import WarmProcess, warm_dask

DASK = Path(sys.executable).with_name("dask")
Process = subprocess.Popen[bytes] | WarmProcess


@dataclass
class DaskProcesses:
    """The processes of a Dask cluster, the tally file of the model's calls, and the files that hold or slow the model.

    Each worker has a separate cache folder, like a separate machine.
    """

    folder: Path
    port: int = field(default_factory=free_port)
    env: dict[str, str] = field(default_factory=dict)
    host: str = "127.0.0.1"
    scheduler: Process | None = None
    workers: list[Process] = field(default_factory=list)
    n_started: int = 0

    @property
    def address(self) -> str:
        return f"tcp://[{self.host}]:{self.port}" if ":" in self.host else f"tcp://{self.host}:{self.port}"

    @property
    def calls_file(self) -> Path:
        return self.folder / "calls.txt"

    @property
    def tally(self) -> list[tuple[str, int]]:
        """The model's calls so far: parameters as JSON, seed."""
        lines = self.calls_file.read_text().splitlines() if self.calls_file.exists() else []
        return [(key, int(seed)) for key, seed, _ in map(str.split, lines)]

    @property
    def hold_file(self) -> Path:
        return self.folder / "hold.txt"

    @property
    def pace_file(self) -> Path:
        return self.folder / "paced"

    def hold_after(self, n_calls: int) -> None:
        """Let only the first ``n_calls`` calls of the held model finish."""
        hold_after(self.hold_file, n_calls)

    def let_go(self) -> None:
        """Release all held calls, and do not slow any call."""
        self.hold_file.unlink(missing_ok=True)
        self.pace_file.unlink(missing_ok=True)

    def start_scheduler(self) -> None:
        """Start the scheduler, always on the same port."""
        self.scheduler = self._start("scheduler", "--host", self.address, "--no-dashboard")

    def add_worker(self, *options: str, threads: int = 1) -> Process:
        """Start a worker; without ``--nanny`` it is one process."""
        nanny = [] if "--nanny" in options else ["--no-nanny"]
        arguments = [self.address, "--nthreads", str(threads), "--memory-limit", "0", "--no-dashboard", *nanny]
        self.workers.append(self._start("worker", *arguments, *options))
        return self.workers[-1]

    def _start(self, *arguments: str) -> Process:
        self.n_started += 1
        env = environment() | {
            "DASK_DISTRIBUTED__SCHEDULER__WORKER_SATURATION": "1.0",
            "XDG_CACHE_HOME": str(self.folder / f"cache-{self.n_started}"),
            "MOPS_TEST_CALLS": str(self.calls_file),
            "MOPS_TEST_HOLD": str(self.hold_file),
            "MOPS_TEST_PACED": str(self.pace_file),
            **self.env,
        }
        with (self.folder / f"dask-{self.n_started}.log").open("wb") as log:
            if any(name.startswith("PYTHON") for name in self.env):  # Python reads them at its start
                return subprocess.Popen(
                    [DASK, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=env,
                    cwd=self.folder,
                    start_new_session=True,
                )
            return warm_dask().start(list(arguments), env, self.folder, out=log, err=log)

    def await_workers(self) -> None:
        """Wait until the scheduler knows all workers."""
        with Client(self.address, timeout=120, set_as_default=False) as client:
            client.wait_for_workers(len(self.workers), timeout=120)

    def kill(self, process: Process) -> None:
        """Kill a process with SIGKILL, as the kernel would."""
        process.send_signal(signal.SIGKILL)
        process.wait()
        if process in self.workers:
            self.workers.remove(process)

    def nanny_restarts(self) -> int:
        """Return how many times a nanny has restarted a worker."""
        logs = "".join(path.read_text() for path in self.folder.glob("dask-*.log"))
        return logs.count("Restarting worker")

    def children(self) -> list[int]:
        """Return the child processes and their template processes."""
        return [pid for pid, line in self.commands() if "mops.child.main" in line]

    def running(self) -> list[int]:
        """Return the child processes without the template processes."""
        return leaves(self.children())

    def commands(self) -> list[tuple[int, str]]:
        """Return the processes that the workers have started, with their command lines."""
        found = []
        for process in self._below():
            with suppress(psutil.NoSuchProcess):
                found.append((process.pid, " ".join(process.cmdline())))
        return found

    def _below(self) -> list[psutil.Process]:
        living = [psutil.Process(worker.pid) for worker in self.workers if worker.poll() is None]
        return [process for worker in living for process in worker.children(recursive=True)]

    def await_end(self, process: Process) -> None:
        """Wait until a worker that lost its scheduler stops by itself."""
        process.wait(60)
        self.workers.remove(process)

    def end(self) -> None:
        """Stop all processes."""
        for process in [*self.workers, *([self.scheduler] if self.scheduler else [])]:
            if process.poll() is None:
                all_below = psutil.Process(process.pid).children(recursive=True)
                process.kill()  # first: a nanny would log that it restarts its worker
                for below in all_below:
                    with suppress(psutil.NoSuchProcess):
                        below.kill()
            process.wait()


@contextmanager
def dask_in(folder: Path, n_workers: int = 2, host: str = "127.0.0.1", **env: str) -> Iterator[DaskProcesses]:
    """Start a scheduler and workers of one thread, wait until the workers are registered, and stop all at the end."""
    folder.mkdir()
    processes = DaskProcesses(folder, env=env, host=host)
    try:
        processes.start_scheduler()
        for _ in range(n_workers):
            processes.add_worker()
        if n_workers:
            processes.await_workers()
        yield processes
    finally:
        processes.end()
