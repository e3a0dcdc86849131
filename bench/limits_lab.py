"""The tools of `limits.py`: limits like those of containers, a Dask cluster of processes, jobs, and memory samples.

Needs Linux, and root for cgroups and mounts.
"""

import json
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from throughput import BENCH, environment
from tree_memory import PeakMemory

sys.path.insert(0, str(BENCH.parent / "tests"))
sys.path.insert(0, str(BENCH.parent / "tests" / "local" / "system"))

from dask_processes import DaskProcesses

MIB = 1 << 20
GIB = 1 << 30
SAMPLE_S = 0.5
ONE_JOB = [sys.executable, str(BENCH / "one_job.py")]


@dataclass(frozen=True)
class Cgroup:
    """A memory cgroup, version 1 or 2, like that of a container."""

    folder: Path
    v1: bool

    def add(self, pid: int) -> None:
        """Put a process into the cgroup; the processes that it starts later are in the cgroup too."""
        (self.folder / "cgroup.procs").write_text(str(pid))

    def kills(self) -> int:
        """Return how many processes the kernel has killed because the cgroup was full."""
        return self._figures("memory.oom_control" if self.v1 else "memory.events")["oom_kill"]

    def taken_bytes(self) -> int:
        """Return the bytes that the kernel cannot reclaim: the memory of processes, and memory files."""
        figures = self._figures("memory.stat")
        return figures["total_rss"] + figures["total_shmem"] if self.v1 else figures["anon"] + figures["shmem"]

    def _figures(self, name: str) -> dict[str, int]:
        lines = (line.split() for line in (self.folder / name).read_text().splitlines())
        return {key: int(value) for key, value in lines}


@contextmanager
def cgroup_of(limit_bytes: int) -> Iterator[Cgroup]:
    """Make a cgroup with this limit in bytes; it must be empty at the end of the body."""
    mounted = Path("/sys/fs/cgroup/memory")
    v1 = mounted.is_dir()
    folder = (mounted if v1 else mounted.parent) / f"mops-bench-{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    (folder / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text(str(limit_bytes))
    try:
        yield Cgroup(folder, v1)
    finally:
        await_empty(folder)
        folder.rmdir()


def await_empty(folder: Path, longest_s: float = 10) -> None:
    deadline = time.monotonic() + longest_s
    while (folder / "cgroup.procs").read_text() and time.monotonic() < deadline:
        time.sleep(0.05)


class CgroupMemory(threading.Thread):
    """Samples the memory of a cgroup from `start` to `stop`: `series` has (seconds, bytes)."""

    def __init__(self, cgroup: Cgroup):
        super().__init__(daemon=True)
        self._cgroup = cgroup
        self.series: list[tuple[float, int]] = []
        self._stopping = threading.Event()

    def run(self) -> None:
        began = time.monotonic()
        while not self._stopping.wait(SAMPLE_S / 5):
            self.series.append((time.monotonic() - began, self._cgroup.taken_bytes()))

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    @property
    def peak_bytes(self) -> int:
        return max(size for _, size in self.series)


@contextmanager
def cgroup_memory(cgroup: Cgroup) -> Iterator[CgroupMemory]:
    """Sample a cgroup during the body."""
    sampler = CgroupMemory(cgroup)
    sampler.start()
    try:
        yield sampler
    finally:
        sampler.stop()


@dataclass
class Lab:
    """A folder for all files of one run, removed when the run ends."""

    folder: Path
    studies: int = 0
    env: dict[str, str] = field(default_factory=dict)

    def study(self, model: str, sets: list[dict], replicates: int = 1) -> Path:
        """Write a study."""
        self.studies += 1
        path = self.folder / f"study-{self.studies}.json"
        path.write_text(json.dumps({"model": model, "parameter_sets": sets, "n_replicates": replicates}))
        return path

    def environment(self, **settings: object) -> dict[str, str]:
        """Return a runner's environment: default settings, except these of MODELOPS_JOB_."""
        own = {f"MODELOPS_JOB_{name}": str(value) for name, value in settings.items()}
        return environment() | {"XDG_CACHE_HOME": str(self.folder / "cache")} | self.env | own

    def job(self, study: Path, *before: str, cgroup: Cgroup | None = None, **settings: object) -> tuple[dict, Path]:
        """Run a study; return its figures and the path of its log.

        Parameters
        ----------
        before
            A command that runs the command in its arguments.
        cgroup
            The cgroup in which the runner runs.
        """
        said = self.folder / f"{study.stem}.log"
        line = [*before, *ONE_JOB, str(study), "--storage", str(self.folder / "storage")]
        with said.open("w") as log:
            process = subprocess.Popen(
                line, stdout=subprocess.PIPE, stderr=log, text=True, env=self.environment(**settings)
            )
            if cgroup is not None:
                cgroup.add(process.pid)
            output, _ = process.communicate()
        if process.returncode:
            return {"state": "died", "error": f"exit code {process.returncode}: {last_line(said)}"}, said
        return json.loads(output.splitlines()[-1]), said


def last_line(path: Path) -> str:
    return (path.read_text().splitlines() or [""])[-1]


@contextmanager
def lab() -> Iterator[Lab]:
    with tempfile.TemporaryDirectory(prefix="mops-limits-") as folder:
        yield Lab(Path(folder))


@contextmanager
def dask_cluster(lab: Lab, *options: str, threads: int = 2, cgroup: Cgroup | None = None) -> Iterator[DaskProcesses]:
    """Start a scheduler and one worker, which run all later jobs of the lab.

    Parameters
    ----------
    options
        Options of ``dask worker``. Without ``--nanny``, the worker is one process.
    cgroup
        The cgroup in which the worker runs. The scheduler runs outside of it.
    """
    folder = lab.folder / "dask"
    folder.mkdir()
    cluster = DaskProcesses(folder, env={"PYTHONPATH": environment()["PYTHONPATH"]})
    try:
        cluster.start_scheduler()
        worker = cluster.add_worker(*options, threads=threads)
        if cgroup is not None:
            cgroup.add(worker.pid)
        lab.env["MODELOPS_SCHEDULER"] = cluster.address
        yield cluster
    finally:
        cluster.end()


def worker_log(cluster: DaskProcesses) -> str:
    """Return the worker's log. The worker was started after the scheduler, as the second process."""
    return (cluster.folder / "dask-2.log").read_text()


@contextmanager
def memory_of(*pids: int) -> Iterator[list[PeakMemory]]:
    """Sample these processes and their trees during the body."""
    samplers = [PeakMemory(pid, SAMPLE_S) for pid in pids]
    for sampler in samplers:
        sampler.start()
    try:
        yield samplers
    finally:
        for sampler in samplers:
            sampler.stop()


def thinned(series: list[tuple[float, int]], most: int = 400) -> list[list[float]]:
    """Return a series of at most this many points, as (s, MiB). Each point is the highest of its interval."""
    step = max(-(-len(series) // most), 1)
    stretches = [series[n : n + step] for n in range(0, len(series), step)]
    return [[round(s[-1][0], 2), round(max(size for _, size in s) / MIB, 1)] for s in stretches]
